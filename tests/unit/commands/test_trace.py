"""Parts of a trace as one log: one clock, one order, and nothing that a process says of another."""

from __future__ import annotations

from pathlib import Path

from gt.commands.trace import free_name, log_text, notes
from gt.runtime.log_lines import parse_log, read_log
from gt.runtime.wire import Traced


def part(who: str, start: float, *lines: str, within_s: float = 0.0, left_out: int = 0, missing: str = "", tag: str = "") -> Traced:
    return Traced(who, start, within_s, lines, left_out, missing, 0, tag)


def test_parts_are_one_log_on_one_clock() -> None:
    text = log_text([
        part("dispatcher", 1000.0, "5.000000 1 recv dispatcher Run 0 from=client0", "5.200000 2 send dispatcher Execute 9 to=worker0"),
        part("worker0", 990.0, "15.100000 7 run worker0 flush0 64 epoch=1 seconds=0.050000"),
        part("client0", 1004.0),
    ])  # fmt: skip
    log = parse_log(text.splitlines())
    assert [(x.who, round(x.time, 6)) for x in log.lines] == [("dispatcher", 1005.0), ("worker0", 1005.1), ("dispatcher", 1005.2)]
    assert text.splitlines()[1].startswith("0.000000 1 recv dispatcher Run 0") and log.skipped == 0


def test_what_is_no_line_of_its_own_is_left_out() -> None:
    text = log_text([
        part("client0", 1.0, "0.5 1 call client0 Run 0", "0.6 2 run worker0 flush0 0", "nonsense", "", "nan 3 call client0 Run 0"),
        part("client1", float("nan"), "0.5 1 call client1 Run 0"),
    ])  # fmt: skip
    assert [(x.who, x.operation) for x in parse_log(text.splitlines()).lines] == [("client0", "Run")]


def test_traces_of_two_servers_that_are_read_together_have_lanes_of_their_own(tmp_path: Path) -> None:
    line = "0.500000 1 run worker0 flush0 64 epoch=1 seconds=0.050000"
    for at, tag in enumerate(("aa", "bb", "bb")):
        (tmp_path / f"{at}.log").write_text(log_text([part("dispatcher", at, tag=tag), part("worker0", at, line, tag=tag)]))
    one, two, again = (tmp_path / f"{at}.log" for at in range(3))
    assert [x.who for x in read_log(one, two, again).lines] == ["worker0@aa", "worker0@bb", "worker0@bb"]
    assert [x.who for x in read_log(two, again).lines] == ["worker0", "worker0"]


def test_an_empty_trace_is_a_log() -> None:
    assert parse_log(log_text([]).splitlines()).lines == ()


def test_what_is_not_in_it_is_told() -> None:
    told = notes([
        part("client0", 0.0, missing="it ended"), part("worker0", 0.0, "x", left_out=5), part("worker1", 0.0, within_s=0.002),
        part("dispatcher", 0.0),
    ])  # fmt: skip
    assert told == [
        "client0 is not in the trace: it ended",
        "worker0: left out, before the latest 1: 5 events, see --max-events",
        "worker1: its clock is another machine's, known within 2.00 ms",
    ]


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "trace-1.log").touch()
    (tmp_path / "trace-2.json").touch()
    assert free_name(tmp_path).name == "trace-3"

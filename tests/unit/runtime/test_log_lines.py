"""The instruction log's form, its reader, its bounded size, and tracing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import observing
from gt.ir.program import WireType
from gt.runtime import env
from gt.runtime.log import InstructionLog, brief
from gt.runtime.log_lines import LogError, parse_log, read_log
from gt.runtime.wire import Execute, Run, Ship


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = InstructionLog(str(path), "worker1")
    log.write("run", "step", 12, "epoch=3 seconds=0.250000 fault=-")
    log.write("flush", "graph", 0, "graph=1 at=a b.py:3 reason=a value\nwas read")
    log.write("recv", "Stop")
    log.close()
    first, second, third = read_log(path).lines
    assert read_log(str(path)) == read_log(path)
    assert (first.event, first.who, first.operation, first.nbytes, first.sequence) == ("run", "worker1", "step", 12, 1)
    assert first.fields == {"epoch": "3", "seconds": "0.250000", "fault": "-"} and first.seconds == 0.25
    assert second.fields == {"graph": "1", "at": "a b.py:3", "reason": r"a value\nwas read"}
    assert (third.details, third.fields, third.seconds) == ("", {}, 0.0)
    assert abs(first.time - path.stat().st_mtime) < 60


def test_two_scripts_that_write_one_file_have_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs = [InstructionLog(str(path), who, tag=tag, limit=2000) for tag in ("aa", "bb") for who in ("client0", "worker0")]
    for _ in range(30):  # the file becomes two
        for log in logs:
            log.write("call", "Run")
    for log in logs:
        log.close()
    names = ["client0", "worker0", "client0@bb", "worker0@bb"]
    assert path.with_name("log.1").exists()
    found = read_log(path)
    assert {line.who for line in found.lines} == set(names) and found.owner == "aa" and found.skipped == 0
    other = tmp_path / "other"
    InstructionLog(str(other), "client0", tag="cc").write("call", "Run")
    assert {line.who for line in read_log(path, other).lines} == {f"{who}@aa" for who in names[:2]} | {*names[2:], "client0@cc"}


def test_a_message_is_told_by_its_small_fields() -> None:
    assert brief(Run(4, (1, 2), (17, 18), (), ())) == "key=4 made=17"
    assert brief(Run(4, (1, 2), (17, 18), (), (), reads=(1, 9))) == "key=4 made=17 request=9"
    ship = Ship(31, b"token", 9, WireType((2,), "float32"), ((0, 2),), 1, False)
    assert brief(Execute(5, 3, (1,), (31,), (), (), reads=(0, ship))) == "epoch=5 plan=3 made=31 request=9"


def test_a_killed_process_leaves_all_that_it_logged(tmp_path: Path) -> None:
    path = tmp_path / "log"
    code = f"""
import os, signal
from gt.runtime.log import InstructionLog
log = InstructionLog({str(path)!r}, "client0")
for i in range(100):
    log.write("call", "Run", i)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -9
    assert [line.nbytes for line in read_log(path).lines] == list(range(100))


def test_half_a_line_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = InstructionLog(str(path), "client0")
    log.write("call", "Run")
    log.close()
    with path.open("a") as file:
        file.write("0.5 2 call cli")
    found = read_log(path)
    assert len(found.lines) == 1 and found.skipped == 1


@pytest.mark.parametrize("text", ["", "hello\n", "# gt instruction log: start=soon\n"])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "notes.txt").write_text(text)
    with pytest.raises(LogError, match="notes.txt"):
        read_log(tmp_path / "notes.txt")


def test_a_log_whose_beginning_was_cut_off_is_read_by_itself_alone(tmp_path: Path) -> None:
    path, other, line = tmp_path / "log", tmp_path / "other", "{:.6f} {} call client0 Run {} key=1\n"
    head = "# gt instruction log: elapsed_s sequence event who operation nbytes details; start=100.5\n"
    path.write_text("ient0 Run 5\n" + line.format(7.5, 2, 6) + line.format(8, 3, 7))
    other.write_text(head + line.format(1, 1, 1))
    found = read_log(path)
    assert [(one.time, one.nbytes) for one in found.lines] == [(7.5, 6), (8.0, 7)] and found.skipped == 1
    (tmp_path / "log.1").write_text(other.read_text())
    assert read_log(path) == found
    with pytest.raises(LogError, match="log has lost its first line.* read it without other files"):
        read_log(path, other)
    path.write_text(line.format(7.5, 2, 6) + head + line.format(1, 1, 1))
    (tmp_path / "log.1").write_text(line.format(7.5, 2, 6))
    assert [one.time for one in read_log(path).lines] == [101.5] and read_log(path).skipped == 1


def test_the_log_of_two_processes_stays_within_its_size_and_loses_only_the_oldest(tmp_path: Path) -> None:
    path, limit = tmp_path / "log", 4000
    logs = [InstructionLog(str(path), who, limit=limit) for who in ("client0", "worker0")]
    for i in range(1000):
        logs[i % 2 if i % 10 else 0].write("call", "Run", i, "x" * (i % 50))
    for log in logs:
        log.close()
    older = path.with_name("log.1")
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]
    assert all(0 < p.stat().st_size <= limit + 200 for p in (path, older))
    found = read_log(path)
    assert found.skipped == 0 and len(found.lines) > 60
    assert [line.nbytes for line in found.lines] == list(range(1000 - len(found.lines), 1000))
    assert len({text.splitlines()[0] for text in (path.read_text(), older.read_text())}) == 1  # one start


def test_a_log_that_cannot_be_written_ends_and_the_program_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    log = InstructionLog("", "client0")
    log.path, log.file, log.on = "/dev/full", os.open("/dev/full", os.O_WRONLY), True
    log.write("call", "Run")
    assert "the instruction log /dev/full ends here, it cannot be written: " in caplog.text
    assert not log.on and log.file == -1
    log.write("call", "Run")


def test_of_a_process_with_several_logs_one_says_that_the_file_ends(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    for who in ("client0", "dispatcher", "worker0"):
        log = InstructionLog("", who)
        log.path, log.file, log.on = str(tmp_path / "log"), os.open("/dev/full", os.O_WRONLY), True
        log.write("call", "Run")
        assert not log.on
    assert len(caplog.records) == 1


def test_a_log_that_cannot_go_on_in_a_fresh_file_ends_and_leaves_nothing_beside_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    (tmp_path / "log.1").mkdir()  # in the place of the one before
    log = InstructionLog(str(path), "client0", limit=2000)
    for i in range(100):
        log.write("call", "Run", i)
    assert not log.on and "ends here, it cannot be written: " in caplog.text
    assert sorted(os.listdir(tmp_path)) == ["log", "log.1"]
    texts = path.read_text().splitlines()
    assert [line.nbytes for line in parse_log(texts).lines] == list(range(len(texts) - 1))


@pytest.mark.parametrize("limit", [None, 1 << 30])
def test_who_seldom_writes_goes_on_in_the_file_that_others_began(limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    quiet, busy = InstructionLog(str(path), "client1", limit=limit), InstructionLog(str(path), "client0", limit=4000)
    quiet.write("call", "Run", 1)
    for i in range(300):
        busy.write("call", "Run", i, "x" * 40)
    monkeypatch.setattr("gt.runtime.log.LOOK_S", 0.0)  # as a second later
    quiet.write("call", "Run", 2)
    assert [line.nbytes for line in read_log(path).lines if line.who == "client1"] == [2]
    path.rename(tmp_path / "moved")
    quiet.write("call", "Run", 3)
    busy.write("call", "Run", 4)
    assert [line.nbytes for line in parse_log(path.read_text().splitlines()).lines] == [3, 4]
    path.unlink()
    tmp_path.joinpath("log").mkdir()  # it cannot be opened: both end, and close what they wrote to alone
    for log in (quiet, busy):
        log.write("call", "Run", 5)
        assert not log.on and log.file == -1
        log.close()


@pytest.mark.parametrize("text", ["import gt\nprint(gt.ones(2))\n", "\n", "# gt instruction log: start=soon\n"])
def test_a_file_that_has_something_else_in_it_is_left_as_it_is(text: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(FileExistsError, match="GT_INSTRUCTION_LOG: the file cannot be written: it has something else in it: .*train.py"):
        InstructionLog(str(path), "client0")
    assert path.read_text() == text


def test_a_log_goes_on_where_its_beginning_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("ient0 Run 5\n7.500000 2 call client0 Run 6 key=1\n")
    log = InstructionLog(str(path), "client0")
    log.write("call", "Run", 7)
    log.close()
    assert [line.nbytes for line in read_log(path).lines] == [7] and path.read_text().startswith("ient0 Run 5\n")


def test_a_pipe_is_told_to_be_no_plain_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="GT_INSTRUCTION_LOG: the file cannot be written: it is no plain file"):
        InstructionLog(str(tmp_path / "pipe"), "client0")


def test_a_log_that_cannot_be_opened_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="GT_INSTRUCTION_LOG: the file cannot be opened: No such file"):
        InstructionLog(str(tmp_path / "missing" / "log"), "client0")
    with pytest.raises(OSError, match="GT_INSTRUCTION_LOG: the file cannot be written: No space left on device: '/dev/full'"):
        InstructionLog("/dev/full", "client0")


def test_tracing_keeps_the_latest_lines_and_costs_nothing_afterwards() -> None:
    log = InstructionLog("", "worker0")
    assert not log.on
    log.trace(3)
    assert log.on
    for i in range(5):
        log.write("run", "step", i)
    start, lines, left_out = log.traced()
    assert left_out == 2 and not log.on
    text = [f"# gt instruction log: ; start={start!r}", *lines]
    assert [line.nbytes for line in parse_log(text).lines] == [2, 3, 4]
    log.write("run", "step", 9)
    assert log.traced().lines == ()


def test_what_the_tools_cost_can_be_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(observing, "STRETCHES", 1)
    monkeypatch.setattr(observing, "STEPS", 1)
    monkeypatch.setattr(env.BACKEND, "_read", ["numpy"])
    observing.main()
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[:2] for words in shown] == [[what, way] for what in ("mlp", "cnn", "any") for way in observing.WAYS]
    assert all(float(words[2]) >= 0 for words in shown)


def test_a_name_that_is_no_text_is_written_escaped(tmp_path: Path) -> None:
    log = InstructionLog(str(tmp_path / "ops.log"), "client0")
    log.write("flush", "graph", 0, "at=na\udcffme.py:3")
    log.close()
    (line,) = read_log(tmp_path / "ops.log").lines
    assert line.details == "at=na\\udcffme.py:3"

"""What ``gt top`` shows, from two looks at a server, and what keys do."""

from __future__ import annotations

import io
import os
import re

import msgspec
import pytest
from rich.console import Console

from gt.commands.server_address import is_server, is_servers_port
from gt.commands.top import read_keys
from gt.commands.top_screen import KINDS, LETTERS, View, activity, bar, client_shares, order, screen, size
from gt.runtime.status import ClientStatus, ServerStatus, WorkerStatus
from gt.runtime.usage import PlanTime, WorkerUsage


def worker(i: int, queued: int = 0, **usage: object) -> WorkerStatus:
    return WorkerStatus(
        id=i, host="vm", pid=100 + i, device="cpu", backend="numpy", joined=True, silent_s=0.1, queued=queued, epoch=-1,
        tiers={"eager": 2, "graph": 1}, programs=(), usage=WorkerUsage(**usage),
    )  # fmt: skip


def client(i: int, runs: int, used_s: float) -> ClientStatus:
    return ClientStatus(id=i, runs=runs, waiting=0, values=3, nbytes=1500, silent_s=0.1, used_s=used_s, weight=1.0)


def status(uptime_s: float, workers: tuple[WorkerStatus, ...], clients: tuple[ClientStatus, ...] = ()) -> ServerStatus:
    return ServerStatus(
        uptime_s=uptime_s, wall_s=0, malformed=0, workers=workers, clients=clients, epoch=7, num_in_flight=1, in_flight=(),
        plans_ready=2, plans_made=0, plans_failed=0, num_nodes=0, nodes=(),
    )  # fmt: skip


BEFORE = status(
    10.0,
    (worker(0, run_s=1.0, kinds_s={"matmul": 0.75, "elementwise": 0.125}, runs=10), worker(1)),
    (client(0, 5, 1.0), client(1, 0, 0.0)),
)
NOW = status(
    12.0,
    (
        worker(
            0, run_s=2.0, kinds_s={"matmul": 1.5, "elementwise": 0.25}, collective_s=0.5, runs=30, sent_nbytes=4000, process_nbytes=1_500_000,
            busiest=(PlanTime(3, "flush3", 20, 1.0),),
        ),
        worker(1, queued=4, run_s=0.1, device_nbytes=5_000_000_000, runs=100),
    ),
    (client(0, 25, 1.5), client(1, 2, 1.5)),
)  # fmt: skip


def text(
    view: View, keys: bool = True, before: ServerStatus = BEFORE, now: ServerStatus = NOW, width: int = 150, coloured: bool = True,
    height: int = 60,
) -> str:  # fmt: skip
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=coloured, color_system="standard" if coloured else None, no_color=False)
    console.print(screen("host:1", before, now, view, keys))
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())


def test_without_colours_each_kind_has_a_letter_of_its_own() -> None:
    shown = text(View(), keys=False, coloured=False)
    assert len(set(LETTERS.values())) == len(KINDS) and "█" not in shown
    assert shown.splitlines()[1].split() == [word for kind in KINDS for word in (LETTERS[kind], kind)]
    assert " mmmmmmmmmeooXXXXXX······ " in shown  # of 24: 37.5% matmul, 6.25% elementwise and of no known kind each, 25% collective
    assert re.search(r"collective +X{6}·{18} +25", text(View(inside=0), coloured=False))


def test_activity_is_what_came_between_two_looks() -> None:
    does = activity(BEFORE, NOW)
    runs = {"matmul": 0.375, "elementwise": 0.0625, "reduction": 0, "copy": 0, "other": 0.0625}
    assert does[0].shares == {**runs, "collective": 0.25, "load": 0, "ship": 0} and (does[0].run, does[0].busy) == (0.5, 0.75)
    assert (does[0].runs_s, does[0].sent_s, does[1].runs_s) == (10, 2000, 50)
    assert client_shares(BEFORE, NOW) == {0: (0.25, 10.0), 1: (0.75, 1.0)}


def test_rates_are_of_the_time_between_what_a_worker_said_not_between_the_looks() -> None:
    """Workers say it twice a second, so that of two looks a second apart one may be of half a second more or less."""

    def look(uptime_s: float, runs: int, usage_s: float) -> ServerStatus:
        return status(uptime_s, (msgspec.structs.replace(worker(0, runs=runs), usage_s=usage_s),))

    steady = look(10.0, 1000, 0.0), look(11.0, 1050, 0.5), look(12.0, 1200, 0.0)  # 100 a second
    assert [activity(a, b)[0].runs_s for a, b in zip(steady, steady[1:], strict=False)] == [100, 100]
    assert activity(look(10.0, 7, 0.125), look(10.25, 7, 0.375))[0].runs_s == 0  # nothing was said between


def test_a_worker_that_came_meanwhile_counts_from_nothing_and_one_that_came_anew_not_below() -> None:
    fresh = status(12.0, (worker(5, run_s=0.5), worker(0)))
    assert activity(BEFORE, fresh)[5].shares["other"] == 0.25
    assert activity(BEFORE, fresh)[0].run == 0 == activity(BEFORE, fresh)[0].runs_s


@pytest.mark.parametrize(
    "shares",
    [
        (0,) * 8,
        (0.25, 0.25, 0, 0, 0, 0.25, 0, 0),
        (0.33, 0.33, 0, 0, 0, 0.33, 0.1, 0),
        (1,) * 8,
        (0.02,) * 8,
        (0.01, 0.3, 0.01, 0.01, 0, 0, 0, 0.1),
    ],
)
def test_a_bar_is_never_longer_than_it_is(shares: tuple[float, ...]) -> None:
    drawn = bar(dict(zip(KINDS, shares, strict=True)), 20).plain
    assert len(drawn) == 20 and abs(drawn.count("█") - min(1.0, sum(shares)) * 20) <= 0.5


def test_workers_come_in_the_order_asked_for() -> None:
    does = activity(BEFORE, NOW)
    orders = {sort: order(NOW, does, sort) for sort in ("id", "busy", "memory", "runs", "queue")}
    assert orders == {"id": [0, 1], "busy": [0, 1], "memory": [1, 0], "runs": [1, 0], "queue": [1, 0]}


def test_keys_sort_choose_and_look_into() -> None:
    view = View()
    for key, expected in [
        ("down", View("id", 1)), ("down", View("id", 1)), ("m", View("memory", 1)), ("enter", View("memory", 1, 0)), ("x", View("memory", 1, 0)),
        ("esc", View("memory", 1)), ("up", View("memory", 0)), ("enter", View("memory", 0, 1)), ("q", View("memory", 0, 1, True)),
    ]:  # fmt: skip
        view = view.key(key, [1, 0] if view.sort == "memory" or key == "enter" else [0, 1])
        assert view == expected
    assert View(chosen=9).key("enter", []) == View() and View(chosen=9).key("down", [4]) == View()


def test_the_screen_shows_workers_and_clients() -> None:
    lines = text(View(chosen=1)).splitlines()
    assert lines[0].split() == [
        "gt",
        "top",
        "host:1",
        "up",
        "12",
        "s",
        "epoch",
        "7,",
        "1",
        "in",
        "flight",
        "plans:",
        "2",
        "ready,",
        "0",
        "being",
        "made,",
        "0",
        "failed",
    ]
    assert lines[1].split() == [word for kind in KINDS for word in ("█", kind)]
    first, second = lines[3], lines[4]
    assert first.split()[0] == "0" and first.split()[2:] == [
        "75%",
        "10.0",
        "2.0",
        "kB",
        "1.5",
        "MB",
        "0",
        "B",
        "2",
        "eager",
        "1",
        "graph",
        "0",
        "cpu",
        "vm:100",
    ]
    assert second.startswith(">1") and second.split()[2:] == [
        "5%",
        "50.0",
        "0",
        "B",
        "5.0",
        "GB",
        "0",
        "B",
        "2",
        "eager",
        "1",
        "graph",
        "4",
        "cpu",
        "vm:101",
    ]
    assert lines[6].split() == ["1", "75%", "1.0", "1", "0", "3", "1.5", "kB"] and lines[7].split() == [
        "0",
        "25%",
        "10.0",
        "1",
        "0",
        "3",
        "1.5",
        "kB",
    ]
    assert lines[8].startswith("keys:") and "keys:" not in text(View(), keys=False) and ">" not in text(View(), keys=False)


def test_looking_into_a_worker_shows_its_programs() -> None:
    shown = text(View(inside=0))
    assert "worker 0: cpu on vm, pid 100, numpy" in shown and "25.0%" in shown
    assert re.search(r"matmul +█{9}·{15} +37\.5% +1\.50", shown) and re.search(r"other +█{2}·{22} +6\.2% +0\.25", shown)
    assert "flush3 3 20 1.00 50.000" in " ".join(shown.split())
    assert "activity" in text(View(inside=9)) and ">0" in text(View(inside=9))  # it is gone: all are shown


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (150, "worker activity busy v runs/s sent/s memory values tiers queue device"), (105, "worker activity busy v runs/s sent/s memory values tiers queue device"),
        (80, "worker activity busy v runs/s sent/s memory tiers queue"), (60, "worker activity busy v runs/s memory queue"),
        (45, "worker activity busy v runs/s memory"), (36, "worker activity busy v memory"), (27, "worker activity busy v"), (20, "worker activity"),
    ],
)  # fmt: skip
def test_in_a_narrow_terminal_all_numbers_shown_are_whole(width: int, columns: str) -> None:
    for view in (View(sort="busy"), View(inside=0)):
        shown = text(view, width=width)
        assert "…" not in shown and all(len(line) <= width for line in shown.splitlines())
    shown = text(View(sort="busy", chosen=1), width=width)
    head, first = (line for line in shown.splitlines() if line.startswith(("worker", " 0")))
    assert " ".join(head.split()) == columns and "█" in first
    assert ("75%" in first) == ("busy" in head) and ("1.5 MB" in first) == ("memory" in head)


def test_in_a_low_terminal_the_workers_are_seen() -> None:
    console = Console(file=io.StringIO(), width=40, height=8)
    console.print(screen("host:1", BEFORE, NOW, View()))
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("gt top host:1  up") and lines[0].endswith("…") and lines[1].startswith("worker")


@pytest.mark.parametrize(("width", "height"), [(40, 10), (80, 24), (100, 14), (200, 60), (60, 8), (20, 4)])
@pytest.mark.parametrize("chosen", [0, 9, 28, 29])
def test_of_many_workers_the_page_with_the_chosen_one_is_shown_in_the_lines_there_are(width: int, height: int, chosen: int) -> None:
    now = status(12.0, tuple(map(worker, range(30))), tuple(client(i, 3, 1.0) for i in range(12)))
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(screen("host:1", now, now, View(chosen=chosen)))
    lines = console.file.getvalue().splitlines()
    workers = [int(m[1]) for m in (re.match(r"[> ](\d+) ", line) for line in lines) if m]
    assert len(lines) <= height and f">{chosen}" in " ".join(lines).split()
    assert workers == list(range(workers[0], workers[0] + len(workers)))
    left_out = [int(n) for n in re.findall(r"… (\d+) more", "\n".join(lines))]
    clients = sum(bool(re.match(r"\d+ ", line)) for line in lines)
    assert left_out == [n for n in (30 - len(workers), 12 - clients if height > 4 else 0) if n]
    assert any(line.startswith("keys: q quit") for line in lines) == (height > 4)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 20), (100, 16), (40, 12), (40, 10), (20, 6), (10, 4), (5, 2)])
def test_what_is_inside_a_worker_is_in_the_lines_there_are(width: int, height: int) -> None:
    busiest = tuple(PlanTime(i, f"flush{i}", 20, 1.0) for i in range(8))
    now = status(12.0, (worker(0, busiest=busiest, run_s=2.0),), tuple(client(i, 3, 1.0) for i in range(12)))
    lines = text(View(inside=0), before=now, now=now, width=width, height=height).splitlines()
    assert len(lines) <= height and lines[0].startswith("gt t")
    starts = [line.split(" ")[0] for line in lines]
    if height >= 16:
        assert any(line.startswith("keys: q quit") for line in lines)
        assert starts.count("kind") == starts.count("program") == starts.count("client") == 1
        rows = {"kinds": sum(line.startswith(tuple(f"{kind}  " for kind in KINDS)) for line in lines), "programs": sum(s[:5] == "flush" for s in starts)}
        rows["clients"] = sum(s.isdigit() for s in starts)
        left_out = [int(n) for n in re.findall(r"… (\d+) more", "\n".join(lines))]
        assert left_out == [n for n in (8 - rows["kinds"], 8 - rows["programs"], 12 - rows["clients"]) if n] and all(rows.values())


def test_a_gpu_is_told_of_where_there_is_one() -> None:
    assert "GPU" not in text(View(inside=1))
    gpu = status(12.0, (msgspec.structs.replace(worker(0, device_nbytes=5_000_000_000), device="cuda:0"),))
    assert "GPU 5.0 GB;" in text(View(inside=0), before=gpu, now=gpu)


def test_an_empty_server_is_shown() -> None:
    nothing = status(1.0, ())
    assert text(View(), before=nothing, now=nothing).count("none") == 2


def test_a_status_travels() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(NOW), type=ServerStatus) == NOW


def test_sizes() -> None:
    assert [size(n) for n in (0, 999, 1000, 2.5e6, 3e9, 4e12)] == ["0 B", "999 B", "1.0 kB", "2.5 MB", "3.0 GB", "4.0 TB"]


def test_keys_are_read_by_name() -> None:
    there, here = os.pipe()
    os.write(here, b"\x1b[Bm\r\x1bOAq")
    assert read_keys(there, 1) == ["down", "m", "enter", "up", "q"]
    os.write(here, b"\x1b")
    assert read_keys(there, 1) == ["esc"] and read_keys(there, 0) == []
    os.close(here)
    assert read_keys(there, 1) == ["q"]  # the terminal is gone
    os.close(there)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python -m gt.server -p 5", True), ("python -m gt server -p 5", True), ("/usr/bin/python /usr/bin/gt server -p 5", True),
        ("python -m gt.runtime.dispatcher --bind ipc:///tmp/d", True), ("gt status server", False), ("python -m gt.worker -p 5", False),
        ("python train.py -m gt.server.py", False), ("vi gt server", False), ("", False),
    ],
)  # fmt: skip
def test_servers_are_known_by_their_command_line(words: str, expected: bool) -> None:
    assert is_server(words.split()) is expected


@pytest.mark.parametrize(
    ("words", "ports"),
    [
        ("gt server -p 9000 --dashboard 8080", [9000]), ("gt server --port=9000 --dashboard=0.0.0.0:8080", [9000]),
        ("gt server -p9000 --dashboard 8080", [9000]), ("gt server -p 0 --dashboard 8080", [9000]), ("gt server -p 0", [8080, 9000]),
        ("python -m gt.runtime.dispatcher --bind tcp://10.0.0.1:9000", [8080, 9000]), ("gt server -p", [8080, 9000]),
    ],
)  # fmt: skip
def test_a_servers_web_page_is_not_taken_for_a_server(words: str, ports: list[int]) -> None:
    assert [port for port in (8080, 9000) if is_servers_port(port, words.split())] == ports

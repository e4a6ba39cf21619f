"""A process's part in a trace: lines in memory while asked for, and what the profiler sees."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest

from gt.runtime import wire
from gt.runtime.kernel_spans import Kernel, Kernels
from gt.runtime.log import InstructionLog
from gt.runtime.log_lines import parse_line
from gt.runtime.tracer import Tracer, boot_id


def test_a_trace_begins_with_the_clock_and_ends_with_the_lines() -> None:
    log = InstructionLog("", "worker0")
    tracer = Tracer(log)
    log.write("run", "before")
    before = time.time()
    tracer.handle(wire.SetTrace(3, 10))
    (first,) = tracer.waiting()
    assert (first.number, first.over, first.lines, first.boot) == (3, False, (), boot_id()) and before <= first.now <= time.time()
    log.write("run", "meanwhile", 5)
    tracer.handle(wire.SetTrace(2, 0))  # another trace's
    assert list(tracer.waiting()) == [] and log.on
    tracer.handle(wire.SetTrace(3, 0))
    (last,) = tracer.waiting()
    assert last.over and [line.split()[2:] for line in last.lines] == [["run", "worker0", "meanwhile", "5"]]
    assert not log.on and abs(parse_line(last.lines[0], last.start).time - time.time()) < 60
    tracer.handle(wire.SetTrace(3, 0))
    assert list(tracer.waiting()) == []


@pytest.mark.parametrize("num_lines", [-5, 1 << 62])
def test_what_no_dispatcher_asks_is_passed_over(num_lines: int) -> None:
    tracer = Tracer(InstructionLog("", "client0"))
    tracer.handle(wire.SetTrace(1, num_lines))
    tracer.end()
    assert not tracer.log.on and list(tracer.waiting()) == []


def test_who_leaves_gives_what_there_is() -> None:
    tracer = Tracer(InstructionLog("", "client0"))
    tracer.handle(wire.SetTrace(1, 10))
    tracer.log.write("call", "Run")
    tracer.end()
    _, last = tracer.waiting()
    assert last.over and len(last.lines) == 1


class Profiled:
    """Kernels whose profiler ends when told to."""

    def __init__(self, num_kernels: int, begun: Callable[[], object]) -> None:
        self.begun = begun
        self.then: list[Any] = []

    def end(self, then: Any) -> None:
        self.then.append(then)


def test_who_profiles_says_when_that_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Profiled] = []
    monkeypatch.setattr("gt.runtime.tracer.Kernels", lambda *how: made.append(Profiled(*how)) or made[-1])
    tracer = Tracer(InstructionLog("", "worker0"), "cuda:0")
    tracer.handle(wire.SetTrace(4, 10))
    assert [(r.number, r.preparing) for r in tracer.waiting()] == [(4, True)]
    made[0].begun()
    assert [(r.number, r.preparing, r.over) for r in tracer.waiting()] == [(4, False, False)]


def test_a_trace_keeps_its_lines_though_the_one_before_still_waits_for_its_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Profiled] = []
    monkeypatch.setattr("gt.runtime.tracer.Kernels", lambda *how: made.append(Profiled(*how)) or made[-1])
    tracer = Tracer(InstructionLog("", "worker0"), "cuda:0")
    for number, operation in ((1, "first"), (2, "second")):
        tracer.handle(wire.SetTrace(number, 10))
        tracer.log.write("run", operation)
        if number == 2:
            made[0].then[0]([Kernel("k", time.time(), 0.1, 7)])
        tracer.handle(wire.SetTrace(number, 0))
    made[1].then[0]([])
    told = [(r.number, [line.split()[4] for line in r.lines]) for r in tracer.waiting() if r.over]
    assert told == [(1, ["first", "k"]), (2, ["second"])]


def test_without_who_asked_a_trace_ends_and_the_next_one_is_taken() -> None:
    tracer = Tracer(InstructionLog("", "worker0"))
    tracer.handle(wire.SetTrace(5, 10))
    tracer.drop()
    assert list(tracer.waiting()) == [] and not tracer.log.on
    tracer.handle(wire.SetTrace(1, 10))
    assert [r.number for r in tracer.waiting()] == [1] and tracer.log.on


def test_a_kernel_is_a_line_of_the_log() -> None:
    line = Kernel("void cutlass::gemm<float, 2>(Params)", 1000.5, 0.25e-3, 7).line("worker2", 1000.0)
    read = parse_line(line, 1000.0)
    assert (read.event, read.who, read.operation) == ("kernel", "worker2", "void_cutlass::gemm<float,_2>(Params)")
    assert read.fields == {"stream": "7", "seconds": "0.0002500"} and read.time == pytest.approx(1000.50025)


def test_the_profilers_times_are_the_wall_clocks() -> None:
    import torch

    a = torch.ones(300, 300)
    told: queue.SimpleQueue[list[Kernel]] = queue.SimpleQueue()
    done: queue.SimpleQueue[float] = queue.SimpleQueue()
    begun: queue.SimpleQueue[int] = queue.SimpleQueue()
    before = time.time()
    kernels = Kernels(1000, lambda: begun.put(1), "CPU", work=lambda: (a @ a, done.put(time.time())))
    after = done.get(timeout=60)
    assert begun.get_nowait() == 1, "before the work"
    kernels.end(told.put)
    found = [k for k in told.get(timeout=60) if k.name == "aten::mm"]
    assert len(found) == 1 and before <= found[0].began <= found[0].began + found[0].seconds <= after
    assert 0 < found[0].seconds < after - before


def test_without_a_profiler_a_trace_is_without_kernels() -> None:
    told: queue.SimpleQueue[list[Kernel]] = queue.SimpleQueue()
    begun: queue.SimpleQueue[int] = queue.SimpleQueue()
    kernels = Kernels(10, lambda: begun.put(1), "NO_SUCH_ACTIVITY")
    assert begun.get(timeout=60) == 1, "nobody waits for it"
    kernels.end(told.put)
    assert told.get(timeout=60) == []

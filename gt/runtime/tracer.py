"""A process's part in a trace: its instruction log is kept in memory meanwhile, and on a GPU the kernels that run.

Owns: ``Tracer``, which an io thread feeds and asks. Must not know: sockets. Next: ``tracing`` (the dispatcher's part), ``log`` (which
keeps the lines), ``kernel_spans``.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gt.runtime import wire
from gt.runtime.kernel_spans import Kernel, Kernels
from gt.runtime.log import MAX_TRACED, InstructionLog, TracedLines
from gt.runtime.tracing import MAX_LINES


def boot_id() -> str:
    """Give what tells this machine, since it was last started, from all others: its processes share a clock. "" if unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class Tracer:
    """Answers ``SetTrace``. ``replies``: what is to be sent, by whoever sends. ``device``: whose kernels are profiled, if it is a GPU."""

    def __init__(self, lines: InstructionLog, device: str = "cpu") -> None:
        self.log, self.device = lines, device
        self.number = 0  # of the trace under way; 0: none
        self.replies: queue.SimpleQueue[wire.TraceReply] = queue.SimpleQueue()
        self._kernels: Kernels | None = None

    def handle(self, message: wire.SetTrace) -> None:
        """Begin or end a trace."""
        if 0 < message.num_lines <= MAX_LINES and not self.number:
            self.number = message.number
            self.log.trace(message.num_lines)
            profiles, replies = self.device.startswith("cuda"), self.replies
            replies.put(wire.TraceReply(message.number, time.time(), boot_id(), preparing=profiles))
            if profiles:
                began = wire.TraceReply(message.number, time.time(), boot_id())
                self._kernels = Kernels(message.num_lines, lambda: replies.put(began))
        elif not message.num_lines and message.number == self.number:
            self.end()

    def end(self) -> None:
        """Hand over what there is. Does nothing where no trace is under way."""
        number, self.number = self.number, 0
        kernels, self._kernels = self._kernels, None
        if not number:
            return
        traced, replies = self.log.traced(), self.replies  # now: once the profiler has ended another trace may be under way
        if kernels is None:
            replies.put(self._over(number, traced, []))
        else:
            kernels.end(lambda found: replies.put(self._over(number, traced, found)))

    def drop(self) -> None:
        """Hand over nothing, as who asked is gone."""
        self.end()
        self.replies = queue.SimpleQueue()

    def _over(self, number: int, traced: TracedLines, kernels: list[Kernel]) -> wire.TraceReply:
        start, lines, left_out = traced
        told: list[str] = []
        nbytes = 0
        for kernel in reversed(kernels):  # the latest first, until there are too many
            told.append(kernel.line(self.log.who, start))
            nbytes += len(told[-1])
            if nbytes > MAX_TRACED:
                left_out += len(kernels) - len(told)
                break
        return wire.TraceReply(number, time.time(), boot_id(), True, start, (*lines, *reversed(told)), left_out)

    def waiting(self) -> Iterator[wire.TraceReply]:
        """Give the replies that are to be sent."""
        with suppress(queue.Empty):
            while True:
                yield self.replies.get_nowait()


__all__ = ["Tracer", "boot_id"]

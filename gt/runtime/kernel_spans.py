"""Which kernels a GPU runs while a trace is taken, by torch's profiler, as lines of the instruction log.

Owns: ``Kernels``, ``Kernel``. Everything of the profiler happens on one thread of its own: it is tied to the thread that begins it, and
beginning takes up to seconds. Must not know: traces, sockets. Next: ``tracer``.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

log = logging.getLogger("gt.tracer")
MAX_NAME = 120


class Kernel(NamedTuple):
    """One kernel or copy on the device. ``began``: in seconds since 1970."""

    name: str
    began: float
    seconds: float
    stream: int

    def line(self, who: str, start: float) -> str:
        """Give its line in the log of ``who`` whose elapsed times count from ``start``. It has no place among the numbered events."""
        name = "_".join(self.name.split())[:MAX_NAME] or "kernel"
        ended = max(0.0, self.began + self.seconds - start)
        return f"{ended:.6f} 0 kernel {who} {name} 0 stream={self.stream} seconds={self.seconds:.7f}"


class Kernels:
    """Profiles from soon after it is made: from when it calls ``begun``, on a thread of its own, as where there is no profiler.

    ``activity``: "CUDA", or "CPU" for ops on that thread (``work``, which tests use).
    """

    def __init__(
        self, num_kernels: int, begun: Callable[[], object], activity: str = "CUDA", work: Callable[[], object] = lambda: None
    ) -> None:
        self.num_kernels, self.begun, self.activity, self.work = num_kernels, begun, activity, work
        self._end = threading.Event()
        self._then: Callable[[list[Kernel]], None] = lambda kernels: None
        threading.Thread(target=self._profile, name="gt-kernels", daemon=True).start()

    def end(self, then: Callable[[list[Kernel]], None]) -> None:
        """End, and call ``then`` with the latest kernels, on the profiler's thread; with none if there is no profiler."""
        self._then = then
        self._end.set()

    def _profile(self) -> None:
        kernels: list[Kernel] = []
        try:
            torch = importlib.import_module("torch")
            profiler = importlib.import_module("torch.profiler")
            profile = profiler.profile(activities=[getattr(profiler.ProfilerActivity, self.activity)], acc_events=True)
            profile.start()
            self.begun()
            self.work()
            self._end.wait()
            profile.stop()
            device = getattr(torch.autograd.DeviceType, self.activity)
            kernels = found(profile, device)[-self.num_kernels :]
        except Exception as e:  # another profiler, such as nsys, may hold the device: the trace is without kernels then
            log.warning("no kernels are traced: %s: %s", type(e).__name__, e)
            self.begun()
            self._end.wait()
        self._then(kernels)


def found(profile: Any, device: Any) -> list[Kernel]:
    """Give what a profile saw on a device, in order."""
    events = [e for e in profile.profiler.kineto_results.events() if e.device_type() == device and e.duration_ns() > 0]
    kernels = [Kernel(e.name(), e.start_ns() / 1e9, e.duration_ns() / 1e9, e.device_resource_id()) for e in events]
    return sorted(kernels, key=lambda kernel: kernel.began)


__all__ = ["Kernel", "Kernels"]

"""All workers of a mesh in this process: each a worker's own ``Runner`` with torch, on a thread of its own, joined by Gloo.

What runs is what runs in a worker's process: programs, their memory plans, what is taken, copied and kept. Only messages do not travel.
Next: ``test_sharding_torch.py``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from gt.ir.program import Program
from gt.runtime import wire
from gt.runtime.collective import CollectiveFailed, Groups
from gt.runtime.executor import TorchEngine
from gt.runtime.runner import Runner
from gt.runtime.worker_state import Arrived

TIMEOUT_S = 30.0
Parts = Mapping[int, torch.Tensor]  # of a value, by worker


class Meeting:
    """The key-value store in which groups are formed: all its members are threads here."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def call(self, kind: str, keys: tuple[str, ...], value: bytes = b"", expected: bytes = b"", amount: int = 0) -> tuple[bytes, int]:
        with self.changed:
            there = lambda: all(k in self.values for k in keys)  # noqa: E731
            if kind in ("get", "wait") and not self.changed.wait_for(there, TIMEOUT_S):
                raise CollectiveFailed(f"nobody has set {keys}")
            before = self.values.get(keys[0], b"")
            if kind == "add":
                value = str(int(before or b"0") + amount).encode()
            if kind in ("set", "add") or (kind == "compare_set" and before == expected):
                self.values[keys[0]] = value
                self.changed.notify_all()
            return self.values.get(keys[0], b""), int(value) if kind == "add" else there()


class Replies:
    """Where a runner's replies go: what went wrong."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def reply(self, message: wire.Message) -> None:
        if isinstance(message, wire.Done) and message.fault is not None:
            self.faults.append(f"{message.fault.kind}: {message.fault.message}")

    def room(self, *_: object) -> None:
        return None

    def ship(self, *_: object) -> None:
        raise AssertionError("nobody asks for a value")


class Strict(Runner):
    """A runner that keeps nothing of a run that failed: its ops would run once more, none of them in place."""

    def _salvage(self, *_: object) -> None:
        return None


class TorchWorkers:
    """Workers 0 to ``count - 1``. Groups are formed when first met and stay."""

    def __init__(self, count: int) -> None:
        meeting, self.ids = Meeting(), itertools.count(1)
        self.formed: set[tuple[int, ...]] = set()
        self.replies = [Replies() for _ in range(count)]
        self.groups = [Groups(w, lambda: meeting, "127.0.0.1", TIMEOUT_S, numpy=False) for w in range(count)]
        self.threads = [ThreadPoolExecutor(1) for _ in range(count)]
        make = lambda w: Strict(w, TorchEngine(compile_after=0), self.replies[w], self.groups[w])  # noqa: E731
        self.runners: list[Runner] = [thread.submit(make, w).result() for w, thread in enumerate(self.threads)]

    def close(self) -> None:
        self._each({w: runner.close for w, runner in enumerate(self.runners)})
        for thread in self.threads:
            thread.shutdown()

    def keep(self, parts: Parts) -> int:
        """Keep a value's parts, as they lie; give the value's uid."""
        uid = next(self.ids)
        for w, part in parts.items():
            self.runners[w].values.put((uid,), (part,))
            self.runners[w].state.handle(Arrived(uid))
        return uid

    def parts(self, uid: int) -> dict[int, np.ndarray]:
        """Give copies of a value's parts."""
        return {w: np.array(r.values[uid].numpy(), order="C") for w, r in enumerate(self.runners) if uid in r.values.values}

    def free(self, uids: Sequence[int]) -> None:
        self._handle({w: [wire.Free(tuple(uids))] for w in range(len(self.runners))})

    def load(self, programs: Mapping[int, Program]) -> int:
        """Load a plan's programs and form the groups that they need."""
        plan = next(self.ids)
        needed = sorted({group for program in programs.values() for group in program.groups} - self.formed)
        for group in needed:
            make = wire.MakeGroup(next(self.ids), f"group{next(self.ids)}", group, "gloo")
            self._handle({w: [make] for w in group})
            self.formed.add(group)
        self._handle({w: [wire.Load(plan, program)] for w, program in programs.items()})
        return plan

    def unload(self, plan: int) -> None:
        self._handle({w: [wire.Unload((plan,))] for w in range(len(self.runners))})

    def run(self, plan: int, inputs: Sequence[int], outputs: int, frees: Sequence[int] = ()) -> list[int]:
        """Run a plan on kept values, of which it frees some; give the uids of what it makes."""
        made = self.new(outputs)
        self.execute(plan, inputs, made, frees)
        return made

    def new(self, count: int) -> list[int]:
        return [next(self.ids) for _ in range(count)]

    def execute(self, plan: int, inputs: Sequence[int], outputs: Sequence[int], frees: Sequence[int]) -> None:
        run = wire.Execute(next(self.ids), plan, tuple(inputs), tuple(outputs), (), tuple(frees))
        absent = wire.Free(tuple(frees))
        self._handle({w: [run if plan in r.state.programs else absent] for w, r in enumerate(self.runners)})

    def _handle(self, messages: Mapping[int, Sequence[wire.Message]]) -> None:
        self._each({w: lambda w=w, own=own: [self.runners[w].handle(m) for m in own] for w, own in messages.items()})
        faults = [f"worker {w}: {fault}" for w, replies in enumerate(self.replies) for fault in replies.faults]
        for replies in self.replies:
            replies.faults.clear()
        assert not faults, "\n".join(faults)

    def _each(self, calls: Mapping[int, Callable[[], Any]]) -> None:
        for future in [self.threads[w].submit(call) for w, call in calls.items()]:
            future.result()


__all__ = ["TorchWorkers"]

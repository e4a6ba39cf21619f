"""Collectives between workers: which groups exist here, and how an engine's value goes through one.

Owns: ``Groups`` (the engine's ``Comm``) and the sizes of what a collective takes. Torch is imported by the first
group only, so a NumPy worker that never talks to another never loads it. Must not know: programs, messages.
Next: ``process_group`` (torch.distributed), ``gt.ir.ops.collective`` (what the kinds mean).
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

import msgspec
import numpy as np

from gt.ir.evaluate import as_dtype
from gt.ir.program import Collective
from gt.ir.types import DType
from gt.runtime.errors import Fault, GtError
from gt.runtime.log import InstructionLog


class CollectiveFailed(GtError, RuntimeError):
    """A collective ended because another worker is gone, or did not come in time."""

    is_collective = True


FORMING_POLL_S = 0.05
FORMING_S = 5.0  # for what makes a group to say itself that it takes too long
LOSS_S = 2.0  # in which a loss is heard of that broke a collective here
LEFT_ALONE: list[Forming] = []  # for the rest of the process: to drop a group that others wait for may end it


class Rendezvous(Protocol):
    """The key-value store in which members of a group find each other.

    A call waits; it raises CollectiveFailed when told to.
    """

    def call(
        self, kind: str, keys: tuple[str, ...], value: bytes = b"", expected: bytes = b"", amount: int = 0
    ) -> tuple[bytes, int]: ...


class Group(Protocol):
    """A process group over torch tensors."""

    def run(self, step: Collective, tensor: Any) -> Any: ...

    def finish(self) -> None: ...

    def forget(self) -> None: ...

    def settle(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...

    @property
    def captures(self) -> bool: ...


class Forming:
    """A group being made, on a thread of its own: what waits for a member to connect cannot be called off, but be left alone."""

    def __init__(self, make: Callable[[], Group]) -> None:
        self._make, self._over = make, threading.Event()
        self._group: Group | None = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="gt-group", daemon=True).start()

    def _run(self) -> None:
        try:
            self._group = self._make()
        except BaseException as e:  # raised where the group is wanted
            self._error = e
        self._over.set()

    def result(self, check: Callable[[], None]) -> Group:
        """Wait for the group. Errors: what making it raised; what ``check``, called meanwhile, raises."""
        while not self._over.wait(FORMING_POLL_S):
            try:
                check()
            except BaseException:
                LEFT_ALONE.append(self)
                raise
        if self._error is not None:
            raise self._error
        assert self._group is not None
        return self._group


class Groups:
    """The groups this worker is in, by their members. ``issued`` counts collectives since the caller last reset it."""

    def __init__(
        self, worker: int, rendezvous: Callable[[], Rendezvous], host: str, timeout_s: float, numpy: bool, device: str = "cpu"
    ) -> None:
        self.worker, self.rendezvous, self.host, self.timeout_s = worker, rendezvous, host, timeout_s
        self.numpy, self.device = numpy, device  # whether values are NumPy arrays, or where they are
        self.groups: dict[tuple[int, ...], Group] = {}
        self.lost: set[int] = set()
        self.formed: dict[tuple[int, ...], int] = {}  # by members, the epoch that made the group
        self.left: dict[tuple[int, ...], tuple[int, str]] = {}  # which epoch a member has left, and why
        self.called_off = False
        self.aborted = False  # some group has been, at some time
        self.issued = 0
        self.sending: dict[tuple[int, ...], None] = {}
        self.seconds, self.nbytes = 0.0, 0  # in collectives so far, and sent by them
        self.log = InstructionLog("", f"worker{worker}")
        self.aborting: Callable[[Collection[tuple[int, ...]], Fault], None] = lambda members, fault: None  # hears what is, and why, before

    def form(self, name: str, members: tuple[int, ...], backend: str, epoch: int = 0) -> None:
        """Make the group of ``members``, all of whom do so now. Errors: CollectiveFailed when one is gone, or goes meanwhile."""
        self.formed[members] = epoch
        for old in [m for m in self.groups if m == members or not self.lost.isdisjoint(m)]:
            self.aborting((old,), Fault("collective", f"the group of workers {list(old)} was made anew meanwhile", self.worker))
            self.groups.pop(old).close()
        self._check_lost(members)
        module = importlib.import_module("gt.runtime.process_group")
        rank = members.index(self.worker)
        link, size = self.rendezvous(), len(members)

        def make() -> Group:
            made: Group = module.TorchGroup(name, rank, size, backend, link, self.host, self.timeout_s, self.device)
            return made

        until = time.monotonic() + self.timeout_s + FORMING_S

        def check() -> None:
            self._check_lost(members)
            if time.monotonic() > until:
                raise CollectiveFailed(f"workers {list(members)} could not form a group within {self.timeout_s:g} s")

        try:
            self.groups[members] = Forming(make).result(check)
        except RuntimeError as e:
            self._check_lost(members)
            raise CollectiveFailed(f"workers {list(members)} could not form a group: {e}") from e
        self._check_lost(members)

    def run(self, step: Collective, tensor: Any) -> Any:
        """Take part in one collective. Errors: CollectiveFailed."""
        start = time.perf_counter()
        result = self._run(step, tensor)
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.nbytes += step.nbytes
        if self.log.on:
            members = ",".join(map(str, step.group))
            details = f"number={step.number} group={members} seconds={seconds:.6f} begins={int(step.begins)}"
            self.log.write("collective", step.kind, step.nbytes, details)
        return result

    def _run(self, step: Collective, tensor: Any) -> Any:
        self.issued += 1
        group = self.groups.get(step.group)
        if group is None:
            raise CollectiveFailed(f"{step.kind} between workers {list(step.group)}: there is no such group")
        self._check(step.group)
        if step.kind == "send":
            self.sending[step.group] = None
        try:
            if step.kind not in ("send", "receive", "wait"):
                self._one_after_another(group)
            return self._run_numpy(group, step, tensor) if self.numpy else group.run(step, tensor)
        except RuntimeError as e:
            self._check(step.group)
            raise CollectiveFailed(f"{step.kind} between workers {list(step.group)}: {e}") from e

    def _one_after_another(self, group: Group) -> None:
        """Have the device wait for what other groups have begun: two groups' collectives at once may each hold what the other's
        peers wait for.
        """
        for other in self.groups.values():
            if other is not group:
                other.settle()

    def captures(self, groups: Iterable[tuple[int, ...]]) -> bool:
        """Say whether collectives of these groups can be part of a CUDA graph."""
        return all(members in self.groups and self.groups[members].captures for members in groups)

    def await_loss(self, members: tuple[int, ...]) -> bool:
        """Whether a worker's loss is why a collective of these members broke: that it is lost may be heard a moment later."""
        until = time.monotonic() + LOSS_S
        while self.lost.isdisjoint(members):
            if self.called_off or self._left_by(members) or time.monotonic() > until:
                return False
            time.sleep(FORMING_POLL_S)
        return True

    def finish(self) -> None:
        """Wait for all sends of a run, so that the next one finds nothing under way. Errors: CollectiveFailed."""
        sending, self.sending = self.sending, {}
        for members in sending:
            try:
                self.groups[members].finish()
            except RuntimeError as e:
                self._check(members)
                raise CollectiveFailed(f"send between workers {list(members)}: {e}") from e

    def forget(self) -> None:
        """Let go of what a failed run has begun and nobody waits for: the next run names its slots anew."""
        self.sending.clear()
        for group in self.groups.values():
            group.forget()

    def _run_numpy(self, group: Group, step: Collective, array: np.ndarray | None) -> np.ndarray | None:
        """NumPy values go through torch tensors that share their memory."""
        torch = importlib.import_module("torch")
        if step.kind == "receive":
            array = np.empty(step.type.shape, DType.by_name[step.type.dtype].numpy)
            group.run(step, torch.from_numpy(array))
            return array
        tensor = None if array is None else torch.from_numpy(np.asarray(array, order="C"))  # ascontiguousarray would make 0-d 1-d
        step = msgspec.structs.replace(step, inplace=False) if step.inplace else step  # what NumPy made may be another's memory
        result = group.run(step, tensor)
        return None if result is None else as_dtype(result.numpy(), DType.by_name[step.type.dtype])

    def _check(self, members: tuple[int, ...]) -> None:
        self._check_lost(members)
        if why := self._left_by(members):
            raise CollectiveFailed(why)

    def _left_by(self, members: tuple[int, ...]) -> str:
        """Say why a member takes part in a group's collectives no more; nothing if all do."""
        epoch, why = self.left.get(members, (-1, ""))
        return why if epoch > self.formed.get(members, 0) else ""

    def _check_lost(self, members: tuple[int, ...]) -> None:
        if self.called_off:
            raise CollectiveFailed("the dispatcher is lost, and some worker did not come")
        gone = self.lost.intersection(members)
        if gone:
            raise CollectiveFailed(f"worker {min(gone)} of {list(members)} is lost")

    def leave(self, epoch: int, groups: tuple[tuple[int, ...], ...], why: str) -> None:
        """End what waits for a member that has left an epoch, in groups made before it. Called from another thread, which may
        hear of it before this one has come back from making the group.
        """
        for members in groups:
            if self.formed.get(members, 0) < epoch:
                self.left[members] = epoch, why
                self.aborting((members,), Fault("collective", why, self.worker))
                group = self.groups.get(members)
                if group is not None:
                    self.aborted = True
                    group.abort()

    def leave_overdue(self, groups: Iterable[tuple[int, ...]]) -> None:
        """End collectives on the device that wait for a worker for too long. Called from another thread."""
        for members in groups:
            why = f"workers {list(members)}: a collective was not over within {self.timeout_s:g} s"
            self.leave(self.formed.get(members, 0) + 1, (members,), why)

    def abort(self, worker: int) -> None:
        """End what waits for a lost worker. Called from another thread."""
        self.lost.add(worker)
        self.aborted = True
        meeting = {members: group for members, group in list(self.groups.items()) if worker in members}
        text = f"worker {worker} was lost during a collective with it; what was being made is lost, run again what made it"
        self.aborting(meeting, Fault("worker_lost", text, worker))
        for group in meeting.values():
            group.abort()

    def call_off(self) -> None:
        """End all collectives, and the making of groups. Called from another thread."""
        self.called_off = self.aborted = True
        groups = dict(self.groups)
        self.aborting(groups, Fault("collective", "the dispatcher is lost, and some worker did not come", self.worker))
        for group in groups.values():
            group.abort()

    def renew(self, worker: int) -> None:
        """Begin anew, with another number and no groups, at another dispatcher."""
        self.close()
        self.worker = worker
        for known in (self.lost, self.formed, self.left):
            known.clear()
        self.called_off = False

    def close(self) -> None:
        for group in self.groups.values():
            group.close()
        self.groups.clear()

    def input_shape(self, step: Collective) -> tuple[int, ...] | None:
        """Give the shape a collective takes on this worker, None where it sends nothing."""
        if step.input < 0 or step.kind == "wait":
            return None
        attrs, n, shape = dict(step.attrs), len(step.group), list(step.type.shape)
        match step.kind:
            case "all_gather":
                shape[attrs["dim"]] //= n
            case "reduce_scatter":
                shape[attrs["dim"]] *= n
            case "all_to_all":
                shape[attrs["src"]] //= n
                shape[attrs["dst"]] *= n
            case _:
                pass
        return tuple(shape)

"""torch.distributed process groups, met through gt's own store.

Owns: ``TorchGroup`` (Gloo or NCCL) and ``LinkStore``. TCPStore is not used: it listens on every interface. Gloo is
bound to one address. Waiting for a collective ends at once when the group is aborted. Must not know: who is in the
group and why. Next: ``collective`` (who calls this), ``rendezvous`` (the store's other end).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from gt.ir.program import Collective
from gt.runtime.collective import CollectiveFailed, Rendezvous

_REDUCE = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}
_WIDER = {torch.bool: torch.uint8, torch.int16: torch.int32}  # what Gloo cannot reduce
RETRIES = "7"  # of NCCL, to reach a member: 2.8 s
OWN_WATCH = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


_abandoned: list[Any] = []  # groups, for the rest of the process


class LinkStore(dist.Store):  # type: ignore[name-defined,misc]
    """A torch Store whose operations travel over a rendezvous link. Keys are scoped by the group's name."""

    def __init__(self, name: str, link: Rendezvous, timeout_s: float) -> None:
        super().__init__()
        self.name, self.link = name, link
        self.set_timeout(timedelta(seconds=timeout_s))

    def _key(self, key: str) -> str:
        return f"{self.name}/{key}"

    def set(self, key: str, value: bytes | str) -> None:  # type: ignore[override]
        self.link.call("set", (self._key(key),), value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self.link.call("get", (self._key(key),))[0]

    def add(self, key: str, amount: int) -> int:  # type: ignore[override]
        return self.link.call("add", (self._key(key),), amount=amount)[1]

    def check(self, keys: list[str]) -> bool:  # type: ignore[override]
        return bool(self.link.call("check", tuple(map(self._key, keys)))[1])

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:  # type: ignore[override]
        self.link.call("wait", tuple(map(self._key, keys)))

    def delete_key(self, key: str) -> bool:  # type: ignore[override]
        return bool(self.link.call("delete", (self._key(key),))[1])

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:  # type: ignore[override]
        return self.link.call("compare_set", (self._key(key),), desired.encode(), expected.encode())[0]

    def has_extended_api(self) -> bool:
        return False


@dataclass(frozen=True)
class Begun:
    """A collective under way: what it gives once ``work`` is over. ``sent`` is read from meanwhile."""

    work: Any
    result: Callable[[], torch.Tensor]
    sent: torch.Tensor | None = None


@dataclass
class Launch:
    """Sums that start as one, and are over together: what to sum where, and how. ``work``: theirs, once they have started."""

    sums: list[tuple[torch.Tensor, Any]] = field(default_factory=list)
    work: Any = None

    def wait(self) -> None:
        if self.work is None:
            raise RuntimeError("the launch that a sum was to be in has not started")
        self.work.wait()


class TorchGroup:
    """One process group. All members make it at the same time and call ``run`` in the same order.

    ``gathered``: sums that start with one that is to come.
    """

    gathered: Launch | None = None

    def __init__(
        self, name: str, rank: int, size: int, backend: str, link: Rendezvous, host: str, timeout_s: float, device: str
    ) -> None:
        self.rank, self.size, self.backend = rank, size, backend
        self.wake, self.aborted = threading.Event(), False
        self.device = device
        self.sending: list[tuple[Any, torch.Tensor]] = []  # with what is read from meanwhile
        self.begun: dict[int, Begun] = {}  # by slot
        self.receiving: dict[int, tuple[Any, torch.Tensor]] = {}  # by slot
        store = LinkStore(name, link, timeout_s)
        timeout = timedelta(seconds=timeout_s)
        if backend == "nccl":
            keep_nccl_to(host)
            # Before what computes meanwhile: else its blocks wait until all those of the kernel ahead have begun.
            nccl = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
            nccl._timeout = timeout
            self.group: Any = dist.ProcessGroupNCCL(store, rank, size, nccl)
            # NCCL joins the members at their first collective: now, as they may come to that one at different times.
            self._broadcast(torch.zeros(1, dtype=torch.uint8, device="cuda")).wait()
            torch.cuda.synchronize()
        else:
            gloo = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            gloo._timeout = timeout
            gloo._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
            self.group = dist.ProcessGroupGloo(store, rank, size, gloo)
        self.store = store

    @property
    def captures(self) -> bool:
        """NCCL's collectives are kernels, which a CUDA graph can hold."""
        return self.backend == "nccl"

    def run(self, step: Collective, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """Give this member's result; None for a sender and for what only begins. Who receives may pass what to receive into."""
        attrs = dict(step.attrs)
        if tensor is not None and tensor.is_cuda and self.backend == "gloo" and step.kind != "wait":
            result = self.run(step, tensor.cpu())
            return None if result is None else result.to(tensor.device)
        if step.kind != "all_reduce":
            self._launch()
        match step.kind:
            case "send":
                assert tensor is not None
                self._send(tensor)
                return None
            case "receive":
                return self._receive(step, tensor)
            case "wait" if step.output in self.begun:
                result = self._end(self.begun.pop(step.output))
                return result if self.backend == "nccl" or self.device == "cpu" else result.to(self.device)
            case "wait":
                return self._arrived(step)
        assert tensor is not None
        more = bool(attrs.get("with_next")) and step.begins and self.captures
        if more and self.gathered is None:
            self.gathered = Launch()
        begun = self._begin(step.kind, attrs, tensor, step.begins, step.inplace)
        if not more:
            self._launch()
        if not step.begins:
            return self._end(begun)
        self.begun[step.output] = begun
        return None

    def _launch(self) -> None:
        """Start what has been gathered."""
        launch, self.gathered = self.gathered, None
        if launch is not None and launch.sums:
            self.group._start_coalescing()
            for tensor, options in launch.sums:
                self.group.allreduce([tensor], options)
            launch.work = self.group._end_coalescing()
            launch.sums.clear()

    def _begin(self, kind: str, attrs: dict[str, Any], tensor: torch.Tensor, apart: bool, inplace: bool = False) -> Begun:
        """Start a collective. ``apart``: others may overwrite the tensor before it is over; ``inplace``: it may be overwritten here."""
        match kind:
            case "all_reduce":
                return self._all_reduce(tensor, attrs["reduce"], inplace)
            case "all_gather":
                return self._gather(tensor, attrs["dim"], apart)
            case "reduce_scatter":
                return self._reduce_scatter(tensor, attrs["dim"], attrs["reduce"])
            case "all_to_all":
                work, parts, sent = self._exchange(tensor, attrs["dst"])
                return Begun(work, lambda: torch.cat(list(parts.unbind(0)), attrs["src"]), sent)
            case _:
                raise AssertionError(f"unknown collective {kind}")

    def _end(self, begun: Begun) -> torch.Tensor:
        if begun.work is not None:
            self._wait(begun.work)
        return begun.result()

    def _all_reduce(self, tensor: torch.Tensor, reduce: str, inplace: bool) -> Begun:
        if tensor.dtype.is_complex:
            begun = self._all_reduce(torch.view_as_real(tensor), reduce, inplace)
            return Begun(begun.work, lambda: torch.view_as_complex(begun.result()))
        if tensor.is_floating_point() and reduce != "sum":
            begun = self._all_reduce(_ordered(tensor, reduce), reduce, inplace=True)
            return Begun(begun.work, lambda: _floats(begun.result(), tensor.dtype))
        wide = _WIDER.get(tensor.dtype)
        if wide is not None:
            out = tensor.to(wide)
        else:
            own = inplace and tensor.is_contiguous()
            out = tensor if own else tensor.clone(memory_format=torch.contiguous_format)
        work = None
        if out.numel():
            options = dist.AllreduceOptions()
            options.reduceOp = _REDUCE["max" if tensor.dtype is torch.bool and reduce == "sum" else reduce]  # type: ignore[assignment]
            if self.gathered is not None:
                work = self.gathered
                self.gathered.sums.append((out, options))
            else:
                work = self.group.allreduce([out], options)
        dtype = tensor.dtype
        return Begun(work, lambda: out.to(dtype) if wide is not None else out)

    def _gather(self, tensor: torch.Tensor, dim: int, apart: bool) -> Begun:
        got = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        given = tensor.clone(memory_format=torch.contiguous_format) if apart else tensor.contiguous()
        work = self.group._allgather_base(_bytes(got), _bytes(given)) if tensor.numel() else None
        if math.prod(tensor.shape[:dim]) == 1:  # the parts lie as in the whole
            shape = *tensor.shape[:dim], self.size * tensor.shape[dim], *tensor.shape[dim + 1 :]
            return Begun(work, lambda: got.view(shape), given)
        return Begun(work, lambda: torch.cat(list(got.unbind(0)), dim), given)

    def _exchange(self, tensor: torch.Tensor, dim: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
        """Send part i of ``dim`` to member i; give what each member sends here, in order, once that is over, and what is sent."""
        sent = (
            torch.stack(tensor.chunk(self.size, dim)).contiguous()  # of parts with channels last it is no row-major one
            if tensor.shape[dim]
            else tensor.new_empty((self.size, *tensor.shape))
        )
        got = torch.empty_like(sent)
        work = self.group.alltoall_base(_bytes(got), _bytes(sent), [], []) if sent.numel() else None
        return work, got, sent

    def _reduce_scatter(self, tensor: torch.Tensor, dim: int, reduce: str) -> Begun:
        """Exchange, then reduce in group order: the same bits on every run."""
        work, parts, sent = self._exchange(tensor, dim)
        return Begun(work, lambda: _reduced(list(parts.unbind(0)), reduce), sent)

    def _send(self, tensor: torch.Tensor) -> None:
        """Start sending a copy, as the program may overwrite the tensor meanwhile. ``finish`` waits for it."""
        if tensor.numel():
            sent = _bytes(tensor.clone(memory_format=torch.contiguous_format))
            self.sending.append((self._broadcast(sent), sent))

    def _receive(self, step: Collective, into: torch.Tensor | None) -> torch.Tensor:
        """Begin to receive; what is given is there after its wait."""
        if into is None:
            place = torch.device("cuda", torch.cuda.current_device()) if self.backend == "nccl" else torch.device("cpu")
            into = torch.empty(step.type.shape, dtype=getattr(torch, step.type.dtype), device=place)
        self.receiving[step.output] = self._broadcast(_bytes(into)) if into.numel() else None, into
        return into

    def _arrived(self, step: Collective) -> torch.Tensor:
        work, tensor = self.receiving.pop(step.output)
        if work is not None:
            self._wait(work)
        return tensor if self.backend == "nccl" or self.device == "cpu" else tensor.to(self.device)

    def _broadcast(self, tensor: torch.Tensor) -> Any:
        """Send from the first of two members to the second.

        Gloo's own send and receive cannot be waited for without blocking, and NCCL's join the two on first use, in
        whatever order that comes.
        """
        options = dist.BroadcastOptions()
        options.rootRank = 0
        return self.group.broadcast([tensor], options)

    def finish(self) -> None:
        """Wait for what is being sent."""
        self._launch()
        sending, self.sending = self.sending, []
        for work, _ in sending:
            self._wait(work)

    def settle(self) -> None:
        """Have the device go on only when what has begun is over. Gloo's collectives wait for nothing of the device."""
        self._launch()
        if self.backend == "nccl":
            for begun in self.begun.values():
                if begun.work is not None:
                    begun.work.wait()

    def forget(self) -> None:
        """Wait for nothing that is under way any more."""
        self.gathered = None
        self.begun.clear()
        self.receiving.clear()
        self.sending.clear()

    def _wait(self, work: Any) -> None:
        """Wait until the work is over or the group is aborted. NCCL's is over on its stream."""
        if self.backend == "nccl":
            work.wait()
            return
        if not work.is_completed():
            self.wake.clear()
            work.get_future().add_done_callback(lambda _: self.wake.set())
            # Gloo runs the callback just before is_completed() turns true: the event, not the work, says that it is
            # over.
            while not self.aborted and not self.wake.wait(1.0):
                continue
            if self.aborted and not work.is_completed():
                raise CollectiveFailed("a member is lost")
        work.wait()

    def abort(self) -> None:
        """End the wait for a member that will never come. From any thread: another may just have closed the group."""
        before, self.aborted, group = self.aborted, True, self.group
        if self.backend == "nccl" and group is not None and not before:  # may take as long as NCCL tries to reach who is lost
            threading.Thread(target=group.abort, name="gt-abort", daemon=True).start()
        self.wake.set()

    def close(self) -> None:
        """Close the group's connections, which ends the other members' waits for it.

        One that was aborted is kept instead: its destructor waits for what is unfinished, Gloo's ends the process when another member
        closes meanwhile.
        """
        if self.aborted:
            _abandoned.append(self.group)
        self.group = None


def keep_nccl_to(host: str) -> None:
    """Have NCCL listen on the interface of this worker's address, and nowhere else; by itself it takes any but the loopback.

    What the user says of it counts. Who is lost or late gt finds out itself: torch's watch would end the members that are left a minute
    after one has died, and hold back their next group until then. NCCL's service for debugging, which would listen on a port of its own,
    stays off. A member that has ended is not asked for a minute whether it is there: who is asked listens before it can be.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address == host for a in addresses):
            os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")
    for name, value in {"NCCL_RAS_ENABLE": "0", "NCCL_SOCKET_RETRY_CNT": RETRIES, **OWN_WATCH}.items():
        os.environ.setdefault(name, value)


def _reduced(parts: list[torch.Tensor], reduce: str) -> torch.Tensor:
    out = parts[0]
    for part in parts[1:]:
        if reduce == "sum":
            out = out | part if out.dtype is torch.bool else out + part
        else:
            out = torch.maximum(out, part) if reduce == "max" else torch.minimum(out, part)
    return out


def _ordered(tensor: torch.Tensor, reduce: str) -> torch.Tensor:
    """Give integers in the order of the floats, a NaN beyond all: backends' largest of floats need not be the NaN among them."""
    bits = tensor.contiguous().view(_BITS[tensor.element_size()])
    most = torch.iinfo(bits.dtype)
    return _turned(bits).masked_fill_(tensor.isnan(), most.max if reduce == "max" else most.min)


def _floats(ordered: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return _turned(ordered).view(dtype)


def _turned(bits: torch.Tensor) -> torch.Tensor:
    """Reverse the order of what is negative: floats there grow with their bits' size. Twice, it is what was given."""
    most = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> (most.bits - 1)) & most.max)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """See a contiguous tensor as bytes, which every backend moves whatever the dtype."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride

"""What a worker's groups do with collectives that only begin, seen on groups that write down what they are asked."""

from __future__ import annotations

import os
import threading
from typing import Any

import psutil
import pytest
import torch

from gt.ir.program import Collective, WireType
from gt.runtime.collective import CollectiveFailed, Groups
from gt.runtime.process_group import OWN_WATCH, RETRIES, TorchGroup, _bytes, keep_nccl_to

TYPE = WireType((4,), "float32")


class Diary:
    """A group that notes its calls."""

    def __init__(self, name: str, pages: list[str]) -> None:
        self.name, self.pages = name, pages

    def run(self, step: Collective, tensor: Any) -> Any:
        self.pages.append(f"{self.name} {'begin ' if step.begins else ''}{step.kind}")
        return None if step.begins else tensor

    def __getattr__(self, call: str) -> Any:
        return lambda: self.pages.append(f"{self.name} {call}")


def groups() -> tuple[Groups, list[str]]:
    pages: list[str] = []
    made = Groups(0, lambda: None, "", 1.0, numpy=False)  # type: ignore[arg-type,return-value]
    made.groups = {(0, 1): Diary("a", pages), (0, 2): Diary("b", pages)}
    return made, pages


def step(kind: str, group: tuple[int, ...], begins: bool = False) -> Collective:
    return Collective(kind, 0, 1, 2, TYPE, group, begins=begins)


def test_one_group_s_collectives_wait_on_the_device_for_another_s() -> None:
    made, pages = groups()
    made.run(step("all_reduce", (0, 1), begins=True), "x")
    made.run(step("all_reduce", (0, 2)), "y")
    made.run(step("wait", (0, 1)), None)
    made.run(step("send", (0, 2)), "z")
    assert pages == ["b settle", "a begin all_reduce", "a settle", "b all_reduce", "a wait", "b send"]
    assert made.issued == 4


def test_a_loss_that_broke_a_collective_may_be_heard_of_a_moment_later() -> None:
    made, _ = groups()
    threading.Timer(0.2, made.abort, (2,)).start()
    assert made.await_loss((0, 2)) and made.lost == {2}
    made.leave(5, ((0, 1),), "no room")
    assert not made.await_loss((0, 1))


def test_what_a_failed_run_began_is_let_go() -> None:
    made, pages = groups()
    made.run(step("send", (0, 2)), "z")
    made.forget()
    assert pages[-2:] == ["a forget", "b forget"] and not made.sending


class Nccl:
    """Sums as NCCL does: what is asked for between the two calls starts with the second, as one."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _start_coalescing(self) -> None:
        self.calls.append("start")

    def _end_coalescing(self) -> Nccl:
        self.calls.append("end")
        return self

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> Nccl:
        self.calls.append(f"sum of {tensors[0].numel()}")
        tensors[0].mul_(2)
        return self

    def wait(self) -> None:
        self.calls.append("wait")


def nccl_group() -> tuple[TorchGroup, Nccl]:
    made, nccl = TorchGroup.__new__(TorchGroup), Nccl()
    made.rank, made.size, made.backend, made.device, made.group = 0, 2, "nccl", "cpu", nccl
    made.sending, made.begun, made.receiving = [], {}, {}
    return made, nccl


def sum_of(slot: int, n: int, with_next: bool, begins: bool = True) -> Collective:
    attrs = (("reduce", "sum"), *((("with_next", True),) if with_next else ()))
    return Collective("all_reduce", slot, slot, slot, WireType((n,), "float32"), (0, 1), attrs, begins=begins)


def test_sums_of_one_launch_start_as_one_and_are_waited_for_as_one() -> None:
    group, nccl = nccl_group()
    for slot, with_next in ((1, True), (2, True), (3, False), (4, False)):
        assert group.run(sum_of(slot, slot, with_next), torch.ones(slot)) is None
    assert nccl.calls == ["start", "sum of 1", "sum of 2", "sum of 3", "end", "sum of 4"]
    assert group.gathered is None
    wait = Collective("wait", 2, 2, 2, WireType((2,), "float32"), (0, 1))
    result = group.run(wait, None)
    assert result is not None and result.tolist() == [2.0, 2.0] and nccl.calls[-1] == "wait"


def test_nothing_waits_for_a_launch_that_others_were_to_come_to() -> None:
    wait = Collective("wait", 1, 1, 1, WireType((1,), "float32"), (0, 1))
    for call in (lambda g: g.run(wait, None), lambda g: g.settle(), lambda g: g.finish()):
        group, nccl = nccl_group()
        group.run(sum_of(1, 1, True), torch.ones(1))
        assert nccl.calls == [], "nothing is open meanwhile"
        call(group)
        assert nccl.calls[:3] == ["start", "sum of 1", "end"] and group.gathered is None
    group, nccl = nccl_group()
    group.run(sum_of(1, 1, True), torch.ones(1))
    group.forget()  # of a run that failed: nobody else comes to it
    group.run(sum_of(2, 2, False), torch.ones(2))
    assert nccl.calls == ["sum of 2"]
    group, nccl = nccl_group()
    group.run(sum_of(1, 1, True, begins=False), torch.ones(1))  # read at once: nothing can come to it
    assert nccl.calls == ["sum of 1", "wait"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_the_largest_of_floats_is_that_of_integers_in_their_order_and_nan_beyond_all(dtype: torch.dtype, reduce: str) -> None:
    group, nccl = nccl_group()
    values = torch.tensor([-torch.inf, -3.0, -1e-7, -0.0, 0.0, 1e-7, 2.5, torch.inf, torch.nan, -torch.nan], dtype=dtype)
    seen: list[torch.Tensor] = []
    nccl.allreduce = lambda tensors, options: seen.append(tensors[0].clone()) or nccl  # type: ignore[method-assign,func-returns-value]
    once = Collective("all_reduce", 1, 1, 1, WireType((10,), "float32"), (0, 1), (("reduce", reduce),))
    result = group.run(once, values)
    assert result is not None and result.dtype is dtype
    assert torch.equal(result.nan_to_num(7.0), values.nan_to_num(7.0)) and torch.equal(result.signbit()[:8], values.signbit()[:8])
    sent = seen[0].tolist()
    assert seen[0].dtype in (torch.int32, torch.int64) and sent[:8] == sorted(set(sent[:8]))
    assert sent[8] == sent[9] and (sent[8] > sent[7] if reduce == "max" else sent[8] < sent[0])


def test_sums_of_nothing_start_nothing() -> None:
    group, nccl = nccl_group()
    for slot, with_next in ((1, True), (2, False)):
        group.run(sum_of(slot, 0, with_next), torch.ones(0))
    wait = Collective("wait", 2, 2, 2, WireType((0,), "float32"), (0, 1))
    result = group.run(wait, None)
    assert result is not None and result.shape == (0,) and nccl.calls == []


def test_a_lost_member_is_named() -> None:
    made, _ = groups()
    made.abort(2)
    with pytest.raises(CollectiveFailed, match="worker 2"):
        made.run(step("all_reduce", (0, 2), begins=True), "x")


def test_without_a_dispatcher_all_is_called_off_until_another_gives_a_number() -> None:
    made, pages = groups()
    made.call_off()
    assert pages == ["a abort", "b abort"] and made.aborted
    for call in (lambda: made.run(step("all_reduce", (0, 1)), "x"), lambda: made.form("g", (0, 1), "gloo")):
        with pytest.raises(CollectiveFailed, match="the dispatcher is lost"):
            call()
    made.abort(1)
    made.renew(3)
    assert pages[-2:] == ["a close", "b close"] and (made.worker, made.groups, made.lost) == (3, {}, set())
    made.groups = {(1, 3): Diary("c", pages)}
    assert made.run(step("all_reduce", (1, 3)), "x") == "x"


def test_a_group_that_breaks_while_another_waits_for_it_is_a_failed_collective() -> None:
    made, _ = groups()

    class Broken(Diary):
        def settle(self) -> None:
            raise RuntimeError("NCCL communicator was aborted")

    made.groups[0, 1] = Broken("a", [])
    with pytest.raises(CollectiveFailed, match="all_reduce between workers .0, 2.: NCCL communicator was aborted"):
        made.run(step("all_reduce", (0, 2)), "x")
    made.abort(2)
    with pytest.raises(CollectiveFailed, match="worker 2"):
        made.run(step("all_reduce", (0, 2)), "x")


def test_making_a_group_ends_when_a_member_is_lost_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = groups()
    forever, begun = threading.Event(), threading.Event()

    def never(*_: object) -> None:
        begun.set()
        assert forever.wait(30)

    monkeypatch.setattr("gt.runtime.process_group.TorchGroup", never)
    threading.Thread(target=lambda: begun.wait(10) and made.abort(3)).start()
    with pytest.raises(CollectiveFailed, match="worker 3 of .0, 3. is lost"):
        made.form("g1", (0, 3), "gloo")
    forever.set()
    assert (0, 3) not in made.groups


def test_a_group_that_does_not_come_about_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = groups()
    made.timeout_s = 0.2
    forever = threading.Event()
    monkeypatch.setattr("gt.runtime.collective.FORMING_S", 0.1)
    monkeypatch.setattr("gt.runtime.process_group.TorchGroup", lambda *_: forever.wait(30))
    with pytest.raises(CollectiveFailed, match=r"workers \[0, 3\] could not form a group within 0.2 s"):
        made.form("g1", (0, 3), "nccl")
    forever.set()
    assert (0, 3) not in made.groups


def test_a_member_may_leave_a_run_before_another_has_come_back_from_making_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    made, pages = groups()

    def left_meanwhile(*_: object) -> Diary:
        made.leave(6, ((0, 3),), "worker 3 could not go on")
        return Diary("c", pages)

    monkeypatch.setattr("gt.runtime.process_group.TorchGroup", left_meanwhile)
    made.form("g5", (0, 3), "gloo", 5)
    with pytest.raises(CollectiveFailed, match="worker 3 could not go on"):
        made.run(step("all_reduce", (0, 3)), "x")
    monkeypatch.setattr("gt.runtime.process_group.TorchGroup", lambda *_: Diary("d", pages))
    made.form("g7", (0, 3), "gloo", 7)
    assert made.run(step("all_reduce", (0, 3)), "x") == "x" and (pages[0], pages[-1]) == ("c close", "d all_reduce")


def test_groups_of_lost_members_go_when_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made, pages = groups()
    made.abort(2)
    monkeypatch.setattr("gt.runtime.process_group.TorchGroup", lambda *_: Diary("c", pages))
    made.form("g1", (0, 3), "gloo")
    assert pages == ["b abort", "b close"] and list(made.groups) == [(0, 1), (0, 3)]


def test_what_makes_a_group_fail_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = groups()

    def fails(*_: object) -> None:
        raise RuntimeError("no route")

    monkeypatch.setattr("gt.runtime.process_group.TorchGroup", fails)
    with pytest.raises(CollectiveFailed, match="could not form a group: no route"):
        made.form("g1", (0, 3), "gloo")


def test_a_wait_takes_nothing() -> None:
    made, _ = groups()
    assert made.input_shape(step("all_reduce", (0, 1))) == (4,)
    assert made.input_shape(step("wait", (0, 1))) is None


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_a_group_that_is_closed_can_be_aborted_by_the_thread_that_hears_of_a_loss(backend: str) -> None:
    group = object.__new__(TorchGroup)
    group.backend, group.aborted, group.wake, group.group = backend, False, threading.Event(), object()
    group.close()
    group.abort()
    assert group.aborted and group.wake.is_set()


def test_nccl_is_told_once_to_abort_however_often_a_collective_is_found_overdue() -> None:
    made, _ = groups()
    group, called, go = object.__new__(TorchGroup), threading.Semaphore(0), threading.Event()

    class Stuck:
        def abort(self) -> None:
            called.release()
            go.wait(30)

    group.backend, group.aborted, group.wake, group.group = "nccl", False, threading.Event(), Stuck()
    made.groups[0, 3], made.formed[0, 3] = group, 5
    before = threading.active_count()
    for _ in range(5):
        made.leave_overdue([(0, 3)])
    assert called.acquire(timeout=10) and not called.acquire(timeout=0.2) and threading.active_count() == before + 1
    go.set()


class Itself:
    """What a group of two calls of torch's when the other member holds the same: part i of what is sent is what it gets from i."""

    def alltoall_base(self, got: torch.Tensor, sent: torch.Tensor, *_: Any) -> None:
        got.copy_(sent)

    def allreduce(self, tensors: list[torch.Tensor], _: Any) -> None:
        tensors[0].mul_(2)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int16, torch.bool])
@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_is_in_its_operand_s_memory_only_where_it_may_and_can_be(inplace: bool, dtype: torch.dtype, turned: bool) -> None:
    group = object.__new__(TorchGroup)
    group.size, group.group = 2, Itself()
    x = torch.tensor([[1, 2, 3], [0, 5, 6]]).to(dtype)
    x = x.t() if turned else x
    before, own = x.clone(), inplace and not turned and dtype not in (torch.int16, torch.bool)
    got = group._end(group._begin("all_reduce", {"reduce": "sum"}, x, False, inplace))
    assert torch.equal(got, before if dtype is torch.bool else before + before)
    assert (got.data_ptr() == x.data_ptr()) is own
    assert torch.equal(x, got if own else before)


@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dim", range(4))
def test_an_exchange_takes_any_order_in_memory(dim: int, form: torch.memory_format) -> None:
    """Convolutions give channels last."""
    group = object.__new__(TorchGroup)
    group.size, group.group = 2, Itself()
    x = torch.arange(384.0).reshape(6, 4, 8, 2)
    moved = group._end(group._begin("all_to_all", {"src": 0, "dst": dim}, x.contiguous(memory_format=form), False))
    assert torch.equal(moved, torch.cat(x.chunk(2, dim), 0))
    summed = group._end(group._begin("reduce_scatter", {"dim": dim, "reduce": "sum"}, x.contiguous(memory_format=form), False))
    assert torch.equal(summed, sum(x.chunk(2, dim)))


def test_nccl_listens_on_the_interface_of_the_workers_address_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    loopback = next(n for n, found in psutil.net_if_addrs().items() if any(a.address == "127.0.0.1" for a in found))
    environment: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environment)
    keep_nccl_to("127.0.0.1")
    assert environment == {"NCCL_SOCKET_IFNAME": f"={loopback}", "NCCL_RAS_ENABLE": "0", "NCCL_SOCKET_RETRY_CNT": RETRIES, **OWN_WATCH}
    environment["NCCL_SOCKET_IFNAME"] = "ib0"  # the user's word counts
    keep_nccl_to("127.0.0.1")
    assert environment["NCCL_SOCKET_IFNAME"] == "ib0"


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bool])
def test_a_single_element_of_any_stride_is_seen_as_bytes(dtype: torch.dtype) -> None:
    one = torch.ones(4, dtype=dtype)[1::2][:1].clone()
    assert one.stride() == (2,) and one.is_contiguous()
    assert _bytes(one).tolist() == _bytes(torch.ones(1, dtype=dtype)).tolist()

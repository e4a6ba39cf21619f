"""Uploads as a worker takes them in: from shared memory, in whichever order messages come, each slot given back when it was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import zmq

from gt.ir.program import WireType
from gt.ir.types import DType, bfloat16, float32
from gt.runtime import exchange, shared, wire
from gt.runtime.engine import wire_dtype
from gt.runtime.errors import Fault
from gt.runtime.exchange import MAX_EARLY, Early, Intake, Outlet, copy
from gt.runtime.executor import TorchEngine
from gt.runtime.numpy_engine import NumpyEngine
from gt.runtime.runner import Runner
from gt.runtime.shared import Slot, SlotPool
from gt.runtime.transport import make_socket, receive, send
from gt.runtime.wire_arrays import data_of

pytestmark = pytest.mark.skipif(not shared.supported(), reason="this system has no memory without a name")
SHAPE = (200, 100)
ME = b"a token of mine."
TYPE = WireType(SHAPE, "float32")


class Client:
    """A client's end of the socket, with slots of its own."""

    def __init__(self, socket: Any, intake: Intake) -> None:
        self.socket, self.intake, self.pool = socket, intake, SlotPool()
        self.probe = shared.probe()

    def meet(self) -> wire.Share:
        assert self.probe is not None
        answer = self.ask(wire.Share(ME, self.probe.offer(), False))
        assert isinstance(answer, wire.Share) and answer.opened and self.intake.openings.opens(answer.probe)
        return answer

    def ask(self, message: wire.Message) -> Any:
        self.send(message)
        assert self.socket.poll(2000)
        got = receive(self.socket, wire.TO_CLIENT)
        return got and got[1]

    def send(self, message: wire.Message, data: Any = None) -> list[int]:
        send(self.socket, message, data)
        assert self.intake.socket.poll(2000)
        return self.intake.receive()

    def upload(self, ticket: bytes, value: float) -> tuple[Slot, wire.Upload]:
        array = self.pool.take(SHAPE, np.dtype(np.float32))
        assert array is not None
        array[...] = value
        slot = self.pool.find(array)
        assert slot is not None
        return slot, wire.Upload(ticket, TYPE, slot.lend(0, SHAPE, tuple((0, n) for n in SHAPE)))


@pytest.fixture(params=[False, True], ids=["copied", "direct"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    context: zmq.Context = zmq.Context()
    router, dealer = make_socket(context, zmq.ROUTER, data=True), make_socket(context, zmq.DEALER, data=True)
    router.bind("inproc://intake")
    dealer.connect("inproc://intake")
    yield Client(dealer, Intake(router, {}, direct=request.param))
    context.destroy(0)


def expect(uid: int, ticket: bytes, local: tuple[int, ...] = SHAPE) -> wire.Expect:
    return wire.Expect(uid, ticket, TYPE, local)


class Nowhere:
    def reply(self, message: wire.Message) -> None: ...
    def ship(self, *_: Any) -> None: ...
    def room(self, *_: Any) -> None: ...


def test_a_slot_is_given_back_once_its_value_is_a_workers_own(client: Client) -> None:
    client.meet()
    intake = client.intake
    runner = Runner(0, NumpyEngine(), Nowhere(), uploads=intake.uploads)
    assert intake.expect(expect(1, b"a")) == []
    slot, upload = client.upload(b"a", 3.0)
    assert client.send(upload) == [1]
    if intake.direct:
        assert slot.busy and client.upload(b"x", 9.0)[0] is not slot  # the engine has not copied it yet
    runner.handle(wire.Ping())
    assert not slot.busy
    slot.array(80_000)[...] = 0
    assert runner.values[1].min() == runner.values[1].max() == 3.0


def test_padded_and_early_uploads_come_as_they_are(client: Client) -> None:
    client.meet()
    slot, upload = client.upload(b"a", 2.0)
    assert client.send(upload) == [] and slot.busy  # before the dispatcher has spoken of it
    assert client.intake.expect(expect(4, b"a", (256, 100))) == [4]
    array, name, done = client.intake.uploads[4]
    assert (array.shape, name, done, slot.busy) == ((256, 100), "float32", None, False)
    assert array[:200].min() == array[:200].max() == 2.0 and not array[200:].any()


def test_uploads_that_nobody_wants_any_more_are_passed_over(client: Client) -> None:
    client.meet()
    client.intake.expect(expect(1, b"a"))
    client.intake.cancel((1,))
    slot, upload = client.upload(b"a", 1.0)
    assert client.send(upload) == [] and not slot.busy and not client.intake.early and not client.intake.called_off
    assert client.send(wire.Upload(b"b", TYPE), data_of(np.ones(SHAPE, np.float32))) == []  # in a frame, and early
    assert client.intake.expect(expect(2, b"b")) == [2]


def test_what_cannot_be_opened_is_asked_for_in_a_frame(client: Client) -> None:
    client.meet()
    client.intake.expect(expect(1, b"a"))
    slot, upload = client.upload(b"a", 5.0)
    assert upload.region is not None
    lost = msgspec.structs.replace(upload, region=msgspec.structs.replace(upload.region, fd=99_999))
    answer = client.ask(lost)
    assert answer == wire.Unread(lost) and slot.busy
    part = slot.take_back(lost.region, np.dtype(np.float32))
    assert not slot.busy and client.send(wire.Upload(b"a", TYPE), data_of(part)) == [1]
    assert client.intake.uploads[1][0].max() == 5.0


def test_memory_of_strangers_and_of_those_who_left_is_not_opened(client: Client) -> None:
    client.intake.expect(expect(1, b"a"))
    _, upload = client.upload(b"a", 1.0)
    assert client.send(upload) == [] and client.intake.dropped == 1  # it has not said who it is
    client.meet()
    assert client.send(upload) == [1] and len(client.intake.openings) == 1
    client.send(wire.Share(ME, None, True))
    assert client.intake.sharing == {ME}
    client.intake.forget(ME)
    assert not client.intake.sharing and not client.intake.opened and len(client.intake.openings) == 0


def test_strangers_have_so_much_room_for_early_uploads_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.exchange.MAX_EARLY_NBYTES", 1000)
    early = Early()

    def put(peer: bytes, ticket: bytes, nbytes: int, now: float = 0.0) -> list[bytes]:
        upload = wire.Upload(ticket, WireType((nbytes,), "uint8"))
        return [old.ticket for old in early.put(peer, upload, memoryview(bytes(nbytes)), now)]

    assert put(b"honest", b"h", 900) == []
    assert [put(b"greedy", bytes([i]), 400) for i in range(4)] == [[], [], [b"\0"], [b"\1"]]  # its own oldest go
    assert put(b"greedy", b"huge", 5000) == [b"\2", b"\3"]
    assert len(early) == 2 and early.take(b"h") is not None
    assert put(b"honest", b"again", 1, now=60.0) == [b"huge"]  # nobody has spoken of it
    assert sum(len(put(b"greedy", i.to_bytes(4, "big"), 0, 60.0)) for i in range(300)) == 300 - MAX_EARLY


def test_tokens_that_are_none_are_not_kept(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.exchange.MAX_PEERS", 2)
    for token in (b"", b"short", b"a" * 16, b"b" * 16, b"c" * 16):
        client.send(wire.Share(token, None, True))
    assert client.intake.sharing == {b"a" * 16, b"b" * 16} and client.intake.dropped == 3


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("device", ["numpy", "cpu", "cuda"])
def test_an_engine_has_read_shared_memory_when_it_gives_the_value(device: str, dtype: DType) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    engine: Any = NumpyEngine() if device == "numpy" else TorchEngine(device, compile_after=0)
    for value in range(5):
        array = SlotPool().take((700, 1000), wire_dtype(dtype))
        assert array is not None
        array[...] = value
        view = array.view()
        view.flags.writeable = False
        held = engine.from_shared(view, dtype)
        array[...] = 99
        assert np.array_equal(engine.to_host(held, dtype), np.full((700, 1000), value, wire_dtype(dtype)))
        assert np.array_equal(engine.to_host(held, dtype, array), array) and array[3, 4] == value


@pytest.fixture
def met() -> Iterator[tuple[Outlet, Any]]:
    """A worker's way out, and the dispatcher's socket that it leads to."""
    context: zmq.Context = zmq.Context()
    dispatcher, work = make_socket(context, zmq.ROUTER), make_socket(context, zmq.DEALER)
    dispatcher.bind("inproc://dispatcher")
    work.connect("inproc://dispatcher")
    yield Outlet(work, make_socket(context, zmq.ROUTER, data=True), set()), dispatcher
    context.destroy(0)


def test_what_finds_no_client_for_too_long_is_told_to_the_dispatcher(met: tuple[Outlet, Any]) -> None:
    outlet, dispatcher = met
    outlet.ship(ME, wire.Part(5, TYPE, ((0, 200), (0, 100)), 1, True), np.ones(SHAPE, np.float32))
    outlet.retry()
    assert len(outlet.unsent) == 1 and not dispatcher.poll(0)
    outlet.unsent = [(0.0, *outlet.unsent[0][1:])]
    outlet.retry()
    assert not outlet.unsent and dispatcher.poll(2000)
    got = receive(dispatcher, wire.FROM_PEERS, routed=True)
    assert got is not None and got[1] == wire.Unsent(ME, 5)


def test_epochs_that_went_well_are_told_of_with_what_is_said_next(met: tuple[Outlet, Any]) -> None:
    outlet, dispatcher = met

    def told() -> list[Any]:
        out: list[Any] = []
        while dispatcher.poll(50 if out else 2000):
            got = receive(dispatcher, wire.FROM_PEERS, routed=True)
            assert got is not None
            out.append(got[1])
        return out

    fault = Fault("run", "broke")
    for epoch in (1, 2, 3):
        outlet.reply(wire.Done(epoch, 0.5))
    assert not dispatcher.poll(50)
    outlet.reply(wire.Done(4, 0.5, fault))
    for epoch in (5, 6):
        outlet.reply(wire.Done(epoch, 0.5))
    outlet.reply(wire.Unsent(ME, 5))
    outlet.reply(wire.Done(7, 0.5, graph="ready"))
    outlet.reply(wire.Done(8, 0.5))
    outlet.tell_over()
    outlet.tell_over()
    assert told() == [
        wire.Done(4, 0.5, fault, earlier=((1, 0.5), (2, 0.5), (3, 0.5))), wire.Done(6, 0.5, earlier=((5, 0.5),)), wire.Unsent(ME, 5),
        wire.Done(7, 0.5, graph="ready"), wire.Done(8, 0.5),
    ]  # fmt: skip


@pytest.mark.parametrize("shape", [(), (0, 4), (7,), (2000,), (3, 1500), (1, 1, 5000), (40, 3, 5)], ids=str)
@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_large_is_copied_piece_by_piece(shape: tuple[int, ...], order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "COPIED", 1024)
    part = np.asarray(np.random.default_rng(0).standard_normal(shape), order=order)
    out, pauses = np.empty(shape), 0

    def between() -> None:
        nonlocal pauses
        pauses += 1

    copy(out, part, between)
    np.testing.assert_array_equal(out, part)
    assert pauses >= max(1, part.nbytes // 1024)


@pytest.mark.parametrize("client", [False], indirect=True, ids=["copied"])
def test_a_worker_is_heard_of_while_it_copies_an_upload(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "COPIED", 4096)
    calls: list[None] = []
    client.intake.alive = lambda: calls.append(None)
    client.meet()
    client.intake.expect(expect(7, b"t" * 16))
    _, upload = client.upload(b"t" * 16, 2.0)
    assert client.send(upload) == [7]
    assert len(calls) >= 200 * 100 * 4 // 4096 and (client.intake.uploads[7][0] == 2).all()

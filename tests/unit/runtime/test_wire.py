"""The wire: whatever comes in, out comes a valid message or a ProtocolError."""

from __future__ import annotations

import typing

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.program import WireSharding, WireType
from gt.ir.types import bfloat16
from gt.passes.reasons import SentReason
from gt.runtime import transport, wire, wire_arrays
from gt.runtime.buffer_reasons import BufferReasons
from gt.runtime.errors import Fault, GtError, ProtocolError, WorkerLost, fault_of

CODECS = [wire.FROM_PEERS, wire.TO_CLIENT, wire.TO_WORKER, wire.TO_NODE, wire.TO_ASKER, wire.UPLOADS]
PLACE = wire.Place(WireType((4, 4), "float32"), WireSharding("all", (("w", 2),), (0, 1), (("w",), ())), 5)
PAST = wire.Past(((4, 1), (5, 0)), (PLACE,), (wire.Held(5 << 32, b"o" * 16, (1, 3), 0, -1),))
SAMPLES: list[tuple[wire.Message, bytes | None]] = [
    (wire.ClientHello(7), None),
    (wire.ClientHello(7, secret=b"s" * 16), None),
    (wire.Resume(5, (1, 2), (0, 1)), None),
    (wire.WorkerHello("u", "r", "host", 7, "cpu", "numpy", past=PAST), None),
    (wire.Define(3), b"graph"),
    (wire.Run(1, (1, 2), (3,), (1.5, True, 2, (0.0, 1.0)), (1,)), None),
    (wire.Put(1, WireType((2, 3), "float32"), None, True), bytes(24)),
    (wire.Put(1, WireType((2, 3), "float32"), None, False), None),
    (wire.Done(1, 0.5, Fault("run", "broke", 1, 2, "a.py:3")), None),
    (wire.StoreOp(1, "set", ("a/b",), b"\0\xff"), None),
    (wire.Beat(4), None),
    (wire.Explain(3, 9), None),
    (wire.AskStatus(), None),
    (wire.NodeHello("job", 2, 1, "host", 7, 8), None),
    (wire.NodeFailed("no torch"), None),
    (wire.AskTrace(5.0, 100), None),
    (wire.TraceReply(1, 1e9, "boot", True, 1e9, ("0.1 1 run worker0 x 0",), 2), None),
]
WHY = BufferReasons(
    WireType((64, 32), "float32"), WireSharding("all", (("w", 4),), (0, 1, 2, 3), (("w",), ())), 4, "flush3",
    ("%h: f32[64@w, 32] on all: relu computes it there", "%x: signal 'batch' at a.py:3"),
    (SentReason("all_reduce", ("w",), 2, 6, "a result must not be pending", "a.py:4"),), ("%z: kept whole",), (1, 0),
)  # fmt: skip


@pytest.mark.parametrize("message,data", SAMPLES, ids=lambda v: type(v).__name__)
def test_messages_round_trip(message, data):
    frames = [wire.encode(message)] + ([] if data is None else [data])
    got, body = wire.FROM_PEERS.decode(frames)
    assert got == message and (None if body is None else bytes(body)) == data


def test_an_explanation_comes_back_as_it_was_sent():
    answer = wire.Explained(9, WHY)
    assert wire.TO_CLIENT.decode([wire.encode(answer)]) == (answer, None)
    for codec in (wire.FROM_PEERS, wire.TO_WORKER):
        with pytest.raises(ProtocolError):
            codec.decode([wire.encode(answer)])


def test_every_message_has_a_receiver():
    known = {m for union in (wire.Incoming, wire.ToClient, wire.ToWorker, wire.ToNode, wire.ToAsker) for m in typing.get_args(union)} | {
        wire.Upload
    }
    declared = set(wire.Message.__subclasses__())
    assert declared == known


@pytest.mark.parametrize("codec", CODECS, ids=["peers", "client", "worker", "node", "asker", "uploads"])
@given(frames=st.lists(st.binary(max_size=200), max_size=4))
def test_noise_is_refused(codec, frames):
    with pytest.raises(ProtocolError):
        codec.decode(frames)
    if frames:
        with pytest.raises(ProtocolError):
            codec.decode([bytes([wire.VERSION]) + b"\xc1" + frames[0], *frames[1:]])


@given(sample=st.sampled_from(SAMPLES), data=st.data())
def test_a_damaged_message_is_refused_or_valid(sample, data):
    message, body = sample
    header = bytearray(wire.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(header) - 1))
        header[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(header)))
    frames = [bytes(header[:cut])] + ([] if body is None else [body])
    try:
        got, _ = wire.FROM_PEERS.decode(frames)
    except ProtocolError:
        return
    assert isinstance(got, wire.Message)


def test_a_deeply_nested_header_is_refused():
    with pytest.raises(ProtocolError):
        wire.FROM_PEERS.decode([bytes([wire.VERSION]) + b"\x91" * 100_000 + b"\xc0"])


def test_a_pickle_is_just_noise():
    import pickle

    with pytest.raises(ProtocolError):
        wire.FROM_PEERS.decode([bytes([wire.VERSION]) + pickle.dumps({"a": 1})])


@pytest.mark.parametrize(
    "type_,nbytes",
    [((2, 3), 23), ((-1, 3), 24), ((2**62, 4), 64), ((2,) * 65, 8), ((0, 2**63 - 1), 1)],
)
def test_a_data_frame_that_does_not_fill_its_type_is_refused(type_, nbytes):
    frames = [wire.encode(wire.Put(1, WireType(type_, "float32"), None, True)), bytes(nbytes)]
    with pytest.raises(ProtocolError):
        wire.FROM_PEERS.decode(frames)


@pytest.mark.parametrize("shape", [(0, 2**62), (2**48 + 1,), (2**30, 2**30, 0)])
def test_sizes_that_no_array_has_are_refused_even_of_nothing(shape):
    """NumPy takes no such shape, whatever it holds."""
    for frames in ([wire.encode(wire.Put(1, WireType(shape, "float32"), None, True)), b""],
                   [wire.encode(wire.Upload(b"t", WireType(shape, "float32"))), b""]):  # fmt: skip
        with pytest.raises(ProtocolError, match="at most"):
            (wire.UPLOADS if b"Upload" in frames[0] else wire.FROM_PEERS).decode(frames)


@pytest.mark.parametrize(
    "message,data",
    [
        (wire.Part(1, WireType((2, 2), "float32"), ((0, 3), (0, 1)), 1, True), bytes(12)),
        (wire.Part(1, WireType((2**40, 2**40), "float32"), ((0, 1), (0, 1)), 1, True), bytes(4)),
        (wire.Part(1, WireType((4,), "float32"), ((3, 2),), 1, True), b""),
        (wire.Store(1, WireType((4, 4), "float32"), ((0, 4), (0, 4)), (2, 4)), bytes(64)),
        (wire.Store(1, WireType((4, 4), "float32"), ((0, 5), (0, 4)), (5, 4)), bytes(64)),
        (wire.Store(1, WireType((4, 4), "float32"), ((0, 4), (0, 4)), (2**47, 4)), bytes(64)),
        (wire.Expect(1, b"t", WireType((4,), "float32"), (3,)), None),
        (wire.Expect(1, b"t", WireType((4,), "float32"), (4, 4)), None),
        (wire.Ship(1, b"t", 1, WireType((4,), "float99"), ((0, 4),), 1, True), None),
        (wire.Ship(1, b"t", 1, WireType((4,), "float32"), ((-1, 4),), 1, True), None),
    ],
)  # fmt: skip
def test_rows_that_are_none_of_their_type_or_have_no_room_are_refused(message, data):
    codec = wire.TO_CLIENT if isinstance(message, wire.Part) else wire.TO_WORKER
    with pytest.raises(ProtocolError):
        codec.decode([wire.encode(message)] + ([] if data is None else [data]))


@pytest.mark.parametrize("placement", [1, -1])
def test_places_that_are_none_of_those_named_are_refused(placement):
    places = wire.Places(5, (PLACE.placed,), ((PLACE.type, 0),))
    assert places[0] == PLACE
    tree = msgspec.msgpack.decode(msgspec.msgpack.encode(places))
    tree[2][0][1] = placement
    with pytest.raises(msgspec.ValidationError, match="none of the placements"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(tree), type=wire.Places)


def test_a_wrong_number_of_frames_is_refused():
    hello, put = wire.encode(wire.ClientHello(1)), wire.encode(wire.Put(1, WireType((1,), "uint8"), None, True))
    for frames in ([], [hello, b"x"], [put], [put, b"x", b"y"]):
        with pytest.raises(ProtocolError):
            wire.FROM_PEERS.decode(frames)


def test_another_version_is_refused_with_both_named():
    with pytest.raises(ProtocolError, match=f"version {wire.VERSION}, got 250"):
        wire.FROM_PEERS.decode([b"\xfa" + wire.encode(wire.ClientHello(1))[1:]])


def test_the_sender_refuses_what_the_receiver_would_drop(monkeypatch):
    monkeypatch.setattr(wire, "MAX_HEADER", 100)
    monkeypatch.setattr(wire_arrays, "MAX_DATA", 100)
    with pytest.raises(ProtocolError, match="over the limit of 100 bytes"):
        wire.encode(wire.Free(tuple(range(1000))))
    with pytest.raises(ProtocolError, match="over the limit of 100 bytes"):
        wire_arrays.data_of(np.zeros(1000, np.uint8))
    with pytest.raises(ProtocolError, match="64 bits"):
        wire.encode(wire.Run(1, (), (), (2**70,), ()))


def test_a_data_frame_over_the_limit_is_refused_at_the_sender_with_limit_and_size(monkeypatch):
    monkeypatch.setattr(transport, "MAX_CONTROL", 1000)
    with pytest.raises(ProtocolError, match="the data of a Define of 1001 bytes is over the limit of 1000 bytes"):
        transport.send(None, wire.Define(1), bytes(1001))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (4, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.bool_, np.complex64, np.uint16])
def test_arrays_round_trip(shape, dtype):
    array = np.ones(shape, dtype)
    name = "bfloat16" if dtype is np.uint16 else np.dtype(dtype).name
    back = wire_arrays.array_of(WireType(shape, name), wire_arrays.data_of(array))
    assert back.shape == shape and np.array_equal(back, array)
    assert wire_arrays.wire_dtype(bfloat16) == np.uint16


def test_padding_and_bounds():
    array = np.arange(6, dtype=np.int64).reshape(3, 2)
    assert wire_arrays.padded(array[wire_arrays.rows(((1, 3), (0, 2)))], (4, 2)).tolist() == [[2, 3], [4, 5], [0, 0], [0, 0]]
    assert wire_arrays.padded(array, (3, 2)) is array


def test_faults_become_the_errors_a_reader_sees():
    lost = Fault("worker_lost", "worker 1 died", 1, 9, "a.py:3").exception()
    assert isinstance(lost, WorkerLost) and (lost.worker, lost.epoch, lost.where) == (1, 9, "a.py:3")
    assert "a.py:3" in str(lost)
    assert fault_of(ZeroDivisionError("division by zero")).message == "ZeroDivisionError: division by zero"
    assert isinstance(Fault("unheard of", "x").exception(), GtError)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Fault("run", "x")), type=Fault) == Fault("run", "x")

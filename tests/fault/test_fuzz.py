"""A short run of ``python -m tests.fault.fuzz``, and decoders fed what hypothesis and coverage make of real frames."""

from __future__ import annotations

import contextlib
import random
import socket as sockets
import sys
from types import FrameType
from typing import Any

import hypothesis.core
import msgspec
import psutil
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.graph import Graph
from gt.ir.mesh import Sharding
from gt.ir.program import WireGraph, WireSharding, WireType, encode_graph
from gt.ir.types import TensorType, float32
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.errors import ProtocolError
from gt.runtime.planner import PlanRequest, answer
from gt.runtime.remote import RemoteSession
from gt.runtime.transport import MAX_CONTROL, MAX_IDLE
from gt.runtime.wire_arrays import MAX_DATA
from tests.fault.fuzz import CODECS, Cluster, Impostor, attack, mutated, retype, use
from tests.integration.cluster import Desk, graph_of
from tests.integration.programs import lived, wait_for

pytestmark = pytest.mark.timeout(120)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=9) | st.binary(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3), max_leaves=12,
)  # fmt: skip
NAMES = [m.__name__ for m in wire.Message.__subclasses__()]


def test_whatever_comes_at_any_socket_nothing_dies_hangs_or_grows_and_all_is_counted() -> None:
    tally = attack(4000, hypothesis.core.global_force_seed)
    for name in CODECS:
        assert tally.sent[name] > 300 and tally.counted[name] >= tally.malformed[name], (name, tally)
    assert tally.growth < 64 << 20 and tally.descriptors < 32, tally


@settings(max_examples=60)
@given(name=st.sampled_from(NAMES), fields=st.lists(VALUES, max_size=8), data=st.none() | st.binary(max_size=40))
def test_made_up_messages_are_decoded_or_refused(name: str, fields: list[Any], data: bytes | None) -> None:
    frames = [bytes([wire.VERSION]) + msgspec.msgpack.encode([name, *fields])] + ([] if data is None else [data])
    for codec in CODECS.values():
        try:
            message, _ = codec.decode(frames)
        except ProtocolError:
            continue
        assert isinstance(message, wire.Message)


def test_a_server_that_says_what_cannot_be_ends_no_client() -> None:
    """Each of these once hung a client or ended its thread."""
    context: zmq.Context[Any] = zmq.Context()
    impostor = Impostor(context)
    session = RemoteSession(impostor.endpoint, timeout=20)
    sayings: list[wire.Message] = [
        wire.Progress(2**62), wire.Workers(((0, "tcb://127.0.0.1:1", "tcp://127.0.0.1:1", ""),)), wire.Placed(7, ()),
        wire.Workers(((0, "tcp://127.0.0.1:1", "nowhere", ""),)),
    ]  # fmt: skip
    try:
        for i, message in enumerate(sayings, 1):
            assert impostor.say(impostor.peers[0], [wire.encode(message)])
            assert wait_for(lambda n=i: session.malformed.count == n), message
        assert session.closed is None
    finally:
        with lived() as seconds:
            session.close()
            impostor.close()
            context.destroy(0)
            assert seconds() < 3


def test_a_session_that_was_ended_gives_everything_back_when_it_is_closed() -> None:
    context: zmq.Context[Any] = zmq.Context()
    impostor = Impostor(context)
    try:
        session = RemoteSession(impostor.endpoint, timeout=20)
        impostor.say(impostor.peers[0], [wire.encode(wire.Refused("no more"))])
        assert wait_for(lambda: not session._io_thread.is_alive())
        session.close()
        session.close()
        assert session._context.closed and session._up.closed
    finally:
        impostor.close()
        context.destroy(0)


def command(name: bytes, **fields: bytes) -> bytes:
    """Give a command of ZMTP."""
    body = bytes([len(name)]) + name
    for key, value in fields.items():
        named = key.replace("_", "-").encode()
        body += bytes([len(named)]) + named + len(value).to_bytes(4, "big") + value
    return bytes([4, len(body)]) + body


def test_who_announces_more_than_the_limit_is_cut_off_before_it_is_there() -> None:
    cluster = Cluster()
    try:
        limits = zip((cluster.dispatcher.endpoint, *cluster.worker.bound), (MAX_CONTROL, MAX_DATA, MAX_IDLE), strict=True)
        session = RemoteSession(cluster.dispatcher.endpoint, timeout=20)
        use(Desk(session), 0)  # the worker has all that it needs in memory
        before = psutil.Process().memory_info().rss
        for endpoint, limit in limits:
            host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            with sockets.create_connection((host, int(port)), 5) as raw:
                raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
                raw.sendall(command(b"READY", Socket_Type=b"DEALER"))
                raw.sendall(b"\x02" + (limit + 1).to_bytes(8, "big") + bytes(1000))
                raw.settimeout(30)
                with contextlib.suppress(ConnectionResetError):
                    while raw.recv(1 << 16):
                        continue
        assert psutil.Process().memory_info().rss - before < 16 << 20
        use(Desk(session), 0)
        session.close()
    finally:
        cluster.close()


def graphs() -> list[Graph]:
    square, column = TensorType((4, 4), float32), TensorType((4, 1), float32)
    return [
        graph_of("matmul", square, square), graph_of("add", square, column),
        graph_of("sum", square, attrs=(("dims", (0,)), ("keepdim", False), ("dtype", float32))),
        graph_of("permute", square, attrs=(("dims", (1, 0)),)),
    ]  # fmt: skip


def test_made_up_graphs_cost_their_sender_a_typed_error() -> None:
    """Whole, well-formed or not: the planner answers each, and goes on. A graph that is none is the sender's fault, not a plan's."""
    r = random.Random(hypothesis.core.global_force_seed)
    real = [(bytes([wire.VERSION]) + msgspec.msgpack.encode(encode_graph(g)), placed(g)) for g in graphs()]
    kinds: dict[str, int] = {}
    for _ in range(1500):
        graph, inputs = r.choice(real)
        made = [bytearray(graph)]
        for _ in range(r.randint(1, 2)):
            _retyped(made, r)
        reply = answer(PlanRequest(1, bytes(made[0][1:]), inputs, (0, 1), 0))
        kind = reply.fault.kind if reply.fault else "planned"
        kinds[kind] = kinds.get(kind, 0) + 1
    assert set(kinds) == {"protocol", "planned"}, kinds


def placed(graph: Graph) -> tuple[tuple[WireType, WireSharding], ...]:
    """Place a graph's inputs, whole on two workers."""
    whole = [Sharding.replicated(cluster_mesh((0, 1), (0, 1)), v.type.ndim) for v in graph.inputs]
    return tuple((WireType.of(v.type), WireSharding.of(s)) for v, s in zip(graph.inputs, whole, strict=True))


def _retyped(made: list[bytearray], r: random.Random) -> None:
    """Damage a graph, which travels as a mapping, in one of its entries."""
    tree = msgspec.msgpack.decode(bytes(made[0][1:]))
    name = r.choice(list(tree))
    inner = [bytearray(b"\0" + msgspec.msgpack.encode([tree[name]]))]
    retype(inner, 0, [], r)
    tree[name] = msgspec.msgpack.decode(bytes(inner[0][1:]))[0]
    made[0][1:] = msgspec.msgpack.encode(tree)


class Coverage:
    """Lines of the decoders that have run, by the interpreter's trace."""

    def __init__(self) -> None:
        self.lines: set[tuple[str, int]] = set()
        self.new = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(("wire.py", "wire_arrays.py", "program.py", "signals.py", "shared.py")):
            return None
        at = frame.f_code.co_filename, frame.f_lineno
        if at not in self.lines:
            self.lines.add(at)
            self.new = True
        return self


def test_frames_that_reach_new_lines_are_mutated_further() -> None:
    """Guided by coverage: what reaches a line that nothing reached before joins the samples."""
    r = random.Random(hypothesis.core.global_force_seed)
    type_ = wire.WireType((2, 3), "float32")
    samples = [
        [wire.encode(wire.Put(1, type_, None, True)), bytes(24)], [wire.encode(wire.Ship(1, b"t", 1, type_, ((0, 1), (0, 3)), 1, True))],
        [wire.encode(wire.Part(1, type_, ((0, 1), (0, 3)), 2, False)), bytes(12)], [wire.encode(wire.Run(1, (1,), (2,), (1.5,), ()))],
        [wire.encode(wire.Store(1, type_, ((0, 2), (0, 3)), (2, 3))), bytes(24)], [wire.encode(wire.Upload(b"t", type_)), bytes(24)],
    ]  # fmt: skip
    first, coverage, before = len(samples), Coverage(), sys.gettrace()
    sys.settrace(coverage)
    try:
        for _ in range(4000):
            made, coverage.new = mutated(r.choice(samples), samples, r), False
            for codec in CODECS.values():
                try:
                    codec.decode(made)
                except ProtocolError:
                    continue
            if made and coverage.new:
                samples.append(made)
    finally:
        sys.settrace(before)
    assert len(samples) > first and len(coverage.lines) > 40


def test_a_graph_is_told_from_noise() -> None:
    reply = answer(PlanRequest(1, b"\xc1" + msgspec.msgpack.encode(1), (), (0,), 0))
    assert reply.fault is not None and reply.fault.kind == "protocol"
    deep = msgspec.msgpack.encode(WireGraph("g", (), (), (), ()))[:-1] + b"\x91" * 100_000
    reply = answer(PlanRequest(1, deep, (), (0,), 0))
    assert reply.fault is not None and reply.fault.kind == "protocol"

"""Makes plans, off the dispatcher's message loop.

Owns: ``make_plan`` (a graph and placed input types to programs), the planner process (``main``,
length-prefixed MessagePack on stdin and stdout) and ``PlannerProcess``, its handle. Must not know: clients, epochs,
sockets. Next: ``gt.passes.plan`` (the passes), ``dispatcher`` (who asks).
"""

from __future__ import annotations

import io
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import BinaryIO

import msgspec

import gt.ir.ops  # noqa: F401  the op table
from gt.ir.graph import Graph, Value
from gt.ir.program import Program, WireGraph, WireSharding, WireType, decode_graph
from gt.ir.types import TensorType
from gt.passes.plan import Cluster, plan_graph
from gt.passes.reasons import PlanReasons
from gt.runtime import garbage
from gt.runtime.errors import Fault, ProtocolError, fault_of
from gt.runtime.launch import child_environment
from gt.runtime.wire import MAX_HEADER

_LENGTH = struct.Struct("<I")
MAX_REPLY = 1 << 30
DEADLINE_S = 600.0  # for one plan: the others wait behind it


class PlanRequest(msgspec.Struct, frozen=True, array_like=True):
    """Plan an encoded graph; ``inputs`` are global types with their placements."""

    plan: int
    graph: bytes
    inputs: tuple[tuple[WireType, WireSharding], ...]
    workers: tuple[int, ...]
    num_scalars: int


class PlanReply(msgspec.Struct, frozen=True, array_like=True):
    """The plan, or why not. ``seconds``: how long a run takes by prediction."""

    plan: int
    programs: dict[int, Program]
    outputs: tuple[tuple[WireType, WireSharding], ...]
    fault: Fault | None = None
    reasons: PlanReasons | None = None
    seconds: float = 0.0


GRAPHS = msgspec.msgpack.Decoder(WireGraph)
REQUESTS = msgspec.msgpack.Decoder(PlanRequest)
REPLIES = msgspec.msgpack.Decoder(PlanReply)


def make_plan(
    graph: Graph, inputs: Sequence[TensorType], workers: tuple[int, ...], num_scalars: int, timed: bool = False
) -> tuple[dict[int, Program], tuple[TensorType, ...], PlanReasons, float]:
    """Give programs by worker, the outputs' placed types, why they are placed so, and, if ``timed``, the predicted seconds of a run.

    Errors: ProtocolError where the call does not fit the graph.
    """
    if len(inputs) != len(graph.inputs) or num_scalars != len(graph.scalars):
        raise ProtocolError(
            f"graph {graph.name!r} takes {len(graph.inputs)} inputs and {len(graph.scalars)} scalars, "
            f"the run gives {len(inputs)} and {num_scalars}"
        )
    for i, (value, given) in enumerate(zip(graph.inputs, inputs, strict=True)):
        if value.type.placed(None) is not given.placed(None):
            raise ProtocolError(f"input {i} of graph {graph.name!r} is {value.type!r}, the run gives {given!r}")
    plan = plan_graph(place_inputs(graph, inputs), Cluster(workers), timed=timed)
    outputs = tuple(v.type.placed(s) for v, s in zip(graph.outputs, plan.outputs, strict=True))
    return dict(plan.programs), outputs, plan.told, plan.seconds


def place_inputs(graph: Graph, types: Sequence[TensorType]) -> Graph:
    """Give the graph with its inputs placed."""
    mapping = {v: Value(t, v.hint) for v, t in zip(graph.inputs, types, strict=True) if v.type is not t}
    return graph.on(mapping) if mapping else graph


def answer(request: PlanRequest) -> PlanReply:
    """Plan a request from clients that are not trusted: whatever goes wrong becomes a fault."""
    try:
        graph = _read(request.graph)
        types = [wire.tensor_type.placed(placed.sharding) for wire, placed in request.inputs]
        programs, outputs, reasons, seconds = make_plan(graph, types, request.workers, request.num_scalars, timed=True)
    except Exception as e:
        return PlanReply(request.plan, {}, (), fault_of(e, "protocol" if isinstance(e, ProtocolError) else "plan"))
    placed = tuple((WireType.of(t), WireSharding.of(t.sharding)) for t in outputs if t.sharding is not None)
    return PlanReply(request.plan, programs, placed, reasons=reasons, seconds=seconds)


def _read(data: bytes) -> Graph:
    """Rebuild a client's graph. Errors: ProtocolError for what is none; made-up bytes may raise anything on the way."""
    try:
        return decode_graph(GRAPHS.decode(data))
    except Exception as e:
        raise ProtocolError(f"malformed graph: {e or type(e).__name__}") from None


def request_of(
    plan: int, graph: bytes, inputs: Sequence[TensorType], workers: tuple[int, ...], scalars: int
) -> PlanRequest:
    placed = tuple((WireType.of(t), WireSharding.of(t.sharding)) for t in inputs if t.sharding is not None)
    return PlanRequest(plan, graph, placed, workers, scalars)


def outputs_of(reply: PlanReply) -> tuple[TensorType, ...]:
    return tuple(wire.tensor_type.placed(placed.sharding) for wire, placed in reply.outputs)


class PlannerProcess:
    """A planner process. Requests are answered in order; ``pending`` are those not answered yet."""

    def __init__(self) -> None:
        self.pending: dict[int, PlanRequest] = {}
        self._oldest: tuple[int, float] = -1, 0.0
        self._buffer = bytearray()
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from gt.runtime.planner import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env=child_environment({}),
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self._stdout.fileno(), False)
        self._unsent = bytearray()
        os.set_blocking(self._stdin.fileno(), False)

    def fileno(self) -> int:
        return self._stdout.fileno()

    def ask(self, request: PlanRequest) -> None:
        """Hand a request over; never blocks."""
        body = msgspec.msgpack.encode(request)
        self.pending[request.plan] = request
        self._unsent += _LENGTH.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Write what the pipe takes. Called again whenever the loop turns, as long as something is left."""
        while self._unsent:
            try:
                written = self._stdin.write(self._unsent[: 1 << 20])
            except OSError:
                return  # dead: read() says so
            if not written:
                return
            del self._unsent[:written]

    def look(self, now: float) -> None:
        """End the process if it has been at one plan for too long: ``read`` then fails that one and goes on with the others."""
        oldest = next(iter(self.pending), -1)
        if oldest != self._oldest[0]:
            self._oldest = oldest, now
        elif oldest >= 0 and now - self._oldest[1] > DEADLINE_S:
            self.process.kill()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def read(self) -> list[PlanReply]:
        """Give the replies that are there. A planner that died is started again; what it was asked fails."""
        replies: list[PlanReply] = []
        while True:
            chunk = self._stdout.read(1 << 20)
            if chunk is None:
                break
            if chunk == b"":
                return replies + self._restart()
            self._buffer += chunk
        while len(self._buffer) >= 4:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_REPLY:
                self.process.kill()
                return replies + self._restart()
            if len(self._buffer) < 4 + length:
                break
            reply = REPLIES.decode(bytes(self._buffer[4 : 4 + length]))
            del self._buffer[: 4 + length]
            self.pending.pop(reply.plan, None)
            replies.append(reply)
        return replies

    def _restart(self) -> list[PlanReply]:
        """Fail the request it died on, the oldest, and ask a new planner the others."""
        self.close()
        asked = list(self.pending.values())
        self.pending.clear()
        self._buffer.clear()
        self._start()
        for request in asked[1:]:
            self.ask(request)
        fault = Fault("plan", f"the planner process died, or took {DEADLINE_S:g} s, while planning this graph")
        return [PlanReply(request.plan, {}, (), fault) for request in asked[:1]]

    def close(self) -> None:
        """End the process."""
        self._stdin.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()


def _read_exactly(stream: BinaryIO | io.FileIO, count: int) -> bytes | None:
    out = bytearray()
    while len(out) < count:
        chunk = stream.read(count - len(out))
        if not chunk:
            return None
        out += chunk
    return bytes(out)


def main() -> None:
    """Answer requests until stdin closes. Ctrl-C in a terminal reaches this process too; the dispatcher's word counts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stdin, stdout = io.FileIO(0, closefd=False), sys.stdout.buffer
    garbage.postpone()
    sys.stdout = sys.stderr  # nothing but replies may go to the pipe
    while True:
        if not select.select([stdin], [], [], garbage.IDLE_S)[0]:
            garbage.collect_if_due()
        head = _read_exactly(stdin, 4)
        if head is None:
            return
        (length,) = _LENGTH.unpack(head)
        if length > 2 * MAX_HEADER or (body := _read_exactly(stdin, length)) is None:
            return
        reply = msgspec.msgpack.encode(answer(REQUESTS.decode(body)))
        stdout.write(_LENGTH.pack(len(reply)) + reply)
        stdout.flush()

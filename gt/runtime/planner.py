"""Makes plans, off the dispatcher's message loop.

Owns: ``make_plan`` (a graph and placed input types to programs), the planner process (``main``,
length-prefixed MessagePack on stdin and stdout), ``PlannerProcess``, its handle, and ``Planners``, as many as it takes. Must not know:
clients, epochs, sockets. Next: ``gt.passes.plan`` (the passes), ``dispatcher`` (who asks).
"""

from __future__ import annotations

import io
import os
import select
import signal
import struct
import subprocess
import sys
from collections import deque
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
DEADLINE_S = 600.0  # for one plan
SLOW_S = 0.5  # a plan that takes longer has no others wait behind it, as long as there are fewer than
MOST = 8  # processes
IDLE_S = 60.0  # after which those beyond the first are ended


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
    """A planner process. ``asked``: the request that it is at. ``since``: when ``look`` saw first that it is at this one, or at none."""

    def __init__(self) -> None:
        self.asked: PlanRequest | None = None
        self.since = 0.0
        self._seen: PlanRequest | None = None
        self._again: PlanRequest | None = None
        self._killed = False
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
        """Hand a request over, once the one before is answered; never blocks."""
        body = msgspec.msgpack.encode(request)
        self.asked = request
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
        """End the process if it has been at one plan for too long: ``read`` then fails it."""
        if self.asked is not self._seen or not self.since:
            self._seen, self.since = self.asked, now
        elif self.asked is not None and now - self.since > DEADLINE_S:
            self._kill()

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    def read(self) -> list[PlanReply]:
        """Give the reply if it is there. A planner that died is started again; what it was asked fails."""
        while True:
            chunk = self._stdout.read(1 << 20)
            if chunk is None:
                break
            if chunk == b"":
                return self._restart()
            self._buffer += chunk
        if len(self._buffer) < 4:
            return []
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_REPLY:
            self._kill()
            return self._restart()
        if len(self._buffer) < 4 + length:
            return []
        reply = REPLIES.decode(bytes(self._buffer[4:]))
        self._buffer.clear()
        self.asked = None
        return [reply]

    def _restart(self) -> list[PlanReply]:
        """Start a new planner. It is asked what the old one died on, once: what ends a second one, or was killed for its time, fails."""
        self.close()
        asked, self.asked = self.asked, None
        self._buffer.clear()
        self._start()
        if asked is not None and asked is not self._again and not self._killed:
            self._again = asked
            self.ask(asked)
            return []
        self._killed = False
        fault = Fault("plan", f"the planner process died twice, or took {DEADLINE_S:g} s, while planning this graph")
        return [] if asked is None else [PlanReply(asked.plan, {}, (), fault)]

    def _kill(self) -> None:
        self._killed = True
        self.process.kill()

    def end(self) -> None:
        """Kill the process, whatever it is at."""
        self.process.kill()
        self.close()

    def close(self) -> None:
        """End the process."""
        self._stdin.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()


class Planners:
    """Planner processes with a request each; further ones wait in order. While all are at slow plans, another process is started."""

    def __init__(self) -> None:
        self.processes = [PlannerProcess()]
        self.waiting: deque[PlanRequest] = deque()

    def filenos(self) -> list[int]:
        return [process.fileno() for process in self.processes]

    @property
    def has_unsent(self) -> bool:
        return any([process.has_unsent for process in self.processes])

    def ask(self, request: PlanRequest) -> None:
        self.waiting.append(request)
        self._hand_over()

    def _hand_over(self) -> None:
        for process in self.processes:
            if self.waiting and process.asked is None:
                process.ask(self.waiting.popleft())

    def flush(self) -> None:
        for process in self.processes:
            process.flush()

    def read(self) -> list[PlanReply]:
        """Give the replies that are there."""
        replies = [reply for process in self.processes for reply in process.read()]
        self._hand_over()
        return replies

    def look(self, now: float) -> None:
        """End who is at one plan for too long, or needed no more; start another for those who wait."""
        for process in self.processes:
            process.look(now)
        if self.waiting and len(self.processes) < MOST and all(now - process.since > SLOW_S for process in self.processes):
            self.processes.append(PlannerProcess())
            self._hand_over()
        for process in self.processes[1:]:
            if process.asked is None and process.since and now - process.since > IDLE_S:
                self.processes.remove(process)
                process.end()

    def close(self) -> None:
        for process in self.processes[1:]:
            process.end()
        self.processes[0].close()


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

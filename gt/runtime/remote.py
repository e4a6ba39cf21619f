"""The session on a server: calls go out on the caller's thread, what comes back is received on one io thread, or by a caller that waits.

Owns: ``RemoteSession``. Control goes to the dispatcher; uploads and results go between this process and the workers.
Calls never wait, but for ``run`` when the window is full. Must not know: plans, epochs. Next: ``joining`` (how it begins), ``turn`` (which
thread receives), ``reading`` (values on their way), ``wire``, ``dispatcher_state``.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import msgspec
import numpy as np
import zmq

from gt.ir.blame import users_line
from gt.ir.graph import Graph
from gt.ir.program import WireSharding, WireType, encode_graph
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar, TensorType
from gt.runtime import wire, wire_arrays
from gt.runtime.awake_clock import AwakeClock
from gt.runtime.buffer_reasons import BufferReasons
from gt.runtime.busy_process import BUSY_TIMEOUT_S, is_busy
from gt.runtime.errors import Fault, ProtocolError, SessionClosed
from gt.runtime.gate import Seldom
from gt.runtime.hello import UNKNOWN
from gt.runtime.interrupt import SHIELD, Attended, Window
from gt.runtime.joining import join
from gt.runtime.keys import Keys
from gt.runtime.log import open_client_log, setup_logging
from gt.runtime.numbering import MessagesLost
from gt.runtime.reading import Answerable, Copy, Reading
from gt.runtime.session import CallLock, own_threads
from gt.runtime.status import ServerStatus
from gt.runtime.status_request import StatusLink
from gt.runtime.tracer import Tracer
from gt.runtime.transport import Context, Socket, endpoint_of, receive, send
from gt.runtime.turn import Turn
from gt.runtime.wire import INLINE, TO_CLIENT, Message
from gt.runtime.worker_links import WorkerLinks

BEAT_S = 1.0
DISPATCHER_TIMEOUT_S = 4.0
ATTENDED = (wire.Answer, wire.Part, wire.Progress, wire.Settled, wire.Ping)  # what a caller that waits deals with itself


class Keeper(Protocol):
    """Whoever gets over the loss of workers for a session, under a lock that both share."""

    @property
    def lock(self) -> CallLock: ...

    def lost(self, fault: Fault) -> bool:
        """Hear of a loss. True: whatever is open is asked again elsewhere."""
        ...

    def gone(self, fault: Fault) -> bool:
        """Hear that the dispatcher is lost. True: whatever is open is answered elsewhere."""
        ...

    def ran_at(self, message: wire.RanAt) -> None:
        """Hear at which tiers a run was."""
        ...

    def failed(self, buffer: int) -> None:
        """Hear that a read was told why its buffer failed, before the reader is."""
        ...


class RemoteSession:
    """A ``Session`` with a gt server. Errors: ConnectionFailed within ``timeout`` seconds if there is none, or, as soon as that is
    known, if it wants another key. ``secret``: 16 bytes by which the next session can have this one's values back, should the
    dispatcher be lost.
    """

    def __init__(
        self, address: str, timeout: float = 5.0, keeper: Keeper | None = None, keys: Keys | None = None, priority: float = 1.0,
        secret: bytes = b"",
    ) -> None:  # fmt: skip
        self._pid = os.getpid()
        self.address, self._keeper = address, keeper
        self._logger = setup_logging("client")
        self.malformed = Seldom(self._logger)
        self._context: Context = zmq.Context()
        self._lock = keeper.lock if keeper is not None else CallLock()  # guards the up socket
        self._closed: Fault | None = None
        self.left: Fault | None = None  # why, for another: what this server still says of the session is no news
        self._let_go = False  # of what only close() gives back: a session may have ended before it
        self._readings: dict[int, Reading] = {}
        self._questions: dict[int, tuple[type[Message], Future[Any]]] = {}  # by request, with what answers it
        self._resuming: Future[wire.Returned] | None = None
        self._requests = 0
        self._runs_over = self._runs_sent = 0
        self._parent = ""  # the span that the dispatcher knows of
        self._poller = zmq.Poller()
        self._keys = None if endpoint_of(address).startswith("ipc://") else keys
        try:
            self._down, self._up, self._server, self._welcome = join(
                self._context, address, self._keys, wire.ClientHello(self._pid, priority=priority, secret=secret), timeout
            )
        except BaseException:
            self._context.destroy(0)
            raise
        self._window = Window(self._welcome.window)
        self._log = open_client_log(self._welcome.client, self._welcome.tag)
        self._links = WorkerLinks(self._context, self._keys, self._welcome.token, self._poller, self._log)
        self._tracer = Tracer(self._log)
        self._wake_read, self._wake_write = os.pipe()
        self._turn = Turn(self._is_asked, lambda: self._closed is not None)  # to look at the sockets, but for that of calls
        self._attending = zmq.Poller()
        for source in (self._down, self._links.results):
            self._attending.register(source, zmq.POLLIN)
        self._attended = False  # a caller has heard of the dispatcher
        self._awaited = self._answered = False  # somebody waits for a run to be over; somebody who waited has what he waited for
        self._handed: deque[Callable[[], None]] = deque()  # what a caller has received that is the io thread's business
        self._io_thread = threading.Thread(target=self._io, name="gt-client", daemon=True)
        self._present = threading.Event()
        self._io_thread.start()
        self._present.wait(timeout)

    # -- the Session interface

    def define(self, key: int, graph: Graph) -> None:
        self._call(wire.Define(key), msgspec.msgpack.encode(encode_graph(graph)))

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        packed = tuple(map(wire.pack_scalar, scalars))
        with SHIELD:
            self.admit()
            future: Future[np.ndarray] | None = None if reads < 0 else Attended(self.attend)
            self.submit(wire.Run(key, tuple(inputs), tuple(outputs), packed, tuple(frees), tuple(replaces)), reads, future)
            return future

    def submit(self, run: wire.Run, reads: int = -1, future: Answerable | None = None) -> None:
        """Send a run that has been admitted; with it ask for its output ``reads`` for a future."""
        if future is not None:
            asked = reads, self._number(Reading(run.outputs[reads], future))
            run = wire.Run(run.key, run.inputs, run.outputs, run.scalars, run.frees, run.replaces, run.tiers, asked)
        self._runs_sent += 1
        self._call(run, under=True, attended=future is not None)

    def admit(self) -> None:
        """Wait until one more run may be in flight."""
        if self._window.take():
            return
        with self._window.awaited():
            while not self._window.take():
                self._awaited = True
                if not self._attend(self._window.any):
                    self._window.wait()

    def admits(self, timeout_s: float) -> bool:
        """As ``admit``, for so long; say whether it may."""
        return self._within(timeout_s, self._window.take)

    def idle(self, timeout_s: float) -> bool:
        """Wait until no run is in flight, for so long; say whether that is so."""
        return self._within(timeout_s, self._window.none_flying)

    def _within(self, timeout_s: float, so: Callable[[], bool]) -> bool:
        """Wait for what the end of runs brings about, for so long; say whether it is so."""
        until = time.monotonic() + timeout_s
        while not (found := so()) and (left := until - time.monotonic()) > 0:
            self._turn.recall()
            self._window.wait(left)
        return found

    def await_window(self) -> None:
        self._window.await_one()

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        room = self._links.room(shape, dtype) if math.prod(shape) * dtype.itemsize > INLINE else None
        return np.empty(shape, dtype) if room is None else room

    def put(
        self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None, placed: WireSharding | None = None
    ) -> None:
        wire_type = WireType.of(type)
        wire_arrays.check_data(data.nbytes)
        if data.nbytes <= INLINE:
            self._call(wire.Put(buffer, wire_type, signal, True, placed, users_line()), wire_arrays.data_of(data))
        else:
            self._links.waiting[buffer] = (data.reshape(type.shape), wire_type)
            self._call(wire.Put(buffer, wire_type, signal, False, placed, users_line()))

    def lends(self, data: np.ndarray) -> bool:
        """Whether an array lies in memory that is to be filled again."""
        return self._links.pool.find(data) is not None

    def fetch(self, buffer: int) -> Future[np.ndarray]:
        future: Future[np.ndarray] = Attended(self.attend)
        self.fetch_for(buffer, future)
        return future

    def fetch_for(self, buffer: int, future: Answerable) -> None:
        """Read a buffer as ``fetch`` does, for a future that is there."""
        self._ask(Reading(buffer, future), under=True)

    def copy(self, buffer: int) -> Future[Copy | Fault]:
        """Read a buffer as ``fetch`` does, for a snapshot; why it failed is a result."""
        future: Future[Copy | Fault] = Future()
        self._ask(Reading(buffer, future, copies=True))
        return future

    def explain(self, buffer: int) -> Future[BufferReasons]:
        return self._question(wire.Explain(buffer, 0), wire.Explained)

    def rebalance(self, message: wire.Rebalance) -> Future[int]:
        """Move this session's values as a message says; give how many have moved."""
        return self._question(message, wire.Rebalanced)

    def _question(self, message: wire.Explain | wire.Rebalance, answer: type[Message]) -> Future[Any]:
        future: Future[Any] = Future()
        with SHIELD, self._lock:
            self._requests += 1
            request = self._requests
            self._questions[request] = answer, future
        self._call(msgspec.structs.replace(message, request=request))
        return future

    def free(self, buffers: Sequence[int]) -> None:
        if self._pid == os.getpid() and self._closed is None:
            self._call(wire.Free(tuple(buffers)))

    def reading(self) -> tuple[int, int]:
        """Say how many parts of the values being read have come, and of how many, as far as that is known."""
        under_way = [(len(r.parts), r.num_parts) for r in list(self._readings.values())]
        return sum(come for come, _ in under_way), sum(parts for _, parts in under_way)

    def status(self) -> ServerStatus:
        """Ask the server who is there and what is under way. Errors: ConnectionFailed."""
        link = StatusLink(self.address, self._keys)
        try:
            return link.ask()
        finally:
            link.close()

    def num_workers(self) -> int:
        return len(self._links.present)

    def workers(self) -> tuple[int, ...]:
        return tuple(self._links.present)

    @property
    def closed(self) -> Fault | None:
        return self._closed

    @property
    def generation(self) -> int:
        """Which dispatcher this is, of all that there have been at the address."""
        return self._welcome.generation

    def follows(self, before: RemoteSession) -> None:
        """Have the instruction log say that this is of a dispatcher which was started in the place of another."""
        self._log.tag = before._log.tag
        self._log.goes_on(self._log.who, self._welcome.tag)

    @property
    def lease_s(self) -> float:
        """How long the workers keep values if the dispatcher is lost; 0: not at all."""
        return self._welcome.lease_s

    @property
    def runs_over(self) -> int:
        """How many runs are over, in all."""
        return self._runs_over

    def resume(self, generation: int, buffers: Sequence[int], workers: Sequence[int]) -> Future[wire.Returned]:
        """Ask for the values of a session that has ended with its dispatcher; before anything else."""
        future: Future[wire.Returned] = Future()
        self._resuming = future
        self._call(wire.Resume(generation, tuple(buffers), tuple(workers)))
        return future

    def close(self) -> None:
        if self._pid != os.getpid() or self._let_go:
            return
        self._let_go = True
        if self._closed is None:
            with self._lock:
                self._tracer.end()  # nobody can ask for it later
                self._hand_over()
                send(self._up, wire.Bye())
            self._die(Fault("closed", "the session is closed"))
        if threading.current_thread() is not self._io_thread:
            self._io_thread.join(5.0)
        self._up.close(500)
        self._context.term()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)
        self._log.close()

    # -- outgoing

    def tell(self, message: Message, data: Any = None) -> None:
        """Send a message of a client's to the dispatcher. Errors: what ended the session."""
        self._call(message, data)

    def _call(self, message: Message, data: Any = None, under: bool = False, attended: bool = False) -> None:
        """Send a call; ``under``: with the span of the script's that this thread is in, which no other thread's comes between.
        ``attended``: whoever calls waits for its answer next.
        """
        if self._closed is not None:
            raise self._closed.exception()
        if self._pid != os.getpid():
            raise SessionClosed(
                "gt cannot be used in a forked child: start the child with spawn, or use gt only in the parent"
            )
        if self._log.on:
            self._log.write("call", type(message).__name__, 0 if data is None else len(data), "", message)
        with SHIELD, self._lock:
            if under and self._log.spans is not None and (parent := self._log.spans.parent()) != self._parent:
                self._log.write("call", "Parent")
                send(self._up, wire.Parent(parent))
                self._parent = parent
            send(self._up, message, data)
        if not attended and not isinstance(message, wire.Free | wire.Run):
            self._turn.recall()

    def _hand_over(self) -> None:
        """Send the replies to who traces, before anything that is sent later. Under the lock."""
        for reply in self._tracer.waiting():
            send(self._up, reply)

    def _number(self, reading: Reading) -> int:
        """Give the number of a request that is about to be sent."""
        with SHIELD, self._lock:
            self._requests += 1
            self._readings[self._requests] = reading
            return self._requests

    def _ask(self, reading: Reading, under: bool = False) -> None:
        self._call(wire.Fetch(reading.buffer, self._number(reading), reading.copies), under=under, attended=not reading.copies)

    # -- receiving while one waits

    def attend(self, future: Future[Any]) -> None:
        """Receive what comes on the caller's thread, until a future is done or a moment has passed, if the io thread stands aside."""
        self._attend(future.done)
        if self._runs_over < self._runs_sent:  # of which nobody may ask, and a log lets go once they are known to be over
            self._turn.recall()

    def _attend(self, done: Callable[[], bool]) -> bool:
        return self._turn.attend(done, self._hear_for)

    def _hear_for(self, seconds: float) -> bool:
        """Receive what comes within so long, on a caller's thread; no more, and say so, once something is the io thread's business."""
        if self._handed:
            return False
        for socket, _ in self._attending.poll(int(seconds * 1000) + 1):
            self._hear(socket, copy=socket is self._down)
        return True

    def _hear(self, socket: Socket, copy: bool) -> None:
        while not self._handed:
            try:
                got = receive(socket, TO_CLIENT, copy=copy)
                if got is None:
                    return
                self._attended = self._attended or socket is self._down
                if isinstance(got[1], ATTENDED):
                    self._got(got[1], got[2], -1)
                else:
                    self._handed.append(partial(self._take, socket, got[1], got[2], -1))
            except (MessagesLost, ProtocolError) as e:
                self._handed.append(partial(self._spoilt, e, socket, -1))
            except Exception as e:  # a fault of gt's own, of which that thread dies and ends the session
                self._handed.append(partial(_raise, e))

    def _is_asked(self) -> bool:
        """Whether something is to come, or to be done, for which nobody may come to receive it."""
        return bool(self._readings or self._questions or self._links.waiting or self._handed or self._resuming)

    # -- the io thread

    def _io(self) -> None:
        own_threads.add(threading.get_ident())
        for source in (self._down, self._server.monitor, self._links.results, self._wake_read):
            self._poller.register(source, zmq.POLLIN)
        awake, beat = AwakeClock(), time.monotonic()
        seen = awake()
        try:
            while self._closed is None:
                self._turn.stand_aside(beat + BEAT_S)
                with self._turn.lock:
                    while self._handed:
                        self._handed.popleft()()
                    ready = dict(self._poller.poll(int(BEAT_S * 500) if self._closed is None else 0))
                    now, heard = time.monotonic(), awake()
                    self._server.look()  # first: what came before the end is there to be received
                    if self._down in ready or self._server.over or self._attended:
                        seen, self._attended = heard, False
                        self._receive(self._down, copy=True)
                    if self._links.results in ready:
                        self._receive(self._links.results, copy=False)
                    for worker, socket in list(self._links.sockets.items()):
                        if socket in ready:
                            self._receive(socket, copy=True, worker=worker)
                    if self._closed is None and self._server.over:
                        self._lose_dispatcher("died")
                    elif heard - seen > DISPATCHER_TIMEOUT_S and (
                        heard - seen > BUSY_TIMEOUT_S or not is_busy(self._welcome.host, self._welcome.pid)
                    ):
                        self._lose_dispatcher("stopped answering")
                    if now - beat >= BEAT_S:
                        beat = now
                        if fault := self._links.unreachable(now):
                            self._die(fault)
                        self._give_signs_of_life()
                        self._links.tidy()
                    self._turn.offer(self._answered and not self._is_asked())
                    self._answered = False
        except Exception as e:  # a fault of gt's own: nothing more can be trusted
            self._die(Fault("protocol", f"the client's io thread failed: {type(e).__name__}: {e}"))
            raise
        finally:
            own_threads.discard(threading.get_ident())
            with self._turn.lock:
                self._server.close()
                self._down.close(500)
                self._links.close()

    def _give_signs_of_life(self) -> None:
        """Say on each connection that this process is there, so that whoever missed a message notices; hear what comes by ``up``."""
        send(self._down, wire.Beat())
        self._links.beat()
        with self._lock:
            if not self._let_go:
                send(self._up, wire.Beat())
                self._look_at_calls()

    def _look_at_calls(self) -> None:
        """Nothing comes by the connection for calls but the word that the server does not know it, as after a cut."""
        while True:
            try:
                got = receive(self._up, TO_CLIENT)
            except ProtocolError as e:
                self.malformed.drop(e, time.monotonic(), logging.WARNING)
                continue
            except MessagesLost as e:
                self._link_broken(-1, str(e))
                return
            if got is None:
                return
            if isinstance(got[1], wire.Refused | wire.Broken):
                self._link_broken(-1, got[1].reason)
                return

    def _receive(self, socket: Socket, copy: bool, worker: int = -1) -> None:
        while True:
            try:
                got = receive(socket, TO_CLIENT, copy=copy)
            except (MessagesLost, ProtocolError) as e:
                self._spoilt(e, socket, worker)
                continue
            if got is None:
                return
            self._take(socket, got[1], got[2], worker)

    def _take(self, socket: Socket, message: Message, data: Any, worker: int) -> None:
        try:
            self._got(message, data, worker)
        except (MessagesLost, ProtocolError) as e:
            self._spoilt(e, socket, worker)

    def _spoilt(self, error: MessagesLost | ProtocolError, socket: Socket, worker: int) -> None:
        if isinstance(error, MessagesLost):
            self._link_broken(worker, str(error), results=socket is self._links.results)
        else:
            self.malformed.drop(error, time.monotonic(), logging.WARNING)

    def _got(self, message: Message, data: Any, worker: int) -> None:
        match message:
            case wire.Part(request):
                self._part(request, message, data)
            case wire.Progress(runs):
                self._progress(runs)
            case wire.Answer(request, type_, value, runs):
                self._progress(runs)
                self._answer(request, type_, value)
            case wire.RanAt():
                if self._keeper is not None:
                    self._keeper.ran_at(message)
            case wire.Settled(request) | wire.Located(request):
                reading = self._readings.get(request)
                if reading is not None:
                    if isinstance(message, wire.Located):
                        reading.placed = message.placed
                    else:
                        reading.settled = True
                    self._resolve(request, reading)
            case wire.Failed(request, fault) | wire.PartFailed(request, fault):
                reading = self._readings.pop(request, None)
                if reading is not None:
                    self._failed(reading, fault)
                elif (asked := self._questions.pop(request, None)) is not None:
                    asked[1].set_exception(fault.exception())
            case wire.Explained(request, answer) | wire.Rebalanced(request, answer):
                asked = self._questions.get(request)
                if asked is not None and isinstance(message, asked[0]) and self._questions.pop(request, None) is not None:
                    asked[1].set_result(answer)
            case wire.Share() if worker in self._links.sockets:
                self._links.share(worker, message)
            case wire.Unread(upload) if worker in self._links.sockets:
                self._links.resend(worker, upload)
            case wire.Placed(buffer, tiles):
                self._links.upload(buffer, tiles)
            case wire.Returned() if self._resuming is not None:
                self._resuming.set_result(message)
                self._resuming = None
            case wire.Workers(workers, why):
                self._set_workers(workers, why)
            case wire.SetTrace() as asked:
                with self._lock:
                    if not self._let_go:
                        self._tracer.handle(asked)
                        self._hand_over()
            case wire.Broken() | wire.Refused() if self.left is not None:
                pass
            case wire.Broken(reason):
                self._link_broken(worker, reason)
            case wire.Refused(reason) if reason == UNKNOWN:  # as another dispatcher would say
                self._lose_dispatcher("does not know this session any more")
            case wire.Refused(reason):
                self._die(Fault("dispatcher_lost", f"the gt server at {self.address} ended the session: {reason}"))
            case _:
                pass

    def _progress(self, runs: int) -> None:
        if runs > self._runs_sent:
            raise ProtocolError(f"{runs} runs are said to be over, of {self._runs_sent}")
        if runs > self._runs_over:
            self._runs_over, more = runs, runs - self._runs_over
            self._window.give(more)
            self._answered, self._awaited = self._answered or self._awaited, False

    def _link_broken(self, worker: int, reason: str, results: bool = False) -> None:
        """Messages were lost on the way: begin anew where that can be, else end. What ``results`` come from can be asked for again."""
        if self.left is not None:
            return
        if worker < 0 and not results:
            self._server.look()
            if self._server.over:  # the server has died, and what says so is another
                self._lose_dispatcher("died")
                return
        peer = "the workers" if results else "the server" if worker < 0 else f"worker {worker}"
        text = f"the link to {peer} at {self.address} is broken: {reason}"
        self._logger.warning("%s", text)
        if self._keeper is not None and self._keeper.lost(broken := Fault("dispatcher_lost", text)):
            self.left = broken
            return
        if results:
            self._ask_again(Fault("dispatcher_lost", f"{text}; the value being read went with it"))
        else:
            self._die(Fault("dispatcher_lost", f"{text}; the session is over and its values are lost"))

    def _failed(self, reading: Reading, fault: Fault) -> None:
        if fault.kind in ("worker_lost", "unreachable") and self._keeper is not None and self._keeper.lost(fault):
            return
        if fault.kind == "worker_lost":
            # who is told of it finds the worker gone
            self._set_workers(tuple((w, *at) for w, at in self._links.present.items() if w != fault.worker))
        told = reading.retried if reading.retried is not None and fault.kind == "protocol" else fault
        if reading.copies:
            reading.future.set_result(told)
            return
        if self._keeper is not None:
            self._keeper.failed(reading.buffer)
        elif self._closed is None:
            self._call(wire.Recover(reading.buffer))
        reading.future.set_exception(told.exception())

    def _part(self, request: int, part: wire.Part, data: Any) -> None:
        reading, done = self._readings.get(request), None
        try:
            rows, done = self._links.rows(part, data)
            if reading is None:
                return
            reading.add(part, rows)
        except OSError as e:  # no descriptor left, for one
            self._logger.warning("a worker's shared memory cannot be opened, going on without: %s", e)
            self._links.share_no_more(part.region)
            if self._readings.pop(request, None) is not None and reading is not None:
                self._ask(reading.again())
            return
        except (ValueError, IndexError, MemoryError, ProtocolError) as e:
            if self._readings.pop(request, None) is not None and reading is not None:
                reading.future.set_exception(ProtocolError(f"a worker sent a part that does not fit: {e}"))
            return
        finally:
            if done is not None:
                done()
        if self._log.on:
            self._log.write("part", "fetch", rows.nbytes, f"request={request}")
        self._resolve(request, reading)

    def _answer(self, request: int, type_: WireType, value: bytes) -> None:
        reading = self._readings.get(request)
        if reading is None:
            return
        try:
            reading.fill(type_, value)
        except ProtocolError as e:
            if self._readings.pop(request, None) is not None:
                reading.future.set_exception(ProtocolError(f"a value came that does not fit: {e}"))
            return
        if self._log.on:
            self._log.write("part", "fetch", len(value), f"request={request}")
        self._resolve(request, reading)

    def _resolve(self, request: int, reading: Reading) -> None:
        if not reading.over or self._readings.pop(request, None) is None:  # the latter: the session ends at this moment
            return
        self._answered = self._answered or self._runs_over == self._runs_sent
        reading.resolve()

    def _set_workers(self, workers: tuple[tuple[int, str, str, str], ...], why: str = "") -> None:
        lost = self._links.set(workers)
        self._present.set()
        if lost:
            fault = Fault("worker_lost", f"{why or f'worker {lost[0]} is lost'}; the value being read went with it", lost[0])
            if self._keeper is None or not self._keeper.lost(fault):
                self._ask_again(fault)

    def _ask_again(self, fault: Fault) -> None:
        """A lost worker may have owed us parts: ask for what is still open once more, now that others may hold it."""
        with self._lock:
            waiting, self._readings = self._readings, {}
        for reading in waiting.values():
            self._ask(reading.again(fault))

    def _lose_dispatcher(self, how: str) -> None:
        then = "its values are lost"
        if self.lease_s:
            then = f"its workers keep values for {self.lease_s:g} s, in which it can be started again at the same address"
        fault = Fault("dispatcher_lost", f"the gt server at {self.address} {how}; {then}")
        self._die(fault, quietly=self._keeper is not None and self._keeper.gone(fault))

    def _die(self, fault: Fault, quietly: bool = False) -> None:
        """End the session with a cause: what waits gets it, unless that is to go ``quietly``, and so does every later call."""
        self._closed = self._closed or fault
        with self._lock:
            readings, self._readings = self._readings, {}
            questions, self._questions = self._questions, {}
            resuming, self._resuming = self._resuming, None
        waiting: list[Answerable] = []
        if not quietly:
            waiting += [*(r.future for r in readings.values()), *(future for _, future in questions.values())]
        waiting += [] if resuming is None else [resuming]
        for future in waiting:
            if not future.done():
                future.set_exception(self._closed.exception())
        self._window.give(1 << 20)
        self._turn.end()
        os.write(self._wake_write, b"x")


def _raise(error: Exception) -> None:
    raise error

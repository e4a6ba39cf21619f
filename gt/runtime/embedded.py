"""The session without a server: everything in this process, nothing copied between its parts.

Owns: ``EmbeddedSession``. The caller's thread steps the dispatcher's state machine under a lock; one worker thread
performs what it says. The engine (and torch) is made in that thread, so the client records meanwhile.
Must not know: sockets. Next: ``dispatcher_state``, ``runner``; ``remote`` is the same interface over ZMQ.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import numpy as np

from gt.ir.graph import Graph
from gt.ir.program import WireType
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar, TensorType
from gt.runtime import env, wire
from gt.runtime.buffer_reasons import BufferReasons
from gt.runtime.dispatcher_events import Command, Event, MakePlan, Planned, Received, Send
from gt.runtime.dispatcher_state import DispatcherState, Options
from gt.runtime.engine import Engine
from gt.runtime.errors import Fault, SessionClosed, fault_of
from gt.runtime.fair_queue import Limits
from gt.runtime.interrupt import SHIELD, Window
from gt.runtime.log import open_client_log, open_log, own_tag, setup_logging
from gt.runtime.planner import make_plan
from gt.runtime.runner import Runner, make_engine
from gt.runtime.session import CallLock, own_threads
from gt.runtime.status import ServerStatus, status_of
from gt.runtime.usage import Usage
from gt.runtime.wire import Message
from gt.runtime.wire_arrays import array_of

logger = logging.getLogger("gt.embedded")
CLIENT, WORKER = b"client", b"worker"
NEVER_S = 1e12
LOAD_S = 120.0  # torch may come from a slow disk
LEAVE_S = 2.0  # a run that nobody waits for any more may end by itself
OP_S = 8.0  # or after the op that it is at; a longer one is left


class EmbeddedSession:
    """A ``Session`` with one worker thread in this process."""

    def __init__(
        self, backend: str = "torch", device: str = "cpu", window: int = 8, make: Callable[[], Engine] | None = None
    ) -> None:
        self._pid = os.getpid()
        self._lock = CallLock()
        self._window = Window(window)
        self._inbox: SimpleQueue[tuple[Message, Any] | None] = SimpleQueue()
        self._futures: dict[int, Future[np.ndarray]] = {}
        self._reading: dict[int, int] = {}  # the buffer of each request under way
        self._explaining: dict[int, Future[BufferReasons]] = {}
        self._requests = itertools.count(1)  # drawn from by any thread
        self._closed: Fault | None = None
        self.usage: Usage | None = None  # of the worker, once it is there
        setup_logging("embedded")
        tag = own_tag(self._pid)
        self._log, self._dispatcher_log = open_client_log(0, tag), open_log("dispatcher", tag)
        patient = Options(
            window, sharing=Limits(alone_s=NEVER_S), client_lease_s=NEVER_S, worker_timeout_s=NEVER_S, no_workers_s=NEVER_S
        )
        self._state = DispatcherState(_Secrets(), patient)
        hello = wire.WorkerHello("", "", "", self._pid, device, backend, memory=env.WORKER_MEMORY.get() or 0)
        self._parent = ""  # the span that the dispatcher knows of
        self._feed(CLIENT, wire.ClientHello(self._pid))
        self._feed(WORKER, hello)
        self._state.workers[0].link = WORKER
        engine = make or (lambda: make_engine(backend, device))
        self._loaded = threading.Event()
        self._thread = threading.Thread(
            target=_work, args=(weakref.ref(self), self._inbox, engine, tag, self._loaded), name="gt-worker", daemon=True
        )
        self._thread.start()
        self._exit = _close_at_exit(weakref.ref(self), self._thread)

    # -- the Session interface

    def define(self, key: int, graph: Graph) -> None:
        self._feed(CLIENT, wire.Define(key), graph)

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        packed = tuple(map(wire.pack_scalar, scalars))
        with SHIELD:
            if not self._window.take():
                with self._window.awaited():
                    while not self._window.take():
                        self._window.wait()
            future, request = self._asked(outputs[reads]) if reads >= 0 else (None, -1)
            asked = None if future is None else (reads, request)
            run = wire.Run(key, tuple(inputs), tuple(outputs), packed, tuple(frees), tuple(replaces), reads=asked)
            self._feed(CLIENT, run, under=True)
        return future

    def await_window(self) -> None:
        self._window.await_one()

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return np.empty(shape, dtype)

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None) -> None:
        self._feed(CLIENT, wire.Put(buffer, WireType.of(type), signal, True), data)

    def fetch(self, buffer: int) -> Future[np.ndarray]:
        future, request = self._asked(buffer)
        self._feed(CLIENT, wire.Fetch(buffer, request), under=True)
        return future

    def _asked(self, buffer: int) -> tuple[Future[np.ndarray], int]:
        """Give a future for the value of a buffer, and the number of the request for it that is about to be made."""
        future: Future[np.ndarray] = Future()
        request = next(self._requests)
        self._futures[request], self._reading[request] = future, buffer
        return future, request

    def explain(self, buffer: int) -> Future[BufferReasons]:
        future: Future[BufferReasons] = Future()
        request = next(self._requests)
        self._explaining[request] = future
        if self.usage is not None:
            self._feed(WORKER, wire.Used(self.usage.now(), self.usage.changed()))
        self._feed(CLIENT, wire.Explain(buffer, request))
        return future

    def free(self, buffers: Sequence[int]) -> None:
        if self._pid == os.getpid() and self._closed is None:
            self._feed(CLIENT, wire.Free(tuple(buffers)))

    def status(self) -> ServerStatus:
        """Say who is here and what is under way, as a server does."""
        if self.usage is not None:
            self._feed(WORKER, wire.Used(self.usage.now(), self.usage.changed()))
        with self._lock:
            return status_of(self._state)

    def num_workers(self) -> int:
        return 1

    def workers(self) -> tuple[int, ...]:
        return (0,)

    @property
    def closed(self) -> Fault | None:
        return self._closed

    def close(self) -> None:
        if self._closed is not None or self._pid != os.getpid():
            return
        self._die(Fault("closed", "the session is closed"))
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._loaded.wait(LOAD_S)  # half of torch would stay loaded, which no other session could use
            self._thread.join(LEAVE_S)
            if self._thread.is_alive() and self._loaded.is_set():  # in a long run: Python cannot end while a thread of it is in an op
                _break_off(self._thread)
                self._thread.join(OP_S)
        if not self._thread.is_alive():
            atexit.unregister(self._exit)
        self._log.close()
        self._dispatcher_log.close()

    # -- what holds it together

    def _feed(self, peer: bytes, message: Message, data: Any = None, under: bool = False) -> None:
        """Step the state machine and do what it says. Futures are resolved outside the lock: they may run callbacks. ``under``: with the
        span of the script's that this thread is in, which no other thread's comes between.
        """
        if self._closed is not None:
            raise self._closed.exception()
        if self._pid != os.getpid():
            raise SessionClosed(
                "gt cannot be used in a forked child: start the child with spawn, or use gt only in the parent"
            )
        if self._log.on or self._dispatcher_log.on:
            name, nbytes = type(message).__name__, getattr(data, "nbytes", 0)
            if peer == CLIENT:
                self._log.write("call", name, nbytes, "", message)
            self._dispatcher_log.write("recv", name, nbytes, f"from={peer.decode()}0", message)
        to_client: list[Message] = []
        with SHIELD:
            with self._lock:
                events: list[Event] = [Received(time.monotonic(), peer, message, data)]
                if under and self._log.spans is not None and (parent := self._log.spans.parent()) != self._parent:
                    self._log.write("call", "Parent")
                    self._parent = parent
                    events.insert(0, Received(time.monotonic(), peer, wire.Parent(parent), None))
                for event in events:
                    for command in self._state.handle(event):
                        self._perform(command, events, to_client)
            for reply in to_client:
                self._answer(reply)

    def _perform(self, command: Command, events: list[Event], to_client: list[Message]) -> None:
        match command:
            case Send(peer, message, data):
                if peer == WORKER:
                    self._inbox.put((message, data))
                else:
                    to_client.append(message)
            case MakePlan():
                events.append(self._plan(command))
            case _:
                raise AssertionError(f"the embedded dispatcher cannot do {command}")

    def _plan(self, command: MakePlan) -> Planned:
        now = time.monotonic()
        try:
            programs, outputs, reasons, _ = make_plan(command.graph, command.inputs, command.workers, command.num_scalars)
        except Exception as e:
            return Planned(now, command.plan, fault=fault_of(e, "plan"))
        seconds = time.monotonic() - now
        logger.info("plan %d (%s) for 1 worker in %.3f s", command.plan, command.graph.name, seconds)
        if self._dispatcher_log.on:
            self._dispatcher_log.write("plan", command.graph.name, 0, f"plan={command.plan} seconds={seconds:.6f}")
        return Planned(now, command.plan, programs, outputs, reasons=reasons)

    def _answer(self, message: Message) -> None:
        match message:
            case wire.Progress():  # of one run; calls and the worker's thread hear of it
                self._window.give()
            case wire.Failed(request, fault) | wire.PartFailed(request, fault):
                future: Future[Any] | None = self._futures.pop(request, None) or self._explaining.pop(request, None)
                buffer = self._reading.pop(request, None)
                if buffer is not None and self._closed is None:
                    self._feed(CLIENT, wire.Recover(buffer))
                if future is not None:
                    future.set_exception(fault.exception())
            case wire.Answer(request, type_, value):
                self._resolve(request, type_, array_of(type_, bytearray(value)))
            case wire.Explained(request, explanation):
                self._explaining.pop(request).set_result(explanation)
            case _:
                pass

    def _die(self, fault: Fault) -> None:
        """End the session with a cause: what waits gets it, and so does every later call."""
        self._closed = self._closed or fault
        waiting: tuple[dict[int, Any], ...] = (self._futures, self._explaining)
        for futures in waiting:
            while futures:
                _, future = futures.popitem()
                if not future.done():
                    future.set_exception(fault.exception())
        self._window.give(1 << 20)

    # -- what the worker thread's runner sends

    def reply(self, message: Message) -> None:
        if self._closed is None:
            self._feed(WORKER, message)

    def ship(self, token: bytes, message: wire.Part | wire.PartFailed, array: np.ndarray | None) -> None:
        if isinstance(message, wire.PartFailed):
            self._answer(message)
            return
        if array is not None:
            self._resolve(message.request, message.type, array)

    def _resolve(self, request: int, type_: WireType, array: np.ndarray) -> None:
        future = self._futures.pop(request, None)
        self._reading.pop(request, None)
        if self._log.on:
            self._log.write("part", "fetch", array.nbytes, f"request={request}")
        if future is not None:
            future.set_result(array.reshape(type_.shape))


class _Outlet:
    """The runner's way to its session, which it must not keep alive."""

    def __init__(self, session: weakref.ref[EmbeddedSession]) -> None:
        self.session = session

    @property
    def closed(self) -> bool:
        """Whether nobody waits any more: what is queued need not run."""
        session = self.session()
        return session is None or session.closed is not None

    def reply(self, message: Message) -> None:
        session = self.session()
        if session is not None:
            session.reply(message)

    def room(self, token: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        return None

    def ship(self, token: bytes, message: wire.Part | wire.PartFailed, array: np.ndarray | None) -> None:
        session = self.session()
        if session is not None:
            session.ship(token, message, array)


class _Secrets:
    """Tokens of peers inside one process: distinct, not secret."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> bytes:
        self.count += 1
        return self.count.to_bytes(16, "little")


def _work(
    session: weakref.ref[EmbeddedSession], inbox: SimpleQueue[tuple[Message, Any] | None], make: Callable[[], Engine], tag: str,
    loaded: threading.Event,
) -> None:  # fmt: skip
    """The worker thread: make the engine, then one message after the other."""
    own_threads.add(threading.get_ident())
    try:
        log = open_log("worker0", tag)
        outlet = _Outlet(session)
        runner = Runner(0, make(), outlet, log=log)
        alive = session()
        if alive is not None:
            alive.usage = runner.usage
        del alive
    except Exception as e:
        fault = fault_of(e)
        alive = session()
        if alive is not None:
            alive._die(Fault(fault.kind, f"the engine could not start: {fault.message}"))
        own_threads.discard(threading.get_ident())
        return
    finally:
        loaded.set()
    get, handle = inbox.get, runner.handle
    try:
        while (item := get()) is not None:
            if outlet.closed or not handle(*item):
                return
            del item
    except Exception as e:  # a fault of gt's own: nothing more can be trusted
        alive = session()
        if alive is not None:
            alive._die(fault_of(e))
        raise
    finally:
        own_threads.discard(threading.get_ident())
        runner.close()
        log.close()


def _break_off(thread: threading.Thread) -> None:
    """Have a thread end after the op that it is in."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


def _close_at_exit(session: weakref.ref[EmbeddedSession], thread: threading.Thread) -> Callable[[], None]:
    def close() -> None:
        try:
            alive = session()
            if alive is not None:
                alive.close()
        finally:
            if thread.is_alive():
                _leave_in_op()

    atexit.register(close)
    return close


def _leave_in_op() -> None:
    """Let Python end while a thread is in an op: one that comes back from it meanwhile waits for the process's end. Python would unwind it
    through C++, which ends the process with SIGABRT, whatever its exit code.
    """
    with suppress(OSError, AttributeError):  # another C++ library
        ctypes.CDLL("libstdc++.so.6")["_ZSt13set_terminatePFvvE"](ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p))

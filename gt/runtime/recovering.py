"""The session at a server as a script sees it: it can outlive the workers that its values are on, and the dispatcher.

Owns: ``RecoveringSession``. It passes calls on to a ``RemoteSession``, its *link*. With recovery on it keeps a ``RunLog``; when a worker
is lost it holds up its callers, joins the server anew under another identity (so that nothing left of the old one can touch the new),
and replays snapshot and log on the workers there are. Futures already handed out are answered by the replay. Without a log, a lost
dispatcher is told to whoever waits; the session is *away* until there is another one at the address, gets back by its secret what the
workers have kept, and sends again what was in flight. Must not know: plans, epochs, tensors.
Next: ``run_log`` and ``in_flight`` (what is kept), ``replaying`` (how it is sent again), ``seats`` (who stands for whom), ``remote`` (the link).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import zmq

from gt.ir.blame import users_line
from gt.ir.graph import Graph
from gt.ir.program import encode_graph
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar, TensorType
from gt.runtime import wire
from gt.runtime.buffer_reasons import BufferReasons
from gt.runtime.errors import ConnectionRefused, Fault, GtError, SessionClosed, WorkerLost
from gt.runtime.in_flight import InFlight
from gt.runtime.interrupt import SHIELD, Attended
from gt.runtime.reading import Copy
from gt.runtime.recovery import Recovered, Recovery, Snapshots
from gt.runtime.remote import Keeper, RemoteSession
from gt.runtime.replaying import Replay, define
from gt.runtime.run_log import Asked, Kept, Put, RunLog
from gt.runtime.seats import Seats
from gt.runtime.session import CallLock
from gt.runtime.status import ServerStatus

log = logging.getLogger("gt.client")
POLL_S = 0.02
COVER_S = 0.002  # between two looks at whether the first snapshot is here
CLOSE_S = 10.0
AWAY_S = 4.0  # that a call waits for another dispatcher
REJOIN_S = 30.0  # in which a dispatcher says what is there: it waits for workers for less
RETRY_S = 0.2
JOIN_S = 2.0  # in which a dispatcher answers that is there
STARTS_S = 60.0  # in which a replacement that this process starts has joined
JOINS_S = 10.0  # in which one at a server that others run has


class NotRecovered(GtError):
    """One try to recover has failed."""


@dataclass(frozen=True)
class Ear:
    """What one link tells its session. The session listens to the latest only."""

    session: RecoveringSession
    number: int

    @property
    def lock(self) -> CallLock:
        return self.session.lock

    def lost(self, fault: Fault) -> bool:
        return self.session.hear_loss(self.number, fault)

    def gone(self, fault: Fault) -> bool:
        return self.session.hear_dispatcher_lost(self.number, fault)

    def ran_at(self, message: wire.RanAt) -> None:
        self.session.hear_tiers(self.number, message)

    def failed(self, buffer: int) -> None:
        self.session.hear_failure(self.number, buffer)


class Ticket(NamedTuple):
    """A read as a link knows it, ``number`` of its session's: whoever waits for it has the answer of the latest link that it was asked."""

    session: RecoveringSession
    number: int
    ticket: int

    def done(self) -> bool:
        return not self.session.awaits(self.number, self.ticket)

    def set_result(self, result: np.ndarray) -> None:
        if (future := self.session.answered(self.number, self.ticket)) is not None:
            future.set_result(result)

    def set_exception(self, error: BaseException) -> None:
        if (future := self.session.answered(self.number, self.ticket)) is not None:
            future.set_exception(error)


class Question:
    """What a link answers once: ``ask`` says how it is asked. ``future``: whoever waits has the answer of the latest link."""

    def __init__(self, ask: Callable[[RemoteSession], Future[Any]]) -> None:
        self.ask = ask
        self.future: Future[Any] = Future()


class Connect(Protocol):
    """Makes a link that is known by a secret."""

    def __call__(self, *, keeper: Keeper, secret: bytes, timeout: float = ...) -> RemoteSession: ...


class RecoveringSession:
    """A ``Session`` with a gt server, to which ``connect`` makes a link, at first and after each loss. Errors: those of ``connect``."""

    def __init__(self, connect: Connect) -> None:
        self._pid = os.getpid()
        self.lock = CallLock()  # guards all that follows, and is the link's own
        self._connect = connect
        self._graphs: dict[int, bytes] = {}
        self._defined: set[int] = set()  # graphs that the link has been told of
        self._alive: set[int] = set()  # while there is no log
        self._log: RunLog | None = None
        self._options = Recovery()
        self._asked: dict[int, tuple[Future[np.ndarray], int, str]] = {}  # with the user's line
        self._questions: dict[int, Question] = {}  # what else has no answer yet
        self._chosen: wire.Rebalance | None = None  # the last choice of workers: where the values to come go too
        self._tickets = 0
        self._open = threading.Event()  # callers may go on
        self._open.set()
        self._hurt: Fault | None = None  # a loss that is not healed yet
        self._closing = False
        self._failed: Fault | None = None
        self._thread: threading.Thread | None = None
        self.recoveries: list[Recovered] = []
        self._replaying: Replay | None = None  # the recovery's that is under way, or was last
        self.snapshots = Snapshots()
        self.replacing: Callable[[], bool] = lambda: False  # whether replacements are on their way for sure
        self._seats = Seats()
        self._number = 0  # of the link: there may have been others
        self._secret = os.urandom(16)
        self._away: Fault | None = None  # the dispatcher is lost, and may be started again
        self._dispatcher_lost: Fault | None = None  # while a recovery from that is under way
        self._lost_at = 0.0
        self._flying = InFlight()
        self._tiers: dict[int, wire.Tiers] = {}  # by graph, at which the latest runs were, by the names of workers
        self._behind: set[int] = set()  # graphs of which no run has been at these since the workers were lost
        self.returns = 0  # how often another dispatcher has taken the session in
        self._joined = threading.Event()  # the first link is known here: its dispatcher may be lost before
        self._link = connect(keeper=Ear(self, 0), secret=self._secret)  # without the lock, which the link's own thread takes
        self._joined.set()
        self._served: tuple[int, tuple[int, ...]] = (self._link.generation, ())  # by which dispatcher, with which workers, values were made

    # -- the Session interface

    def define(self, key: int, graph: Graph) -> None:
        data = msgspec.msgpack.encode(encode_graph(graph))
        self._send(lambda link: self._graphs.__setitem__(key, data))

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        packed = tuple(map(wire.pack_scalar, scalars))
        message = wire.Run(key, tuple(inputs), tuple(outputs), packed, tuple(frees), tuple(replaces))
        with SHIELD:
            while True:
                link = self._current()
                link.admit()
                with self.lock:
                    if link is self._link and self._open.is_set():
                        self._note(message, link)
                        future = self._asks(message.outputs[reads], users_line()) if reads >= 0 else None
                        self._run(link, message, reads)
                        return future

    def await_window(self) -> None:
        self._current().await_window()

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return self._current().room(shape, dtype)

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None) -> None:
        def send(link: RemoteSession) -> None:
            self._seat(link)
            if self._log is None:
                self._alive.add(buffer)
            else:
                kept = np.array(data) if link.lends(data) else data
                self._log.put(buffer, Kept(type, kept, signal))
            if link.lease_s:
                self._flying.add(Put(buffer, Kept(type, data, signal)))
            link.put(buffer, type, data, self._seats.signal(signal))
            self._snapshot_if_due()

        self._send(send)

    def fetch(self, buffer: int) -> Future[np.ndarray]:
        where = users_line()
        made: list[Future[np.ndarray]] = []

        def send(link: RemoteSession) -> None:
            made.append(self._asks(buffer, where))
            self._ask(link, self._tickets)

        self._send(send)
        return made[-1]

    def _asks(self, buffer: int, where: str) -> Future[np.ndarray]:
        """Note a read, with the user's line. The ticket is the latest."""
        future: Future[np.ndarray] = Attended(self._attend)
        self._tickets += 1
        self._asked[self._tickets] = future, buffer, where
        if self._log is not None:
            self._log.ask(self._tickets, buffer)
        return future

    def explain(self, buffer: int) -> Future[BufferReasons]:
        return self._question(lambda link: link.explain(buffer))

    def rebalance(
        self, workers: tuple[int, ...], named: tuple[tuple[int, ...], ...], meshes: tuple[tuple[tuple[str, int], ...], ...]
    ) -> Future[int]:
        """Move values to these workers, by the script's names of them, all if none; give how many have moved."""
        message = wire.Rebalance(0, workers, named, meshes)

        def choose(link: RemoteSession) -> None:
            self._seat(link)
            self._chosen = message
            if self._log is not None:
                self._log.rebalance(message)

        return self._question(lambda link: link.rebalance(self._seats.rebalance(message)), choose)

    def supervise(self, restarts: int) -> None:
        """Have whoever launched this script's workers replace those that die, so many times on each node."""
        self._send(lambda link: link.tell(wire.Supervise(restarts)))

    def free(self, buffers: Sequence[int]) -> None:
        if self._pid == os.getpid() and self.closed is None:
            message = wire.Free(tuple(buffers))

            def send(link: RemoteSession) -> None:
                self._note(message, link)
                link.tell(message)

            with SHIELD, self.lock:
                if self._away is not None:  # who lets go of values waits for nobody
                    self._note(message, self._link)
                    return
            self._send(send)

    @property
    def recovering(self) -> bool:
        """Whether what lost workers held is being made again."""
        return not self._open.is_set() and self._failed is None

    @property
    def replayed(self) -> tuple[int, int]:
        """Say how many of the runs that a recovery makes again are over, and how many there are; of values sent where there are no runs."""
        return (0, 0) if self._replaying is None else self._replaying.progress

    def reading(self) -> tuple[int, int]:
        return self._current().reading()

    def status(self) -> ServerStatus:
        return self._current().status()

    def num_workers(self) -> int:
        return len(self.workers())

    def workers(self) -> tuple[int, ...]:
        return self._seats.named(self._link.workers())

    @property
    def address(self) -> str:
        """The server's, as it was given."""
        return self._link.address

    @property
    def closed(self) -> Fault | None:
        return self._failed or (self._link.closed if self._open.is_set() or self._closing else None)

    def close(self) -> None:
        if self._pid != os.getpid():
            return
        with self.lock:
            self._closing = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)  # first: it may be closing one link or making another, and sockets are no two threads' at once
        self._link.close()

    # -- passing on

    def _current(self) -> RemoteSession:
        """Give the link, once callers may go on. A recovery ends, one way or the other."""
        if self._pid != os.getpid():  # where the lock may be held for ever
            raise SessionClosed("gt cannot be used in a forked child: start the child with spawn, or use gt only in the parent")
        until = time.monotonic() + AWAY_S
        while not self._open.is_set():
            with SHIELD.lifted():
                self._open.wait(POLL_S)
            if (away := self._away) is not None and time.monotonic() > until:
                raise _at(away, users_line()).exception()
        if self._failed is not None:
            raise self._failed.exception()
        return self._link

    def _send(self, send: Callable[[RemoteSession], None]) -> None:
        """Do what notes a call and passes it on, as one step that no recovery comes between."""
        with SHIELD:
            while True:
                link = self._current()
                with self.lock:
                    if link is self._link and self._open.is_set():
                        send(link)
                        return

    def _note(self, message: wire.Run | wire.Free, link: RemoteSession) -> None:
        if link.lease_s:
            self._flying.heard(link.runs_over)
            self._flying.add(message)
        if self._log is not None:
            self._log.run(message) if isinstance(message, wire.Run) else self._log.free(message)
        elif isinstance(message, wire.Run):
            self._alive.update(message.outputs)
            self._alive.difference_update(message.frees)
        else:
            self._alive.difference_update(message.buffers)

    @property
    def _wanted(self) -> set[int]:
        """Buffers that the script may still name."""
        return self._alive if self._log is None else self._log.alive

    def _run(self, link: RemoteSession, message: wire.Run, reads: int) -> None:
        self._seat(link)
        define(link, message.key, self._seats, self._graphs, self._defined)
        if message.key in self._behind:
            self._behind.discard(message.key)
            message = self._seats.run(message, self._tiers.get(message.key, ()))
        link.submit(message, reads, Ticket(self, self._number, self._tickets) if reads >= 0 else None)
        self._snapshot_if_due()

    def _seat(self, link: RemoteSession) -> None:
        """Workers get the names by which the script knows them at the first value, or when they come."""
        present = link.workers()
        if len(present) > len(self._seats.workers):
            self._seats = self._seats.joined(present)

    def _ask(self, link: RemoteSession, ticket: int) -> None:
        link.fetch_for(self._asked[ticket][1], Ticket(self, self._number, ticket))

    def _attend(self, future: Future[Any]) -> None:
        if self._open.is_set():  # else it is known first that the session has recovered, then what was read
            self._link.attend(future)

    def awaits(self, number: int, ticket: int) -> bool:
        """Whether a read waits for that link's answer."""
        return number == self._number and ticket in self._asked

    def answered(self, number: int, ticket: int) -> Future[np.ndarray] | None:
        """Hear that a link answers a read; give who waits for it, none where it is asked again elsewhere."""
        with self.lock:
            if not self.awaits(number, ticket):
                return None
            future, *_ = self._asked.pop(ticket)
            if self._log is not None:
                self._log.answered(ticket)
                self._finish_snapshot()
        return future

    def _question(self, ask: Callable[[RemoteSession], Future[Any]], before: Callable[[RemoteSession], None] = lambda _: None) -> Future[Any]:
        """Ask a link what it answers once, and after a loss another; ``before`` the first."""
        question = Question(ask)

        def send(link: RemoteSession) -> None:
            before(link)
            self._tickets += 1
            self._questions[self._tickets] = question
            self._put_question(link, self._tickets)

        self._send(send)
        return question.future

    def _put_question(self, link: RemoteSession, ticket: int) -> None:
        self._questions[ticket].ask(link).add_done_callback(partial(self._told, self._number, ticket))

    def _told(self, number: int, ticket: int, got: Future[Any]) -> None:
        with self.lock:
            healing = self._log is not None and self._log.whole and isinstance(got.exception(), WorkerLost)
            if number != self._number or ticket not in self._questions or healing:
                return
            future = self._questions.pop(ticket).future
        if (error := got.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(got.result())

    # -- what the link says, on its own thread

    def hear_loss(self, number: int, fault: Fault) -> bool:
        """Hear that a worker is lost. True: all that is open is asked again once that is healed."""
        with self.lock:
            if number != self._number:
                return True  # of no interest any more
            if self._log is None or not self._log.whole or self._closing or self._failed is not None:
                return False
            self._hurt = self._hurt or fault
            if self._open.is_set():
                self._open.clear()
                self._thread = threading.Thread(target=self._recover, name="gt-recovery", daemon=True)
                self._thread.start()
            return True

    def hear_dispatcher_lost(self, number: int, fault: Fault) -> bool:
        """Hear that the dispatcher is lost. True: all that is open is answered here, later by a replay, or now with the cause."""
        self._joined.wait()
        with self.lock:
            if number != self._number:
                return True
            healing = self._log is not None and self._log.whole and self._away is None
            if self._closing or self._failed is not None:
                return False
            if not self._open.is_set():  # what is under way finds its link closed, and tries again
                if healing:
                    self._hurt = self._hurt or fault
                return healing
            if not self._link.lease_s:
                return False
            self._served = self._link.generation, self._link.workers()
            self._open.clear()
            if healing:
                self._hurt = self._dispatcher_lost = fault
                self._lost_at = time.monotonic()
                self._thread = threading.Thread(target=self._recover, name="gt-recovery", daemon=True)
            else:
                self._away = fault
                self._thread = threading.Thread(target=self._return, args=(fault,), name="gt-return", daemon=True)
            self._thread.start()
            return True

    def hear_tiers(self, number: int, message: wire.RanAt) -> None:
        """Hear at which tiers a run was, and those of its graph after it."""
        with self.lock:
            if number != self._number:
                return
            message = self._seats.ran_at(message)
            self._tiers[message.key] = message.tiers
            if self._log is not None and self._open.is_set():  # else it is of a run that is made again, as the log says
                self._log.ran_at(message)

    def hear_failure(self, number: int, buffer: int) -> None:
        """Hear that a read was told why its buffer failed: from here on what that was to replace is there again."""
        with self.lock:
            if number == self._number and self._link.closed is None:
                message = wire.Recover(buffer)
                if self._log is not None:
                    self._log.recover(message)
                self._link.tell(message)

    # -- snapshots

    def recover(self, options: Recovery | None) -> None:
        """Get over losses from here on, as far as snapshots reach: the first begins now. None: do not."""
        with SHIELD, self.lock:
            if options is None:
                if self._log is not None:
                    self._alive, self._log = self._log.alive, None
                return
            self._options = options
            if self._log is not None or self._failed is not None or self._link.closed is not None:
                return
            if not self._seats.changed:  # who was lost before is not missed
                present = tuple(sorted(self._link.workers()))
                self._seats = Seats(present, present)
            self._log = RunLog(self._alive, time.monotonic())
            self._log.tiers = dict(self._tiers)
            for ticket, (_, buffer, _) in self._asked.items():
                self._log.ask(ticket, buffer)
            if self._alive:
                self._take_snapshot(self._log)

    def await_cover(self) -> None:
        """Wait until the first snapshot is here, without which a loss is an error, as long as nothing is lost meanwhile."""
        log, link = self._log, self._link
        while log is not None and not log.whole and log is self._log and link is self._link and link.closed is None and self._failed is None:
            time.sleep(COVER_S)

    def _snapshot_if_due(self) -> None:
        if self._log is not None and self._log.due(time.monotonic(), self._options):
            self._take_snapshot(self._log)

    def _take_snapshot(self, log: RunLog) -> None:
        for buffer in log.begin(time.monotonic()):
            self._link.copy(buffer).add_done_callback(partial(self._copied, self._number, log, buffer))
        self._finish_snapshot()

    def _copied(self, number: int, log: RunLog, buffer: int, got: Future[Copy | Fault]) -> None:
        with self.lock:
            if number != self._number or log is not self._log or got.exception() is not None or log.snapshot is None:
                return
            copy = got.result()
            if isinstance(copy, Fault):
                log.arrived(buffer, copy)
            else:
                placed = self._seats.remembered(copy.placed)
                log.arrived(buffer, Kept(copy.type.tensor_type, copy.array, placed=placed))
            self._finish_snapshot()

    def _finish_snapshot(self) -> None:
        done = None if self._log is None else self._log.complete()
        if done is not None:
            taken, nbytes, seconds = self.snapshots
            read = sum(kept.nbytes for kept in done.got.values() if isinstance(kept, Kept))
            self.snapshots = Snapshots(taken + 1, nbytes + read, seconds + time.monotonic() - done.began)

    # -- the next dispatcher

    def wait_for_return(self, timeout_s: float) -> bool:
        """Wait until the session is not away. False: nothing was lost, or all is. Errors: DispatcherLost if there is no other dispatcher
        in that time.
        """
        until = time.monotonic() + timeout_s
        while (away := self._away) is not None:
            if time.monotonic() > until:
                raise away.exception()
            time.sleep(POLL_S)
        return self.closed is None and self.returns > 0

    def _return(self, fault: Fault) -> None:
        """Tell whoever waits; then wait for another dispatcher until the workers' lease is over."""
        self._tell(fault)
        self._link.close()
        until, tried = time.monotonic() + self._link.lease_s, ""
        while not self._closing and time.monotonic() < until:
            try:
                self._rejoin()
                return
            except (GtError, OSError, zmq.ZMQError, TimeoutError) as e:
                tried = f" ({e})"
                if isinstance(e, ConnectionRefused):  # whoever waits does not wait for a server
                    with self.lock:
                        self._away = msgspec.structs.replace(fault, message=f"{fault.message}. The one that is there: {e}")
            except Exception as e:  # a fault of gt's own: nobody may wait for what does not come
                self._give_up(Fault("protocol", f"{fault.message}, and coming back failed: {type(e).__name__}: {e}"))
                raise
            time.sleep(RETRY_S)
        text = fault.message.partition(";")[0]
        self._give_up(Fault("dispatcher_lost", f"{text}, and none has come in its place in that time{tried}; its values are lost"))

    def _tell(self, fault: Fault) -> None:
        with self.lock:
            if self._log is not None:
                self._log.abandon()
                for ticket in self._asked:
                    self._log.answered(ticket)
            open_ = self._take_open()
        for future, where in open_:
            future.set_exception((_at(fault, where) if where else fault).exception())

    def _take_open(self) -> list[tuple[Future[Any], str]]:
        """Give what has no answer yet, reads with their lines; none is waited for here any more. Under the lock."""
        found: list[tuple[Future[Any], str]] = [(future, where) for future, _, where in self._asked.values()]
        found += [(question.future, "") for question in self._questions.values()]
        self._asked.clear()
        self._questions.clear()
        return found

    def _rejoin(self) -> None:
        """Join another dispatcher, learn what is there, and send again what was in flight. Errors: what the link raises; NotRecovered."""
        with self.lock:
            self._number += 1  # nothing that the old link still says counts
            before, wanted = InFlight(self._flying.calls), set(self._wanted)
        link = self._connect(keeper=Ear(self, self._number), secret=self._secret, timeout=JOIN_S)
        link.follows(self._link)
        self._link = link
        try:
            asked = wanted | before.reads()
            lost = _lost(link.address, link.generation == self._served[0])
            returned = self._resumed(link, sorted(asked), self._served[1])
            self._served = link.generation, link.workers()
            with self.lock:
                self._seats = self._seats.returned(dict(returned.workers), link.workers())
            self._defined.clear()
            again_to = self._replay_on(link, began=False)
            flying = InFlight()
            again = before.again(asked.difference(returned.missing), wanted)
            for buffer in again.lost:
                link.tell(wire.Fail(buffer, lost))
            for call in again.calls:
                again_to.call(call)
                flying.add(call)
            if self._chosen is not None:
                link.tell(self._seats.rebalance(self._chosen))
            with self.lock:
                self._check(link, began=False)
                self._behind = set(self._tiers)  # programs went with the dispatcher
                gone = wanted - self._wanted  # freed meanwhile
                if gone:
                    free = wire.Free(tuple(sorted(gone)))
                    link.tell(free)
                    flying.add(free)
                self._flying, self._away = flying, None
                self.returns += 1
                self._open.set()
        except BaseException:
            link.close()
            raise
        log.warning("the gt server at %s is there again: of %d values %d are lost", link.address, len(wanted), len(again.lost))

    def _resumed(self, link: RemoteSession, buffers: Sequence[int], workers: Sequence[int]) -> wire.Returned:
        """Ask for what the workers have kept. Errors: NotRecovered; what ends the link."""
        future, until = link.resume(self._served[0], buffers, workers), time.monotonic() + REJOIN_S
        while not future.done():
            self._check(link, began=False)
            if time.monotonic() > until:
                raise NotRecovered(f"the gt server at {link.address} does not say within {REJOIN_S:g} s what its workers have kept")
            time.sleep(POLL_S)
        return future.result()

    # -- recovery

    def _recover(self) -> None:
        """Heal a loss, in as many tries as there may be; then let callers go on, or tell all of them what was tried."""
        began, tried, first = time.monotonic(), [], self._hurt
        assert first is not None and self._log is not None
        lost = first.message.partition(";")[0]
        with self.lock:
            self._log.abandon()
            self._log.trim()
        for number in range(1, self._options.tries + 1):
            try:
                self._try(lost, began)
                return
            except (GtError, OSError, zmq.ZMQError) as e:
                tried.append(f"try {number}: {e}")
                log.warning("recovery from a loss (%s) did not succeed, %s", lost, tried[-1])
            except Exception as e:  # a fault of gt's own: nobody may wait for what does not come
                self._give_up(Fault("protocol", f"{lost}, and recovery failed: {type(e).__name__}: {e}"))
                raise
            if self._closing:
                break
        kind = "worker_lost" if self._dispatcher_lost is None else "dispatcher_lost"
        text = f"{lost}, and recovery gave up after {len(tried)} tries: {'; '.join(tried)}"
        self._give_up(Fault(kind, text, first.worker, first.epoch, first.where))

    def _try(self, lost: str, began: float) -> None:
        """Join anew and replay. Errors: NotRecovered, and what the link raises."""
        assert self._log is not None
        with self.lock:
            self._hurt = None
            self._number += 1  # nothing that the old link still says counts
        self._replaying = None
        self._link.close()
        link = self._link = self._another_link()
        self._await_workers(link)
        with self.lock:
            self._hurt = None  # nothing was on workers that came and went until now
            self._seats = Seats(self._seats.names, tuple(sorted(link.workers())))
            self._defined.clear()
        runs = self._replay(link, self._log)
        with self.lock:
            self._check(link)
            for ticket in list(self._questions):
                self._put_question(link, ticket)
            age, seconds = began - self._log.taken_at, time.monotonic() - began
            self.recoveries.append(Recovered(lost, age, runs, len(link.workers()), seconds))
            self._flying = InFlight(over=runs)
            self._open.set()
        log.warning("%s", self.recoveries[-1])

    def _another_link(self) -> RemoteSession:
        """Join again, if the dispatcher is lost as soon as there is another, where what the workers have kept is not needed."""
        if self._dispatcher_lost is None:
            self._secret = os.urandom(16)  # of its own: it may come before the old link's goodbye
            return self._connect(keeper=Ear(self, self._number), secret=self._secret)
        until = self._lost_at + self._link.lease_s
        while True:
            try:
                link = self._connect(keeper=Ear(self, self._number), secret=self._secret, timeout=JOIN_S)
                break
            except (GtError, OSError, zmq.ZMQError):
                if self._closing or time.monotonic() > until:
                    raise
                time.sleep(RETRY_S)
        try:
            self._resumed(link, (), ())
        except BaseException:
            link.close()
            raise
        link.follows(self._link)
        self._dispatcher_lost = None
        return link

    def _check(self, link: RemoteSession, began: bool = True) -> None:
        """Errors: NotRecovered where a worker was lost since the replay ``began``, or the link is over."""
        if self._closing:
            raise NotRecovered("the session is closed")
        if (ended := link.closed or link.left) is not None:
            raise NotRecovered(ended.message)
        if began and self._hurt is not None:
            raise NotRecovered(self._hurt.message.partition(";")[0])

    def _await_workers(self, link: RemoteSession) -> None:
        """Wait for as many workers as there were; after a while go on with those there are."""
        start = time.monotonic()
        while len(link.workers()) < max(1, len(self._seats.names)):
            replacing = self.replacing()
            wait_s = self._options.wait_s
            wait_s = (STARTS_S if replacing else JOINS_S) if wait_s is None else wait_s
            if time.monotonic() - start >= wait_s:
                if link.workers():
                    return
                raise NotRecovered(f"no worker joined the server within {wait_s:g} s")
            self._check(link, began=False)
            time.sleep(POLL_S)

    def _replay(self, link: RemoteSession, log: RunLog) -> int:
        """Send what makes the lost values again, and wait until all of it has run. Gives how many runs that is."""

        def ask(read: Asked) -> None:
            with self.lock:
                if read.open:
                    self._ask(link, read.ticket)

        self._replaying, self._behind = self._replay_on(link, began=True), set(self._tiers)
        return self._replaying.log(log, self._behind, ask)

    def _replay_on(self, link: RemoteSession, began: bool) -> Replay:
        return Replay(link, self._seats, self._graphs, self._defined, partial(self._check, link, began))

    def _give_up(self, fault: Fault) -> None:
        with self.lock:
            self._failed, self._away = fault, None
            open_ = self._take_open()
        self._link.close()
        for future, _ in open_:
            future.set_exception(fault.exception())
        self._open.set()


def _lost(address: str, same: bool) -> Fault:
    """Say why a value is not there after a return. ``same``: the server never ended."""
    why = f"with the gt server at {address} that ended: it was being made, or some worker that held a part of it did not come back"
    if same:
        why = f"when the connection between the gt server at {address} and this process broke, or nothing came by it for too long"
    return Fault("dispatcher_lost", f"this value was lost {why}; run again what made it, or load a checkpoint")


def _at(fault: Fault, where: str) -> Fault:
    """Give a fault at the line that waits."""
    return msgspec.structs.replace(fault, where=where)


__all__ = ["RecoveringSession"]

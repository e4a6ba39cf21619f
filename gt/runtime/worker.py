"""The worker process: programs on the main thread, connections and signs of life on another.

Owns: the four sockets of a worker. ``work`` (main thread) carries ordered work from the dispatcher and its outcomes;
``results`` (main thread) sends values to clients; ``link`` and ``intake`` (the io thread) carry heartbeats, loss
notices and uploads, so both go on while a program runs. When the dispatcher is lost, the worker comes to an edge: it does what has been
sent, calls off collectives that do not end, and says hello to whoever listens at the same address, until its lease is over.
Must not know: what messages lead to. Next: ``exchange`` (uploads and
results), ``runner``, ``worker_state``.
"""

from __future__ import annotations

import contextlib
import os
import socket as sockets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import zmq

from gt.runtime import env, garbage, wire
from gt.runtime.awake_clock import AwakeClock
from gt.runtime.collective import CollectiveFailed, Groups
from gt.runtime.errors import ConnectionFailed, ConnectionRefused, DispatcherLost, KeyFileError, ProtocolError
from gt.runtime.exchange import TIDY_S, Intake, Outlet
from gt.runtime.exit_codes import ExitCode
from gt.runtime.gate import Gate, Handshake, Seldom, await_answer, await_handshake
from gt.runtime.hello import UNKNOWN, torch_version
from gt.runtime.interrupt import on_end_signals
from gt.runtime.keys import Keys, chosen_keys
from gt.runtime.log import open_log, setup_logging
from gt.runtime.numbering import MessagesLost
from gt.runtime.runner import HostArray, Runner, make_engine
from gt.runtime.store import share_one_arena
from gt.runtime.tracer import Tracer
from gt.runtime.transport import (
    BEAT_S,
    Context,
    PeerUnreachable,
    Socket,
    bind_beside,
    confirm,
    endpoint_of,
    make_socket,
    own_address,
    receive,
    send,
)
from gt.runtime.wire import TO_WORKER

DISPATCHER_TIMEOUT_S = 10.0
EDGE_S = 10.0  # after the loss of the dispatcher, collectives still under way are called off
READ_S = 1.0  # in which the others have read what this worker has sent them
ANSWER_S = 0.5
RETRY_S = 0.2
DOUBT_POLL_S = 0.01
MAX_OVER = 8  # epochs whose end is told of together
GRACE_S = 2.0  # how long a busy main thread may go on once the worker should end


class Unwanted(ConnectionFailed):
    """The server has refused the worker."""


class StoreLink:
    """The worker's way to the dispatcher's key-value store, for whichever thread forms a group. ``broken``: hears when it is none."""

    def __init__(
        self, socket: Socket, token: bytes, timeout_s: float, lost: Callable[[], bool], broken: Callable[[str], None]
    ) -> None:
        self.lost, self.broken = lost, broken
        self.lock, self.timeout_s, self.requests = threading.Lock(), timeout_s, 0
        self.socket = socket
        send(self.socket, wire.Attach(token, "store"))

    def call(
        self, kind: str, keys: tuple[str, ...], value: bytes = b"", expected: bytes = b"", amount: int = 0
    ) -> tuple[bytes, int]:
        """Do one store operation and wait for it. Errors: CollectiveFailed."""
        with self.lock:
            if self.lost():
                raise CollectiveFailed("the dispatcher is lost")
            self.requests += 1
            send(self.socket, wire.StoreOp(self.requests, kind, keys, value, expected, amount))
            told = time.monotonic()
            deadline = told + self.timeout_s
            while (left := deadline - time.monotonic()) > 0:
                if self.lost():
                    raise CollectiveFailed("the dispatcher is lost")
                if time.monotonic() - told > TIDY_S:
                    told = time.monotonic()
                    confirm(self.socket, wire.Beat())
                if not self.socket.poll(int(min(left, TIDY_S, ANSWER_S) * 1000) + 1):
                    continue
                try:
                    got = receive(self.socket, TO_WORKER)
                except MessagesLost as e:
                    got = b"", wire.Broken(str(e)), None
                if got is not None and isinstance(got[1], wire.Broken | wire.Refused):
                    self.broken(got[1].reason)
                    raise CollectiveFailed(f"the other workers cannot be met: {got[1].reason}")
                if got is None or not isinstance(got[1], wire.StoreReply) or got[1].request != self.requests:
                    continue
                if not got[1].ok:
                    raise CollectiveFailed("a member of the group is lost")
                return got[1].value, got[1].number
        raise CollectiveFailed(f"the other workers did not come within {self.timeout_s:g} s")

    def close(self) -> None:
        """Close the connection, once nobody waits for an answer by it: with the dispatcher lost, soon."""
        with self.lock:
            self.socket.close(0)


class WorkerProcess:
    """A worker from hello to stop. With ``keys``, it proves who it is and lets in the clients that the dispatcher names. ``lease_s``:
    how long it waits for another dispatcher in place of one that is lost.

    Errors: ConnectionFailed.
    """

    def __init__(
        self, endpoint: str, backend: str, device: str, parent_fd: int | None = None, keys: Keys | None = None, lease_s: float = 0.0
    ) -> None:
        self.endpoint, self.parent_fd, self.keys, self.lease_s = endpoint, parent_fd, keys, lease_s
        self.stopping = self.deserted = self.refused = False
        self.at_edge = True  # the main thread does nothing that it may not come back from
        self.cut_off = self.doubt = ""
        self.failed: ConnectionFailed | None = None  # why no other dispatcher wants this worker
        self.lost = threading.Event()  # the dispatcher is; until the worker has joined again
        self.attached = threading.Event()  # the io thread is, to the dispatcher that the worker has joined
        self.lost_at = 0.0
        self.lives: tuple[tuple[int, int], ...] = ()  # generations of dispatchers that are gone, and the number it had there
        self.logger = setup_logging(f"worker.{os.getpid()}")
        self.malformed = Seldom(self.logger)
        self.context: Context = zmq.Context()
        if not endpoint.startswith("ipc://"):
            self._knock()
        self.admitted: frozenset[str] = frozenset()
        self.gate = None if keys is None else Gate(self.context, lambda user: user in self.admitted, self.logger)
        self.results = make_socket(self.context, zmq.ROUTER, data=True, receives=False)
        self.results.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client whose connection broke comes again before that is noticed here
        intake = make_socket(self.context, zmq.ROUTER, data=True)
        if keys is not None:
            keys.serve(self.results)
            keys.serve(intake)
        host = self._own_address()
        self.bound = [bind_beside(intake, endpoint, "u"), bind_beside(self.results, endpoint, "r")]
        self.engine = make_engine(backend, device)
        self.hello = wire.WorkerHello(
            self.bound[0], self.bound[1], sockets.gethostname(), os.getpid(), device_name(device), backend,
            "" if keys is None else keys.public, torch=torch_version(), memory=env.WORKER_MEMORY.get() or 0,
        )  # fmt: skip
        try:
            self.work, self.handshake, self.welcome = self._join(self.hello, time.monotonic() + DISPATCHER_TIMEOUT_S)
        except BaseException:
            remove_sockets(self.bound)
            self.context.destroy(0)
            raise
        self.log = open_log(f"worker{self.welcome.worker}", self.welcome.tag)
        self.uploads: dict[int, HostArray] = {}
        self.intake = Intake(intake, self.uploads, direct=str(getattr(self.engine, "device", "cpu")).startswith("cuda"))
        self.outlet = Outlet(self.work, self.results, self.intake.sharing)
        timeout_s = env.GROUP_TIMEOUT_S.get()
        self.store: StoreLink | None = None
        self.groups = Groups(
            self.welcome.worker, self._rendezvous, host, timeout_s, backend == "numpy",
            str(getattr(self.engine, "device", "cpu")),
        )  # fmt: skip
        self.groups.log = self.log
        self.tracer = Tracer(self.log, device)
        shared = parent_fd is None  # else it serves the script that started it alone
        self.runner = Runner(self.welcome.worker, self.engine, self.outlet, self.groups, self.uploads, self.log, timed=shared)
        self.wake_read, self.wake_write = os.pipe()
        self.io = threading.Thread(target=self._io_to_the_end, name="gt-io", daemon=True)

    def _rendezvous(self) -> StoreLink:
        """Give the way to the key-value store of the dispatcher that the worker has joined."""
        if self.store is None:
            token = self.welcome.token
            self.store = StoreLink(self._to_dispatcher(), token, env.GROUP_TIMEOUT_S.get(), self._is_lost(token), self._doubt)
        return self.store

    def _is_lost(self, token: bytes) -> Callable[[], bool]:
        """Give what tells whether the dispatcher that gave out a token is lost."""
        return lambda: self.lost.is_set() or self.welcome.token != token

    def _to_dispatcher(self) -> Socket:
        """Make a connection to the dispatcher."""
        socket = self._dealer()
        socket.connect(self.endpoint)
        return socket

    def _knock(self) -> None:
        """See whether the server lets this worker in, if there is one yet, before torch is loaded, which takes long.

        Errors: ConnectionRefused.
        """
        socket = self._dealer()
        handshake = Handshake(socket)
        try:
            socket.connect(self.endpoint)
            await_handshake(handshake, self.endpoint, self.keys, ANSWER_S)
        except BaseException:
            handshake.close()
            self.context.destroy(0)
            raise
        handshake.close()
        socket.close(0)

    def _own_address(self) -> str:
        """Give the address by which others reach this worker, once a network leads to the server. Errors: ConnectionFailed."""
        until = time.monotonic() + DISPATCHER_TIMEOUT_S
        while True:
            try:
                return own_address(self.endpoint)
            except ConnectionFailed:
                if time.monotonic() > until:
                    self.context.destroy(0)
                    raise
            time.sleep(BEAT_S)

    def _dealer(self) -> Socket:
        socket = make_socket(self.context, zmq.DEALER)
        if self.keys is not None:
            self.keys.join(socket)
        return socket

    def _join(self, hello: wire.WorkerHello, deadline: float) -> tuple[Socket, Handshake, wire.WorkerWelcome]:
        """Say hello until somebody answers. Errors: ConnectionFailed, if nobody does, or a worker is not wanted there; after a loss not
        for a connection that does not come about, as what is left of the lost server may have its port a little longer.
        """
        refused: ConnectionRefused | None = None
        while True:
            work = self._dealer()
            handshake = Handshake(work)
            try:
                welcome = self._ask(work, handshake, hello, deadline)
                if welcome is not None:
                    return work, handshake, welcome
            except BaseException as e:
                handshake.close()
                work.close(0)
                if isinstance(e, ProtocolError):
                    raise ConnectionFailed(f"what answers at {self.endpoint} is not a gt server of this version: {e}") from None
                again = hello.past is not None and isinstance(e, ConnectionFailed) and not isinstance(e, Unwanted)
                refused = e if isinstance(e, ConnectionRefused) else refused
                if not again or self.stopping or time.monotonic() >= deadline:
                    if refused is not None and isinstance(e, ConnectionFailed) and not isinstance(e, Unwanted):
                        raise refused from None
                    raise
                time.sleep(RETRY_S)
                continue
            handshake.close()
            work.close(0)

    def _ask(self, work: Socket, handshake: Handshake, hello: wire.WorkerHello, deadline: float) -> wire.WorkerWelcome | None:
        """Say hello once; give the answer, None if the connection has ended meanwhile, and the hello may have with it."""
        work.connect(self.endpoint)
        with contextlib.suppress(PeerUnreachable):  # turned away already: the handshake says why
            send(work, hello)
        while not await_answer(work, handshake, min(deadline, time.monotonic() + ANSWER_S), self.endpoint, self.keys):
            if time.monotonic() >= deadline or self.stopping:
                raise ConnectionFailed(
                    f"no gt server answers at {self.endpoint} within {DISPATCHER_TIMEOUT_S:g} s: start one with "
                    "`python -m gt.server -p PORT` and check host and port"
                )
            if handshake.over:
                return None
        try:
            got = receive(work, TO_WORKER)
        except MessagesLost as e:
            raise ConnectionFailed(f"the connection to the server at {self.endpoint} is broken: {e}") from None
        if got is not None and isinstance(got[1], wire.Broken):
            raise ConnectionFailed(f"the connection to the server at {self.endpoint} is broken: {got[1].reason}")
        if got is not None and isinstance(got[1], wire.Refused):
            raise Unwanted(f"the server at {self.endpoint} refuses this worker: {got[1].reason}")
        if got is None or not isinstance(got[1], wire.WorkerWelcome):
            raise ConnectionFailed(f"expected a welcome from the server at {self.endpoint}, got {got and got[1]}")
        return got[1]

    def run(self) -> None:
        """Work until told to stop."""
        garbage.postpone()
        self.io.start()
        try:
            while not self.stopping:
                self._serve()
                if not self.stopping:
                    self._join_again()
        finally:
            self.close()

    def _serve(self) -> None:
        """Do what the dispatcher asks, until told to stop, or until it is lost and all that it has sent is done."""
        poller = zmq.Poller()
        poller.register(self.work, zmq.POLLIN)
        poller.register(self.wake_read, zmq.POLLIN)
        worked = time.monotonic()
        while not self.stopping:
            self.at_edge = True
            ready = dict(poller.poll(2 if self.outlet.unsent else int(garbage.IDLE_S * 1000)))
            self.at_edge = False
            if self.wake_read in ready:
                os.read(self.wake_read, 64)
            lost = self.lost.is_set()  # before the last look: what came before the loss is there to be received
            if self.outlet.unsent:
                self.outlet.retry()
            self.outlet.tidy()
            if self.doubt and not lost:  # nothing that comes now can be trusted
                time.sleep(DOUBT_POLL_S)
                continue
            while not self.stopping and not self.doubt:
                got = self._received(self.work)
                if got is None:
                    break
                if self.outlet.over and (len(self.outlet.over) >= MAX_OVER or not self.runner.is_short(got[1])):
                    self.outlet.tell_over()
                if isinstance(got[1], wire.Execute):
                    self.runner.handle(got[1], None)
                elif isinstance(got[1], wire.Broken):
                    self._doubt(got[1].reason)
                elif isinstance(got[1], wire.Refused):
                    if self.lease_s > 0:
                        self.refused = True  # by another dispatcher, or by this one, which will say so again
                    else:
                        self._unwanted(got[1].reason)
                elif not self.runner.handle(got[1], got[2]):
                    self.stopping = True
                if not isinstance(got[1], wire.Ping):
                    worked = time.monotonic()
            self.outlet.tell_over()
            if lost:
                return
            if not self.outlet.unsent and time.monotonic() - worked >= garbage.IDLE_S:
                garbage.collect_if_due()
                self.runner.tidy()

    def _join_again(self) -> None:
        """Let go of what the lost dispatcher alone knew, and wait for another one. Stops where none comes, or it refuses."""
        if self.lease_s == 0:
            self.logger.info("the dispatcher is gone")
            self.deserted = self.stopping = True
            return
        if self.groups.groups:
            time.sleep(READ_S)
        self.lives = (*self.lives, (self.welcome.generation, self.welcome.worker))
        past = self.runner.past(self.lives)
        self.groups.close()
        if self.store is not None:
            self.store.close()
            self.store = None
        self.at_edge = True
        self.handshake.close()
        self.work.close(0)
        deadline = self.lost_at + self.lease_s
        self.logger.warning("the server at %s is lost: keeping %d values for it", self.endpoint, len(past.values))
        try:
            self.work, self.handshake, self.welcome = self._join(msgspec.structs.replace(self.hello, past=past), deadline)
        except ConnectionFailed as e:
            self.deserted = not self.stopping
            self.failed = e if time.monotonic() < deadline or isinstance(e, ConnectionRefused) else None
            self.stopping = True
            return
        self.logger.warning("joined the server at %s again, as worker %d", self.endpoint, self.welcome.worker)
        self.log.goes_on(f"worker{self.welcome.worker}", self.welcome.tag)
        self.outlet.work = self.work
        self.groups.renew(self.welcome.worker)
        self.runner.rejoined(self.welcome.worker)
        self.doubt = ""
        self.lost.clear()
        while not self.attached.wait(BEAT_S) and not self.stopping:  # uploads for the lost one, which come until then, go with it
            continue

    def close(self) -> None:
        """Say goodbye and let everything go."""
        self.stopping = self.at_edge = True
        self.io.join(GRACE_S)
        if not self.work.closed:
            self.handshake.close()
            with contextlib.suppress(PeerUnreachable):
                send(self.work, wire.Bye(f"is cut off: {self.cut_off}") if self.cut_off else wire.Bye())
        if self.runner.launched is not None and not self.runner.launched.are_over:
            self.groups.call_off()  # some worker may not come
        self.runner.close()
        remove_sockets(self.bound)
        self.context.destroy(200)
        self.log.close()

    @property
    def code(self) -> int:
        """Give the exit code of a process that ends at once."""
        return ExitCode.SERVER_LOST if self.deserted or self.cut_off else ExitCode.OK

    def _unwanted(self, reason: str) -> None:
        """End: the dispatcher does without this worker."""
        self.failed = self.failed or ConnectionFailed(f"the gt server at {self.endpoint} refuses this worker: {reason}")
        self.deserted = True
        self.stop()

    def stop(self, *_: object) -> None:
        """End soon; at once if the main thread does not come back from a program or a collective."""
        if not self.stopping:
            self.stopping = True
            os.write(self.wake_write, b"x")

    def _cut_off(self, why: str) -> None:
        """End, as nothing that the dispatcher says can be trusted to be all that it has said."""
        self.cut_off = self.cut_off or why
        self.logger.error("the link to the server is broken: %s", why)
        self.stop()

    def _doubt(self, why: str) -> None:
        """Hear that messages were lost. Where the connection has ended they were another dispatcher's, who will say so: the io thread
        looks; else this worker is cut off.
        """
        if self.lease_s > 0:
            self.doubt = self.doubt or why
        else:
            self._cut_off(why)

    # -- the io thread

    def _io_to_the_end(self) -> None:
        try:
            self._io()
        except Exception as e:  # a fault of gt's own: nobody would hear any more whether this worker lives
            self.logger.exception("a fault in gt")
            self._cut_off(f"its io thread failed: {type(e).__name__}: {e}")
            self._end(None)

    def _io(self) -> None:
        link: Socket | None = self._attached()
        poller = zmq.Poller()
        strangers = [] if self.gate is None else self.gate.sources
        watched = self.handshake.monitor
        for source in (link, watched, self.intake.socket, *([] if self.parent_fd is None else [self.parent_fd]), *strangers):
            poller.register(source, zmq.POLLIN)
        awake, beat = AwakeClock(), time.monotonic()
        seen = awake()

        def alive() -> None:
            nonlocal beat
            now = time.monotonic()
            if link is not None and now - beat >= BEAT_S:
                beat = now
                send(link, wire.Beat(self.runner.epoch, self.groups.issued))
                self.intake.tidy(now)
                if self.runner.launched is not None:
                    self.groups.leave_overdue(self.runner.launched.overdue(now, self.groups.timeout_s))

        self.intake.alive = alive
        while not self.stopping:
            ready = dict(poller.poll(int(BEAT_S * 1000) if link is not None else 50))
            now, heard = time.monotonic(), awake()
            if link is None and not self.lost.is_set():
                self.intake.part()
                link, seen = self._attached(), heard
                watched = self.handshake.monitor
                for source in (link, watched):
                    poller.register(source, zmq.POLLIN)
            if link is not None and link in ready:
                seen = heard
                self._from_link(link)
            if self.gate is not None:
                self.gate.answer(now)
            if self.parent_fd in ready:
                self.logger.info("the parent is gone")
                self.stop()
            complete = self.intake.receive() if self.intake.socket in ready else []
            if link is None:
                self._wait_for_edge(now)
                continue
            self._acknowledge(link, complete)
            for reply in self.tracer.waiting():
                send(link, reply)
            self.handshake.look()
            over = self.handshake.over or self.refused or heard - seen > DISPATCHER_TIMEOUT_S
            if over:
                self._from_link(link)  # what came before the end is there to be received: it may be the word to stop
            if over and not self.stopping:
                poller.unregister(link)
                poller.unregister(watched)
                link.close(0)
                link = None
                self._lose_dispatcher(now)
            elif self.doubt:
                self._cut_off(self.doubt)
            elif now - beat >= BEAT_S:
                alive()
                send(link, wire.Used(self.runner.usage.now(), self.runner.usage.changed()))
        self._end(link)

    def _attached(self) -> Socket:
        link = self._to_dispatcher()
        send(link, wire.Attach(self.welcome.token, "link"))
        self.refused = False
        self.attached.set()
        return link

    def _lose_dispatcher(self, now: float) -> None:
        """Have the main thread come to an edge."""
        self.lost_at = now
        self.tracer.drop()
        self.attached.clear()
        self.lost.set()
        os.write(self.wake_write, b"x")

    def _wait_for_edge(self, now: float) -> None:
        """Call off what keeps the main thread; end with it if it is still there at the end of the lease."""
        if self.at_edge:
            return
        if now - self.lost_at > self.lease_s:
            self.deserted = True
            self.stop()
        elif now - self.lost_at > min(EDGE_S, self.lease_s / 2) and not self.groups.called_off:
            self.logger.warning("calling off collectives: the server is lost, and some worker does not come")
            self.groups.call_off()

    def _end(self, link: Socket | None) -> None:
        """See to it that the main thread ends, and let go of this thread's sockets."""
        deadline = time.monotonic() + GRACE_S
        while threading.main_thread().is_alive() and time.monotonic() < deadline and not self.at_edge:
            time.sleep(0.02)
        if not self.at_edge:  # stuck in a program, or in waiting for a device: nobody waits for it any more
            remove_sockets(self.bound)
            os._exit(self.code)
        if link is not None:
            link.close(0)
        self.intake.socket.close(0)
        if self.gate is not None:
            self.gate.close()

    def _received(self, socket: Socket) -> tuple[bytes, Any, Any] | None:
        """Give the next message that is one; None if there is none, or others should have come before it: then there is doubt."""
        while True:
            try:
                return receive(socket, TO_WORKER)
            except ProtocolError as e:
                self.malformed.drop(e, time.monotonic())
            except MessagesLost as e:
                self._doubt(str(e))
                return None

    def _from_link(self, link: Socket) -> None:
        while True:
            got = self._received(link)
            if got is None:
                return
            match got[1]:
                case wire.Expect() as expect:
                    self._acknowledge(link, self.intake.expect(expect))
                case wire.Free(uids):
                    self.intake.cancel(uids)
                case wire.Gone(token):
                    self.intake.forget(token)
                case wire.Admit(keys):
                    self.admitted = frozenset(keys)
                case wire.Abort(worker):
                    self.groups.abort(worker)
                case wire.SetTrace() as asked:
                    self.tracer.handle(asked)
                case wire.Leave(epoch, groups, why):
                    self.groups.leave(epoch, groups, why)
                case wire.Broken(reason):
                    self._doubt(reason)
                case wire.Stop():
                    self.stop()
                case wire.Refused(reason) if reason == UNKNOWN and self.lease_s > 0:
                    self.refused = True
                case wire.Refused(reason):
                    self._unwanted(reason)
                case _:
                    pass

    def _acknowledge(self, link: Socket, uids: list[int]) -> None:
        for uid in uids:
            send(link, wire.Uploaded(uid))


def remove_sockets(endpoints: list[str]) -> None:
    """Remove the files of ipc sockets."""
    for endpoint in endpoints:
        if endpoint.startswith("ipc://"):
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)


def device_name(device: str) -> str:
    """Give the device as the whole host names it, so that two workers on one GPU are told apart from two GPUs."""
    if not device.startswith("cuda"):
        return device
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    index = int(device.partition(":")[2] or 0)
    names = [v for v in visible.split(",") if v]
    return f"cuda:{names[index] if index < len(names) else index}"


def work(
    endpoint: str, backend: str, device: str, parent_fd: int | None = None, keys: Keys | None = None, lease_s: float = 0.0
) -> None:
    """Run a worker in this process until it is told to stop. Errors: ConnectionFailed; DispatcherLost if nobody can tell it any more."""
    share_one_arena()
    worker = WorkerProcess(endpoint, backend, device, parent_fd, keys, lease_s)
    on_end_signals(worker.stop, parent_fd)
    worker.run()
    if worker.groups.aborted:  # what Gloo left unfinished must not meet the interpreter's end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(worker.code)
    if worker.cut_off:
        raise DispatcherLost(f"the link to the gt server at {endpoint} is broken: {worker.cut_off}")
    if worker.deserted:
        waited = f", and none has come in its place within {lease_s:g} s" if lease_s else ""
        raise worker.failed or DispatcherLost(f"the gt server at {endpoint} is lost{waited}")


@click.command()
@click.option("--connect", required=True)
@click.option("--backend", default="torch")
@click.option("--device", default="cpu")
@click.option("--parent-fd", type=int)
def main(connect: str, backend: str, device: str, parent_fd: int | None) -> None:
    """Run a worker of a local cluster."""
    try:
        endpoint = endpoint_of(connect)
        keys = None if endpoint.startswith("ipc://") else chosen_keys(None, "worker")
        work(endpoint, backend, device, parent_fd, keys)
    except KeyFileError as e:
        click.echo(f"gt worker: {e}", err=True)
        sys.exit(ExitCode.USAGE)
    except (ConnectionFailed, DispatcherLost) as e:
        click.echo(f"gt worker: {e}", err=True)
        sys.exit(ExitCode.SERVER_LOST)
    except OSError as e:
        if e.filename != env.INSTRUCTION_LOG.get():
            raise
        click.echo(f"gt worker: {e.strerror}: {e.filename}", err=True)
        sys.exit(ExitCode.USAGE)


if __name__ == "__main__":
    main()

"""The worker process: programs on the main thread, connections and signs of life on another.

Owns: the four sockets of a worker. ``work`` (main thread) carries ordered work from the dispatcher and its outcomes;
``results`` (main thread) sends values to clients; ``link`` and ``intake`` (the io thread) carry heartbeats, loss
notices and uploads, so both go on while a program runs. Must not know: what messages lead to. Next: ``exchange`` (uploads and
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

import click
import zmq

from gt.runtime import env, garbage, wire
from gt.runtime.capturing import Capturing
from gt.runtime.collective import CollectiveFailed, Groups
from gt.runtime.errors import ConnectionFailed, DispatcherLost, KeyFileError, ProtocolError
from gt.runtime.exchange import TIDY_S, Intake, Outlet
from gt.runtime.exit_codes import ExitCode
from gt.runtime.gate import Gate, Handshake, Seldom, await_answer
from gt.runtime.hello import torch_version
from gt.runtime.interrupt import on_end_signals
from gt.runtime.keys import Keys, chosen_keys
from gt.runtime.log import open_log, setup_logging
from gt.runtime.numbering import MessagesLost
from gt.runtime.runner import HostArray, Runner, make_engine
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
GRACE_S = 2.0  # how long a busy main thread may go on once the worker should end


class StoreLink:
    """The worker's way to the dispatcher's key-value store, for whichever thread forms a group. ``broken``: hears when it is none."""

    def __init__(self, socket: Socket, token: bytes, timeout_s: float, broken: Callable[[str], None]) -> None:
        self.broken = broken
        self.lock, self.timeout_s, self.requests = threading.Lock(), timeout_s, 0
        self.socket = socket
        send(self.socket, wire.Attach(token, "store"))

    def call(
        self, kind: str, keys: tuple[str, ...], value: bytes = b"", expected: bytes = b"", amount: int = 0
    ) -> tuple[bytes, int]:
        """Do one store operation and wait for it. Errors: CollectiveFailed."""
        with self.lock:
            self.requests += 1
            send(self.socket, wire.StoreOp(self.requests, kind, keys, value, expected, amount))
            told = time.monotonic()
            deadline = told + self.timeout_s
            while (left := deadline - time.monotonic()) > 0:
                if time.monotonic() - told > TIDY_S:
                    told = time.monotonic()
                    confirm(self.socket, wire.Beat())
                if not self.socket.poll(int(min(left, TIDY_S) * 1000) + 1):
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


class WorkerProcess:
    """A worker from hello to stop. With ``keys``, it proves who it is and lets in the clients that the dispatcher names.

    Errors: ConnectionFailed.
    """

    def __init__(self, endpoint: str, backend: str, device: str, parent_fd: int | None = None, keys: Keys | None = None) -> None:
        self.endpoint, self.parent_fd, self.keys = endpoint, parent_fd, keys
        self.logger = setup_logging(f"worker.{os.getpid()}")
        self.malformed = Seldom(self.logger)
        self.context: Context = zmq.Context()
        self.admitted: frozenset[str] = frozenset()
        self.gate = None if keys is None else Gate(self.context, lambda user: user in self.admitted, self.logger)
        self.results = make_socket(self.context, zmq.ROUTER, data=True, receives=False)
        self.results.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client whose connection broke comes again before that is noticed here
        intake = make_socket(self.context, zmq.ROUTER, data=True)
        if keys is not None:
            keys.serve(self.results)
            keys.serve(intake)
        self.bound = [bind_beside(intake, endpoint, "u"), bind_beside(self.results, endpoint, "r")]
        self.engine = make_engine(backend, device)
        self.work, handshake = self._to_dispatcher(watched=True)
        hello = wire.WorkerHello(
            self.bound[0], self.bound[1], sockets.gethostname(), os.getpid(), device_name(device), backend,
            "" if keys is None else keys.public, torch=torch_version(), memory=env.WORKER_MEMORY.get() or 0,
        )  # fmt: skip
        try:
            self.welcome = self._join(hello, handshake)
        except BaseException:
            remove_sockets(self.bound)
            self.context.destroy(0)
            raise
        self.log = open_log(f"worker{self.welcome.worker}")
        self.uploads: dict[int, HostArray] = {}
        self.intake = Intake(intake, self.uploads, direct=str(getattr(self.engine, "device", "cpu")).startswith("cuda"))
        self.outlet = Outlet(self.work, self.results, self.intake.sharing)
        timeout_s = env.GROUP_TIMEOUT_S.get()
        self.groups = Groups(
            self.welcome.worker, self._store_link(timeout_s), own_address(endpoint), timeout_s, backend == "numpy",
            str(getattr(self.engine, "device", "cpu")),
        )  # fmt: skip
        self.groups.log = self.log
        self.capturing = Capturing(self.log, device)
        shared = parent_fd is None  # else it serves the script that started it alone
        self.runner = Runner(self.welcome.worker, self.engine, self.outlet, self.groups, self.uploads, self.log, timed=shared)
        self.stopping = self.deserted = False
        self.cut_off = ""
        self.wake_read, self.wake_write = os.pipe()
        self.io = threading.Thread(target=self._io, name="gt-io", daemon=True)

    def _store_link(self, timeout_s: float) -> Callable[[], StoreLink]:
        links: list[StoreLink] = []

        def link() -> StoreLink:
            if not links:
                links.append(StoreLink(self._to_dispatcher()[0], self.welcome.token, timeout_s, self._cut_off))
            return links[0]

        return link

    def _to_dispatcher(self, watched: bool = False) -> tuple[Socket, Handshake | None]:
        """Make a connection to the dispatcher, and if ``watched`` what tells how it comes about."""
        socket = make_socket(self.context, zmq.DEALER)
        if self.keys is not None:
            self.keys.join(socket)
        handshake = Handshake(socket) if watched else None
        socket.connect(self.endpoint)
        return socket, handshake

    def _join(self, hello: wire.WorkerHello, handshake: Handshake | None) -> wire.WorkerWelcome:
        assert handshake is not None
        with contextlib.suppress(PeerUnreachable):  # turned away already: the handshake says why
            send(self.work, hello)
        deadline = time.monotonic() + DISPATCHER_TIMEOUT_S
        try:
            if not await_answer(self.work, handshake, deadline, self.endpoint, self.keys):
                raise ConnectionFailed(
                    f"no gt server answers at {self.endpoint} within {DISPATCHER_TIMEOUT_S:g} s: start one with "
                    "`python -m gt.server -p PORT` and check host and port"
                )
            got = receive(self.work, TO_WORKER)
        except ProtocolError as e:
            raise ConnectionFailed(f"what answers at {self.endpoint} is not a gt server of this version: {e}") from None
        except MessagesLost as e:
            raise ConnectionFailed(f"the connection to the server at {self.endpoint} is broken: {e}") from None
        finally:
            handshake.close()
        if got is not None and isinstance(got[1], wire.Refused | wire.Broken):
            raise ConnectionFailed(f"the server at {self.endpoint} refuses this worker: {got[1].reason}")
        if got is None or not isinstance(got[1], wire.WorkerWelcome):
            raise ConnectionFailed(f"expected a welcome from the server at {self.endpoint}, got {got and got[1]}")
        return got[1]

    def run(self) -> None:
        """Work until told to stop."""
        garbage.postpone()
        self.io.start()
        poller = zmq.Poller()
        poller.register(self.work, zmq.POLLIN)
        poller.register(self.wake_read, zmq.POLLIN)
        try:
            while not self.stopping:
                ready = poller.poll(2 if self.outlet.unsent else int(garbage.IDLE_S * 1000))
                if self.outlet.unsent:
                    self.outlet.retry()
                elif not ready:
                    garbage.collect_if_due()
                self.outlet.tidy()
                while not self.stopping:
                    try:
                        got = receive(self.work, TO_WORKER)
                    except ProtocolError as e:
                        self.malformed.tell(f"dropped a malformed message: {e}", time.monotonic())
                        continue
                    except MessagesLost as e:
                        self._cut_off(str(e))
                        break
                    if got is None:
                        break
                    if not self.runner.handle(got[1], got[2]):
                        self.stopping = True
        finally:
            self.close()

    def close(self) -> None:
        """Say goodbye and let everything go."""
        self.stopping = True
        self.io.join(GRACE_S)
        with contextlib.suppress(PeerUnreachable):
            send(self.work, wire.Bye(f"is cut off: {self.cut_off}") if self.cut_off else wire.Bye())
        self.runner.close()
        remove_sockets(self.bound)
        self.context.destroy(200)
        self.log.close()

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

    # -- the io thread

    def _io(self) -> None:
        link, _ = self._to_dispatcher()
        send(link, wire.Attach(self.welcome.token, "link"))
        poller = zmq.Poller()
        strangers = [] if self.gate is None else self.gate.sources
        for source in (link, self.intake.socket, *([] if self.parent_fd is None else [self.parent_fd]), *strangers):
            poller.register(source, zmq.POLLIN)
        seen = beat = time.monotonic()
        while not self.stopping:
            ready = dict(poller.poll(int(BEAT_S * 1000)))
            now = time.monotonic()
            if link in ready:
                seen = now
                self._from_link(link)
            if self.gate is not None:
                self.gate.answer(now)
            if self.intake.socket in ready:
                self._acknowledge(link, self.intake.receive())
            for reply in self.capturing.waiting():
                send(link, reply)
            self.deserted = now - seen > DISPATCHER_TIMEOUT_S
            if self.parent_fd in ready or self.deserted:
                self.logger.info("the parent or the dispatcher is gone")
                self.stop()
            if now - beat >= BEAT_S:
                beat = now
                send(link, wire.Beat(self.runner.epoch, self.groups.issued))
                self.intake.tidy(now)
                send(link, wire.Used(self.runner.usage.now(), self.runner.usage.changed()))
        deadline = time.monotonic() + GRACE_S
        while threading.main_thread().is_alive() and time.monotonic() < deadline and self.runner.epoch >= 0:
            time.sleep(0.02)
        if self.runner.epoch >= 0:  # stuck in a program: nobody waits for it any more
            remove_sockets(self.bound)
            os._exit(0)
        link.close(0)
        self.intake.socket.close(0)
        if self.gate is not None:
            self.gate.close()

    def _from_link(self, link: Socket) -> None:
        while True:
            try:
                got = receive(link, TO_WORKER)
            except ProtocolError as e:
                self.malformed.tell(f"dropped a malformed message: {e}", time.monotonic())
                continue
            except MessagesLost as e:
                self._cut_off(str(e))
                return
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
                case wire.Capture() as capture:
                    self.capturing.handle(capture)
                case wire.Leave(epoch, groups, why):
                    self.groups.leave(epoch, groups, why)
                case wire.Broken(reason):
                    self._cut_off(reason)
                case wire.Stop() | wire.Refused():
                    self.stop()
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


def work(endpoint: str, backend: str, device: str, parent_fd: int | None = None, keys: Keys | None = None) -> None:
    """Run a worker in this process until it is told to stop. Errors: ConnectionFailed; DispatcherLost if nobody can tell it any more."""
    worker = WorkerProcess(endpoint, backend, device, parent_fd, keys)
    on_end_signals(worker.stop, parent_fd)
    worker.run()
    if worker.groups.lost or worker.groups.left:  # what Gloo left unfinished must not meet the interpreter's end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ExitCode.SERVER_LOST if worker.deserted or worker.cut_off else 0)
    if worker.cut_off:
        raise DispatcherLost(f"the link to the gt server at {endpoint} is broken: {worker.cut_off}")
    if worker.deserted:
        raise DispatcherLost(f"the gt server at {endpoint} has not been heard of for {DISPATCHER_TIMEOUT_S:g} s")


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


if __name__ == "__main__":
    main()

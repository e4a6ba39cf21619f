"""The worker process: programs on the main thread, connections and signs of life on another.

Owns: the four sockets of a worker. ``work`` (main thread) carries ordered work from the dispatcher and its outcomes;
``results`` (main thread) sends values to clients; ``link`` and ``intake`` (the io thread) carry heartbeats, loss
notices and uploads, so both go on while a program runs. Must not know: what messages lead to. Next: ``runner``,
``worker_state``.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket as sockets
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
import zmq

from gt.runtime import env, wire, wire_arrays
from gt.runtime.collective import CollectiveFailed, Groups
from gt.runtime.errors import ConnectionFailed, ProtocolError
from gt.runtime.log import InstructionLog, open_log, setup_logging
from gt.runtime.runner import Runner, make_engine
from gt.runtime.shared import SHARED_MIN, Openings, SlotPool, probe
from gt.runtime.transport import (
    BEAT_S,
    PeerUnreachable,
    Socket,
    bind_beside,
    endpoint_of,
    make_socket,
    own_address,
    receive,
    send,
)
from gt.runtime.wire import TO_WORKER, UPLOADS, Message

DISPATCHER_TIMEOUT_S = 10.0
GRACE_S = 2.0  # how long a busy main thread may go on once the worker should end
UNSENT_S = 5.0
MAX_EARLY = 256
MAX_CALLED_OFF = 4096
TIDY_S = 1.0


class StoreLink:
    """The worker's way to the dispatcher's key-value store, for whichever thread forms a group."""

    def __init__(self, context: zmq.Context[Socket], endpoint: str, token: bytes, timeout_s: float) -> None:
        self.lock, self.timeout_s, self.requests = threading.Lock(), timeout_s, 0
        self.socket = make_socket(context, zmq.DEALER)
        self.socket.connect(endpoint)
        send(self.socket, wire.Attach(token, "store"))

    def call(
        self, kind: str, keys: tuple[str, ...], value: bytes = b"", expected: bytes = b"", amount: int = 0
    ) -> tuple[bytes, int]:
        """Do one store operation and wait for it. Errors: CollectiveFailed."""
        with self.lock:
            self.requests += 1
            send(self.socket, wire.StoreOp(self.requests, kind, keys, value, expected, amount))
            deadline = time.monotonic() + self.timeout_s
            while (left := deadline - time.monotonic()) > 0:
                if not self.socket.poll(int(left * 1000) + 1):
                    break
                got = receive(self.socket, TO_WORKER)
                if got is None or not isinstance(got[1], wire.StoreReply) or got[1].request != self.requests:
                    continue
                if not got[1].ok:
                    raise CollectiveFailed("a member of the group is lost")
                return got[1].value, got[1].number
        raise CollectiveFailed(f"the other workers did not come within {self.timeout_s:g} s")


class Outlet:
    """The runner's outputs, on the main thread's sockets. A value for a client not connected yet is tried again.

    ``sharing``: tokens of clients that can open this process's slots; who is in it changes on the io thread.
    """

    def __init__(self, work: Socket, results: Socket, sharing: set[bytes]) -> None:
        self.work, self.results, self.sharing = work, results, sharing
        self.pools: dict[bytes, SlotPool] = {}  # by client: what one has read, no other can see
        self.tidied = time.monotonic()
        self.unsent: list[tuple[float, bytes, Message, memoryview | None]] = []

    def reply(self, message: Message) -> None:
        send(self.work, message)

    def room(self, token: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        if math.prod(shape) * dtype.itemsize < SHARED_MIN or token not in self.sharing:
            return None
        return self.pools.setdefault(token, SlotPool()).take(shape, dtype)

    def ship(self, token: bytes, message: wire.Part | wire.PartFailed, array: np.ndarray | None) -> None:
        pool = self.pools.get(token)
        slot = pool.find(array) if pool is not None and array is not None else None
        if slot is not None and array is not None:
            region = slot.lend(token, array.shape, tuple((0, n) for n in array.shape))
            message = msgspec.structs.replace(message, region=region)
        data = None if array is None or slot is not None else wire_arrays.data_of(array)
        try:
            send(self.results, message, data, token)
        except PeerUnreachable:
            self.unsent.append((time.monotonic() + UNSENT_S, token, message, data))

    def retry(self) -> None:
        """Try again what had no receiver; give up on what has waited too long: its client is gone."""
        entries, self.unsent = self.unsent, []
        for deadline, token, message, data in entries:
            try:
                send(self.results, message, data, token)
            except PeerUnreachable:
                if time.monotonic() < deadline:
                    self.unsent.append((deadline, token, message, data))

    def tidy(self) -> None:
        """Let go of slots that nobody needs, and of those for clients that are gone."""
        now = time.monotonic()
        if now - self.tidied < TIDY_S:
            return
        self.tidied = now
        for token, pool in list(self.pools.items()):
            if token in self.sharing:
                pool.trim()
            else:
                pool.close()
                del self.pools[token]


class Intake:
    """Uploads, on the io thread: matched with what the dispatcher said to expect, in whichever order the two come."""

    def __init__(self, socket: Socket, uploads: dict[int, tuple[np.ndarray, str]]) -> None:
        self.socket, self.uploads = socket, uploads
        self.expected: dict[bytes, wire.Expect] = {}
        self.early: dict[bytes, tuple[bytes, wire.Upload, memoryview | None]] = {}
        self.called_off: dict[bytes, None] = {}
        self.openings, self.probe = Openings(), probe()
        self.opened: dict[bytes, int] = {}  # tokens of clients whose slots this process can open, with their pids
        self.sharing: set[bytes] = set()  # tokens of clients that can open this process's
        self.dropped = 0

    def expect(self, expect: wire.Expect) -> list[int]:
        """Note an upload to come; give the uids that are complete now."""
        early = self.early.pop(expect.ticket, None)
        if early is not None:
            return self._keep(expect, *early)
        self.expected[expect.ticket] = expect
        return []

    def cancel(self, uids: tuple[int, ...]) -> None:
        for ticket in [t for t, e in self.expected.items() if e.uid in uids]:
            del self.expected[ticket]
            self.called_off[ticket] = None
            if len(self.called_off) > MAX_CALLED_OFF:
                del self.called_off[next(iter(self.called_off))]

    def forget(self, token: bytes) -> None:
        """Let go of what is shared with a client that is gone."""
        self.sharing.discard(token)
        pid = self.opened.pop(token, 0)
        if pid not in self.opened.values():
            self.openings.drop(pid)

    def receive(self) -> list[int]:
        """Take what the socket has; give the uids that are complete now."""
        complete: list[int] = []
        while True:
            try:
                got = receive(self.socket, UPLOADS, routed=True, copy=False)
            except ProtocolError:
                self.dropped += 1
                continue
            if got is None:
                return complete
            peer, upload, data = got
            if isinstance(upload, wire.Share):
                self._share(peer, upload)
                continue
            expect = self.expected.pop(upload.ticket, None)
            if expect is not None:
                complete += self._keep(expect, peer, upload, data)
            elif upload.ticket in self.called_off:
                del self.called_off[upload.ticket]
                self._pass_over(upload)
            else:
                self.early[upload.ticket] = (peer, upload, data)
                if len(self.early) > MAX_EARLY:
                    self._pass_over(self.early.pop(next(iter(self.early)))[1])
                    self.dropped += 1

    def _share(self, peer: bytes, message: wire.Share) -> None:
        """Learn which way memory can be shared with a client, and tell it."""
        if message.opened:
            self.sharing.add(message.token)
        elif message.probe is None:
            self.sharing.discard(message.token)
        else:
            opened = self.openings.opens(message.probe)
            if opened:
                self.opened[message.token] = message.probe.pid
            with contextlib.suppress(PeerUnreachable):
                send(self.socket, wire.Share(b"", self.probe.offer() if self.probe else None, opened), peer=peer)

    def _view(self, upload: wire.Upload, data: memoryview | None) -> tuple[np.ndarray, Callable[[], None]]:
        """Give an upload's rows, and what says that they have been read."""
        if upload.region is None:
            assert data is not None
            return wire_arrays.array_of(upload.type, data), lambda: None
        if upload.region.pid not in self.opened.values():
            raise ProtocolError("an upload in memory that is not shared with this process")
        return self.openings.view(upload.region, upload.type)

    def _pass_over(self, upload: wire.Upload) -> None:
        with contextlib.suppress(OSError, ProtocolError):
            self._view(upload, memoryview(b""))[1]()

    def _keep(self, expect: wire.Expect, peer: bytes, upload: wire.Upload, data: memoryview | None) -> list[int]:
        try:
            if upload.type != expect.type:
                raise ProtocolError(f"expected {expect.type}, got {upload.type}")
            part, done = self._view(upload, data)
        except ProtocolError:
            self.dropped += 1
            self.expected[expect.ticket] = expect
            return []
        except OSError:  # no descriptor left, or the client is gone
            self.expected[expect.ticket] = expect
            with contextlib.suppress(PeerUnreachable):
                send(self.socket, wire.Unread(upload), peer=peer)
            return []
        array = np.zeros(expect.local, part.dtype) if part.shape != expect.local else np.empty(part.shape, part.dtype)
        np.copyto(array[tuple(slice(0, n) for n in part.shape)], part)
        done()
        self.uploads[expect.uid] = (array, expect.type.dtype)
        return [expect.uid]


class WorkerProcess:
    """A worker from hello to stop."""

    def __init__(self, endpoint: str, backend: str, device: str, parent_fd: int | None = None) -> None:
        self.endpoint, self.parent_fd = endpoint, parent_fd
        self.logger = setup_logging(f"worker.{os.getpid()}")
        self.context: zmq.Context[Socket] = zmq.Context()
        self.results = make_socket(self.context, zmq.ROUTER, data=True)
        intake = make_socket(self.context, zmq.ROUTER, data=True)
        self.bound = [bind_beside(intake, endpoint, "u"), bind_beside(self.results, endpoint, "r")]
        self.engine = make_engine(backend, device)
        self.work = make_socket(self.context, zmq.DEALER)
        self.work.connect(endpoint)
        hello = wire.WorkerHello(
            self.bound[0], self.bound[1], sockets.gethostname(), os.getpid(), device_name(device), backend
        )
        self.welcome = self._join(hello)
        self.log: InstructionLog | None = open_log(f"worker{self.welcome.worker}")
        self.uploads: dict[int, tuple[np.ndarray, str]] = {}
        self.intake = Intake(intake, self.uploads)
        self.outlet = Outlet(self.work, self.results, self.intake.sharing)
        timeout_s = env.GROUP_TIMEOUT_S.get()
        self.groups = Groups(
            self.welcome.worker, self._store_link(timeout_s), own_address(endpoint), timeout_s, backend == "numpy",
            str(getattr(self.engine, "device", "cpu")),
        )  # fmt: skip
        self.runner = Runner(self.welcome.worker, self.engine, self.outlet, self.groups, self.uploads, self.log)
        self.stopping = False
        self.wake_read, self.wake_write = os.pipe()
        self.io = threading.Thread(target=self._io, name="gt-io", daemon=True)

    def _store_link(self, timeout_s: float) -> Callable[[], StoreLink]:
        links: list[StoreLink] = []

        def link() -> StoreLink:
            if not links:
                links.append(StoreLink(self.context, self.endpoint, self.welcome.token, timeout_s))
            return links[0]

        return link

    def _join(self, hello: wire.WorkerHello) -> wire.WorkerWelcome:
        send(self.work, hello)
        if not self.work.poll(int(DISPATCHER_TIMEOUT_S * 1000)):
            raise ConnectionFailed(
                f"no gt server answers at {self.endpoint} within {DISPATCHER_TIMEOUT_S:g} s: start one with "
                "`python -m gt.server -p PORT` and check host and port"
            )
        got = receive(self.work, TO_WORKER)
        if got is None or not isinstance(got[1], wire.WorkerWelcome):
            raise ConnectionFailed(f"expected a welcome from the server at {self.endpoint}, got {got and got[1]}")
        return got[1]

    def run(self) -> None:
        """Work until told to stop."""
        self.io.start()
        poller = zmq.Poller()
        poller.register(self.work, zmq.POLLIN)
        poller.register(self.wake_read, zmq.POLLIN)
        try:
            while not self.stopping:
                poller.poll(2 if self.outlet.unsent else 1000)
                if self.outlet.unsent:
                    self.outlet.retry()
                self.outlet.tidy()
                while not self.stopping:
                    try:
                        got = receive(self.work, TO_WORKER)
                    except ProtocolError as e:
                        self.logger.error("dropped a malformed message: %s", e)
                        continue
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
            send(self.work, wire.Bye())
        self.runner.close()
        remove_sockets(self.bound)
        self.context.destroy(200)
        if self.log is not None:
            self.log.close()

    def stop(self, *_: object) -> None:
        """End soon; at once if the main thread does not come back from a program or a collective."""
        if not self.stopping:
            self.stopping = True
            os.write(self.wake_write, b"x")

    # -- the io thread

    def _io(self) -> None:
        link = make_socket(self.context, zmq.DEALER)
        link.connect(self.endpoint)
        send(link, wire.Attach(self.welcome.token, "link"))
        poller = zmq.Poller()
        for source in (link, self.intake.socket, *([] if self.parent_fd is None else [self.parent_fd])):
            poller.register(source, zmq.POLLIN)
        seen = beat = time.monotonic()
        while not self.stopping:
            ready = dict(poller.poll(int(BEAT_S * 1000)))
            now = time.monotonic()
            if link in ready:
                seen = now
                self._from_link(link)
            if self.intake.socket in ready:
                self._acknowledge(link, self.intake.receive())
            if self.parent_fd in ready or now - seen > DISPATCHER_TIMEOUT_S:
                self.logger.info("the parent or the dispatcher is gone")
                self.stop()
            if now - beat >= BEAT_S:
                beat = now
                send(link, wire.Beat(self.runner.epoch))
                self.intake.openings.sweep()
        deadline = time.monotonic() + GRACE_S
        while threading.main_thread().is_alive() and time.monotonic() < deadline and self.runner.epoch >= 0:
            time.sleep(0.02)
        if self.runner.epoch >= 0:  # stuck in a program: nobody waits for it any more
            remove_sockets(self.bound)
            os._exit(0)
        link.close(0)
        self.intake.socket.close(0)

    def _from_link(self, link: Socket) -> None:
        while True:
            try:
                got = receive(link, TO_WORKER)
            except ProtocolError as e:
                self.logger.error("dropped a malformed message: %s", e)
                continue
            if got is None:
                return
            match got[1]:
                case wire.Expect() as expect:
                    self._acknowledge(link, self.intake.expect(expect))
                case wire.Free(uids):
                    self.intake.cancel(uids)
                case wire.Gone(token):
                    self.intake.forget(token)
                case wire.Abort(worker):
                    self.groups.abort(worker)
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


def work(endpoint: str, backend: str, device: str, parent_fd: int | None = None) -> None:
    """Run a worker in this process until it is told to stop. Errors: ConnectionFailed."""
    worker = WorkerProcess(endpoint, backend, device, parent_fd)
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    worker.run()
    if worker.groups.lost:  # what Gloo left unfinished must not meet the interpreter's end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


@click.command()
@click.option("--connect", required=True)
@click.option("--backend", default="torch")
@click.option("--device", default="cpu")
@click.option("--parent-fd", type=int)
def main(connect: str, backend: str, device: str, parent_fd: int | None) -> None:
    """Run a worker of a local cluster."""
    try:
        work(endpoint_of(connect), backend, device, parent_fd)
    except ConnectionFailed as e:
        sys.exit(f"gt worker: {e}")


if __name__ == "__main__":
    main()

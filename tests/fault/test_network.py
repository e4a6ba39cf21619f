"""Messages that the network loses, repeats or holds up, and connections that end or fall silent, each at a moment by name.

What comes twice is applied once; what comes late is only late; what does not come ends in the right value or in a typed error, in time, and
others notice nothing. ``python -m tests.fault.chaos`` does the same at random, under a training job that goes on.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import psutil
import pytest
import zmq

from gt.ir.program import WireType
from gt.ir.types import float32
from gt.runtime import awake_clock, dispatcher, remote, wire, worker, worker_links
from gt.runtime.collective import CollectiveFailed
from gt.runtime.dispatcher_state import Options
from gt.runtime.errors import ConnectionFailed, DispatcherLost, WorkerLost
from gt.runtime.exit_codes import ExitCode
from gt.runtime.launch import start_local
from gt.runtime.remote import RemoteSession
from gt.runtime.transport import make_socket, receive, send
from tests.fault.fuzz import Cluster, Impostor
from tests.fault.proxy import Fault, Proxied, Proxy, TcpProxy, proxied
from tests.integration.cluster import Desk, rows
from tests.integration.programs import ROOT, environment, held_port, lived, wait_for

pytestmark = pytest.mark.timeout(120)
WITHIN_S = 5.0
N = 200  # 160 KB: large enough to travel by itself
ONES = np.ones((N, N), np.float32)


@contextmanager
def behind_a_proxy() -> Iterator[Proxied]:
    """Two workers; one that ends is replaced."""
    with proxied():
        started = start_local(2, backend="numpy")
    assert isinstance(started, Proxied)
    started.supervise(100)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Proxied]:
    """For tests that end no worker."""
    with behind_a_proxy() as started:
        yield started


@pytest.fixture
def frail() -> Iterator[Proxied]:
    with behind_a_proxy() as started:
        yield started


@contextmanager
def joined(cluster: Proxied) -> Iterator[Desk]:
    """A session, once all workers are there."""
    session = RemoteSession(cluster.address, timeout=20)
    try:
        assert wait_for(lambda: session.num_workers() == 2, 30)
        yield Desk(session)
    finally:
        session.close()


def use(desk: Desk, meet: bool = False) -> None:
    """Upload in both ways, run, read and free, each value checked; ``meet``: in a collective, too."""
    x, w, small = desk.put(ONES, rows()), desk.put(ONES / N), desk.put(np.full((2, 2), 3.0))
    y = desk.run("matmul", (x, (N, N)), (w, (N, N)), frees=(x,))
    counted = desk.run("add", (small, (2, 2)), (small, (2, 2)), frees=(small,))
    if meet:
        total = desk.run("sum", (y, (N, N)), attrs=(("dims", (0,)), ("keepdim", False), ("dtype", float32)))
        assert np.allclose(desk.get(total), N)
    assert np.allclose(desk.get(y), ONES) and np.array_equal(desk.get(counted), np.full((2, 2), 6))
    desk.session.free((w, y, counted))


@pytest.mark.parametrize("kind", ["duplicate", "delay"])
def test_check_08_each_message_is_applied_once_though_all_come_twice_or_late(cluster: Proxied, kind: str) -> None:
    fault = Fault(kind, count=1 << 30, seconds=0.02 if kind == "delay" else 0.0)
    with joined(cluster) as desk:
        cluster.proxy.inject(fault)
        for _ in range(3):
            use(desk, meet=True)
        cluster.proxy.heal()
        assert desk.session.closed is None and desk.session.num_workers() == 2
    assert {"Define", "Run", "Put", "Fetch", "Upload", "Part", "Execute", "Done", "Store", "Expect", "Uploaded"} <= set(fault.done)


@pytest.mark.parametrize("message", ["Run", "Fetch", "Placed", "Upload"])
def test_a_message_between_client_and_server_that_is_lost_ends_that_session_alone(cluster: Proxied, message: str) -> None:
    fault = Fault("drop", message)
    with joined(cluster) as other:
        kept = other.put(ONES)
        assert other.get(kept).sum() == N * N
        with joined(cluster) as desk:
            use(desk)
            cluster.proxy.inject(fault)
            with lived() as seconds:
                with pytest.raises(DispatcherLost, match=r"the link to (the server|worker \d+) at .* is broken: 1 message was lost on the way"):
                    use(desk)
                assert seconds() < WITHIN_S and fault.done
        use(other)
        assert other.get(kept).sum() == N * N and other.session.num_workers() == 2


def test_a_result_that_is_lost_is_asked_for_again(cluster: Proxied) -> None:
    fault = Fault("drop", "Part")
    with joined(cluster) as desk:
        use(desk)
        cluster.proxy.inject(fault)
        with lived() as seconds:
            use(desk)
            assert seconds() < WITHIN_S and fault.done


def test_messages_between_worker_and_server_that_are_lost_end_that_worker(frail: Proxied) -> None:
    for message in ("Execute", "Done", "Uploaded"):
        fault = Fault("drop", message)
        with joined(frail) as desk:
            use(desk)
            frail.proxy.inject(fault)
            with lived() as seconds:
                with pytest.raises(WorkerLost, match=r"worker \d+ .*is cut off: 1 message was lost on the way"):
                    use(desk)
                assert seconds() < WITHIN_S and fault.done


def test_connections_to_the_server_that_break_end_all_that_used_them_and_no_more(frail: Proxied) -> None:
    """ZMQ makes others by itself, which must not pass for the same."""
    with joined(frail) as desk:
        use(desk)
        assert frail.proxy.cut() >= 6
        with lived() as seconds:
            with pytest.raises((DispatcherLost, WorkerLost)):
                while True:
                    use(desk)
            assert seconds() < WITHIN_S
    with joined(frail) as desk:
        use(desk)


def test_connections_to_workers_that_break_cost_a_session_at_most(cluster: Proxied) -> None:
    with joined(cluster) as desk:
        use(desk)
        assert cluster.proxy.cut(data=True) >= 4
        with lived() as seconds:
            with pytest.raises(DispatcherLost, match=r"the link to worker \d+"):
                for _ in range(20):
                    use(desk)
            assert seconds() < WITHIN_S
    with joined(cluster) as desk:
        use(desk)
        assert desk.session.num_workers() == 2


def test_a_token_may_begin_with_a_zero_as_names_that_zmq_gives_do() -> None:
    with closing(Cluster()) as cluster:
        cluster.dispatcher.state.roster.secret = lambda: b"\0" + os.urandom(15)
        with (
            closing(Proxy(cluster.dispatcher.endpoint)) as proxy,
            cluster.running(worker.WorkerProcess(proxy.endpoint, "numpy", "cpu")),
            closing(RemoteSession(proxy.endpoint)) as session,
        ):
            desk = Desk(session)
            assert wait_for(lambda: session.num_workers() == 2)
            assert desk.get(desk.put(ONES, rows())).sum() == N * N


def test_who_comes_in_the_place_of_a_worker_that_has_died_comes_after_its_end_is_known() -> None:
    """Else whoever waits for as many as there were waits for one more than there can be."""
    with closing(Cluster()) as cluster, closing(RemoteSession(cluster.dispatcher.endpoint)) as session:
        words = [sys.executable, "-m", "gt.worker", "-p", cluster.dispatcher.endpoint.rpartition(":")[2]]
        with subprocess.Popen(words, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL) as dies:
            try:
                assert wait_for(lambda: session.workers() == (0, 1))
            finally:
                cluster.dispatcher.state.last_ping = math.inf  # what finds out who has died does not happen by itself
                dies.kill()
        ended = lambda: all(c.status != psutil.CONN_CLOSE_WAIT for c in psutil.Process().net_connections())  # noqa: E731
        assert wait_for(ended)  # ZMQ has found the connections ended
        with cluster.running(worker.WorkerProcess(cluster.dispatcher.endpoint, "numpy", "cpu")):
            assert wait_for(lambda: 2 in session.workers())
            assert session.workers() == (0, 2)


# -- connections over which nothing comes any more, though they seem to be there


@contextmanager
def over_tcp(**options: float) -> Iterator[tuple[Cluster, TcpProxy]]:
    """A dispatcher and a worker of this process, and a way to the dispatcher that can be frozen."""
    started = Cluster(Options(**options))  # type: ignore[arg-type]
    proxy = TcpProxy(int(started.dispatcher.endpoint.rpartition(":")[2]))
    try:
        yield started, proxy
    finally:
        proxy.close()
        started.close()


def test_check_06_a_client_that_vanishes_without_a_word_leaves_nothing_after_its_lease() -> None:
    assert Options().client_lease_s == 10.0
    with over_tcp(client_lease_s=1.5) as (cluster, proxy):
        session, other = RemoteSession(f"127.0.0.1:{proxy.port}"), RemoteSession(cluster.dispatcher.endpoint)
        desk, neighbour = Desk(session), Desk(other)
        kept = neighbour.put(ONES)
        assert desk.get(desk.put(ONES)).sum() == neighbour.get(kept).sum()
        values = cluster.worker.runner.values
        assert len(values) == 2
        (vanished,) = (c for c in cluster.dispatcher.state.clients.values() if c.id == session._welcome.client)
        with lived() as seconds:
            proxy.freeze()
            assert wait_for(lambda: len(values) == 1)
            assert seconds() < 3.0
        assert cluster.dispatcher.state.now - min(vanished.seen, vanished.up_seen) > 1.5
        with pytest.raises(DispatcherLost, match="stopped answering"):
            session.fetch(1).result(10)
        assert neighbour.get(kept).sum() == N * N and other.closed is None
        session.close()
        other.close()


def cut_off_worker(proxy: TcpProxy) -> worker.WorkerProcess:
    return worker.WorkerProcess(f"tcp://127.0.0.1:{proxy.port}", "numpy", "cpu")


def test_a_worker_behind_a_connection_that_is_half_open_is_lost_in_time_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "DISPATCHER_TIMEOUT_S", 4.0)
    with over_tcp() as (cluster, proxy), cluster.running(cut_off_worker(proxy)) as far:
        session = RemoteSession(cluster.dispatcher.endpoint)
        assert wait_for(lambda: session.num_workers() == 2)
        desk = Desk(session)
        x = desk.put(ONES, rows())
        assert desk.get(x).sum() == N * N
        proxy.freeze()
        with lived() as seconds:
            with pytest.raises(WorkerLost, match=rf"worker {far.welcome.worker} \(pid \d+ on .*\) stopped answering"):
                desk.get(desk.run("add", (x, (N, N)), (x, (N, N))))
            assert seconds() < WITHIN_S
        assert wait_for(lambda: not far.io.is_alive(), 10) and far.deserted
        session.close()


def test_where_the_whole_machine_stood_still_nobody_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that runs again has heard nothing for longer than it waits for the others, who could say nothing."""
    still_s = 0.0
    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: time.monotonic() + still_s})
    for module in (awake_clock, dispatcher, remote, worker):
        monkeypatch.setattr(module, "time", clock)
    with over_tcp() as (cluster, _):
        session = RemoteSession(cluster.dispatcher.endpoint)
        desk = Desk(session)
        kept = desk.put(ONES)
        for _ in range(5):
            assert desk.get(kept).sum() == N * N
            still_s += max(remote.DISPATCHER_TIMEOUT_S, worker.DISPATCHER_TIMEOUT_S, Options().client_lease_s) + 1
            time.sleep(0.3)  # the dispatcher looks around ten times a second
        assert desk.get(kept).sum() == N * N and session.num_workers() == 1
        session.close()


def test_check_07_after_a_partition_of_three_seconds_everything_has_run_once() -> None:
    with over_tcp() as (cluster, proxy), cluster.running(cut_off_worker(proxy)):
        session = RemoteSession(cluster.dispatcher.endpoint)
        assert wait_for(lambda: session.num_workers() == 2)
        desk = Desk(session)
        x, one = desk.put(ONES, rows()), desk.put(ONES, rows())
        for turn in range(1, 60):
            x = desk.run("add", (x, (N, N)), (one, (N, N)), frees=(x,))
            if turn == 30:
                assert desk.get(x).min() == 31
                proxy.freeze()
                thawed = cluster.dispatcher.state.now + 3  # by the clock of who waits for the worker
            if turn == 36:  # these wait on the way
                while cluster.dispatcher.state.now < thawed:
                    time.sleep(0.05)
                proxy.freeze(False)
        assert desk.get(x).min() == desk.get(x).max() == 60 and session.num_workers() == 2
        session.close()


def test_results_go_by_the_connection_that_came_last() -> None:
    """A client whose connection broke has another before the worker knows: that one must not be ignored for the old one's sake."""
    with over_tcp() as (cluster, _):
        session = RemoteSession(cluster.dispatcher.endpoint)
        desk = Desk(session)
        x = desk.put(ONES)
        assert desk.get(x).sum() == N * N
        context = zmq.Context()
        again = make_socket(context, zmq.DEALER, data=True, identity=session._welcome.token)
        again.connect(cluster.worker.bound[1])
        assert wait_for(lambda: (session.fetch(x), again.poll(200))[1], 10)
        context.destroy(0)
        session.close()


def test_a_worker_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_links, "REACH_S", 1.0)
    context = zmq.Context()
    impostor = Impostor(context)
    session = RemoteSession(impostor.endpoint, timeout=20)
    try:
        nowhere = "tcp://127.0.0.1:9"
        impostor.say(impostor.peers[0], [wire.encode(wire.Workers(((7, nowhere, nowhere, ""),)))])
        with pytest.raises(ConnectionFailed, match=rf"worker 7 \({nowhere}\) cannot be reached within 1 s"):
            session.fetch(1).result(30)
    finally:
        session.close()
        impostor.close()
        context.destroy(0)


class Server:
    """What answers at an address, for a test to play."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], port: int | str = "*") -> None:
        self.router = make_socket(context, zmq.ROUTER)
        assert wait_for(lambda: self._bound(f"tcp://127.0.0.1:{port}"))
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")

    def _bound(self, endpoint: str) -> bool:
        with suppress(zmq.ZMQError):  # ZMQ closes the socket before in its own time
            self.router.bind(endpoint)
            return True
        return False

    def hear(self, kind: type[wire.Message]) -> bytes:
        """Give who says the next message of a kind."""
        while self.router.poll(10_000):
            peer, message, _ = receive(self.router, wire.FROM_PEERS, routed=True)
            if isinstance(message, kind):
                return peer
        raise AssertionError(f"no {kind.__name__} came")


def test_an_upload_that_comes_too_late_for_a_lost_server_is_not_kept_for_the_next() -> None:
    context, ticket, kind = zmq.Context(), bytes(16), WireType((N, N), "float32")
    with held_port() as port, ThreadPoolExecutor(2) as threads:
        first = Server(context, port)
        made = threads.submit(worker.WorkerProcess, first.endpoint, "numpy", "cpu", lease_s=30.0)
        send(first.router, wire.WorkerWelcome(0, b"a" * 16, 1), peer=first.hear(wire.WorkerHello))
        far = made.result(10)
        threads.submit(far.run)
        try:
            send(first.router, wire.Expect(7, ticket, kind, (N, N)), peer=first.hear(wire.Attach))
            assert wait_for(lambda: far.intake.expected)
            store = far.groups.rendezvous()
            first.router.close(0)
            second = Server(context, port)
            main = second.hear(wire.WorkerHello)  # it has said what it has
            client = make_socket(context, zmq.DEALER, data=True)
            client.connect(far.bound[0])
            send(client, wire.Upload(ticket, kind), memoryview(ONES).cast("B"))
            assert wait_for(lambda: 7 in far.uploads)
            send(second.router, wire.WorkerWelcome(0, b"b" * 16, 2), peer=main)
            send(second.router, wire.Execute(1, 5, (), (), (), ()), peer=main)
            second.hear(wire.Done)
            assert far.uploads == {} and far.runner.state.values == set() and len(far.runner.values) == 0
            assert store.socket.closed and far.groups.rendezvous() is not store  # type: ignore[attr-defined]
            with pytest.raises(CollectiveFailed, match="the dispatcher is lost"):
                store.call("get", ("g1/x",))
        finally:
            far.stop()
            context.destroy(0)


def test_a_worker_whose_io_thread_fails_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    context = zmq.Context()
    server = Server(context)
    with ThreadPoolExecutor(2) as threads:
        made = threads.submit(worker.WorkerProcess, server.endpoint, "numpy", "cpu", lease_s=30.0)
        send(server.router, wire.WorkerWelcome(0, b"a" * 16, 1), peer=server.hear(wire.WorkerHello))
        far = made.result(10)
        monkeypatch.setattr(far.intake, "tidy", lambda now: 1 / 0)
        running = threads.submit(far.run)
        try:
            server.hear(wire.Bye)
            running.result(10)
            assert far.cut_off == "its io thread failed: ZeroDivisionError: division by zero"
        finally:
            far.stop()
            context.destroy(0)


def test_a_worker_that_is_cut_off_in_a_program_ends_with_an_exit_code_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "GRACE_S", 0.0)
    codes: list[int] = []
    monkeypatch.setattr(worker.os, "_exit", lambda code: codes.append(int(code)))
    for cut_off in ("", "messages were lost"):
        stuck = object.__new__(worker.WorkerProcess)
        stuck.cut_off, stuck.deserted, stuck.bound, stuck.gate = cut_off, False, [], None
        stuck.at_edge, stuck.intake = False, MagicMock()
        stuck._end(None)
    assert codes == [ExitCode.OK, ExitCode.SERVER_LOST]

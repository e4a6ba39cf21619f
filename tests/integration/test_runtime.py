"""The runtime with real processes and sockets: values are right, clients do not meet, nothing is left behind."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zmq

import gt
from gt.ir.types import float32
from gt.runtime.errors import ConnectionFailed, LaunchError, ProtocolError, RunError, SessionClosed
from gt.runtime.launch import LocalCluster, start_local
from gt.runtime.remote import RemoteSession
from gt.runtime.transport import make_socket
from gt.runtime.wire import Message
from tests.integration.cluster import Desk, cols, rows
from tests.integration.programs import gone, lived, wait_for

pytestmark = pytest.mark.timeout(120)
SUM_ROWS = (("dims", (0,)), ("keepdim", False), ("dtype", float32))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=[1, 2, 4])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    started = start_local(request.param, backend="numpy")
    yield started
    started.stop()


@pytest.fixture
def desk(cluster: LocalCluster) -> Iterator[Desk]:
    session = RemoteSession(cluster.address, timeout=60)
    assert session.num_workers() == len(cluster.workers)
    yield Desk(session)
    session.close()


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,), (7, 5), (300, 301)], ids=str)
@pytest.mark.parametrize("signal", [None, rows(), cols()], ids=["whole", "rows", "cols"])
def test_put_and_fetch_give_the_same_array(desk, shape, signal):
    array = numbers(*shape)
    assert np.array_equal(desk.get(desk.put(array, signal)), array)


def test_a_chain_of_runs(desk):
    x = desk.put(np.ones((4, 4)))
    for _ in range(50):
        x = desk.run("add", (x, (4, 4)), (x, (4, 4)), frees=(x,))
    assert np.array_equal(desk.get(x), np.full((4, 4), 2.0**50, np.float32))


@pytest.mark.parametrize("left", [None, rows(), cols()], ids=["whole", "rows", "cols"])
@pytest.mark.parametrize("right", [None, rows(), cols()], ids=["whole", "rows", "cols"])
def test_matmul_under_every_placement(desk, left, right):
    a, b = numbers(130, 65), numbers(65, 70, seed=1)
    out = desk.run("matmul", (desk.put(a, left), a.shape), (desk.put(b, right), b.shape))
    np.testing.assert_allclose(desk.get(out), a @ b, rtol=1e-4, atol=1e-4)


def test_a_sum_over_a_sharded_dim_is_reduced_between_workers(desk):
    a = numbers(1001, 40)
    out = desk.run("sum", (desk.put(a, rows()), a.shape), attrs=SUM_ROWS)
    np.testing.assert_allclose(desk.get(out), a.sum(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("op", "of"), [("amax", np.max), ("amin", np.min)])
def test_the_largest_of_rows_is_nan_whichever_worker_has_the_nan(desk, op, of):
    for row in range(8):
        a = numbers(8, 3)
        a[row, 0], a[(row + 3) % 8, 0], a[row, 1] = np.nan, np.inf, -np.inf
        out = desk.run(op, (desk.put(a, rows()), a.shape), attrs=(("dims", (0,)), ("keepdim", False)))
        np.testing.assert_array_equal(desk.get(out), of(a, 0), err_msg=f"row {row}")


def test_a_mistake_fails_its_dependants_and_nothing_else(desk):
    x = desk.put(np.ones((2, 2)))
    desk.session.run(999, [x], [5000], [], [])
    late = desk.run("add", (5000, (2, 2)), (x, (2, 2)))
    with pytest.raises(ProtocolError, match="never defined"):
        desk.get(late)
    with pytest.raises(ProtocolError, match="not there"):
        desk.get(123456)
    y = desk.run("add", (x, (3, 3)), (x, (3, 3)))
    with pytest.raises((ProtocolError, RunError)):
        desk.get(y)
    assert desk.get(desk.run("add", (x, (2, 2)), (x, (2, 2)))).tolist() == [[2, 2], [2, 2]]


def test_the_window_bounds_runs_in_flight_and_lets_go(desk):
    x = desk.put(np.ones((4, 4)))
    outs = [desk.run("add", (x, (4, 4)), (x, (4, 4))) for _ in range(100)]
    assert all(desk.get(o)[0, 0] == 2 for o in outs)


def test_who_reads_again_and_again_receives_the_answers_itself(desk, monkeypatch):
    heard: list[tuple[str, str]] = []
    got = RemoteSession._got

    def told(self: RemoteSession, message: Message, *rest: Any) -> None:
        heard.append((type(message).__name__, threading.current_thread().name))
        got(self, message, *rest)

    monkeypatch.setattr(RemoteSession, "_got", told)
    x = desk.put(np.ones((4, 4)))
    desk.run("add", (x, (4, 4)), (x, (4, 4)))
    n = 1000
    while heard.count(("Answer", "MainThread")) < 6:  # on a busy machine the io thread hears many
        n += 1
        future = desk.session.run(1, [x, x], [n], [], [n - 1] if n > 1001 else [], reads=0)
        array = future.result(30.0)
        assert array.flags.writeable and np.array_equal(array, np.full((4, 4), 2.0))
    kinds = [kind for kind, _ in heard]
    assert kinds.count("Answer") == n - 1000 and "Part" not in kinds
    assert desk.session.status().clients  # from now on nobody reads
    before = len(heard)
    desk.session.run(1, [x, x], [999], [], [])
    assert wait_for(lambda: ("Progress", "gt-client") in heard[before:])
    with pytest.raises(ProtocolError, match="not there"):  # which the io thread hears
        desk.session.fetch(123456).result(30.0)
    assert np.array_equal(desk.session.fetch(999).result(30.0), np.full((4, 4), 2.0))


def test_threads_of_one_session_read_each_its_own(desk):
    x = {n: desk.put(np.full((2, 2), float(n))) for n in range(4)}
    desk.run("add", (x[0], (2, 2)), (x[1], (2, 2)))
    wrong: list[Any] = []

    def read(n: int) -> None:
        for i in range(60):
            out = 10_000 * (n + 1) + i
            future = desk.session.run(1, [x[n], x[n]], [out], [], [], reads=0)
            if i % 7 == 0:
                future = desk.session.fetch(out)
            if not np.array_equal(future.result(30.0), np.full((2, 2), 2.0 * n)):
                wrong.append((n, i))

    threads = [threading.Thread(target=read, args=(n,)) for n in x]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == [] and not any(thread.is_alive() for thread in threads)


def test_a_signals_handler_may_read_while_the_main_thread_receives(desk):
    x = desk.put(np.ones((4, 4)))
    read: list[float] = []

    def handle(*_: object) -> None:
        read.append(float(desk.get(x, 10.0)[0, 0]))
        signal.setitimer(signal.ITIMER_REAL, 0.003)  # from here on: on a slow machine else one would begin in the other

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.003)
    try:
        while len(read) < 100:
            assert desk.get(x)[0, 0] == 1.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert set(read) == {1.0}


def test_a_finalizer_that_reads_where_a_caller_receives_is_refused(cluster, monkeypatch):
    gt.connect(cluster.address)
    x, got, told = gt.ones(2), RemoteSession._got, []

    class Dropped:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            if threading.current_thread() is threading.main_thread():
                try:
                    x.tolist()
                except RuntimeError as e:
                    told.append(str(e))

    def drop(self: RemoteSession, *message: Any) -> None:
        Dropped()
        gc.collect(0)
        got(self, *message)

    x.tolist()
    monkeypatch.setattr(RemoteSession, "_got", drop)
    for n in range(50):
        assert (x + n).tolist() == [1.0 + n] * 2
    monkeypatch.undo()
    gt.disconnect()
    assert told and all("one of gt's own threads" in text for text in told)


def test_finalizers_that_upload_and_read_wait_for_nobody_in_any_thread(cluster):
    gt.connect(cluster.address)
    before, until = gc.get_threshold(), time.monotonic() + 4.0
    seen: list[bool] = []
    wrong: list[Any] = []

    class Dropped:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            try:
                seen.append(gt.from_numpy(np.full(50_000, 2.0, np.float32)).sum().item() == 100_000.0)
            except RuntimeError as e:  # on a thread that receives
                if "one of gt's own threads" not in str(e):
                    wrong.append(e)

    begun = threading.Barrier(3)

    def work(n: int) -> None:
        count = 0
        assert gt.from_numpy(np.ones(1, np.float32)).sum().item() == 1
        begun.wait(30)
        while time.monotonic() < until:
            count += 1
            gc.set_threshold(3 + count % 60)
            Dropped()
            x = gt.from_numpy(np.full(30_000, float(n), np.float32))
            if (x.sum() / 30_000).item() != n or (x[:2] + count).tolist() != [n + count] * 2:
                wrong.append((n, count))

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(1, 4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not any(thread.is_alive() for thread in threads) and gc.isenabled()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    gt.disconnect()
    assert wrong == [] and len(seen) > 10 and all(seen)


def hammer(address: str, seed: int, count: int, wrong: list[str]) -> None:
    session = RemoteSession(address, timeout=60)
    try:
        desk = Desk(session)
        big = numbers(150, 150, seed=seed)
        x, base = desk.put(np.full((3, 3), float(seed))), desk.put(big, rows())
        for i in range(count):
            x = desk.run("add", (x, (3, 3)), (x, (3, 3)), frees=(x,)) if i % 20 else desk.put(np.full((3, 3), seed + i))
            expected = float(seed + i - i % 20) * 2.0 ** (i % 20)
            got = desk.get(x)
            if not np.array_equal(got, np.full((3, 3), expected, np.float32)):
                wrong.append(f"client {seed} fetch {i}: {got[0, 0]} instead of {expected}")
            if i % 10 == 0 and not np.array_equal(desk.get(base), big):
                wrong.append(f"client {seed} fetch {i}: the large one")
    except Exception as e:
        wrong.append(f"client {seed}: {type(e).__name__}: {e}")
    finally:
        session.close()


@pytest.mark.parametrize("num_clients", [2, 4, 16])
def test_many_clients_at_once_get_their_own_values(pair, num_clients):
    wrong: list[str] = []
    clients = [
        threading.Thread(target=hammer, args=(pair.address, i, 1000 // num_clients, wrong)) for i in range(num_clients)
    ]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    assert wrong == []


def test_malformed_messages_stop_nobody(pair):
    session = RemoteSession(pair.address, timeout=60)
    context: zmq.Context = zmq.Context()
    noise = make_socket(context, zmq.DEALER)
    noise.connect(pair.address)
    rng = np.random.default_rng(0)
    for size in (0, 1, 3, 50, 4000):
        for first in (b"", b"\x01", b"\x01\x91" * 40):
            noise.send_multipart([first + rng.bytes(size)] + [b"x"] * (size % 4))
    noise.send(b"\x01" + b"\x91" * 200_000)
    for upload, results, _ in session._links.present.values():
        for endpoint in (upload, results):
            raw = make_socket(context, zmq.DEALER)
            raw.connect(endpoint)
            raw.send_multipart([b"\x01" + rng.bytes(100), rng.bytes(10)])
    desk = Desk(session)
    array = numbers(200, 200)
    assert np.array_equal(desk.get(desk.put(array, rows())), array)
    assert np.array_equal(desk.get(desk.put(array[:2])), array[:2])
    context.destroy(0)
    session.close()
    assert all(p.poll() is None for p in pair.processes)


def worker_memory(cluster: LocalCluster) -> int:
    return sum(psutil.Process(p.pid).memory_info().rss for p in cluster.workers)


def test_an_exited_client_gives_its_memory_back(pair):
    before = worker_memory(pair)
    session = RemoteSession(pair.address, timeout=60)
    desk = Desk(session)
    array = np.ones((4 << 20,), np.float32)
    buffers = [desk.put(array) for _ in range(8)]
    assert desk.get(buffers[-1])[0] == 1
    assert wait_for(lambda: worker_memory(pair) > before + 2 * 7 * array.nbytes)  # one worker may have less by now than who was read
    session.close()
    assert wait_for(lambda: worker_memory(pair) < before + 2 * 2 * array.nbytes)


def test_a_closed_session_says_so(pair):
    session = RemoteSession(pair.address, timeout=60)
    desk = Desk(session)
    x = desk.put(np.ones((2, 2)))
    session.close()
    session.close()
    session.free([x])
    with pytest.raises(SessionClosed):
        session.fetch(x)


def test_nothing_at_the_address_is_an_error_in_time():
    with lived() as seconds, pytest.raises(ConnectionFailed, match=r"127.0.0.1:1 within 1 s: start one with"):
        RemoteSession("127.0.0.1:1", timeout=1.0)
    assert seconds() < 3
    with pytest.raises(ValueError, match="localhost:12345"):
        RemoteSession("nowhere")


def test_stopping_leaves_no_process_file_or_descriptor():
    open_before = psutil.Process().num_fds()
    cluster = start_local(2, backend="numpy")
    session = RemoteSession(cluster.address, timeout=60)
    children = [psutil.Process(p.pid) for p in cluster.processes]
    children += [c for p in children for c in p.children(recursive=True)]
    assert len(children) == 4  # dispatcher, its planner, two workers
    assert cluster.folder.stat().st_mode & 0o077 == 0
    assert [c for p in children for c in p.net_connections() if c.status == "LISTEN"] == []
    session.close()
    cluster.stop()
    cluster.stop()
    assert wait_for(lambda: gone(children))
    assert not cluster.folder.exists()
    assert psutil.Process().num_fds() <= open_before + 1


def test_children_end_with_a_killed_parent():
    code = (
        "import time\nfrom gt.runtime.launch import start_local\nc = start_local(2, backend='numpy')\n"
        "print(c.folder, *[p.pid for p in c.processes], flush=True)\ntime.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE)
    folder, *names = parent.stdout.readline().decode().split()
    children = [psutil.Process(int(n)) for n in names]
    assert len(children) == 3
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_for(lambda: gone(children))
    assert wait_for(lambda: not Path(folder).exists())


def test_a_worker_that_dies_at_start_is_reported_with_its_stderr(monkeypatch):
    monkeypatch.setenv("GT_GROUP_TIMEOUT", "soon")
    with pytest.raises(LaunchError, match=r"worker0 process ended(.|\n)*GT_GROUP_TIMEOUT='soon'"):
        start_local(1, backend="numpy")


@pytest.mark.parametrize("num_workers", [2])
def test_torch_workers_agree_with_numpy(num_workers):
    cluster = start_local(num_workers, backend="torch")
    session = RemoteSession(cluster.address, timeout=60)
    try:
        desk = Desk(session)
        a, b = numbers(66, 40), numbers(40, 30, seed=1)
        for left, right in ((rows(), None), (cols(), rows()), (rows(), rows())):
            out = desk.run("matmul", (desk.put(a, left), a.shape), (desk.put(b, right), b.shape))
            np.testing.assert_allclose(desk.get(out, 60), a @ b, rtol=1e-4, atol=1e-4)
    finally:
        session.close()
        cluster.stop()


def test_the_server_and_worker_commands():
    server = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", "0"], cwd=ROOT, stdout=subprocess.PIPE)
    address = server.stdout.readline().decode().split()[1].removeprefix("tcp://")
    command = [
        sys.executable,
        "-m",
        "gt.worker",
        "--host",
        "localhost",
        "-p",
        address.split(":")[1],
        "--backend",
        "numpy",
    ]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(2)]
    try:
        taken = subprocess.run(
            [sys.executable, "-m", "gt.server", "-p", address.split(":")[1]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert taken.returncode == 2 and "is in use" in taken.stderr
        session = RemoteSession(address, timeout=60)
        assert wait_for(lambda: session.num_workers() == 2, 60)
        desk = Desk(session)
        a = numbers(300, 100)
        out = desk.run("sum", (desk.put(a, rows()), a.shape), attrs=SUM_ROWS)
        np.testing.assert_allclose(desk.get(out), a.sum(0), rtol=1e-3, atol=1e-3)
        listening = [
            c for p in (server, *workers) for c in psutil.Process(p.pid).net_connections() if c.status == "LISTEN"
        ]
        assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
        session.close()
    finally:
        server.terminate()
        codes = [p.wait(60) for p in (server, *workers)]
        server.stdout.close()
    assert codes == [0, 0, 0]


def test_a_server_for_other_machines_wants_to_be_asked_twice():
    open_host = subprocess.run(
        [sys.executable, "-m", "gt.server", "--host", "0.0.0.0", "-p", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert open_host.returncode == 2 and "--insecure" in open_host.stderr and "--key" in open_host.stderr

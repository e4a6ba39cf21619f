"""Many client processes on one server: everyone gets their own values, whatever mistakes the others make."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq

from tests.integration.programs import ROOT, Server, environment, output, run, server, start, wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(2) as started:
        # The first run with a collective makes the workers' group, which imports torch: not in the tests' time and memory.
        output(HOLDS, tmp_path_factory.mktemp("first"), started.address, "return")
        yield started
        assert [p.poll() for p in (started.process, *started.workers)] == [None] * 3


def together(there: Server, clients: list[tuple[str, int]]) -> list[str]:
    """Let clients work at the same time; give what went wrong."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.integration.one_client", there.address, str(i + 1), str(fetches), kind],
            cwd=ROOT, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for i, (kind, fetches) in enumerate(clients)
    ]  # fmt: skip
    wrong: list[str] = []
    for p in processes:
        assert p.stdout is not None and p.stdout.readline() == "ready\n"
    for p in processes:
        assert p.stdin is not None
        p.stdin.write("go\n")
        p.stdin.flush()
    for p in processes:
        out, _ = p.communicate(timeout=250)
        wrong += json.loads(out) if p.returncode == 0 else [f"a client ended with {p.returncode}"]
    return wrong


@pytest.mark.parametrize(("clients", "fetches"), [(2, 500), (4, 250), (16, 64)])
def test_every_fetch_of_every_client_is_right(pair: Server, clients: int, fetches: int) -> None:
    assert together(pair, [("good", fetches)] * clients) == []


def noise(there: Server, until: threading.Event) -> None:
    """Send what is no message, to the server's port and in the shape of one."""
    context: zmq.Context = zmq.Context()
    rng = np.random.default_rng(0)
    while not until.wait(0.02):
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{there.port}")
        for size in (0, 1, 40, 4000):
            socket.send_multipart([b"\x01" + rng.bytes(size)] + [b"x"] * (size % 3))
            socket.send_multipart([b"\x01\x93\xa3Run" + rng.bytes(size)])
        socket.poll(5)
        socket.close()
    context.destroy(0)


def test_mistakes_and_noise_stop_nobody(pair: Server) -> None:
    done = threading.Event()
    sender = threading.Thread(target=noise, args=(pair, done))
    sender.start()
    try:
        assert together(pair, [("good", 200), ("faulty", 100), ("good", 200), ("faulty", 100)]) == []
    finally:
        done.set()
        sender.join()


HOLDS = """
import sys
import numpy as np
import gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
with gt.signal.context("rows"):
    held = [gt.from_numpy(np.ones((8 << 20,), np.float32)) for _ in range(3)]
held.append(held[0] + 1)
print(held[-1].sum().item(), held[2].sum().item(), flush=True)
if sys.argv[2] == "wait":
    sys.stdin.readline()
if sys.argv[2] == "fail":
    raise ValueError("the user's own")
"""
HELD = 4 * (8 << 20) * 4


@pytest.mark.parametrize("how", ["return", "fail", "kill"])
def test_an_exited_clients_memory_is_given_back(pair: Server, how: str, tmp_path: Path) -> None:
    before = pair.memory()
    with start(HOLDS, tmp_path, pair.address, "wait" if how == "kill" else how) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == f"{2.0 * (8 << 20)} {1.0 * (8 << 20)}\n"
        if how == "kill":
            assert pair.memory() > before + HELD / 2
            client.send_signal(signal.SIGKILL)
        client.communicate(timeout=60)
    # The C library may keep a freed block or two for its next use.
    assert wait_for(lambda: pair.memory() < before + HELD / 3, 30), (pair.memory(), before, HELD)


LETS_GO = """
import sys
import numpy as np
import gt
gt.connect(sys.argv[1])
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
with gt.signal.context("rows"):
    held = [gt.from_numpy(np.full((4 << 20,), i, np.float32)) for i in range(16)]
    between = [gt.from_numpy(np.full((64,), i, np.float32)) for i in range(16)]
print(sum(x.sum().item() for x in held), flush=True)
sys.stdin.readline()
while held:  # a message each
    del held[0]
    gt.ones(2).sum().item()
print("gone", flush=True)
sys.stdin.readline()
"""


def test_what_a_client_lets_go_of_in_small_pieces_is_given_back_when_the_workers_have_nothing_to_do(
    pair: Server, tmp_path: Path
) -> None:
    with start(LETS_GO, tmp_path, pair.address) as client:
        assert client.stdout is not None and client.stdin is not None
        assert client.stdout.readline() == f"{sum(range(16)) * float(4 << 20)}\n"
        held = pair.memory()
        print(file=client.stdin, flush=True)
        assert client.stdout.readline() == "gone\n"
        assert wait_for(lambda: pair.memory() < held - 16 * (4 << 20) * 4 * 3 / 4, 30), (pair.memory(), held)
        client.communicate("\n", timeout=60)


def test_a_server_without_workers_says_so_at_the_clients(tmp_path: Path) -> None:
    code = """
        import gt, sys
        gt.connect(sys.argv[1])
        print(gt.num_workers())
        a, b = gt.tensor([1.0, 2.0]), gt.tensor([3.0, 4.0])
        if sys.argv[2] == "later":
            print((a + b).tolist())
    """
    with server() as there:
        assert output(code, tmp_path, there.address, "never") == "0\n"
        client = start(code, tmp_path, there.address, "later")
        assert client.stdout is not None and client.stdout.readline() == "0\n"
        there.add_workers(1)
        assert client.communicate(timeout=60)[0] == "[4.0, 6.0]\n"


def test_no_server_at_the_address_is_told_within_five_seconds(tmp_path: Path) -> None:
    code = """
        import gt
        import gt.starting  # which takes its time
        from tests.integration.programs import lived
        try:
            with lived() as seconds:
                gt.connect("localhost:1")
        except ConnectionError as e:
            print(e)
            assert seconds() < 5.5, seconds()
        print((gt.ones(2) + 1).tolist())
    """
    lines = output(code, tmp_path).splitlines()
    assert lines[0].startswith("no gt server answers at localhost:1 within 5 s: start one with `python -m gt.server -p PORT`")
    assert lines[1] == "[2.0, 2.0]"


def test_what_is_no_gt_server_is_told_apart(tmp_path: Path) -> None:
    context: zmq.Context = zmq.Context()
    other = context.socket(zmq.ROUTER)
    port = other.bind_to_random_port("tcp://127.0.0.1")

    def answer() -> None:
        if other.poll(60_000):
            peer, *_ = other.recv_multipart()
            other.send_multipart([peer, b"\x07hello"])

    thread = threading.Thread(target=answer)
    thread.start()
    done = run(f"import gt\ngt.connect('localhost:{port}')", tmp_path)
    thread.join()
    context.destroy(0)
    assert done.code == 1 and f"what answers at localhost:{port} is not a gt server of this version" in done.err


def test_a_client_stays_light() -> None:
    """A client and a server load no torch, which alone would take 200 MB; nor a client what takes long and is not needed."""
    assert psutil  # the server's own
    code = (
        "import gt, sys; gt.connect(sys.argv[1]); print((gt.ones(3) * 2).tolist(), "
        "[name for name in ('torch', 'asyncio', 'importlib.metadata') if name in sys.modules])"
    )
    with server(1) as there:
        done = subprocess.run(
            [sys.executable, "-c", code, there.address], env=environment(), text=True, capture_output=True, timeout=60
        )
        assert done.stdout == "[2.0, 2.0, 2.0] []\n", done.stderr
        assert not any("torch" in m.path for m in psutil.Process(there.process.pid).memory_maps())

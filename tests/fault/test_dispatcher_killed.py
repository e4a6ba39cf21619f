"""A server killed under its clients: the error they see, and what they find when it is started again."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gt.runtime import wire
from gt.runtime.errors import ConnectionFailed, DispatcherLost
from gt.runtime.exit_codes import ExitCode
from gt.runtime.keys import make_keys, read_keys
from gt.runtime.log_lines import read_log
from gt.runtime.recovering import RecoveringSession
from gt.runtime.remote import RemoteSession
from gt.runtime.status_request import StatusLink
from gt.timelines import timeline_of
from tests.fault.proxy import TcpProxy
from tests.integration.cluster import Desk, rows
from tests.integration.programs import ROOT, Server, environment, held_port, lived, server, start, wait_for

pytestmark = pytest.mark.timeout(120)
WITHIN_S = 5.0
N, ROWS = 8, 1 << 20

TRAIN = """
import sys
import numpy as np
import gt
gt.connect(sys.argv[1])
gt.manual_seed(3)
model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Linear(16, 1))
optimizer = gt.optim.Adam(model.parameters(), lr=0.01)
rng, steps, killed, told = np.random.default_rng(5), 0, sys.argv[2] != "quiet", sys.argv[2] == "told"
while steps < 200 or (killed and not gt.recoveries()):
    x = gt.from_numpy(rng.normal(size=(32, 8)).astype(np.float32))
    loss = ((model(x) - x.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    steps += 1
    if steps % 5 == 0:
        if told and steps > 20:
            print("reading", flush=True)
        try:
            loss.item()
        except gt.DispatcherLost as e:
            print("lost", e, flush=True)
            killed = told = gt.connect(sys.argv[1], 60)
            loss.item()  # it is still there, or made again
    if steps == 20:
        print("ready", flush=True)
        told and sys.stdin.readline()
    if steps == 200:
        print("at 200", [p.detach().numpy().tobytes().hex() for p in model.parameters()], flush=True)
"""

LINE = TRAIN.lstrip().splitlines().index("            loss.item()") + 1

# A server whose clients' lease is short.
SERVE = "import sys\nfrom gt.runtime.dispatcher import serve\nfrom gt.runtime.dispatcher_state import Options\n" \
        "from gt.server import new_generation\n" \
        "serve('tcp://127.0.0.1:' + sys.argv[1], Options(generation=new_generation(), client_lease_s=2.0), None, 1)"  # fmt: skip


class Restartable:
    """A server at one port, which can be killed and started again, and its workers."""

    def __init__(self, port: int, *words: str, **variables: str) -> None:
        self.port, self.words, self.variables = port, words, variables
        self.server = Server(self._start(), port)
        self.server.await_port()

    def _start(self) -> subprocess.Popen[str]:
        words = [w.replace("PORT", str(self.port)) for w in self.words]
        return subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment(**self.variables), stdout=subprocess.PIPE, text=True)

    def kill(self) -> None:
        self.server.process.kill()
        self.server.process.communicate()

    def restart(self) -> None:
        self.server.process = self._start()

    def close(self) -> None:
        alive = self.server.process.poll() is None  # else nobody tells the workers
        self.server.process.terminate()
        for process in (self.server.process, *self.server.workers):
            if not alive:
                process.kill()
            process.communicate(timeout=20)


@contextlib.contextmanager
def restartable(*words: str, **variables: str) -> Iterator[Restartable]:
    with held_port() as port:
        made = Restartable(port, *words, **variables)
        try:
            yield made
        finally:
            made.close()


def test_a_training_loop_hears_of_it_and_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    """With keys, and killed in the middle of steps. The instruction log has each of them in one lane."""
    log = str(tmp_path / "ops.log")
    (tmp_path / "keys").mkdir(mode=0o700)
    make_keys(tmp_path / "keys", ("client",), ("worker",))
    keys = {name: str(tmp_path / "keys" / f"{name}.key") for name in ("server", "client", "worker")}
    with restartable("-m", "gt.server", "-p", "PORT", GT_KEY_FILE=keys["server"], GT_INSTRUCTION_LOG=log) as there:
        address = there.server.address
        there.server.add_workers(1, GT_KEY_FILE=keys["worker"], GT_INSTRUCTION_LOG=log)
        with start(TRAIN, tmp_path, address, "quiet", GT_KEY_FILE=keys["client"]) as quiet:
            out, err = quiet.communicate(timeout=60)
        assert quiet.returncode == 0, err
        want = out.splitlines()[-1]
        with start(TRAIN, tmp_path, address, "told", GT_KEY_FILE=keys["client"], GT_INSTRUCTION_LOG=log) as script:
            assert script.stdin is not None and script.stdout is not None and script.stdout.readline() == "ready\n"
            there.server.workers[0].send_signal(signal.SIGSTOP)  # so that the next read waits, until the kill
            script.stdin.write("\n")
            script.stdin.flush()
            assert script.stdout.readline() == "reading\n"
            with lived() as seconds:
                there.kill()
                there.server.workers[0].send_signal(signal.SIGCONT)
                lost = script.stdout.readline()
                assert seconds() < WITHIN_S
            assert re.search(rf"^lost the gt server at {address} died; .* start.* again .*\(at .*script\.py:{LINE}\)", lost), lost
            there.restart()
            out, err = script.communicate(timeout=60)
            assert (script.returncode, err) == (0, "")
        assert out.splitlines()[-1] == want  # bit for bit
        with start(TRAIN, tmp_path, address, "killed", GT_KEY_FILE=keys["client"], GT_RECOVER="1", GT_INSTRUCTION_LOG=log) as script:
            assert script.stdout is not None and script.stdout.readline() == "ready\n"
            there.kill()
            there.restart()
            out, err = script.communicate(timeout=60)
            assert (script.returncode, err) == (0, "")
        assert out.splitlines() == [want]  # it has noticed nothing
    assert [w.returncode for w in there.server.workers] == [0]
    timeline = timeline_of(read_log(log))
    assert {lane.name for lane in timeline.lanes} == {"client0", "client1", "dispatcher", "worker0"}
    marks = Counter(span.lane for lane in timeline.lanes for span in lane.spans if span.kind == "restart")
    assert marks["worker0"] == 2 and marks["dispatcher"] == 2 and marks["client0"] + marks["client1"] == 2


def test_a_server_that_was_stopped_for_a_while_does_not_take_its_own_pause_for_the_workers_silence() -> None:
    with server(2) as there:
        there.await_workers(2)
        there.process.send_signal(signal.SIGSTOP)
        time.sleep(7)  # for longer than a worker is waited for, and shorter than a worker waits
        there.process.send_signal(signal.SIGCONT)
        with contextlib.closing(StatusLink(there.address)) as asker:
            heard = lambda: [w.silent_s < 1 for w in asker.ask(10).workers]  # noqa: E731
            assert wait_for(lambda: heard() == [True, True])
            assert [w.id for w in asker.ask().workers] == [0, 1]


def test_each_finds_its_own_and_what_nobody_comes_for_is_freed() -> None:
    with restartable("-c", SERVE, "PORT") as there:
        address = there.server.address
        there.server.add_workers(2)
        there.server.await_workers(2)
        session = RecoveringSession(partial(RemoteSession, address, timeout=20.0))
        desk = Desk(session)
        split, whole = desk.put(np.arange(64.0).reshape(N, N), rows()), desk.put(np.full((N, N), 3.0))
        product = desk.run("matmul", (split, (N, N)), (whole, (N, N)))
        want = desk.get(product)
        gone = RemoteSession(address, secret=b"g" * 16)  # it will not come back
        held = Desk(gone).put(np.ones((ROWS, N)), rows())
        assert gone.fetch(held).result(30).sum() == ROWS * N
        full = there.server.memory()
        with contextlib.closing(StatusLink(address)) as asker:
            assert [part.missing for part in asker.trace(0.1, 9)] == [""] * 5
            with pytest.raises(ConnectionFailed):
                next(asker._answers(wire.AskTrace(60.0, 9), 0.2))  # it is under way when the server dies
            there.kill()
        with lived() as seconds:
            with pytest.raises(DispatcherLost, match=rf"{address} died"):
                gone.fetch(held).result(30)
            assert seconds() < WITHIN_S
        assert wait_for(lambda: session._away is not None)
        with lived() as seconds:
            with pytest.raises(DispatcherLost, match=rf"{address} died.*cluster\.py:\d+"):
                desk.get(product)
            assert seconds() < WITHIN_S and session.closed is None
        there.restart()
        assert session.wait_for_return(30)
        assert np.array_equal(desk.get(product), want)
        stranger = RemoteSession(address, secret=b"s" * 16)
        assert stranger.resume(session._served[0], range(8), (0, 1)).result(30).missing == tuple(range(8))
        assert wait_for(lambda: there.server.memory() < full - ROWS * N * 3)  # of four bytes each
        again = desk.run("matmul", (product, (N, N)), (split, (N, N)))  # across workers, with placements of before
        assert np.array_equal(desk.get(again), want @ np.arange(64.0, dtype=np.float32).reshape(N, N))
        with contextlib.closing(StatusLink(address)) as asker:
            assert [part.missing for part in asker.trace(0.1, 9)] == [""] * 5
        for each in (stranger, session, gone):
            each.close()


def test_connections_that_break_while_the_server_lives_cost_what_was_at_their_ends() -> None:
    """It looks like a killed server, and the one that is found is the same."""
    with restartable("-c", SERVE, "PORT") as there:
        there.server.add_workers(1)
        proxy = TcpProxy(there.server.port)
        session = RecoveringSession(partial(RemoteSession, f"localhost:{proxy.port}", timeout=20.0))
        desk = Desk(session)
        try:
            assert wait_for(lambda: session.num_workers() == 1, 30)
            held = desk.put(np.full((N, N), 3.0))
            for over in range(1, 4):  # what came before a run that is known to be over is not kept to be sent again
                assert desk.get(desk.run("add", (held, (N, N)), (held, (N, N)))).sum() == 6 * N * N
                assert wait_for(partial(lambda over: session._link.runs_over == over, over))
            proxy.reset()
            assert wait_for(lambda: session.returns == 1, 30)
            with pytest.raises(DispatcherLost, match="this value was lost when the connection .* broke"):
                desk.get(held)
            kept = desk.put(np.full((N, N), 4.0))
            assert desk.get(kept).sum() == 4 * N * N
            behind = Server(there.server.process, proxy.port, there.server.workers)
            behind.add_workers(1)
            assert wait_for(lambda: session.num_workers() == 2, 30)
            proxy.reset()
            assert behind.workers[1].wait(15) == ExitCode.SERVER_LOST
            assert wait_for(lambda: session.returns == 2 and session.num_workers() == 1, 30)
            assert desk.get(desk.put(np.ones((N, N)))).sum() == N * N
        finally:
            session.close()
            proxy.close()


def test_that_another_server_with_other_keys_has_come_in_its_place_is_said_while_waiting(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_keys(tmp_path / name, ("client",), ("worker",))
    with restartable("-m", "gt.server", "-p", "PORT", GT_KEY_FILE=str(tmp_path / "ours" / "server.key")) as there:
        words = [sys.executable, "-m", "gt.worker", "-p", str(there.server.port), "--lease", "8"]
        variables = environment(GT_BACKEND="numpy", GT_KEY_FILE=str(tmp_path / "ours" / "worker.key"))
        keys = read_keys(tmp_path / "ours" / "client.key", "client")
        session = RecoveringSession(partial(RemoteSession, there.server.address, timeout=20.0, keys=keys))
        with subprocess.Popen(words, cwd=ROOT, env=variables, stderr=subprocess.PIPE, text=True) as worker:
            try:
                assert wait_for(lambda: session.num_workers() == 1, 60)
                desk = Desk(session)
                held = desk.put(np.ones((N, N)))
                assert desk.get(held).sum() == N * N
                there.kill()
                there.variables["GT_KEY_FILE"] = str(tmp_path / "theirs" / "server.key")
                there.restart()
                told = r"died; its workers .*\. The one that is there: the gt server at .* has another key than key file .*client\.key"

                def said() -> bool:
                    with pytest.raises(DispatcherLost) as caught:
                        desk.get(held)
                    return re.search(told, str(caught.value)) is not None

                assert wait_for(said, 30)
                _, err = worker.communicate(timeout=60)
                assert worker.returncode == ExitCode.SERVER_LOST
                assert re.fullmatch(r"gt worker: the gt server at .* has another key than key file .*worker\.key .*\n", err), err
            finally:
                session.close()
                worker.kill()

"""A server beyond its host: only known keys come in, everybody else is told at once what to do, and nothing else listens.

127.0.0.2 stands for an address of other machines: it is not the one that needs no keys.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec
import numpy as np
import psutil
import pytest
import zmq
from click.testing import CliRunner, Result

from gt.ir.types import float32
from gt.ir.version import __version__
from gt.runtime import wire
from gt.runtime.env import KEY_FILE, SHARED_MEMORY
from gt.runtime.errors import ConnectionFailed, DispatcherLost, WorkerLost
from gt.runtime.gate import Handshake
from gt.runtime.keys import Keys, fingerprint, make_keys, read_keys, revoke_key
from gt.runtime.remote import RemoteSession
from gt.runtime.transport import make_socket
from gt.server import main as server_main
from gt.worker import main as worker_main
from tests.fault.fuzz import Cluster
from tests.integration.cluster import Desk, rows
from tests.integration.programs import ROOT, environment, lived, wait_for

pytestmark = pytest.mark.timeout(120)
HOST = "127.0.0.2"
SUM_ROWS = (("dims", (0,)), ("keepdim", False), ("dtype", float32))


@dataclass
class Secured:
    """A server with keys and its two workers; what they say goes to ``said``."""

    folder: Path
    server: subprocess.Popen[str]
    workers: list[subprocess.Popen[str]]
    address: str
    said: Path

    @property
    def port(self) -> str:
        return self.address.rpartition(":")[2]

    def keys(self, name: str, role: str = "client") -> Keys:
        return read_keys(self.folder / f"{name}.key", role)

    def session(self, name: str) -> RemoteSession:
        return RemoteSession(self.address, keys=self.keys(name))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    top = tmp_path_factory.mktemp("secured")
    folder, said = top / "keys", top / "said"
    make_keys(folder, ["alice", "bob", "eve"], ["node"])
    variables = environment(GT_SHARED_MEMORY="0", GT_DEBUG="4", GT_INSTRUCTION_LOG=str(top / "log"))
    with said.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "gt.server", "-H", HOST, "-p", "0", "--key", str(folder / "server.key")],
            env=variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=out, text=True,
        )  # fmt: skip
        assert server.stdout is not None
        address = server.stdout.readline().split()[1].removeprefix("tcp://")
        worker = [sys.executable, "-m", "gt.worker", "--host", HOST, "-p", address.rpartition(":")[2]]
        named = {**variables, "GT_KEY_FILE": str(folder / "node.key")}
        workers = [subprocess.Popen(worker, env=named, cwd=ROOT, stderr=out, text=True) for _ in range(2)]
    there = Secured(folder, server, workers, address, said)
    try:
        session = there.session("alice")
        assert wait_for(lambda: session.num_workers() == 2, 60), said.read_text()[-3000:]
        session.close()
        yield there
    finally:
        server.terminate()
        codes = [p.wait(60) for p in (server, *workers)]
        server.stdout.close()
    assert codes == [0, 0, 0], said.read_text()[-3000:]


def works(session: RemoteSession) -> None:
    """Send and read small and large arrays, and have the workers meet in a collective."""
    desk = Desk(session)
    large = np.random.default_rng(0).random((300, 200), np.float32)
    out = desk.run("sum", (desk.put(large, rows()), large.shape), attrs=SUM_ROWS)
    np.testing.assert_allclose(desk.get(out), large.sum(0), rtol=1e-3)
    assert np.array_equal(desk.get(desk.put(large)), large) and np.array_equal(desk.get(desk.put(large[:1])), large[:1])


def test_known_keys_work_and_a_job_listens_where_it_was_told_alone(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SHARED_MEMORY, "_read", [False])  # so that arrays pass the data sockets
    session = secured.session("alice")
    try:
        works(session)
        listening = {
            p.pid: [c.laddr for c in psutil.Process(p.pid).net_connections() if c.status == psutil.CONN_LISTEN]
            for p in (secured.server, *secured.workers)
        }
    finally:
        session.close()
    assert [tuple(at) for at in listening[secured.server.pid]] == [(HOST, int(secured.port))]
    for worker in secured.workers:
        assert {at.ip for at in listening[worker.pid]} == {"127.0.0.1"}  # where the way to the server leaves this host
        assert len(listening[worker.pid]) > 2  # uploads, results, and Gloo's


def refused(secured: Secured, keys: Keys | None) -> str:
    with lived() as seconds, pytest.raises(ConnectionFailed) as caught:
        RemoteSession(secured.address, keys=keys)
    assert seconds() < 3
    return str(caught.value)


def told(secured: Secured, text: str, keys: Keys | None) -> bool:
    """Say whether the server tells of somebody with these keys: of ten attempts in ten seconds at most, so others come in between."""
    return wait_for(lambda: text in secured.said.read_text() or (time.sleep(1.0), refused(secured, keys))[0])


def test_whoever_has_no_key_of_this_server_is_told_what_to_do_within_3_s(secured: Secured, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", ["alice"], [])
    alien = read_keys(tmp_path / "other" / "alice.key", "client")
    node = secured.keys("node", "worker")
    assert "lets in only those with a key: check key file" in refused(secured, None)
    assert f"has another key than key file {alien}" in refused(secured, alien)
    stranger = replace(alien, server=node.server)  # who knows the server's public key, and is not on the list
    assert f"does not know this key, or knows it no more: check key file {alien}" in refused(secured, stranger)
    assert "is a worker's: check key file, a client needs one" in refused(secured, node)
    assert told(secured, f"refused a peer at 127.0.0.1 with key {fingerprint(alien.public)}", stranger)
    assert told(secured, "it has no key, or one for another server", None)
    works_still = secured.session("alice")
    works_still.close()


def test_a_server_without_keys_is_told_from_one_with(secured: Secured) -> None:
    cluster = Cluster()
    try:
        keys = secured.keys("alice")
        with lived() as seconds, pytest.raises(ConnectionFailed, match="or was started without keys: check key file"):
            RemoteSession(cluster.dispatcher.endpoint, keys=keys)
        assert seconds() < 3
    finally:
        cluster.close()


def test_a_revoked_key_ends_its_sessions_and_opens_none(secured: Secured) -> None:
    bob, alice, keys = secured.session("bob"), secured.session("alice"), secured.keys("bob")
    try:
        desk = Desk(bob)
        assert desk.get(desk.put(np.ones((2, 2), np.float32), rows())).sum() == 4  # all its connections are there
        revoke_key(secured.folder, "bob")
        assert wait_for(lambda: bob.closed is not None)
        with pytest.raises(DispatcherLost, match=f"key {fingerprint(keys.public)} is not on this server's list"):
            bob.fetch(1)
        assert "does not know this key, or knows it no more" in refused(secured, keys)
        desk = Desk(alice)
        assert desk.get(desk.put(np.ones((2, 2), np.float32))).sum() == 4
    finally:
        bob.close()
        alice.close()


def test_a_worker_whose_key_is_revoked_is_lost_and_it_and_clients_are_told_why(secured: Secured) -> None:
    make_keys(secured.folder, [], ["spare"])
    public = secured.keys("spare", "worker").public
    words = [sys.executable, "-m", "gt.worker", "--host", HOST, "-p", secured.port, "--key", str(secured.folder / "spare.key")]
    with subprocess.Popen(words, env=environment(), cwd=ROOT, stderr=subprocess.PIPE, text=True) as spare:
        session = secured.session("alice")
        try:
            assert wait_for(lambda: session.num_workers() == 3, 60)
            desk = Desk(session)
            lost = desk.put(np.ones((6, 2), np.float32), rows())
            assert desk.get(lost).sum() == 12
            revoke_key(secured.folder, "spare")
            assert spare.stderr is not None
            assert spare.wait(60) == 3 and f"key {fingerprint(public)} is not on this server's list" in spare.stderr.read()
            with pytest.raises(WorkerLost, match=rf"was sent away: key {fingerprint(public)} is not on this server's list"):
                desk.get(lost)
            assert desk.get(desk.put(np.ones((2, 2), np.float32))).sum() == 4
        finally:
            session.close()
            spare.kill()


def test_a_workers_data_sockets_are_behind_keys_too(secured: Secured) -> None:
    session = secured.session("alice")
    context: zmq.Context = zmq.Context()
    try:
        for upload, results, public in session._links.present.values():
            assert public == secured.keys("node", "worker").public
            for endpoint in (upload, results):
                socket = make_socket(context, zmq.DEALER)
                handshake = Handshake(socket)
                socket.connect(endpoint)
                assert wait_for(lambda h=handshake: h.look()) and not handshake.done, endpoint
                handshake.close()
    finally:
        context.destroy(0)
        session.close()


def command(main: click.Command, *words: str) -> Result:
    """Run a command in this process; those that would serve or work are not among them."""
    return CliRunner().invoke(main, words)


def test_workers_without_a_workers_key_end_with_a_code(secured: Secured) -> None:
    at = ("--host", HOST, "-p", secured.port, "--backend", "numpy")
    keyless = command(worker_main, *at)
    assert keyless.exit_code == 2 and "--key" in keyless.stderr and "--insecure" in keyless.stderr
    wrong = command(worker_main, *at, "--key", str(secured.folder / "alice.key"))
    assert wrong.exit_code == 2 and "it is a client's, expected one of a worker" in wrong.stderr
    with lived() as seconds:
        insecure = command(worker_main, *at, "--insecure")
        assert insecure.exit_code == 3 and "lets in only those with a key" in insecure.stderr
        assert seconds() < 3


REFUSED = """
import sys
from gt.worker import main
try:
    main(sys.argv[1:])
except SystemExit as e:
    print(e.code, "torch" in sys.modules)
"""


@pytest.mark.parametrize("key", ["other", "unknown", "none"])
def test_a_worker_that_is_not_let_in_hears_it_before_it_loads_torch(key: str, secured: Secured, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", [], ["node"])
    file = tmp_path / "keys" / "node.key"
    if key == "unknown":
        own, here = read_keys(file, "worker").server, secured.keys("node", "worker").server
        file.write_text(file.read_text().replace(own, here))
    options = ("--insecure",) if key == "none" else ("--key", str(file))
    words = [sys.executable, "-c", REFUSED, "--host", HOST, "-p", secured.port, "--backend", "torch", *options]
    done = subprocess.run(words, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=60)
    says = {"other": "has another key than", "unknown": "does not know this key", "none": "lets in only those with a key"}
    assert done.stdout == "3 False\n" and says[key] in done.stderr, (done.stdout, done.stderr)


def test_a_server_beyond_this_host_needs_keys_or_says_loudly_that_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = command(server_main, "-H", HOST, "-p", "0")
    assert shut.exit_code == 2 and "gt keygen" in shut.stderr and "--insecure" in shut.stderr
    with monkeypatch.context() as named:
        named.setattr(KEY_FILE, "_read", [str(tmp_path / "x.key")])
        absent = command(server_main, "-H", HOST, "-p", "0")
    assert absent.exit_code == 2 and f"check key file {tmp_path}/x.key" in absent.stderr
    make_keys(tmp_path / "keys", [], [])
    (tmp_path / "keys" / "allowed").unlink()
    bare = command(server_main, "-H", HOST, "-p", "0", "--key", str(tmp_path / "keys" / "server.key"))
    assert bare.exit_code == 2 and f"{tmp_path}/keys/allowed is not there: it is the list of keys that may come in" in bare.stderr
    with (tmp_path / "err").open("w") as err:
        words = [sys.executable, "-m", "gt.server", "-H", HOST, "-p", "0", "--trust-network"]
        loud = subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=err, text=True)
        assert loud.stdout is not None and HOST in loud.stdout.readline()
        loud.terminate()
        assert loud.wait(60) == 0
        loud.stdout.close()
    said = (tmp_path / "err").read_text()
    assert "--trust-network is called --insecure now" in said and "WARNING: INSECURE" in said


def test_no_secret_is_in_arguments_or_logs(secured: Secured) -> None:
    everything = secured.said.read_text() + (secured.folder.parent / "log").read_text()
    for p in (secured.server, *secured.workers):
        everything += " ".join(psutil.Process(p.pid).cmdline()) + str(psutil.Process(p.pid).environ())
    assert "Attach" in everything and "alice.key" not in everything
    for name in ("server", "alice", "eve", "node"):
        secret = msgspec.toml.decode((secured.folder / f"{name}.key").read_bytes())["secret"]
        assert len(secret) == 40 and secret not in everything


def test_another_version_of_the_protocol_is_told_both() -> None:
    """In its own version, of which a refusal is all that has to be known."""
    cluster = Cluster()
    context: zmq.Context = zmq.Context()
    try:
        old = context.socket(zmq.DEALER)
        old.connect(cluster.dispatcher.endpoint)
        old.send(bytes([2]) + msgspec.msgpack.encode(["ClientHello", 1]))
        assert old.poll(30_000)
        reply = old.recv()
        assert reply[0] == 2
        kind, reason = msgspec.msgpack.decode(reply[1:])
        assert kind == "Refused" and f"protocol version {wire.VERSION}" in reason and "in version 2" in reason
        assert f"pip install gt-tensor=={__version__}" in reason
        assert cluster.dispatcher.malformed.count == 1
    finally:
        context.destroy(0)
        cluster.close()


def test_nothing_of_gt_opens_a_wildcard_address(secured: Secured) -> None:
    for p in (secured.server, *secured.workers):
        for connection in psutil.Process(p.pid).net_connections("all"):
            at = getattr(connection.laddr, "ip", "")
            assert at not in ("0.0.0.0", "::"), connection

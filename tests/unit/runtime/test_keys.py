"""Keys: files that only their owner may read, a list that says who may come in, and what a key lets its owner do."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket as sockets
import stat
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq
from click.testing import CliRunner

from gt.cli import main
from gt.runtime import awake_clock, wire
from gt.runtime.errors import ConnectionRefused, KeyFileError
from gt.runtime.gate import Gate, Handshake, Seldom, await_answer
from gt.runtime.keys import Allowed, Guard, Keys, chosen_keys, fingerprint, make_keys, read_keys, revoke_key
from gt.runtime.transport import make_socket
from tests.integration.programs import wait_for


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "keys"
    make_keys(made, ["alice"], ["node1"])
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_key_files_are_their_owners_alone(folder: Path) -> None:
    assert mode(folder) == 0o700
    assert {p.name: mode(p) for p in folder.iterdir()} == dict.fromkeys(("server.key", "alice.key", "node1.key", "allowed"), 0o600)
    server, alice = read_keys(folder / "server.key", "server"), read_keys(folder / "alice.key", "client")
    assert alice.server == server.public and alice.name == "alice" and Allowed(folder / "allowed").role_of(alice.public) == "client"
    assert server.secret not in (folder / "alice.key").read_text() + (folder / "allowed").read_text()


def test_a_secret_is_shown_nowhere(folder: Path) -> None:
    keys = read_keys(folder / "alice.key", "client")
    assert keys.secret not in repr(keys) + str(keys) and fingerprint(keys.public) in str(keys)
    damaged = folder / "damaged.key"
    damaged.touch(0o600)
    damaged.write_text((folder / "alice.key").read_text() + 'more = "1"\n')
    with pytest.raises(KeyFileError, match="check key file") as caught:
        read_keys(damaged, "client")
    assert keys.secret not in str(caught.value)


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o644])
def test_wider_permissions_are_refused(folder: Path, bits: int) -> None:
    for name in ("alice.key", "allowed"):
        (folder / name).chmod(bits)
    with pytest.raises(KeyFileError, match=rf"its mode is 0{bits:o}: run `chmod 600 .*alice.key`"):
        read_keys(folder / "alice.key", "client")
    allowed = Allowed(folder / "allowed")
    assert not allowed.roles and "chmod 600" in allowed.fault  # nobody is let in
    (folder / "alice.key").chmod(0o600)
    folder.chmod(0o755)
    with pytest.raises(KeyFileError, match="chmod 700"):
        read_keys(folder / "alice.key", "client")
    with pytest.raises(KeyFileError, match="chmod 700"):
        make_keys(folder, ["bob"], [])


def test_links_and_other_owners_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "link.key").symlink_to(folder / "alice.key")
    with pytest.raises(KeyFileError, match="check key file"):
        read_keys(folder / "link.key", "client")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(KeyFileError, match="this process is user 12345"):
        read_keys(folder / "alice.key", "client")


def test_a_key_file_that_is_none_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"check key file .*absent.key: No such file"):
        read_keys(folder / "absent.key", "client")
    with pytest.raises(KeyFileError, match="it is a worker's, expected one of a client"):
        read_keys(folder / "node1.key", "client")
    for text in ("", "role = 3", "\0\xff", 'role = "client"\nname = "x"\npublic = "y"\nsecret = "z"\nserver = "w"\n'):
        bad = folder / "bad.key"
        bad.touch(0o600)
        bad.write_text(text)
        with pytest.raises(KeyFileError, match="check key file"):
            read_keys(bad, "client")


def test_the_environment_names_a_key_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gt.runtime.env import KEY_FILE

    assert chosen_keys(None, "client") is None
    monkeypatch.setattr(KEY_FILE, "_read", [str(folder / "alice.key")])
    found = chosen_keys(None, "client")
    assert found is not None and found.name == "alice"
    with pytest.raises(KeyFileError):
        chosen_keys(folder / "node1.key", "client")  # what is given counts


def test_names_are_words_and_used_once(folder: Path) -> None:
    for name in ("../x", "", "a b", "server", "x" * 65, "-v"):
        with pytest.raises(KeyFileError, match="expected a name"):
            make_keys(folder, [name], [])
    for names in (["alice"], ["bob", "bob"]):
        with pytest.raises(KeyFileError, match="already"):
            make_keys(folder, names, [])
    assert not (folder / "bob.key").exists()


@pytest.mark.parametrize("fails", [1, 2, 3, 4])
def test_a_full_disk_takes_no_name(fails: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the server's file, the client's, the worker's and the list has no room: there is none in part, and the next try works."""
    keys, calls = tmp_path / "keys", itertools.count(1)

    def full(file: int) -> None:
        if next(calls) == fails:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        make_keys(keys, ["client"], ["worker"])
    assert [p.name for p in keys.iterdir()] == ["server.key"] * (fails > 1)
    assert {p.name for p in make_keys(keys, ["client"], ["worker"])} >= {"client.key", "worker.key"}
    assert revoke_key(keys, "client")


def test_a_revoked_key_is_off_the_list(folder: Path) -> None:
    allowed, public = Allowed(folder / "allowed"), read_keys(folder / "alice.key", "client").public
    assert not allowed.refresh()
    assert revoke_key(folder, "alice") == fingerprint(public)
    assert allowed.refresh() and allowed.role_of(public) is None and list(allowed.roles.values()) == ["worker"]
    assert not (folder / "alice.key").exists() and mode(folder / "allowed") == 0o600
    with pytest.raises(KeyFileError, match="has no alice: it names node1"):
        revoke_key(folder, "alice")


def test_a_list_with_a_bad_line_lets_nobody_in(folder: Path) -> None:
    with (folder / "allowed").open("a") as file:
        file.write("admin xyz eve\n")
    allowed = Allowed(folder / "allowed")
    assert not allowed.roles and "allowed:4: expected a role (client or worker), a public key and a name" in allowed.fault


def test_keygen_makes_adds_and_revokes(tmp_path: Path) -> None:
    folder = tmp_path / "k"

    def keygen(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["keygen", "-o", str(folder), *words])
        return done.exit_code, done.output

    assert keygen() == (0, "".join(f"{folder / n}.key\n" for n in ("server", "client", "worker")))
    before = (folder / "server.key").read_bytes()
    assert keygen("--client", "bob", "--worker", "n2") == (0, f"{folder}/bob.key\n{folder}/n2.key\n")
    assert (folder / "server.key").read_bytes() == before
    code, out = keygen("--revoke", "bob")
    assert code == 0 and out.startswith("bob (gt:")
    assert keygen("--revoke", "bob")[0] == 1 and keygen("--client", "n2")[0] == 1
    assert sorted(Allowed(folder / "allowed").roles.values()) == ["client", "worker", "worker"]


# -- what a key lets its owner do


def test_a_guard_keeps_each_peer_to_its_own_key() -> None:
    roles = {"C": "client", "D": "client", "W": "worker"}
    guard = Guard(roles.get)
    hello = wire.WorkerHello("u", "r", "h", 1, "cpu", "numpy", key="W")
    assert not guard.refusal(b"c", "C", wire.ClientHello(1), None)
    assert not guard.refusal(b"w", "W", hello, None)
    assert "is a client's" in guard.refusal(b"x", "C", hello, None)
    assert "is a worker's" in guard.refusal(b"x", "W", wire.ClientHello(1), None)
    assert "must be its own" in guard.refusal(b"x", "W", wire.WorkerHello("u", "r", "h", 1, "cpu", "numpy", key="C"), None)
    assert not guard.refusal(b"up", "C", wire.Attach(b"t", "up"), b"c")
    assert "another key" in guard.refusal(b"x", "D", wire.Attach(b"t", "up"), b"c")  # a token that somebody found
    assert "another key" in guard.refusal(b"c", "D", wire.Fetch(1, 1), None)
    del roles["C"]
    assert "not on this server's list" in guard.refusal(b"c", "C", wire.Fetch(1, 1), None)
    assert "not on this server's list" in guard.refusal(b"n", "nobody", wire.ClientHello(1), None)
    guard.forget(lambda peer: peer == b"w")
    assert guard.users == {b"w": "W"}


def asked(
    gate: Gate, context: zmq.Context, *, domain: bytes = b"gt", mechanism: bytes = b"CURVE", key: bytes = b"k" * 32
) -> zmq.Socket:
    request = context.socket(zmq.DEALER)
    request.connect("inproc://zeromq.zap.01")
    request.send_multipart([b"", b"1.0", b"1", domain, b"10.0.0.9", b"", mechanism, *([key] if key else [])])
    gate.answer(0.0)
    return request


def test_a_gate_lets_in_known_keys_alone_and_says_who_tried(caplog: pytest.LogCaptureFixture) -> None:
    context: zmq.Context = zmq.Context()
    known: set[str] = set()
    gate = Gate(context, known.__contains__, logging.getLogger("gt.test"))
    caplog.set_level(logging.ERROR, "gt.test")
    try:
        for wrong in ({"domain": b"other"}, {"mechanism": b"NULL", "key": b""}, {"mechanism": b"PLAIN"}, {"key": b"short"}):
            assert asked(gate, context, **wrong).recv_multipart()[3] == b"400"
        waits = asked(gate, context)
        assert not waits.poll(0)  # the word that it may come in can be on its way
        user = zmq.utils.z85.encode(b"k" * 32).decode()
        gate.answer(1.0)
        assert waits.recv_multipart()[3:6] == [b"400", b"not allowed", b""]
        assert "10.0.0.9" in caplog.text and fingerprint(user) in caplog.text and user not in caplog.text
        waits = asked(gate, context)
        known.add(user)
        gate.answer(0.1)
        assert waits.recv_multipart()[3:6] == [b"200", b"OK", user.encode()]
        assert gate.refused.count == 5
    finally:
        gate.close()
        context.destroy(0)


def test_strangers_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logging.getLogger("gt.test"))
    for i in range(1000):
        seldom.tell("refused", i / 1000)
    assert seldom.count == 1000 and len(caplog.records) == 10
    seldom.tell("refused", 20.0)
    assert caplog.messages[-1] == "refused (and 990 more such attempts)"


def test_a_gate_forgets_those_who_wait_when_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.gate.MAX_WAITING", 3)
    context: zmq.Context = zmq.Context()
    gate = Gate(context, lambda user: False, logging.getLogger("gt.test"))
    try:
        requests = [asked(gate, context, key=bytes([i]) * 32) for i in range(6)]
        assert len(gate.waiting) == 3 and all(r.poll(500) for r in requests[:3])
    finally:
        gate.close()
        context.destroy(0)


def test_who_had_no_time_has_not_found_a_server_silent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks an hour passes, in which an answer may have come."""
    hours = itertools.count(0, 3600)
    monkeypatch.setattr(awake_clock, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + next(hours)))
    keys, context = read_keys(folder / "alice.key", "client"), zmq.Context()
    with sockets.create_server(("127.0.0.1", 0)) as listener:
        socket = make_socket(context, zmq.DEALER)
        keys.join(socket)
        handshake = Handshake(socket)
        try:
            socket.connect(f"tcp://127.0.0.1:{listener.getsockname()[1]}")
            assert wait_for(lambda: handshake.look() == "" and handshake.connected)
            assert not await_answer(socket, handshake, time.monotonic() + 0.3, "there", keys)
        finally:
            handshake.close()
            context.destroy(0)


@pytest.mark.parametrize("times", [1, 2])
def test_a_connection_that_a_dying_process_cuts_is_no_refusal(times: int) -> None:
    """Who refuses does so again; who has died is not there for a second time."""
    with sockets.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = make_socket(context, zmq.DEALER)
        handshake = Handshake(socket)
        try:
            socket.connect(f"tcp://127.0.0.1:{port}")
            for at in range(times):
                link, _ = there.accept()
                if at == times - 1:
                    there.close()
                link.close()
            if times == 1:
                assert not await_answer(socket, handshake, time.monotonic() + 1, "there", None) and handshake.cut
            else:
                with pytest.raises(ConnectionRefused, match="the gt server at there lets in only those with a key"):
                    await_answer(socket, handshake, time.monotonic() + 20, "there", None)
        finally:
            handshake.close()
            context.destroy(0)


def test_keys_know_where_they_came_from(folder: Path) -> None:
    keys = read_keys(folder / "alice.key", "client")
    assert isinstance(keys, Keys) and keys.path == folder / "alice.key"

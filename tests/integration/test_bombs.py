"""A pickle that makes a folder when it is read: sent to every socket and put in every file that gt reads, it stays bytes."""

from __future__ import annotations

import contextlib
import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

import gt
from gt.compiling import read_gtir
from gt.runtime import wire
from gt.runtime.compile_process import Request
from gt.runtime.keys import read_keys
from gt.runtime.planner import GRAPHS, REPLIES, REQUESTS
from gt.runtime.remote import RemoteSession
from gt.runtime.transport import make_socket
from tests.fault.fuzz import CODECS, Cluster, Impostor, use
from tests.integration.cluster import Desk
from tests.unit.runtime.bombs import Bomb, bomb

pytestmark = pytest.mark.timeout(120)


def test_the_bomb_works(tmp_path: Path) -> None:
    pickle.loads(bomb(tmp_path / "ran"))
    assert (tmp_path / "ran").is_dir()


def disguises(target: Path) -> Iterator[list[bytes]]:
    """Give frames that carry the bomb: bare, behind a version, as header's field or as data of what takes data."""
    body, version = bomb(target), bytes([wire.VERSION])
    yield [body]
    yield [version + body]
    yield [version + msgspec.msgpack.encode(body)]
    yield [version + msgspec.msgpack.encode(["Define", body])]
    yield [version + msgspec.msgpack.encode(["StoreOp", 1, "set", ["a"], body])]
    yield [wire.encode(wire.Define(1)), body]
    yield [wire.encode(wire.Upload(b"t" * 16, wire.WireType((len(body),), "uint8"))), body]
    yield [wire.encode(wire.Store(1, wire.WireType((len(body),), "uint8"), ((0, len(body)),), (len(body),))), body]
    yield [wire.encode(wire.Part(1, wire.WireType((len(body),), "uint8"), ((0, len(body)),), 1, True)), body]


def test_no_socket_reads_it(tmp_path: Path) -> None:
    target = tmp_path / "ran"
    cluster, context = Cluster(), zmq.Context()
    impostor = Impostor(context)
    fooled = RemoteSession(impostor.endpoint, timeout=20)
    honest = RemoteSession(cluster.dispatcher.endpoint, timeout=20)
    try:
        for endpoint in (cluster.dispatcher.endpoint, *cluster.worker.bound):
            socket = make_socket(context, zmq.DEALER, data=True)
            socket.connect(endpoint)
            if endpoint == cluster.dispatcher.endpoint:
                socket.send(wire.encode(wire.ClientHello(1)))
            for frames in disguises(target):
                socket.send_multipart(frames)
            socket.send(wire.encode(wire.Run(1, (), (1,), (), ())))  # of the graph that the bomb is said to be
        for frames in disguises(target):
            impostor.say(impostor.peers[0], frames)
        use(Desk(honest), 0)
        assert fooled.closed is None and not cluster.fault
    finally:
        fooled.close()
        honest.close()
        impostor.close()
        context.destroy(0)
        cluster.close()
    assert not target.exists()


@pytest.mark.parametrize("decoder", [GRAPHS, REQUESTS, REPLIES, msgspec.msgpack.Decoder(Request), *CODECS.values()])
def test_no_decoder_reads_it(decoder: Any, tmp_path: Path) -> None:
    for body in (bomb(tmp_path / "ran"), msgspec.msgpack.encode(bomb(tmp_path / "ran"))):
        with pytest.raises((msgspec.MsgspecError, ValueError)):
            decoder.decode([body] if hasattr(decoder, "_decoder") else body)
    assert not (tmp_path / "ran").exists()


READERS: dict[str, Callable[[Path], object]] = {
    "load": gt.load, "load_config": gt.load_config, "gtir": read_gtir, "key": lambda p: read_keys(p, "client", "worker", "server"),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_no_file_reader_runs_it(name: str, tmp_path: Path) -> None:
    target = tmp_path / "ran"
    tmp_path.chmod(0o700)
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("x/data.pkl", bomb(target))
    safe = b'{"__metadata__":{"gt":"{\\"tree\\": {\\"pickle\\": 1}, \\"views\\": {}}"}}'
    for i, data in enumerate(
        (
            bomb(target),
            zipped.getvalue(),
            len(safe).to_bytes(8, "little") + safe,
            b"!!python/object/apply:os.mkdir ['%s']" % str(target).encode(),
        )
    ):
        path = tmp_path / f"file{i}"
        path.write_bytes(data)
        path.chmod(0o600)
        with contextlib.suppress(ValueError, gt.GtError, gt.ConfigError):
            READERS[name](path)
        assert not target.exists(), (name, i)


def test_arrays_of_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError)):
        gt.from_numpy(np.array([Bomb(tmp_path / "ran")], dtype=object))
    assert not (tmp_path / "ran").exists()

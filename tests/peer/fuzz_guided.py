"""Messages that reach new code of gt's, by coverage: ``pip install atheris``, ``python -m tests.peer.fuzz_guided dispatcher --seconds 120``.

libFuzzer mutates sequences of recorded messages, in structure and in bytes, and keeps what runs a branch that none has run before. They
go through the codec into the state of one end in this process, without sockets: the dispatcher with its planner, a worker with its engine,
or a client. Whatever is raised but a ProtocolError, which every end counts, is a fault; so is an honest client that is not served
afterwards. What it finds is written to the folder ``--found``. Next: ``tests.fault.fuzz`` (the same frames, by sockets).
"""

from __future__ import annotations

import contextlib
import logging
import random
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import atheris
import click

with atheris.instrument_imports(include=["gt.ir", "gt.runtime", "gt.passes.signal_placement"]):
    import numpy as np
    import zmq

    from gt.ir.program import WireType
    from gt.ir.types import TensorType, float32
    from gt.runtime import wire
    from gt.runtime.dispatcher import planned
    from gt.runtime.dispatcher_events import MakePlan, Received
    from gt.runtime.errors import GtError, ProtocolError
    from gt.runtime.numpy_engine import NumpyEngine
    from gt.runtime.planner import answer, request_of
    from gt.runtime.remote import RemoteSession
    from gt.runtime.runner import Runner
    from tests.fault.fuzz import CODECS, Frames, Impostor, ends_it, mutated, recorded
    from tests.state.stories import Story, sent

Record = tuple[int, Frames]  # who says it, by number, and what
PEERS = ("c0up", "c0", "c1up", "stranger", "w0", "l0", "w1")
SAYS = {wire.ClientHello: 3, wire.WorkerHello: 3, wire.Attach: 3, wire.Done: 4, wire.Uploaded: 5, wire.Used: 5}  # else c0up
MAX_RECORDS = 24
HEAD = struct.Struct("<BBHH")  # who, how many frames, their lengths


# -- sequences of messages as bytes


def packed(records: list[Record]) -> bytes:
    """Give a sequence as bytes, each frame cut to what a length of 16 bits can say."""
    out = b""
    for who, frames in records[:MAX_RECORDS]:
        first, second = ([f[:65_000] for f in frames] + [b"", b""])[:2]
        out += HEAD.pack(who % 256, min(len(frames), 2), len(first), len(second)) + first + second
    return out


def unpacked(data: bytes) -> Iterator[Record]:
    at = 0
    for _ in range(MAX_RECORDS):
        if at + HEAD.size > len(data):
            return
        who, count, first, second = HEAD.unpack_from(data, at)
        at += HEAD.size
        frames = [data[at : at + first], data[at + first : at + first + second]]
        at += first + second
        yield who, frames[:count]


def by_who_says_it(name: str, frames: Frames) -> Record:
    message, _ = CODECS[name].decode(frames)
    return SAYS.get(type(message), 0), frames


# -- the ends


class DispatcherEnd:
    """A dispatcher's state and planner, with two workers and two clients."""

    def take(self, records: Iterator[Record]) -> None:
        story = Story(workers=2, clients=2)
        for who, frames in records:
            with contextlib.suppress(ProtocolError):
                message, data = wire.FROM_PEERS.decode(frames)
                self._handle(story, story.tell(Received(story.now, PEERS[who % len(PEERS)].encode(), message, data)))
        story.join_client(9)
        if story.state.roster.worker_ids:
            story.say("c9up", wire.Put(1, WireType((4, 4), "float32"), None, True), memoryview(bytes(64)))
            story.say("c9up", wire.Fetch(1, 1))
            story.get_through()
            token = story.state.clients[max(story.state.clients)].token
            assert any(ship.token == token for ship in sent(story.log, wire.Ship)), "a client is not served"

    def _handle(self, story: Story, commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, MakePlan):
                request = request_of(command.plan, command.graph, command.inputs, command.workers, command.num_scalars)
                self._handle(story, story.tell(planned(story.now, answer(request))))


class Silent:
    """An outlet that nobody listens to."""

    def reply(self, message: Any) -> None:
        wire.encode(message)

    def room(self, *_: object) -> None:
        """Nothing is shared."""

    def ship(self, *_: object) -> None:
        """Nobody reads."""


class WorkerEnd:
    """A worker's state and engine."""

    def take(self, records: Iterator[Record]) -> None:
        runner = Runner(0, NumpyEngine(), Silent())
        for _, frames in records:
            with contextlib.suppress(ProtocolError):
                message, data = wire.TO_WORKER.decode(frames)
                if not ends_it(frames):
                    runner.handle(message, data)
        runner.handle(wire.Store(1 << 40, WireType((2,), "float32"), ((0, 2),), (2,)), memoryview(bytes(8)))
        assert np.array_equal(runner.values[1 << 40], np.zeros(2, np.float32))


class Told(RemoteSession):
    """A session whose messages come by ``_got`` alone, on the caller's thread."""

    def _io(self) -> None:
        self._present.set()

    def _call(self, *_: object) -> None:
        """Nobody listens."""

    def ask(self) -> None:
        """Begin anew to read three values, by the requests 1 to 3, to ask why a fourth is as it is, and to give three large ones."""
        self._requests = 0
        for known in (self._readings, self._questions, self._links.waiting):
            known.clear()
        for buffer in (1, 2, 3):
            self.fetch(buffer)
        self.explain(4)
        for buffer in (5, 6, 7):
            self.put(buffer, TensorType((200, 200), float32), np.zeros((200, 200), np.float32), None)

    def end(self) -> None:
        self.close()
        super()._io()  # lets its sockets go


class ClientEnd:
    """A session of a server that says what it is told to. One that a message has ended, in order, is replaced."""

    def __init__(self) -> None:
        self.impostor = Impostor(zmq.Context())
        self.session = Told(self.impostor.endpoint, timeout=20)

    def take(self, records: Iterator[Record]) -> None:
        if self.session.closed is not None:
            assert isinstance(self.session.closed.exception(), GtError)
            self.session.end()
            self.impostor.peers.clear()
            self.session = Told(self.impostor.endpoint, timeout=20)
        self.session.ask()
        for who, frames in records:
            if self.session.closed is None:
                with contextlib.suppress(ProtocolError):
                    message, data = wire.TO_CLIENT.decode(frames)
                    self.session._got(message, data, -1 if who % 2 else 0)


ENDS: dict[str, Any] = {"dispatcher": DispatcherEnd, "worker": WorkerEnd, "client": ClientEnd}


@click.command()
@click.argument("end", type=click.Choice(list(ENDS)))
@click.option("--seconds", default=120, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--found", type=click.Path(path_type=Path), default=Path("found"), show_default=True, help="A folder for what fails.")
def main(end: str, seconds: int, seed: int, found: Path) -> None:
    """Send one end of a cluster the messages that reach new code."""
    logging.disable(logging.CRITICAL)
    samples = recorded()
    own, everything = samples[end], [f for frames in samples.values() for f in frames]
    target = ENDS[end]()

    def one(data: bytes) -> None:
        target.take(unpacked(data))

    def mutate(data: bytes, max_size: int, chosen: int) -> bytes:
        """Change the sequence, one message of it in its structure, or the bytes."""
        r = random.Random(chosen)
        records = list(unpacked(data))
        at = r.randrange(len(records) + 1)
        match r.randrange(6):
            case 0:
                return bytes(atheris.Mutate(data, max_size))
            case 1:
                records.insert(at, (r.randrange(len(PEERS)), r.choice(own)))
            case 2 if at < len(records):
                del records[at]
            case 3 if at < len(records):
                records.insert(r.randrange(len(records)), records.pop(at))
            case _ if at < len(records):
                who, frames = records[at]
                records[at] = who if r.random() < 0.8 else r.randrange(len(PEERS)), mutated(frames, everything, r)
            case _:
                records.append((0, r.choice(own)))
        return packed(records)[:max_size]

    found.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(0, len(own), MAX_RECORDS // 2):
            sample = [by_who_says_it(end, frames) for frames in own[i : i + MAX_RECORDS]]
            (Path(folder) / f"recorded{i}").write_bytes(packed(sample))
        flags = [f"-max_total_time={seconds}", f"-seed={seed}", "-max_len=200000", f"-artifact_prefix={found}/", "-timeout=20"]
        atheris.Setup([sys.argv[0], *flags, folder], one, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    assert set(ENDS) < set(CODECS)
    main()

"""A node's link to the dispatcher of its job, with the other end played by the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from gt.runtime import node_link, wire
from gt.runtime.errors import ConnectionFailed, DispatcherLost
from gt.runtime.node_link import NodeLink, NodeRefused
from gt.runtime.wire import Message

HELLO = wire.NodeHello("j", 2, 1, "host", 7, 8)


class Head:
    """The dispatcher's end."""

    def __init__(self, context: Any) -> None:
        self.socket = context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.peer = b""

    def hear(self) -> Message:
        assert self.socket.poll(5000)
        self.peer, *frames = self.socket.recv_multipart()
        return wire.FROM_PEERS.decode(frames)[0]

    def say(self, message: Message | bytes) -> None:
        self.socket.send_multipart([self.peer, message if isinstance(message, bytes) else wire.encode(message)])


@pytest.fixture
def ends() -> Iterator[tuple[NodeLink, Head]]:
    context: Any = zmq.Context()
    head = Head(context)
    link = NodeLink(head.endpoint, HELLO)
    assert head.hear() == HELLO
    yield link, head
    link.close()
    head.socket.close(0)
    context.term()


def step_until_heard(link: NodeLink) -> int | None:
    assert link._socket.poll(5000)
    return link.step(0)


def test_it_is_welcome_gives_signs_of_life_and_hears_the_end(ends: tuple[NodeLink, Head]) -> None:
    link, head = ends
    assert link.step(0) is None and not link.welcome
    head.say(wire.NodeWelcome())
    assert step_until_heard(link) is None and link.welcome
    link.beat -= node_link.BEAT_S
    link.step(0)
    assert head.hear() == wire.Beat()
    link.fail("x" * 20_000)
    said = head.hear()
    assert isinstance(said, wire.NodeFailed) and len(said.reason) == node_link.MAX_REASON
    head.say(wire.Ping())
    head.say(wire.JobEnded(7))
    codes = [step_until_heard(link)]
    while codes[-1] is None:
        codes.append(step_until_heard(link))
    assert codes[-1] == 7


def test_it_is_refused(ends: tuple[NodeLink, Head]) -> None:
    link, head = ends
    head.say(wire.Refused("node 1 is here already"))
    with pytest.raises(NodeRefused, match="refuses: node 1 is here already"):
        step_until_heard(link)


def test_a_connection_that_breaks_is_followed_by_another_but_not_without_a_welcome(ends: tuple[NodeLink, Head]) -> None:
    link, head = ends
    head.say(wire.NodeWelcome())
    step_until_heard(link)
    first = head.peer
    head.say(wire.Broken("3 messages were lost on the way"))
    assert step_until_heard(link) is None
    assert head.hear() == HELLO and head.peer != first
    head.say(wire.NodeWelcome())
    assert step_until_heard(link) is None and link.welcome
    head.say(wire.Broken("1 message was lost on the way"))
    step_until_heard(link)
    assert head.hear() == HELLO
    head.say(wire.Broken("1 message was lost on the way"))
    with pytest.raises(DispatcherLost, match="is broken: 1 message was lost"):
        step_until_heard(link)


def test_silence_after_the_welcome_is_a_lost_dispatcher(ends: tuple[NodeLink, Head]) -> None:
    link, head = ends
    link.seen -= 3600
    assert link.step(0) is None  # before it, whoever waits has a deadline of its own
    head.say(wire.NodeWelcome())
    step_until_heard(link)
    link.seen -= node_link.DISPATCHER_TIMEOUT_S
    with pytest.raises(DispatcherLost, match=r"has not been heard of for 10 s"):
        link.step(0)


@pytest.mark.parametrize("frame", [b"HTTP/1.1 400", b"\x02nonsense", wire.encode(wire.Stop())])
def test_what_is_no_dispatcher_is_told(frame: bytes, ends: tuple[NodeLink, Head]) -> None:
    link, head = ends
    head.say(frame)
    with pytest.raises(ConnectionFailed, match="is not a gt server of this version"):
        step_until_heard(link)

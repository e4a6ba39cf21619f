"""The nodes of a job of ``gt launch``, as the dispatcher knows them: who is there, and who could not start.

Owns: ``Nodes``, a part of the dispatcher's state machine. A node's launcher says hello once, then gives signs of life, and hears
``JobEnded`` from the process around the state machine; node 0 hears what becomes of the others. Must not know: sockets, clock, workers.
Next: ``dispatcher_state`` (which hands it what nodes say), ``node_link`` (the other end).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gt.runtime import wire
from gt.runtime.status import NodeStatus
from gt.runtime.wire import Message

MAX_REASON, MAX_HOST = 8192, 255  # letters
MAX_WORKERS = 4096  # of a node
NODE_TIMEOUT_S = 10.0


@dataclass(slots=True, eq=False)
class Node:
    """One node: its connection, what it said of itself, and why it failed, if it did."""

    peer: bytes
    hello: wire.NodeHello
    seen: float
    failed: str = ""


class Nodes:
    """The nodes of ``job``, which has ``num_nodes``; none may come if that is 0."""

    def __init__(self, send: Callable[[bytes, Message], None], job: str = "", num_nodes: int = 0) -> None:
        self._send, self.job, self.num_nodes = send, job, num_nodes
        self.by_peer: dict[bytes, Node] = {}
        self.lost: set[int] = set()  # nodes that have been here
        self.restarts: int | None = None  # what the job's script asked for

    def __repr__(self) -> str:
        here = ", ".join(f"{n.hello.node}{' failed' if n.failed else ''}" for n in self.by_peer.values())
        return f"nodes {{{here}}} of {self.num_nodes}"

    def __contains__(self, peer: bytes) -> bool:
        return peer in self.by_peer

    @property
    def peers(self) -> list[bytes]:
        return list(self.by_peer)

    def hello(self, now: float, peer: bytes, hello: wire.NodeHello) -> None:
        """Take a node in, or say why not."""
        reason = self._against(hello)
        if reason:
            self._send(peer, wire.Refused(reason))
            return
        for other in [n for n in self.by_peer.values() if n.hello.node == hello.node]:  # it has come by another connection
            del self.by_peer[other.peer]
        self.by_peer[peer] = node = Node(peer, hello, now)
        self._send(peer, wire.NodeWelcome())
        if hello.node in self.lost:
            self.lost.discard(hello.node)
            self._tell(node, f"is here again (pid {hello.pid})")
        if self.restarts is not None:
            self._send(peer, wire.Supervise(self.restarts))

    def supervise(self, restarts: int) -> None:
        """Have each node replace workers that die, so many times."""
        self.restarts = max(0, restarts)
        for peer in self.by_peer:
            self._send(peer, wire.Supervise(self.restarts))

    def _against(self, hello: wire.NodeHello) -> str:
        if not self.num_nodes:
            return "this server was not started by gt launch: join it with gt worker, or choose another --port for the job"
        if hello.job != self.job:
            return f"this is the server of job {self.job!r}, not of {hello.job!r}: choose another --port for one of them"
        if hello.num_nodes != self.num_nodes:
            return f"node 0 counts {self.num_nodes} nodes, node {hello.node} counts {hello.num_nodes}: they must be told the same"
        if not 0 <= hello.node < self.num_nodes:
            return f"node {hello.node} of {self.num_nodes}: nodes count from 0"
        if not 1 <= hello.workers <= MAX_WORKERS or len(hello.host) > MAX_HOST:
            return f"expected 1 to {MAX_WORKERS} workers of a node, and a host's name of at most {MAX_HOST} letters"
        for other in self.by_peer.values():
            if other.hello.node == hello.node and (other.hello.host, other.hello.pid) != (hello.host, hello.pid):
                return (
                    f"node {hello.node} is here already (pid {other.hello.pid} on {other.hello.host}): "
                    "each node starts gt launch once, with a number of its own"
                )
        return ""

    def said(self, now: float, peer: bytes, message: Message) -> None:
        """Hear from a node that is known."""
        node = self.by_peer[peer]
        node.seen = now
        match message:
            case wire.NodeFailed(reason):
                node.failed = reason[:MAX_REASON] or "it does not say why"
                self._tell(node, f"says: {node.failed}")
            case wire.Bye():
                self._lose(peer, "has left the job")

    def gone(self, peer: bytes, why: str = "has ended, or cannot be reached any more") -> None:
        """Hear that a connection has ended, which may be a node's."""
        if peer in self.by_peer:
            self._lose(peer, why)

    def tick(self, now: float) -> None:
        """Forget nodes that were not heard of for long."""
        for peer in [p for p, n in self.by_peer.items() if now - n.seen > NODE_TIMEOUT_S]:
            self._lose(peer, f"has not been heard of for {NODE_TIMEOUT_S:g} s")

    def _lose(self, peer: bytes, why: str) -> None:
        node = self.by_peer.pop(peer)
        self.lost.add(node.hello.node)
        self._tell(node, f"is lost: gt launch there (pid {node.hello.pid}) {why}. The job goes on with the workers that are left")

    def _tell(self, node: Node, text: str) -> None:
        """Have node 0 say what has become of another."""
        first = next((n for n in self.by_peer.values() if n.hello.node == 0), None)
        if first is not None and first is not node:
            self._send(first.peer, wire.NodeNews(node.hello.node, node.hello.host, text))

    def status(self) -> tuple[NodeStatus, ...]:
        """Give the nodes by number."""
        nodes = sorted(self.by_peer.values(), key=lambda n: n.hello.node)
        return tuple(
            NodeStatus(node=h.node, host=h.host, pid=h.pid, workers=h.workers, failed=n.failed) for n in nodes for h in (n.hello,)
        )


__all__ = ["NODE_TIMEOUT_S", "Node", "Nodes"]

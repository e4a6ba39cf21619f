"""A node's own connection to the dispatcher of its job, beside those of its workers: it hears when the job is over, and how it ended.

Owns: ``NodeLink``. Next: ``nodes`` (the other end), ``gt.commands.launch`` (who waits here).
"""

from __future__ import annotations

import contextlib

import zmq

from gt.runtime import wire
from gt.runtime.awake_clock import AwakeClock
from gt.runtime.errors import ConnectionFailed, ConnectionRefused, DispatcherLost, LaunchError, ProtocolError
from gt.runtime.gate import Handshake, explained
from gt.runtime.hello import UNKNOWN
from gt.runtime.keys import Keys
from gt.runtime.launch import LocalCluster
from gt.runtime.numbering import MessagesLost
from gt.runtime.transport import Context, PeerUnreachable, make_socket, receive, send

BEAT_S = 1.0
DISPATCHER_TIMEOUT_S = 10.0
MAX_REASON = 8000


class NodeRefused(LaunchError):
    """The dispatcher does not take this node in: it says why."""


class NodeLink:
    """From hello to the end of the job. ``step`` must be called every second or so. A connection that breaks, as while this process was
    stopped, is followed by another.
    """

    def __init__(self, endpoint: str, hello: wire.NodeHello, keys: Keys | None = None) -> None:
        self.endpoint, self.keys, self._hello = endpoint, keys, hello
        self.welcome = False  # it has been
        self._here = False  # it is, by this connection
        self.news: list[str] = []  # of other nodes, of which nobody has been told yet
        self.restarts: int | None = None  # of workers that die, as the script has last asked for; None once that was taken up
        self._awake = AwakeClock()
        self.seen = self.beat = self._awake()
        self._context: Context = zmq.Context()
        self._connect()

    def _connect(self) -> None:
        self._socket = make_socket(self._context, zmq.DEALER)
        if self.keys is not None:
            self.keys.join(self._socket)
        self._handshake = Handshake(self._socket)
        self._socket.connect(self.endpoint)
        send(self._socket, self._hello)  # waits here until somebody listens there

    def _connect_again(self, why: str) -> None:
        """Errors: DispatcherLost if the connection that is broken was one of no welcome."""
        if not self._here:
            raise DispatcherLost(f"the link to node 0's dispatcher at {self.endpoint} is broken: {why}")
        self._here = False
        self._handshake.close()
        self._socket.close(0)
        self._connect()

    def step(self, wait_s: float) -> int | None:
        """Listen for ``wait_s``; give the job's exit code once it is over.

        Errors: NodeRefused; ConnectionFailed for another key than the dispatcher's; DispatcherLost if nothing is heard for 10 s after the welcome.
        """
        self._socket.poll(int(wait_s * 1000))
        ended: int | None = None
        while (message := self._next()) is not None:
            self.seen = self._awake()
            match message:
                case wire.NodeWelcome():
                    self.welcome = self._here = True
                case wire.Supervise(restarts):
                    self.restarts = restarts
                case wire.NodeNews(node, host, text):
                    self.news.append(f"node {node} ({host}) {text}")
                case wire.JobEnded(code):
                    ended = code
                case wire.Refused(reason) if reason == UNKNOWN and self.welcome:  # it was silent for too long
                    send(self._socket, self._hello)
                case wire.Refused(reason):
                    raise NodeRefused(f"the server at {self.endpoint} refuses: {reason}")
                case wire.Broken(reason):
                    self._connect_again(reason)
        if not self.welcome and (failed := self._handshake.look()):
            raise ConnectionRefused(explained(failed, self.endpoint, self.keys))
        now = self._awake()
        if self.welcome and ended is None and now - self.seen > DISPATCHER_TIMEOUT_S:
            raise DispatcherLost(f"node 0's dispatcher at {self.endpoint} has not been heard of for {DISPATCHER_TIMEOUT_S:g} s")
        if self.welcome and now - self.beat >= BEAT_S:
            self.beat = now
            send(self._socket, wire.Beat())
        return ended

    def _next(self) -> wire.ToNode | None:
        try:
            got = receive(self._socket, wire.TO_NODE)
        except ProtocolError as e:
            raise ConnectionFailed(f"what answers at {self.endpoint} is not a gt server of this version: {e}") from None
        except MessagesLost as e:
            self._connect_again(str(e))
            return None
        return None if got is None else got[1]

    def supervise(self, cluster: LocalCluster) -> None:
        """Have this node's workers replaced as the script has asked since the last call."""
        restarts, self.restarts = self.restarts, None
        if restarts is not None:
            cluster.supervise(restarts)

    def fail(self, reason: str) -> None:
        """Say that this node's workers could not start, or are lost."""
        send(self._socket, wire.NodeFailed(reason[:MAX_REASON]))

    def close(self) -> None:
        with contextlib.suppress(PeerUnreachable):
            send(self._socket, wire.Bye())
        self._handshake.close()
        self._context.destroy(300)


__all__ = ["NodeLink", "NodeRefused"]

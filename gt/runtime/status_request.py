"""Asks a server what it says of itself.

Owns: ``ask``, ``StatusLink``. Next: ``status`` (the answer), ``gt.commands.status``.
"""

from __future__ import annotations

import time

import zmq

from gt.runtime import wire
from gt.runtime.errors import ConnectionFailed, ProtocolError
from gt.runtime.status import ServerStatus
from gt.runtime.transport import Socket, endpoint_of, make_socket, receive, send

ASK_S = 2.0


class StatusLink:
    """A connection that only asks."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._context: zmq.Context[Socket] = zmq.Context()
        try:
            self._socket = make_socket(self._context, zmq.DEALER)
            self._socket.connect(endpoint_of(address))
        except BaseException:
            self._context.destroy(0)
            raise

    def ask(self, timeout_s: float = ASK_S) -> ServerStatus:
        """Give the server's answer. Errors: ConnectionFailed within ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        send(self._socket, wire.AskStatus())
        while (left := deadline - time.monotonic()) > 0:
            self._socket.poll(int(left * 1000) + 1)
            try:
                got = receive(self._socket, wire.TO_ASKER)
            except ProtocolError as e:
                raise ConnectionFailed(f"what answers at {self.address} is not a gt server of this version: {e}") from None
            match got and got[1]:
                case wire.Status(status):
                    return status
                case wire.Refused(reason):
                    raise ConnectionFailed(f"the server at {self.address} refuses: {reason}")
        raise ConnectionFailed(
            f"no gt server answers at {self.address} within {timeout_s:g} s: check host and port, that the server runs there "
            "(`gt server -p PORT`), and that no firewall is between"
        )

    def close(self) -> None:
        self._context.destroy(0)


def ask(address: str, timeout_s: float = ASK_S) -> ServerStatus:
    """Ask the server at ``address`` once. Errors: ConnectionFailed within ``timeout_s``; ValueError for what is no address."""
    link = StatusLink(address)
    try:
        return link.ask(timeout_s)
    finally:
        link.close()


__all__ = ["ASK_S", "StatusLink", "ask"]

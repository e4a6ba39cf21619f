"""Asks a server what it says of itself.

Owns: ``ask``, ``StatusLink``. Next: ``status`` (the answer), ``gt.commands.status``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import zmq

from gt.runtime import wire
from gt.runtime.errors import ConnectionFailed
from gt.runtime.gate import Handshake, await_answer
from gt.runtime.joining import answer
from gt.runtime.keys import Keys, chosen_keys
from gt.runtime.status import ServerStatus
from gt.runtime.tracing import PATIENCE_S, PREPARING_S
from gt.runtime.transport import Context, endpoint_of, make_socket, send

ASK_S = 2.0
LOOK_S = 0.25


class StatusLink:
    """A connection that only asks, as the owner of ``keys`` if the server wants to know."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self.address = address
        self.keys = None if address.startswith("ipc://") else keys
        self._context: Context = zmq.Context()
        try:
            self._socket = make_socket(self._context, zmq.DEALER)
            if self.keys is not None:
                self.keys.join(self._socket)
            self._handshake = Handshake(self._socket)
            self._socket.connect(endpoint_of(address))
        except BaseException:
            self._context.destroy(0)
            raise

    def ask(self, timeout_s: float = ASK_S) -> ServerStatus:
        """Give the server's answer. Errors: ConnectionFailed within ``timeout_s``."""
        for message in self._answers(wire.AskStatus(), timeout_s):
            if isinstance(message, wire.Status):
                return message.status
        raise AssertionError("answers do not end")

    def trace(self, seconds: float, num_lines: int, timeout_s: float = ASK_S) -> list[wire.Traced]:
        """Have the server take a trace of so long; give each process's part. Errors: ConnectionFailed, as where another is being taken."""
        parts: list[wire.Traced] = []
        for message in self._answers(wire.AskTrace(seconds, num_lines), PREPARING_S + seconds + PATIENCE_S + timeout_s):
            if isinstance(message, wire.Traced):
                parts.append(message)
                if not message.left:
                    break
        return parts

    def _answers(self, asked: wire.Message, timeout_s: float) -> Iterator[wire.ToAsker]:
        """Give what comes once a question is asked. Errors: ConnectionFailed where nothing more comes in time, or the connection ends."""
        deadline = time.monotonic() + timeout_s
        self._handshake.look()
        self._handshake.over = False  # what it was asked over before says nothing of this question
        send(self._socket, asked)
        while (now := time.monotonic()) < deadline:
            if not await_answer(self._socket, self._handshake, min(now + LOOK_S, deadline), self.address, self.keys):
                if self._handshake.over:
                    raise ConnectionFailed(f"the gt server at {self.address} has ended, or cannot be reached any more: the answer was not all there")
                continue
            if (got := answer(self._socket, wire.TO_ASKER, self.address)) is not None:
                yield got
        raise ConnectionFailed(
            f"no gt server answers at {self.address} within {timeout_s:g} s: check host and port, that the server runs there "
            "(`gt server -p PORT`), and that no firewall is between"
        )

    def close(self) -> None:
        self._handshake.close()
        self._context.destroy(0)


def ask(address: str, timeout_s: float = ASK_S) -> ServerStatus:
    """Ask the server at ``address`` once, as the owner of the key file that GT_KEY_FILE names.

    Errors: ConnectionFailed within ``timeout_s``; ValueError for what is no address, or no key file.
    """
    link = StatusLink(address, chosen_keys(None, "client", "worker"))
    try:
        return link.ask(timeout_s)
    finally:
        link.close()


__all__ = ["ASK_S", "StatusLink", "ask"]

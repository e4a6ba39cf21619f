"""How a client becomes one of a server's: by two connections, each with a hello that is answered.

Owns: ``join``, ``Joined``, ``answer``. Must not know: what is said later. Next: ``remote`` (who joins), ``status_request``
(who only asks), ``gate`` (handshakes), ``door`` (the other end).
"""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import zmq

from gt.runtime import wire
from gt.runtime.errors import ConnectionFailed, ConnectionRefused, ProtocolError
from gt.runtime.gate import Handshake, await_answer
from gt.runtime.keys import Keys
from gt.runtime.numbering import MessagesLost
from gt.runtime.transport import Context, PeerUnreachable, Socket, endpoint_of, make_socket, receive, send
from gt.runtime.wire import TO_CLIENT, Codec, Message


class Joined(NamedTuple):
    """``down``: what comes. ``up``: calls. ``server``: tells when the connection ends."""

    down: Socket
    up: Socket
    server: Handshake
    welcome: wire.ClientWelcome


def join(context: Context, address: str, keys: Keys | None, hello: wire.ClientHello, timeout_s: float) -> Joined:
    """Join a server, as the owner of ``keys`` if it wants to know. The sockets are the context's, also after an error.

    Errors: ConnectionFailed within ``timeout_s``; ConnectionRefused as soon as that is known.
    """
    down, up = _made(context, keys), _made(context, keys)
    deadline = time.monotonic() + timeout_s
    hint = (
        f"no gt server answers at {address} within {timeout_s:g} s: "
        "start one with `python -m gt.server -p PORT`, "
        "check host and port, or leave out gt.connect to run in this process"
    )

    def ask(socket: Socket, handshake: Handshake, message: Message, kind: type[Any]) -> Any:
        socket.connect(endpoint_of(address))
        with contextlib.suppress(PeerUnreachable):  # turned away already: the handshake says why
            send(socket, message)
        if not await_answer(socket, handshake, deadline, address, keys):
            raise ConnectionFailed(hint)
        got = answer(socket, TO_CLIENT, address)
        if not isinstance(got, kind):
            raise ConnectionFailed(f"the server at {address} refuses: {got}")
        return got

    server = Handshake(down)
    try:
        welcome = ask(down, server, hello, wire.ClientWelcome)
        attaching = Handshake(up)
        try:
            ask(up, attaching, wire.Attach(welcome.token, "up"), wire.Attached)
        finally:
            attaching.close()
    except BaseException:
        server.close()
        raise
    return Joined(down, up, server, welcome)


def answer(socket: Socket, codec: Codec[Any], address: str) -> Any:
    """Give what a server has answered, None if nothing has come. Errors: ConnectionRefused; ConnectionFailed for what is no answer."""
    try:
        got = receive(socket, codec)
    except ProtocolError as e:
        raise ConnectionFailed(f"what answers at {address} is not a gt server of this version: {e}") from None
    except MessagesLost as e:
        raise ConnectionFailed(f"the connection to the server at {address} is broken: {e}") from None
    if got is not None and isinstance(got[1], wire.Refused | wire.Broken):
        raise ConnectionRefused(f"the server at {address} refuses: {got[1].reason}")
    return None if got is None else got[1]


def _made(context: Context, keys: Keys | None) -> Socket:
    socket = make_socket(context, zmq.DEALER)
    if keys is not None:
        keys.join(socket)
    return socket


__all__ = ["Joined", "answer", "join"]

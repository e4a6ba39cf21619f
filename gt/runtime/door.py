"""A dispatcher's door: its gate, its list of keys and whose key each peer has, together.

Must not know: what peers want. Next: ``keys`` (the list and the guard), ``gate`` (handshakes), ``dispatcher``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from gt.runtime import wire
from gt.runtime.dispatcher_events import Send
from gt.runtime.errors import KeyFileError
from gt.runtime.gate import Gate
from gt.runtime.keys import LIST_FILE, Allowed, Guard, Keys
from gt.runtime.roster import Worker
from gt.runtime.transport import Context, Socket

REFRESH_S = 0.5


class Door:
    """Keeps a dispatcher's socket to those on the list beside its key file. Errors: KeyFileError if there is no such list."""

    def __init__(self, context: Context, router: Socket, keys: Keys, logger: logging.Logger) -> None:
        self.logger = logger
        self.allowed = Allowed(keys.path.absolute().parent / LIST_FILE)
        if self.allowed.fault:
            raise KeyFileError(self.allowed.fault)
        if not self.allowed.path.exists():
            raise KeyFileError(
                f"{self.allowed.path} is not there: it is the list of keys that may come in, which `gt keygen` made beside the server's"
            )
        self.guard = Guard(self.allowed.role_of)
        self.gate = Gate(context, lambda user: self.allowed.role_of(user) is not None, logger)
        self.gate.watch(router)
        keys.serve(router)
        self.refreshed = 0.0

    def tend(self, now: float, known: Callable[[bytes], bool]) -> bool:
        """Answer handshakes, and read the list if it has changed; tell whether it had. ``known``: whether a peer is still here."""
        changed = False
        if now - self.refreshed >= REFRESH_S:
            self.refreshed = now
            changed = self.allowed.refresh()
            if changed and self.allowed.fault:
                self.logger.error("nobody is let in until this is mended: %s", self.allowed.fault)
            self.guard.forget(known)
        self.gate.answer(now)
        return changed

    def admit(self, owner: Any, peer: bytes) -> list[Send]:
        """Tell a worker that has just come by its link whom it may let in."""
        if isinstance(owner, Worker) and owner.link == peer:
            return [Send(peer, wire.Admit(self.allowed.of("client")))]
        return []


__all__ = ["Door"]

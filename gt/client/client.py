"""The connection of before gt was rewritten. Next: ``gt.session``."""

from __future__ import annotations

from gt.ir.blame import warn_user
from gt.session import connect, disconnect


class Client:
    """Use a server as ``gt.connect`` and ``gt.disconnect`` do; making one warns, and says so."""

    def __init__(self, dispatcher_host: str = "localhost", dispatcher_port: int = 9000) -> None:
        warn_user("gt.client.client.Client is gt.connect('host:port') and gt.disconnect() now: use these")
        self.address = f"{dispatcher_host}:{dispatcher_port}"

    def connect(self) -> None:
        """Connect. Errors: ConnectionError if no server is there."""
        connect(self.address)

    def disconnect(self) -> None:
        disconnect()


__all__ = ["Client"]

"""The key-value store in which workers meet to form process groups.

Owns: ``KeyStore``, pure: an operation in, replies out; gets and waits of absent keys are parked until the keys come
or the group they belong to loses a member. Must not know: sockets, torch. Next: ``collective`` (the torch Store in
front of it).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from gt.runtime.wire import StoreOp, StoreReply

Replies: TypeAlias = list[tuple[bytes, StoreReply]]


@dataclass
class KeyStore:
    """Keys are ``group name/key``; ``parked`` holds (peer, operation) pairs that wait. ``over``: groups for whose keys nobody waits."""

    values: dict[str, bytes] = field(default_factory=dict)
    parked: list[tuple[bytes, StoreOp]] = field(default_factory=list)
    over: set[str] = field(default_factory=set)

    def apply(self, peer: bytes, op: StoreOp) -> Replies:
        """Do one operation; give the replies to send, to its peer and to those it woke."""
        if not op.keys:
            return [(peer, StoreReply(op.request, False))]
        if op.kind in ("get", "wait") and any(k not in self.values for k in op.keys):
            if op.keys[0].partition("/")[0] in self.over:  # it lost a member while this was on its way
                return [(peer, StoreReply(op.request, False))]
            self.parked.append((peer, op))
            return []
        replies = [(peer, self._do(op))]
        if op.kind in ("set", "add", "compare_set"):
            replies += self._wake()
        return replies

    def forget(self, group: str) -> Replies:
        """Drop a group's keys and refuse whoever waits for them, now or later."""
        self.over.add(group)
        prefix = group + "/"
        self.values = {k: v for k, v in self.values.items() if not k.startswith(prefix)}
        lost = [(p, o) for p, o in self.parked if o.keys[0].startswith(prefix)]
        self.parked = [entry for entry in self.parked if entry not in lost]
        return [(peer, StoreReply(op.request, False)) for peer, op in lost]

    def drop_peer(self, peer: bytes) -> None:
        self.parked = [entry for entry in self.parked if entry[0] != peer]

    def _do(self, op: StoreOp) -> StoreReply:
        key = op.keys[0]
        match op.kind:
            case "set":
                self.values[key] = op.value
            case "get":
                return StoreReply(op.request, True, self.values[key])
            case "add":
                text = self.values.get(key, b"0")
                if not text.removeprefix(b"-").isdigit():
                    return StoreReply(op.request, False)
                number = int(text) + op.amount
                self.values[key] = str(number).encode()
                return StoreReply(op.request, True, number=number)
            case "check":
                return StoreReply(op.request, True, number=int(all(k in self.values for k in op.keys)))
            case "delete":
                return StoreReply(op.request, True, number=int(self.values.pop(key, None) is not None))
            case "compare_set":
                if self.values.get(key, b"") == op.expected:
                    self.values[key] = op.value
                return StoreReply(op.request, True, self.values.get(key, op.expected))
            case "wait":
                pass
            case _:
                return StoreReply(op.request, False)
        return StoreReply(op.request, True)

    def _wake(self) -> Replies:
        ready = [(p, o) for p, o in self.parked if all(k in self.values for k in o.keys)]
        self.parked = [entry for entry in self.parked if entry not in ready]
        return [(peer, self._do(op)) for peer, op in ready]

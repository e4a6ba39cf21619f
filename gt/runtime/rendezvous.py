"""The key-value store in which workers meet to form process groups.

Owns: ``KeyStore``, pure: an operation in, replies out; gets and waits of absent keys are parked until the keys come
or the group they belong to is over. Must not know: sockets, torch. Next: ``process_group`` (the torch Store in front of it), ``epochs``
(which says what groups are being made).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from gt.runtime.wire import StoreOp, StoreReply

Replies: TypeAlias = list[tuple[bytes, StoreReply]]


@dataclass
class KeyStore:
    """Keys are ``group name/key``. ``groups``: those being made, each with its keys; of any other nothing is kept, and nobody waits for it.
    ``parked``: (peer, operation) pairs that wait.
    """

    groups: dict[str, dict[str, bytes]] = field(default_factory=dict)
    parked: list[tuple[bytes, StoreOp]] = field(default_factory=list)

    def begin(self, group: str) -> None:
        """Hear that a group is being made."""
        self.groups[group] = {}

    def apply(self, peer: bytes, op: StoreOp) -> Replies:
        """Do one operation; give the replies to send, to its peer and to those it woke."""
        if not op.keys:
            return [(peer, StoreReply(op.request, False))]
        if op.kind in ("get", "wait") and not self._is_ready(op):
            if _group_of(op) not in self.groups:  # it lost a member while this was on its way
                return [(peer, StoreReply(op.request, False))]
            self.parked.append((peer, op))
            return []
        replies = [(peer, self._do(op))]
        if op.kind in ("set", "add", "compare_set"):
            replies += self._wake()
        return replies

    def forget(self, group: str) -> Replies:
        """A group is over: drop its keys and refuse whoever waits for them, now or later."""
        self.groups.pop(group, None)
        lost = [(p, o) for p, o in self.parked if _group_of(o) == group]
        self.parked = [entry for entry in self.parked if entry not in lost]
        return [(peer, StoreReply(op.request, False)) for peer, op in lost]

    def drop_peer(self, peer: bytes) -> None:
        self.parked = [entry for entry in self.parked if entry[0] != peer]

    def _do(self, op: StoreOp) -> StoreReply:
        key, values = op.keys[0], self._values(op)
        match op.kind:
            case "set":
                values[key] = op.value
            case "get":
                return StoreReply(op.request, True, values[key])
            case "add":
                text = values.get(key, b"0")
                if not text.removeprefix(b"-").isdigit():
                    return StoreReply(op.request, False)
                number = int(text) + op.amount
                values[key] = str(number).encode()
                return StoreReply(op.request, True, number=number)
            case "check":
                return StoreReply(op.request, True, number=int(self._is_ready(op)))
            case "delete":
                return StoreReply(op.request, True, number=int(values.pop(key, None) is not None))
            case "compare_set":
                if values.get(key, b"") == op.expected:
                    values[key] = op.value
                return StoreReply(op.request, True, values.get(key, op.expected))
            case "wait":
                pass
            case _:
                return StoreReply(op.request, False)
        return StoreReply(op.request, True)

    def _values(self, op: StoreOp) -> dict[str, bytes]:
        return self.groups.get(_group_of(op), {})

    def _is_ready(self, op: StoreOp) -> bool:
        values = self._values(op)
        return all(k in values for k in op.keys)

    def _wake(self) -> Replies:
        ready = [(p, o) for p, o in self.parked if self._is_ready(o)]
        self.parked = [entry for entry in self.parked if entry not in ready]
        return [(peer, self._do(op)) for peer, op in ready]


def _group_of(op: StoreOp) -> str:
    return op.keys[0].partition("/")[0]

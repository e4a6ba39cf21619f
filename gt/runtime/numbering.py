"""Counts messages on each link, so that one that comes twice is taken once and one that does not come is missed.

A link is one socket's way to one peer. TCP loses and repeats nothing by itself, but a connection that breaks takes with it what was on its
way, ZMQ makes another without a word, and what is between two hosts may do worse. So each message carries its place in its *stream*, from
0 on; a stream has a random name. A place taken already is a repetition; a place further on means that something was lost, and with it
the link. What is lost last shows at the next sign of life, which is a message too: ``confirm`` says to whom one is due. Pure; must not
know: sockets, what messages mean. Next: ``transport``, the one place where messages get and show their numbers.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import Any

from gt.runtime.errors import GtError

_FORM = struct.Struct(">4s4sQ")
_MARK = b"\xc1gt#"  # 0xc1 begins nothing in MessagePack
SIZE = _FORM.size
MAX_LINKS = 1 << 14  # that one socket remembers, those heard of last: strangers can make more
CONFIRMS = 3  # signs of life that follow a message, a second apart


class MessagesLost(GtError):
    """Messages of a peer did not arrive: its link is no use any more. ``peer``: as a ROUTER names it."""

    def __init__(self, peer: bytes, count: int) -> None:
        super().__init__(f"{count} message{'s were' if count > 1 else ' was'} lost on the way, as when a connection breaks")
        self.peer = peer


def without_number(header: memoryview) -> memoryview:
    """Give a header as it was before it got its number; one that has none as it is."""
    return header[:-SIZE] if header[-SIZE : 4 - SIZE] == _MARK else header


@dataclass(slots=True)
class _Outgoing:
    stream: bytes
    number: int = 0
    confirms: int = 0


@dataclass(slots=True, eq=False)
class Numbers:
    """The links of one socket. ``repeated``: how many messages came twice."""

    sent: dict[bytes, _Outgoing] = field(default_factory=dict)
    expected: dict[bytes, int] = field(default_factory=dict)
    repeated: int = 0

    def next(self, peer: bytes) -> bytes:
        """Give what follows the header of the next message to a peer. It is ``gone`` once it could be sent."""
        link = self.sent.get(peer)
        if link is None:
            link = self.sent[peer] = _Outgoing(os.urandom(4))
            _limit(self.sent)
        return _FORM.pack(_MARK, link.stream, link.number)

    def gone(self, peer: bytes, sign_of_life: bool = False) -> None:
        """Hear that the message was handed to the socket."""
        link = self.sent[peer]
        link.number += 1
        if not sign_of_life:
            link.confirms = CONFIRMS
        if len(self.sent) > 1:
            self.sent[peer] = self.sent.pop(peer)

    def confirm(self) -> list[bytes]:
        """Give the peers to which something was sent lately: a sign of life tells them whether they have it all."""
        due = [peer for peer, link in self.sent.items() if link.confirms]
        for peer in due:
            self.sent[peer].confirms -= 1
        return due

    def is_new(self, peer: bytes, header: Any) -> bool:
        """Whether a message is to be taken. One without a number is. Errors: MessagesLost."""
        if len(header) < SIZE:
            return True
        mark, stream, number = _FORM.unpack_from(header, len(header) - SIZE)
        if mark != _MARK:
            return True
        key = peer + stream
        expected = self.expected.pop(key, 0)
        self.expected[key] = number + 1 if number >= expected else expected
        if number == expected:
            if not number:
                _limit(self.expected)
            return True
        _limit(self.expected)
        if number < expected:
            self.repeated += 1
            return False
        raise MessagesLost(peer, number - expected)


def _limit(links: dict[bytes, Any]) -> None:
    if len(links) > MAX_LINKS:
        del links[next(iter(links))]


__all__ = ["CONFIRMS", "MAX_LINKS", "SIZE", "MessagesLost", "Numbers", "without_number"]

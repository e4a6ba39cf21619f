"""Numbers on links: what comes twice is taken once, what does not come is missed, and strangers cannot make a socket remember for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from gt.runtime import numbering, wire
from gt.runtime.numbering import CONFIRMS, MessagesLost, Numbers, without_number
from gt.runtime.transport import Socket, confirm, make_socket, receive, send

HEADER = wire.encode(wire.Beat(3))


def sent(numbers: Numbers, count: int, peer: bytes = b"") -> list[bytes]:
    found = []
    for _ in range(count):
        found.append(HEADER + numbers.next(peer))
        numbers.gone(peer)
    return found


def test_in_order_all_are_new_and_each_only_once() -> None:
    here = Numbers()
    headers = sent(Numbers(), 3)
    assert [here.is_new(b"a", h) for h in (*headers[:2], headers[0], headers[1], headers[2], headers[2])] == [
        True, True, False, False, True, False,
    ]  # fmt: skip
    assert here.repeated == 3


@pytest.mark.parametrize("gap", [1, 2, 5])
def test_what_did_not_come_is_missed_once(gap: int) -> None:
    here, headers = Numbers(), sent(Numbers(), gap + 3)
    assert here.is_new(b"a", headers[0])
    with pytest.raises(MessagesLost, match=rf"^{gap} messages? (was|were) lost") as caught:
        here.is_new(b"a", headers[gap + 1])
    assert caught.value.peer == b"a"
    assert here.is_new(b"a", headers[gap + 2]) and not here.is_new(b"a", headers[1])


def test_who_has_another_connection_in_the_middle_of_a_stream_has_lost_something() -> None:
    here, headers = Numbers(), sent(Numbers(), 3)
    assert here.is_new(b"a", headers[0])
    with pytest.raises(MessagesLost):
        here.is_new(b"another name", headers[1])


def test_each_link_has_its_own_numbers() -> None:
    there, here = Numbers(), Numbers()
    a, b, others = sent(there, 2, b"a"), sent(there, 2, b"b"), sent(Numbers(), 2)
    assert all(here.is_new(b"", h) for pair in zip(a, b, others, strict=True) for h in pair)  # several ends at one socket


def test_what_could_not_be_sent_has_no_number() -> None:
    there, here = Numbers(), Numbers()
    there.next(b"p")
    assert all(here.is_new(b"", h) for h in sent(there, 2, b"p"))


def test_messages_without_numbers_are_taken_as_they_come_and_headers_read_alike() -> None:
    here = Numbers()
    assert here.is_new(b"a", b"") and here.is_new(b"a", HEADER) and here.is_new(b"a", HEADER) and not here.expected
    numbered = sent(Numbers(), 1)[0]
    assert wire.FROM_PEERS.decode([numbered]) == wire.FROM_PEERS.decode([HEADER]) == (wire.Beat(3), None)
    assert bytes(without_number(memoryview(numbered))) == HEADER == bytes(without_number(memoryview(HEADER)))


def test_signs_of_life_follow_what_was_sent_and_then_end() -> None:
    there = Numbers()
    assert there.confirm() == []
    sent(there, 2, b"p")
    for _ in range(CONFIRMS):
        assert there.confirm() == [b"p"]
        there.next(b"p"), there.gone(b"p", sign_of_life=True)
    assert there.confirm() == []


def test_strangers_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "MAX_LINKS", 10)
    here, there, friend = Numbers(), Numbers(), Numbers()
    for i in range(50):
        assert here.is_new(b"friend", sent(friend, 1)[0])
        assert here.is_new(b"%d" % i, sent(there, 1, b"%d" % i)[0])
    assert len(here.expected) == len(there.sent) == 10


@pytest.fixture
def ends() -> Iterator[tuple[Socket, Socket]]:
    context: Any = zmq.Context()
    router, dealer = make_socket(context, zmq.ROUTER), make_socket(context, zmq.DEALER)
    router.bind("inproc://here")
    dealer.connect("inproc://here")
    yield router, dealer
    context.destroy(0)


def test_sockets_number_and_look(ends: tuple[Socket, Socket]) -> None:
    router, dealer = ends
    said = [wire.Beat(1), wire.Beat(2)]
    for message in said:
        send(dealer, message)
    lost = HEADER + dealer.numbers.next(b"")
    dealer.numbers.gone(b"")
    dealer.numbers.confirm()
    again = dealer.numbers
    confirm(dealer, wire.Beat(4))
    assert router.poll(2000)
    assert [receive(router, wire.FROM_PEERS, routed=True)[1] for _ in said] == said  # type: ignore[index]
    with pytest.raises(MessagesLost, match="^1 message was lost") as caught:
        receive(router, wire.FROM_PEERS, routed=True)
    dealer.send(lost)  # late, and of no use any more
    send(router, wire.Ping(), peer=caught.value.peer)
    assert dealer.poll(2000) and receive(dealer, wire.TO_CLIENT) == (b"", wire.Ping(), None)
    assert router.poll(2000) and receive(router, wire.FROM_PEERS, routed=True) is None and router.numbers.repeated == 1
    assert again is dealer.numbers


def test_another_version_gets_what_it_can_read(ends: tuple[Socket, Socket]) -> None:
    router, dealer = ends
    refused = wire.encode_refused("no", wire.VERSION + 1)
    send(dealer, wire.Refused("no"), header=refused)
    assert router.poll(2000) and router.recv_multipart()[1] == refused

"""Messages that were lost on their way: whose session that ends, what they hear, and that nobody else notices."""

from __future__ import annotations

import pytest

from gt.runtime import wire
from gt.runtime.dispatcher_events import LinkBroken
from tests.state.stories import Story, sent

WHY = "2 messages were lost on the way"


@pytest.mark.parametrize("peer", ["c0", "c0up"])
def test_a_client_is_told_by_the_connection_it_reads_and_its_values_go(peer: str) -> None:
    s = Story(clients=2)
    s.put(1)
    s.put(1, client=1)
    out = s.tell(LinkBroken(s.now, peer.encode(), WHY))
    assert sent(out, wire.Broken, "c0") == [wire.Broken(WHY)]
    assert len(sent(out, wire.Free, "w0")) == 1 and list(s.state.clients) == [1]
    assert sent(s.say("c0", wire.Beat()), wire.Refused)


@pytest.mark.parametrize("peer", ["w1", "l1"])
def test_a_worker_is_lost_and_the_client_hears_why(peer: str) -> None:
    s = Story(workers=2)
    out = s.tell(LinkBroken(s.now, peer.encode(), WHY))
    assert s.state.roster.worker_ids == (0,)
    for own in ("l1", "w1"):  # whichever it listens to first says so, and not that it is not known
        assert "it counts as lost" in sent(out, wire.Refused, own)[0].reason
    (now,) = sent(out, wire.Workers, "c0")
    assert now.why == f"worker 1 (pid 101 on host) is cut off: {WHY}"


def test_who_comes_by_another_connection_in_the_middle_hears_that_it_is_over_and_nobody_is_lost() -> None:
    s = Story()
    out = s.tell(LinkBroken(s.now, b"unknown", WHY))
    assert [(c.peer, c.message) for c in out] == [(b"unknown", wire.Broken(WHY))]
    assert s.state.roster.worker_ids == (0,) and list(s.state.clients) == [0]


def test_a_node_that_is_cut_off_may_come_again() -> None:
    s = Story(job="j", num_nodes=2)
    hello = wire.NodeHello("j", 2, 1, "host", 1, 1)
    assert sent(s.say("n1", hello), wire.NodeWelcome)
    assert sent(s.tell(LinkBroken(s.now, b"n1", WHY)), wire.Broken, "n1")
    assert sent(s.say("n2", hello), wire.NodeWelcome)


def test_signs_of_life_without_calls_are_not_enough() -> None:
    s = Story()
    s.put(1)
    for s.now in (4.0, 8.0, 12.0):
        s.say("c0", wire.Beat())
        s.say("l0", wire.Beat())
    (broken,) = sent(s.wait(0.0), wire.Broken, "c0")
    assert broken.reason == "no calls and no signs of life came with them for 10 s" and not s.state.clients


def test_a_worker_that_ends_says_why() -> None:
    s = Story(workers=2)
    (now,) = sent(s.say("w1", wire.Bye("is cut off: 1 message was lost on the way")), wire.Workers, "c0")
    assert now.why == "worker 1 is cut off: 1 message was lost on the way"


def test_what_a_worker_is_at_it_says_by_its_own_thread_alone() -> None:
    s = Story()
    s.say("l0", wire.Beat(7, 2))
    s.say("w0", wire.Beat())  # that its link is whole is all that it says there
    assert s.state.workers[0].beat == wire.Beat(7, 2)


def test_a_client_that_a_worker_cannot_reach_is_told_so_in_place_of_its_value() -> None:
    s = Story(clients=2)
    token = s.state.clients[0].token
    (failed,) = sent(s.say("w0", wire.Unsent(token, 4)), wire.Failed, "c0")
    assert (failed.request, failed.fault.kind) == (4, "unreachable") and "worker 0 on host cannot reach this client" in failed.fault.message
    assert s.say("w0", wire.Unsent(b"nobody's", 4)) == []

"""Traces as the dispatcher takes them: who is asked, whose clock counts, who is waited for and for how long."""

from __future__ import annotations

from gt.runtime import wire
from gt.runtime.dispatcher_events import PeerGone, Send
from gt.runtime.log import TracedLines
from gt.runtime.tracing import PATIENCE_S, PREPARING_S
from tests.state.stories import Story


class Own:
    """The dispatcher's own log."""

    def __init__(self) -> None:
        self.asked = 0

    def trace(self, num_lines: int) -> None:
        self.asked = num_lines

    def traced(self) -> TracedLines:
        self.asked = 0
        return TracedLines(100.0, ("0.5 1 recv dispatcher Run 0",), 0)


def story(workers: int = 1) -> Story:
    """Give a dispatcher whose wall clock is 1000 s ahead of the story's."""
    s = Story(workers)
    tracing = s.state.tracing
    tracing.own, tracing.boot, tracing.wall_clock = Own(), "here", lambda: 1000.0 + s.now
    return s


def sent(commands: list, to: str | None = None) -> list:
    return [c.message for c in commands if isinstance(c, Send) and (to is None or c.peer == to.encode())]


def begun(s: Story, peer: str, now: float, boot: str = "here") -> None:
    assert s.say(peer, wire.TraceReply(1, now, boot)) == []


def over(s: Story, peer: str, *lines: str, start: float = 0.0, left_out: int = 0) -> list:
    return s.say(peer, wire.TraceReply(1, 0.0, "here", True, start, lines, left_out))


def test_the_time_counts_from_when_the_last_one_sees_what_it_is_to_see() -> None:
    """A GPU's profiler takes seconds to start: a trace of 0.8 s had no kernels."""
    s = story(2)
    s.say("asker", wire.AskTrace(0.8, 70))
    begun(s, "c0", 1000.0)
    for peer in ("l0", "l1"):
        assert s.say(peer, wire.TraceReply(1, 1000.0, "here", preparing=True)) == []
    asked = lambda commands: [m for m in sent(commands) if isinstance(m, wire.SetTrace)]  # noqa: E731
    assert asked(s.wait(1.5)) == []
    begun(s, "l0", 1001.5)
    begun(s, "l1", 1001.5)
    assert asked(s.wait(0.7)) == []
    assert asked(s.wait(0.2)) == [wire.SetTrace(1, 0)] * 3
    over(s, "c0", "90.0 1 early client0 x 0", "91.6 2 late client0 x 0", "no line", start=910.0)
    over(s, "l0", "1001.0 1 early worker0 x 0", "1002.0 2 late worker0 x 0", "1001.4 0 early worker0 x 0", "1001.9 0 late worker0 x 0")
    parts = sent(over(s, "l1", start=990.0), "asker")
    assert [[line.split()[2] for line in p.lines if line[0].isdigit()] for p in parts] == [[], ["late"], ["late"] * 2, []]
    assert parts[1].lines[-1] == "no line"  # the asker's to judge


def test_who_never_begins_is_not_waited_for_long() -> None:
    s = story(1)
    s.say("asker", wire.AskTrace(0.5, 70))
    begun(s, "c0", 1000.0)
    assert s.say("l0", wire.TraceReply(1, 1000.0, "here", preparing=True)) == []
    sent_at = []
    for _ in range(24):
        for peer in ("c0", "l0"):
            s.say(peer, wire.Ping())
        sent_at += [s.now for m in sent(s.wait(0.5)) if isinstance(m, wire.SetTrace)]
    assert sent_at and PREPARING_S <= sent_at[0] <= PREPARING_S + 1
    over(s, "c0")
    assert sent(s.wait(PATIENCE_S), "asker")[-1].missing, "but for what it has as long as anybody"


def test_all_are_asked_and_what_they_have_goes_to_the_asker() -> None:
    s = story(2)
    commands = s.say("asker", wire.AskTrace(2.0, 70))
    assert [(c.peer, c.message) for c in commands] == [(p, wire.SetTrace(1, 70)) for p in (b"c0", b"l0", b"l1")]
    assert s.state.tracing.own.asked == 70
    for peer in ("c0", "l0", "l1"):
        begun(s, peer, 1000.0)
    assert [m for m in sent(s.wait(1.9)) if not isinstance(m, wire.Ping)] == []
    ended = [m for m in sent(s.wait(0.2)) if isinstance(m, wire.SetTrace)]
    assert ended == [wire.SetTrace(1, 0)] * 3
    assert over(s, "l1", "1.0 1 run worker1 x 0", left_out=9) == [] and over(s, "c0") == []
    parts = sent(over(s, "l0", "2.0 1 run worker0 x 0", start=990.0), "asker")
    assert [(p.who, p.left) for p in parts] == [("dispatcher", 3), ("client0", 2), ("worker0", 1), ("worker1", 0)]
    assert parts[0].lines == ("0.5 1 recv dispatcher Run 0",) and parts[2].start == 990.0 and parts[3].left_out == 9
    assert s.state.tracing.trace is None and s.state.tracing.own.asked == 0


def test_another_machines_clock_is_measured_by_there_and_back() -> None:
    s = story()
    s.say("asker", wire.AskTrace(1.0, 10))
    s.now = 0.2  # there and back took so long: its 1007.1 was 1000.1 here, within 0.1
    begun(s, "l0", 1007.1, boot="there")
    begun(s, "c0", 1003.0)  # of this machine: there is one clock, whatever the message says
    s.wait(1.0)
    over(s, "c0", start=50.0)
    client, worker = sent(over(s, "l0", start=57.0), "asker")[1:]
    assert (round(worker.start, 6), round(worker.within_s, 6)) == (50.0, 0.1)
    assert (client.start, client.within_s) == (50.0, 0.0)


def test_who_comes_meanwhile_takes_part_and_who_leaves_has_handed_over() -> None:
    s = story()
    s.say("asker", wire.AskTrace(2.0, 10))
    for peer in ("c0", "l0"):
        begun(s, peer, 1000.0)
    welcome, asked, _ = sent(s.say("c1", wire.ClientHello(2)))
    assert asked == wire.SetTrace(1, 10)
    s.say("c1up", wire.Attach(welcome.token, "up"))
    begun(s, "c1", 1000.0)
    over(s, "c1up", "1.0 1 call client1 Run 0")
    s.say("c1up", wire.Bye())
    s.say("c0up", wire.Bye())  # of an older mind, as one that was killed: it hands over nothing
    s.wait(2.0)
    found = {p.who: (p.lines, p.missing) for p in sent(over(s, "l0"), "asker")}
    assert found["client1"] == (("1.0 1 call client1 Run 0",), "")
    assert found["client0"] == ((), "it ended before it handed over what it had")


def test_who_is_leaving_as_a_trace_begins_has_nothing_in_it() -> None:
    s = story()
    s.say("asker", wire.AskTrace(1.0, 10))
    s.say("c0up", wire.Bye())  # on its way as the question was
    begun(s, "l0", 1000.0)
    s.wait(1.0)
    found = {p.who: (p.lines, p.missing) for p in sent(over(s, "l0"), "asker")}
    assert found["client0"] == ((), "it ended before it heard of it")


def test_a_client_that_leaves_hands_over_though_its_other_connection_ends_first() -> None:
    s = story()
    s.say("asker", wire.AskTrace(1.0, 10))
    for peer in ("c0", "l0"):
        begun(s, peer, 1000.0)
    s.wait(1.0)
    over(s, "l0")
    assert not sent(s.tell(PeerGone(s.now, b"c0")), "asker")
    found = {p.who: (p.lines, p.missing) for p in sent(over(s, "c0up", "1.0 1 call client0 Run 0"), "asker")}
    assert found["client0"] == (("1.0 1 call client0 Run 0",), "")


def test_a_lost_worker_and_a_silent_client_are_not_waited_for_forever() -> None:
    s = story(2)
    s.say("asker", wire.AskTrace(1.0, 10))
    begun(s, "l1", 1000.0)
    s.tell(PeerGone(s.now, b"l0"))
    s.wait(1.0)
    over(s, "l1")
    s.say("c0", wire.Beat())
    s.now += PATIENCE_S
    for peer in ("c0", "c0up", "l1"):
        s.say(peer, wire.Beat())
    found = {p.who: p.missing for p in sent(s.wait(0.1), "asker") if isinstance(p, wire.Traced)}
    assert (
        found["worker1"] == ""
        and found["worker0"].startswith("it ended")
        and found["client0"].startswith("it did not answer within")
    )


def test_one_trace_at_a_time_within_limits() -> None:
    s = story()
    s.say("asker", wire.AskTrace(5.0, 10))
    s.now = 1.5
    (refused,) = sent(s.say("other", wire.AskTrace(1.0, 10)), "other")
    assert refused.reason == "another trace is being taken, for 4 s more: ask again then"
    for bad in (wire.AskTrace(0.0, 10), wire.AskTrace(1e9, 10), wire.AskTrace(1.0, 0), wire.AskTrace(float("nan"), 1)):
        (refused,) = sent(s.say("third", bad), "third")
        assert "a trace takes up to 600 s" in refused.reason


def test_without_its_asker_a_trace_ends() -> None:
    s = story()
    s.say("asker", wire.AskTrace(5.0, 10))
    assert sent(s.tell(PeerGone(s.now, b"asker"))) == [wire.SetTrace(1, 0)] * 2
    assert s.state.tracing.own.asked == 0
    assert over(s, "l0") == []  # too late
    assert len(sent(s.say("other", wire.AskTrace(1.0, 10)))) == 2


def test_whether_its_asker_is_there_is_seen_while_a_trace_is_taken() -> None:
    """A connection that is gone is noticed where something is sent: Ctrl-C at gt trace would end no trace."""
    s = story()
    s.say("asker", wire.AskTrace(5.0, 10))
    pings = [len(sent(s.wait(0.1), "asker")) for _ in range(12)]
    assert sum(pings) == 2 and max(pings) == 1
    begun(s, "c0", 1000.0)
    begun(s, "l0", 1000.0)
    s.tell(PeerGone(s.now, b"asker"))
    assert sent(s.wait(2.0), "asker") == []


def test_a_stranger_hands_over_nothing() -> None:
    s = story()
    s.say("asker", wire.AskTrace(5.0, 10))
    (refused,) = sent(over(s, "stranger", "1.0 1 run worker0 x 0"))
    assert isinstance(refused, wire.Refused)

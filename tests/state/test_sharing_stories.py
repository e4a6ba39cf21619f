"""Stories of sharing at the dispatcher: turns, quotas, priorities, and what one client can do to another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.program import WireType
from gt.runtime import values, wire
from gt.runtime.dispatcher_events import Send
from gt.runtime.errors import Fault, QuotaExceeded
from gt.runtime.fair_queue import Limits
from gt.runtime.quota import ROUND
from tests.state.stories import Story, plans, sent

EACH = ROUND  # what a value of the story counts for on one worker


def working(clients: int = 2, workers: int = 1, **options: Any) -> Story:
    """Each client has a buffer 1 and graph 1 that is planned, loaded and measured at 10 ms."""
    s = Story(workers, clients, **{"sharing": Limits(ahead_s=0.1), **options})
    for i in range(clients):
        s.put(1, client=i)
        s.define(1, client=i)
    (make,) = plans(s.run(1, (1,), (2,)))
    s.plan(make)
    for w in range(workers):
        s.done(w, 1)
    s.say("c0up", wire.Free((2,)))
    s.now += 5.0  # nobody competes any more
    s.log.clear()
    return s


def execs(commands: Iterable[Any]) -> list[int]:
    return [m.epoch for m in sent(list(commands), wire.Execute, "w0")]


def owner(s: Story, epoch: int) -> int:
    client = s.state.flights.by_epoch[epoch].client
    assert client is not None
    return client.id


def test_one_client_alone_sends_all_it_has():
    s = working()
    for n in range(8):
        assert execs(s.run(1, (1,), (10 + n,)))


def test_while_two_compete_hardly_anything_is_queued_and_they_take_turns():
    s = working()
    for n in range(8):
        s.run(1, (1,), (10 + n,))
    for n in range(8):
        assert execs(s.run(1, (1,), (10 + n,), client=1)) == []  # 80 ms wait on the worker
    turns: list[int] = []
    for epoch in range(2, 18):
        turns.append(owner(s, epoch))
        s.now += 0.01
        s.done(0, epoch)
    assert turns == [0] * 8 + [1] * 8  # what was sent before client 1 came, then only it has something
    for n in range(8):
        s.run(1, (1,), (30 + n,))
        s.run(1, (1,), (30 + n,), client=1)
    turns = []
    for epoch in range(18, 34):
        assert len(s.state.flights.by_epoch) == 1  # of 10 ms, which is more than the next needs to be there in time
        turns.append(owner(s, epoch))
        s.now += 0.01
        s.done(0, epoch)
    assert 3 <= turns[:8].count(0) <= 5  # who was idle may be two runs behind
    assert s.state.sharing.jobs == {} and s.state.sharing.waiting == {}


def test_a_clients_own_calls_stay_in_order_while_its_run_waits_for_its_turn():
    s = working()
    for n in range(8):
        s.run(1, (1,), (10 + n,))
    assert s.run(1, (1,), (2,), client=1) == []
    assert s.fetch(2, 5, client=1) == []
    out = [c for epoch in range(2, 10) for c in s.done(0, epoch)]
    assert [type(c.message).__name__ for c in out if c.peer == b"w0"] == ["Execute", "Ship"]


def test_a_client_that_leaves_while_it_waits_holds_nobody_up():
    s = working(clients=3)
    for n in range(8):
        s.run(1, (1,), (10 + n,))
    s.run(1, (1,), (2,), client=1)
    s.run(1, (1,), (2,), client=2)
    s.say("c1up", wire.Bye())
    s.say("c0up", wire.Bye())
    out = [c for epoch in range(2, 10) for c in s.done(0, epoch)]
    assert execs(out) == [10] and owner(s, 10) == 2
    s.done(0, 10)
    assert s.state.sharing.jobs == {} and list(s.state.sharing.shares) == [2]


def test_a_lost_worker_gives_its_turns_back():
    s = working(workers=2)
    for n in range(8):
        s.run(1, (1,), (10 + n,))
    assert s.run(1, (1,), (2,), client=1) == []
    s.gone("w1")  # replicated values stay on worker 0, the plan is made anew
    for epoch in range(2, 10):
        s.done(0, epoch)
    (make,) = plans(s.log)
    s.plan(make)
    assert owner(s, 10) == 1
    s.done(0, 10)
    assert s.state.sharing.jobs == {} and s.state.sharing.loads[0].jobs == 0


def test_a_priority_beyond_what_the_server_allows_is_refused():
    s = Story(max_priority=2.0)
    for priority in (2.5, 0.0, -1.0, float("nan"), float("inf")):
        (refused,) = sent(s.say("x", wire.ClientHello(1, priority=priority)), wire.Refused)
        assert "priority" in refused.reason and "up to 2" in refused.reason and "--max-priority" in refused.reason
    assert sent(s.say("x", wire.ClientHello(1, priority=2.0)), wire.ClientWelcome)
    assert s.state.sharing.shares[1].weight == 2.0


# -- quotas


def test_an_upload_over_quota_fails_by_itself_and_names_the_line():
    s = Story(clients=2, client_nbytes=2 * EACH)
    s.put(1)
    s.put(2)
    out = s.say("c0up", wire.Put(3, WireType((4, 4), "float32"), None, True, where="job.py:7"), memoryview(bytes(64)))
    assert out == []
    (failed,) = sent(s.fetch(3, 9), wire.Failed)
    error = failed.fault.exception()
    assert isinstance(error, QuotaExceeded)
    for word in ("job.py:7", f"{2 * EACH} bytes", f"{EACH} bytes", "delete", "--client-memory"):
        assert word in str(error), word
    assert [b.fault for b in s.state.clients[0].buffers.values()][:2] == [None, None]
    assert s.put(1, client=1)  # another has a quota of its own
    s.say("c0up", wire.Free((1, 3)))
    assert s.put(4)  # and there is room again


def test_graphs_beyond_what_the_server_keeps_cost_their_sender_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gt.runtime.dispatcher_state.MIN_GRAPHS_NBYTES", 100)
    s = Story(clients=2, client_nbytes=2 * EACH)
    s.put(1)
    most = max(100, 2 * EACH)
    for key in range(1000):
        s.define(key, graph=b"%40d" % key)
    client = s.state.clients[0]
    assert client.graph_nbytes == sum(len(g) for _, g in client.graphs.values() if isinstance(g, bytes)) == most // 40 * 40
    (make,) = plans(s.run(0, (1,), (2,)))  # those that are known are run
    assert plans(s.run(999, (1,), (3,))) == []
    s.fetch(3, 9)
    s.plan(make)
    failed = {m.request: m.fault for m in sent(s.log, wire.Failed)}
    error = failed[9].exception()
    assert isinstance(error, QuotaExceeded) and f"{most} bytes" in str(error) and "40 bytes" in str(error), error
    s.define(0, graph=b"short")
    assert client.graph_nbytes == most // 40 * 40 - 35
    s.define(1, client=1)
    assert s.state.clients[1].graphs[1][1] == b"graph"  # another has room of its own
    s.say("c0up", wire.Fail(5, Fault("protocol", "x" * 1_000_000, where="y" * 1_000_000)))
    assert len(client.buffers[5].fault.message) + len(client.buffers[5].fault.where) <= 11_000
    free = Story()
    for key in range(1000):
        free.define(key, graph=b"%40d" % key)
    assert free.state.clients[0].graph_nbytes == 40_000  # without a quota there is no limit


def test_a_large_upload_over_quota_is_not_waited_for():
    s = Story(client_nbytes=1000)
    out = s.say("c0up", wire.Put(1, WireType((512, 512), "float32"), None, False))
    assert sent(out, wire.Placed) == [wire.Placed(1, ())] and sent(out, wire.Expect) == []
    assert sent(s.fetch(1, 2), wire.Failed)[0].fault.kind == "quota"


def test_an_upload_counts_in_its_turn_behind_calls_that_make_room():
    s = working(client_nbytes=2 * EACH)
    s.put(2)
    s.define(2, graph=b"two")
    (make,) = plans(s.run(2, (1,), (3,), frees=(1, 2)))
    assert s.put(4) == []  # the run that frees waits for its plan
    assert s.run(1, (4,), (5,), frees=(3,)) == [] and s.state.clients[0].queued_nbytes == 64
    out = s.plan(make)
    assert len(sent(out, wire.Store)) == 1 and len(execs(out)) == 2
    held = s.state.clients[0].buffers
    assert {n: b.fault for n, b in held.items()} == {4: None, 5: None}
    assert s.state.clients[0].held == 2 * EACH and s.state.clients[0].queued_nbytes == 0


def test_a_run_does_not_fail_for_uploads_that_came_after_it():
    s = working(client_nbytes=2 * EACH)
    s.define(2, graph=b"two")
    (make,) = plans(s.run(2, (1,), (2,)))
    s.put(3)
    s.fetch(3, 9)
    assert len(execs(s.plan(make))) == 1
    (failed,) = sent(s.log, wire.Failed)
    assert (failed.request, failed.fault.kind) == (9, "quota")  # the one that was too much is the last of them
    assert s.state.clients[0].buffers[2].fault is None


def test_without_a_limit_and_beyond_what_may_wait_uploads_are_placed_as_they_come(monkeypatch: pytest.MonkeyPatch):
    for options in ({}, {"client_nbytes": 100 * EACH}):
        s = working(**options)
        s.define(2, graph=b"two")
        s.run(2, (1,), (2,))
        monkeypatch.setattr(values, "MAX_QUEUED_NBYTES", 128)
        for n in (3, 4):
            assert len(sent(s.put(n), wire.Store)) == (not options)
        assert len(sent(s.put(5), wire.Store)) == 1
        monkeypatch.undo()


def test_a_run_over_quota_fails_by_itself_and_what_it_was_to_replace_stays():
    s = working(client_nbytes=2 * EACH)
    s.run(1, (1,), (2,))
    s.done(0, 2)
    uid = s.state.clients[0].buffers[2].uid
    s.log.clear()
    out = s.run(1, (1,), (3,), replaces=(2,))
    assert execs(out) == [] and sent(out, wire.Progress)
    s.fetch(3, 7)
    (failed,) = sent(s.log, wire.Failed)
    assert failed.fault.kind == "quota" and "train.py:12" in failed.fault.where
    s.say("c0up", wire.Recover(3))
    assert s.state.clients[0].buffers[3].uid == uid
    assert sent(s.fetch(3, 8), wire.Ship)[0].uid == uid
    assert execs(s.run(1, (1,), (4,), client=1)) != []  # another is not touched


def test_an_update_in_place_needs_no_room():
    s = working(client_nbytes=2 * EACH)
    for n in range(2, 20):
        out = s.run(1, (1,), (n,), frees=(n - 1,) if n > 2 else ())
        assert len(execs(out)) == 1, n
        s.done(0, max(s.state.flights.by_epoch))
        assert s.state.clients[0].held == 2 * EACH


@pytest.mark.parametrize("frees", [(2, 2, 2), (2, 3)], ids=["one number", "two numbers of one value"])
def test_what_a_run_frees_makes_room_once(frees: tuple[int, ...]):
    s = working(client_nbytes=2 * EACH)
    s.run(1, (1,), (2,))
    s.done(0, 2)
    if 3 in frees:
        s.run(1, (1,), (3,), replaces=(2,))
        s.say("c0up", wire.Recover(3))
        assert s.state.clients[0].buffers[3] is s.state.clients[0].buffers[2]
    s.define(2, graph=b"two")
    (make,) = plans(s.run(2, (1,), (4, 5), frees=frees))
    assert execs(s.plan(make, outputs=2)) == []
    assert sent(s.fetch(4, 7), wire.Failed)[0].fault.kind == "quota"
    assert execs(s.run(1, (1,), (6,))) != []


def test_whole_copies_count_on_each_worker():
    s = Story(workers=2, client_nbytes=3 * EACH)
    s.put(1)
    assert s.state.clients[0].held == 2 * EACH
    s.put(2)
    assert s.state.clients[0].buffers[2].fault is not None
    s.gone("w1")
    assert s.state.clients[0].held == EACH


def test_runs_beyond_the_window_are_refused_one_by_one():
    s = working(window=2)
    s.run(1, (1,), (2,))
    s.run(1, (1,), (3,))
    out = s.run(1, (1,), (4,))
    assert execs(out) == []
    s.fetch(4, 5)
    s.fetch(2, 6)
    (failed,) = sent(s.log, wire.Failed)
    assert failed.request == 5 and failed.fault.kind == "quota" and "allows 2" in failed.fault.message
    s.done(0, 2)
    s.done(0, 3)
    assert execs(s.run(1, (1,), (5,)))
    assert s.state.clients[0].asked - s.state.clients[0].runs == 1


def test_what_a_run_would_make_anew_stays_as_it_is():
    s = working()
    uid = s.state.clients[0].buffers[1].uid
    for outputs in ((1,), (7, 7), (1, 3)):
        assert execs(s.run(1, (1,), outputs)) == []
    assert s.state.clients[0].buffers[1].uid == uid and s.state.clients[0].buffers[1].fault is None
    assert sent(s.fetch(7, 3), wire.Failed)[0].fault.kind == "protocol"
    s.say("c0up", wire.Bye())
    freed = {u for free in sent(s.log, wire.Free, "w0") for u in free.buffers}
    assert uid in freed


numbers = st.integers(0, 12)
tuples = st.lists(numbers, max_size=3).map(tuple)
messages = st.one_of(
    st.builds(wire.Run, st.integers(0, 2), tuples, tuples, st.just(()), tuples, tuples),
    st.builds(wire.Fetch, numbers, st.integers(0, 5)),
    st.builds(wire.Explain, numbers, st.integers(0, 5)),
    st.builds(wire.Free, tuples),
    st.builds(wire.Recover, numbers),
    st.builds(wire.Put, numbers, st.just(WireType((4, 4), "float32")), st.none(), st.just(True)),
    st.builds(wire.Done, st.integers(0, 5), st.floats(), st.just(Fault("run", "made up")), st.none(), tuples),
    st.builds(wire.Uploaded, numbers),
    st.builds(
        wire.Ship, numbers, st.just(b"t"), numbers, st.just(WireType((4, 4), "float32")), st.just(()), st.just(1), st.just(True)
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(messages, max_size=25))
def test_whatever_a_client_guesses_it_names_no_other_clients_value(said: list[Any]):
    s = working()
    for n in range(2, 5):
        s.run(1, (1,), (n,))
        s.done(0, max(s.state.flights.by_epoch))
    theirs = {b.uid: n for n, b in s.state.clients[0].buffers.items()}
    before = dict(s.state.clients[0].buffers)
    s.log.clear()
    for message in said:
        data = memoryview(bytes(64)) if isinstance(message, wire.Put) else None
        out = s.say("c1up", message, data)
        for make in plans(out):
            s.plan(make)
        s.get_through()
    for command in s.log:
        assert isinstance(command, Send) or plans([command])
        if not isinstance(command, Send):
            continue
        assert command.peer not in (b"c0", b"c0up")
        m = command.message
        named = {getattr(m, "uid", None), *getattr(m, "inputs", ()), *getattr(m, "outputs", ()), *getattr(m, "frees", ())}
        if isinstance(m, wire.Free):
            named |= set(m.buffers)
        assert not named & theirs.keys(), m
    assert s.state.clients[0].buffers == before and all(b.fault is None for b in before.values())
    client = s.state.clients.get(1)
    if client is not None:
        assert client.held == sum(b.nbytes for b in dict.fromkeys(client.buffers.values()))
    assert s.state.sharing.jobs == {}


def test_tokens_of_others_cannot_be_had_by_asking():
    s = working()
    tokens = [s.state.clients[0].token, s.state.workers[0].token]
    s.say("c1up", wire.Fetch(1, 1))
    s.say("c1up", wire.Explain(1, 2))
    told = repr([c.message for c in s.log if isinstance(c, Send) and c.peer in (b"c1", b"c1up")])
    assert all(repr(t) not in told for t in tokens)
    assert sent(s.say("x", wire.Attach(bytes(16), "up")), wire.Refused)


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf"), 1e300])
def test_seconds_that_cannot_be_do_no_harm(bad: float):
    s = working()
    s.run(1, (1,), (2,))
    s.say("w0", wire.Done(2, bad))
    s.run(1, (1,), (2,), client=1)
    assert owner(s, 3) == 1


# -- reads and uploads


def test_reads_take_turns_as_runs_do():
    s = working()
    s.fetch(1, 99, client=1)  # he has asked lately: they compete
    s.get_through()
    ships: list[wire.Ship] = []
    for request in range(30):
        ships += sent(s.fetch(1, request), wire.Ship)
    s.fetch(1, 99, client=1)
    assert 1 <= len(ships) < 30
    order = [ship.request for ship in ships]
    while ships:
        out = s.say("w0", wire.Shipped(ships.pop(0).job, 0.015))
        ships += sent(out, wire.Ship)
        order += [ship.request for ship in sent(out, wire.Ship)]
    assert sorted(order) == [*range(30), 99] and order.index(99) < 8, order  # not behind all that came first
    assert s.state.sharing.jobs == {}


def test_a_client_alone_waits_for_no_turn_to_read():
    s = working(clients=1)
    assert [len(sent(s.fetch(1, request), wire.Ship)) for request in range(20)] == [1] * 20
    assert {ship.job for ship in sent(s.log, wire.Ship)} == {-1}


def large(s: Story, buffer: int, client: int = 0) -> list[Any]:
    return s.say(f"c{client}up", wire.Put(buffer, WireType((200, 200), "float32"), None, False))


def test_a_client_is_asked_for_its_uploads_a_few_at_a_time_and_another_for_his_at_once():
    s = working()
    asked = [len(sent(large(s, 100 + i), wire.Placed, "c0")) for i in range(10)]
    expects = sent(s.log, wire.Expect)
    assert asked == [1] * 4 + [0] * 6 and len(expects) == 4
    assert sent(large(s, 100, client=1), wire.Placed, "c1")
    for _ in range(6):
        out = s.say("l0", wire.Uploaded(expects.pop(0).uid))
        (placed,) = sent(out, wire.Placed, "c0")
        assert len(placed.tiles) == 1
        expects += sent(out, wire.Expect)


def test_an_upload_that_was_freed_before_it_was_asked_for_is_let_go_of():
    s = working()
    for i in range(6):
        large(s, 100 + i)
    s.say("c0up", wire.Free((104,)))
    first = sent(s.log, wire.Expect)[0]
    out = s.say("l0", wire.Uploaded(first.uid))
    assert [(p.buffer, len(p.tiles)) for p in sent(out, wire.Placed, "c0")] == [(104, 0), (105, 1)]


@pytest.mark.parametrize("runs", [[((5,), (5,))], [((5,), (6,)), ((6,), (5,))], [((5, 6), (6, 5))]])
def test_values_that_are_said_to_replace_each_other_cost_no_time(runs: list[tuple[tuple[int, ...], tuple[int, ...]]]):
    s = working()
    for outputs, replaces in runs:
        s.say("c0up", wire.Run(1, (404,), outputs, (), (), replaces))
    s.say("c0up", wire.Recover(5))
    s.say("c0up", wire.Free((5, 6)))
    assert s.state.clients[0].queue == deque() and set(s.state.clients[0].buffers) == {1}

"""Stories of a job's nodes, and of what a server says of itself."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from gt.runtime import wire
from gt.runtime.dispatcher_events import LinkBroken
from gt.runtime.status import ServerStatus
from tests.state.stories import Story, plans, sent


def hello(node: int, job: str = "j", num_nodes: int = 2, workers: int = 1) -> wire.NodeHello:
    return wire.NodeHello(job, num_nodes, node, f"host{node}", 1000 + node, workers)


def ask(s: Story) -> ServerStatus:
    s.now += 1.0  # an answer is good for a tenth of it
    (answer,) = sent(s.say("asker", wire.AskStatus()), wire.Status, "asker")
    return answer.status


def refused(s: Story, peer: str, message: wire.NodeHello) -> str:
    (answer,) = sent(s.say(peer, message), wire.Refused, peer)
    return answer.reason


def test_a_node_is_welcome_hears_pings_and_is_in_the_status():
    s = Story(workers=0, clients=0, job="j", num_nodes=2)
    assert sent(s.say("n1", hello(1, workers=8)), wire.NodeWelcome, "n1")
    assert sent(s.wait(1.0), wire.Ping, "n1")
    found = ask(s)
    assert [(n.node, n.host, n.pid, n.workers, n.failed) for n in found.nodes] == [(1, "host1", 1001, 8, "")]
    assert found.num_nodes == 2 and s.state.nodes.peers == [b"n1"]


def test_a_node_that_does_not_fit_is_told_why():
    s = Story(workers=0, clients=0, job="j", num_nodes=2)
    s.say("n0", hello(0))
    assert "node 0 is here already (pid 1000 on host0)" in refused(s, "x", replace(hello(0), pid=1))
    assert "this is the server of job 'j', not of 'k'" in refused(s, "x", hello(1, job="k"))
    assert "node 0 counts 2 nodes, node 1 counts 3" in refused(s, "x", hello(1, num_nodes=3))
    assert "nodes count from 0" in refused(s, "x", hello(2)) and "nodes count from 0" in refused(s, "x", hello(-1))
    for odd in (hello(1, workers=0), hello(1, workers=-(2**40)), wire.NodeHello("j", 2, 1, "h" * 300, 1, 1)):
        assert "expected 1 to 4096 workers" in refused(s, "x", odd)
    assert "not started by gt launch" in refused(Story(), "x", hello(0))
    assert s.state.nodes.peers == [b"n0"]


def test_a_node_that_fails_leaves_or_falls_silent():
    s = Story(workers=0, clients=0, job="j", num_nodes=3)
    for i in range(3):
        s.say(f"n{i}", hello(i, num_nodes=3))
    s.say("n0", wire.NodeFailed("no torch here"))
    s.say("n1", wire.Bye())
    assert [(n.node, n.failed) for n in ask(s).nodes] == [(0, "no torch here"), (2, "")]
    s.wait(6.0)
    s.say("n2", wire.Beat())
    s.wait(6.0)
    assert [n.node for n in ask(s).nodes] == [2]
    s.gone("n2")
    assert ask(s).nodes == ()
    assert sent(s.say("n1", hello(1, num_nodes=3)), wire.NodeWelcome)  # it may come again


def test_a_node_whose_connection_broke_takes_its_own_place_by_another():
    s = Story(workers=0, clients=0, job="j", num_nodes=2)
    for i in range(2):
        s.say(f"n{i}", hello(i))
    out = s.say("again", hello(1))
    assert sent(out, wire.NodeWelcome, "again") and not sent(out, wire.NodeNews)  # node 0 has missed nobody
    s.gone("n1")
    assert s.state.nodes.peers == [b"n0", b"again"] and s.state.nodes.lost == set()


def test_what_a_node_says_besides_costs_nothing():
    s = Story(job="j", num_nodes=1)
    s.say("n0", hello(0, num_nodes=1))
    assert s.say("n0", wire.Free((1,))) == [] and s.say("n0", wire.ClientHello(1)) == []
    assert s.state.nodes.peers == [b"n0"] and len(s.state.clients) == 1


def test_the_status_counts_and_shows_neither_tokens_nor_values():
    s = Story(workers=2, clients=2)
    s.put(1)
    s.put(2)
    s.define(1)
    (make,) = plans(s.run(1, (1,), (3,)))
    assert (ask(s).plans_made, ask(s).plans_ready) == (1, 0)
    s.now += 2.0
    s.plan(make)
    s.state.malformed = 4
    s.state.wall_clock = lambda: 1.7e9
    found = ask(s)
    assert [(w.id, w.host, w.pid, w.device, w.backend, w.joined, w.silent_s) for w in found.workers] == [
        (0, "host", 100, "cpu", "numpy", True, 5.0),
        (1, "host", 101, "cpu", "numpy", True, 5.0),
    ]
    assert [(c.id, c.runs, c.waiting, c.values, c.nbytes, c.silent_s) for c in found.clients] == [
        (0, 0, 0, 3, 192, 5.0),
        (1, 0, 0, 0, 0, 5.0),
    ]
    assert [(e.epoch, e.client, e.waiting) for e in found.in_flight] == [(1, 0, (0, 1))]
    assert (found.epoch, found.num_in_flight, found.plans_ready, found.malformed) == (1, 1, 1, 4)
    assert (found.uptime_s, found.wall_s, found.num_nodes, found.nodes) == (5.0, 1.7e9, 0, ())
    frame = wire.encode(wire.Status(found))
    tokens = [owner.token for owner in (*s.state.clients.values(), *s.state.workers.values())]
    assert len(tokens) == 4 and not any(token in frame for token in tokens)
    assert wire.TO_ASKER.decode([frame])[0] == wire.Status(found)
    assert msgspec.json.decode(msgspec.json.encode(found), type=ServerStatus) == found


def test_asking_often_costs_one_look():
    s = Story()
    first = ask(s)
    s.put(1)
    (again,) = sent(s.say("asker", wire.AskStatus()), wire.Status)
    assert again.status is first
    assert ask(s).clients[0].values == 1


def test_asking_does_not_make_a_peer_known():
    s = Story()
    before = repr(s.state)
    for i in range(100):
        s.say(f"asker{i}", wire.AskStatus())
    assert repr(s.state) == before and len(s.state.peers) == 4


def test_a_script_asks_its_nodes_to_replace_workers_and_one_that_comes_later_hears_of_it():
    s = Story(workers=1, clients=1, job="j", num_nodes=2)
    s.say("n0", hello(0))
    out = s.say("c0up", wire.Supervise(3))
    assert sent(out, wire.Supervise, "n0") == [wire.Supervise(3)]
    assert sent(s.say("n1", hello(1)), wire.Supervise, "n1") == [wire.Supervise(3)]
    assert sent(s.say("c0up", wire.Supervise(0)), wire.Supervise, "n1") == [wire.Supervise(0)]


def test_node_0_hears_what_becomes_of_the_others():
    s = Story(workers=0, clients=0, job="j", num_nodes=5)
    for i in range(5):
        s.say(f"n{i}", hello(i, num_nodes=5))

    def news(out: list) -> list[wire.NodeNews]:
        assert not [m for i in range(1, 5) for m in sent(out, wire.NodeNews, f"n{i}")]
        return sent(out, wire.NodeNews, "n0")

    def lost(node: int, why: str) -> list[wire.NodeNews]:
        text = f"is lost: gt launch there (pid {1000 + node}) {why}. The job goes on with the workers that are left"
        return [wire.NodeNews(node, f"host{node}", text)]

    assert news(s.say("n1", wire.NodeFailed("a worker ended"))) == [wire.NodeNews(1, "host1", "says: a worker ended")]
    assert news(s.gone("n1")) == lost(1, "has ended, or cannot be reached any more") and news(s.gone("n1")) == []
    assert news(s.say("n2", wire.Bye())) == lost(2, "has left the job")
    assert news(s.tell(LinkBroken(s.now, b"n3", "2 messages are missing"))) == lost(3, "is cut off: 2 messages are missing")
    s.wait(6.0)
    s.say("n0", wire.Beat())
    assert news(s.wait(6.0)) == lost(4, "has not been heard of for 10 s")
    assert news(s.say("m4", hello(4, num_nodes=5))) == [wire.NodeNews(4, "host4", "is here again (pid 1004)")]
    assert s.gone("n0") == [] and s.say("n0", hello(0, num_nodes=5)) and s.state.nodes.peers == [b"m4", b"n0"]

"""Stories of a dispatcher that is killed: what its workers keep, and what the next one makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import WireSharding, WireType
from gt.ir.types import TensorType
from gt.passes.signal_placement import cluster_mesh
from gt.runtime import wire
from gt.runtime.dispatcher_events import Planned, Received, Send
from gt.runtime.errors import Fault
from gt.runtime.fair_queue import Limits
from gt.runtime.hello import UNKNOWN, WAS_LOST
from gt.runtime.worker_state import DropValues, Got, Ran, Rejoined, Reply, RunProgram, UnloadPrograms, WorkerState
from tests.state.stories import Story, T, plans, program, sent
from tests.state.test_parts_stories import chain

SPLIT = T.placed(Sharding(Mesh("all", (("w", 2),), (0, 1)), (("w",), ())))
SECRET = b"s" * 16


class Cast(Story):
    """A dispatcher of generation ``generation`` and the workers themselves: what is sent to one happens to it, unless it is ``deaf``."""

    def __init__(self, workers: list[WorkerState], generation: int = 1, clients: int = 1, **options: Any) -> None:
        super().__init__(0, 0, generation=generation, **options)
        self.them, self.deaf = workers, set[int]()
        self.joined: dict[bytes, WorkerState] = {}
        self.coming: list[Any] = []
        self.busy = False
        self.runs_left = 1000  # until it is killed
        if generation == 1:
            for i in range(len(workers)):
                self.come(i)
        for i in range(clients if generation == 1 else 0):
            self.hello(i)

    def come(self, i: int, past: wire.Past | None = None) -> list[Any]:
        """Worker ``i`` says hello, with what it brings along."""
        hello = wire.WorkerHello(f"u{i}", f"r{i}", "host", 100 + i, "cpu", "numpy", past=past)
        out = self.say(f"w{i}", hello)
        if sent(out, wire.Refused):
            return out
        (welcome,) = sent(out, wire.WorkerWelcome)
        if past is not None:
            self.them[i].handle(Rejoined(welcome.worker))
        self.joined[f"w{i}".encode()] = self.them[i]
        self.happen(out)
        return out + self.say(f"l{i}", wire.Attach(welcome.token, "link"))

    def return_(self, i: int, *generations: int) -> list[Any]:
        lives = tuple((g, i) for g in generations or (1,))
        return self.come(i, self.them[i].past(lives))

    def hello(self, i: int, secret: bytes = SECRET, user: str = "") -> list[Any]:
        out = self.tell(Received(self.now, f"c{i}".encode(), wire.ClientHello(1, secret=secret), None, user))
        (welcome,) = sent(out, wire.ClientWelcome)
        self.say(f"c{i}up", wire.Attach(welcome.token, "up"))
        return out

    def pass_(self, seconds: int) -> list[Any]:
        """Time passes, and everybody shows signs of life."""
        out: list[Any] = []
        for _ in range(seconds):
            out += self.wait(1)
            for peer in list(self.state.peers):
                self.say(peer.decode(), wire.Beat())
        return out

    def resume(self, *buffers: int, generation: int = 1, workers: tuple[int, ...] = (0, 1), client: int = 0) -> list[Any]:
        return self.say(f"c{client}up", wire.Resume(generation, buffers, workers))

    def tell(self, event: Any) -> list[Any]:
        out = super().tell(event)
        if hasattr(self, "joined"):
            self.happen(out)
        return out

    def happen(self, commands: list[Any]) -> None:
        self.coming += commands  # also what comes while a worker is busy: it does one thing after the other
        if self.busy:
            return
        self.busy = True
        while self.coming:
            c = self.coming.pop(0)
            worker = self.joined.get(c.peer) if isinstance(c, Send) else None
            if worker is None or c.peer[1] - ord("0") in self.deaf:
                continue
            if isinstance(c.message, wire.Execute):
                self.runs_left -= 1
                if self.runs_left < 0:
                    self.deaf.add(c.peer[1] - ord("0"))
                    continue
            for did in worker.handle(Got(c.message, c.data)):
                if isinstance(did, RunProgram):
                    for reply in worker.handle(Ran(did.epoch, 0.1)):
                        if isinstance(reply, Reply):
                            self.say(c.peer.decode(), reply.message)
        self.busy = False

    def step(self, inputs: tuple[int, ...], outputs: tuple[int, ...], frees: tuple[int, ...] = (), placed: TensorType | None = None) -> None:
        for make in plans(self.run(1, inputs, outputs, frees)):
            self.plan(make, len(outputs), placed=placed)


def two() -> list[WorkerState]:
    return [WorkerState(0), WorkerState(1)]


def missing(commands: list[Any]) -> tuple[int, ...]:
    (returned,) = sent(commands, wire.Returned, "c0")
    return returned.missing


def test_a_client_finds_its_values_at_the_next_dispatcher():
    old = Cast(two())
    old.define(1)
    old.put(1)
    old.step((1,), (2, 3), placed=SPLIT)
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    (returned,) = sent(new.resume(1, 2, 3), wire.Returned)
    assert returned == wire.Returned((), ((0, 0), (1, 1)))
    assert "{1: ready, 2: ready, 3: ready}" in repr(new.state)
    ships = [c for c in new.fetch(3, 9) if isinstance(c, Send) and isinstance(c.message, wire.Ship)]
    assert sorted((c.peer, c.message.bounds) for c in ships) == [(b"w0", ((0, 2), (0, 4))), (b"w1", ((2, 4), (0, 4)))]
    new.define(1)
    new.step((2,), (4,), (2,), SPLIT)
    assert all(w.values == old.them[0].values for w in old.them) and "4: ready" in repr(new.state) and "2: " not in repr(new.state)


def test_uids_and_numbers_of_two_generations_do_not_meet():
    old = Cast(two())
    old.put(1)
    new = Cast(old.them, 2)
    new.join_worker(7)  # it comes first, and is number 0
    new.return_(1), new.return_(0)
    assert sorted(new.state.workers) == [0, 1, 2]
    new.hello(0)
    (returned,) = sent(new.resume(1), wire.Returned)
    assert returned == wire.Returned((), ((0, 2), (1, 1)))
    new.put(2)
    uids = [b.uid >> 32 for b in new.state.clients[0].buffers.values()]
    assert uids == [1, 2] and new.state.clients[0].buffers[1].type.sharding.mesh.workers == (2, 1)


def test_of_a_run_that_only_some_workers_have_done_nothing_is_there():
    old = Cast(two())
    old.define(1)
    old.put(1), old.put(2)
    old.step((1,), (3,), placed=SPLIT)
    old.deaf = {1}
    old.step((1,), (4, 5), (3,), SPLIT)  # worker 1 never hears of it, and has still what worker 0 has freed
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    assert missing(new.resume(1, 2, 3, 4, 5)) == (3, 4, 5)
    assert len(old.them[0].values) == len(old.them[1].values) == 2  # what was torn is gone everywhere


def mixed(story: Cast, inputs: tuple[int, ...], outputs: tuple[int, int], frees: tuple[int, ...] = ()) -> None:
    """A run whose first output is whole on all workers and whose second is split."""
    (make,) = plans(story.run(1, inputs, outputs, frees))
    whole = T.placed(Sharding.replicated(Mesh("all", (("w", 2),), (0, 1)), T.ndim))
    story.tell(Planned(story.now, make.plan, {w: program(w, len(inputs), 2) for w in (0, 1)}, (whole, SPLIT)))


def test_whole_copies_stay_where_they_are_whether_a_worker_has_come_further_or_less_far() -> None:
    old = Cast(two())
    old.define(1)
    old.put(1)
    old.step((1,), (2,))
    old.deaf = {1}
    old.step((2,), (3,), (2,))
    assert [len(w.values) for w in old.them] == [2, 2]
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    assert missing(new.resume(1, 2, 3)) == ()
    assert [new.state.clients[0].buffers[n].type.sharding.mesh.workers for n in (1, 2, 3)] == [(0, 1), (1,), (0,)]


def test_a_run_of_which_a_part_is_lost_is_not_there_but_one_of_which_a_part_is_freed_is() -> None:
    old = Cast(two())
    old.define(1)
    old.put(1)
    mixed(old, (1,), (2, 3))
    old.deaf = {1}
    old.run(1, (1,), (4, 5), (3,))
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    assert missing(new.resume(1, 2, 3, 4, 5)) == (3, 4, 5)  # a whole copy of 4 is on worker 0, but no whole 5 anywhere


@pytest.mark.parametrize("done", range(5))
def test_a_run_in_parts_is_there_as_a_whole_or_what_it_reads_is(done: int):
    old = Cast([WorkerState(0)], sharing=Limits(alone_s=0.05))
    old.define(1)
    old.put(1)
    (make,) = plans(old.run(1, (1,), (2,), (1,)))
    placed = T.placed(Sharding.replicated(cluster_mesh((0,), (0,)), T.ndim))
    old.runs_left = done
    old.tell(Planned(old.now, make.plan, {0: chain(0, 8, (0,))}, (placed,), seconds=0.08))
    assert len(sent(old.log, wire.Execute)) == min(done + 2, 4)
    new = Cast(old.them, 2)
    new.return_(0)
    new.hello(0)
    assert missing(new.resume(1, 2, workers=(0,))) == ((1,) if done == 4 else (2,))
    assert len(old.them[0].values) == 1  # what was kept between parts is gone


def test_what_a_worker_without_a_share_of_the_last_part_has_made_is_labelled_too():
    old = Cast(two(), sharing=Limits(alone_s=0.05))
    old.define(1)
    old.put(1)
    (make,) = plans(old.run(1, (1,), (2,), (1,)))
    whole = T.placed(Sharding.replicated(Mesh("all", (("w", 2),), (0, 1)), T.ndim))
    programs = {0: chain(0, 16, (0, 1)), 1: chain(1, 2, (0, 1))}
    old.tell(Planned(old.now, make.plan, programs, (whole,), seconds=0.08))
    assert len(sent(old.log, wire.Execute, "w1")) < len(sent(old.log, wire.Execute, "w0"))
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    assert missing(new.resume(1, 2)) == (1,)
    assert new.state.clients[0].buffers[2].type.sharding.mesh.workers == (0, 1)


def test_what_has_moved_is_where_it_has_moved_to():
    old = Cast(two())
    old.put(1)
    (make,) = plans(old.say("c0up", wire.Rebalance(7, (0,))))
    out = old.plan(make, placed=T.placed(Sharding.replicated(cluster_mesh((0,), (0, 1)), T.ndim)))
    assert sent([*out, *old.log], wire.Rebalanced) and [len(w.values) for w in old.them] == [1, 0]
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    assert missing(new.resume(1)) == ()
    assert new.state.clients[0].buffers[1].type.sharding.mesh.workers == (0,)


def test_what_failed_on_one_worker_is_not_there_though_another_has_it():
    old = Cast(two())
    old.define(1)
    old.put(1)
    old.step((1,), (2,))
    (uid,) = old.them[1].values - {old.state.clients[0].buffers[1].uid}
    old.them[1].values.discard(uid)
    old.them[1].poison[uid] = Fault("run", "out of memory")
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    assert missing(new.resume(1, 2)) == (2,)


def test_a_worker_that_does_not_come_back_is_waited_for_and_whole_copies_elsewhere_stay():
    old = Cast(two())
    old.define(1)
    old.put(1)
    old.step((1,), (2,), placed=SPLIT)
    new = Cast(old.them, 2)
    new.return_(0)
    new.hello(0)
    assert sent(new.resume(1, 2), wire.Returned) == []
    assert sent(new.pass_(14), wire.Returned) == []
    assert missing(new.pass_(2)) == (2,)
    assert new.state.clients[0].buffers[1].type.sharding.mesh.workers == (0,) and new.state.clients[0].workers == (0,)
    assert sent(new.return_(1), wire.Free, "w1") and old.them[1].values == set()  # it comes too late
    newest = Cast(old.them, 3)
    newest.return_(0, 1, 2), newest.return_(1, 1, 2)
    newest.hello(0)
    assert missing(newest.resume(1, generation=2)) == ()


def test_what_nobody_comes_for_is_freed_after_the_lease():
    old = Cast(two(), clients=1)
    old.put(1)
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.pass_(9)
    assert [len(w.values) for w in old.them] == [1, 1]
    new.pass_(2)
    assert [len(w.values) for w in old.them] == [0, 0] and new.state.returning.orphans.estates == {}


@pytest.mark.parametrize(("secret", "user"), [(b"x" * 16, "alice"), (b"", "alice"), (SECRET, "bob"), (SECRET, "")])
def test_a_stranger_has_nothing(secret: bytes, user: str):
    old = Cast(two(), clients=0)
    old.hello(0, SECRET, "alice")
    old.put(1)
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0, secret, user)
    assert [r.missing for r in sent(new.resume(1), wire.Returned)] == ([] if not secret else [(1,)])
    assert sent(new.fetch(1, 4), wire.Failed) and not sent(new.log, wire.Ship)
    new.hello(1, SECRET, "alice")
    assert sent(new.resume(1, client=1), wire.Returned) == [wire.Returned((), ((0, 0), (1, 1)))]


def test_a_client_that_leaves_while_it_waits_takes_its_values_along():
    old = Cast(two())
    old.put(1)
    new = Cast(old.them, 2)
    new.return_(0)
    new.hello(0)
    new.resume(1)
    new.say("c0", wire.Bye())
    assert old.them[0].values == set() and new.state.returning.orphans.estates == {}


def test_values_survive_a_second_loss():
    old = Cast(two())
    old.define(1)
    old.put(1)
    old.step((1,), (2,), placed=SPLIT)
    new = Cast(old.them, 2)
    new.return_(0), new.return_(1)
    new.hello(0)
    new.resume(1, 2)
    new.define(1)
    new.step((2,), (3,), (2,), SPLIT)
    newest = Cast(old.them, 3)
    newest.return_(1, 1, 2), newest.return_(0, 1, 2)
    newest.hello(0)
    assert missing(newest.resume(1, 2, 3, generation=2)) == (2,)
    assert [len(w.values) for w in old.them] == [2, 2]


def test_the_dispatcher_that_lost_a_worker_does_not_take_it_back():
    old = Cast(two())
    old.put(1)
    old.gone("w1")
    assert sent(old.return_(1), wire.Refused) == [wire.Refused(WAS_LOST)]
    assert sent(old.say("zz", wire.Beat()), wire.Refused) == [wire.Refused(UNKNOWN)]


def test_what_makes_no_sense_is_refused():
    new = Cast(two(), 2)
    good = wire.Place(WireType((4, 4), "float32"), WireSharding.of(SPLIT.sharding), 1)  # type: ignore[arg-type]
    lives = ((1, 0),)
    for past in (
        wire.Past((), (good,), ()),
        wire.Past(lives, (), (wire.Held(5, b"o", (1,), 0, -1),)),
        wire.Past(lives, (wire.Place(WireType((4, 4), "float31"), good.placed, 1),), ()),
        wire.Past(lives, (wire.Place(WireType((4,), "float32"), good.placed, 1),), ()),
        wire.Past(lives, (wire.Place(good.type, WireSharding("m", (("w", 3),), (0, 1), (("w",), ())), 1),), ()),
        wire.Past(lives, (wire.Place(good.type, WireSharding("m", (("w", 0),), (), (("w",), ())), 1),), ()),
        wire.Past(lives, (wire.Place(good.type, WireSharding("m", (("w", 2),), (0, 1), (("v",), ())), 1),), ()),
    ):
        assert sent(new.come(0, past), wire.Refused), past


def test_a_worker_between_two_dispatchers_keeps_what_has_a_label():
    old = Cast([WorkerState(0)])
    old.define(1)
    old.put(1)
    old.step((1,), (2,))
    (w,) = old.them
    kept, unknown = set(w.values), 99
    w.values.add(unknown)
    past = w.past(((1, 0),))
    assert {held.uid for held in past.values} == kept and len(past.places) == 1
    unload, drop = w.handle(Rejoined(3))
    assert unload == UnloadPrograms((1,)) and drop == DropValues((unknown,))
    assert past.lives == ((1, 0),) and (w.worker, w.values, w.programs, w.broken, w.poison) == (3, kept, {}, {}, {})


def test_a_client_that_comes_again_ends_its_other_connection():
    s = Cast(two())
    s.put(1)
    s.hello(1)
    assert sent(s.log, wire.Refused, "c0") and list(s.state.clients) == [1]
    assert [w.values for w in s.them] == [set(), set()]


def test_without_a_generation_nothing_is_labelled():
    s = Cast(two(), generation=0, clients=0)
    s.come(0)
    (welcome,) = sent(s.hello(0), wire.ClientWelcome)
    s.put(1)
    assert welcome.lease_s == 0 and s.them[0].labels == {} and s.them[0].values

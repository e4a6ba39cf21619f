"""Whatever well-formed messages a peer sends, in whatever order, the dispatcher stays and others are served."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from gt.ir.program import WireSharding, WireType
from gt.ir.signals import ShardConfig, SignalConfig
from gt.runtime import wire
from gt.runtime.dispatcher_events import Expelled, Planned
from gt.runtime.errors import Fault, ProtocolError
from tests.state.stories import Story, plans, sent


def numbers(r: random.Random) -> tuple[int, ...]:
    return tuple(r.choice([0, 1, 2, 3, -1, 5, 2**40, -(2**60)]) for _ in range(r.randrange(4)))


def any_placement(r: random.Random) -> WireSharding:
    axes = tuple((r.choice("abw"), r.choice([-1, 0, 1, 2, 2**40])) for _ in range(r.randrange(3)))
    dims = tuple(tuple(r.choices("abw", k=r.randrange(3))) for _ in range(r.choice([2, 2, 2, 0, 3])))
    workers = r.choice([(), (0,), (0, 1), (1, 1), (7,), (1, 0)])
    return WireSharding("all", axes, workers, dims, r.choice([(), (), (("a", "sum"),)]))


def any_past(r: random.Random) -> wire.Past:
    def num() -> int:
        return r.choice([0, 1, 2, -1, 2**40, -(2**60)])

    places = tuple(wire.Place(WireType((4, 4), r.choice(["float32", "no"])), any_placement(r), num()) for _ in range(r.randrange(3)))
    held = (wire.Held(num(), r.choice([b"", b"o" * 16]), numbers(r), r.randrange(3), num()) for _ in range(r.randrange(3)))
    return wire.Past(tuple((num(), num()) for _ in range(r.randrange(3))), places, tuple(held))


def any_message(r: random.Random) -> wire.Message:
    def num() -> int:
        return r.choice([0, 1, 2, 3, -1, 2**40, -(2**60)])

    shape = tuple(r.choice([0, 1, 3, 4, -1, 2**40]) for _ in range(r.randrange(4)))
    type_ = WireType(shape, r.choice(["float32", "int64", "nonsense", ""]))
    shard = ShardConfig(axis=r.choice([0, 1, -5, 9]), workers=r.choice([None, (0,), (7,), (1, 0)]))
    fault = r.choice([None, Fault("run", "x"), Fault("collective", "x")])
    kind = r.choice(["set", "get", "add", "wait", "check", "delete", "compare_set", "huh"])
    make: list[Callable[[], wire.Message]] = [
        lambda: wire.Define(num()),
        lambda: wire.Run(num(), numbers(r), numbers(r), numbers(r), numbers(r)),
        lambda: wire.Put(num(), type_, r.choice([None, SignalConfig(), SignalConfig(shard=shard)]), r.random() < 0.3),
        lambda: wire.Put(num(), WireType((4, 4), "float32"), None, True),
        lambda: wire.Put(num(), WireType((4, 4), "float32"), None, r.random() < 0.5, any_placement(r)),
        lambda: wire.Fail(num(), Fault("run", "x")),
        lambda: wire.Fetch(num(), num(), r.random() < 0.3),
        lambda: wire.Explain(num(), num()),
        lambda: wire.Free(numbers(r)),
        lambda: wire.Rebalance(num(), numbers(r), (numbers(r),), r.choice([(), ((("dp", 0), ("tp", -1)),), ((("w", -5),), (("w", 2), ("w", 2)))])),
        lambda: wire.Supervise(num()),
        lambda: wire.Unshipped(num(), r.randbytes(16), num(), fault),
        lambda: wire.Beat(num()),
        lambda: wire.Bye(),
        lambda: wire.ClientHello(1),
        lambda: wire.ClientHello(1, secret=r.choice([b"s" * 16, b"x"])),
        lambda: wire.Resume(r.choice([0, 1, num()]), numbers(r), numbers(r)),
        lambda: wire.WorkerHello("a", "b", "h", 1, "cpu", "numpy", past=any_past(r)),
        lambda: wire.Attach(r.randbytes(16), r.choice(["up", "link", "?"])),
        lambda: wire.Done(num(), 0.0, fault),
        lambda: wire.Uploaded(num()),
        lambda: wire.StoreOp(num(), kind, r.choice([(), ("a",), ("a", "b")]), b"1?", b"", 1),
        lambda: wire.WorkerHello("a", "b", "h", 1, "cpu", "numpy"),
    ]
    return r.choice(make)()


def through_the_wire(message: wire.Message) -> tuple[wire.Message, memoryview | None] | None:
    """Give the message as a dispatcher gets it, or None where the schema refuses it."""
    inline = isinstance(message, wire.Define) or (isinstance(message, wire.Put) and message.inline)
    try:
        return wire.FROM_PEERS.decode([wire.encode(message)] + [bytes(64)] * inline)
    except ProtocolError:
        return None


@pytest.mark.parametrize("block", range(4))
def test_no_sequence_of_messages_ends_the_dispatcher(block: int) -> None:
    for seed in range(250 * block, 250 * (block + 1)):
        r = random.Random(seed)
        s = Story(workers=r.choice([0, 1, 2]), clients=2, generation=r.choice([0, 3]))
        trail: list[object] = []
        try:
            for _ in range(25):
                if (got := through_the_wire(any_message(r))) is None:
                    continue
                trail.append(got[0])
                for make in plans(s.say(r.choice(["c0up", "c0", "c1up", "stranger"]), *got)):
                    if r.random() < 0.3 or not make.workers:
                        s.tell(Planned(s.now, make.plan, fault=Fault("plan", "no")))
                    else:
                        s.plan(make, outputs=r.choice([0, 1, 2]))
            s.join_client(9)
            if s.state.roster.worker_ids:
                s.say("c9up", wire.Put(1, WireType((4, 4), "float32"), None, True), memoryview(bytes(64)))
                s.say("c9up", wire.Fetch(1, 1))
                s.get_through()
                assert [ship for ship in sent(s.log, wire.Ship) if ship.token == s.state.clients[max(s.state.clients)].token]
        except Exception as e:
            e.add_note(f"seed {seed}, after {trail[-4:]}")
            raise


def test_a_type_that_is_none_is_refused_at_the_door() -> None:
    for type_ in (WireType((2,), "nonsense"), WireType((-1,), "float32"), WireType((1,) * 65, "float32")):
        with pytest.raises(ProtocolError):
            wire.FROM_PEERS.decode([wire.encode(wire.Put(1, type_, None, False))])


def test_a_peer_whose_message_fails_here_is_shown_out_alone() -> None:
    s = Story(workers=1, clients=2)
    s.put(1, client=0)
    s.put(1, client=1)
    out = s.tell(Expelled(0.0, b"c0up", "the server failed on a Run"))
    assert sent(out, wire.Refused, "c0") == [wire.Refused("the server failed on a Run")]
    assert len(sent(out, wire.Free, "w0")) == 1  # what it held is given back
    assert list(s.state.clients) == [1]
    assert sent(s.fetch(1, 1, client=1), wire.Ship)
    assert sent(s.tell(Expelled(0.0, b"nobody", "x")), wire.Refused) == [wire.Refused("x")]

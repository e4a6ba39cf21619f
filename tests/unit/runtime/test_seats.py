"""Workers that stand where others stood: what names them, before and after."""

from __future__ import annotations

import msgspec

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.program import WireSharding, encode_graph
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import TensorType, float32
from gt.runtime import wire
from gt.runtime.seats import GRAPHS, Seats

SAME = Seats((0, 1, 2, 3), (0, 1, 2, 3))
REPLACED = Seats((0, 1, 2, 3), (0, 2, 3, 4))  # worker 1 is gone, 4 has come
FEWER = Seats((0, 1, 2, 3), (0, 2, 3))


def on(*workers: int) -> SignalConfig:
    return SignalConfig(shard=ShardConfig(axis=0, workers=workers))


def test_as_long_as_nobody_is_lost_nothing_is_renamed():
    data, config = b"whatever", on(0, 1)
    placed = WireSharding.of(Sharding(Mesh.line((0, 1)), (("w0_1",),)))
    assert SAME.graph(data) is data and SAME.signal(config) is config and SAME.placement(placed) == (placed, None)


def test_the_script_goes_on_with_the_numbers_it_knows():
    assert REPLACED.named((0, 2, 3, 4)) == (0, 1, 2, 3)
    assert FEWER.named((0, 2, 3)) == (0, 1, 2)
    assert REPLACED.named((0, 2, 3, 4, 9)) == (0, 1, 2, 3, 9)


def test_who_comes_later_keeps_its_number_and_its_place_in_a_loss_after_that():
    more = SAME.joined((0, 1, 2, 3, 4))
    assert more == Seats((0, 1, 2, 3, 4), (0, 1, 2, 3, 4))
    lost = Seats(more.names, (0, 2, 3, 4, 5))
    assert lost.signal(on(4)) == on(5) and lost.named((0, 2, 3, 4, 5)) == (0, 1, 2, 3, 4)
    assert FEWER.joined((0, 2, 3, 7)) == Seats((0, 1, 2, 7), (0, 2, 3, 7))
    assert Seats().joined((1, 0)) == Seats((0, 1), (0, 1))


def test_a_signal_means_who_stands_in_that_place_now():
    assert REPLACED.signal(on(1, 3)) == on(2, 4)
    back = SignalConfig(shard=ShardConfig(axis=1, workers=(3,)))
    assert REPLACED.signal(SignalConfig(backward_config=back)) == SignalConfig(
        backward_config=SignalConfig(shard=ShardConfig(axis=1, workers=(4,)))
    )


def test_a_signal_whose_workers_are_all_gone_means_all():
    assert FEWER.signal(on(2, 3)) == on(3)
    assert FEWER.signal(on(3)) == SignalConfig(shard=ShardConfig(axis=0))


def test_a_graphs_signals_are_renamed_and_nothing_else_of_it():
    type_ = TensorType((4, 4), float32)
    x, y = Value(type_), Value(type_)
    graph = Graph("g", (x,), (), (Node(OPS["neg"], (x,), (y,), signal="s"),), (y,), signals=(("s", on(1, 2)),))
    data = msgspec.msgpack.encode(encode_graph(graph))
    before, after = GRAPHS.decode(data), GRAPHS.decode(REPLACED.graph(data))
    assert msgspec.convert(dict(after.configs)["s"], SignalConfig) == on(2, 3)
    assert msgspec.structs.replace(after, configs=before.configs) == before


def test_a_placement_moves_with_its_ranks():
    placed = WireSharding.of(Sharding(Mesh("all", (("w", 4),), (0, 1, 2, 3)), (("w",), ())))
    moved, signal = REPLACED.placement(placed)
    assert moved is not None and signal is None
    assert moved.workers == (0, 2, 3, 4) and moved.axes == (("w", 4),) and moved.dims == (("w",), ())
    assert REPLACED.remembered(moved) == placed


def test_the_axis_of_a_list_of_workers_is_renamed_with_them():
    placed = WireSharding.of(Sharding(Mesh.line((1, 3)), ((), ("w1_3",))))
    moved, _ = REPLACED.placement(placed)
    assert moved is not None and moved.sharding == Sharding(Mesh.line((2, 4)), ((), ("w2_4",)))
    assert REPLACED.remembered(moved) == placed


def test_on_fewer_workers_a_split_dim_stays_split():
    everything = Mesh("all", (("w", 4),), (0, 1, 2, 3))
    assert FEWER.placement(WireSharding.of(Sharding(everything, ((), ("w",))))) == (
        None,
        SignalConfig(shard=ShardConfig(axis=1, workers=(0, 2, 3))),
    )
    _, signal = FEWER.placement(WireSharding.of(Sharding.replicated(everything, 2)))
    assert signal == SignalConfig(shard=ShardConfig(replicated=True, workers=(0, 2, 3)))


def test_what_a_peer_says_of_a_placement_is_checked():
    good = WireSharding("all", (("a", 2),), (0, 1), (("a",), ()))
    assert good.checked(2, (0, 1, 2)) == good.sharding
    change = msgspec.structs.replace
    bad = [
        change(good, workers=(0, 9)), change(good, workers=(0, 0)), change(good, workers=()), change(good, axes=(("a", 3),)),
        change(good, axes=(("a", -1), ("b", -2))), change(good, dims=(("a",), ("a",))), change(good, dims=(("z",), ())),
        change(good, dims=()), change(good, partial=(("a", "sum"),)), change(good, axes=(("a", 2), ("a", 1))),
    ]  # fmt: skip
    assert [p for p in bad if p.checked(2, (0, 1, 2)) is not None] == []


def test_tiers_are_of_the_workers_that_are_there_in_a_run_and_of_those_the_script_knows_in_what_is_kept():
    run = REPLACED.run(wire.Run(1, (), (2,), (), ()), ((1, "c"), (3, "e")))
    assert run.tiers == ((0, ""), (2, "c"), (3, ""), (4, "e")) and run.outputs == (2,)
    assert REPLACED.ran_at(wire.RanAt(2, 1, ((2, "c"), (4, "e"), (9, "e")))).tiers == ((1, "c"), (3, "e"), (9, "e"))


def test_who_comes_back_to_another_dispatcher_keeps_its_name_whatever_its_number_is_there():
    assert REPLACED.returned({0: 7, 3: 9}, (7, 8, 9)) == Seats((0, 2, 8), (7, 9, 8))

"""The steps planned between two placements."""

from __future__ import annotations

import pytest

from gt.ir.mesh import Mesh, Sharding
from gt.ir.ops.collective import sent_bytes
from gt.ir.tiles import busiest, tiles
from gt.ir.types import TensorType, float32
from gt.passes.cost import H100, step_s, transfer_s
from gt.passes.reshard import cost_s, is_local, plan_reshard, usable_as

LINE = Mesh("all", (("w", 4),), (0, 1, 2, 3))
GRID = Mesh("grid", (("dp", 2), ("tp", 2)), (0, 1, 2, 3))
TYPE = TensorType((8, 8), float32)


def line(rows: str = "", columns: str = "", partial: str = "") -> Sharding:
    return Sharding(
        LINE, (("w",) if rows else (), ("w",) if columns else ()), (("w", partial),) if partial else ()  # type: ignore[arg-type]
    )  # fmt: skip


def names(have: Sharding, want: Sharding, type_: TensorType = TYPE) -> list[str]:
    return [s.op.name for s in plan_reshard(have, want, type_)]


@pytest.mark.parametrize(
    ("have", "want", "steps"),
    [
        (line(), line(rows="w"), ["shard_slice"]),
        (line(rows="w"), line(), ["all_gather"]),
        (line(rows="w"), line(columns="w"), ["all_to_all"]),
        (line(partial="sum"), line(), ["all_reduce"]),
        (line(partial="max"), line(), ["all_reduce"]),
        (line(partial="sum"), line(columns="w"), ["reduce_scatter"]),
        (line(), line(partial="sum"), ["partial_from_whole"]),
        (line(rows="w"), line(partial="sum"), ["partial_from_part"]),
        (line(rows="w"), line(rows="w"), []),
    ],
)
def test_one_axis(have: Sharding, want: Sharding, steps: list[str]) -> None:
    assert names(have, want) == steps


def test_two_axes_take_the_cheapest_way() -> None:
    both = Sharding(GRID, (("dp", "tp"), ()))
    assert names(both, Sharding(GRID, (("dp",), ()))) == ["all_gather"]
    assert names(both, Sharding(GRID, ((), ()))) == ["all_gather"]  # both axes at once
    assert names(Sharding(GRID, (("dp",), ())), both) == ["shard_slice"]
    assert names(Sharding(GRID, (("dp",), ()), (("tp", "sum"),)), both) == ["reduce_scatter"]
    assert names(Sharding(GRID, (("dp",), ("tp",))), both) == ["all_to_all"]


def test_cuts_that_do_not_nest_are_not_undone_one_by_one() -> None:
    """Ten rows over 2 x 2 are cut at 3, 6 and 9, over 2 at 5: the inner axis alone cannot be gathered."""
    ten = TensorType((10, 8), float32)
    steps = plan_reshard(Sharding(GRID, (("dp", "tp"), ())), Sharding(GRID, (("dp",), ())), ten)
    assert [s.op.name for s in steps] == ["all_gather", "shard_slice"]
    assert dict(steps[0].attrs)["axes"] == ("dp", "tp")


def test_a_whole_value_serves_fewer_workers() -> None:
    two = Mesh.line((2, 1))
    assert usable_as(Sharding.replicated(LINE, 2), Sharding.replicated(two, 2))
    assert not usable_as(Sharding.replicated(two, 2), Sharding.replicated(LINE, 2))
    assert names(Sharding.replicated(LINE, 2), Sharding(two, ((two.axes[0][0],), ()))) == ["shard_slice"]
    assert is_local(Sharding.replicated(LINE, 2), Sharding(two, ((two.axes[0][0],), ())), TYPE)


def test_workers_that_lack_a_part_are_sent_just_that() -> None:
    some, others = Mesh.line((1, 0)), Mesh.line((2, 3))
    rows, columns = Sharding(some, (("w1_0",), ())), Sharding(others, ((), ("w2_3",)))
    large = TensorType((4096, 4096), float32)
    steps = plan_reshard(rows, columns, large)
    assert [s.op.name for s in steps] == ["transfer"]
    assert dict(steps[0].attrs)["group"] == (0, 1, 2, 3)
    assert steps[0].seconds == pytest.approx(transfer_s(2, large.nbytes // 2, 4))
    four, more = Mesh.line((0, 1, 2, 3)), Mesh.line((4, 5, 6, 7))
    cut, across = Sharding(four, (("w0_1_2_3",), ())), Sharding(more, ((), ("w4_5_6_7",)))
    assert names(cut, across, large) == ["transfer"]
    assert names(cut, across) == ["all_gather", "transfer"], "each message costs its start: small values are joined first"
    assert names(Sharding(some, ((), ()), (("w1_0", "sum"),)), Sharding(others, (("w2_3",), ())), large) == [
        "reduce_scatter",
        "transfer",
    ]
    assert names(rows, Sharding(some, (("w1_0",), ())), large) == []


def test_costs_are_latency_plus_bytes() -> None:
    assert sent_bytes("all_reduce", 4, 1000) == 1500
    assert sent_bytes("all_gather", 4, 1000) == 750
    assert sent_bytes("all_to_all", 4, 1600) == 300
    assert sent_bytes("shard_slice", 4, 1000) == 0
    big = 1 << 30
    assert step_s("all_gather", 8, big) == pytest.approx(big * 7 / 8 / H100.gather_bandwidth, rel=0.02)
    assert step_s("all_gather", 8, 8) > H100.launch_s
    assert step_s("all_reduce", 1, big) == 0
    assert cost_s(line(rows="w"), line(), TYPE) == pytest.approx(step_s("all_gather", 4, 256))


# What benchmarks/collectives.py measured on H200s of one host: us by MiB of the whole value.
MEASURED = {  # us; three runs on two GPUs, which differ by up to a quarter, one on four
    ("all_reduce", 2): {1: (16.5,), 2: (30.1,), 4: (38, 35.1, 35.2), 8: (48.1,), 16: (81, 77.6, 76.7), 64: (255, 250.9, 250.8), 256: (903, 897.9, 898.6)},
    ("all_reduce", 4): {4: (44.1,), 16: (97.6,), 64: (326,), 256: (1188,)},
    ("all_gather", 2): {1: (13.6,), 2: (19.5,), 4: (32, 28, 29.3), 8: (37.7,), 16: (61, 56.2, 58.7), 64: (163, 158.9, 159.7), 256: (556, 549.7, 553.6)},
    ("all_gather", 4): {4: (39.2,), 16: (66.7,), 64: (192.3,), 256: (664.5,)},
    ("reduce_scatter", 2): {1: (12.8,), 2: (17.4,), 4: (28, 25.8, 27.6), 8: (35.1,), 16: (58, 53.7, 56.5), 64: (166, 161.2, 164), 256: (572, 564.2, 564.9)},
    ("reduce_scatter", 4): {4: (40.4,), 16: (65.8,), 64: (194.2,), 256: (668.4,)},
    ("all_to_all", 2): {1: (13.2,), 2: (17,), 4: (22, 17.4, 18.3), 8: (23.7,), 16: (37, 32.7, 34), 64: (88, 83, 84), 256: (253, 255.6, 258.7)},
    ("all_to_all", 4): {4: (20.5,), 16: (31.1,), 64: (73.9,), 256: (191.4,)},
    ("transfer", 2): {1: (16.2,), 2: (19.9,), 4: (24, 23.6, 24.7), 8: (32.9,), 16: (54, 53.8, 55.3), 64: (149, 150.2, 147.3), 256: (464, 465.6, 467.1)},
    ("transfer", 4): {4: (25.1,), 16: (46.9,), 64: (132.4,), 256: (434.9,)},
}  # fmt: skip


@pytest.mark.parametrize(("kind", "workers"), MEASURED)
def test_predicted_times_are_within_15_percent_of_measured(kind: str, workers: int) -> None:
    for mib, runs in MEASURED[kind, workers].items():
        nbytes = mib << 20
        predicted = transfer_s(1, nbytes // workers, workers) if kind == "transfer" else step_s(kind, workers, nbytes)
        for measured in runs:
            assert predicted * 1e6 == pytest.approx(measured, rel=0.15), mib


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (Sharding(GRID, (("dp",), ())), Sharding(GRID, (("tp",), ()))),
        (Sharding(GRID, (("dp", "tp"), ())), Sharding(GRID, (("tp", "dp"), ()))),
        (Sharding(GRID, (("dp",), ("tp",))), Sharding(GRID, (("tp",), ("dp",)))),
        (Sharding(LINE, (("w",), ())), Sharding(Mesh.line((3, 1, 0, 2)), (("w3_1_0_2",), ()))),
        (Sharding(GRID, (("dp",), ("tp",))), Sharding(Mesh.grid((("a", 2), ("b", 2)), (1, 3, 0, 2)), (("a",), ("b",)))),
    ],
)
def test_the_same_parts_on_other_workers_are_sent_by_one_to_one(have: Sharding, want: Sharding) -> None:
    (step,) = plan_reshard(have, want, TYPE)
    assert step.op.name == "transfer"
    shard = have.local_shape(TYPE.shape)
    away = [t for t in tiles(have, want, TYPE.shape) if t.source != t.target]
    assert away, "somebody moves"
    assert all(t.shape == shard for t in away)
    assert len({t.source for t in away}) == len({t.target for t in away}) == len(away), "one message each"
    numel = shard[0] * shard[1]
    assert busiest(have, want, TYPE.shape) == (numel, 1)
    assert step.seconds == pytest.approx(H100.brief_launch_s + 4 * numel / H100.brief_bandwidth)


def test_sums_stay_pending_where_parts_change_places() -> None:
    mesh = Mesh("grid", (("a", 2), ("b", 2), ("c", 2)), tuple(range(8)))
    have, want = (Sharding(mesh, ((axis,), ()), (("c", "sum"),)) for axis in "ab")
    assert names(have, want) == ["transfer"]
    assert all(t.source % 2 == t.target % 2 for t in tiles(have, want, TYPE.shape)), "of the same part of the sum"

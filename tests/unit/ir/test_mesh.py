"""Coordinates, groups and the boundaries of shards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gt.ir.mesh import Mesh, Sharding

GRID = Mesh("grid", (("dp", 2), ("tp", 3)), (5, 4, 3, 2, 1, 0))


def test_coordinates_are_row_major_in_the_order_of_the_workers() -> None:
    assert GRID.coords(5) == {"dp": 0, "tp": 0}
    assert GRID.coords(3) == {"dp": 0, "tp": 2}
    assert GRID.coords(2) == {"dp": 1, "tp": 0}


def test_groups_differ_on_the_named_axes_only() -> None:
    assert GRID.group(4, "tp") == (5, 4, 3)
    assert GRID.group(4, "dp") == (4, 1)
    assert GRID.group(4, "dp", "tp") == (5, 4, 3, 2, 1, 0)
    assert GRID.group(4, "tp", "dp") == (5, 2, 4, 1, 3, 0)  # the first axis varies slowest


def test_lines_of_different_workers_have_different_axes() -> None:
    a, b = Mesh.line((0, 1)), Mesh.line((1, 0))
    assert a != b and a.axes != b.axes
    assert a == Mesh.line((0, 1)) and hash(a) == hash(Mesh.line((0, 1)))


def test_the_name_of_a_mesh_is_not_part_of_it() -> None:
    assert Mesh("x", (("w", 2),), (0, 1)) == Mesh("y", (("w", 2),), (0, 1))


@given(st.integers(0, 40), st.sampled_from([("dp",), ("tp",), ("dp", "tp"), ("tp", "dp")]))
def test_parts_cover_a_dim_once_and_in_order(size: int, axes: tuple[str, ...]) -> None:
    placed = Sharding(GRID, (axes,))
    parts = {placed.shard_index(0, w): placed.bounds((size,), w)[0] for w in GRID.workers}
    rows = [row for index in sorted(parts) for row in range(*parts[index])]
    assert rows == list(range(size))
    (local,) = placed.local_shape((size,))
    assert all(stop - start <= local for start, stop in parts.values())
    assert placed.padding((size,), 0) == local * placed.shards(0) - size


def test_what_a_sharding_says() -> None:
    placed = Sharding(GRID, (("dp",), ()), (("tp", "max"),))
    assert placed.is_split and not placed.is_replicated
    assert placed.used_axes == {"dp", "tp"} and placed.partial_axes == {"tp": "max"}
    assert Sharding.replicated(GRID, 2).is_replicated

"""Where values go when they are moved to other workers: by their placement, the workers that signals name, and declared meshes."""

from __future__ import annotations

import pytest

from gt.ir.mesh import Mesh, Sharding
from gt.ir.types import TensorType, float32
from gt.passes.signal_placement import cluster_mesh, signal_sharding
from gt.runtime.moving import Move, Moving, asked_of, same_place
from gt.runtime.planner import answer, outputs_of, request_of
from gt.runtime.schedule import Buffer

GRID = Mesh.grid((("dp", 2), ("tp", 2)), (0, 1, 2, 3))


def everyone(n: int) -> Mesh:
    return cluster_mesh(tuple(range(n)), tuple(range(n)))


def line(mesh: Mesh, *split: bool) -> Sharding:
    return Sharding(mesh, tuple((mesh.axes[0][0],) if s else () for s in split))


def placed(
    before: Sharding, shape: tuple[int, ...], workers: tuple[int, ...], present: int, **known: object
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Give what each worker holds after the move."""
    config = asked_of(before, workers, **known)  # type: ignore[arg-type]
    after = signal_sharding(TensorType(shape, float32), config, tuple(range(present)))
    return {w: after.bounds(shape, w) for w in after.mesh.workers}


def test_split_stays_split_and_whole_stays_whole_on_more_workers_and_on_fewer() -> None:
    assert placed(line(everyone(2), True, False), (6, 4), (0, 1, 2), 3) == {w: ((2 * w, 2 * w + 2), (0, 4)) for w in range(3)}
    assert placed(line(everyone(2), False, False), (6, 4), (0, 1, 2), 3) == dict.fromkeys(range(3), ((0, 6), (0, 4)))
    assert placed(line(everyone(3), False, True), (6, 4), (0, 2), 3) == {0: ((0, 6), (0, 2)), 2: ((0, 6), (2, 4))}
    assert placed(line(everyone(2), True), (2,), (0, 1, 2), 3) == dict.fromkeys(range(3), ((0, 2),))  # too small to split


def test_what_is_on_workers_that_a_signal_names_stays_there_while_they_may_be_used() -> None:
    own = line(Mesh.line((0, 1)), True, False)
    assert placed(own, (6, 4), (0, 1, 2), 3, named=[(0, 1)]) == {0: ((0, 3), (0, 4)), 1: ((3, 6), (0, 4))}
    assert placed(own, (6, 4), (1, 2), 3, named=[(0, 1)]) == {1: ((0, 6), (0, 4))}
    assert placed(own, (6, 4), (2,), 3, named=[(0, 1)]) == {2: ((0, 6), (0, 4))}


@pytest.mark.parametrize("meshes", [[(("dp", -1), ("tp", 2))], []], ids=["declared", "not any more"])
def test_named_axes_grow_as_their_mesh_is_declared(meshes: list[object]) -> None:
    before = Sharding(GRID, (("dp",), ("tp",)))
    after = placed(before, (12, 4), tuple(range(6)), 6, meshes=meshes)
    assert after == {w: ((4 * (w // 2), 4 * (w // 2) + 4), (2 * (w % 2), 2 * (w % 2) + 2)) for w in range(6)}


def test_equal_parts_are_the_same_place_whatever_the_axes_are_called() -> None:
    assert same_place(line(everyone(2), True, False), line(Mesh.line((0, 1)), True, False), (6, 4))
    assert not same_place(line(everyone(2), True, False), line(everyone(2), False, True), (6, 4))
    assert not same_place(line(everyone(2), True), line(Mesh.line((1, 2)), True), (6,))


def test_values_move_a_part_at_a_time_and_those_in_place_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.moving.AT_ONCE", 100)
    type_ = TensorType((6, 4), float32)
    old, new = type_.placed(line(everyone(2), True, False)), type_.placed(line(everyone(3), True, False))
    buffers = {n: Buffer(n, old) for n in (1, 2, 3)} | {4: Buffer(4, new)}
    buffers[5] = buffers[1]
    moving = Moving(1, (), (), ())
    first = moving.next(buffers, (0, 1, 2))
    assert first is not None and first.numbers == ((1, 5), (2,))
    buffers |= {n: Buffer(10 + n, new) for n in (1, 2, 5)}
    second = moving.next(buffers, (0, 1, 2))
    assert second is not None and second.numbers == ((3,),)
    buffers[3] = Buffer(13, new)
    assert moving.next(buffers, (0, 1, 2)) is None and moving.done >= {4, 11, 12, 13}


def test_the_graph_of_a_move_puts_each_value_where_it_is_asked_for() -> None:
    type_ = TensorType((7, 4), float32)
    befores = [line(everyone(2), True, False), line(everyone(2), False, False), line(Mesh.line((0, 2)), False, True)]
    buffers = tuple(Buffer(i, type_.placed(s)) for i, s in enumerate(befores))
    asked = tuple(asked_of(s, (0, 1, 2)) for s in befores)
    move = Move(buffers, ((1,), (2,), (3,)), asked)
    reply = answer(request_of(1, move.graph(), [b.type for b in buffers if b.type is not None], (0, 1, 2), 0))
    assert reply.fault is None
    for made, config in zip(outputs_of(reply), asked, strict=True):
        assert made.sharding is not None and same_place(made.sharding, signal_sharding(type_, config, (0, 1, 2)), type_.shape)

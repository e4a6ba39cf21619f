"""Any placement to any other, by the planned steps, on simulated workers: one axis and two, uneven, pending."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.graph import Graph, Node, Stage, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.ops import collective
from gt.ir.types import Shape, TensorType, float64
from gt.ir.verify import verify
from gt.passes.context import Context
from gt.passes.insert_collectives import InsertCollectives
from gt.passes.localize import Localize
from gt.runtime.simulator import parts_of, simulate_local, whole_of

EVERYONE = Mesh("all", (("w", 8),), tuple(range(8)))
MESHES = (
    EVERYONE,
    Mesh.line((0, 1, 2)),
    Mesh.line((3, 1)),
    Mesh.line((5, 4)),
    Mesh("grid", (("a", 2), ("b", 3)), (0, 1, 2, 3, 4, 5)),
    Mesh("square", (("c", 2), ("d", 2)), (4, 1, 0, 2)),
    Mesh("cube", (("e", 2), ("f", 2), ("g", 2)), (7, 6, 5, 4, 3, 2, 1, 0)),
)


def any_placement(rng: Random, mesh: Mesh, shape: Shape, *, partial: bool) -> Sharding:
    """Put each axis on a dim, on nothing, or leave a sum pending on it."""
    dims: list[tuple[str, ...]] = [() for _ in shape]
    pending = []
    for axis, _ in rng.sample(mesh.axes, len(mesh.axes)):
        where = rng.randint(-2, len(shape) - 1)
        if where >= 0:
            dims[where] += (axis,)
        elif where == -1 and partial:
            pending.append(axis)
    return Sharding(mesh, tuple(dims), tuple((a, "sum") for a, _ in mesh.axes if a in pending))


def pending_parts(rng: np.random.Generator, array: np.ndarray, placed: Sharding) -> dict[int, np.ndarray]:
    """Cut an array into parts; along a pending axis the parts are random numbers that add up to it."""
    axes = [a for a, _ in placed.partial]
    shares: dict[tuple[int, ...], np.ndarray] = {}
    keys = sorted({tuple(placed.mesh.coords(w)[a] for a in axes) for w in placed.mesh.workers})
    for key in keys[1:]:
        shares[key] = rng.integers(-9, 9, array.shape).astype(array.dtype)
    shares[keys[0]] = array - sum(shares.values(), np.zeros_like(array))
    settled = Sharding(placed.mesh, placed.dims)
    cut = {key: parts_of(share, settled, float64) for key, share in shares.items()}
    return {w: cut[tuple(placed.mesh.coords(w)[a] for a in axes)][w] for w in placed.mesh.workers}


@settings(max_examples=1000)
@given(st.integers(0, 2**32))
def test_any_placement_to_any_other(seed: int) -> None:
    rng, numbers = Random(seed), np.random.default_rng(seed)
    shape = tuple(rng.choices((1, 2, 3, 4, 5, 6, 7, 12), k=rng.randint(1, 3)))
    have = any_placement(rng, rng.choice(MESHES), shape, partial=True)
    same = rng.random() < 0.6
    want = any_placement(rng, have.mesh if same else rng.choice(MESHES), shape, partial=True)
    type_ = TensorType(shape, float64)
    x, y = Value(type_.placed(have), "x"), Value(type_.placed(want), "y")
    # A pending result is read by one reduction more, so that it can be compared.
    settled = Value(type_.placed(Sharding(want.mesh, want.dims)), "z")
    nodes = [Node(collective.reshard, (x,), (y,)), Node(collective.reshard, (y,), (settled,))]
    graph = Graph("move", (x,), (), tuple(nodes), (settled,), Stage.SHARDED)
    context = Context(EVERYONE)
    explicit = InsertCollectives().run(graph, context)
    verify(explicit)
    local = Localize().run(explicit, context)
    verify(local)
    array = numbers.integers(-9, 9, shape).astype(np.float64)
    (got,) = simulate_local(local, [pending_parts(numbers, array, have)])
    placed = explicit.outputs[0].type.sharding  # whole on more workers than asked is as good
    assert placed is not None and set(want.mesh.workers) <= set(placed.mesh.workers)
    np.testing.assert_array_equal(whole_of(got, placed, type_), array)

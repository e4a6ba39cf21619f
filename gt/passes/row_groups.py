"""Which nodes of a LOCAL graph can run on a few rows at a time, so that a large value between them is never whole.

A chunk of rows is to a group of nodes what a worker's part is to a graph: the rows are split over the axes of a mesh whose
"workers" are the chunks, by the same sharding rules. What follows a large value grows into a group until all that it makes is
small, or a sum over its rows. Owns: ``Group``, ``grow``. It sees sharding rules, never an op. Next: ``chunk_rows`` (who asks).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from gt.ir.graph import Coord, Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.types import HALVES
from gt.passes.placement import Assignment, produced, split_as, splittable
from gt.passes.work import node_work

MOST_NODES, MOST_PRODUCTS = 48, 3  # a product, and the two of its gradients
MOST_CHUNKS = 64
SMALL = 16  # times less than the values in between
TRIES = 8  # numbers of chunks


class NotChunked(Exception):
    """A group cannot run in chunks; ``why``, if a user would ask: of a loss, or of the largest value that there is.

    ``loss``: what the rows sum to, if that is known. ``alike``: from what no group can grow either.
    """

    def __init__(self, why: str = "", loss: Value | None = None) -> None:
        super().__init__(why)
        self.why, self.loss = why, loss
        self.alike: Collection[Value] = ()


class NotSoMany(NotChunked):
    """A group cannot run in so many chunks."""


@dataclass
class Group:
    """Nodes and where their operands and results are on a mesh of chunks. ``held``: large values that stay whole."""

    mesh: Mesh
    placed: dict[Value, Sharding] = field(default_factory=dict)
    nodes: dict[Node, tuple[tuple[Sharding, ...], tuple[Sharding, ...]]] = field(default_factory=dict)
    held: dict[Value, None] = field(default_factory=dict)

    @property
    def largest(self) -> Value:
        return max((v for v in self.placed if v not in self.held), key=lambda v: v.type.nbytes)


def grow(graph: Graph, seed: Value, need: int) -> Group:
    """Give the group of a large value, in about ``need`` chunks. Errors: NotChunked."""
    fault: NotChunked = NotSoMany()
    for mesh, placed in _splits(seed, need):
        group = Group(mesh, {seed: placed})
        try:
            _grow(graph, group)
            _check(graph, group)
            return group
        except NotSoMany as error:
            fault = error
        except NotChunked as error:
            error.alike = group.placed
            raise
    raise fault


def _splits(seed: Value, need: int) -> Iterator[tuple[Mesh, Sharding]]:
    """Give the ways to cut the leading dims of a value into equal chunks, those of about the wanted number first."""
    ways: dict[int, tuple[int, ...]] = {}
    before: tuple[int, ...] = ()
    for size in seed.type.shape[:-1]:
        whole = math.prod(before)
        for k in range(1, min(size, MOST_CHUNKS) + 1):
            if size % k == 0 and whole * k <= MOST_CHUNKS:
                ways.setdefault(whole * k, (*before, k))
        before = (*before, size)
    need = min(need, MOST_CHUNKS)
    enough = sorted(k for k in ways if need <= k <= min(4 * need, MOST_CHUNKS))
    fewer = sorted((k for k in ways if 1 < k < need), reverse=True)
    for k in [*enough[: TRIES - 2], *fewer[:2]]:
        axes: list[tuple[str, int]] = []
        dims: list[tuple[str, ...]] = []
        for part in ways[k]:
            own = [(f"chunk{len(axes) + i}", p) for i, p in enumerate(_primes(part))]
            axes += own
            dims.append(tuple(name for name, _ in own))
        mesh = Mesh("chunks", tuple(axes), tuple(range(k)))
        yield mesh, Sharding(mesh, (*dims, *((),) * (seed.type.ndim - len(dims))))


def _primes(number: int) -> list[int]:
    found, p = [], 2
    while number > 1:
        while number % p == 0:
            found.append(p)
            number //= p
        p += 1 if p * p <= number else max(number - p, 1)
    return found


def _grow(graph: Graph, group: Group) -> None:
    """Add what reads or makes a large value, until none is left."""
    outputs = set(graph.outputs)
    products = 0
    todo = list(group.placed)
    (seed,) = todo
    while todo:
        value = todo.pop()
        maker = graph.producer.get(value)
        if maker is None or value in outputs:
            group.held[value] = None
            continue
        for node in dict.fromkeys((maker, *(user for user, _ in graph.uses.get(value, ())))):
            if node in group.nodes:
                continue
            group.nodes[node] = places = _places(node, group)
            products += bool(node_work(node))
            if products > MOST_PRODUCTS or len(group.nodes) > MOST_NODES:
                raise NotChunked()
            for other, where in zip((*node.inputs, *node.outputs), (*places[0], *places[1]), strict=True):
                if other.type.numel * 2 >= seed.type.numel and where.is_split and other not in group.placed:
                    group.placed[other] = where
                    todo.append(other)


def _places(node: Node, group: Group) -> tuple[tuple[Sharding, ...], tuple[Sharding, ...]]:
    """Give where a node's operands must be and its results are, from those that are known."""
    rule = node.op.rule([v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    if any(_differs(value) for _, value in node.attrs):
        raise NotChunked(_parts_differ(node, [v for v in node.inputs if v in group.placed]))
    if rule is None or node.op.effect:
        raise NotChunked()
    assignment: Assignment = {}
    terms = [*zip(node.inputs, rule.operands, strict=True), *zip(node.outputs, rule.results, strict=True)]
    for value, dims in terms:
        if value not in group.placed:
            continue
        for factors, axes in zip(dims, group.placed[value].dims, strict=True):
            found = rule.split_by(factors, axes, group.mesh) if axes else {}
            if found is None:
                raise NotSoMany()
            for factor, own in found.items():
                if own and assignment.setdefault(factor, own) != own:
                    raise NotSoMany()
    used = [axis for own in assignment.values() for axis in own]
    if len(set(used)) < len(used):  # a product of rows with the same rows: a chunk would be some of its diagonal's blocks
        raise NotSoMany()
    if any(rule.kind[f] in ("near", "index") for f in assignment) or not splittable(rule, assignment, group.mesh):
        raise NotSoMany()
    requires = tuple(split_as(group.mesh, dims, assignment, {}) for dims in rule.operands)
    produces = tuple(produced(group.mesh, rule, r, assignment, {}) for r in range(len(rule.results)))
    for (value, _), where in zip(terms, (*requires, *produces), strict=True):
        uneven = any(size % where.shards(d) for d, size in enumerate(value.type.shape))
        if uneven or group.placed.get(value, where) != where:
            raise NotSoMany()
    return requires, produces


def _parts_differ(node: Node, reads: list[Value]) -> str:
    if not reads:  # what makes a value of nothing is no loss head
        return ""
    if any(v.type.sharding is not None and v.type.sharding.dims[-1:] not in ((), ((),)) for v in (*reads, *node.outputs)):
        return "each worker has other classes, or other columns, of it"
    return f"{node.op.name} depends on which of its rows a worker has" + (f" ({node.why})" if node.why else "")


def _differs(value: object) -> bool:
    return isinstance(value, Coord) or (isinstance(value, tuple) and any(map(_differs, value)))


def _check(graph: Graph, group: Group) -> None:
    """Errors: NotChunked unless the group can run chunk by chunk, and then makes no large value whole."""
    axes = {axis for axis, _ in group.mesh.axes}
    made: dict[Value, Sharding] = {}
    summed: list[Value] = []
    for node in graph.nodes:
        if node not in group.nodes:
            continue
        requires, produces = group.nodes[node]
        if any(made.get(v, where) != where for v, where in zip(node.inputs, requires, strict=True)):
            raise NotChunked()
        for value, where in zip(node.outputs, produces, strict=True):
            made[value] = where
            if where.used_axes != axes or (where.partial and where.is_split):
                raise NotChunked()
            if where.partial:
                summed.append(value)
                if value.type.dtype in HALVES and node.op.autocast == "low" and not node.op.wide:
                    raise NotChunked()
    if all(v in group.held for v in group.placed) or not any(_is_loss(node, v, made[v], group) for node in group.nodes for v in node.outputs):
        raise NotChunked()
    behind: dict[Value, bool] = {}  # what follows the group, made by others; whether it waits for other workers
    for node in graph.nodes:
        late = [behind[v] for v in node.inputs if v in behind]
        if node not in group.nodes:
            if late or any(v in made for v in node.inputs):
                behind |= dict.fromkeys(node.outputs, node.op.effect == "comm" or any(late))
        elif late:
            why = "workers exchange values between its parts" if any(late) else "its gradient depends on what all of its rows sum to"
            scalar = next((v for v in summed if v.type.numel == 1), None)
            raise NotChunked(why if scalar is not None else "", scalar)


def _is_loss(node: Node, value: Value, where: Sharding, group: Group) -> bool:
    """Whether a value is what all rows sum to, or something small of each row, and no product."""
    small = value.type.numel * SMALL <= group.largest.type.numel
    return not node_work(node) and (value.type.numel == 1 if where.partial else where.is_split and small)


__all__ = ["Group", "NotChunked", "grow"]

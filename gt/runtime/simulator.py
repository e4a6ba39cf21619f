"""All workers in one process: programs run in lockstep on NumPy, with exact collectives.

Owns: ``simulate`` (programs), ``simulate_local`` (a LOCAL graph, before it is cut into programs), ``simulate_graph``
(the whole way from a captured graph and back to global values), and how global arrays are cut into parts and put
together. Padding is filled with junk, so whatever reads it shows. A group whose members meet at different collectives,
and workers that wait for each other, are errors that say who waits where.
Must not know: torch, sockets. Next: ``gt.runtime.executor``, which does the same on one real worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.ir.evaluate import as_dtype, evaluate_node
from gt.ir.graph import Attrs, AttrValue, Coord, Graph, Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.ops.collective import transfer
from gt.ir.program import Collective, Compute, Free, Program, unpack_attrs
from gt.ir.tiles import tiles, within
from gt.ir.types import DType, Scalar, TensorType
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster, plan_graph
from gt.passes.transfers import placements

if TYPE_CHECKING:
    from gt.ir.evaluate import Array


class CollectiveMismatch(Exception):
    """Members of a group disagree on a collective: on real workers a hang or wrong values."""


class Deadlock(Exception):
    """Workers wait for each other and none can go on."""


class ReplicaMismatch(Exception):
    """Workers that should hold equal values do not."""


# -- collectives


def _reduced(arrays: Sequence[Array], reduce: str, dtype: DType) -> Array:
    combine = {"sum": np.add, "max": np.maximum, "min": np.minimum}[reduce]
    total = arrays[0]
    for array in arrays[1:]:
        with np.errstate(all="ignore"):
            total = as_dtype(combine(total, array), dtype)
    return total


def exchange(kind: str, arrays: Sequence[Array], attrs: Mapping[str, Any], dtype: DType) -> list[Array]:
    """Give what each member of a group gets, in group order, from what each gave."""
    n = len(arrays)
    if kind == "all_reduce":
        total = _reduced(arrays, attrs["reduce"], dtype)
        return [total.copy() for _ in range(n)]
    if kind == "all_gather":
        joined = np.concatenate(arrays, attrs["dim"])
        return [joined.copy() for _ in range(n)]
    if kind == "reduce_scatter":
        return list(np.split(_reduced(arrays, attrs["reduce"], dtype), n, attrs["dim"]))
    assert kind == "all_to_all", f"unknown collective {kind}"
    pieces = [np.split(array, n, attrs["dst"]) for array in arrays]
    return [np.concatenate([pieces[i][j] for i in range(n)], attrs["src"]) for j in range(n)]


# -- programs


Post = dict[tuple[int, ...], list[tuple[Collective, "Array"]]]  # by sender and receiver: what was sent, in order


@dataclass
class _Worker:
    program: Program
    slots: dict[int, Array]
    post: Post
    at: int = 0
    outputs: dict[int, Array] = field(default_factory=dict)
    begun: dict[tuple[int, ...], list[int]] = field(default_factory=dict)  # receives by group: their slots, in order
    arrived: dict[int, Array] = field(default_factory=dict)  # by slot, results of collectives that have begun

    @property
    def waiting(self) -> Collective | None:
        """Give the collective the worker stands before, or None at its end."""
        if self.at == len(self.program.steps):
            return None
        step = self.program.steps[self.at]
        assert isinstance(step, Collective)
        return step

    def advance(self) -> None:
        """Run up to the next collective, the wait for what has not been sent, or the end."""
        while self.at < len(self.program.steps):
            step = self.program.steps[self.at]
            if isinstance(step, Collective):
                if not self._message(step):
                    return
            elif isinstance(step, Compute):
                self._compute(step)
            else:
                assert isinstance(step, Free)
                for slot in step.slots:
                    del self.slots[slot]
            self.at += 1
        self.outputs = {position: self.slots[slot] for position, slot in self.program.outputs}

    def _message(self, step: Collective) -> bool:
        """Send, or begin to receive, which wait for nobody, or take what has come. Whether that is done."""
        post, begun = self.post.setdefault(step.group, []), self.begun.setdefault(step.group, [])
        if step.kind == "send":
            post.append((step, self.slots[step.input].copy()))
            return True
        if step.kind == "receive":
            begun.append(step.output)
            return True
        if step.kind != "wait":
            return False
        if step.output in self.arrived:
            self.slots[step.output] = self.arrived.pop(step.output)
            return True
        if step.output not in begun:
            raise CollectiveMismatch(f"worker {self.program.worker} waits for {_text(step)}, number {step.number}, which it never began")
        at = len(begun) - 1 - begun[::-1].index(step.output)
        if at >= len(post):
            return False
        sent, array = post[at]
        if (sent.number, sent.type) != (step.number, step.type) or array.shape != step.type.shape:
            raise CollectiveMismatch(f"{_text(step)}, number {step.number}, meets {_text(sent)}, number {sent.number}")
        self.slots[step.output] = array
        return True

    def _compute(self, step: Compute) -> None:
        local = {slot: self.slots[slot] for slot in step.inputs}
        for node in step.nodes:
            attrs = unpack_attrs(node.attrs)
            types = [t.tensor_type for t in node.types]
            results = evaluate_node(OPS[node.op], [local[i] for i in node.inputs], attrs, types)
            local.update(zip(node.outputs, results, strict=True))
        self.slots.update({slot: local[slot] for slot in step.outputs})


def at_coords(attrs: Attrs, coords: Mapping[str, int]) -> Attrs:
    """Give attributes as one worker has them."""
    return tuple((name, _at(value, coords)) for name, value in attrs)


def _at(value: AttrValue, coords: Mapping[str, int]) -> AttrValue:
    if isinstance(value, Coord):
        return value.at(coords)
    return tuple(_at(v, coords) for v in value) if isinstance(value, tuple) else value


def simulate(
    programs: Mapping[int, Program], inputs: Mapping[int, Sequence[Array | None]], scalars: Sequence[Scalar] = ()
) -> dict[int, dict[int, Array]]:
    """Run every worker's program. ``inputs``: each worker's parts by position in the flush's list.

    Gives each worker's outputs by position. Errors: CollectiveMismatch, Deadlock.
    """
    post: Post = {}
    workers = {w: _start(program, inputs[w], scalars, post) for w, program in programs.items()}
    for worker in workers.values():
        worker.advance()
    while any(worker.waiting for worker in workers.values()):
        if not any([_meet(workers, w) for w in workers]):
            raise _stuck(workers)
    sent_to = {group: sends for group, sends in post.items() if sends}
    if lost := [sent for group, sends in sent_to.items() for sent, _ in sends[len(workers[group[1]].begun.get(group, ())) :]]:
        raise CollectiveMismatch(f"nobody receives {_text(lost[0])}, number {lost[0].number}")
    return {w: worker.outputs for w, worker in workers.items()}


def _start(program: Program, inputs: Sequence[Array | None], scalars: Sequence[Scalar], post: Post) -> _Worker:
    slots: dict[int, Array] = {}
    for position, slot in program.inputs:
        given = inputs[position]
        assert given is not None, f"worker {program.worker} lacks input {position}"
        slots[slot] = given
    for (slot, dtype), value in zip(program.scalars, scalars, strict=True):
        slots[slot] = as_dtype(np.asarray(value), DType.by_name[dtype])
    return _Worker(program, slots, post)


def _meet(workers: dict[int, _Worker], worker: int) -> bool:
    """Run the collective that ``worker`` waits at, if all members have come to it, or what it waits for if that has been sent."""
    step = workers[worker].waiting
    if step is None:
        return False
    if step.kind == "wait":
        at = workers[worker].at
        workers[worker].advance()
        return workers[worker].at > at
    if worker not in step.group:
        raise CollectiveMismatch(f"worker {worker} stands before collective {step.number} of group {step.group}")
    others = [workers[w].waiting for w in step.group]
    if any(o is None or o.number != step.number for o in others):
        return False
    for w, other in zip(step.group, others, strict=True):
        assert other is not None
        if _signature(other) != _signature(step):
            raise CollectiveMismatch(
                f"collective {step.number}: worker {worker} has {_text(step)}, worker {w} has {_text(other)}"
            )
    _run(workers, step)
    return True


def _signature(step: Collective) -> tuple[object, ...]:
    return step.kind, step.number, step.group, step.type, step.attrs


def _text(step: Collective) -> str:
    return f"{step.kind} {step.type.dtype}{list(step.type.shape)} of {step.group} {dict(step.attrs)}"


def _run(workers: dict[int, _Worker], step: Collective) -> None:
    steps = [workers[w].waiting for w in step.group]
    dtype = DType.by_name[step.type.dtype]
    given = [workers[w].slots[s.input] for w, s in zip(step.group, steps, strict=True) if s is not None]
    if len({a.shape for a in given}) > 1:
        raise CollectiveMismatch(f"collective {step.number}: parts of {[a.shape for a in given]} in {_text(step)}")
    results = exchange(step.kind, given, dict(unpack_attrs(step.attrs)), dtype)
    for w, own, result in zip(step.group, steps, results, strict=True):
        assert own is not None
        if result.shape != own.type.shape:
            raise CollectiveMismatch(f"collective {step.number}: {_text(step)} gave {result.shape}")
        (workers[w].arrived if own.begins else workers[w].slots)[own.output] = result
        workers[w].at += 1
        workers[w].advance()


def _stuck(workers: dict[int, _Worker]) -> Deadlock:
    lines = ["no worker can go on:"]
    for w, worker in workers.items():
        step = worker.waiting
        lines.append(f"  worker {w} " + (f"waits at collective {step.number}, {_text(step)}" if step else "has ended"))
    return Deadlock("\n".join(lines))


# -- LOCAL graphs


def simulate_local(
    graph: Graph, inputs: Sequence[Mapping[int, Array]], scalars: Sequence[Scalar] = ()
) -> list[dict[int, Array]]:
    """Run a LOCAL graph on all its workers, node by node. Inputs and results are each worker's parts."""
    held: dict[Value, dict[int, Array]] = {v: dict(parts) for v, parts in zip(graph.inputs, inputs, strict=True)}
    for value, scalar in zip(graph.scalars, scalars, strict=True):
        held[value] = {w: as_dtype(np.asarray(scalar), value.type.dtype) for w in _mesh(value).workers}
    for node in graph.nodes:
        if node.op.effect == "comm":
            held[node.output] = _exchange_node(node, held[node.inputs[0]])
            continue
        mesh, types = _mesh(node.outputs[0]), [o.type for o in node.outputs]
        held.update({value: {} for value in node.outputs})
        for w in mesh.workers:
            attrs = at_coords(node.attrs, mesh.coords(w))
            results = evaluate_node(node.op, [held[v][w] for v in node.inputs], attrs, types)
            for value, result in zip(node.outputs, results, strict=True):
                held[value][w] = result
    return [held[v] for v in graph.outputs]


def _exchange_node(node: Node, parts: Mapping[int, Array]) -> dict[int, Array]:
    attrs, dtype = node.attr, node.output.type.dtype
    source = _mesh(node.inputs[0])
    if node.op is transfer:
        return _transferred(node, parts)
    out: dict[int, Array] = {}
    for w in source.workers:
        if w not in out:
            members = source.group(w, *attrs["axes"])  # type: ignore[misc]
            out.update(zip(members, exchange(node.op.name, [parts[m] for m in members], attrs, dtype), strict=True))
    return out


def _transferred(node: Node, parts: Mapping[int, Array]) -> dict[int, Array]:
    have, want, whole, rows = placements(node)
    out = {w: junk(node.output.type.shape, node.output.type.dtype) for w in want.mesh.workers}
    if rows is not None:
        for w, part in out.items():
            part[tuple(slice(0, b - a) for a, b in want.bounds(rows.shape, w))] = rows.fill
    for tile in tiles(have, want, whole, rows):
        box, at = within(tile.box, have.bounds(whole, tile.source)), tile.at
        at = within(at, want.bounds(rows.shape if rows else whole, tile.target))
        taken = parts[tile.source][tuple(slice(*b, abs(n)) for b, n in zip(box, tile.steps, strict=True))]
        taken = taken[tuple(slice(None, None, -1 if n < 0 else 1) for n in tile.steps)]
        out[tile.target][tuple(slice(*b, n) for b, n in zip(at, tile.spreads, strict=True))] = taken
    return out


def _mesh(value: Value) -> Mesh:
    assert value.type.sharding is not None, f"{value!r} is not placed"
    return value.type.sharding.mesh


# -- global arrays and their parts


def junk(shape: tuple[int, ...], dtype: DType) -> Array:
    """Give what padding holds: NaN, a large number or True."""
    fill: Any = {"f": np.nan, "c": complex(np.nan, np.nan), "b": True}.get(dtype.kind, 101)
    return np.full(shape, fill, dtype.numpy)


def parts_of(array: Array, placed: Sharding, dtype: DType, fill: Callable[..., Array] = junk) -> dict[int, Array]:
    """Cut a global array into each worker's part, padded with junk."""
    out = {}
    for w in placed.mesh.workers:
        bounds = placed.bounds(array.shape, w)
        part = fill(placed.local_shape(array.shape), dtype)
        part[tuple(slice(0, stop - start) for start, stop in bounds)] = array[tuple(slice(*b) for b in bounds)]
        out[w] = part
    return out


def whole_of(parts: Mapping[int, Array], placed: Sharding, type_: TensorType) -> Array:
    """Put a global array together from the workers' parts. Errors: ReplicaMismatch where copies differ in a bit."""
    assert not placed.partial, "a pending value has no parts to put together"
    out = np.zeros(type_.shape, type_.dtype.numpy)
    filled = np.zeros(type_.shape, bool)
    for w in placed.mesh.workers:
        bounds = placed.bounds(type_.shape, w)
        where = tuple(slice(*b) for b in bounds)
        true_part = parts[w][tuple(slice(0, stop - start) for start, stop in bounds)]
        before = out[where]
        if filled[where].any() and before.tobytes() != true_part.tobytes():
            raise ReplicaMismatch(f"worker {w}'s part {bounds} of {type_!r} differs from another worker's")
        out[where], filled[where] = true_part, True
    assert filled.all(), f"{type_!r}: no worker holds some part"
    return out


def simulate_graph(
    graph: Graph, inputs: Sequence[Array], scalars: Sequence[Scalar] = (), num_workers: int = 1, pipeline: Pipeline = DEFAULT
) -> list[Array]:
    """Plan a captured graph for workers 0..num_workers-1, run it, and give the global outputs.

    Inputs without a placement are whole on all workers. Errors: as ``simulate``, and ReplicaMismatch.
    """
    cluster = Cluster(tuple(range(num_workers)))
    plan = plan_graph(graph, cluster, pipeline)
    given: dict[int, list[Array | None]] = {w: [] for w in cluster.workers}
    for value, array in zip(graph.inputs, inputs, strict=True):
        placed = value.type.sharding or Sharding.replicated(cluster.mesh, value.type.ndim)
        parts = parts_of(as_dtype(array, value.type.dtype), placed, value.type.dtype)
        for w in cluster.workers:
            given[w].append(parts.get(w))
    results = simulate(plan.programs, given, scalars)
    return [
        whole_of({w: results[w][i] for w in placed.mesh.workers}, placed, value.type)
        for i, (value, placed) in enumerate(zip(graph.outputs, plan.outputs, strict=True))
    ]

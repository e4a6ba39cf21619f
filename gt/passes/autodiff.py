"""Gradients: expands each ``grad`` node with the ops' vjps, in reverse order over the taped nodes before it.

Owns: the pass, ``backpropagate`` (its core, which the client also runs over its own tape), ``saved_values`` (what a
vjp reads).
Must not know: any one op. Next: ``decompose``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from gt.ir.advice import Advised
from gt.ir.graph import Attrs, Graph, Node, Rewriter, Value, attrs_key
from gt.ir.opdef import Emitter, OpDef, Var, emitter, emitting
from gt.ir.ops import OPS
from gt.ir.signals import backward_of
from gt.ir.types import DType, TensorType
from gt.passes.context import Context
from gt.passes.emit import NodeEmitter, decompose_node


class NoGradient(Advised, NotImplementedError):
    """A gradient reached an op that declares none."""


class NodeLike(Protocol):
    """What ``backpropagate`` walks: a graph's Node, a client's tape entry. Inputs and outputs are any hashable keys."""

    @property
    def op(self) -> OpDef: ...
    @property
    def attrs(self) -> Attrs: ...
    @property
    def inputs(self) -> Sequence[Any]: ...
    @property
    def outputs(self) -> Sequence[Any]: ...


def backpropagate(
    nodes: Sequence[NodeLike],
    seeds: Mapping[Any, Any],
    wrt: Iterable[Hashable],
    lookup: Callable[[Any], Any],
    on_node: Callable[[NodeLike], None] | None = None,
    on_gradient: Callable[[Any, Any], Any] | None = None,
) -> dict[Any, Any]:
    """Give the gradient of each key of ``wrt`` that has one; runs inside ``emitting(...)``.

    ``nodes``: in topological order, all differentiable through. ``seeds``: the gradients known at the start.
    ``lookup``: the value of a key, asked only for operands and results that vjps get. ``on_node`` is told whose vjp
    runs next, ``on_gradient`` each finished gradient (key, value), and may give another in its place.
    """
    targets = set(wrt)
    needed = _depends_on(nodes, targets)
    grads = {key: g for key, g in seeds.items() if key in needed or key in targets}
    found: dict[Any, Any] = {}
    for node in reversed(nodes):
        gs = [grads.get(out) for out in node.outputs]
        if all(g is None for g in gs):
            continue
        for i, out in enumerate(node.outputs):
            if (g := gs[i]) is None:
                continue
            if on_gradient is not None:
                changed = on_gradient(out, g)
                gs[i] = g = g if changed is None else changed
            if out in targets:
                found[out] = g
            del grads[out]
        needs = tuple(key in needed or key in targets for key in node.inputs)
        if not any(needs):
            continue
        if on_node is not None:
            on_node(node)
        inputs = tuple(lookup(key) for key in node.inputs)
        for key, g in zip(node.inputs, _pull(node, tuple(gs), inputs, lookup, needs), strict=True):
            if g is not None:
                grads[key] = OPS["add"](grads[key], g) if key in grads else g
    for key, g in grads.items():  # those of no node here: the leaves
        if key in targets:
            changed = on_gradient(key, g) if on_gradient is not None else None
            found[key] = g if changed is None else changed
    return found


def _depends_on(nodes: Sequence[NodeLike], targets: set[Any]) -> set[Any]:
    """Give the keys that depend on a target, targets of no node excluded."""
    needed: set[Any] = set()
    for node in nodes:
        if any(key in needed or key in targets for key in node.inputs):
            needed.update(node.outputs)
    return needed


def _pull(
    node: NodeLike, gs: tuple[Any, ...], inputs: tuple[Any, ...], lookup: Callable[[Any], Any], needs: tuple[bool, ...]
) -> tuple[Any, ...]:
    """Run one node's vjp; give a gradient or None for each operand, None where none is needed."""
    op = node.op
    if op.vjp is None:
        if op.decompose is None:
            if not any(lookup(out).type.dtype.is_differentiable for out in node.outputs):
                return (None,) * len(inputs)
            raise NoGradient(f"{op.name} has no gradient")
        return _pull_decomposed(op, node.attrs, gs, inputs, needs)
    ys = tuple(lookup(out) for out in node.outputs)
    g, y = (gs[0], ys[0]) if len(gs) == 1 else (gs, ys)
    out = op.vjp(g, y, *inputs, **dict(node.attrs))
    out = tuple(out) if isinstance(out, tuple | list) else (out,)
    assert len(out) == len(inputs), f"vjp of {op.name} gives {len(out)} gradients for {len(inputs)} operands"
    for g, x in zip(out, inputs, strict=True):
        assert g is None or (g.type.shape == x.type.shape and g.type.dtype is x.type.dtype), (
            f"vjp of {op.name} gives {g.type!r} for an operand {x.type!r}"
        )
    return tuple(
        g if need and x.type.dtype.is_differentiable else None for g, x, need in zip(out, inputs, needs, strict=True)
    )


@dataclass(frozen=True)
class _Step:
    op: OpDef
    attrs: Attrs
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class _Recorder:
    """An emitter that passes on to another and keeps what was emitted, values keyed by identity."""

    def __init__(self, inner: Emitter) -> None:
        self.inner = inner
        self.steps: list[_Step] = []
        self.values: dict[int, Any] = {}

    def key(self, value: Any) -> int:
        self.values[id(value)] = value
        return id(value)

    def emit(self, op: OpDef, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        outputs = self.inner.emit(op, inputs, attrs)
        self.steps.append(_Step(op, attrs, tuple(map(self.key, inputs)), tuple(map(self.key, outputs))))
        return outputs

    def constant(self, value: bool | int | float, dtype: DType) -> Any:
        out = self.inner.constant(value, dtype)
        self.key(out)
        return out


def _pull_decomposed(
    op: OpDef, attrs: Attrs, gs: tuple[Any, ...], inputs: tuple[Any, ...], needs: tuple[bool, ...]
) -> tuple[Any, ...]:
    """Differentiate an op that has a decomposition and no vjp. cse merges the forward part with the op's own."""
    recorder = _Recorder(emitter())
    with emitting(recorder):
        outputs = op.decompose(inputs, dict(attrs))  # type: ignore[misc]
    outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
    keys = [recorder.key(v) for v in inputs]
    seeds: dict[int, Any] = {}
    for out, g in zip(outputs, gs, strict=True):
        if g is not None:
            seeds[recorder.key(out)] = g
    wrt = {key for key, need in zip(keys, needs, strict=True) if need}
    found = backpropagate(recorder.steps, seeds, wrt, recorder.values.__getitem__)
    given: set[int] = set()
    result = []
    for key in keys:  # an operand that stands twice gets its gradient once
        result.append(None if key in given else found.get(key))
        given.add(key)
    return tuple(result)


# -- what a vjp reads


@dataclass(frozen=True, eq=False)
class _Symbol:
    type: TensorType


class _Symbolic:
    """An emitter on values that have a type and nothing else; keeps what each one was made from."""

    def __init__(self) -> None:
        self.sources: dict[Any, tuple[Any, ...]] = {}

    def emit(self, op: OpDef, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        outputs = tuple(_Symbol(t) for t in op.infer_types(tuple(v.type for v in inputs), attrs))
        self.sources.update((out, tuple(inputs)) for out in outputs)
        return outputs

    def constant(self, value: bool | int | float, dtype: DType) -> _Symbol:
        return _Symbol(TensorType((), dtype))


_saved: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}


def saved_values(
    op: OpDef,
    attrs: Attrs,
    input_types: tuple[TensorType, ...],
    output_types: tuple[TensorType, ...],
    needs: tuple[bool, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Give the indices of the operands and of the results whose values the gradient of the needed operands reads.

    Found by running the vjp on symbols; reading a shape or dtype does not count. Memoised.
    """
    key = op.name, attrs_key(attrs), input_types, output_types, needs
    found = _saved.get(key)
    if found is None:
        if len(_saved) >= 65536:
            _saved.clear()
        found = _saved[key] = _find_saved(op, attrs, input_types, output_types, needs)
    return found


def _find_saved(
    op: OpDef,
    attrs: Attrs,
    input_types: tuple[TensorType, ...],
    output_types: tuple[TensorType, ...],
    needs: tuple[bool, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    xs, ys = tuple(map(_Symbol, input_types)), tuple(map(_Symbol, output_types))
    gs = tuple(_Symbol(t) if t.dtype.is_differentiable else None for t in output_types)
    if not any(g is not None for g in gs):
        return (), ()
    symbolic = _Symbolic()
    values = dict(enumerate((*xs, *ys)))
    step = _Step(op, attrs, tuple(range(len(xs))), tuple(range(len(xs), len(values))))
    with emitting(symbolic):
        wanted = _pull(step, gs, xs, values.__getitem__, needs)
    seen: set[Any] = set()
    todo: list[Any] = [g for g in wanted if g is not None]
    while todo:
        value = todo.pop()
        if value not in seen:
            seen.add(value)
            todo.extend(symbolic.sources.get(value, ()))
    return tuple(i for i, x in enumerate(xs) if x in seen), tuple(i for i, y in enumerate(ys) if y in seen)


# -- the pass


@dataclass(frozen=True)
class Autodiff:
    """Replace each grad node by the nodes that compute it."""

    name: ClassVar[str] = "autodiff"

    def run(self, graph: Graph, context: Context) -> Graph:
        if not any(node.op.effect == "grad" for node in graph.nodes):
            return graph
        rewriter = Rewriter(graph)
        signals = {name: config for name, config in graph.signals}
        asked = {c.backward_signal: c.backward_config for c in signals.values() if c.backward_config is not None}

        def backward_signal(name: str | None) -> str | None:
            config = signals.get(name) if name is not None else None
            if name is None or config is None:
                return name
            if config.backward_signal is not None:
                return config.backward_signal
            found = backward_of(name, config)
            if found is not None:
                asked[found[0]] = found[1]
            return found[0] if found is not None else None

        for node in graph.nodes:
            if node.op.effect == "grad":
                _expand(node, rewriter, backward_signal)
            elif node.taped and node.op.vjp is None and node.op.decompose is not None:
                decompose_node(node, rewriter)  # so that forward and backward share what both need
            else:
                rewriter.copy(node)
        # What gradients follow may be named nowhere else in the graph.
        used = {n.signal for n in rewriter.nodes}
        fresh = {n: c for n, c in asked.items() if n is not None and c is not None and n in used and n not in signals}
        # The tape has been read.
        rewriter.nodes = [replace(node, taped=False) if node.taped else node for node in rewriter.nodes]
        more = {"signals": tuple(sorted((signals | fresh).items()))} if fresh else {}
        return rewriter.finish(**more)


def _expand(node: Node, rewriter: Rewriter, backward_signal: Callable[[str | None], str | None]) -> None:
    operands = tuple(rewriter.get(v) for v in node.inputs)
    loss, wrt = operands[0], operands[1 + bool(node.attr.get("has_seed")) :]
    tape = [n for n in rewriter.nodes if n.taped]
    emit = NodeEmitter(rewriter)
    emit.like, emit.taped = node, node.taped
    names: dict[Value, Value] = {}
    roots: set[Value] = set(operands)

    def on_node(forward: NodeLike) -> None:
        assert isinstance(forward, Node)
        emit.like, emit.signal = forward, backward_signal(forward.signal)

    def on_gradient(of: Value, gradient: Value) -> None:
        if of.hint and not gradient.hint and gradient not in names and gradient not in roots:
            names[gradient] = Value(gradient.type, f"d_{of.hint}")

    with emitting(emit):
        seed = operands[1] if node.attr.get("has_seed") else emit.constant(1.0, loss.type.dtype)
        found = backpropagate(tape, {loss: seed}, wrt, lambda value: value, on_node, on_gradient)
        emit.like, emit.signal = node, None
        results: list[Value] = [found.get(value) or _zeros(value.type) for value in wrt]
    made = {out for n in rewriter.nodes[emit.first :] for out in n.outputs}
    names = {old: new for old, new in names.items() if old in made}
    emit.rename(names)
    for old, new in zip(node.outputs, results, strict=True):
        rewriter.replace(old, names.get(new, new))


def _zeros(type_: TensorType) -> Any:
    return OPS["full"](shape=type_.shape, value=0.0, dtype=type_.dtype)


__all__ = ["Autodiff", "NoGradient", "NodeLike", "Var", "backpropagate", "saved_values"]

"""Gradients expanded on the client: for a tape that spans a flush, has hooks, or must itself be differentiated.

Owns: running ``backpropagate`` over tape entries, recording only what the wanted gradients need.
Next: ``gt.passes.autodiff`` (the same core, as a pass), ``autograd``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.buffers import Buffer
from gt.function import BOUNDARY, call_backward
from gt.functions.create import from_numpy
from gt.grad_fn import backward_name
from gt.grad_mode import set_grad_enabled
from gt.handle import Handle
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef, emitting
from gt.ir.ops import OPS
from gt.ir.ops.broadcast import total
from gt.ir.types import DType, TensorType, bool_, class_name, remedy
from gt.operand import Number, ValueRef
from gt.passes.autodiff import backpropagate
from gt.recording import record, tensor_of
from gt.residuals import requires
from gt.rule import RULES, rule_of
from gt.signal import for_backward
from gt.source import location
from gt.tape import SECOND_TIME, Key, Tape, linked
from gt.trace import Trace, state
from gt.versions import Saved

if TYPE_CHECKING:
    from gt.tensor import Tensor

ADD, ALIAS, COPY, FULL = OPS["add"], OPS["alias"], OPS["copy"], OPS["full"]
Hook = Callable[["Tensor"], "Tensor | None"]


def ones(type: TensorType) -> Any:
    """Record ones of a type: the gradient a backward starts from."""
    return record(FULL, (), (("shape", type.shape), ("value", 1.0), ("dtype", type.dtype)))


def zeros(type: TensorType) -> Any:
    """Record zeros of a type."""
    return record(FULL, (), (("shape", type.shape), ("value", 0.0), ("dtype", type.dtype)))


def own(g: Any, create_graph: bool) -> Any:
    """Give a gradient that somebody else has too as a value of its own: changes of it in place are nobody else's."""
    with set_grad_enabled(state.grad and create_graph):
        out = record(COPY if create_graph else ALIAS, (g,))
    state.trace.moved[out._index] = None
    return out


def call_hook(hook: Hook, g: Any) -> Any:
    out = hook(g)
    if out is None:
        return g
    if not isinstance(out, Handle):
        raise TypeError(f"expected Variable, but hook returned '{class_name(out)}'{remedy(out)}")
    if out._type is not g._type:
        name = getattr(hook, "__name__", type(hook).__name__)
        what = "size of value" if out._type.dtype is g._type.dtype else f"type of value (was {g.type()} got {out.type()})"
        raise RuntimeError(f"hook '{name}' has changed the {what}")
    return out


@dataclass(frozen=True)
class _Entry:
    """A tape entry as ``backpropagate`` wants it; values are keyed by where they were first recorded."""

    op: OpDef
    attrs: Attrs
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    trace: Trace
    entry: int


class _Held:
    """A tensor as an operand of what a vjp calls: ``Tensor.type`` is torch's, a method."""

    __slots__ = ("tensor", "type")

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.type = tensor, tensor._type


def _held(value: Any) -> Any:
    return _Held(value) if isinstance(value, Handle) else value


class _Lazy:
    """A result of an op that a vjp called: recorded once it turns out to be part of a gradient somebody wants."""

    __slots__ = ("type", "step", "index")

    def __init__(self, type: TensorType, step: _Step, index: int) -> None:
        self.type, self.step, self.index = type, step, index


@dataclass(eq=False)
class _Step:
    op: OpDef
    attrs: Attrs
    inputs: tuple[Any, ...]
    signal: Any
    number: int
    results: tuple[Any, ...] | None = None


class _Recording:
    """An emitter that notes ops and records, into this thread's trace, those that ``force`` needs."""

    def __init__(self) -> None:
        self.signal: Any = None
        self.numbers = itertools.count()

    def emit(self, op: OpDef, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]:
        step = _Step(op, attrs, tuple(inputs), self.signal, next(self.numbers))
        outputs = rule_of(op, attrs, tuple(v.type for v in inputs)).outputs
        return tuple(_Lazy(type, step, i) for i, type in enumerate(outputs))

    def constant(self, value: bool | int | float, dtype: DType) -> Any:
        return self.emit(FULL, (), (("shape", ()), ("value", value), ("dtype", dtype)))[0]

    def force(self, value: Any) -> Any:
        """Record what ``value`` needs, in the order its vjps called it, and give the tensor."""
        if not isinstance(value, _Lazy):
            return value.tensor if value.__class__ is _Held else value
        todo, steps = [value.step], {value.step.number: value.step}
        while todo:
            for operand in todo.pop().inputs:
                if isinstance(operand, _Lazy) and operand.step.results is None and operand.step.number not in steps:
                    steps[operand.step.number] = operand.step
                    todo.append(operand.step)
        for _, step in sorted(steps.items()):
            if step.results is None:
                state.trace.mark(step.signal)
                out = record(
                    step.op,
                    tuple(v.step.results[v.index] if isinstance(v, _Lazy) else _current(v) for v in step.inputs),
                    step.attrs,
                )
                step.results = out if isinstance(out, tuple) else (out,)
        assert value.step.results is not None
        return value.step.results[value.index]


def _current(value: Any) -> Any:
    """Look a value up again if a hook has read something since, which flushed its trace."""
    if value.__class__ is ValueRef and value._trace is not None and value._trace.sealed:
        value = _lookup((value._trace, value._index))
    return value.tensor if value.__class__ is _Held else value


def expand(
    roots: list[Key], seeds: Sequence[Any], tape: Tape, leaves: list[tuple[Key, Tensor]], create_graph: bool
) -> list[tuple[Tensor, Tensor]]:
    aliases: dict[Key, list[Key]] = {}  # where else a value of an earlier tape is at hand

    def canonical(trace: Trace, id: int) -> Key:
        key = linked(trace, id)
        if key[0] is not trace and (trace, id) not in aliases.setdefault(key, []):
            aliases[key].append((trace, id))
        return key

    def lookup(key: Key) -> Any:
        return _lookup(next((k for k in (key, *aliases.get(key, ())) if _at_hand(k)), key))

    nodes = [
        _Entry(
            rule.op,
            rule.attrs,
            tuple(canonical(trace, i) for i in operands),
            tuple((trace, first + i) for i in range(len(rule.outputs))),
            trace,
            entry,
        )  # fmt: skip
        for trace, visited in sorted(tape.entries.items(), key=lambda item: item[0].number)
        for entry, rule, operands, first in reversed(visited)
        if rule.op is not None
    ]
    start: dict[Key, Any] = {}
    recording = _Recording()

    def on_node(node: Any) -> None:
        recording.signal = _backward_signal(node)

    with set_grad_enabled(state.grad and create_graph), emitting(recording), _marks_kept():
        for root, seed in zip(roots, seeds, strict=True):
            seed = _held(seed if seed is not None else ones(type_at(root)))
            root = linked(*root)
            start[root] = ADD(start[root], seed) if root in start else seed
        watch = _gradient_watcher(tape, nodes, recording)
        if create_graph:
            shown = _shown_by_torch(nodes, canonical, lookup)
            nodes = [_with_history(n, recording, shown(n)) for n in nodes]
        lazy = backpropagate(_with_functions(nodes, recording), start, {key for key, _ in leaves}, lookup, on_node, watch)
        forced = {key: recording.force(g) for key, g in lazy.items()}
        found: list[tuple[Tensor, Any]] = []
        given: set[int] = set()
        for key, t in leaves:
            if key in lazy:
                g = forced[key]
                if not isinstance(lazy[key], _Lazy) or id(g) in given:  # a hook, a function, the caller or another tensor has it
                    g = own(g, create_graph)
                given.add(id(g))
                found.append((t, g))
    return found


@contextmanager
def _marks_kept() -> Iterator[None]:
    """Let what is recorded behind the block follow the scopes it is in again, also if a hook has raised, or read, which begins a trace."""
    try:
        yield
    finally:
        state.trace.mark(state.signals[-1] if state.signals else None)


def _backward_signal(node: Any) -> Any:
    """Give the signal that a forward entry's gradients follow."""
    return for_backward(node.trace.signal_at(node.entry))


def type_at(key: Key) -> TensorType:
    trace, id = key
    if trace.types is None or len(trace.types) <= id:
        trace.types = [t for code, _ in trace.code for t in RULES[code >> 1].outputs]
    return trace.types[id]


def _at_hand(key: Key) -> bool:
    """Say whether a value can be read: pending, or kept for a later backward."""
    trace, id = key
    return not trace.sealed or id in trace.saved


def _lookup(key: Key) -> Any:
    """Give the value of a key as an operand; one that no vjp should read is only a type."""
    trace, id = key
    type = type_at(key)
    if not trace.sealed:
        ref = ValueRef(trace, id, type)
        ref._rg = id in trace.leaves or id in trace.links or requires(trace, (id,))[0]
        return ref
    saved = trace.saved.get(id)
    if isinstance(saved, Buffer):
        leaf = trace.leaves.get(id)
        tensor = leaf[0]() if leaf is not None else None
        if tensor is not None and tensor._buffer is saved:
            return _Held(tensor)
        out = tensor_of(saved)
        if requires(trace, (id,))[0]:
            out._rg, out._leaf, out._tape = True, False, key
        return _Held(out)
    return Number(saved, type.dtype) if saved is not None else ValueRef(trace, -1, type)


# -- what a gradient depends on without having a slope


def _with_history(node: _Entry, recording: _Recording, shown: dict[int, dict[Key, Any]]) -> _Entry:
    """Let the gradients of an entry need a gradient where they only look at what a value is, as those of relu do: it is 0.

    ``shown``: by operand, what torch's gradient of it needs a gradient by as well.
    """
    inner = node.op.vjp
    if inner is None:
        return node

    def vjp(g: Any, y: Any, *inputs: Any, **attrs: Any) -> Any:
        out = inner(g, y, *inputs, **attrs)
        read = dict(zip((*node.inputs, *node.outputs), (*inputs, *(y if isinstance(y, tuple) else (y,))), strict=True))
        read = {key: v for key, v in read.items() if _needs_gradient(v)}
        values = list(read.values())
        if not values and not shown:
            return out
        gradients = out if isinstance(out, tuple | list) else (out,)
        stop = {id(each) for each in (g if isinstance(g, tuple) else (g,))}
        return tuple(
            _attached(each, values, [read.get(key, v) for key, v in shown.get(i, {}).items()], stop, recording)
            for i, each in enumerate(gradients)
        )

    return replace(node, op=replace(node.op, vjp=vjp))


def _shown_by_torch(
    nodes: list[_Entry], canonical: Callable[[Trace, int], Key], lookup: Callable[[Key], Any]
) -> Callable[[_Entry], dict[int, dict[Key, Any]]]:
    """Give, for an entry, what torch's gradient of each operand needs a gradient by, whatever it is: see ``OpDef.saves``."""
    saved = {trace: Saved(trace) for trace in {node.trace for node in nodes}}

    def function(node: _Entry) -> Any:
        inside = saved[node.trace].inside.get(node.entry)
        return None if inside is None else (node.trace, inside[0])

    within = {key: function(node) for node in nodes for key in node.outputs}

    def shown(node: _Entry) -> dict[int, dict[Key, Any]]:
        trace, own = node.trace, function(node)
        code, operands = trace.code[node.entry]
        values = {}
        for key in (canonical(trace, id) for id in saved[trace].shown(node.entry, RULES[code >> 1], operands)):
            value = lookup(key) if _at_hand(key) else _nothing(key)
            if _needs_gradient(value):
                values[key] = value
        return {i: values for i, key in enumerate(node.inputs) if values and (own is None or within.get(key) != own)}

    return shown


def _nothing(key: Key) -> Any:
    """Give zeros with the history of a value that is gone."""
    trace, id = key
    type = type_at(key)
    leaf = trace.leaves.get(id)
    tensor = leaf[0]() if leaf is not None else None
    if tensor is None and type.dtype.kind == "f" and requires(trace, (id,))[0]:
        tensor = from_numpy(np.zeros(type.shape, np.float32)).to(type.dtype)
        tensor._materialise()
        tensor._rg, tensor._leaf, tensor._tape = True, False, key
    return ValueRef(trace, -1, type) if tensor is None else _Held(tensor)


def _needs_gradient(value: Any) -> bool:
    held = value.tensor if value.__class__ is _Held else value
    return bool(value.type.dtype.kind == "f" and getattr(held, "_rg", False))


def _attached(g: Any, values: Sequence[Any], shown: Sequence[Any], stop: set[int], recording: _Recording) -> Any:
    """Add nothing of the values that a gradient was made from without depending on them smoothly, and of those that torch shows."""
    if g is None or g.type.dtype.kind != "f" or not (shown or isinstance(g, _Lazy)):
        return g
    found, smooth = _sources(g, stop, False), _sources(g, stop, True)
    found.update(map(id, shown))
    for value in {id(v): v for v in (*values, *shown)}.values():
        if id(value) in found and id(value) not in smooth:
            nothing = OPS["where"](recording.constant(False, bool_), value, recording.constant(0, value.type.dtype))
            added = total(nothing)
            g = ADD(g, added if added.type.dtype is g.type.dtype else OPS["cast"](added, dtype=g.type.dtype))
    return g


def _sources(g: Any, stop: set[int], smooth: bool) -> set[int]:
    """Give what a gradient was made from; ``smooth``: by ops with gradients alone."""
    seen: set[int] = set()
    todo = [g]
    while todo:
        value = todo.pop()
        if id(value) in seen or id(value) in stop:
            continue
        seen.add(id(value))
        if isinstance(value, _Lazy):
            op = value.step.op
            if not smooth or (value.type.dtype.is_differentiable and (op.vjp is not None or op.decompose is not None)):
                todo.extend(value.step.inputs)
    return seen


def _with_functions(nodes: list[_Entry], recording: _Recording) -> list[Any]:
    """Give the entries of user functions a vjp that runs the function's backward."""
    return [_function_entry(n, recording) if n.op is BOUNDARY else n for n in nodes]


def _function_entry(node: _Entry, recording: _Recording) -> Any:
    entry = node.trace.custom.get(node.entry)
    if entry is None and node.entry in node.trace.freed:
        raise RuntimeError(SECOND_TIME)
    if entry is None:
        raise RuntimeError("a value computed inside a checkpoint has no graph of its own: let the checkpointed function return it")
    types = [type_at(key) for key in node.outputs]
    operands = [type_at(key) for key in node.inputs]
    materialize = entry[1]._materialize

    def vjp(gs: Any, ys: Any, *inputs: Any, num_inputs: int) -> Any:
        given = gs if isinstance(gs, tuple) else (gs,)
        forced = [
            recording.force(g) if g is not None else (zeros(t) if materialize else None) for g, t in zip(given, types, strict=True)
        ]
        return tuple(map(_held, call_backward(entry, forced, operands, node.outputs)))

    return replace(node, op=replace(node.op, vjp=vjp))


def _gradient_watcher(tape: Tape, nodes: list[_Entry], recording: _Recording) -> Callable[[Key, Any], Any] | None:
    """Give what each finished gradient passes through: the hooks of its tensor, and the check of anomaly mode."""
    if not tape.hooked and not state.check_nan:
        return None
    readers = {key: node for node in reversed(nodes) for key in node.inputs} if state.check_nan else {}

    def watch(key: Key, g: Any) -> Any:
        for hook in list(key[0].hooked.get(key[1], {}).values()):
            g = call_hook(hook, recording.force(g))
        if key in readers:
            _check_anomaly(readers[key], recording.force(g))
        return _held(g)

    return watch


def _check_anomaly(node: _Entry, g: Any) -> None:
    """Raise if the gradient that a node gave its operand holds NaN. Reads it, so anomaly mode is slow."""
    if np.isnan(g._read()).any():
        where = node.trace.where[node.entry]
        at = f" (recorded at {location(*where)})" if where is not None else ""
        raise RuntimeError(
            f"Function '{backward_name(node.op)}' returned nan values in its 0th output: the gradient of "
            f"{node.op.name} is NaN{at}"
        )

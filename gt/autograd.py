"""Gradients on the client: torch's tape semantics over recorded traces.

Owns: grad mode, ``backward``, ``grad``, hooks, and when a tape may be walked again. How gradients are computed is the ``autodiff``
pass's: a backward over one pending trace is recorded as a single ``grad`` node. A tape that spans a flush, has hooks, or must
itself be differentiated is expanded here, by the same ``backpropagate``.
Next: ``gt.passes.autodiff``, ``flush`` (which values outlive a flush for a later backward).
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gt.flush import entries_backwards, requires, saved_by
from gt.handle import Handle, from_buffer, no_tape
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef, emitting
from gt.ir.ops import OPS
from gt.ir.types import DType, TensorType
from gt.passes.autodiff import backpropagate
from gt.signal import for_backward
from gt.trace import RULES, Buffer, Number, Rule, Trace, ValueRef, current, record, rule_of, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

GRAD, ADD, FULL = OPS["grad"], OPS["add"], OPS["full"]
Hook = Callable[["Tensor"], "Tensor | None"]
Key = tuple[Trace, int]


# -- grad mode


class _GradMode:
    """Turns recording for gradients on or off in this thread; a context manager and a decorator."""

    on: bool

    def __enter__(self) -> None:
        self._before, state.grad = state.grad, self.on

    def __exit__(self, *_: object) -> None:
        state.grad = self._before

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with type(self)():
                return function(*args, **kwargs)

        return wrapped


class no_grad(_GradMode):  # noqa: N801 - torch's name
    """Do not record for gradients."""

    on = False


class inference_mode(no_grad):  # noqa: N801 - torch's name
    """Do not record for gradients; gt keeps no version counters to drop, so this is ``no_grad``."""


class enable_grad(_GradMode):  # noqa: N801 - torch's name
    """Record for gradients."""

    on = True


class set_grad_enabled(_GradMode):  # noqa: N801 - torch's name
    """Set grad mode at once, and put it back on leaving when used as a context manager."""

    def __init__(self, mode: bool) -> None:
        self._before, state.grad = state.grad, bool(mode)
        self.on = bool(mode)

    def __enter__(self) -> None:
        state.grad = self.on


def is_grad_enabled() -> bool:
    """Say whether gradients are recorded in this thread."""
    return state.grad


# -- walking the tape


@dataclass
class _Tape:
    """What a backward reaches: entries newest first by trace, and the leaves whose gradients they make."""

    entries: dict[Trace, list[tuple[int, Rule, tuple[int, ...], int]]] = field(default_factory=dict)
    leaves: list[tuple[Key, Tensor]] = field(default_factory=list)
    hooked: bool = False


def _key_of(t: Handle) -> Key | None:
    """Give where a tensor's value was recorded, if its tape still exists."""
    if t._base is not None and t._seen != t._root._version:
        t._refresh()
    if t._trace is not None:
        return t._trace, t._index
    return t._tape


def _walk(roots: Sequence[Key], extra: Sequence[Key] = ()) -> _Tape:
    tape = _Tape()
    needed: dict[Trace, set[int]] = {}
    for trace, id in roots:
        needed.setdefault(trace, set()).add(id)
    wanted = set(extra)
    while needed:
        trace = max(needed, key=lambda t: t.number)
        ids = needed.pop(trace)
        tape.entries[trace] = visited = []
        tape.hooked = tape.hooked or trace.hooks
        for entry, rule, taped, operands, first in entries_backwards(trace):
            if not taped or not any(first + i in ids for i in range(len(rule.outputs))):
                continue
            if entry in trace.freed and any(saved_by(rule, requires(trace, operands))):
                raise RuntimeError(
                    "Trying to backward through the graph a second time (or directly access saved tensors after they have already "
                    "been freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). "
                    "Specify retain_graph=True if you need to backward through the graph a second time or if you need to access "
                    "saved tensors after calling backward."
                )
            visited.append((entry, rule, operands, first))
            ids.update(operands)
        if trace.overwritten or trace.sealed:
            _check_versions(trace, visited)
        for id in ids:
            link = trace.links.get(id)
            if link is not None:
                needed.setdefault(link[0], set()).add(link[1])
            leaf = trace.leaves.get(id)
            tensor = leaf[0]() if leaf is not None else None
            if tensor is not None and (tensor._leaf or tensor._retains or (trace, id) in wanted):
                tape.leaves.append(((trace, id), tensor))
    return tape


def _check_versions(trace: Trace, visited: list[tuple[int, Rule, tuple[int, ...], int]]) -> None:
    """Raise if a value that a vjp reads was changed in place after it was recorded."""
    stale = set(trace.overwritten)
    for id, (ref, version) in trace.leaves.items():
        tensor = ref()
        if tensor is not None and tensor._version != version:
            stale.add(id)
    if not stale:
        return
    for _, rule, operands, first in visited:
        ins, outs = saved_by(rule, requires(trace, operands))
        if any(operands[i] in stale for i in ins) or any(first + i in stale for i in outs):
            assert rule.op is not None
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{rule.op.name} needs a value that was overwritten since"
            )


# -- backward


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Tensor] | None = None,
) -> None:
    """Accumulate the gradient of this tensor into ``.grad`` of the leaves it was computed from.

    Errors: RuntimeError if it needs no gradient, is not a scalar and ``gradient`` is not given, or was walked before without
    ``retain_graph``. Source: torch.Tensor.backward.
    """
    seed = _check_seed(self, gradient)
    retain = create_graph if retain_graph is None else retain_graph
    if self._leaf:
        _accumulate(self, seed if seed is not None else _ones(self._type), create_graph)
        return
    found = _gradients([self], [seed], inputs, retain, create_graph)
    for tensor, g in found:
        _accumulate(tensor, g, create_graph)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Give the gradients of ``outputs`` with respect to ``inputs``, leaving ``.grad`` alone. Source: torch.autograd.grad."""
    roots = [outputs] if isinstance(outputs, Handle) else list(outputs)
    targets = [inputs] if isinstance(inputs, Handle) else list(inputs)
    given = [grad_outputs] if isinstance(grad_outputs, Handle) else list(grad_outputs or [None] * len(roots))
    seeds = [_check_seed(root, g) for root, g in zip(roots, given, strict=True)]
    for t in targets:
        if not t._rg:
            raise RuntimeError("One of the differentiated Tensors does not require grad")
    retain = create_graph if retain_graph is None else retain_graph
    found = {id(t): g for t, g in _gradients(roots, seeds, targets, retain, create_graph)}
    out = []
    for t in targets:
        g = found.get(id(t))
        if g is None and materialize_grads:
            g = record(FULL, (), (("shape", t._type.shape), ("value", 0.0), ("dtype", t._type.dtype)))
        elif g is None and not allow_unused:
            raise RuntimeError(
                "One of the differentiated Tensors appears to not have been used in the graph. "
                "Set allow_unused=True if this is the desired behavior."
            )
        out.append(g)
    return tuple(out)


def _check_seed(root: Tensor, gradient: Any) -> Any:
    if not root._rg:
        raise RuntimeError("element 0 of tensors does not require grad and does not have a grad_fn")
    if gradient is None:
        if root._type.numel != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        return None if not root._type.shape else _ones(root._type)
    if gradient._type.shape != root._type.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[0] has a shape of {gradient.shape} and output[0] has a shape of {root.shape}."
        )
    return gradient.to(root._type.dtype)


def _ones(type: TensorType) -> Any:
    return record(FULL, (), (("shape", type.shape), ("value", 1.0), ("dtype", type.dtype)))


def _gradients(
    roots: Sequence[Tensor], seeds: Sequence[Any], targets: Sequence[Tensor] | None, retain: bool, create_graph: bool
) -> list[tuple[Tensor, Tensor]]:
    """Give (tensor, gradient) for each target that is reached, or for each leaf if no targets are named."""
    current()
    keys = [_key_of(root) for root in roots]
    if any(key is None for key in keys):
        raise RuntimeError("the graph of this tensor is gone: it was freed by an earlier backward()")
    asked = {id(t): _key_of(t) for t in targets or () if not t._leaf}
    tape = _walk([k for k in keys if k is not None], [k for k in asked.values() if k is not None])
    leaves = tape.leaves
    if targets is not None:
        chosen = {id(t) for t in targets}
        leaves = [(key, t) for key, t in leaves if id(t) in chosen and t._leaf]
        leaves += [(key, t) for t in targets if not t._leaf and (key := asked[id(t)]) is not None]
    trace = state.trace
    simple = len(roots) == 1 and set(tape.entries) == {trace} and not tape.hooked and not create_graph
    if simple and leaves:
        found = _record_grad(roots[0], seeds[0], leaves)
    elif leaves:
        found = _expand([k for k in keys if k is not None], seeds, tape, leaves, create_graph)
    else:
        found = []
    if not retain:
        _free(tape)
    return found


def _record_grad(root: Tensor, seed: Any, leaves: list[tuple[Key, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Record one grad node: the whole tape is in the pending trace."""
    refs = [ValueRef(trace, id, t._type) for (trace, id), t in leaves]
    operands = (root, *refs) if seed is None else (root, seed, *refs)
    with no_tape():
        out = record(GRAD, operands, (("has_seed", seed is not None),))
    grads = out if isinstance(out, tuple) else (out,)
    return _merge([t for _, t in leaves], grads)


def _merge(tensors: Sequence[Tensor], grads: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    """Add up the gradients of a leaf that was reached through several values."""
    found: dict[int, tuple[Tensor, Any]] = {}
    for t, g in zip(tensors, grads, strict=True):
        if id(t) in found:
            with no_tape():
                g = record(ADD, (found[id(t)][1], g))
        found[id(t)] = (t, g)
    return list(found.values())


def _accumulate(tensor: Tensor, g: Tensor, create_graph: bool) -> None:
    for hook in (tensor._hooks or {}).values() if tensor._leaf else ():
        g = _call_hook(hook, g)
    if tensor._grad is None:
        tensor._grad = g
    elif create_graph:
        tensor._grad = tensor._grad + g
    else:
        with no_tape():
            tensor._grad._assign(record(ADD, (tensor._grad, g)))


def _free(tape: _Tape) -> None:
    for trace, visited in tape.entries.items():
        trace.freed.update(entry for entry, _, _, _ in visited)
        if trace.sealed and trace.saved:
            kept: set[int] = set()
            for entry, rule, taped, operands, first in entries_backwards(trace):
                if taped and entry not in trace.freed:
                    ins, outs = saved_by(rule, requires(trace, operands))
                    kept.update(operands[i] for i in ins)
                    kept.update(first + i for i in outs)
            for id in trace.saved.keys() - kept:
                del trace.saved[id]


# -- expansion on the client


@dataclass(frozen=True)
class _Entry:
    """A tape entry as ``backpropagate`` wants it; values are keyed by where they were first recorded."""

    op: OpDef
    attrs: Attrs
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    trace: Trace
    entry: int


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
            return value
        todo, steps = [value.step], {value.step.number: value.step}
        while todo:
            for operand in todo.pop().inputs:
                if isinstance(operand, _Lazy) and operand.step.results is None and operand.step.number not in steps:
                    steps[operand.step.number] = operand.step
                    todo.append(operand.step)
        for _, step in sorted(steps.items()):
            if step.results is None:
                state.trace.mark(step.signal)
                out = record(step.op, tuple(v.step.results[v.index] if isinstance(v, _Lazy) else v for v in step.inputs), step.attrs)
                step.results = out if isinstance(out, tuple) else (out,)
        assert value.step.results is not None
        return value.step.results[value.index]


def _canonical(trace: Trace, id: int) -> Key:
    while id in trace.links:
        trace, id = trace.links[id]
    return trace, id


@contextmanager
def _whole(trace: Trace) -> Iterator[None]:
    """Keep the pending trace from being flushed meanwhile."""
    with trace.lock:
        limit, trace.limit = trace.limit, 1 << 62
        try:
            yield
        finally:
            trace.limit = limit


def _expand(
    roots: list[Key], seeds: Sequence[Any], tape: _Tape, leaves: list[tuple[Key, Tensor]], create_graph: bool
) -> list[tuple[Tensor, Tensor]]:
    nodes = [
        _Entry(
            rule.op, rule.attrs, tuple(_canonical(trace, i) for i in operands),
            tuple((trace, first + i) for i in range(len(rule.outputs))), trace, entry,
        )  # fmt: skip
        for trace, visited in sorted(tape.entries.items(), key=lambda item: item[0].number)
        for entry, rule, operands, first in reversed(visited)
        if rule.op is not None
    ]
    start: dict[Key, Any] = {}
    trace = state.trace
    signal = trace.marks[-1][1] if trace.marks else None
    recording = _Recording()

    def on_node(node: Any) -> None:
        recording.signal = _backward_signal(node)

    with _whole(trace), no_tape(not create_graph), emitting(recording):
        for root, seed in zip(roots, seeds, strict=True):
            seed = seed if seed is not None else _ones(_type_at(root))
            root = _canonical(*root)
            start[root] = ADD(start[root], seed) if root in start else seed
        if tape.hooked:
            nodes = _with_hooks(nodes, recording)
        lazy = backpropagate(nodes, start, {key for key, _ in leaves}, _lookup, on_node)
        found = {key: recording.force(g) for key, g in lazy.items()}
        trace.mark(signal)
    reached = [(t, found[key]) for key, t in leaves if key in found]
    return _merge([t for t, _ in reached], [g for _, g in reached])


def _backward_signal(node: Any) -> Any:
    """Give the signal that a forward entry's gradients follow."""
    return for_backward(node.trace.signal_at(node.entry))


def _type_at(key: Key) -> TensorType:
    trace, id = key
    first = 0
    for code, _ in trace.code:
        outputs = RULES[code >> 1].outputs
        if id < first + len(outputs):
            return outputs[id - first]
        first += len(outputs)
    raise AssertionError(f"value {id} is not in the trace")


def _lookup(key: Key) -> Any:
    """Give the value of a key as an operand; one that no vjp should read is only a type."""
    trace, id = key
    type = _type_at(key)
    if not trace.sealed:
        ref = ValueRef(trace, id, type)
        ref._rg = id in trace.leaves or id in trace.links or requires(trace, (id,))[0]
        return ref
    saved = trace.saved.get(id)
    if isinstance(saved, Buffer):
        leaf = trace.leaves.get(id)
        tensor = leaf[0]() if leaf is not None else None
        if tensor is not None and tensor._buffer is saved:
            return tensor
        out = from_buffer(saved)
        if requires(trace, (id,))[0]:
            out._rg, out._leaf, out._tape = True, False, key
        return out
    return Number(saved, type.dtype) if saved is not None else ValueRef(trace, -1, type)


# -- hooks


_hook_ids = itertools.count()


class RemovableHandle:
    """Removes a hook."""

    def __init__(self, tensor: Tensor, number: int) -> None:
        self._tensor, self._number = weakref.ref(tensor), number

    def remove(self) -> None:
        tensor = self._tensor()
        if tensor is not None and tensor._hooks:
            tensor._hooks.pop(self._number, None)


def register_hook(self: Tensor, hook: Hook) -> RemovableHandle:
    """Call ``hook(grad)`` when the gradient of this tensor is known; what it returns, if not None, replaces it."""
    if not self._rg:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if self._hooks is None:
        self._hooks = {}
    number = next(_hook_ids)
    self._hooks[number] = hook
    if not self._leaf:
        key = _key_of(self)
        if key is not None:
            key[0].hooks = True
            key[0].hooked[key[1]] = weakref.ref(self)
    return RemovableHandle(self, number)


def _call_hook(hook: Hook, g: Any) -> Any:
    out = hook(g)
    if out is None:
        return g
    if out._type is not g._type:
        raise RuntimeError(f"hook must return a gradient of type {g._type!r}, got {out._type!r}")
    return out


def _with_hooks(nodes: list[_Entry], recording: _Recording) -> list[Any]:
    """Make the gradient of each hooked value pass through its hooks."""
    out: list[Any] = []
    for node in nodes:
        for key in node.outputs:
            ref = key[0].hooked.get(key[1])
            tensor = ref() if ref is not None else None
            if tensor is not None and tensor._hooks:
                node = _hooked_entry(node, tensor, recording)
        out.append(node)
    return out


def _hooked_entry(node: _Entry, tensor: Tensor, recording: _Recording) -> Any:
    """Give the entry with a vjp that passes the gradient of ``tensor`` through its hooks first."""
    op = node.op

    def vjp(g: Any, y: Any, *inputs: Any, **attrs: Any) -> Any:
        for hook in list((tensor._hooks or {}).values()):
            g = _call_hook(hook, recording.force(g))
        assert op.vjp is not None
        return op.vjp(g, y, *inputs, **attrs)

    return replace(node, op=replace(op, vjp=vjp))


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of a tensor that is not a leaf in ``.grad``."""
    if not self._rg:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if self._leaf or self._retains:
        return
    self._retains = True
    key = _key_of(self)
    if key is not None:
        key[0].leaves[key[1]] = (weakref.ref(self), self._version)

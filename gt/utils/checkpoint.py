"""Recompute in the backward instead of keeping activations. Source: torch.utils.checkpoint.

Owns: ``Region``, the entries that a checkpointed call recorded, and recording them once more. The function's Python runs once.
Next: ``gt.function`` (how the call stands on the tape), ``gt.ir.ops.grad`` (``fence``, which keeps the second run apart).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gt import autograd
from gt.autograd.several import before_hooks
from gt.buffers import Buffer
from gt.expand import type_at
from gt.grad_mode import set_grad_enabled
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.operand import Number
from gt.random import Drawn
from gt.recording import handle_of, record, tensor_of
from gt.residuals import requires
from gt.rule import RULES
from gt.tape import key_of
from gt.trace import Trace, current, state

ALIAS, FENCE = OPS["alias"], OPS["fence"]


class Region:
    """Entries ``start`` to ``stop`` of a trace, and the tensors they read from elsewhere."""

    def __init__(self, trace: Trace, start: int, first: int, outputs: Sequence[int]) -> None:
        self.code, self.where = trace.code[start:], trace.where[start:]
        self.signals = [trace.signal_at(start + i) for i in range(len(self.code))] if trace.marks else None
        self.custom = {e - start: trace.custom.pop(e) for e in range(start, len(trace.code)) if e in trace.custom}
        self.hooked = {id: hooks for id, hooks in trace.hooked.items() if id >= first}
        self.first, self.outputs = first, outputs
        self.sources: dict[int, Handle | Number] = {}
        self.drawn: dict[int, Callable[[], Any]] = {}  # numbers that gt.jit draws anew at each replay
        self.versions: dict[int, int] = {}
        self._capture(trace)

    def _capture(self, trace: Trace) -> None:
        """Find what the entries that the outputs need read from elsewhere; the others are dropped."""
        needed, kept = set(self.outputs), []
        at = trace.size
        for i in range(len(self.code) - 1, -1, -1):
            rule = RULES[self.code[i][0] >> 1]
            at -= len(rule.outputs)
            if rule.op is not None and any(at + k in needed for k in range(len(rule.outputs))):
                needed.update(self.code[i][1])
                kept.append((i, at))
        self.entries = kept[::-1]
        made = {at + k for i, at in kept for k in range(len(RULES[self.code[i][0] >> 1].outputs))}
        buffers = {trace.input_ids[b.id]: b for b in trace.inputs}
        for id in sorted(needed - made):
            self.sources[id] = source = _source(trace, id, buffers.get(id))
            if isinstance(source, Handle):
                self.versions[id] = source._version
            elif state.recorder is not None:
                place = trace.scalar_ids.index(id)
                for start, stop, refresh in state.recorder.numbers.get(trace, ()):
                    if start <= place < stop and isinstance(refresh, Drawn):
                        self.drawn[id] = partial(refresh.again, place - start)
        for _, ctx, _ in self.custom.values():  # a checkpoint within this one keeps nothing that is computed again
            if (inner := getattr(ctx, "region", None)) is not None:
                inner.sources = {id: None if id in made else t for id, t in inner.sources.items()}

    @property
    def differentiable(self) -> list[Handle]:
        return [t for t in self.sources.values() if isinstance(t, Handle) and t._rg]

    def again(self, after: Sequence[Any], twice: bool) -> tuple[list[Any], list[Any]]:
        """Record the entries once more, after the gradients ``after`` are known; give outputs and what stands for the sources."""
        values: dict[int, Any] = {}
        wrt: list[Any] = []
        for id, source in self.sources.items():
            values[id] = source
            value: Any = source
            if isinstance(source, Handle):
                if source._version != self.versions[id]:
                    raise RuntimeError(
                        "one of the variables needed for gradient computation has been modified by an inplace operation: "
                        f"a tensor of type {source._type!r} that a checkpoint recomputes from was overwritten since"
                    )
                if twice or not (source._leaf and source._rg):  # parameters are there anyway
                    with set_grad_enabled(state.grad and twice):
                        for g in after:
                            value = record(FENCE, (value, g))
                    if source._rg and not twice:
                        value.requires_grad_()
                    values[id] = value
                if source._rg:
                    wrt.append(value)
        for i, at in self.entries:
            self._record_again(i, at, values)
        return [values[id] for id in self.outputs], wrt

    def _record_again(self, i: int, at: int, values: dict[int, Any]) -> None:
        id, operands = self.code[i]
        rule = RULES[id >> 1]
        assert rule.op is not None
        if self.signals is not None:
            state.trace.mark(self.signals[i])
        if state.recorder is not None:
            place = len(state.trace.scalars)
            for number in (n for n in operands if isinstance(values[n], Number)):
                if number in self.drawn:
                    state.recorder.numbers.setdefault(state.trace, []).append((place, place + 1, self.drawn[number]))
                place += 1
        with set_grad_enabled(state.grad and bool(id & 1)):
            out = record(rule.op, tuple(values[n] for n in operands), rule.attrs)
        trace = state.trace
        trace.where[-1] = self.where[i]
        if i in self.custom:
            trace.custom[len(trace.code) - 1] = self._custom(i, values)
            trace.hooks = True
        for k, value in enumerate(out if isinstance(out, tuple) else (out,)):
            values[at + k] = value
            if at + k in self.hooked:
                trace.hooks, trace.hooked[value._index] = True, self.hooked[at + k]

    def _custom(self, i: int, values: dict[int, Any]) -> Any:
        """Give the context of a function's entry; a checkpoint within this one recomputes from the values recomputed here."""
        cls, ctx, tensors = self.custom[i]
        if cls is not _Checkpoint:
            return cls, ctx, tensors
        inner = object.__new__(Region)
        inner.__dict__.update(ctx.region.__dict__)
        inner.sources = {id: values.get(id, t) for id, t in ctx.region.sources.items()}
        inner.versions = {id: t._version for id, t in inner.sources.items() if isinstance(t, Handle)}
        fresh = autograd.FunctionCtx(ctx.needs_input_grad)
        fresh.region = inner  # type: ignore[attr-defined]
        fresh._once = True
        fresh.set_materialize_grads(False)
        return cls, fresh, tensors


def _source(trace: Trace, id: int, buffer: Buffer | None) -> Handle | Number:
    """Give a tensor, or number, for a value that is not of the region."""
    leaf = trace.leaves.get(id)
    tensor = leaf[0]() if leaf is not None else None
    if tensor is not None and tensor._leaf:
        return tensor  # type: ignore[no-any-return]
    if id in trace.scalar_ids:
        return Number(trace.scalars[trace.scalar_ids.index(id)], type_at((trace, id)).dtype)
    if buffer is not None:
        out = tensor_of(buffer)
        if id in trace.links:
            out._rg, out._leaf, out._tape = True, False, trace.links[id]
        return out
    made = handle_of(trace, id, type_at((trace, id)))
    made._rg = requires(trace, (id,))[0]
    made._leaf = not made._rg
    trace.handles.append(made)
    return made


class _Checkpoint(autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Region, outputs: Sequence[Any], *sources: Any) -> Any:
        ctx.region, ctx._once = region, True
        ctx.set_materialize_grads(False)
        return tuple(record(ALIAS, (t,)) for t in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        twice, signal = autograd.is_grad_enabled(), state.trace.marks[-1][1] if state.trace.marks else None
        given = [g for g in grads if g is not None]
        with autograd.enable_grad():
            outputs, wrt = ctx.region.again(given, twice)
            state.trace.mark(signal)
            pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None and o._rg]
            found = before_hooks([o for o, _ in pairs], [g for _, g in pairs], wrt, twice, twice)
        return None, None, *found


def checkpoint(
    function: Callable[..., Any], *args: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True,
    context_fn: Callable[[], Any] | None = None, determinism_check: str = "default", debug: bool = False, early_stop: bool = True,
    **kwargs: Any,
) -> Any:  # fmt: skip
    """Run ``function(*args, **kwargs)`` without keeping its activations; the backward computes them again.

    The function itself is called once: what it recorded is run again, with the same random numbers, so ``preserve_rng_state`` and
    what follows it change nothing, and running statistics are updated once. Its work is kept, as without a checkpoint, if it reads
    a value. Errors: NotImplementedError for ``context_fn``.
    """
    if context_fn is not None:
        raise NotImplementedError("checkpoint: context_fn (selective checkpointing) is not supported: everything is recomputed")
    if not autograd.is_grad_enabled():
        return function(*args, **kwargs)
    trace = current()
    start, first = len(trace.code), trace.size
    result = function(*args, **kwargs)
    outputs: dict[int, Handle] = {}
    _each(result, lambda t: _note(t, trace, first, outputs))
    if state.trace is not trace or trace.sealed or not outputs:
        return result
    region = Region(trace, start, first, list(outputs))
    found = _Checkpoint.apply(region, list(outputs.values()), *region.differentiable)
    stand_in = dict(zip(outputs, found, strict=True))
    return _each(result, lambda t: stand_in.get(key[1], t) if (key := key_of(t)) is not None and key[0] is trace else t)


def _note(t: Handle, trace: Trace, first: int, outputs: dict[int, Handle]) -> Handle:
    key = key_of(t)
    if t._rg and key is not None and key[0] is trace and key[1] >= first and key[1] not in trace.leaves:
        outputs[key[1]] = t
    return t


def _each(value: Any, change: Callable[[Handle], Handle]) -> Any:
    """Give a result with its tensors changed."""
    if isinstance(value, Handle):
        return change(value)
    if isinstance(value, dict):
        return type(value)({k: _each(v, change) for k, v in value.items()})
    if isinstance(value, tuple | list):
        items = [_each(v, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def checkpoint_sequential(
    functions: Any, segments: int, input: Any, use_reentrant: bool | None = None, preserve_rng_state: bool = True
) -> Any:
    """Run modules in order in ``segments`` pieces, all but the last of them in a checkpoint."""
    modules = list(functions.children()) if hasattr(functions, "children") else list(functions)
    size = max(len(modules) // segments, 1)
    cuts = [*range(0, len(modules), size)][:segments]

    def run(part: list[Any], x: Any) -> Any:
        for module in part:
            x = module(x)
        return x

    for at, end in zip(cuts, [*cuts[1:], len(modules)], strict=True):
        part = modules[at:end]
        input = run(part, input) if end == len(modules) else checkpoint(partial(run, part), input)
    return input

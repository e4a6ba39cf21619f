"""``autograd.Function``: a user's own forward and backward.

Owns: the context object and how a call becomes one tape entry. Its backward is Python, so a tape with one is expanded on the
client. Next: ``expand`` (which calls the backward).
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gt.grad_mode import no_grad
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import TensorType
from gt.recording import handle_of, record, tensor_of
from gt.tape import Key, Tape, free
from gt.trace import holding, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

ALIAS, BOUNDARY, FULL, COPY = OPS["alias"], OPS["boundary"], OPS["full"], OPS["copy"]


@dataclass
class _Saved:
    """A tensor kept for a backward, and the version it had. ``output``: which of the tape entry's outputs it is.

    An output is kept as a value without history and named weakly: it would hold the tape that holds this.
    """

    tensor: Handle
    root: weakref.ref[Handle]
    version: int
    output: int | None = None

    def unpack(self, keys: Sequence[Key]) -> Handle:
        """Give the tensor again. ``keys``: where the outputs stand on the tape. Errors: RuntimeError if it has been changed in place."""
        root = self.root()
        if root is not None and root._version != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a tensor of type "
                f"{self.tensor._type!r} that a Function saved for its backward is at version {root._version}; expected version "
                f"{self.version} instead"
            )
        if self.output is None:
            return self.tensor
        return root if root is not None else _with_history(self.tensor, keys[self.output])


def _with_history(value: Handle, key: Key) -> Handle:
    """Give a tensor for an output of a tape entry, by its value."""
    trace, id = key
    if not trace.sealed:
        out = handle_of(trace, id, value._type)
        trace.handles.append(out)
    else:
        assert value._buffer is not None
        out = tensor_of(value._buffer)
        out._tape = key
    out._rg, out._leaf = True, False
    return out


def _root(t: Handle) -> Handle:
    return t if t._base is None else t._root


class FunctionCtx:
    """What a forward leaves for its backward. ``needs_input_grad``: for each argument, whether its gradient is wanted."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._given: tuple[Any, ...] = ()
        self._saved: list[_Saved | None] | None = None  # once the forward is done
        self._once = False  # whether its backward runs only once, unless retained
        self._dirty: tuple[Any, ...] = ()
        self._non_differentiable: set[int] = set()
        self._materialize = True
        self._outputs: list[int | TensorType | None] | None = None  # by output: which of the tape entry's, or what type; see ``call_backward``
        self._keys: Sequence[Key] = ()  # while the backward runs

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the backward, which finds them in ``saved_tensors``."""
        for t in tensors:
            if t is not None and not isinstance(t, Handle):
                raise TypeError(f"save_for_backward can only save variables, but argument 0 is of type {type(t).__name__}")
        self._given, self._once = tensors, bool(tensors)

    save_for_forward = save_for_backward

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Give what was saved. Errors: RuntimeError if it was changed in place since, or freed by a backward."""
        if self._saved is None:
            return self._given
        return tuple(s.unpack(self._keys) if s is not None else None for s in self._saved)

    def _keep(self, args: Sequence[Any], outputs: Sequence[Any], results: Sequence[Any]) -> None:
        """Pack what is saved, now that the forward is done. ``results``: what is given in place of ``outputs``."""
        self._saved = []
        for t in self._given:
            if t is None:
                self._saved.append(None)
                continue
            at = next((i for i, o in enumerate(outputs) if o is t), None)
            kind = self._outputs[at] if at is not None and self._outputs is not None else None
            if at is not None and isinstance(kind, int) and not any(a is t for a in args):
                with no_grad():
                    value = record(COPY if t._base is not None else ALIAS, (t,))
                self._saved.append(_Saved(value, weakref.ref(results[at]), results[at]._version, kind))
            else:
                self._saved.append(_Saved(t, weakref.ref(_root(t)), _root(t)._version))
        self._given = ()

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Say that these outputs pass no gradient."""
        self._non_differentiable |= {id(t) for t in tensors}

    def mark_dirty(self, *tensors: Tensor) -> None:
        """Say that the forward changed these inputs in place."""
        self._dirty = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Say whether a missing gradient reaches the backward as zeros (the default) or as None."""
        self._materialize = value


class Function:
    """Subclass it with static methods ``forward(ctx, *args)`` and ``backward(ctx, *grads)``; call ``apply``."""

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("You must implement the forward function for custom autograd.Function.")

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> Any:
        raise NotImplementedError("setup_context is not implemented.")

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Any) -> Any:
        raise NotImplementedError("You must implement either the backward or vjp method for your custom autograd.Function to use it with backward mode AD.")

    vjp = backward  # its other name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "Legacy autograd function with non-static forward method is deprecated. Please use new-style autograd function with static "
            "forward method."
        )

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Run the forward and put the call on the tape."""
        own_context = cls.setup_context is not Function.setup_context
        if kwargs or own_context:
            args = _bound(cls, args, kwargs, own_context)
        ctx = FunctionCtx(tuple(isinstance(a, Handle) and a._rg for a in args))
        with no_grad():
            if own_context:
                out = cls.forward(*args)
                cls.setup_context(ctx, args, out)
            else:
                out = cls.forward(ctx, *args)
        outputs = list(out) if isinstance(out, tuple) else [out]
        if not state.grad or not any(ctx.needs_input_grad):
            for i, o in enumerate(outputs):
                if any(o is a for a in args) and isinstance(o, Handle) and not any(o is t for t in ctx._dirty):
                    outputs[i] = o.detach()
            return tuple(outputs) if isinstance(out, tuple) else outputs[0]
        if any(t._rg and t._leaf for t in ctx._dirty):
            raise RuntimeError("a leaf Variable that requires grad has been used in an in-place operation.")
        _put_on_tape(cls, ctx, args, outputs)
        return tuple(outputs) if isinstance(out, tuple) else outputs[0]


def _bound(cls: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any], own_context: bool) -> tuple[Any, ...]:
    """Give the arguments of a call in the order of the forward's parameters, defaults included where torch does."""
    bound = inspect.signature(cls.forward).bind(*(() if own_context else (None,)), *args, **kwargs)
    if own_context:
        bound.apply_defaults()
        return bound.args
    return bound.args[1:]


def _put_on_tape(cls: type[Function], ctx: FunctionCtx, args: Sequence[Any], outputs: list[Any]) -> None:
    """Record the boundary, and let ``outputs`` be what it gives."""
    tensors, raw = [a for a in args if isinstance(a, Handle)], list(outputs)
    kept: list[int] = []
    ctx._outputs = []
    for i, o in enumerate(outputs):
        if not isinstance(o, Handle):
            ctx._outputs.append(None)
        elif id(o) in ctx._non_differentiable or not o._type.dtype.is_differentiable:
            ctx._outputs.append(o._type)
        else:
            ctx._outputs.append(len(kept))
            kept.append(i)
    if not kept:
        return
    with holding() as trace:
        got = record(BOUNDARY, (*tensors, *[outputs[i] for i in kept]), (("num_inputs", len(tensors)),))
        got = got if isinstance(got, tuple) else (got,)
        trace.custom[len(trace.code) - 1] = (cls, ctx, tuple(isinstance(a, Handle) for a in args))
        trace.hooks = True
        for i, t in zip(kept, got, strict=True):
            mine = raw[i]
            dirty = any(mine is d for d in ctx._dirty)
            if dirty and mine._base is not None:
                mine._assign(t)
            elif dirty or (mine._base is None and not any(mine is a for a in args)):  # itself, as whoever holds it expects
                mine._take(t) if dirty else mine._adopt(t)
                mine._rg, mine._leaf = t._rg, t._leaf
            else:
                outputs[i] = t
        ctx._keep(args, raw, outputs)


def call_backward(
    entry: tuple[Any, FunctionCtx, tuple[bool, ...]], gs: Sequence[Any], types: Sequence[TensorType], keys: Sequence[Key]
) -> tuple[Any, ...]:
    """Run a function's backward on the gradients of its outputs; give one gradient for each operand of its tape entry.

    ``types``: of the operands; ``keys``: where the outputs stand on the tape.
    """
    cls, ctx, tensors = entry
    backward = cls.backward
    if getattr(cls, "vjp", Function.vjp) is not Function.vjp:
        if backward is not Function.backward:
            raise RuntimeError(
                "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement one of them."
            )
        backward = cls.vjp
    name = f"{cls.__name__}Backward"
    given = [gs[o] if isinstance(o, int) else _no_gradient(o, ctx._materialize) for o in ctx._outputs] if ctx._outputs else gs
    ctx._keys = keys
    try:
        got = backward(ctx, *given)
    finally:
        ctx._keys = ()
    grads = got if isinstance(got, tuple) else (got,)
    if len(grads) < len(tensors) or any(g is not None for g in grads[len(tensors) :]):
        raise RuntimeError(
            f"function {name} returned an incorrect number of gradients (expected {len(tensors)}, got {len(grads)})"
        )
    found: list[Any] = []
    for i, (g, is_tensor, needed) in enumerate(zip(grads, tensors, ctx.needs_input_grad, strict=False)):
        if g is not None and not isinstance(g, Handle):
            raise RuntimeError(f"expected Variable or None (got {type(g).__name__})")
        if not is_tensor and g is not None:
            raise RuntimeError(
                f"function {name} returned a gradient different than None at position {i + 1}, but the corresponding forward input "
                "was not a Variable"
            )
        if is_tensor:
            found.append(_fitted(g, types[len(found)], name, len(found)) if g is not None and needed else None)
    return (*found, *(None,) * len(keys))


def _no_gradient(type: TensorType | None, materialize: bool) -> Any:
    """Give what a backward gets for an output that passes no gradient."""
    if type is None or not materialize:
        return None
    return record(FULL, (), (("shape", type.shape), ("value", 0), ("dtype", type.dtype)))


def _fitted(g: Any, type: TensorType, name: str, at: int) -> Any:
    """Give a gradient in the shape and dtype of its operand: summed where it broadcast. Errors: RuntimeError if it does not fit."""
    shape, want = g._type.shape, type.shape
    lead = len(shape) - len(want)
    if lead < 0 or any(n != m and n != 1 for n, m in zip(want, shape[lead:], strict=True)):
        raise RuntimeError(
            f"Function {name} returned an invalid gradient at index {at} - got {list(shape)} but expected shape compatible with {list(want)}"
        )
    dims = (*range(lead), *(lead + d for d, n in enumerate(want) if n == 1 and shape[lead + d] != 1))
    if dims:
        g = g.sum(dims).reshape(want)
    return g.to(type.dtype)


def free_tape(tape: Tape) -> None:
    """Let go of what a backward's entries saved; functions that saved nothing can run theirs again."""
    again = [(trace, {e: c for e, c in trace.custom.items() if not c[1]._once}) for trace in tape.entries if trace.custom]
    free(tape)
    for trace, custom in again:
        trace.custom.update(custom)

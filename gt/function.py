"""``autograd.Function``: a user's own forward and backward.

Owns: the context object and how a call becomes one tape entry. Its backward is Python, so a tape with one is expanded on the
client. Next: ``expand`` (which calls the backward).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.handle import Handle, no_tape
from gt.ir.ops import OPS
from gt.trace import holding, record, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

BOUNDARY = OPS["boundary"]


class FunctionCtx:
    """What a forward leaves for its backward. ``needs_input_grad``: for each argument, whether its gradient is wanted."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self._saved: tuple[Any, ...] = ()
        self._dirty: tuple[Any, ...] = ()
        self._non_differentiable: set[int] = set()
        self._materialize = True

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the backward, which finds them in ``saved_tensors``."""
        self._saved = tensors

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        return self._saved

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
        raise NotImplementedError("You must implement the backward function for custom autograd.Function.")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run the forward and put the call on the tape."""
        ctx = FunctionCtx(tuple(isinstance(a, Handle) and a._rg for a in args))
        with no_tape():
            if cls.setup_context is not Function.setup_context:
                out = cls.forward(*args)
                cls.setup_context(ctx, args, out)
            else:
                out = cls.forward(ctx, *args)
        outputs = out if isinstance(out, tuple) else (out,)
        tensors = [a for a in args if isinstance(a, Handle)]
        if not state.grad or not any(ctx.needs_input_grad):
            return out
        kept = [i for i, o in enumerate(outputs) if isinstance(o, Handle) and id(o) not in ctx._non_differentiable]
        with holding() as trace:
            got = record(BOUNDARY, (*tensors, *[outputs[i] for i in kept]), (("num_inputs", len(tensors)),))
            got = got if isinstance(got, tuple) else (got,)
            trace.custom[len(trace.code) - 1] = (cls, ctx, tuple(isinstance(a, Handle) for a in args))
            trace.hooks = True
            results = list(outputs)
            for i, t in zip(kept, got, strict=True):
                results[i] = t
            for t in ctx._dirty:
                at = next((i for i, o in enumerate(outputs) if o is t), None)
                if at is not None:
                    t._take(results[at])
                    t._rg, t._leaf = results[at]._rg, results[at]._leaf
                    results[at] = t
        return tuple(results) if isinstance(out, tuple) else results[0]


def call_backward(entry: tuple[Any, FunctionCtx, tuple[bool, ...]], gs: Sequence[Any], num_outputs: int) -> tuple[Any, ...]:
    """Run a function's backward on the gradients of its outputs; give one gradient for each operand of its tape entry."""
    cls, ctx, tensors = entry
    got = cls.backward(ctx, *gs)
    grads = got if isinstance(got, tuple) else (got,)
    if len(grads) < len(tensors):
        raise RuntimeError(
            f"function {cls.__name__}Backward returned an incorrect number of gradients (expected {len(tensors)}, got {len(grads)})"
        )
    if any(g is not None for g in grads[len(tensors) :]):
        raise RuntimeError(
            f"function {cls.__name__}Backward returned an incorrect number of gradients (expected {len(tensors)}, got {len(grads)})"
        )
    return (*(g for g, is_tensor in zip(grads, tensors, strict=False) if is_tensor), *(None,) * num_outputs)

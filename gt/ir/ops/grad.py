"""The gradient node: what ``loss.backward()`` records. ``gt.passes.autodiff`` expands it with the ops' vjps.

Owns: the op's declaration. Must not know: how gradients are found.
"""

from __future__ import annotations

from collections.abc import Sequence

from gt.ir import factors as fx
from gt.ir.opdef import op
from gt.ir.types import Shape, ShapeError, TensorType, TypeMismatch


def _grad(loss: TensorType, *rest: TensorType, has_seed: bool = False) -> tuple[TensorType, ...]:
    if not loss.dtype.is_differentiable:
        raise TypeMismatch(f"grad: only floating values have gradients, the loss is {loss!r}")
    if has_seed:
        if not rest or rest[0] is not loss:
            raise ShapeError(f"grad: the seed must be of the loss's type {loss!r}, got {rest[0] if rest else 'none'!r}")
        rest = rest[1:]
    elif loss.shape:
        raise ShapeError("grad can be implicitly created only for scalar outputs")
    for i, wrt in enumerate(rest):
        if not wrt.dtype.is_differentiable:
            raise TypeMismatch(f"grad: only floating values have gradients, operand {i + 1 + has_seed} is {wrt!r}")
    return rest


grad = op(
    "grad", "loss *rest",
    doc="Gradient of loss for each further operand, through the taped nodes before it: [], ... -> like each. "
        "With has_seed, the first further operand is the gradient of the loss itself.",
    infer=_grad,
    numpy=None,
    effect="grad",
)  # fmt: skip


def _boundary(*types: TensorType, num_inputs: int) -> tuple[TensorType, ...]:
    return types[num_inputs:]


boundary = op(
    "boundary", "*operands",
    doc="Where a user's autograd.Function stands on the tape: num_inputs operands, then its outputs, which it gives back. "
        "Its gradient is the function's own backward, run by the client; in a graph it is nothing.",
    infer=_boundary,
    numpy=lambda *arrays, num_inputs: arrays[num_inputs:],
    decompose=lambda inputs, attrs: tuple(inputs[attrs["num_inputs"] :]),
)  # fmt: skip


def _fence_factors(operands: Sequence[Shape], results: Sequence[Shape], attrs: object) -> fx.Rule:
    """The dims of ``x`` pass; those of ``after`` are split as they are, with ``x``'s where the sizes are equal."""
    x, after = operands
    mine: list[fx.DimFactors] = [(f"x{d}",) for d in range(len(x))]
    others: list[fx.DimFactors] = [(f"x{d}",) if x[d : d + 1] == (size,) else (f"g{d}",) for d, size in enumerate(after)]
    sizes = {f: n for dims, shape in ((mine, x), (others, after)) for (f,), n in zip(dims, shape, strict=True)}
    return fx.finish([mine, others], [mine], sizes, {})


fence = op(
    "fence", "x after",
    doc="The value of x, once after is known: what is computed from it is computed again then, and merges with nothing.",
    infer=lambda x, after: x,
    numpy=lambda x, after: x,
    torch="{x}.view_as({x})",
    vjp=lambda g, y, x, after: (g, None),
    factors=_fence_factors,
    view=True,
)  # fmt: skip

__all__ = ["boundary", "fence", "grad"]

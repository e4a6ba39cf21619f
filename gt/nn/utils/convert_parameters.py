"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from gt.autograd import no_grad
from gt.functions.shape import cat
from gt.handle import Handle
from gt.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Give all parameters, flattened and joined."""
    return cat([p.reshape(-1) for p in parameters])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the parts of a vector over the parameters."""
    if not isinstance(vec, Handle):
        raise TypeError(f"expected torch.Tensor, but got: {type(vec).__name__}")
    at = 0
    with no_grad():
        for p in parameters:
            p.copy_(vec.detach().narrow(0, at, p.numel()).reshape(p.shape))
            at += p.numel()

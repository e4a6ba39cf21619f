"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable

from gt.autograd import no_grad
from gt.functions.promote import need_tensor
from gt.functions.shape import cat
from gt.handle import Handle
from gt.ir.types import got
from gt.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Give all parameters, flattened and joined."""
    given = list(parameters)
    for i, p in enumerate(given):
        need_tensor("parameters_to_vector", **{f"parameters[{i}]": p})
    return cat([p.reshape(-1) for p in given])


def vector_to_parameters(vec: Tensor, parameters: Iterable[Tensor]) -> None:
    """Write the parts of a vector over the parameters."""
    if not isinstance(vec, Handle):
        raise TypeError(f"expected torch.Tensor, but got: {got(vec)}")
    at = 0
    with no_grad():
        for p in parameters:
            p.copy_(vec.detach().narrow(0, at, p.numel()).reshape(p.shape))
            at += p.numel()

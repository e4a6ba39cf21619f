"""Parameter initialisation with torch's names and formulas. Source: torch.nn.init."""

from __future__ import annotations

import functools
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.autograd import no_grad
from gt.functions.create import eye as identity
from gt.functions.create import from_numpy
from gt.functions.draw import rand
from gt.functions.promote import refuse_torch
from gt.functions.reduce import argsort
from gt.ir.ops import OPS
from gt.ir.types import KindError, float64, scalar_type
from gt.naming import named
from gt.recording import record

if TYPE_CHECKING:
    from gt.random import Generator
    from gt.tensor import Tensor

LINEAR = {"linear", "sigmoid"} | {f"conv{t}{d}d" for t in ("", "_transpose") for d in (1, 2, 3)}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Give the recommended gain of a nonlinearity."""
    if nonlinearity in LINEAR:
        return 1
    if nonlinearity == "leaky_relu":
        if isinstance(param, bool) or not isinstance(param, int | float | None):
            raise ValueError(f"negative_slope {param} not a valid number")
        return math.sqrt(2.0 / (1 + (0.01 if param is None else param) ** 2))
    fixed = {"tanh": 5.0 / 3, "relu": math.sqrt(2.0), "selu": 3.0 / 4}
    if nonlinearity not in fixed:
        raise ValueError(f"Unsupported nonlinearity {nonlinearity}")
    return fixed[nonlinearity]


def _calculate_fan_in_and_fan_out(tensor: Tensor) -> tuple[int, int]:
    refuse_torch("_calculate_fan_in_and_fan_out", tensor)
    if tensor.dim() < 2:
        raise ValueError("Fan in and fan out can not be computed for tensor with fewer than 2 dimensions")
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _fan(tensor: Tensor, mode: str) -> int:
    if mode.lower() not in ("fan_in", "fan_out"):
        raise ValueError(f"Mode {mode.lower()} not supported, please use one of ['fan_in', 'fan_out']")
    return _calculate_fan_in_and_fan_out(tensor)[mode.lower() == "fan_out"]


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from [a, b)."""
    refuse_torch("uniform_", tensor)
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill with draws from a normal distribution."""
    refuse_torch("normal_", tensor)
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


def _check_real(name: str, tensor: Tensor) -> None:
    if tensor.dtype.kind != "f":
        raise KindError(f"\"{name}\" not implemented for '{scalar_type(tensor.dtype)}'")


def trunc_normal_(
    tensor: Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    generator: Generator | None = None,
) -> Tensor:
    """Fill from a normal distribution limited to [a, b] by drawing its quantiles uniformly."""
    refuse_torch("trunc_normal_", tensor)
    _check_real("trunc_normal_", tensor)
    if mean < a - 2 * std or mean > b + 2 * std:
        warnings.warn(
            "mean is more than 2 std from [a, b] in nn.init.trunc_normal_. The distribution of values may be incorrect.",
            stacklevel=2,
        )
    cdf = lambda x: (1.0 + math.erf(x / math.sqrt(2.0))) / 2.0  # noqa: E731
    low, high = cdf((a - mean) / std), cdf((b - mean) / std)
    with no_grad():
        u = rand(tensor.shape, dtype=float64, generator=generator) * (2 * high - 2 * low) + (2 * low - 1)
        normal = record(OPS["erfinv"], (u,))
        return tensor.copy_((normal * (std * math.sqrt(2.0)) + mean).clamp(a, b))  # in float64, rounded once


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with one value."""
    refuse_torch("constant_", tensor)
    with no_grad():
        return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with ones."""
    return constant_(tensor, 1.0)


def eye_(tensor: Tensor) -> Tensor:
    """Fill a matrix with the identity."""
    refuse_torch("eye_", tensor)
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    with no_grad():
        return tensor.copy_(identity(*tensor.shape))


def dirac_(tensor: Tensor, groups: int = 1) -> Tensor:
    """Fill a convolution's weight so that it gives its input channels."""
    refuse_torch("dirac_", tensor)
    if tensor.dim() not in (3, 4, 5):
        raise ValueError("Only tensors with 3, 4, or 5 dimensions are supported")
    shape = tuple(tensor.shape)
    if shape[0] % groups:
        raise ValueError("dim 0 must be divisible by groups")
    values = np.zeros(shape, np.float32)
    per_group = shape[0] // groups
    for g in range(groups):
        for d in range(min(per_group, shape[1])):
            values[(g * per_group + d, d, *(n // 2 for n in shape[2:]))] = 1
    with no_grad():
        return tensor.copy_(from_numpy(values))


def xavier_uniform_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill uniformly so that variance passes both ways. Source: Glorot and Bengio 2010."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Tensor, gain: float = 1.0, generator: Generator | None = None) -> Tensor:
    """Fill normally so that variance passes both ways. Source: Glorot and Bengio 2010."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def _empty(tensor: Tensor) -> bool:
    if 0 not in tensor.shape:
        return False
    warnings.warn("Initializing zero-element tensors is a no-op", stacklevel=3)
    return True


def kaiming_uniform_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill uniformly so that variance passes a rectifier. Source: He et al. 2015."""
    if _empty(tensor):
        return tensor
    bound = math.sqrt(3.0) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


def kaiming_normal_(
    tensor: Tensor,
    a: float = 0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Generator | None = None,
) -> Tensor:
    """Fill normally so that variance passes a rectifier. Source: He et al. 2015."""
    if _empty(tensor):
        return tensor
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


def orthogonal_(tensor: Tensor, gain: float = 1, generator: Generator | None = None) -> Tensor:
    """Fill with an orthogonal matrix (dims after the first flattened). Flushes. Source: Saxe et al. 2013."""
    refuse_torch("orthogonal_", tensor)
    if tensor.dim() < 2:
        raise ValueError("Only tensors with 2 or more dimensions are supported")
    if not tensor.numel():
        return tensor
    _check_real("orthogonal_", tensor)
    rows = tensor.shape[0]
    with no_grad():
        drawn: Any = tensor.detach().clone().normal_(generator=generator).reshape(rows, -1)._read()
        flat = drawn.T if rows < drawn.shape[1] else drawn
        q, r = np.linalg.qr(flat.astype(np.float64))
        q = q * np.sign(np.diag(r))
        q = q.T if rows < drawn.shape[1] else q
        return tensor.copy_(from_numpy(np.ascontiguousarray(q) * gain).reshape(tensor.shape))


def sparse_(tensor: Tensor, sparsity: float, std: float = 0.01, generator: Generator | None = None) -> Tensor:
    """Fill a matrix normally, with a share of each column 0. Source: Martens 2010."""
    refuse_torch("sparse_", tensor)
    if tensor.dim() != 2:
        raise ValueError("Only tensors with 2 dimensions are supported")
    zeros = math.ceil(sparsity * tensor.shape[0])
    with no_grad():
        tensor.normal_(0, std, generator=generator)
        rank = argsort(rand(tensor.shape, generator=generator), 0)
        return tensor.copy_(tensor.masked_fill(rank < zeros, 0))


def _renamed(function: Any) -> Any:
    """Give an initialiser under its old name, without the underscore, which warns."""
    old = function.__name__[:-1]

    @functools.wraps(function)
    def deprecated(*args: Any, **kwargs: Any) -> Tensor:
        warnings.warn(f"`nn.init.{old}` is now deprecated in favor of `nn.init.{old}_`.", FutureWarning, stacklevel=2)
        return function(*args, **kwargs)

    return named(deprecated, old)


uniform, normal, constant, eye, dirac = map(_renamed, (uniform_, normal_, constant_, eye_, dirac_))  # type: ignore[assignment]
xavier_uniform, xavier_normal, kaiming_uniform = map(_renamed, (xavier_uniform_, xavier_normal_, kaiming_uniform_))
kaiming_normal, orthogonal, sparse = map(_renamed, (kaiming_normal_, orthogonal_, sparse_))

__all__ = [
    "calculate_gain", "constant_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_", "orthogonal_",
    "sparse_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip

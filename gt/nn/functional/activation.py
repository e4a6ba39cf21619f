"""Activation functions with torch's names, arguments and gradients.

Next: ``gt.ir.ops.special`` (meaning).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.functions import create, draw, pointwise, reduce
from gt.functions.numeric import no_complex_gradient
from gt.functions.promote import cast, check_fits, float_unary, wide
from gt.handle import Handle
from gt.ir.graph import Attrs
from gt.ir.ops import OPS
from gt.ir.types import CallError, DType, KindError, ShapeError, class_name, normalize_dim, scalar_type
from gt.naming import named
from gt.recording import record
from gt.versions import saves
from gt.views import check_separate

if TYPE_CHECKING:
    from gt.random import Generator
    from gt.tensor import Tensor


def written(input: Tensor, compute: Callable[[], Tensor], inplace: bool) -> Tensor:
    """Give what is computed of ``input``; with ``inplace``, as its new value."""
    if not inplace:
        return compute()
    check_separate(input)
    input._leave_hooks()
    return input._assign(compute())


KERNELS = {  # as torch's messages name them
    "gelu": "GeluKernelImpl", "selu": "elu_cpu", "celu": "elu_cpu", "logsigmoid": "log_sigmoid_cpu", "softshrink": "softshrink_check",
    "rrelu": "leaky_relu_cpu",
}  # fmt: skip


def need_floats(name: str, input: Tensor, kinds: str = "f") -> None:
    """Refuse dtypes that an activation is not made for, in torch's words."""
    if input._type.dtype.kind not in kinds:
        raise KindError(f"\"{KERNELS.get(name, f'{name}_cpu')}\" not implemented for '{scalar_type(input._type.dtype)}'")


def _activation(name: str, input: Tensor, attrs: Attrs = (), inplace: bool = False) -> Tensor:
    if not isinstance(input, Handle):
        raise TypeError(f"{name}(): argument 'input' must be Tensor, not {class_name(input)}")
    need_floats(name, input)
    return written(input, lambda: record(OPS[name], (input,), attrs), inplace)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """Give x where positive, else 0."""
    if input._type.dtype.kind == "b":
        raise CallError("Boolean inputs not supported for relu")
    return written(input, lambda: pointwise.relu(input), inplace)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """Give x limited to [0, 6]."""
    return hardtanh(input, 0.0, 6.0, inplace)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """Give x limited to [min_val, max_val]."""
    if min_val > max_val:
        raise ValueError("min_val cannot be greater than max_val")
    kind = input._type.dtype.kind
    if kind == "b":
        raise CallError("Bool inputs not supported for hardtanh")
    if kind == "c":
        raise NotImplementedError("clamp is not supported for complex types")
    if kind == "u" and min_val < 0:
        raise CallError("cannot do hardtanh on an unsigned type with negative limits")
    for limit in (min_val, max_val):
        check_fits(limit, input._type.dtype)
    if kind != "f":
        return written(input, lambda: pointwise.clamp(input, int(min_val), int(max_val)), inplace)
    return _activation("hardtanh", input, (("low", float(min_val)), ("high", float(max_val))), inplace)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """Give x times the normal distribution function of x; ``approximate``: "none" or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise CallError("approximate argument must be either none or tanh.")
    return _activation("gelu", input, (("approximate", approximate),))


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """Give x * sigmoid(x)."""
    need_floats("silu", input, "fc")
    if input._type.dtype.kind == "c":
        no_complex_gradient("silu", input)
        return written(input, lambda: input * pointwise.sigmoid(input), inplace)
    return written(input, lambda: float_unary(OPS["silu"], input), inplace)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """Give x * tanh(softplus(x))."""
    return _activation("mish", input, (), inplace)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Give x where positive, else alpha * (exp(x) - 1)."""
    return _activation("elu", input, (("alpha", float(alpha)),), inplace)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """Give the self-normalising elu."""
    return _activation("selu", input, (), inplace)


@saves("input")
def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """Give x where positive, else alpha * (exp(x / alpha) - 1)."""
    if alpha == 0:
        raise CallError("ZeroDivisionError: alpha cannot be 0 for CELU")
    need_floats("celu", input)
    return written(input, lambda: cast(elu(wide(input) / alpha) * alpha, input._type.dtype), inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """Give x where positive, else ``negative_slope * x``."""
    return _activation("leaky_relu", input, (("slope", float(negative_slope)),), inplace)


@saves("input! weight")
def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """Give x where positive, else x times a learned slope, one or one for each channel (dim 1)."""
    if weight.dtype is not input.dtype:
        raise CallError(f"prelu: Type promoting not supported. Got {scalar_type(input.dtype)} and {scalar_type(weight.dtype)}")
    need_floats("prelu", input)
    if weight.ndim > 1:
        raise CallError(f"prelu: Expected `weight` to be a scalar or 1D tensor, but got: ndim = {weight.ndim}")
    if weight.numel() != 1:
        if not input.ndim:
            raise CallError("Not allow zero-dim input tensor.")
        channels = input._type.shape[1] if input.ndim > 1 else 1
        if channels != weight.numel():
            raise CallError(
                f"Mismatch of parameter numbers and input channel size. Found parameter numbers = {weight.numel()} and channel size = {channels}."
            )
    if input.ndim > 1 or weight.ndim:
        weight = weight.reshape((-1, *(1,) * (input.ndim - 2)) if input.ndim > 1 else input._type.shape and (1,))
    return pointwise.where(input > 0, input, weight * input)


@saves(lambda given: "input" if given.get("training") else None)
def rrelu(input: Tensor, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, inplace: bool = False) -> Tensor:
    """Give a leaky relu whose slopes are drawn from [lower, upper) while training, else their middle."""
    if lower > upper:
        raise CallError("Lower bound should be less than or equal to the upper bound")
    if not training:
        return leaky_relu(input, (lower + upper) / 2, inplace)
    need_floats("rrelu", input)
    slope = draw.rand(input._type.shape, dtype=input.dtype) * (upper - lower) + lower
    return written(input, lambda: pointwise.where(input > 0, input, input * slope), inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """Give min(max(x + 3, 0), 6) / 6."""
    return _activation("hardsigmoid", input, (), inplace)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """Give x * hardsigmoid(x)."""
    return _activation("hardswish", input, (), inplace)


@saves("input!")
def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Give x, or 0 where |x| <= lambd."""
    need_floats("hardshrink", input)
    return pointwise.where(pointwise.logical_and(input >= -lambd, input <= lambd), 0, input)


@saves("input!")
def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """Give x moved by lambd towards 0, or 0 where |x| <= lambd."""
    if lambd < 0:
        raise CallError(f"lambda must be greater or equal to 0, but found to be {lambd}.")
    need_floats("softshrink", input)
    x = wide(input)
    return cast(pointwise.where(x > lambd, x - lambd, pointwise.where(x < -lambd, x + lambd, 0 * x)), input._type.dtype)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Give log(1 + exp(beta * x)) / beta; x itself where beta * x is above the threshold."""
    return _activation("softplus", input, (("beta", float(beta)), ("threshold", float(threshold))))


def logsigmoid(input: Tensor) -> Tensor:
    """Give log(sigmoid(x))."""
    return _activation("logsigmoid", input)


def softsign(input: Tensor) -> Tensor:
    """Give x / (1 + |x|)."""
    return input / (pointwise.abs(input) + 1)


def tanhshrink(input: Tensor) -> Tensor:
    """Give x - tanh(x)."""
    return input - pointwise.tanh(input)


@saves("input!")
def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """Give x where it is above the threshold, else ``value``."""
    need_floats("threshold", input, "uif")
    if input._type.dtype.kind != "f":
        threshold, value = int(threshold), int(value)
    return written(input, lambda: pointwise.where(input <= threshold, create.tensor(value, dtype=input._type.dtype), input), inplace)


@saves("input")
def glu(input: Tensor, dim: int = -1) -> Tensor:
    """Give the first half of a dim times the sigmoid of the second."""
    if not input.ndim:
        raise CallError("glu does not support 0-dimensional tensors")
    need_floats("glu", input)
    d = normalize_dim(dim, input.ndim)
    size = input._type.shape[d]
    if size % 2:
        raise ShapeError(f"Halving dimension must be even, but dimension {d} is size {size}")
    x = wide(input)
    return cast(x.narrow(d, 0, size // 2) * pointwise.sigmoid(x.narrow(d, size // 2, size // 2)), input._type.dtype)


def default_dim(name: str, ndim: int) -> int:
    """Give the dim torch assumes where none is given: 1, or 0 for 0, 1 or 3 dims."""
    warnings.warn(
        f"Implicit dimension choice for {name} has been deprecated. Change the call to include dim=X as an argument.",
        stacklevel=4,
    )
    return 0 if ndim in (0, 1, 3) else 1


def softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """Give exp(x) / sum(exp(x)) along ``dim``."""
    return reduce.softmax(input, default_dim("softmax", input.ndim) if dim is None else dim, dtype=dtype)


def softmin(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """Give the softmax of -x."""
    return reduce.softmax(-input, default_dim("softmin", input.ndim) if dim is None else dim, dtype=dtype)


def log_softmax(input: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: DType | None = None) -> Tensor:
    """Give log(softmax(x)) along ``dim``."""
    return reduce.log_softmax(input, default_dim("log_softmax", input.ndim) if dim is None else dim, dtype=dtype)


def gumbel_softmax(
    logits: Tensor,
    tau: float = 1,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Draw from the Gumbel-softmax distribution; ``hard``: one-hot values with the soft gradient."""
    uniform = draw.rand(logits._type.shape, dtype=logits.dtype, generator=generator).clamp(min=1e-38)
    soft = reduce.softmax((logits - (-uniform.log()).log()) / tau, dim)
    if not hard:
        return soft
    index = reduce.argmax(soft, dim, keepdim=True)
    once = create.zeros_like(logits).scatter(dim, index, 1.0)
    return once - soft.detach() + soft


def sigmoid(input: Tensor) -> Tensor:
    """Give 1 / (1 + exp(-x))."""
    return pointwise.sigmoid(input)


def tanh(input: Tensor) -> Tensor:
    """Give the hyperbolic tangent."""
    return pointwise.tanh(input)


def _in_place(function: Any) -> Any:
    def apply(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return function(input, *args, **kwargs, inplace=True)

    return named(apply, f"{function.__name__}_", f"Do ``{function.__name__}`` in place.")


relu_, elu_, selu_, celu_, leaky_relu_, hardtanh_, threshold_, rrelu_ = map(
    _in_place, (relu, elu, selu, celu, leaky_relu, hardtanh, threshold, rrelu)
)

__all__ = [
    "celu", "celu_", "elu", "elu_", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "hardtanh_", "leaky_relu", "leaky_relu_", "log_softmax", "logsigmoid", "mish", "prelu", "relu", "relu6", "relu_", "rrelu",
    "rrelu_", "selu", "selu_", "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink", "softsign", "tanh",
    "tanhshrink", "threshold", "threshold_",
]  # fmt: skip

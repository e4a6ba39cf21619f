"""Drawing random numbers. Values depend on the seed, the stream number and the element's global index only.

Next: ``gt.random`` (generators), ``gt.ir.ops.random`` (meaning).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.devices import check_options
from gt.functions.create import DTypeLike, sized
from gt.functions.promote import C_NAMES, c_name, cast, get_default_dtype, largest, operand
from gt.functions.shape import ints
from gt.grad_mode import is_grad_enabled
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import (
    CallError,
    DType,
    KindError,
    broadcast_shapes,
    check_sizes,
    complex128,
    dtype_of,
    float64,
    got,
    int64,
    real_dtype,
    scalar_type,
)
from gt.random import Generator, draw
from gt.recording import record

if TYPE_CHECKING:
    from gt.tensor import Tensor

FINE = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}  # whole numbers up to so many bits are told apart
_NOT_GIVEN: Any = object()


def _random(op: str, shape: tuple[int, ...], dtype: DType, generator: Generator | None, *more: Any) -> Tensor:
    check_sizes(shape)
    seed, stream = draw(generator)
    keys = (operand(seed, int64), operand(stream, int64), *more)
    return record(OPS[op], keys, (("shape", shape), ("dtype", dtype)))


def _drawn(op: str, shape: tuple[int, ...], dtype: DTypeLike, generator: Generator | None, options: dict[str, Any]) -> Tensor:
    requires_grad = options.pop("requires_grad", False)
    check_options(op, options.pop("device", None), **options)
    own = dtype_of(dtype or get_default_dtype())
    if own.kind == "c":
        scale = math.sqrt(0.5) if op == "random_normal" else 1.0
        parts = [_random(op, shape, real_dtype(own), generator) * scale for _ in range(2)]
        out = record(OPS["complex"], tuple(parts))
    elif own.kind != "f":
        raise KindError(f"\"{op.removeprefix('random_')}\" not implemented for '{scalar_type(own)}': draw floats, or use randint")
    else:
        out = _random(op, shape, own, generator)
    return out.requires_grad_() if requires_grad else out


def rand(*size: Any, generator: Generator | None = None, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Draw uniformly from [0, 1)."""
    return _drawn("random_uniform", sized(size, options), dtype, generator, options)


def randn(*size: Any, generator: Generator | None = None, dtype: DTypeLike = None, **options: Any) -> Tensor:
    """Draw from the standard normal distribution."""
    return _drawn("random_normal", sized(size, options), dtype, generator, options)


def randint(
    *args: Any, generator: Generator | None = None, dtype: DTypeLike = None, low: int = 0, high: int | None = None, size: Any = None,
    requires_grad: bool = False, device: Any = None, layout: Any = None, pin_memory: bool = False, out: Any = None,
) -> Tensor:  # fmt: skip
    """Draw integers: ``randint(high, size)`` or ``randint(low, high, size)``. Dtypes: int64 by default."""
    check_options("randint", device, layout, None, pin_memory, out)
    given = list(args)
    if given and not isinstance(given[-1], int) and size is None:
        size = given.pop()
    if given:
        low, high = (low, given[0]) if len(given) == 1 and high is None else (given[0], high) if len(given) == 1 else given
    if high is None or size is None:
        raise TypeError("randint() needs an upper bound and a size: randint(high, size) or randint(low, high, size)")
    own = dtype_of(dtype or int64)
    if not hasattr(low, "__index__") or not hasattr(high, "__index__"):
        raise TypeError(f"randint(): bounds must be int, not {got(low if not hasattr(low, '__index__') else high)}")
    low, high = ints((low, high))
    _check_bounds(low, high, own)
    made = cast(_whole_numbers(low, high, tuple(size), generator), own)
    return made.requires_grad_() if requires_grad else made


def _check_bounds(low: int, high: int, dtype: DType) -> None:
    """Refuse whole numbers from ``low`` up to ``high`` that a dtype does not hold."""
    if dtype.kind == "c":
        raise CallError("check_random_bounds handles only integral, floating-point and boolean types")
    if low >= high:
        raise CallError(f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}")
    if dtype.kind == "f":
        top = int(min(largest(dtype), 2.0**63))
        bottom, top = -top, min(top, 2**63 - 1)
    else:
        bits = 1 if dtype.kind == "b" else 8 * dtype.itemsize - (dtype.kind == "i")
        bottom, top = -(1 << bits) if dtype.kind == "i" else 0, (1 << bits) - 1
    for name, value in (("from", low), ("to - 1", high - 1)):
        if not bottom <= value <= top:
            raise CallError(f"{name} is out of bounds for {c_name(dtype)}")


def _check_floating(name: str, dtype: DType, kinds: str = "fc") -> None:
    if dtype.kind not in kinds:
        raise KindError(f"\"{name}\" not implemented for '{scalar_type(dtype)}'")


def _whole_numbers(low: int, high: int, shape: tuple[int, ...], generator: Generator | None) -> Tensor:
    if (low, high) == (0, 2**63):  # a bound that int64 does not hold
        return _random("random_bits", shape, int64, generator)
    if high - low >= 2**63:  # as is such a span: one of two halves
        half = (high - low + 1) // 2
        upper = _whole_numbers(0, 2, shape, generator) > 0
        parts = [_whole_numbers(first, first + half, shape, generator) for first in (high - half, low)]
        return record(OPS["where"], (upper, *parts))
    if high == 2**63:
        return _whole_numbers(low - 1, high - 1, shape, generator) + 1
    return _random("random_int", shape, int64, generator, operand(low, int64), operand(high, int64))


def rand_like(input: Tensor, *, dtype: DTypeLike = None, generator: Generator | None = None, **options: Any) -> Tensor:
    """Draw from the uniform distribution, in the shape and dtype of ``input``."""
    return rand(input._type.shape, dtype=dtype or input.dtype, generator=generator, **options)


def randn_like(input: Tensor, *, dtype: DTypeLike = None, generator: Generator | None = None, **options: Any) -> Tensor:
    """Draw from the normal distribution, in the shape and dtype of ``input``."""
    return randn(input._type.shape, dtype=dtype or input.dtype, generator=generator, **options)


def randint_like(
    input: Tensor,
    *args: Any,
    dtype: DTypeLike = None,
    low: int = 0,
    high: int | None = None,
    memory_format: Any = None,
    **options: Any,
) -> Tensor:
    """Draw integers, in the shape and dtype of ``input``: ``(high)`` or ``(low, high)``."""
    if args:
        low, high = (low, args[0]) if len(args) == 1 and high is None else (args[0], high) if len(args) == 1 else args
    return randint(low, high, input._type.shape, dtype=dtype or input.dtype, **options)


def randperm(n: int, *, generator: Generator | None = None, dtype: DTypeLike = None, device: Any = None, **options: Any) -> Tensor:
    """Give 0..n-1 in a random order."""
    n = operator.index(n)
    check_sizes((n,))
    own = dtype_of(dtype or int64)
    _check_floating("randperm", own, "uif")
    if own.kind == "f" and n > 2 ** FINE[own.name] + 1:
        raise CallError(f"n cannot be greater than {2 ** FINE[own.name] + 1} for {scalar_type(own)} type.")
    if own.kind in "ui" and n > 2 ** (8 * own.itemsize - (own.kind == "i")):
        raise CallError(f"value cannot be converted to type {C_NAMES[own.name]} without overflow")
    keys = _random("random_bits", (n,), int64, generator)
    return cast(record(OPS["sort"], (keys,), (("dim", 0), ("descending", False)))[1], own)


def bernoulli(input: Tensor, p: float | None = None, *, generator: Generator | None = None, out: Any = None) -> Tensor:
    """Draw 1 with the probability given for each element, else 0."""
    check_options("bernoulli", out=out)
    if input.dtype.kind not in "f" and p is None:
        raise KindError(f"\"bernoulli\" not implemented for '{scalar_type(input.dtype)}': expected probabilities of floating type")
    if p is not None and not 0 <= p <= 1:
        raise CallError(f"bernoulli_ expects p to be in [0, 1], but got p={p}")
    _check_floating("bernoulli", input.dtype, "buif")
    drawn = _random("random_uniform", input._type.shape, float64, generator)
    wanted = operand(p, float64) if p is not None else cast(input.detach(), float64)
    return _after(cast(record(OPS["lt"], (drawn, wanted)), input.dtype), input)


def _after(drawn: Tensor, *chances: Any) -> Tensor:
    """Give what was drawn, through which gradients of 0 pass to what it was drawn from, as in torch."""
    for t in chances:
        if isinstance(t, Handle) and t._rg and is_grad_enabled():
            drawn = cast(t, drawn.dtype)._onto(drawn)
    return drawn


def normal(
    mean: Any,
    std: Any = 1.0,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: DTypeLike = None,
    **options: Any,
) -> Tensor:
    """Draw from normal distributions; ``mean`` and ``std`` are tensors, or numbers with a ``size``."""
    for argument, v in (("mean", mean), ("std", std)):
        if isinstance(v, Handle) and v.dtype.kind not in "fc":
            raise CallError(f"normal expects standard deviation and mean to be floating point, got {argument} of {v.dtype.name}")
    if isinstance(std, Handle) and std.dtype.kind == "c":
        raise CallError("normal expects standard deviation to be non-complex")
    if not isinstance(std, Handle) and std < 0:
        raise CallError(f"normal expects std >= 0.0, but found std {std}")
    chances = mean, std
    mean, std = (t.detach() if isinstance(t, Handle) else t for t in chances)
    tensors = [t for t in (mean, std) if isinstance(t, Handle)]
    if size is not None:
        shape = ints((size,))
    elif not tensors:
        raise TypeError("normal() of two numbers needs a size")
    else:
        shape = broadcast_shapes(*(t._type.shape for t in tensors))
    own = dtype_of(dtype) if dtype is not None else tensors[0].dtype if tensors else get_default_dtype()
    _check_floating("normal", own)
    return _after(_line(randn(shape, generator=generator, dtype=_wide(own), **options), std, mean, own), *chances)


def _wide(dtype: DType) -> DType:
    """Give the dtype that draws are transformed in: the result is rounded once, so that every backend gives the same bits."""
    return complex128 if dtype.kind == "c" else float64


def _line(drawn: Tensor, scale: Any, shift: Any, dtype: DType) -> Tensor:
    """Give ``drawn * scale + shift``, rounded once."""
    scale, shift = (cast(v, _wide(v.dtype)) if isinstance(v, Handle) else v for v in (scale, shift))
    return cast(drawn * scale + shift, dtype)


def multinomial(input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
    """Draw category indices, with the weights of the last dim. Dtypes: int64."""
    if input.dtype.kind != "f":
        raise CallError(f"multinomial only supports floating-point dtypes for input, got: {scalar_type(input.dtype)}")
    if input.ndim not in (1, 2):
        raise CallError("prob_dist must be 1 or 2 dim")
    if num_samples < 1:
        raise CallError("cannot sample n_sample <= 0 samples")
    n = input._type.shape[-1]
    if n > 2**24:
        raise CallError("number of categories cannot exceed 2^24")
    if not replacement and num_samples > n:
        raise CallError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    weights = cast(input.detach(), float64)
    if not replacement:  # the smallest of exponentials with these rates
        u = _random("random_uniform", input._type.shape, float64, generator)
        race = -((1 - u).log()) / weights
        order = record(OPS["sort"], (race,), (("dim", input.ndim - 1), ("descending", False)))[1]
        return order[..., :num_samples].clone()
    u = _random("random_uniform", (*input._type.shape[:-1], num_samples), float64, generator)
    edges = weights.cumsum(-1)
    return (edges.unsqueeze(-2) <= (u * edges[..., -1:]).unsqueeze(-1)).sum(-1).clamp(max=n - 1)


# -- methods that overwrite a tensor


def uniform_(input: Tensor, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with draws from [from_, to)."""
    low, high = from_, to
    if low > high:
        raise CallError(f"uniform_ expects to return a [from, to) range, but found from={low} > to={high}")
    _check_floating("uniform_", input.dtype)
    for name, value in (("from", low), ("to", high)):
        if abs(value) > largest(real_dtype(input.dtype)):
            raise CallError(f"{name} is out of bounds for {c_name(input.dtype)}")
    drawn = rand(input._type.shape, dtype=input.dtype, generator=generator)  # as fine as the dtype: never rounded up to high
    plain = (low, high) == (0, 1)
    shift = complex(low, low) if input.dtype.kind == "c" else low
    return input._assign(drawn if plain else _line(cast(drawn, _wide(input.dtype)), high - low, shift, input.dtype))


def normal_(input: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with draws from a normal distribution."""
    if std < 0:
        raise CallError(f"normal expects std >= 0.0, but found std {std}")
    _check_floating("normal_", input.dtype)
    drawn = randn(input._type.shape, dtype=_wide(input.dtype), generator=generator)
    return input._assign(_line(drawn, std, mean, input.dtype))


def exponential_(input: Tensor, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with draws from the exponential distribution."""
    if lambd <= 0:
        raise CallError(f"exponential_ expects lambda > 0.0, but found lambda={lambd}")
    _check_continuous("Exponential", input)
    return _overwritten(input, lambda u: -(1 - u).log() / lambd, generator)


def geometric_(input: Tensor, p: float, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with the numbers of trials until a success of probability ``p``."""
    if not 0 < p < 1:
        raise CallError(f"geometric_ expects p to be in (0, 1), but got p={p}")
    _check_floating("geometric_", input.dtype, "uif")
    return _overwritten(input, lambda u: ((1 - u).log() / math.log1p(-p)).ceil().clamp(min=1), generator)


def cauchy_(input: Tensor, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with draws from the Cauchy distribution."""
    if sigma <= 0:
        raise CallError(f"cauchy_ expects sigma > 0.0, but found sigma={sigma}")
    _check_continuous("Cauchy", input)
    return _overwritten(input, lambda u: ((u - 0.5) * math.pi).tan() * sigma + median, generator)


def log_normal_(input: Tensor, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with exponentials of normal draws."""
    if std <= 0:
        raise CallError(f"log_normal_ expects std > 0.0, but found std={std}")
    _check_floating("log_normal_", input.dtype, "f")
    drawn = randn(input._type.shape, dtype=float64, generator=generator)
    return input._assign(cast((drawn * std + mean).exp(), input.dtype))


def _check_continuous(name: str, input: Tensor) -> None:
    if input.dtype.kind != "f":
        raise CallError(
            f"{name} distribution is a continuous probability distribution. dtype must be a floating point but you specified "
            f"{scalar_type(input.dtype)}"
        )


def _overwritten(input: Tensor, transform: Callable[[Tensor], Tensor], generator: Generator | None) -> Tensor:
    """Overwrite with a function of uniform draws, rounded once."""
    u = rand(input._type.shape, dtype=float64, generator=generator)
    return input._assign(cast(transform(u), input.dtype))


def random_(input: Tensor, from_: int | None = None, to: Any = _NOT_GIVEN, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with whole numbers: of all that the dtype tells apart, below ``from_`` if it stands alone, else from it on."""
    own = input.dtype
    first, last = (0, from_) if to is _NOT_GIVEN else (from_ or 0, to)
    if last is None:
        last = 2 if own.kind == "b" else 2 ** FINE[own.name] + 1 if own.kind == "f" else 2 ** (8 * own.itemsize - (own.kind == "i"))
        if own.kind == "f" and first >= last:
            raise CallError(
                f"random_ expects 'from' casted to dtype to be less than or equal to 'to_inc' casted to dtype, but got from={first} > "
                f"to_inc={last - 1}"
            )
        last = max(last, first + 1)  # what the dtype does not hold is said below
    _check_bounds(first, last, own)
    return input._assign(cast(_whole_numbers(first, last, input._type.shape, generator), own))


def bernoulli_(input: Tensor, p: Any = 0.5, *, generator: Generator | None = None) -> Tensor:
    """Overwrite with draws of 0 and 1."""
    if isinstance(p, Handle):
        return input._assign(cast(bernoulli(p.expand(input._type.shape), generator=generator), input.dtype))
    return input._assign(bernoulli(input.detach(), p, generator=generator))

"""Pooling over windows of the last one or two dims. Next: ``gt.ir.ops.convolution`` (meaning)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.functions import create, linalg, pointwise, reduce
from gt.functions.promote import cast
from gt.ir.ops import OPS
from gt.ir.types import CallError, int64, is_int, normalize_dim
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

MAX_POOL, AVG_POOL = OPS["max_pool"], OPS["avg_pool"]
Ints = int | Sequence[int]


def each(value: Any, dims: int, name: str) -> tuple[int, ...]:
    if is_int(value):
        return (operator.index(value),) * dims
    out = tuple(int(v) for v in value)
    if len(out) == 1:
        return out * dims
    if len(out) != dims:
        raise CallError(f"{name} must either be a single int, or a tuple of {dims} ints")
    return out


def _shaped(input: Tensor, dims: int, name: str) -> Tensor:
    """Give the input as [n, c, h, w]."""
    if input.ndim not in (dims + 1, dims + 2):
        if name == "avg_pool2d":
            normalize_dim(-3, input.ndim)  # an IndexError, as torch's
        raise _refused(input, dims, name, "non-empty " if dims > 1 else "")
    x = input if input.ndim == dims + 2 else input.unsqueeze(0)
    return x.unsqueeze(2) if dims == 1 else x


def _refused(input: Tensor, dims: int, name: str, kind: str = "") -> RuntimeError:
    kinds = f"{kind}{dims + 1}D or {dims + 2}D (batch mode) tensor"
    text = f"{kinds} expected for input" if kind else f"Expected {kinds} with optional 0 dim batch size for input"
    return RuntimeError(f"{name}: {text}, but got {list(input._type.shape)}")


def _unshaped(out: Tensor, input: Tensor, dims: int) -> Tensor:
    out = out.squeeze(2) if dims == 1 else out
    return out if input.ndim == dims + 2 else out.squeeze(0)


def _windows(dims: int, kernel: Any, stride: Any, padding: Any, ceil_mode: bool, name: str) -> dict[str, Any]:
    """Give the window geometry over two dims; for one, a row of height 1."""
    lead = (1,) * (2 - dims)
    k = each(kernel, dims, "kernel_size")
    s = k if stride is None or (not is_int(stride) and not len(stride)) else each(stride, dims, "stride")
    p = each(padding, dims, "padding")
    if min(k) <= 0:
        what = "kernel_size must be greater than zero" if dims == 1 else "kernel size should be greater than zero"
        raise CallError(f"{name}: {what}, but got {min(k)}")
    if min(s) <= 0:
        what = "stride should not be zero" if 0 in s and dims > 1 else "stride must be greater than zero"
        raise CallError(f"{name}: {what}, but got {min(s)}")
    return {"kernel": lead + k, "stride": lead + s, "padding": (0,) * (2 - dims) + p, "ceil_mode": bool(ceil_mode)}


def check_padding(kernel: Sequence[int], padding: Sequence[int], dilation: Sequence[int]) -> None:
    """Raise if a window could lie in the padding alone."""
    for p in padding:
        if p < 0:
            raise CallError(f"pad must be non-negative, but got pad: {p}")
    for p, k, d in zip(padding, kernel, dilation, strict=True):
        if p > ((k - 1) * d + 1) // 2:
            raise CallError(
                f"pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k} and dilation={d}"
            )


def _max_pool(
    dims: int, input: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, indices: bool
) -> Any:
    name = f"max_pool{dims}d"
    x = _shaped(input, dims, name)
    attrs = _windows(dims, kernel, stride, padding, ceil_mode, name)
    d = (1,) * (2 - dims) + each(dilation, dims, "dilation")
    if min(d) <= 0:
        raise CallError(f"dilation {'must' if dims == 1 else 'should'} be greater than zero, but got {min(d)}")
    check_padding(attrs["kernel"], attrs["padding"], d)
    if 0 in input._type.shape[-dims - 1 :]:
        raise _refused(input, dims, name)
    ordered = ("kernel", "stride", "padding")
    values, at = record(MAX_POOL, (x,), (*((n, attrs[n]) for n in ordered), ("dilation", d), ("ceil_mode", attrs["ceil_mode"])))
    values = _unshaped(values, input, dims)
    return (values, _unshaped(at, input, dims)) if indices else values


def max_pool1d(
    input: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """Give the largest of each window: [n, c, l] -> [n, c, l']."""
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, dilation: Ints = 1, ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:  # fmt: skip
    """Give the largest of each window: [n, c, h, w] -> [n, c, h', w']."""
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def _avg_pool(
    dims: int,
    input: Tensor,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    name = f"avg_pool{dims}d"
    x = _shaped(input, dims, name)
    attrs = _windows(dims, kernel, stride, padding, ceil_mode, name)
    check_padding(attrs["kernel"], attrs["padding"], (1,) * len(attrs["kernel"]))
    if 0 in input._type.shape[-dims - 1 :]:
        raise _refused(input, dims, name)
    if divisor == 0:
        raise CallError("divisor must be not zero")
    if divisor is None:
        out = record(AVG_POOL, (x,), (*attrs.items(), ("count_include_pad", bool(count_include_pad))))
    else:  # the sum of a window is its average times what it was divided by
        inside = record(AVG_POOL, (x,), (*attrs.items(), ("count_include_pad", False)))
        geometry = (attrs["kernel"], attrs["stride"], attrs["padding"])
        out = inside * (cast(window_counts(x._type.shape[2:], *geometry, ceil_mode, False), x.dtype) / divisor)
    return _unshaped(out, input, dims)


def window_counts(
    shape: tuple[int, ...], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool, with_padding: bool
) -> Tensor:
    """Give how many elements each window sees, those of the padding among them or not: one dim for each of ``shape``."""
    counts = None
    for n, k, s, p in zip(shape, kernel, stride, padding, strict=True):
        rest = n + 2 * p - k
        out = (-(-rest // s) if ceil_mode else rest // s) + 1
        if ceil_mode and (out - 1) * s >= n + p:
            out -= 1
        start = create.arange(out) * s - p
        seen = (start + k).clamp(max=n + p) - start if with_padding else (start + k).clamp(max=n) - start.clamp(min=0)
        counts = seen if counts is None else counts.unsqueeze(-1) * seen
    assert counts is not None
    return counts


@saves("input!")
def avg_pool1d(
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Give the average of each window: [n, c, l] -> [n, c, l']."""
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


@saves("input!")
def avg_pool2d(
    input: Tensor, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """Give the average of each window: [n, c, h, w] -> [n, c, h', w']."""
    return _avg_pool(2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


def lp_pool1d(input: Tensor, norm_type: float, kernel_size: int, stride: int | None = None, ceil_mode: bool = False) -> Tensor:
    """Give the p-norm of each window."""
    out = avg_pool1d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (pointwise.sign(out) * pointwise.relu(pointwise.abs(out)) * kernel_size).pow(1.0 / norm_type)


def lp_pool2d(input: Tensor, norm_type: float, kernel_size: Ints, stride: Ints | None = None, ceil_mode: bool = False) -> Tensor:
    """Give the p-norm of each window."""
    kh, kw = each(kernel_size, 2, "kernel_size")
    out = avg_pool2d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (pointwise.sign(out) * pointwise.relu(pointwise.abs(out)) * (kh * kw)).pow(1.0 / norm_type)


# -- adaptive: windows differ in size, so that a fixed number of them covers the input


def _targets(input: Tensor, output_size: Any, dims: int, name: str) -> tuple[int, ...]:
    if input.ndim not in (dims + 1, dims + 2):
        kind = RuntimeError if dims == 1 else ValueError
        raise kind(
            f"Input dimension should be at least {dims + 1}: {name} expected a {dims + 1}D or {dims + 2}D tensor, but got "
            f"{list(input._type.shape)}"
        )
    wanted = (output_size,) * dims if output_size is None or is_int(output_size) else tuple(output_size)
    if len(wanted) != dims:
        raise CallError(
            f"{name}: " + ("'output_size' should contain one int" if dims == 1 else f"output_size must be {dims}") + f", got {len(wanted)}"
        )
    if any(w is not None and w < 0 for w in wanted):
        raise CallError(f"{name}: elements of output_size must be greater than or equal to 0, got {list(wanted)}")
    sizes = input._type.shape[-dims:]
    return tuple(n if w is None else int(w) for n, w in zip(sizes, wanted, strict=True))


def _check_not_empty(input: Tensor, first: int, name: str) -> None:
    """Refuse sizes of 0 from a dim on."""
    for d, n in enumerate(input._type.shape):
        if d >= first and n == 0:
            raise CallError(
                f"{name}(): Expected input to have non-zero size for non-batch dimensions, but input has sizes {list(input._type.shape)} "
                f"with dimension {d} being empty"
            )


def _unless_mean(given: dict[str, Any]) -> str | None:
    outs = given["output_size"]
    return None if all(n == 1 for n in (outs if isinstance(outs, tuple | list) else (outs,))) else "input!"


@saves(_unless_mean)
def adaptive_avg(dims: int, input: Tensor, output_size: Any) -> Tensor:
    """Give averages that cover the last dims."""
    name = f"adaptive_avg_pool{dims}d"
    outs = _targets(input, output_size, dims, name)
    if any(o != 1 for o in outs):
        _check_not_empty(input, 1 if dims == 3 else input.ndim - dims, name)
    sizes = input._type.shape[-dims:]
    if all(o and n % o == 0 for n, o in zip(sizes, outs, strict=True)):
        kernel = tuple(n // o for n, o in zip(sizes, outs, strict=True))
        if outs == (1,) * dims:
            return reduce.mean(input, tuple(range(-dims, 0)), keepdim=True)
        if dims < 3:
            return _avg_pool(dims, input, kernel, kernel, 0, False, True, None)
    for d, (n, o) in enumerate(zip(sizes, outs, strict=True), start=-dims):
        input = linalg.matmul(input.movedim(d, -1), _averages(n, o, input.dtype).mT).movedim(-1, d)
    return input


def _bounds(size: int, out: int) -> tuple[Tensor, Tensor]:
    """Give where each of ``out`` windows over ``size`` elements starts and ends."""
    at = create.arange(out)
    return (at * size) // out, -((-(at + 1) * size) // out)


def _averages(size: int, out: int, dtype: Any) -> Tensor:
    """Give the matrix [out, size] that averages each window."""
    start, end = _bounds(size, out)
    place = create.arange(size)
    inside = pointwise.logical_and(place >= start.unsqueeze(1), place < end.unsqueeze(1))
    return cast(inside, dtype) / cast(end - start, dtype).unsqueeze(1)


def adaptive_avg_pool1d(input: Tensor, output_size: Any) -> Tensor:
    """Give ``output_size`` averages that cover the last dim."""
    return adaptive_avg(1, input, output_size)


def adaptive_avg_pool2d(input: Tensor, output_size: Any) -> Tensor:
    """Give ``output_size`` averages that cover the last two dims."""
    return adaptive_avg(2, input, output_size)


def _taps(size: int, out: int) -> Tensor:
    """Give [out, widest] positions: each window's elements, its last repeated."""
    start, end = _bounds(size, out)
    widest = max((-(-(i + 1) * size // out) - i * size // out for i in range(out)), default=1)
    return pointwise.minimum(start.unsqueeze(1) + create.arange(widest), end.unsqueeze(1) - 1)


def adaptive_max(dims: int, input: Tensor, output_size: Any, indices: bool) -> Any:
    """Give maxima that cover the last dims, and where they are in them flattened if asked."""
    name = f"adaptive_max_pool{dims}d"
    outs = _targets(input, output_size, dims, name)
    _check_not_empty(input, 1, name)
    sizes = input._type.shape[-dims:]
    place = None  # of each window's elements, which come last: [*outs, taps]
    for n, o in zip(sizes, outs, strict=True):
        taps = _taps(n, o)
        if place is None:
            place = taps
        else:
            before = place.reshape(*place._type.shape[:-1], 1, place._type.shape[-1], 1)
            place = (before * n + taps.unsqueeze(1)).flatten(-2)
    assert place is not None
    seen = record(OPS["index"], (input.flatten(-dims), cast(place, int64)), (("dims", (input.ndim - dims,)),))
    values, tap = reduce.max(seen, -1)
    if not indices:
        return values
    return values, place.expand(seen._type.shape).gather(-1, tap.unsqueeze(-1)).squeeze(-1)


@saves("input! result1")
def adaptive_max_pool1d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Give ``output_size`` maxima that cover the last dim."""
    return adaptive_max(1, input, output_size, return_indices)


@saves("input! result1")
def adaptive_max_pool2d(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """Give ``output_size`` maxima that cover the last two dims."""
    return adaptive_max(2, input, output_size, return_indices)


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d", "avg_pool1d", "avg_pool2d",
    "lp_pool1d", "lp_pool2d", "max_pool1d", "max_pool2d",
]  # fmt: skip

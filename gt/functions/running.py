"""Along one dim: running extremes and sums, differences, integrals, derivatives.

Next: ``reduce`` (cumsum, cumprod).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.functions.promote import cast, floated
from gt.functions.reduce import NAMED, ValuesIndices, sum
from gt.functions.shape import has_dim, narrow, reshape, select
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import CallError, KindError, Scalar, bool_, is_int, normalize_dim, normalize_dims, scalar_type, uint8
from gt.recording import record

if TYPE_CHECKING:
    from gt.tensor import Tensor

Dims = int | tuple[int, ...] | list[int] | None


def cummax(input: Tensor, dim: int) -> ValuesIndices:
    """Give the largest so far along ``dim``, and where it is."""
    return _running("cummax", input, dim)


def cummin(input: Tensor, dim: int) -> ValuesIndices:
    """Give the smallest so far along ``dim``, and where it is."""
    return _running("cummin", input, dim)


def _running(name: str, input: Tensor, dim: int) -> ValuesIndices:
    return NAMED[name](*record(OPS[name], (input,), (("dim", normalize_dim(dim, input.ndim)),)))


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Give the log of the running sum of exponentials along ``dim``."""
    if input.dtype.kind not in "fc":
        raise KindError(f"\"logcumsumexp_out_cpu\" not implemented for '{scalar_type(input.dtype)}'")
    return record(OPS["logcumsumexp"], (input,), (("dim", normalize_dim(dim, input.ndim)),))


def diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    """Give the n-th differences of neighbours along ``dim``."""
    if not input.ndim:
        raise CallError("diff expects input to be at least one-dimensional")
    if n < 0:
        raise CallError(f"order must be non-negative but got {n}")
    d = normalize_dim(dim, input.ndim)
    if n == 0:
        return input.clone()
    parts = [p for p in (prepend, input, append) if p is not None]
    for p in parts:
        if p.ndim != input.ndim:
            raise CallError("diff expects prepend or append to be the same dimension as input")
        if any(a != b for i, (a, b) in enumerate(zip(p._type.shape, input._type.shape, strict=True)) if i != d):
            bad = next(i for i, (a, b) in enumerate(zip(p._type.shape, input._type.shape, strict=True)) if i != d and a != b)
            raise CallError(
                "diff expects the shape of tensor to prepend or append to match that of input except along the differencing "
                f"dimension; input.size({bad}) = {input._type.shape[bad]}, but got tensor.size({bad}) = {p._type.shape[bad]}"
            )
    out = parts[0] if len(parts) == 1 else _cat(parts, d)
    for _ in range(min(n, out._type.shape[d])):
        size = out._type.shape[d]
        if size < 2:
            return narrow(out, d, 0, 0)
        after, before = narrow(out, d, 1, size - 1), narrow(out, d, 0, size - 1)
        out = after ^ before if out.dtype is bool_ else after - before
    return out


def _cat(parts: Sequence[Any], dim: int) -> Any:
    from_common = parts[0].dtype
    return record(OPS["cat"], tuple(cast(p, from_common) for p in parts), (("dim", dim),))


def cumulative_trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Scalar = 1, dim: int = -1) -> Tensor:
    """Give the running integral by the trapezoid rule."""
    has_dim(dim, y)
    _refuse_bools("cumulative_trapezoid", y=y, x=x)
    d = normalize_dim(dim, y.ndim)
    return _trapezoids(y, None, dx / 2, dim).cumsum(d) if x is None else _trapezoids(y, x, 1, dim).cumsum(d) / 2


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Scalar = 1, dim: int = -1) -> Tensor:
    """Integrate by the trapezoid rule along ``dim``."""
    d = has_dim(dim, y)
    if y._type.shape[d] == 0:
        return sum(y, d) * 1.0 if y.dtype.kind in "fc" else sum(floated(y), d)
    _refuse_bools("trapezoid", y=y, x=x)
    if x is None:  # all but half of the ends: sums of small integers do not overflow
        return (sum(y, d) - (select(y, d, 0) + select(y, d, -1)) * 0.5) * dx
    return sum(_trapezoids(y, x, dx, dim), d) / 2


def _refuse_bools(name: str, **given: Tensor | None) -> None:
    for argument, t in given.items():
        if t is not None and t._type.dtype is bool_:
            raise CallError(f"{name}: received a bool input for `{argument}`, but bool is not supported")


trapz = trapezoid


def _trapezoids(y: Tensor, x: Tensor | None, dx: Scalar, dim: int) -> Tensor:
    """Give twice the area of each trapezoid."""
    d = normalize_dim(dim, y.ndim)
    n = y._type.shape[d]
    sums = narrow(y, d, 1, n - 1) + narrow(y, d, 0, n - 1) if n else y
    if x is None:
        return sums * dx
    widths = diff(x, dim=-1 if x.ndim == 1 else dim)
    if x.ndim == 1 and y.ndim > 1:
        widths = reshape(widths, (-1, *(1,) * (y.ndim - d - 1)))
    return sums * widths


def gradient(input: Tensor, *, spacing: Any = 1, dim: Dims = None, edge_order: int = 1) -> tuple[Tensor, ...]:
    """Estimate derivatives along dims by central differences; one-sided of ``edge_order`` at the ends."""
    if input.dtype is uint8:
        raise CallError("torch.gradient does not support uint8 input.")
    dims = list(normalize_dims(dim, input.ndim))
    if dim is not None and not is_int(dim):
        dims = [normalize_dim(v, input.ndim) for v in dim]
    if edge_order not in (1, 2):
        raise CallError("torch.gradient only supports edge_order=1 and edge_order=2.")
    spacing = 1 if spacing is None else spacing.item() if isinstance(spacing, Handle) and not spacing.ndim else spacing
    spacings = list(spacing) if isinstance(spacing, list | tuple) else [spacing] * len(dims)
    if isinstance(spacing, list | tuple) and len(spacings) != len(dims):
        kind = "to be unspecified, a scalar, or a list" if not any(isinstance(s, Handle) for s in spacings) else "to be a list"
        raise CallError(
            f"torch.gradient expected spacing {kind} of length equal to 'self.dim() - 1' or the number of dims, got {len(spacings)}"
        )
    out = []
    for d, step in zip(dims, spacings, strict=True):
        n = input._type.shape[d]
        if n < edge_order + 1:
            raise CallError("torch.gradient expected each dimension size to be at least edge_order+1")
        out.append(_along(input, d, step, edge_order))
    return tuple(out)


def _along(t: Tensor, d: int, step: Any, edge_order: int) -> Tensor:
    n = t._type.shape[d]
    at = lambda start, count: narrow(t, d, start, count)  # noqa: E731
    if isinstance(step, Handle):
        if step.ndim != 1 or step.numel() != n:
            raise CallError("torch.gradient expected each element of `spacing` to have one dimension of the dim's size")
        h = diff(step)
        shape = lambda v: reshape(v, (-1, *(1,) * (t.ndim - d - 1)))  # noqa: E731
        a, b = shape(narrow(h, 0, 0, n - 2)), shape(narrow(h, 0, 1, n - 2))
        inner = at(0, n - 2) * (-b / (a * (a + b))) + at(1, n - 2) * ((b - a) / (a * b)) + at(2, n - 2) * (a / (b * (a + b)))
        first, last = shape(narrow(h, 0, 0, 1)), shape(narrow(h, 0, n - 2, 1))
        if edge_order == 1:
            left, right = (at(1, 1) - at(0, 1)) / first, (at(n - 1, 1) - at(n - 2, 1)) / last
        else:
            second, before = shape(narrow(h, 0, 1, 1)), shape(narrow(h, 0, n - 3, 1))
            left = _edge(at(0, 1), at(1, 1), at(2, 1), first, second)
            right = -_edge(at(n - 1, 1), at(n - 2, 1), at(n - 3, 1), last, before)
    else:
        inner = (at(2, n - 2) - at(0, n - 2)) / (2 * step)
        if edge_order == 1:
            left, right = (at(1, 1) - at(0, 1)) / step, (at(n - 1, 1) - at(n - 2, 1)) / step
        else:
            left = (-1.5 * at(0, 1) + 2 * at(1, 1) - 0.5 * at(2, 1)) / step
            right = (1.5 * at(n - 1, 1) - 2 * at(n - 2, 1) + 0.5 * at(n - 3, 1)) / step
    return _cat([left, inner, right], d)


def _edge(a: Any, b: Any, c: Any, h1: Any, h2: Any) -> Any:
    return -a * ((2 * h1 + h2) / (h1 * (h1 + h2))) + b * ((h1 + h2) / (h1 * h2)) - c * (h1 / (h2 * (h1 + h2)))

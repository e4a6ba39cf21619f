"""``torch.fft``: transforms of one, two and many dims, real and Hermitian forms, shifts and frequencies.

Owns: sizes, padding and norms. Next: ``gt.fft`` (the namespace), ``gt.ir.ops.fourier`` (meaning).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.functions.create import arange
from gt.functions.numeric import conj
from gt.functions.promote import cast, floated
from gt.functions.shape import has_dim, narrow, roll
from gt.ir.ops import OPS
from gt.ir.types import CallError, check_sizes, complex_dtype, float32, is_int, scalar_type
from gt.naming import named
from gt.recording import record
from gt.versions import saves

if TYPE_CHECKING:
    from gt.tensor import Tensor

Sizes = Sequence[int] | None
OTHER = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _norm(norm: str | None) -> str:
    if norm not in (None, "backward", "forward", "ortho"):
        raise CallError(f'Invalid normalization mode: "{norm}"')
    return norm or "backward"


def _dims(input: Tensor, s: Sizes, dim: Any) -> tuple[list[int], list[int]]:
    """Give dims and sizes of a transform over several."""
    sizes = None if s is None else [s] if is_int(s) else list(s)
    if dim is not None:
        dims = [has_dim(d, input) for d in ([dim] if is_int(dim) else dim)]
        if len(set(dims)) != len(dims):
            raise CallError("FFT dims must be unique")
        if sizes is not None and len(sizes) != len(dims):
            raise CallError("When given, dim and shape arguments must have the same length")
    elif sizes is not None:
        if len(sizes) > input.ndim:
            raise CallError(f"Got shape with {len(sizes)} values but input tensor only has {input.ndim} dimensions.")
        dims = list(range(input.ndim - len(sizes), input.ndim))
    else:
        dims = list(range(input.ndim))
    own = [input._type.shape[d] for d in dims]
    chosen = own if sizes is None else [a if b == -1 else b for a, b in zip(own, sizes, strict=True)]
    for n in chosen:
        if n < 1:
            raise CallError(f"Invalid number of data points ({n}) specified")
    return dims, chosen


def _one(input: Tensor, n: int | None, dim: int) -> tuple[list[int], list[int]]:
    d = has_dim(dim, input)
    size = n if n is not None else input._type.shape[d]
    if size < 1:
        raise CallError(f"Invalid number of data points ({size}) specified")
    return [d], [size]


def _fit(input: Tensor, dims: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Cut or pad dims with zeros."""
    zero = (0,) * input.ndim
    for d, n in zip(dims, sizes, strict=True):
        have = input._type.shape[d]
        if n < have:
            input = narrow(input, d, 0, n)
        elif n > have:
            high = tuple(n - have if i == d else 0 for i in range(input.ndim))
            input = record(OPS["pad"], (input,), (("low", zero), ("high", high), ("interior", zero), ("value", 0.0)))
    return input


def _complexed(name: str, t: Tensor) -> Tensor:
    if t.dtype.itemsize == 2 and t.dtype.kind == "f":
        raise CallError(f"Unsupported dtype {scalar_type(t.dtype)}")
    return cast(t, complex_dtype(floated(t).dtype))


def _of_reals(given: dict[str, Any]) -> str | None:
    """Along one dim torch transforms real numbers as they are, and keeps them: those that are not padded first."""
    t = given["t"]
    if given["name"] not in ("fft", "ifft"):
        return None
    whole = all(n <= t._type.shape[d] for d, n in zip(given["dims"], given["sizes"], strict=True))
    return "t" if t.dtype.kind == "f" and whole else None


@saves(_of_reals)
def _c2c(name: str, t: Tensor, dims: Sequence[int], sizes: Sequence[int], inverse: bool, norm: str | None) -> Tensor:
    x = _fit(_complexed(name, t), dims, sizes)
    if not dims:
        return x.clone()
    return record(OPS["fft_c2c"], (x,), (("dims", tuple(dims)), ("inverse", inverse), ("norm", _norm(norm))))


def _r2c(name: str, t: Tensor, dims: Sequence[int], sizes: Sequence[int], norm: str | None) -> Tensor:
    if t.dtype.kind == "c":
        raise CallError(f"{name} expects a real input tensor, but got {scalar_type(t.dtype)}")
    x = _real(name, t)
    if not dims:
        raise CallError(f"{name} must transform at least one axis")
    return record(OPS["fft_r2c"], (_fit(x, dims, sizes),), (("dims", tuple(dims)), ("norm", _norm(norm))))


def _real(name: str, t: Tensor) -> Tensor:
    x = floated(t)
    return cast(x, float32) if x.dtype.itemsize == 2 else x


def _c2r(name: str, t: Tensor, dims: Sequence[int], sizes: Sequence[int], norm: str | None) -> Tensor:
    if not dims:
        raise CallError(f"{name} must transform at least one axis")
    x = _fit(_complexed(name, t), dims, [*sizes[:-1], sizes[-1] // 2 + 1])
    return record(OPS["fft_c2r"], (x,), (("dims", tuple(dims)), ("size", sizes[-1]), ("norm", _norm(norm))))


def _half(input: Tensor, dims: list[int], sizes: list[int], given: bool) -> list[int]:
    """The last size of a real result: as given, else even."""
    if given or not dims:
        return sizes
    n = 2 * (input._type.shape[dims[-1]] - 1) if input.ndim else 0
    if n < 1:
        raise CallError(f"Invalid number of data points ({n}) specified")
    return [*sizes[:-1], n]


def _given(s: Any) -> bool:
    return s is not None and ([s] if is_int(s) else list(s))[-1] != -1


# -- one dim


def fft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Give the discrete Fourier transform. Dtypes: complex64, complex128 for float64."""
    return _c2c("fft", input, *_one(input, n, dim), False, norm)


def ifft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Give the inverse transform."""
    return _c2c("ifft", input, *_one(input, n, dim), True, norm)


def rfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Transform real data: the non-negative half."""
    return _r2c("rfft", input, *_one(input, n, dim), norm)


def irfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Invert ``rfft``; ``n`` is the size of the result (even by default)."""
    dims, sizes = _one(input, n, dim)
    return _c2r("irfft", input, dims, _half(input, dims, sizes, n is not None), norm)


def hfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Transform Hermitian data to real."""
    dims, sizes = _one(input, n, dim)
    return _c2r(
        "hfft", conj(_complexed("hfft", input)), dims, _half(input, dims, sizes, n is not None), OTHER[_norm(norm)]
    )


def ihfft(input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Invert ``hfft``."""
    return conj(_r2c("ihfft", input, *_one(input, n, dim), OTHER[_norm(norm)]))


# -- many dims


def fftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """Transform over several dims."""
    return _c2c("fftn", input, *_dims(input, s, dim), False, norm)


def ifftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """Give the inverse transform over several dims."""
    return _c2c("ifftn", input, *_dims(input, s, dim), True, norm)


def rfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """Transform real data over several dims: the last one halved."""
    return _r2c("rfftn", input, *_dims(input, s, dim), norm)


def irfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """Invert ``rfftn``."""
    dims, sizes = _dims(input, s, dim)
    return _c2r("irfftn", input, dims, _half(input, dims, sizes, _given(s)), norm)


def hfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """Transform data that is Hermitian in the last dim to real."""
    dims, sizes = _dims(input, s, dim)
    sizes = _half(input, dims, sizes, _given(s))
    x, way = _fit(_complexed("hfftn", input), dims[:-1], sizes[:-1]), OTHER[_norm(norm)]
    if len(dims) > 1:
        attrs = (("dims", tuple(dims[:-1])), ("inverse", False), ("norm", _norm(norm)))
        x = record(OPS["fft_c2c"], (x,), attrs)
    return _c2r("hfftn", conj(x), dims[-1:], sizes[-1:], way)


def ihfftn(input: Tensor, s: Sizes = None, dim: Any = None, norm: str | None = None) -> Tensor:
    """Invert ``hfftn``."""
    dims, sizes = _dims(input, s, dim)
    x = _fit(_real("ihfftn", input) if input.dtype.kind != "c" else input, dims, sizes)
    out = conj(_r2c("ihfftn", x, dims[-1:], sizes[-1:], OTHER[_norm(norm)]))
    if len(dims) == 1:
        return out
    return record(OPS["fft_c2c"], (out,), (("dims", tuple(dims[:-1])), ("inverse", True), ("norm", _norm(norm))))


def _two(function: Any, name: str) -> Any:
    def two(input: Tensor, s: Sizes = None, dim: Any = (-2, -1), norm: str | None = None) -> Tensor:
        return function(input, s, dim, norm)

    return named(two, name, f"Do ``{function.__name__}`` over the last two dims.")


fft2, ifft2, rfft2, irfft2 = _two(fftn, "fft2"), _two(ifftn, "ifft2"), _two(rfftn, "rfft2"), _two(irfftn, "irfft2")
hfft2, ihfft2 = _two(hfftn, "hfft2"), _two(ihfftn, "ihfft2")


# -- shifts and frequencies


def _shift(input: Tensor, dim: Any, sign: int) -> Tensor:
    dims = list(range(input.ndim)) if dim is None else [dim] if is_int(dim) else list(dim)
    if not dims:
        return input.clone()
    sizes = [input._type.shape[has_dim(d, input)] for d in dims]
    return roll(input, [n // 2 if sign > 0 else (n + 1) // 2 for n in sizes], dims)


def fftshift(input: Tensor, dim: Any = None) -> Tensor:
    """Move frequency 0 to the middle."""
    return _shift(input, dim, 1)


def ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    """Move frequency 0 to the front."""
    return _shift(input, dim, -1)


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Give the frequencies of ``fft``'s results."""
    check_sizes((n,))
    index = arange(n, dtype=dtype or float32)
    from_middle = (index + n // 2) % n - n // 2
    return from_middle / (n * d)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Give the frequencies of ``rfft``'s results."""
    return arange(n // 2 + 1, dtype=dtype or float32) / (n * d)

"""Sample operands of the ops of ``bessel``, ``gamma``, ``strided``, ``fourier``, ``factorization`` and ``combine``.

``samples`` imports this at its end. Next: ``samples`` (the registry and its helpers).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gt.ir.types import complex64, float32, float64, int32, int64
from tests.property.samples import SAMPLES, Rng, Sample, binary, samples, unary, values

WIDE = (float32, float64)


def wide(make: Any, **options: Any) -> Any:
    """Keep the samples whose operands are float32 or float64."""

    def generate(rng: Rng) -> Iterator[Sample]:
        for s in make(rng):
            if all(d in WIDE for d in s.dtypes):
                yield Sample(
                    s.arrays,
                    s.dtypes,
                    s.attrs,
                    s.gradient,
                    s.smooth and options.get("smooth", True),
                    options.get("tolerance", {}).get(s.dtypes[0]),
                )

    return generate


LOOSE = {float32: 3e-4, float64: 1e-6}  # torch's own kernels are good to about single precision here
for _name in ("i0", "i0e", "i1", "i1e"):
    SAMPLES[_name] = wide(unary("f", -3.0, 3.0, special=(0.0, 1.0, -1.0)), tolerance=LOOSE)
SAMPLES["airy_ai"] = wide(unary("f", -4.0, 4.0, special=(0.0, 1.0)), tolerance={float32: 1e-3, float64: 1e-4})
for _name in ("bessel_j0", "bessel_j1", "spherical_bessel_j0"):
    SAMPLES[_name] = wide(unary("f", -4.0, 4.0, special=(0.0, 1.0)), tolerance=LOOSE)
for _name in (
    "bessel_y0",
    "bessel_y1",
    "modified_bessel_k0",
    "modified_bessel_k1",
    "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
):
    SAMPLES[_name] = wide(unary("f", 0.2, 6.0, special=(1.0, 2.0)), tolerance=LOOSE)
SAMPLES["erfcx"] = wide(unary("f", -2.0, 4.0, special=(0.0, 1.0, 30.0)), tolerance={float32: 1e-4, float64: 1e-10})
SAMPLES["ndtri"] = wide(unary("f", 0.05, 0.95, special=(0.0, 1.0, 0.5)), tolerance={float32: 1e-4, float64: 1e-8})
SAMPLES["log_ndtr"] = wide(unary("f", -5.0, 3.0, special=(0.0, -10.0)), tolerance={float32: 1e-4, float64: 1e-8})
SAMPLES["polygamma"] = lambda rng: (
    Sample(s.arrays, s.dtypes, {"n": n}, tolerance=LOOSE[s.dtypes[0]])
    for n in (1, 2)
    for s in wide(unary("f", 0.3, 4.0, special=(1.0, 2.0)))(rng)
)
SAMPLES["zeta"] = wide(binary("f", 1.5, 4.0), tolerance=LOOSE)
SAMPLES["igamma"] = SAMPLES["igammac"] = wide(binary("f", 0.3, 4.0), tolerance=LOOSE)
SAMPLES["gcd"] = binary("ui", 1)


@samples("frexp")
def _frexp(rng: Rng) -> Iterator[Sample]:
    for dtype in WIDE:
        for s in ((), (0,), (4,), (2, 3)):
            yield Sample((values(rng, s, dtype, 0.3, 9.0),), (dtype,))


@samples("power_of_two")
def _power_of_two(rng: Rng) -> Iterator[Sample]:
    for dtype in WIDE:
        for s in ((), (0,), (2, 3)):
            yield Sample((values(rng, s, dtype), np.asarray(rng.integers(-4, 5, s), np.int32)), (dtype, int32))


@samples(*(
    f"{p}{n}" for n in ("chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w")
    for p in ("", "shifted_")
), "hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p")  # fmt: skip
def _polynomials(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in WIDE:
        for s in ((), (0,), (5,), (2, 3)):
            x, n = rng.uniform(0.1, 0.9, s), rng.integers(-1, 6, s)
            yield Sample(
                (np.asarray(x, dtype.numpy), np.asarray(n, dtype.numpy)),
                (dtype,) * 2,
                gradient=False,
                tolerance=LOOSE[dtype],
            )


# -- strided

WINDOWS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((3, 4), {"size": (3,), "stride": (5,), "offset": 0}), ((3, 4), {"size": (3, 2, 3), "stride": (4, 1, 1), "offset": 0}),
    ((12,), {"size": (2, 3), "stride": (1, 2), "offset": 4}), ((0,), {"size": (0, 2), "stride": (1, 1), "offset": 0}),
)  # fmt: skip


@samples("as_strided", "as_strided_add", "as_strided_scatter")
def _strided(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in (float64, float32, int64):
        for s, attrs in WINDOWS:
            x, part = values(rng, s, dtype), values(rng, attrs["size"], dtype)
            if name == "as_strided":
                yield Sample((x,), (dtype,), attrs)
            elif name == "as_strided_add":
                yield Sample((part,), (dtype,), {"shape": s} | attrs)
            elif attrs["stride"] != (4, 1, 1):  # writes that overlap have no one meaning
                yield Sample((x, part), (dtype,) * 2, attrs)


# -- fourier

TRANSFORMS = (((6,), (0,)), ((3, 5), (1,)), ((2, 4, 3), (0, 2)), ((2, 3, 4), (1, 2)))


@samples("fft_c2c", "fft_r2c", "fft_c2r")
def _fourier(rng: Rng, name: str) -> Iterator[Sample]:
    for s, dims in TRANSFORMS:
        for norm in ("backward", "ortho", "forward"):
            if name == "fft_c2c":
                for inverse in (False, True):
                    yield Sample(
                        (values(rng, s, complex64),),
                        (complex64,),
                        {"dims": dims, "inverse": inverse, "norm": norm},
                        smooth=False,
                    )
            elif name == "fft_r2c":
                yield Sample((values(rng, s, float32),), (float32,), {"dims": dims, "norm": norm}, smooth=False)
            else:
                size = 2 * (s[dims[-1]] - 1)
                x = np.fft.rfftn(rng.normal(size=(*s[: dims[-1]], size, *s[dims[-1] + 1 :])), axes=dims)
                yield Sample(
                    (x.astype(np.complex64),), (complex64,), {"dims": dims, "size": size, "norm": norm}, gradient=False
                )


# -- factorization

MATRICES = ((3, 3), (2, 4, 4), (1, 1), (0, 2, 2))


def regular(rng: Rng, s: tuple[int, ...]) -> np.ndarray:
    """A matrix far from singular, whose singular values are apart."""
    m, n = s[-2:]
    return rng.normal(size=s) * 0.2 + np.eye(m, n) * (1.0 + np.arange(n))


@samples("qr", "svdvals", "slogdet", "lu", "pinv", "matrix_exp", "solve_triangular")
def _factorization(rng: Rng, name: str) -> Iterator[Sample]:
    shapes = MATRICES if name in ("slogdet", "matrix_exp", "solve_triangular") else (*MATRICES, (4, 3), (3, 4))
    for dtype in WIDE:
        for s in shapes:
            x = np.asarray(regular(rng, s), dtype.numpy)
            tolerance = {float32: 2e-3, float64: 1e-8}[dtype]
            variants: tuple[dict[str, Any], ...] = {
                "qr": ({"complete": False},),
                "lu": ({"check": False}, {"check": True}),
                "pinv": ({"rtol": 1e-6, "atol": 0.0, "hermitian": False},),
                "solve_triangular": tuple({"upper": u, "left": left, "unit": n} for u in (False, True) for left in (False, True) for n in (False, True)),
            }.get(name, ({},))  # fmt: skip
            for attrs in variants:
                arrays: tuple[Any, ...] = (x,)
                if name == "solve_triangular":
                    tail = (s[-1], 2) if attrs["left"] else (2, s[-1])
                    arrays = (x, values(rng, (*s[:-2], *tail), dtype))
                # signs of vectors are free, and triangles that are not read have no slope: torch alone is the judge
                smooth = name in ("svdvals", "slogdet", "matrix_exp", "pinv")
                yield Sample(arrays, (dtype,) * len(arrays), attrs, smooth=smooth, tolerance=tolerance)


# -- combine


@samples("scatter_reduce")
def _scatter_reduce(rng: Rng) -> Iterator[Sample]:
    for dtype in (float64, float32, int64):
        for s, i, dim in (((5,), (4,), 0), ((3, 4), (2, 4), 0), ((3, 4), (3, 6), 1)):
            for reduce in ("amax", "amin", "prod"):
                index = np.asarray(rng.integers(0, s[dim], i))
                yield Sample(
                    (values(rng, s, dtype, 0.5), index, values(rng, i, dtype, 0.5)),
                    (dtype, int64, dtype),
                    {"dim": dim, "reduce": reduce},
                )


@samples("logcumsumexp")
def _logcumsumexp(rng: Rng) -> Iterator[Sample]:
    for dtype in WIDE:
        for s, dim in (((), 0), ((0,), 0), ((5,), 0), ((2, 3), 1)):
            yield Sample((values(rng, s, dtype),), (dtype,), {"dim": dim})


@samples("logcumsumexp_backward")
def _logcumsumexp_backward(rng: Rng) -> Iterator[Sample]:
    for s, dim in (((0,), 0), ((5,), 0), ((2, 3), 1), ((3, 2), 0)):
        x = values(rng, s, float64)
        yield Sample((values(rng, s, float64), x, np.logaddexp.accumulate(x, axis=dim)), (float64,) * 3, {"dim": dim})


@samples("mode")
def _mode(rng: Rng) -> Iterator[Sample]:
    for dtype in (float64, int64):
        for s, dim in (((), 0), ((5,), 0), ((2, 6), 1), ((6, 2), 0)):
            x = (
                np.stack(
                    [
                        rng.permutation([0, 1, 2, 2, 3, 4][: s[dim]])
                        for _ in range(max(int(np.prod(s, initial=1)) // max(s[dim], 1), 1))
                    ],
                    -1,
                )
                if s
                else np.zeros(1)
            )
            array = x.reshape(s[dim], -1).T.reshape(s) if len(s) == 2 and dim == 1 else x.reshape(s)
            yield Sample((np.asarray(array, dtype.numpy),), (dtype,), {"dim": dim}, smooth=False)


@samples("kthvalue")
def _kthvalue(rng: Rng) -> Iterator[Sample]:
    for dtype in (float64, int64):
        for s, dim, k in (((), 0, 1), ((6,), 0, 6), ((3, 5), 1, 2), ((4, 2), 0, 1), ((0, 3), 1, 2)):
            x = np.asarray(rng.permutation(int(np.prod(s, initial=1))).reshape(s), dtype.numpy)
            yield Sample((x,), (dtype,), {"k": k, "dim": dim}, smooth=False)


@samples("median")
def _median(rng: Rng) -> Iterator[Sample]:
    for s, dim in (((), 0), ((6,), 0), ((3, 5), 1), ((4, 2), 0), ((0, 3), 1)):
        x = np.asarray(rng.permutation(int(np.prod(s, initial=1))).reshape(s))
        for skip in (False, True):
            for dtype in (float64, int64):
                yield Sample((x.astype(dtype.numpy),), (dtype,), {"dim": dim, "skip_nan": skip}, smooth=False)
            if s and x.size:
                holes = np.where(x == 2, np.nan, x.astype(np.float64))
                yield Sample((holes,), (float64,), {"dim": dim, "skip_nan": skip}, gradient=False)

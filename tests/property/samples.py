"""Sample operands for every op of the table: the one registry all generated op tests draw from.

Each entry is a generator ``(rng) -> Sample...`` that covers 0-d, size 0, size 1 and general shapes and the op's
dtypes. An op without an entry fails ``test_every_op_has_samples``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.evaluate import as_dtype, evaluate_node
from gt.ir.opdef import OPS, OpDef
from gt.ir.types import (
    DType,
    TensorType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
)  # fmt: skip

Rng = np.random.Generator
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sample:
    """Operands and attributes of one call. ``gradient``: the vjp is checked here.

    ``smooth``: finite differences hold here too. ``tolerance``: in place of the dtype's own; 0 compares bits.
    """

    arrays: tuple[Any, ...]
    dtypes: tuple[DType, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    gradient: bool = True
    smooth: bool = True
    tolerance: float | None = None

    @property
    def types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(np.shape(a), d) for a, d in zip(self.arrays, self.dtypes, strict=True))

    def operands(self) -> list[np.ndarray]:
        return [as_dtype(np.asarray(a), d) for a, d in zip(self.arrays, self.dtypes, strict=True)]


SAMPLES: dict[str, Callable[[Rng], Iterator[Sample]]] = {}
SHAPES: tuple[Shape, ...] = ((), (0,), (1,), (5,), (2, 3), (3, 0, 2), (4, 1, 3))
PAIRS: tuple[tuple[Shape, Shape], ...] = (
    ((), ()),
    ((3,), ()),
    ((), (2, 3)),
    ((2, 3), (3,)),
    ((4, 1), (1, 5)),
    ((0, 3), (1, 3)),
    ((2, 3, 4), (2, 3, 4)),
    ((1,), (6,)),
)
DTYPES = {
    "b": (bool_,),
    "u": (uint8,),
    "i": (int8, int16, int32, int64),
    "f": (float16, bfloat16, float32, float64),
    "c": (complex64, complex128),
}


def values(rng: Rng, shape: Shape, dtype: DType, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if dtype.kind in "ui":
        return np.asarray(
            rng.integers(max(0 if dtype.kind == "u" else -5, int(low) if low > 0 else -5), 6, shape), dtype.numpy
        )
    if dtype.kind == "c":
        return np.asarray(rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape), dtype.numpy)
    return as_dtype(np.asarray(rng.uniform(low, high, shape)), dtype)


def shape(rng: Rng, low: int = 0, high: int = 3) -> Shape:
    return tuple(int(n) for n in rng.integers(1, 6, rng.integers(low, high + 1)))


def dtypes_of(kinds: str) -> list[DType]:
    return [d for k in kinds for d in DTYPES[k]]


def samples(*names: str) -> Callable[[Callable[..., Iterator[Sample]]], Callable[..., Iterator[Sample]]]:
    """Register a generator for ops; with several names it gets the name as its second argument."""

    def register(function: Callable[..., Iterator[Sample]]) -> Callable[..., Iterator[Sample]]:
        for name in names:
            assert name not in SAMPLES, name
            SAMPLES[name] = function if len(names) == 1 else (lambda rng, n=name: function(rng, n))
        return function

    return register


def unary(
    kinds: str,
    low: float = -2.0,
    high: float = 2.0,
    points: tuple[float, ...] = (),
    attrs: dict[str, Any] | None = None,
    special: tuple[float, ...] = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0),
) -> Any:
    """Samples of an elementwise op of one operand. ``points``: where gradients are exact but not smooth."""

    attrs = attrs or {}

    def generate(rng: Rng) -> Iterator[Sample]:
        for dtype in dtypes_of(kinds):
            for s in (*SHAPES, shape(rng)) if dtype in (float64, int64, complex64) else ((2, 3), (0,)):
                yield Sample((values(rng, s, dtype, low, high),), (dtype,), attrs)
            if points and dtype.kind == "f":
                yield Sample((np.array(points),), (dtype,), attrs, smooth=False)
            if dtype.kind == "f":
                yield Sample((np.array(special),), (dtype,), attrs, gradient=False)

    return generate


def binary(
    kinds: str, low: float = -2.0, high: float = 2.0, points: Any = (), quarters: bool = False, **attrs: Any
) -> Any:
    """Samples of an elementwise op of two operands that broadcast.

    ``quarters``: halves are multiples of 1/4, so that no quotient is rounded to a whole number, which torch's own eager
    and compiled kernels do differently: eager ones round before they truncate.
    """

    def generate(rng: Rng) -> Iterator[Sample]:
        for dtype in dtypes_of(kinds):
            full = dtype in (float64, int64, complex64)
            for a, b in PAIRS if full else (((2, 3), (3,)), ((), (2,))):
                operands = values(rng, a, dtype, low, high), values(rng, b, dtype, low, high)
                if quarters and dtype in (float16, bfloat16):
                    operands = np.rint(4 * operands[0]) / 4, np.rint(4 * operands[1]) / 4
                yield Sample(operands, (dtype,) * 2, attrs)
            if len(points) and dtype.kind == "f":
                a, b = (np.array(p) for p in points)
                yield Sample((a, b), (dtype,) * 2, attrs, smooth=False)

    return generate


for _names, _make in (
    ("neg", unary("uifc")),
    ("copy", unary("buifc")),
    ("conj", unary("buifc")),
    ("square", unary("uifc")),
    ("exp log sqrt rsqrt reciprocal sin cos tan sinh cosh tanh sigmoid", unary("f", 0.1, 1.4)),
    ("exp2 expm1 erf erfc atan asinh silu logsigmoid mish sinc", unary("f", -2.0, 2.0, (-30.0, -1.0, 0.0, 1.0, 30.0))),
    ("log1p log2 log10 lgamma digamma entr", unary("f", 0.1, 4.0)),
    ("asin acos atanh erfinv", unary("f", -0.9, 0.9)),
    ("acosh", unary("f", 1.1, 4.0)),
    ("selu hardswish hardsigmoid", unary("f", -5.0, 5.0, (-3.0, 0.0, 3.0))),
    ("relu", unary("uif", points=(-1.0, 0.0, 1.0))),
    ("abs sign", unary("uif", points=(-1.0, 0.0, 2.0))),
    ("floor ceil trunc round", unary("uif", -3.4, 3.4, (0.5, 1.5, 2.5, -0.5))),
    ("sgn real imag view_as_real", unary("c")),
    ("isnan isinf isfinite logical_not", unary("buif")),
    ("signbit", unary("uif", special=(np.inf, -np.inf, 0.0, -0.0))),
    ("bitwise_not", unary("bui")),
    ("angle", unary("f")),
    ("add mul", binary("buifc")),
    ("sub", binary("uifc")),
    ("div", binary("f", 0.5, 2.0)),
    ("eq ne", binary("buifc", points=((1.0, 2.0), (1.0, 3.0)))),
    ("lt le gt ge", binary("buif")),
    ("clamp_min clamp_max", binary("uif", points=((1.0, 2.0, 0.0, 3.0), (1.0, 1.0, 0.0, 4.0)))),
    ("maximum minimum", binary("buif", points=((1.0, 2.0, 0.0, 3.0), (1.0, 1.0, 0.0, 4.0)))),
    ("fmax fmin", binary("buif", points=((1.0, 2.0, 0.0, np.nan), (1.0, 1.0, np.nan, 4.0)))),
    ("logical_and logical_or logical_xor", binary("buif")),
    ("bitwise_and bitwise_or bitwise_xor", binary("bui")),
    ("floor_divide trunc_divide remainder fmod", binary("uif", 1.1, 5.0, quarters=True)),
    ("left_shift right_shift", binary("i", 1)),
    ("atan2 hypot", binary("f", 0.2, 2.0)),
    ("copysign logaddexp", binary("f")),
    ("nextafter", binary("f")),
    ("complex", binary("f")),
    ("binary_cross_entropy", binary("f", 0.1, 0.9, ((0.0, 1.0, 1.0, 1e-14), (1.0, 0.0, 1.0, 1.0)))),
    ("xlog1py", binary("f", 0.2, 2.0, ((0.0, 0.0, 1.0), (-1.0, 2.0, 1.0)))),
    ("xlogy", binary("f", 0.2, 2.0, ((0.0, 0.0, 1.0), (0.0, 2.0, 1.0)))),
    ("pow", binary("f", 0.3, 2.0, ((0.0, 0.0, 2.0, -2.0), (0.0, 2.0, 0.0, 2.0)))),
):
    for _name in _names.split():
        SAMPLES[_name] = _make
_HOLOMORPHIC = "exp log sqrt reciprocal sin cos tan sinh cosh tanh expm1 log1p log2 log10 asin acos atan asinh acosh atanh"
for _name in _HOLOMORPHIC.split():
    SAMPLES[_name] = (lambda real, whole: lambda rng: (s for make in (real, whole) for s in make(rng)))(SAMPLES[_name], unary("c", 0.2, 0.9))
for _name, _low in (("abs", -2.0), ("square", -2.0), ("pow", 0.3), ("div", 0.5), ("sigmoid", 0.2), ("rsqrt", 0.3)):
    _more = binary("c", _low, 2.0) if _name in ("pow", "div") else unary("c", _low, 2.0)
    SAMPLES[_name] = (lambda real, whole: lambda rng: (s for make in (real, whole) for s in make(rng)))(SAMPLES[_name], _more)
SAMPLES["nextafter"] = lambda rng: (s for s in binary("f")(rng) if s.dtypes[0] in (float32, float64))
SAMPLES["complex"] = lambda rng: (s for s in binary("f")(rng) if s.dtypes[0] in (float32, float64))
for _name, _attrs in (
    ("gelu", ({"approximate": "none"}, {"approximate": "tanh"})), ("softplus", ({"beta": 2.0, "threshold": 3.0},)),
    ("leaky_relu", ({"slope": 0.1},)), ("elu", ({"alpha": 0.7},)), ("hardtanh", ({"low": -1.0, "high": 1.5},)),
    ("nan_to_num", ({"nan": 0.5, "posinf": 3.0, "neginf": -4.0},)),
    ("integer_pow", tuple({"exponent": n} for n in (0, 1, 2, 3, 5))),
):  # fmt: skip
    _low = 0.3 if _name == "integer_pow" else -3.0
    _makes = [unary("f", _low, 3.0, attrs=a, special=(0.0, -0.0, 1.0)) for a in _attrs]
    SAMPLES[_name] = lambda rng, makes=_makes: (s for make in makes for s in make(rng))


def attr_cases(kinds: str, cases: tuple[tuple[Shape, dict[str, Any]], ...], **options: Any) -> Any:
    """Samples of a one-operand op from (shape, attributes) cases; all dtypes on the last case."""

    def generate(rng: Rng) -> Iterator[Sample]:
        main = float64 if "f" in kinds else dtypes_of(kinds)[-1]
        for s, attrs in cases:
            yield Sample((values(rng, s, main),), (main,), attrs, **options)
        for dtype in dtypes_of(kinds):
            yield Sample((values(rng, cases[-1][0], dtype),), (dtype,), cases[-1][1], **options)

    return generate


REDUCTIONS: tuple[tuple[Shape, dict[str, Any]], ...] = tuple(
    (s, {"dims": dims, "keepdim": keepdim})
    for s, dims in (
        ((), ()),
        ((5,), (0,)),
        ((1, 4), (0,)),
        ((3, 0, 2), (0,)),
        ((2, 3, 4), (0, 2)),
        ((2, 3, 4), (1,)),
        ((3, 4), (0, 1)),
    )
    for keepdim in (False, True)
)
EMPTY: tuple[tuple[Shape, dict[str, Any]], ...] = (((3, 0), {"dims": (1,), "keepdim": False}),)


@samples("sum")
def _sum(rng: Rng) -> Iterator[Sample]:
    for s, attrs in (*EMPTY, *REDUCTIONS):
        yield Sample((values(rng, s, float64),), (float64,), attrs | {"dtype": float64})
    for source, target in ((bool_, int64), (uint8, int64), (int32, int64), (float16, float32), (float16, float16),
                           (bfloat16, bfloat16), (float32, float64), (complex64, complex64)):  # fmt: skip
        yield Sample((values(rng, (4, 3), source),), (source,), {"dims": (0,), "keepdim": False, "dtype": target})


for _names, _make in (
    ("amax amin", attr_cases("buif", REDUCTIONS)),
    ("any all", attr_cases("b", (*EMPTY, *REDUCTIONS))),
    ("mean logsumexp norm", attr_cases("f", REDUCTIONS)),
    ("prod", attr_cases("uif", (*EMPTY, *REDUCTIONS))),
    (
        "var",
        attr_cases("f", tuple((s, a | {"correction": c}) for s, a in REDUCTIONS[2:] for c in (0, 1) if s != (1, 4))),
    ),
    (
        "argmax argmin",
        attr_cases(
            "buif",
            tuple(
                (s, {"dim": d, "keepdim": k})
                for s, d in (((), 0), ((5,), 0), ((1, 3), 0), ((2, 3, 4), 1))
                for k in (False, True)
            ),
        ),
    ),
    (
        "cumsum cumprod cummax cummin",
        attr_cases("uif", tuple((s, {"dim": d}) for s, d in (((), 0), ((5,), 0), ((3, 0), 0), ((2, 3, 4), 1)))),
    ),
    (
        "softmax log_softmax",
        attr_cases("f", tuple((s, {"dim": d}) for s, d in (((), 0), ((5,), 0), ((3, 0), 0), ((2, 3, 4), 1)))),
    ),
):
    for _name in _names.split():
        SAMPLES[_name] = _make


def with_ties(make: Any, attrs: dict[str, Any]) -> Any:
    def generate(rng: Rng) -> Iterator[Sample]:
        yield from make(rng)
        yield Sample((np.array([[1.0, 2.0, 2.0], [3.0, 3.0, 3.0]]),), (float64,), attrs, smooth=False)
        yield Sample((np.zeros((2, 3)),), (float64,), attrs, smooth=False)

    return generate


for _name in ("amax", "amin", "prod", "norm"):
    SAMPLES[_name] = with_ties(SAMPLES[_name], {"dims": (1,), "keepdim": False})
SAMPLES["cumprod"] = with_ties(SAMPLES["cumprod"], {"dim": 1})
SAMPLES["prod"] = (lambda make: lambda rng: (
    *make(rng), Sample((np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 2.0]]),), (float64,), {"dims": (1,), "keepdim": False})
))(SAMPLES["prod"])  # fmt: skip


@samples("clamp")
def _clamp(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("uif"):
        for s in ((), (2, 3), (0,)):
            yield Sample(
                (values(rng, s, dtype), values(rng, (), dtype, 0, 1), values(rng, (), dtype, 1, 2)), (dtype,) * 3
            )
    yield Sample((np.array([0.0, 1.0, 2.0, 0.5]), np.array(0.0), np.array(1.0)), (float64,) * 3, smooth=False)


@samples("where")
def _where(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("buifc"):
        for c, a, b in (((), (), ()), ((2, 3), (3,), ()), ((3,), (2, 1), (2, 3)), ((0,), (1,), ())):
            arrays = (values(rng, c, bool_), values(rng, a, dtype), values(rng, b, dtype))
            yield Sample(arrays, (bool_, dtype, dtype))


@samples("cast")
def _cast(rng: Rng) -> Iterator[Sample]:
    for source in dtypes_of("buifc"):
        for target in dtypes_of("buif") if source is not complex64 else [complex64]:
            yield Sample((np.abs(values(rng, (2, 3), source)) if target.kind == "u" else values(rng, (2, 3), source),),
                         (source,), {"dtype": target}, smooth=source is float64 and target is float64)  # fmt: skip


@samples("alias")
def _alias(rng: Rng) -> Iterator[Sample]:
    for s in SHAPES:
        yield Sample((values(rng, s, float64),), (float64,), gradient=False)


@samples("graft")
def _graft(rng: Rng) -> Iterator[Sample]:
    for s in SHAPES:  # gradients pass to the first operand, values from the second: not what differences give
        yield Sample((values(rng, s, float64), values(rng, s, float64)), (float64,) * 2, gradient=False)


@samples("in_range")
def _in_range(rng: Rng) -> Iterator[Sample]:
    for s in SHAPES:
        yield Sample((rng.integers(0, 5, s),), (int64,), {"size": 5, "ignore": None})
        yield Sample((rng.integers(0, 5, s) * 7 - 7 * (rng.random(s) < 0.5).astype(np.int64),), (int64,), {"size": 29, "ignore": -7})


@samples("fence")
def _fence(rng: Rng) -> Iterator[Sample]:
    for s, t in (((), ()), ((2, 3), (2, 3)), ((4, 2), (4, 5, 2)), ((6,), ()), ((), (4,)), ((1, 4), (2, 4)), ((0, 2), (3,))):
        yield Sample((values(rng, s, float64), values(rng, t, float64)), (float64, float64))
    yield Sample((values(rng, (4, 2), int64), values(rng, (4,), float32)), (int64, float32))


RESHAPES = (((), (1, 1)), ((6,), (2, 3)), ((4, 6), (24,)), ((4, 6), (2, 2, 6)), ((2, 3, 4), (6, 4)), ((0, 3), (3, 0)),
            ((12, 2), (4, 6)), ((1, 4), (4,)), ((4, 3, 2), (2, 2, 3, 2)))  # fmt: skip
SLICES = (
    ((), {"starts": (), "stops": (), "steps": ()}),
    ((5,), {"starts": (1,), "stops": (4,), "steps": (1,)}),
    ((7, 4), {"starts": (1, 0), "stops": (7, 4), "steps": (2, 1)}),
    ((3, 2), {"starts": (0, 0), "stops": (3, 2), "steps": (1, 1)}),
    ((4, 3), {"starts": (4, 0), "stops": (4, 3), "steps": (2, 1)}),
    ((0, 2), {"starts": (0, 1), "stops": (0, 2), "steps": (1, 1)}),
    ((6, 5), {"starts": (0, 1), "stops": (6, 5), "steps": (1, 3)}),
)
SAMPLES["reshape"] = attr_cases("buifc", tuple((s, {"shape": t}) for s, t in RESHAPES))
SAMPLES["expand"] = attr_cases(
    "buifc",
    tuple(
        (s, {"shape": t})
        for s, t in (((), ()), ((), (3,)), ((1,), (4,)), ((3, 1), (2, 3, 4)), ((0,), (2, 0)), ((1, 3), (5, 3)))
    ),
)
SAMPLES["permute"] = attr_cases("buifc", tuple((s, {"dims": d}) for s, d in (
    ((), ()), ((3,), (0,)), ((2, 3), (1, 0)), ((0, 2), (1, 0)), ((2, 3, 4), (2, 0, 1)))))  # fmt: skip
SAMPLES["slice"] = attr_cases("buifc", SLICES)
SAMPLES["flip"] = attr_cases("buifc", (((3,), {"dims": (0,)}), ((0, 2), {"dims": (0,)}), ((2, 3, 4), {"dims": (0, 2)})))
SAMPLES["roll"] = attr_cases("buifc", (((3,), {"shifts": (1,), "dims": (0,)}), ((0, 2), {"shifts": (1,), "dims": (0,)}),
                                       ((2, 3, 4), {"shifts": (-1, 5), "dims": (0, 2)}),
                                       ((5, 3), {"shifts": (-5, 2), "dims": (0, 1)}), ((3,), {"shifts": (1, 2), "dims": (0, 0)}),
                                       ((8,), {"shifts": (16,), "dims": (0,)})))  # fmt: skip
SAMPLES["windows"] = attr_cases("uif", (
    ((5,), {"rows": (((1, 0, 3, 1, 1), (4, 2, 3, 1, 1)),), "sizes": (8,), "fill": 0}),
    ((2, 4), {"rows": (((0, 0, 2, 1, 1),), ((0, 1, 2, 1, 1), (2, 1, 3, 1, 1))), "sizes": (2, 6), "fill": 1}),
    ((3, 2, 4), {"rows": ((), ((0, 0, 2, 1, 1),), ((0, 2, 2, 1, 1),)), "sizes": (2, 2, 2), "fill": 0}),
    ((6, 3), {"rows": (((0, 0, 4, 1, 1), (4, 2, 4, 1, 1)), ((0, 0, 3, 1, 1),)), "sizes": (8, 3), "fill": 0}),
))  # fmt: skip
SAMPLES["pad"] = attr_cases(
    "uif",
    tuple(
        (s, {"low": lo, "high": hi, "interior": i, "value": v})
        for s, lo, hi, i, v in (
            ((), (), (), (), 0),
            ((3,), (1,), (2,), (0,), 0),
            ((0,), (2,), (1,), (1,), 1),
            ((2, 3), (0, 1), (0, 2), (0, 0), 2),
            ((2, 3, 4), (1, 0, 2), (0, 0, 1), (1, 0, 2), 0),
        )
    ),
)


@samples("view_as_complex")
def _view_as_complex(rng: Rng) -> Iterator[Sample]:
    for dtype in (float32, float64):
        for s in (*SHAPES, shape(rng)):
            yield Sample((values(rng, (*s, 2), dtype),), (dtype,))


@samples("slice_scatter")
def _slice_scatter(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("buifc"):
        for s, attrs in SLICES[-1:] if dtype is not float64 else SLICES:
            part = OPS["slice"].infer_types((TensorType(s, dtype),), tuple(attrs.items()))[0].shape
            yield Sample((values(rng, s, dtype), values(rng, part, dtype)), (dtype,) * 2, attrs)


@samples("cat")
def _cat(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("buifc"):
        for shapes, dim in ((((2,), (0,), (3,)), 0), (((2, 3), (2, 1)), 1), (((4, 3, 1),), 0)):
            yield Sample(tuple(values(rng, s, dtype) for s in shapes), (dtype,) * len(shapes), {"dim": dim})


@samples("full")
def _full(rng: Rng) -> Iterator[Sample]:
    for s in SHAPES:
        for value, dtype in ((1.5, float32), (3, int64), (True, bool_), (float("inf"), float64), (0.1, bfloat16)):
            yield Sample((), (), {"shape": s, "value": value, "dtype": dtype})


@samples("iota")
def _iota(rng: Rng) -> Iterator[Sample]:
    for s, dim in (((5,), 0), ((0,), 0), ((2, 3), 1), ((4, 3), 0)):
        yield Sample((), (), {"shape": s, "dim": dim, "dtype": int64})
        yield Sample((), (), {"shape": s, "dim": dim, "dtype": float32, "start": 0.5, "step": 0.25})
        yield Sample((), (), {"shape": s, "dim": dim, "dtype": int32, "start": 3, "step": -2})


def _key(rng: Rng) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(rng.integers(0, 2**62)), np.asarray(rng.integers(0, 2**40))


@samples("random_uniform", "random_normal")
def _random(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s in ((), (0,), (7,), (3, 4)):
            yield Sample(
                _key(rng),
                (int64, int64),
                {"shape": s, "dtype": dtype},
                gradient=False,
                tolerance=0.0 if name == "random_uniform" or dtype is not float64 else 1e-14,
            )


@samples("random_bits")
def _random_bits(rng: Rng) -> Iterator[Sample]:
    for s in ((), (0,), (7,), (3, 4)):
        yield Sample(_key(rng), (int64, int64), {"shape": s, "dtype": int64}, gradient=False, tolerance=0.0)


@samples("random_int")
def _random_int(rng: Rng) -> Iterator[Sample]:
    for s in ((), (0,), (7,), (3, 4)):
        for dtype in (int64, int32, uint8):
            yield Sample(
                (*_key(rng), np.asarray(2), np.asarray(9)),
                (int64,) * 4,
                {"shape": s, "dtype": dtype},
                gradient=False,
                tolerance=0.0,
            )


@samples("dropout")
def _dropout(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s in ((), (0,), (7,), (3, 4)):
            for p in (0.3, 0.0):
                yield Sample((values(rng, s, dtype), *_key(rng)), (dtype, int64, int64), {"p": p})


@samples("matmul")
def _matmul(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("uifc"):
        for a, b in (
            ((2, 3), (3, 4)),
            ((5, 2, 3), (3, 1)),
            ((2, 1, 3, 4), (5, 4, 2)),
            ((0, 3), (3, 2)),
            ((2, 0), (0, 3)),
        ):
            if dtype is float64 or a == (5, 2, 3):
                yield Sample((values(rng, a, dtype), values(rng, b, dtype)), (dtype,) * 2)


@samples("linear")
def _linear(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("f"):
        for s in ((3,), (5, 3), (2, 4, 3), (0, 3)):
            arrays = (values(rng, s, dtype), values(rng, (4, 3), dtype), values(rng, (4,), dtype))
            yield Sample(arrays, (dtype,) * 3)
            yield Sample(arrays[:2], (dtype,) * 2)


@samples("linear_backward_weight")
def _linear_backward_weight(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("f"):
        for rows in ((), (5,), (2, 4), (0,)):
            for n, k in ((4, 3), (1, 6)):
                yield Sample((values(rng, (*rows, n), dtype), values(rng, (*rows, k), dtype)), (dtype,) * 2)


LOSSES: tuple[tuple[Shape, int], ...] = (((4,), 0), ((5, 4), 1), ((3, 4, 2), 1))


def _targets(rng: Rng, s: Shape, dim: int) -> np.ndarray:
    out = np.asarray(rng.integers(0, s[dim], (*s[:dim], *s[dim + 1 :])))
    if out.size > 2:
        out.reshape(-1)[1] = -100
    return out


@samples("nll_loss")
def _nll(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s, dim in LOSSES:
            for reduction in ("sum", "none"):
                yield Sample(
                    (values(rng, s, dtype), _targets(rng, s, dim)),
                    (dtype, int64),
                    {"reduction": reduction, "ignore_index": -100},
                )


@samples("cross_entropy_grad")
def _cross_entropy_grad(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s in ((4, 5), (1, 3), (3, 1), (0, 4)):
            number = dtype if dtype.itemsize > 2 else float32
            yield Sample((values(rng, s, dtype), _targets(rng, s, 1), values(rng, (), number)), (dtype, int64, number), {"ignore_index": -100})


@samples("nll_loss_backward")
def _nll_backward(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s, dim in LOSSES:
            target = _targets(rng, s, dim)
            for g in ((), target.shape):
                yield Sample((values(rng, g, dtype), target), (dtype, int64), {"shape": s, "ignore_index": -100})


@samples("cross_entropy")
def _cross_entropy(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s, dim in LOSSES:
            for reduction in ("mean", "sum", "none"):
                for smoothing in (0.0, 0.2):
                    attrs = {"reduction": reduction, "ignore_index": -100, "label_smoothing": smoothing}
                    yield Sample((values(rng, s, dtype), _targets(rng, s, dim)), (dtype, int64), attrs)
                    soft = rng.dirichlet(np.ones(s[dim]), (*s[:dim], *s[dim + 1 :]))
                    yield Sample(
                        (values(rng, s, dtype), as_dtype(np.moveaxis(soft, -1, dim), dtype)), (dtype,) * 2, attrs
                    )


@samples("embedding")
def _embedding(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s in ((), (0,), (6,), (2, 3)):
            for padding in (-1, 2):
                arrays = (values(rng, (5, 4), dtype), np.asarray(rng.integers(0, 5, s)))
                yield Sample(arrays, (dtype, int64), {"padding_idx": padding}, smooth=padding < 0)


@samples("embedding_backward")
def _embedding_backward(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s in ((0,), (6,), (2, 3)):
            arrays = (values(rng, (*s, 4), dtype), np.asarray(rng.integers(0, 5, s)))
            yield Sample(arrays, (dtype, int64), {"rows": 5, "padding_idx": 1})
            yield Sample(arrays, (dtype, int64), {"rows": 5, "padding_idx": -1})


# -- indices


@samples("gather")
def _gather(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("buifc"):
        for s, i, dim in (((), (), 0), ((5,), (3,), 0), ((3, 4), (2, 6), 1), ((3, 4), (3, 2), 1), ((3, 0), (3, 0), 1)):
            arrays = (values(rng, s, dtype), np.asarray(rng.integers(0, max(s[dim], 1) if s else 1, i)))
            yield Sample(arrays, (dtype, int64), {"dim": dim})


@samples("scatter", "scatter_add")
def _scatter(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in dtypes_of("uifc"):
        for s, i, dim in (((), (), 0), ((5,), (3,), 0), ((3, 4), (2, 4), 1), ((3, 4), (3, 2), 1), ((3, 2), (3, 0), 1)):
            size = s[dim] if s else 1
            index = np.asarray(rng.integers(0, size, i))
            if name == "scatter" and s:  # without repeats, so that the result is defined
                index = np.take(np.argsort(rng.random(s), axis=dim), range(i[dim]), axis=dim)[tuple(map(slice, i))]
            yield Sample((values(rng, s, dtype), index, values(rng, i, dtype)), (dtype, int64, dtype), {"dim": dim})


@samples("index_select")
def _index_select(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("buifc"):
        for s, n, dim in (((5,), 3, 0), ((3, 4), 6, 1), ((3, 4), 0, 0)):
            yield Sample((values(rng, s, dtype), np.asarray(rng.integers(0, s[dim], n))), (dtype, int64), {"dim": dim})


@samples("index_add")
def _index_add(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("uifc"):
        for s, n, dim in (((5,), 3, 0), ((3, 4), 6, 1), ((3, 4), 0, 0)):
            source = values(rng, (*s[:dim], n, *s[dim + 1 :]), dtype)
            yield Sample(
                (values(rng, s, dtype), np.asarray(rng.integers(0, s[dim], n)), source),
                (dtype, int64, dtype),
                {"dim": dim},
            )


INDEXED: tuple[tuple[Shape, tuple[Shape, ...], tuple[int, ...]], ...] = (
    ((5,), ((3,),), (0,)),
    ((3, 4), ((2, 3),), (1,)),
    ((3, 4, 2), ((4,), (4,)), (0, 1)),
    ((3, 4, 2), ((2, 1), (3,)), (0, 2)),
    ((3, 4), ((), ()), (0, 1)),
    ((3, 4), ((0,),), (0,)),
)


@samples("index")
def _index(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("buifc"):
        for s, shapes, dims in INDEXED:
            indices = [np.asarray(rng.integers(0, s[d], i)) for d, i in zip(dims, shapes, strict=True)]
            yield Sample((values(rng, s, dtype), *indices), (dtype, *(int64 for _ in indices)), {"dims": dims})


@samples("index_put")
def _index_put(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("uifc"):
        for s, shapes, dims in INDEXED:
            for accumulate in (True, False):
                indices = [np.asarray(rng.integers(0, s[d], i)) for d, i in zip(dims, shapes, strict=True)]
                if not accumulate:  # without repeats
                    block = np.broadcast_shapes(*shapes)
                    if int(np.prod(block)) > s[dims[0]]:
                        continue
                    indices = [np.broadcast_to(i, block) for i in indices]
                    indices[0] = rng.permutation(s[dims[0]])[: int(np.prod(block))].reshape(block)
                taken = OPS["index"].infer_types(
                    (TensorType(s, dtype), *(TensorType(i.shape, int64) for i in indices)), (("dims", dims),)
                )[0].shape  # fmt: skip
                for source in (taken, ()):
                    arrays = (values(rng, s, dtype), *indices, values(rng, source, dtype))
                    yield Sample(
                        arrays, (dtype, *(int64 for _ in indices), dtype), {"dims": dims, "accumulate": accumulate}
                    )


@samples("sort")
def _sort(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("buif"):
        for s, dim in (((), 0), ((0,), 0), ((6,), 0), ((3, 5), 1), ((3, 5), 0)):
            for descending in (False, True):
                yield Sample((values(rng, s, dtype),), (dtype,), {"dim": dim, "descending": descending})
    yield Sample(
        (np.array([np.nan, 1.0, np.inf, -np.inf, np.nan]),), (float64,), {"dim": 0, "descending": True}, gradient=False
    )


@samples("topk")
def _topk(rng: Rng) -> Iterator[Sample]:
    for dtype in dtypes_of("uif"):
        for s, dim, k in (((), 0, 1), ((6,), 0, 2), ((3, 5), 1, 5), ((3, 5), 0, 0)):
            for largest in (False, True):
                x = np.asarray(
                    rng.permutation(int(np.prod(s, initial=1))).reshape(s), dtype.numpy
                )  # no ties: torch breaks them anyhow
                yield Sample((x,), (dtype,), {"k": k, "dim": dim, "largest": largest})


@samples("searchsorted")
def _searchsorted(rng: Rng) -> Iterator[Sample]:
    for dtype in (float32, float64, int64):
        for s in ((), (0,), (4,), (2, 3)):
            for right in (False, True):
                yield Sample(
                    (np.sort(values(rng, (7,), dtype)), values(rng, s, dtype)),
                    (dtype,) * 2,
                    {"right": right},
                    gradient=False,
                )
        for lead in ((4,), (0,), (2, 3)):
            for n, right in ((5, False), (5, True), (0, False)):
                edges = np.sort(values(rng, (*lead, n), dtype), -1)
                yield Sample((edges, values(rng, (*lead, 3), dtype)), (dtype,) * 2, {"right": right}, gradient=False)
    nans, x = np.array([-np.inf, 0, 1, np.nan, np.nan], np.float32), np.array([np.nan, np.inf, -np.inf, -0.0, 2], np.float32)
    for edges in (nans, nans[::-1].copy(), np.array([3, 1, 2, 5, 0], np.float32)):
        for right in (False, True):
            yield Sample((edges, x), (float32,) * 2, {"right": right}, gradient=False)
            yield Sample((np.stack([edges, nans]), np.stack([x, x])), (float32,) * 2, {"right": right}, gradient=False)


SAMPLES["tril"] = SAMPLES["triu"] = attr_cases("buifc", tuple(
    (s, {"diagonal": d}) for s in ((0, 3), (1, 1), (4, 6), (2, 5, 3)) for d in (-2, 0, 1)))  # fmt: skip


@samples("one_hot")
def _one_hot(rng: Rng) -> Iterator[Sample]:
    for s in ((), (0,), (4,), (2, 3)):
        for dtype in (int64, float32):
            yield Sample((np.asarray(rng.integers(0, 5, s)),), (int64,), {"classes": 5, "dtype": dtype}, gradient=False)


@samples("cumprod_backward")
def _cumprod_backward(rng: Rng) -> Iterator[Sample]:
    for s, dim in (((), 0), ((4,), 0), ((2, 3), 1), ((3, 0), 0)):
        yield Sample((values(rng, s, float64), values(rng, s, float64)), (float64,) * 2, {"dim": dim})


# -- layers

NORMED: tuple[tuple[Shape, Shape], ...] = (((5,), (5,)), ((4, 6), (6,)), ((2, 3, 4), (3, 4)), ((3, 2, 4), (4,)), ((0, 3), (3,)))


@samples("gelu_backward", "log_softmax_backward")
def _activation_backward(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s in ((), (0, 3), (1,), (4, 5)):
            kinds = ("none", "tanh") if name == "gelu_backward" else range(max(len(s), 1))
            for kind in kinds:
                attrs = {"approximate" if isinstance(kind, str) else "dim": kind}
                yield Sample((values(rng, s, dtype), values(rng, s, dtype)), (dtype,) * 2, attrs)


@samples("layer_norm")
def _layer_norm(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s, w in NORMED:
            yield Sample(
                (values(rng, s, dtype), values(rng, w, dtype), values(rng, w, dtype)), (dtype,) * 3, {"eps": 1e-5}
            )


@samples("layer_norm_backward")
def _layer_norm_backward(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s, w in NORMED:
            x, weight = values(rng, s, dtype), values(rng, w, dtype)
            stat = float32 if dtype in (float16, bfloat16) else dtype
            axes = tuple(range(len(s) - len(w), len(s)))
            mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
            rstd = 1 / np.sqrt(var + 1e-5)
            arrays = (values(rng, s, dtype), x, mean, rstd, weight)
            # torch's kernel on a CPU rounds what rstd then multiplies to the halves' own dtype
            tolerance = {float16: 4e-3, bfloat16: 3e-2}[dtype] * float(rstd.max(initial=1.0)) if stat is not dtype else None
            yield Sample(arrays, (dtype, dtype, stat, stat, dtype), smooth=dtype is float64, tolerance=tolerance)


@samples("rms_norm")
def _rms_norm(rng: Rng) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s, w in NORMED:
            yield Sample((values(rng, s, dtype), values(rng, w, dtype)), (dtype,) * 2, {"eps": 1e-5})


@samples("group_norm", "batch_norm")
def _channel_norm(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in DTYPES["f"]:
        for s in ((4, 6), (3, 4, 5), (2, 4, 3, 2)):
            attrs = {"groups": 2, "eps": 1e-5} if name == "group_norm" else {"eps": 1e-5}
            c = s[1:2]
            yield Sample((values(rng, s, dtype), values(rng, c, dtype), values(rng, c, dtype)), (dtype,) * 3, attrs)


@samples("scaled_dot_product_attention", "attention_backward")
def _attention(rng: Rng, name: str) -> Iterator[Sample]:
    forward = OPS["scaled_dot_product_attention"]
    for dtype in DTYPES["f"]:
        for b, h, s, t, d, e in ((2, 3, 4, 4, 2, 2), (1, 2, 3, 5, 4, 3), (2, 1, 1, 3, 2, 2)):
            for mask, causal in ((None, False), (None, True), ((s, t), False), ((b, 1, s, t), False)):
                arrays = [values(rng, (b, h, *n), dtype) for n in ((s, d), (t, d), (t, e))]
                masks = [] if mask is None else [values(rng, mask, dtype)]
                attrs = {"is_causal": causal, "scale": 0.7}
                if name == "attention_backward":
                    types = tuple(TensorType(a.shape, dtype) for a in (*arrays, *masks))
                    outs = forward.infer_types(types, tuple(attrs.items()))
                    y, lse = evaluate_node(forward, [*arrays, *masks], attrs, outs)
                    dtypes = (dtype,) * 5 + (outs[1].dtype,) + (dtype,) * len(masks)
                    yield Sample((values(rng, y.shape, dtype), *arrays, y, lse, *masks), dtypes, attrs)
                else:
                    yield Sample((*arrays, *masks), (dtype,) * (3 + len(masks)), attrs)


def _conv_attrs(n: int, **over: Any) -> dict[str, Any]:
    base = {
        "stride": (1,) * n,
        "padding": (0,) * n,
        "dilation": (1,) * n,
        "transposed": False,
        "output_padding": (0,) * n,
        "groups": 1,
    }
    return base | over


CONVOLUTIONS: tuple[tuple[Shape, Shape, dict[str, Any]], ...] = (
    ((2, 3, 6), (4, 3, 2), _conv_attrs(1)),
    ((2, 3, 6, 5), (4, 3, 3, 2), _conv_attrs(2, stride=(2, 1), padding=(1, 1))),
    ((3, 4, 7, 6), (6, 2, 2, 3), _conv_attrs(2, groups=2, dilation=(2, 1))),
    ((2, 2, 4, 3, 3), (3, 2, 2, 2, 1), _conv_attrs(3)),
    ((2, 3, 4), (3, 2, 3), _conv_attrs(1, transposed=True, stride=(2,), padding=(1,), output_padding=(1,))),
    ((2, 4, 3, 4), (4, 3, 2, 2), _conv_attrs(2, transposed=True, groups=2, stride=(2, 1))),
)


@samples("convolution", "convolution_input_grad", "convolution_weight_grad")
def _convolution(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in (float64, float32, bfloat16):
        for x, w, attrs in CONVOLUTIONS:
            types = (TensorType(x, dtype), TensorType(w, dtype))
            y = OPS["convolution"].infer_types(types, tuple(attrs.items()))[0].shape
            if name == "convolution":
                yield Sample((values(rng, x, dtype), values(rng, w, dtype)), (dtype,) * 2, attrs)
                yield Sample(
                    (values(rng, x, dtype), values(rng, w, dtype), values(rng, y[1:2], dtype)), (dtype,) * 3, attrs
                )
            elif name == "convolution_input_grad":
                yield Sample((values(rng, y, dtype), values(rng, w, dtype)), (dtype,) * 2, {"shape": x} | attrs)
            else:
                yield Sample((values(rng, y, dtype), values(rng, x, dtype)), (dtype,) * 2, {"shape": w} | attrs)


@samples("max_pool", "max_pool_backward", "avg_pool", "avg_pool_backward")
def _pool(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in (float64, float32, bfloat16):
        for s in ((2, 3, 6, 5), (1, 4, 4, 7)):
            for kernel, stride, padding, ceil_mode in (
                ((2, 2), (2, 2), (0, 0), False),
                ((3, 2), (2, 1), (1, 1), False),
                ((2, 3), (2, 2), (0, 1), True),
            ):
                attrs: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding}
                if name == "max_pool":
                    yield Sample(
                        (values(rng, s, dtype),), (dtype,), attrs | {"dilation": (1, 1), "ceil_mode": ceil_mode}
                    )
                    continue
                if name == "max_pool_backward":
                    attrs |= {"dilation": (1, 1), "ceil_mode": ceil_mode}
                    (y, places) = OPS["max_pool"].infer_types((TensorType(s, dtype),), tuple(attrs.items()))
                    _, at = OPS["max_pool"].numpy(values(rng, s, float64), **attrs)
                    yield Sample((values(rng, y.shape, dtype), at), (dtype, places.dtype), {"shape": s} | attrs)
                    continue
                attrs |= {"ceil_mode": ceil_mode, "count_include_pad": padding == (1, 1)}
                if name == "avg_pool":
                    yield Sample((values(rng, s, dtype),), (dtype,), attrs)
                else:
                    out = OPS["avg_pool"].infer_types((TensorType(s, dtype),), tuple(attrs.items()))[0].shape
                    yield Sample((values(rng, out, dtype),), (dtype,), {"shape": s} | attrs)


@samples("inverse", "det", "cholesky", "solve")
def _linalg(rng: Rng, name: str) -> Iterator[Sample]:
    for dtype in (float64, float32):
        for s in ((3, 3), (2, 4, 4), (1, 1), (0, 2, 2)):
            a = rng.normal(size=s) * 0.3 + 2 * np.eye(s[-1])
            if name == "cholesky":
                a = a @ np.swapaxes(a, -1, -2)
            arrays = (as_dtype(a, dtype), *((values(rng, (*s[:-1], 2), dtype),) if name == "solve" else ()))
            yield Sample(arrays, (dtype,) * len(arrays), smooth=name != "cholesky")


# -- optimizers: attributes, number of states, whether there is a step count

STEPS: dict[str, tuple[tuple[dict[str, Any], int], ...]] = {
    "sgd_step": tuple(
        ({"momentum": m, "nesterov": n, "weight_decay": w, "dampening": d, "maximize": x, "first": f}, int(m != 0))
        for m, n, w, d, x, f in (
            (0, False, 0, 0, False, False),
            (0.9, False, 0.1, 0.2, True, False),
            (0.9, True, 0, 0, False, True),
        )
    ),
    "rmsprop_step": tuple(
        (
            {"alpha": 0.99, "eps": 1e-8, "weight_decay": w, "momentum": m, "centered": c, "maximize": False},
            1 + c + (m != 0),
        )
        for w, m, c in ((0, 0, False), (0.1, 0.9, True))
    ),
    "adagrad_step": (({"lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-10, "maximize": False}, 1),),
    "lion_step": (({"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "maximize": False}, 1),),
    "adam_step": tuple(
        ({"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": w, "amsgrad": a, "maximize": x}, 2 + a)
        for w, a, x in ((0, False, False), (0.1, True, True))
    ),
}
STEPS["adamw_step"] = STEPS["adam_step"]
STEPS["adadelta_step"] = (({"rho": 0.9, "eps": 1e-6, "weight_decay": 0.1, "maximize": True}, 2),)
STEPS["adamax_step"] = (({"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "maximize": False}, 2),)
STEPS["nadam_step"] = STEPS["radam_step"] = tuple(
    ({"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "maximize": d, "decoupled": d}, 2) for d in (False, True)
)
# numbers of a step after the learning rate
SCALARS = {n: [3.0] for n in ("adam_step", "adamw_step", "adagrad_step", "adamax_step")}
SCALARS |= {"nadam_step": [0.02, 0.05, 3.0], "radam_step": [0.1, 0.2]}


@samples(*STEPS)
def _step(rng: Rng, name: str) -> Iterator[Sample]:
    for attrs, states in STEPS[name]:
        for dtype in (float32, float64, bfloat16):
            shapes: list[Shape] = [(4, 3), (5,), ()]
            runs = [[values(rng, s, dtype) for s in shapes] for _ in range(2)]
            runs += [[np.abs(values(rng, s, dtype)) + 0.5 for s in shapes] for _ in range(states)]
            runs[2:3] = [[a + 9 for a in run] for run in runs[2:3]]  # rmsprop: above the squares of the averages
            scalars = [np.array(x) for x in [0.1, *SCALARS.get(name, [])]]
            arrays = tuple(a for run in runs for a in run) + tuple(scalars)
            dtypes = (dtype,) * (3 * len(runs)) + (float64,) * len(scalars)
            yield Sample(arrays, dtypes, {"num": 3} | attrs, gradient=False)


def cases(op: OpDef, seed: int) -> list[Sample]:
    """Give the samples of an op, made from a seed."""
    return list(SAMPLES[op.name](np.random.default_rng(seed)))


from tests.property import sample_families  # noqa: E402, F401 - registers the rarer families

# an elementwise op of one operand without attributes needs no more than this: a new one is tested as soon as it is declared
for _name, _op in OPS.items():
    if _name not in SAMPLES and _op.operands == ("x",) and _op.numpy is not None and _op.factors is fx.elementwise:
        SAMPLES[_name] = unary("f")

# ops that run on no array: collectives, the gradient node
UNSAMPLED = frozenset(name for name, o in OPS.items() if o.numpy is None)
# placement ops: tests/unit/ir/test_collective.py
COVERED_ELSEWHERE = frozenset({"reshard", "shard_slice", "partial_from_part", "partial_from_whole", "mask_pad", "pad_end", "unpad", "dense"})
# their vectors are defined up to sign: tests/unit/test_linalg.py and tests/peer
COVERED_ELSEWHERE |= {"svd", "eigh", "eig", "eigvals"}
# no derivative by their first operand, here as in torch; the functions of the API say so
SECOND_ONLY = frozenset({"igamma", "igammac", "zeta"})
COVERED_ELSEWHERE |= {"boundary"}  # a user function on the tape: tests/unit/test_autograd.py

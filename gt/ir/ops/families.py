"""Constructors for families of ops: what unary, binary, comparing and reducing ops have in common is said once here.

Owns: dtype checks, shared ``infer`` functions and sharding rules. Must not know: any one op.
Next: ``broadcast`` (the ops every gradient needs), then one file per family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.graph import AttrValue
from gt.ir.opdef import Local, OpDef, op
from gt.ir.tiles import Rows, Span
from gt.ir.types import DType, KindError, Shape, TensorType, TypeMismatch, bool_, broadcast_shapes, scalar_type

Infer = Callable[..., TensorType]
Vjp = Callable[..., Any]

ALL, NUMERIC, REAL, FLOAT, FLOATING = "buifc", "uifc", "buif", "f", "fc"
WORDS = {"b": "bool", "u": "uint8", "i": "signed integers", "f": "floating point", "c": "complex"}


def check_kind(name: str, kinds: str, type_: TensorType) -> None:
    """Raise KindError unless the dtype is of one of ``kinds``."""
    if type_.dtype.kind not in kinds:
        raise KindError(
            f"\"{name}\" not implemented for '{scalar_type(type_.dtype)}': expected {' or '.join(WORDS[k] for k in kinds)}, got "
            f"{type_!r}: cast it first, e.g. x.float()"
        )


def check_same(name: str, types: Sequence[TensorType]) -> DType:
    """Give the one dtype of the operands. Errors: TypeMismatch naming all."""
    first = types[0].dtype
    if any(t.dtype is not first for t in types):
        raise TypeMismatch(f"{name}: expected operands of one dtype, got {' and '.join(map(repr, types))}")
    return first


def same(name: str, kinds: str = ALL, out: DType | None = None) -> Infer:
    """Shape inference of a unary op: the operand's shape; its dtype or ``out``."""

    def infer(x: TensorType, **_: AttrValue) -> TensorType:
        check_kind(name, kinds, x)
        return TensorType(x.shape, out or x.dtype)

    return infer


def together(name: str, kinds: str = ALL, out: DType | None = None) -> Infer:
    """Shape inference of an n-ary elementwise op: the broadcast shape; the operands' one dtype or ``out``."""

    def infer(*types: TensorType, **_: AttrValue) -> TensorType:
        dtype = check_same(name, types)
        check_kind(name, kinds, types[0])
        return TensorType(broadcast_shapes(*(t.shape for t in types)), out or dtype)

    return infer


def unary(
    name: str, numpy: Callable[..., Any], torch: str, vjp: Vjp | None = None, *, kinds: str = FLOATING, doc: str,
    linear: tuple[tuple[int, ...], ...] = (), out: DType | None = None, **fields: Any,
) -> OpDef:  # fmt: skip
    """Declare an elementwise op of one operand ``x``. ``vjp`` gives the bare gradient: ``(g, y, x) -> gx``."""
    return op(
        name,
        "x",
        infer=same(name, kinds, out),
        numpy=numpy,
        torch=torch,
        factors=fx.elementwise,
        linear=linear,
        doc=doc,
        vjp=None if vjp is None else lambda g, y, x, **attrs: (vjp(g, y, x, **attrs),),
        **fields,
    )


def binary(
    name: str, numpy: Callable[..., Any], torch: str, vjp: Vjp | None = None, *, kinds: str = NUMERIC, doc: str,
    linear: tuple[tuple[int, ...], ...] = (), out: DType | None = None, **fields: Any,
) -> OpDef:  # fmt: skip
    """Declare an elementwise op of ``a`` and ``b``, which broadcast. ``vjp`` as in OpDef."""
    return op(
        name, "a b", infer=together(name, kinds, out), numpy=numpy, torch=torch, vjp=vjp, factors=fx.elementwise,
        linear=linear, doc=doc, **fields,
    )  # fmt: skip


def compare(name: str, numpy: Callable[..., Any], torch: str, *, kinds: str = ALL, doc: str) -> OpDef:
    """Declare a comparison of ``a`` and ``b``: bool result, no gradient."""
    return binary(name, numpy, torch, kinds=kinds, doc=doc, out=bool_)


def unchanged(operands: Sequence[TensorType], results: Sequence[TensorType]) -> bool:
    """``shares`` of an op that gives its operand back where it has nothing to do: when the type stays."""
    return operands[0].shape == results[0].shape and operands[0].dtype is results[0].dtype


# -- sharding rules shared by ops whose attributes name dims


def dim_names(ndim: int) -> list[str]:
    return [f"d{i}" for i in range(ndim)]


def rule_of(
    operands: Sequence[Sequence[str]], results: Sequence[Sequence[str]], shapes: Sequence[Shape],
    kinds: dict[str, fx.FactorKind] | None = None, near: Rows | None = None, halos: Sequence[fx.Halo] = (),
) -> fx.Rule:  # fmt: skip
    """Build a rule from one factor name for each dim ("" for one that broadcasts). ``shapes``: operands', results'."""
    sizes: dict[str, int] = {}
    for names, shape in zip((*operands, *results), shapes, strict=True):
        for factor, size in zip(names, shape, strict=True):
            if factor:
                sizes[factor] = size
    dims = lambda terms: [[(n,) if n else () for n in names] for names in terms]  # noqa: E731
    return fx.finish(dims(operands), dims(results), sizes, kinds or {}, near, halos)


def reduced(kind: fx.FactorKind) -> Callable[..., fx.Rule]:
    """The rule of an op that reduces ``attrs["dims"]``; split, the reduced dims give partials of ``kind``."""

    def factors(operands: Sequence[Shape], results: Sequence[Shape], attrs: dict[str, Any]) -> fx.Rule:
        names, dims = dim_names(len(operands[0])), attrs["dims"]
        kept = [n if d not in dims else "" for d, n in enumerate(names) if attrs["keepdim"] or d not in dims]
        return rule_of([names], [kept] * len(results), (*operands, *results), {names[d]: kind for d in dims})

    return factors


def whole(*attr_names: str) -> Callable[..., fx.Rule]:
    """The rule of an op of equally ranked operands and results that passes all dims but those its attributes name."""

    def factors(operands: Sequence[Shape], results: Sequence[Shape], attrs: dict[str, Any]) -> fx.Rule:
        fixed: set[int] = set()
        for name in attr_names:
            fixed |= {attrs[name]} if isinstance(attrs[name], int) else set(attrs[name])
        return along(operands, results, fixed)

    return factors


def along(operands: Sequence[Shape], results: Sequence[Shape], fixed: set[int]) -> fx.Rule:
    """Give the rule that passes all dims of equally ranked values but the ``fixed`` ones, which may differ in size."""
    kinds: dict[str, fx.FactorKind] = {}
    terms: list[list[str]] = []
    for i, shape in enumerate((*operands, *results)):
        names = dim_names(len(shape))
        for d in fixed:
            if d < len(names):
                names[d] = f"w{i}_{d}"
                kinds[names[d]] = "whole"
        terms.append(names)
    return rule_of(terms[: len(operands)], terms[len(operands) :], (*operands, *results), kinds)


def moved(operand: Shape, rows: Rows) -> fx.Rule:
    """Give the rule of an op whose result is rows of its operand: a dim that keeps all of its rows passes."""
    plain = [n == size and spans == (Span(0, 0, n),) for n, size, spans in zip(operand, rows.shape, rows.spans, strict=True)]
    sides = [[f"d{d}" if same else f"{side}{d}" for d, same in enumerate(plain)] for side in "xy"]
    kinds: dict[str, fx.FactorKind] = {f"{side}{d}": "near" for side in "xy" for d, same in enumerate(plain) if not same}
    return rule_of(sides[:1], sides[1:], (operand, rows.shape), kinds, rows)


def local_shape(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    """``local`` of an op whose ``shape`` attribute is its result's shape."""
    return attrs | {"shape": where.outputs[0].shape}


def nothing(dtype: DType | np.dtype[Any]) -> float:
    """Give what adds nothing to any number of a dtype. Of floats it is -0.0: with 0.0, a -0.0 would become 0.0."""
    return -0.0 if dtype.kind in FLOATING else 0


def number(value: float | int | bool) -> str:
    """Give the source of a number; infinities and NaN too."""
    return repr(value) if not isinstance(value, float) or abs(value) < float("inf") else f"float({str(value)!r})"


def any_of_equals(operands: Sequence[np.ndarray], results: Sequence[np.ndarray], attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """Settled of ops that say where what they give comes from: the values, and those there; no place is given twice."""
    (x,), (values, places), dim = operands, results, attrs["dim"]
    if not x.ndim:
        return values, places
    return values, np.take_along_axis(x, places, dim), np.sign(np.diff(np.sort(places, dim), axis=dim))

"""Comparison, logic, bits and choice.

Next: ``elementwise``.
"""

from __future__ import annotations

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import op
from gt.ir.ops.broadcast import constant, unbroadcast
from gt.ir.ops.families import ALL, REAL, binary, check_same, compare, unary
from gt.ir.types import TensorType, TypeMismatch, bool_, broadcast_shapes

eq = compare("eq", np.equal, "({a} == {b})", doc="a == b")
ne = compare("ne", np.not_equal, "({a} != {b})", doc="a != b")
lt = compare("lt", np.less, "({a} < {b})", kinds=REAL, doc="a < b")
le = compare("le", np.less_equal, "({a} <= {b})", kinds=REAL, doc="a <= b")
gt = compare("gt", np.greater, "({a} > {b})", kinds=REAL, doc="a > b")
ge = compare("ge", np.greater_equal, "({a} >= {b})", kinds=REAL, doc="a >= b")

logical_and = compare("logical_and", np.logical_and, "torch.logical_and({a}, {b})", doc="Both are nonzero.")
logical_or = compare("logical_or", np.logical_or, "torch.logical_or({a}, {b})", doc="Either is nonzero.")
logical_xor = compare("logical_xor", np.logical_xor, "torch.logical_xor({a}, {b})", doc="Exactly one is nonzero.")
logical_not = unary("logical_not", np.logical_not, "torch.logical_not({x})", kinds=ALL, out=bool_, doc="x == 0")

isnan = unary("isnan", np.isnan, "torch.isnan({x})", kinds=ALL, out=bool_, doc="x is NaN.")
isinf = unary("isinf", np.isinf, "torch.isinf({x})", kinds=ALL, out=bool_, doc="x is plus or minus infinity.")
isfinite = unary(
    "isfinite", np.isfinite, "torch.isfinite({x})", kinds=ALL, out=bool_, doc="x is neither infinite nor NaN."
)
signbit = unary(
    "signbit", lambda x: np.signbit(x) if x.dtype.kind == "f" else x < 0, "torch.signbit({x})",
    kinds=REAL, out=bool_, doc="The sign bit: true for negative numbers and -0.0.",
)  # fmt: skip

bitwise_and = binary("bitwise_and", np.bitwise_and, "({a} & {b})", kinds="bui", doc="a & b, bit by bit.")
bitwise_or = binary("bitwise_or", np.bitwise_or, "({a} | {b})", kinds="bui", doc="a | b, bit by bit.")
bitwise_xor = binary("bitwise_xor", np.bitwise_xor, "({a} ^ {b})", kinds="bui", doc="a ^ b, bit by bit.")
bitwise_not = unary("bitwise_not", np.invert, "(~{x})", kinds="bui", doc="Every bit flipped; of bool, not.")


def _shift(a: np.ndarray, b: np.ndarray, left: bool) -> np.ndarray:
    bits = a.dtype.itemsize * 8
    far = (b < 0) | (b >= bits)  # torch defines these: all bits are shifted out
    safe = np.where(far, 0, b).astype(a.dtype)
    return np.where(
        far, 0 if left else np.where(a < 0, -1, 0), np.left_shift(a, safe) if left else np.right_shift(a, safe)
    )


left_shift = binary(
    "left_shift", lambda a, b: _shift(a, b, True), "torch.bitwise_left_shift({a}, {b})", kinds="ui", doc="a << b"
)
right_shift = binary(
    "right_shift", lambda a, b: _shift(a, b, False), "torch.bitwise_right_shift({a}, {b})", kinds="ui",
    doc="a >> b, keeping the sign.",
)  # fmt: skip


def _where_infer(c: TensorType, a: TensorType, b: TensorType) -> TensorType:
    if c.dtype is not bool_:
        raise TypeMismatch(f"where expected condition to be a boolean tensor, but got a tensor with dtype {c!r}")
    return TensorType(broadcast_shapes(c.shape, a.shape, b.shape), check_same("where", (a, b)))


where = op(
    "where", "c a b",
    doc="a where c is true, else b. The branch not chosen gets the gradient 0, even where it is NaN.",
    infer=_where_infer,
    numpy=np.where,
    torch="torch.where({c}, {a}, {b}).to({out})",
    vjp=lambda g, y, c, a, b: (
        None,
        unbroadcast(where(c, g, constant(0, g)), a.type),
        unbroadcast(where(c, constant(0, g), g), b.type),
    ),
    factors=fx.elementwise, linear=((1, 2),),
)  # fmt: skip

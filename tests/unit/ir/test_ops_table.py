"""The op table itself: strictness of inference, the page, and what declarations promise each other."""

from __future__ import annotations

import pytest

from gt.ir.ops import OPS
from gt.ir.ops.table import markdown
from gt.ir.types import ShapeError, TensorType, TypeMismatch, bool_, float32, float64, int64

F = TensorType((2, 3), float32)


def infer(name: str, *types: TensorType, **attrs: object) -> TensorType:
    return OPS[name].infer_types(types, tuple(attrs.items()))[0]  # type: ignore[arg-type]


def test_page_lists_every_op() -> None:
    page = markdown()
    assert all(f"| `{name}` |" in page for name in OPS)
    width = page.splitlines()[0].replace("\\|", "").count("|")
    assert all(line.replace("\\|", "").count("|") == width for line in page.splitlines())


@pytest.mark.parametrize("name", ["add", "mul", "maximum", "eq", "matmul", "pow"])
def test_operands_of_two_dtypes_are_refused(name: str) -> None:
    with pytest.raises(TypeMismatch, match=rf"{name}: expected operands of one dtype, got f32.* and f64"):
        infer(name, F, TensorType((3, 3), float64))


def test_wrong_kind_names_the_op_and_the_type() -> None:
    with pytest.raises(TypeMismatch, match=r"\"exp\" not implemented for 'Long': expected floating point or complex, got i64\[4\]"):
        infer("exp", TensorType((4,), int64))
    with pytest.raises(TypeMismatch, match="where expected condition to be a boolean"):
        infer("where", F, F, F)


def test_shapes_that_do_not_fit_name_both() -> None:
    with pytest.raises(ShapeError, match=r"tensor a \(3\) must match the size of tensor b \(2\)"):
        infer("add", F, TensorType((2, 2), float32))
    with pytest.raises(ShapeError, match=r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 2x3\)"):
        infer("matmul", F, F)
    with pytest.raises(ShapeError, match=r"shape '\[4\]' is invalid for input of size 6"):
        infer("reshape", F, shape=(4,))


def test_comparisons_give_bool() -> None:
    assert infer("lt", F, TensorType((), float32)) is TensorType((2, 3), bool_)


def test_linear_with_a_bias_keeps_the_inner_dim_whole() -> None:
    """Split, each worker would add the bias once."""
    x, w, b, y = (TensorType(s, float32) for s in ((5, 4), (3, 4), (3,), (5, 3)))
    with_bias, without = OPS["linear"].rule((x, w, b), (y,), ()), OPS["linear"].rule((x, w), (y,), ())
    assert with_bias is not None and without is not None
    assert with_bias.kind["k"] == "whole" and without.kind["k"] == "sum"


def test_flags() -> None:
    assert all(OPS[n].view for n in ("alias", "reshape", "expand", "permute", "slice"))
    assert not OPS["copy"].view
    assert {n for n, o in OPS.items() if o.random} == {
        "dropout", "random_bits", "random_int", "random_normal", "random_uniform",
    }  # fmt: skip
    assert OPS["alias"].vjp is None and OPS["copy"].vjp is not None

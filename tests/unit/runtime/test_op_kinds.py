"""What kind an op is, and how a run's time is shared out."""

from __future__ import annotations

import pytest

from gt.ir.ops import OPS
from gt.ir.program import Compute, Program, WireNode, WireType
from gt.ir.types import DType, TensorType, float32, int64
from gt.passes.work import kind_of
from gt.runtime.op_kinds import KINDS, shares


def f(*shape: int, dtype: DType = float32) -> TensorType:
    return TensorType(shape, dtype)


@pytest.mark.parametrize(
    ("name", "operands", "attrs", "kind"),
    [
        ("matmul", (f(8, 4), f(4, 6)), {}, "matmul"), ("linear", (f(8, 4), f(6, 4), f(6)), {}, "matmul"),
        ("add", (f(8, 4), f(4)), {}, "elementwise"), ("exp", (f(8),), {}, "elementwise"), ("where", (f(8), f(8), f(8)), {}, "elementwise"),
        ("sum", (f(8, 4),), {"dims": (1,), "keepdim": False, "dtype": float32}, "reduction"), ("softmax", (f(8, 4),), {"dim": 1}, "reduction"),
        ("permute", (f(8, 4),), {"dims": (1, 0)}, "copy"), ("cat", (f(8, 4), f(2, 4)), {"dim": 0}, "copy"),
        ("embedding", (f(9, 4), f(3, dtype=int64)), {}, "copy"),
    ],
)  # fmt: skip
def test_kinds(name: str, operands: tuple[TensorType, ...], attrs: dict[str, object], kind: str) -> None:
    op = OPS[name]
    operands = (f(8, dtype=DType.by_name["bool"]), *operands[1:]) if name == "where" else operands
    given = tuple(attrs.items())
    assert kind_of(op, operands, op.infer_types(operands, given), given) == kind in KINDS


def node(op: str, inputs: tuple[int, ...], output: int, *shape: int) -> WireNode:
    return WireNode(op, inputs, (output,), (WireType(shape, "float32"),), ())


def program(*nodes: WireNode) -> Program:
    return Program(0, ((0, 0), (1, 1)), (), (Compute(nodes, (0, 1), (2,), ""),), ((0, 2),))


def test_a_large_matmul_is_most_of_a_run_and_small_ops_count_by_their_calls() -> None:
    large = shares(program(node("matmul", (0, 1), 3, 512, 512), node("exp", (3,), 2, 512, 512)), (f(512, 512), f(512, 512)))
    assert set(large) == {"matmul", "elementwise"} and large["matmul"] > 0.8 and sum(large.values()) == pytest.approx(1)
    small = shares(program(node("matmul", (0, 1), 3, 2, 2), node("exp", (3,), 2, 2, 2)), (f(2, 2), f(2, 2)))
    assert small["matmul"] == pytest.approx(0.5, abs=0.01)
    assert shares(Program(0, (), (), (), ()), ()) == {}

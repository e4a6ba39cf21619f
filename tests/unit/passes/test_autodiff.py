"""The core that pass and client share, and what a vjp is said to read."""

from __future__ import annotations

import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.mesh import Mesh
from gt.ir.ops import OPS
from gt.ir.text import parse_graph
from gt.ir.types import TensorType, float32, int64
from gt.passes.autodiff import saved_values
from gt.passes.context import Context
from gt.passes.pipeline import PassError, Pipeline

F = TensorType((2, 3), float32)


def run(text: str, *inputs: object) -> list[np.ndarray]:
    graph = Pipeline.parse("autodiff,dce").run(
        parse_graph(text), Context(Mesh("all", (("w", 1),), (0,))), verify="each"
    )
    return evaluate(graph, [np.asarray(x, np.float32) for x in inputs])


@pytest.mark.parametrize(
    ("op", "types", "needs", "expected"),
    [
        ("add", (F, F), (True, True), ((), ())),
        ("mul", (F, F), (True, True), ((0, 1), ())),
        ("mul", (F, F), (True, False), ((1,), ())),
        ("exp", (F,), (True,), ((), (0,))),
        ("sin", (F,), (True,), ((0,), ())),
        ("mul", (F, F), (False, False), ((), ())),
    ],
)
def test_saved_values(op: str, types: tuple[TensorType, ...], needs: tuple[bool, ...], expected: object) -> None:
    assert saved_values(OPS[op], (), types, (F,), needs) == expected


def test_saved_values_of_attributes_and_of_ops_with_a_decomposition_only() -> None:
    square = TensorType((3, 3), float32)
    assert saved_values(OPS["matmul"], (), (square, square), (square,), (True, False)) == ((1,), ())
    assert saved_values(OPS["permute"], (("dims", (1, 0)),), (F,), (TensorType((3, 2), float32),), (True,)) == ((), ())
    attrs = (("reduction", "mean"), ("ignore_index", -100), ("label_smoothing", 0.0))
    types = (F, TensorType((2,), int64))
    reads, _ = saved_values(OPS["cross_entropy"], attrs, types, (TensorType((), float32),), (True, False))
    assert set(reads) <= {0, 1} and 1 in reads
    whole = TensorType((2, 3), int64)
    assert saved_values(OPS["cast"], (("dtype", int64),), (F,), (whole,), (True,)) == ((), ())


def test_an_operand_that_stands_twice_gets_both_gradients() -> None:
    (d,) = run(
        """gtir 1
graph @g global {
  input %x: f32[]
  %y = mul(%x, %x) : f32[] taped
  %z = mul(%y, %x) : f32[] taped
  %d = grad(%z, %x, has_seed=false) : f32[]
  return %d
}
""",
        2.0,
    )
    assert d == 12


def test_only_taped_nodes_before_the_grad_node_count() -> None:
    first, second = run(
        """gtir 1
graph @g global {
  input %x: f32[]
  %y = mul(%x, %x) : f32[] taped
  %k = mul(%x, %x) : f32[]
  %s = add(%y, %k) : f32[] taped
  %a = grad(%s, %x, has_seed=false) : f32[]
  %t = mul(%s, %s) : f32[] taped
  %b = grad(%t, %x, has_seed=false) : f32[]
  return %a, %b
}
""",
        3.0,
    )
    assert first == 6 and second == 2 * 18 * 6


def test_the_gradient_of_the_loss_itself_is_the_seed() -> None:
    out = run(
        """gtir 1
graph @g global {
  input %x: f32[2]
  input %s: f32[2]
  %y = exp(%x) : f32[2] taped
  %dy, %dx = grad(%y, %s, %y, %x, has_seed=true) : f32[2], f32[2]
  return %dy, %dx
}
""",
        [0.0, 0.0],
        [3.0, 4.0],
    )
    assert [o.tolist() for o in out] == [[3, 4], [3, 4]]


def test_second_order_through_an_expanded_gradient() -> None:
    d, dd = run(
        """gtir 1
graph @g global {
  input %x: f32[]
  %y = mul(%x, %x) : f32[] taped
  %z = mul(%y, %x) : f32[] taped
  %d = grad(%z, %x, has_seed=false) : f32[] taped
  %dd = grad(%d, %x, has_seed=false) : f32[]
  return %d, %dd
}
""",
        2.0,
    )
    assert d == 12 and dd == 12


def test_an_op_without_gradient_is_named() -> None:
    with pytest.raises(PassError, match="NoGradient: bessel_j0 has no gradient"):
        run(
            """gtir 1
graph @g global {
  input %x: f32[]
  %y = bessel_j0(%x) : f32[] taped
  %d = grad(%y, %x, has_seed=false) : f32[]
  return %d
}
""",
            1.0,
        )

"""What ``--estimate`` and the search count as computed: the textbook's flops of attention, recurrent layers and linear algebra."""

from __future__ import annotations

from pathlib import Path

import pytest

import gt
from gt.compiling import lower
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.types import TensorType, complex64, float32, int64
from gt.passes.cost import H100
from gt.passes.options import Call, parts
from gt.passes.plan import Cluster
from gt.passes.work import multiply_adds
from gt.scripted import Limits, record_script
from tests.property.sharding_graphs import everyone


def flops_of(body: str, tmp_path: Path) -> int:
    """Give the flops of all runs of a script."""
    script = tmp_path / "script.py"
    script.write_text("import gt\nfrom gt.nn import functional as F\n" + body)
    gt.disconnect()  # the script has a session of its own
    made = record_script(str(script), [], Cluster((0,)), Limits(), shapes_only=True)
    assert made.error is None
    return sum(lower(one.graph, Cluster((0,))).estimate.flops * one.runs for one in made.graphs)


FORWARD = 4 * 2 * 3 * 128 * 128 * 32
STEPS, BATCH, WIDTH, HIDDEN = 10, 4, 64, 32


@pytest.mark.parametrize("causal", [False, True])
def test_attention_forward_and_two_and_a_half_times_that_backward(causal: bool, tmp_path: Path) -> None:
    body = f"q = gt.randn(2, 3, 128, 32, requires_grad=True)\ny = F.scaled_dot_product_attention(q, q, q, is_causal={causal})\n"
    share = 2 if causal else 1
    assert flops_of(body + "y.sum().item()", tmp_path) == FORWARD // share
    assert flops_of(body + "y.sum().backward(); q.grad.sum().item()", tmp_path) == FORWARD // share * 7 // 2


@pytest.mark.parametrize(("layer", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_are_two_products_for_each_step(layer: str, gates: int, tmp_path: Path) -> None:
    body = f"m = gt.nn.{layer}({WIDTH}, {HIDDEN})\nx = gt.randn({STEPS}, {BATCH}, {WIDTH})\nm(x)[0].sum().item()"
    assert flops_of(body, tmp_path) == 2 * STEPS * BATCH * gates * HIDDEN * (WIDTH + HIDDEN)


def test_an_embedding_only_moves_rows_backward_too(tmp_path: Path) -> None:
    body = (
        "w = gt.randn(5000, 64, requires_grad=True)\ni = gt.randint(0, 5000, (1024,))\n"
        "F.embedding(i, w).square().sum().backward(); w.grad.sum().item()"
    )
    assert flops_of(body, tmp_path) == 0


def f(*shape: int, dtype: object = float32) -> TensorType:
    return TensorType(shape, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "types", "attrs", "flops"),
    [
        ("matmul", (f(5, 8, 4), f(5, 4, 6)), {}, 2 * 5 * 8 * 4 * 6),
        ("matmul", (f(1, 8), f(8, 6)), {}, 2 * 8 * 6),
        ("matmul", (f(8, 4, dtype=complex64), f(4, 6, dtype=complex64)), {}, 8 * 8 * 4 * 6),
        ("linear", (f(8, 4), f(6, 4), f(6)), {}, 2 * 8 * 4 * 6),
        ("mul", (f(8, 4), f(8, 4)), {}, 0),
        ("inverse", (f(5, 30, 30),), {}, 5 * 2 * 30**3),
        ("cholesky", (f(5, 30, 30),), {}, 5 * 30**3 / 3),
        ("det", (f(5, 30, 30),), {}, 5 * 2 * 30**3 / 3),
        ("lu", (f(60, 30),), {"check": True}, 60 * 30**2 - 30**3 / 3),
        ("solve", (f(5, 30, 30), f(5, 30, 7)), {}, 5 * (2 * 30**3 / 3 + 2 * 30**2 * 7)),
        ("solve_triangular", (f(30, 30), f(5, 30, 7)), {"upper": True, "left": True, "unit": False}, 5 * 30**2 * 7),
        ("qr", (f(60, 30),), {"complete": False}, 2 * (2 * 60 * 30**2 - 2 * 30**3 / 3)),
        ("eigh", (f(30, 30),), {"upper": False}, 9 * 30**3),
        ("fft_c2c", (f(5, 64, dtype=complex64),), {"dims": (1,), "inverse": False, "norm": "backward"}, 5 * 5 * 64 * 6),
        ("fft_r2c", (f(5, 64),), {"dims": (1,), "norm": "backward"}, 5 * 5 * 64 * 6 / 2),
        ("embedding_backward", (f(64, 8), f(64, dtype=int64)), {"rows": 100, "padding_idx": -1}, 0),
        (
            "convolution", (f(2, 6, 9, 9), f(4, 3, 3, 3)),
            {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "transposed": False, "output_padding": (0, 0), "groups": 2},
            2 * 2 * 4 * 81 * 3 * 9,
        ),
    ],
)  # fmt: skip
def test_flops_are_the_textbooks(op: str, types: tuple[TensorType, ...], attrs: dict[str, object], flops: float) -> None:
    given = tuple(attrs.items())
    results = OPS[op].infer_types(types, given)  # type: ignore[arg-type]
    assert 2 * multiply_adds(OPS[op], types, results, given) == pytest.approx(flops, abs=1)  # type: ignore[arg-type]


def test_the_search_counts_the_same_and_gains_by_splitting_heads() -> None:
    """Of one eighth of the heads, the seconds of an eighth of the work."""
    q = f(1, 64, 8192, 64)
    op, attrs = OPS["scaled_dot_product_attention"], (("is_causal", False), ("scale", 0.125))
    results = op.infer_types((q, q, q), attrs)
    mesh = everyone(8)
    (part,) = parts(Call(op, attrs, (q, q, q), results, mesh, (1.0,) * 5, H100))
    whole, heads = Sharding.replicated(mesh, 4), Sharding(mesh, ((), ("w",), (), ()))
    seconds = {option.requires[0]: option.seconds for option in part.options if option.requires[1] == option.requires[0]}
    assert seconds[whole] == pytest.approx(2 * multiply_adds(op, (q, q, q), results, attrs) / H100.flops, rel=1e-3)
    assert seconds[heads] == pytest.approx(seconds[whole] / 8, rel=1e-3)

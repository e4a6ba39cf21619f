# ruff: noqa: B023 - functions made in a loop are called in it
"""Operands of several dtypes, and dtypes without a kernel: torch's values, or its error and text. Halves are rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.unit.both_sides import alike

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
SOME = ("bool", "int64", "float16", "float32", "complex64")


def small(m: Any, dtype: str, *shape: int) -> Any:
    return m.tensor((np.arange(np.prod(shape, dtype=int)) % 3 + 1).reshape(shape)).to(getattr(m, dtype))


@pytest.mark.parametrize("a", DTYPES)
def test_two_operands(a: str) -> None:
    shapes = {
        "mm": ((2, 2), (2, 2)), "bmm": ((3, 2, 2), (3, 2, 2)), "mv": ((2, 2), (2,)), "dot": ((2,), (2,)), "inner": ((2, 2), (2, 2)),
        "cross": ((2, 3), (2, 3)),
    }  # fmt: skip
    for b in DTYPES:
        if a == b:
            continue
        for name, (x, y) in shapes.items():
            alike(lambda m: getattr(m if name != "cross" else m.linalg, name)(small(m, a, *x), small(m, b, *y)), f"{name} {a} {b}")
        alike(lambda m: m.tensordot(small(m, a, 2, 2), small(m, b, 2, 2), 1), f"tensordot {a} {b}")
        alike(lambda m: m.linalg.multi_dot([small(m, a, 2, 2), small(m, a, 2, 2), small(m, b, 2, 2)]), f"multi_dot {a} {b}")
        alike(lambda m: m.lerp(small(m, a, 3), small(m, b, 3), 0.5), f"lerp {a} {b}")
    alike(lambda m: m.linalg.cross(small(m, a, 2, 3), small(m, a, 2, 3).flip(1)), f"cross {a}")


@pytest.mark.parametrize("a", ["bool", "float32"])
def test_products_by_rank(a: str) -> None:
    shapes = ((2,), (2, 2), (3, 2, 2), (2, 3, 2, 2))
    for x in shapes:
        for y in shapes:
            alike(lambda m: m.matmul(small(m, a, *x), small(m, "int64", *y)), f"{x} {y}")


@pytest.mark.parametrize("a", SOME)
def test_three_operands(a: str) -> None:
    for b in SOME:
        for c in SOME:
            for name, (x, y, z) in {
                "addmm": ((2, 2), (2, 2), (2, 2)), "baddbmm": ((2, 2, 2), (2, 2, 2), (2, 2, 2)), "addmv": ((2,), (2, 2), (2,)),
                "lerp": ((3,), (3,), (3,)), "addcmul": ((3,), (3,), (3,)), "addbmm": ((2, 2), (2, 2, 2), (2, 2, 2)),
            }.items():  # fmt: skip
                if (a, b, c) != ("bool", "bool", "bool"):
                    call = lambda m: getattr(m, name)(small(m, a, *x), small(m, b, *y), small(m, c, *z))  # noqa: E731
                    alike(call, f"{name} {a} {b} {c}", rtol=1e-2)
            if not (a == b == "float16" and c == "complex64"):  # torch knows a complex half
                alike(lambda m: m.lerp(small(m, a, 3), small(m, b, 3), small(m, c)), f"lerp by one {a} {b} {c}", rtol=1e-2)


@pytest.mark.parametrize("bias", [*SOME, None])
def test_biases(bias: str | None) -> None:
    given = lambda m, *shape: None if bias is None else small(m, bias, *shape)  # noqa: E731
    for x in SOME:
        for w in SOME:
            for shape in ((3,), (4, 3), (2, 4, 3)):
                alike(lambda m: m.nn.functional.linear(small(m, x, *shape), small(m, w, 5, 3), given(m, 5)), f"{shape} {x} {w} {bias}", 1e-6)
            if {x, w, bias} - {None} != {"bool"}:
                call = lambda m: m.nn.functional.bilinear(small(m, x, 4, 3), small(m, x, 4, 2), small(m, w, 5, 3, 2), given(m, 5))  # noqa: E731
                alike(call, f"bilinear {x} {w} {bias}", 1e-6)


def test_shapes_of_biases() -> None:
    for x, shape in (((4, 3), (1,)), ((4, 3), (1, 5)), ((4, 3), (4, 5)), ((4, 3), (4, 1)), ((2, 4, 3), (4, 5)), ((2, 4, 3), (2, 1, 5)), ((4, 3), (4,))):
        alike(lambda m: m.nn.functional.linear(small(m, "float32", *x), small(m, "float32", 5, 3), small(m, "float32", *shape)), f"{x} {shape}")
    for w, b in (((3,), (1,)), ((3,), (4,)), ((2, 5, 3), (5,))):
        call = lambda m: m.nn.functional.linear(small(m, "float32", 4, 3), small(m, "float32", *w), small(m, "float32", *b))  # noqa: E731
        alike(call, f"{w} {b}")
    for x, b in (((4, 3), (4,)), ((4, 3), (1,)), ((3, 3), (5,))):
        ones = lambda m, *shape: small(m, "float32", *shape)  # noqa: E731
        alike(lambda m: m.nn.functional.bilinear(ones(m, 4, 3), ones(m, *x), ones(m, 5, 3, 3), ones(m, *b)), f"bilinear {x} {b}")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_without_a_kernel(dtype: str) -> None:
    x = lambda m: small(m, dtype, 4, 3)  # noqa: E731
    for p in (0.0, 1.0, 2.0, 3.0, float("inf")):
        alike(lambda m: m.cdist(x(m), x(m), p, "donot_use_mm_for_euclid_dist"), f"cdist {p}")
        alike(lambda m: m.pdist(x(m), p), f"pdist {p}")
    alike(lambda m: m.cdist(x(m).repeat(8, 1), x(m).repeat(8, 1)), "cdist by a product", rtol=1e-2)
    alike(lambda m: m.pdist(x(m)[:1]), "no pairs")
    for bins in (5, [0.0, 1.0, 2.0]):
        alike(lambda m: m.histogram(x(m), bins if bins == 5 else m.tensor(bins).to(x(m).dtype)), f"histogram {bins}", text=False)
    alike(lambda m: m.histogramdd(x(m), [2, 2, 2]).hist, "histogramdd", text=False)
    alike(lambda m: m.linalg.vander(x(m)), "linalg.vander")
    alike(lambda m: m.linalg.vander(x(m), N=0), "linalg.vander of nothing")
    alike(lambda m: m.vander(x(m)[0]), "vander")


@pytest.mark.parametrize("dtype", DTYPES)
def test_functions_of_one_kind(dtype: str) -> None:
    x = lambda m: small(m, dtype, 1, 4, 3)  # noqa: E731
    for what, call in {
        "silu": lambda m: m.nn.functional.silu(x(m)), "logcumsumexp": lambda m: m.logcumsumexp(x(m), 1), "pdist": lambda m: m.pdist(x(m)[0]),
        "response": lambda m: m.nn.functional.local_response_norm(x(m), 3, 0.5, 0.7, 1.5),
        "response of nothing": lambda m: m.nn.functional.local_response_norm(x(m)[:0], 3),
        "response of no neighbours": lambda m: m.nn.functional.local_response_norm(x(m), 0),
        "logaddexp2": lambda m: m.logaddexp2(x(m), x(m)), "exp2": lambda m: m.exp2(x(m)), "sinc": lambda m: m.sinc(x(m)),
    }.items():  # fmt: skip
        if not (what in ("pdist", "logaddexp2") and dtype in ("float16", "bfloat16")):
            alike(call, f"{what} of {dtype}", rtol={"float16": 1e-3, "bfloat16": 8e-3}.get(dtype, 2e-6))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_are_rounded_once(dtype: str) -> None:
    given = np.random.default_rng(0).standard_normal((3, 500))
    calls: dict[str, Any] = {
        "addcmul": lambda m, a, b, c: m.addcmul(a, b, c), "addcmul by": lambda m, a, b, c: m.addcmul(a, b, c, value=0.3),
        "addcdiv": lambda m, a, b, c: m.addcdiv(a, b, c), "addcdiv by": lambda m, a, b, c: m.addcdiv(a, b, c, value=0.3),
        "lerp": lambda m, a, b, c: m.lerp(a, b, c), "lerp by 0.3": lambda m, a, b, c: m.lerp(a, b, 0.3),
        "lerp by 0.7": lambda m, a, b, c: m.lerp(a, b, 0.7), "lerp by one": lambda m, a, b, c: m.lerp(a, b, m.tensor(0.3)),
        "lerp in place": lambda m, a, b, c: a.clone().lerp_(b, 0.3), "logaddexp2": lambda m, a, b, c: m.logaddexp2(a, b),
        "response": lambda m, a, b, c: m.nn.functional.local_response_norm(a.reshape(5, 20, 5), 3, 0.5, 0.7, 1.2),
    }  # fmt: skip
    for what, call in calls.items():
        mine, theirs = (call(m, *(m.tensor(v).to(getattr(m, dtype)) for v in given)) for m in (gt, torch))
        assert str(mine.dtype).endswith(dtype)
        mine, theirs = mine.float().numpy(), theirs.float().numpy()
        assert (mine != theirs).mean() < 0.01, what  # float32 differs in its last bit, which a half seldom sees
        np.testing.assert_allclose(mine, theirs, rtol=2.0 ** (-7 if dtype == "bfloat16" else -10), atol=1e-7, err_msg=what)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scales_in_float32_get_gradients_added_up_in_float32(dtype: str) -> None:
    """torch's kernel adds them up row by row in the half, and is up to 6% off after 4,096 rows."""
    x, g = (torch.tensor(v).to(getattr(torch, dtype)) for v in np.random.default_rng(1).standard_normal((2, 300, 16)))
    w, b = torch.rand(16), torch.rand(16)
    wide = [t.double().requires_grad_() for t in (x, w, b)]
    torch.nn.functional.layer_norm(wide[0], (16,), *wide[1:]).backward(g.double())
    mine = [gt.tensor(t).requires_grad_() for t in (x, w, b)]
    gt.nn.functional.layer_norm(mine[0], (16,), *mine[1:]).backward(gt.tensor(g))
    for got, right in zip(mine[1:], wide[1:], strict=True):
        np.testing.assert_allclose(got.grad.numpy(), right.grad.numpy(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64"])
def test_integers_by_a_number(dtype: str) -> None:
    for number in (2, True, 0.5):
        ways = (lambda m, t: t / number, lambda m, t: m.div(t, number), lambda m, t: number / t, lambda m, t: t.div(number))
        for way in ways:
            mine, theirs = (way(m, small(m, dtype, 4)) for m in (gt, torch))
            assert (str(mine.dtype).split(".")[-1], mine.tolist()) == (str(theirs.dtype).split(".")[-1], theirs.tolist())

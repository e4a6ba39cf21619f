# ruff: noqa: B023 - functions made in a loop are called in it
"""Products, norms and sums of exponentials over every form of their arguments: torch's values, or its error and text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.unit.both_sides import alike

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
INF, NAN = float("inf"), float("nan")


def made(m: Any, values: Any, dtype: str) -> Any:
    return m.tensor(np.array(values)).to(getattr(m, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_prod(dtype: str) -> None:
    for values in ([[1, 0, 3], [2, 1, 1]], [[2, 3, 4], [1, 5, 7]], [], [[], []], 3):
        for options in ({}, {"dim": 0}, {"dim": -1}, {"dim": 0, "keepdim": True}, {"dim": 1}, {"dim": -3}):
            for wanted in (None, "float32", "int32", "bool", "float16", "complex64"):
                more = lambda m: {} if wanted is None else {"dtype": getattr(m, wanted)}  # noqa: E731
                alike(lambda m: m.prod(made(m, values, dtype), **options, **more(m)), f"{values} {options} {wanted}", rtol=1e-6)
    for wrong in ({"dim": (0, 1)}, {"keepdim": True}, {"dim": 1.0}):
        alike(lambda m: m.prod(made(m, [[1, 2]], dtype), **wrong), f"{wrong}", text=False)


@pytest.mark.parametrize("order", ["fro", "nuc", 0, 1, 2, 3, -1, -2, 0.5, 2.5, INF, -INF, None, "inf", "x", True, 1j], ids=str)
@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", "float32", "complex64"])
def test_norm(dtype: str, order: Any) -> None:
    for values in ([[1, -2, 0], [0, 4, 5]], [[], []], [], 3):
        for options in ({}, {"dim": 0}, {"dim": -1, "keepdim": True}, {"dim": (0, 1)}, {"dim": (1, 0), "keepdim": True}, {"dim": ()}, {"dim": 4}):
            for wanted in (None, "float64", "float16", "complex64", "int64"):
                more = lambda m: {} if wanted is None else {"dtype": getattr(m, wanted)}  # noqa: E731
                rtol = 1e-3 if "float16" in (dtype, wanted) else 2e-5
                what = f"{values} {options} {wanted}"
                empty = 0 in np.shape(values)  # there torch's texts lack a space
                alike(lambda m: m.norm(made(m, values, dtype), order, **options, **more(m)), what, rtol, text=not empty)


POINTS = [0.13 - 0.13j, 0.64 + 0.1j, -0.54 + 0.36j, 1.3 + 0.95j, -0.7 - 1.27j, 2j, 1 + 0j, -3.5 + 0j]
ODD = [0j, 100 + 3j, -100 + 3j, complex(INF, 0), complex(-INF, 1), complex(INF, 1), complex(NAN, 1), complex(1, INF)]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(dtype: str) -> None:
    rtol = 1e-5 if dtype == "complex64" else 1e-12
    calls: dict[str, Any] = {
        "exp2": lambda m, x: m.exp2(x), "sinc": lambda m, x: m.sinc(x), "logsumexp": lambda m, x: m.logsumexp(x, 0),
        "logsumexp kept": lambda m, x: m.logsumexp(x, (0,), keepdim=True), "logcumsumexp": lambda m, x: m.logcumsumexp(x, 0),
        "logaddexp": lambda m, x: m.logaddexp(x, x.flip(0)), "silu": lambda m, x: m.nn.functional.silu(x),
    }  # fmt: skip

    def gradient(m: Any, call: Any, values: list[complex]) -> Any:
        x = made(m, values, dtype).requires_grad_()
        (call(m, x) * (2 - 0.5j)).real.sum().backward()
        return x.grad

    for name, call in calls.items():
        alike(lambda m: call(m, made(m, POINTS, dtype)), name, rtol)
        alike(lambda m: gradient(m, call, POINTS), f"gradient of {name}", rtol * 10)
        for z in ODD:
            alike(lambda m: call(m, made(m, [z], dtype)), f"{name} of {z}", rtol)
            alike(lambda m: call(m, made(m, [z, 1 + 0j], dtype)), f"{name} of {z} and 1", rtol)
    alike(lambda m: m.logsumexp(made(m, [], dtype), 0), "logsumexp of nothing")
    alike(lambda m: m.logaddexp(made(m, POINTS, dtype), made(m, range(8), "float32")), "logaddexp of two dtypes", rtol)


HALF_NORMS: dict[str, Any] = {
    "norm": lambda m, x: x.norm(),
    "vector_norm": lambda m, x: m.linalg.vector_norm(x),
    "dist": lambda m, x: m.dist(x, m.zeros_like(x)),
    "normalize": lambda m, x: m.nn.functional.normalize(x, dim=0).sum(),
    "cosine_similarity": lambda m, x: m.nn.functional.cosine_similarity(x, m.ones_like(x), dim=0),
    "pairwise_distance of zeros": lambda m, x: m.nn.functional.pairwise_distance(x, m.zeros_like(x)),
    "pairwise_distance of equal rows": lambda m, x: m.nn.functional.pairwise_distance(x, x.flip(0)),
    "renorm": lambda m, x: x.reshape(2, 2).renorm(2, 0, 0.5).sum(),
    "std": lambda m, x: x.std(),
    "std_mean": lambda m, x: m.std_mean(x)[0],
}


@pytest.mark.parametrize("values", [[1e-6] * 4, [1e-3] * 4, [0.0] * 4, [1e-4, 2e-4, 3e-4, 5e-4], [6e4, 6e4, 0.0, 1.0]], ids=str)
@pytest.mark.parametrize("name", HALF_NORMS)
def test_norms_of_halves_stay_in_range(name: str, values: list[float]) -> None:
    def both(m: Any) -> Any:
        x = m.tensor(values, dtype=m.float16, requires_grad=True)
        y = HALF_NORMS[name](m, x)
        y.backward()
        if "std" in name and max(values) > 1:  # torch's gradient, computed in halves, is 0
            return y.detach()
        return m.stack([y.detach(), *x.grad])

    alike(both, name, rtol=0.02)


SEGMENTS = {
    "lengths": (np.array([1.0, 3.0, 3.0, 2.0, 0.0, 0.0]), {"lengths": [3, 0, 1, 2]}),
    "offsets": (np.array([1.0, 3.0, 3.0, 2.0, 0.0, 0.0]), {"offsets": [0, 3, 3, 4, 6]}),
    "rows": (np.random.default_rng(0).standard_normal((6, 2)), {"lengths": [2, 4]}),
    "along the second dim": (np.random.default_rng(1).standard_normal((2, 6, 3)), {"lengths": [[2, 4, 0], [5, 0, 1]], "axis": 1}),
    "offsets along the second dim": (np.random.default_rng(1).standard_normal((2, 6)), {"offsets": [[0, 2, 6], [0, 5, 6]], "axis": -1}),
    "with some left over": (np.arange(6.0), {"lengths": [2, 1], "unsafe": True}),
    "with a NaN": (np.array([1.0, np.nan, 2.0]), {"lengths": [2, 1]}),
}


@pytest.mark.parametrize("name", SEGMENTS)
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2, 0.5])
def test_segments(name: str, reduce: str, initial: Any) -> None:
    values, options = SEGMENTS[name]
    for dtype in ("float64", "float32"):
        found = []
        for m in (gt, torch):
            x = m.tensor(values, dtype=getattr(m, dtype), requires_grad=True)
            given = {k: m.tensor(v) if isinstance(v, list) else v for k, v in options.items()}
            y = m.segment_reduce(x, reduce, **given, initial=initial)
            if name != "with some left over" or m is gt:
                weights = m.arange(float(y.numel()), dtype=y.dtype).reshape(y.shape) + 1
                (g,) = m.autograd.grad((y * weights).sum(), x)
            found.append((y, g))
        assert str(found[0][0].dtype)[3:] == str(found[1][0].dtype)[6:]
        np.testing.assert_allclose(found[0][0].detach().numpy(), found[1][0].detach().numpy(), rtol=1e-6)
        if name == "with a NaN":  # its segment's gradients are NaN, torch's go to the NaN
            assert found[0][1][2].item() == found[1][1][2].item()
        elif name != "with some left over":  # torch's gradient behind the last segment is not set
            np.testing.assert_allclose(found[0][1].numpy(), found[1][1].numpy(), rtol=1e-6)
        else:
            assert found[0][1][3:].tolist() == [0.0] * 3


def test_segments_say_what_does_not_go() -> None:
    for call in (
        lambda m: m.segment_reduce(m.ones(3), "sum"), lambda m: m.segment_reduce(m.ones(3), "foo", lengths=m.tensor([3])),
        lambda m: m.segment_reduce(m.ones(3), "sum", lengths=m.tensor([3]), axis=1), lambda m: m.segment_reduce(m.ones(3), "sum", lengths=m.ones(1) * 3),
        lambda m: m.segment_reduce(m.arange(3), "sum", lengths=m.tensor([3])), lambda m: m.segment_reduce(m.ones(3), "sum", indices=m.tensor([3])),
        lambda m: m.segment_reduce(m.ones(2, 3), "sum", lengths=m.tensor([3]), axis=1),
    ):  # fmt: skip
        errors = []
        for m in (gt, torch):
            with pytest.raises((RuntimeError, IndexError)) as raised:
                call(m)
            errors.append((isinstance(raised.value, IndexError), isinstance(raised.value, NotImplementedError), str(raised.value).split("\n")[0]))
        if "Either" not in errors[1][2] and "indices" not in errors[1][2]:
            assert errors[0] == errors[1]

"""Printing: torch's own repr, character for character but for the prefix of dtypes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import gt

SHAPES = (
    (),
    (1,),
    (5,),
    (0,),
    (0, 3),
    (2, 3),
    (2, 0, 3),
    (3, 2, 2),
    (30,),
    (1001,),
    (40, 40),
    (3, 400, 2),
    (1, 1, 1, 1),
)
VALUES = (
    [1.0, 2.0, 3.0], [1.0, float("nan"), 2.5], [float("inf"), 1.0, 2.0], [float("inf"), float("-inf")], [float("nan")],
    [1e-5, 1.0], [1e5, 1.0, 0.1], [0.0, 0.0], [-0.0], [1e9, 2e9], [1e-8, 1e-9], [100000.0, 200000.5], [1.0, float("inf"), 1e-5],
)  # fmt: skip


@pytest.fixture(autouse=True)
def default_options() -> Iterator[None]:
    yield
    for library in (gt, torch):
        library.set_printoptions(profile="default")


def crossed(x: torch.Tensor) -> gt.Tensor:
    values = x.detach().float() if x.dtype is torch.bfloat16 else x.detach()
    return gt.tensor(values.numpy(), dtype=str(x.dtype)[6:]).requires_grad_(x.requires_grad)


def assert_prints_alike(x: torch.Tensor) -> None:
    assert repr(crossed(x)) == repr(x).replace("torch.", "gt.")


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_repr_equals_torch(name: str, scale: float) -> None:
    rng = np.random.default_rng(0)
    for shape in SHAPES:
        x = torch.tensor(rng.normal(size=shape) * (scale if name[0] in "bfc" and name != "bool" else 50)).to(
            getattr(torch, name)
        )
        assert_prints_alike(x)


@pytest.mark.parametrize("values", VALUES)
def test_repr_of_special_values(values: list[float]) -> None:
    for dtype in (torch.float32, torch.float64, torch.complex64):
        assert_prints_alike(torch.tensor(values, dtype=dtype))
        assert_prints_alike(torch.tensor(values[0], dtype=dtype))


@pytest.mark.parametrize(
    "options",
    [{"precision": 2}, {"threshold": 5, "edgeitems": 2}, {"linewidth": 40}, {"sci_mode": True}, {"sci_mode": False}, {"profile": "short"}, {"profile": "full"}],
)  # fmt: skip
def test_print_options_equal_torch(options: dict[str, object]) -> None:
    gt.set_printoptions(**options)
    torch.set_printoptions(**options)
    for shape in ((3,), (4, 30), (12, 3, 5)):
        assert_prints_alike(torch.linspace(-3, 1234, int(np.prod(shape))).reshape(shape))
        assert_prints_alike(torch.arange(int(np.prod(shape)), dtype=torch.int32).reshape(shape))


def test_printoptions_block_puts_options_back() -> None:
    x = gt.tensor([1 / 3])
    with gt.printoptions(precision=1):
        assert repr(x) == "tensor([0.3])"
    assert repr(x) == "tensor([0.3333])"


def test_gradients_are_noted() -> None:
    a, b = gt.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    assert repr(a) == repr(b)
    assert repr(a * 2) == repr(b * 2) == "tensor([2., 2.], grad_fn=<MulBackward0>)"


def test_format_of_a_number() -> None:
    assert f"{gt.tensor(1.23456):.2f}" == "1.23"
    with pytest.raises(TypeError, match="unsupported format string"):
        f"{gt.ones(2):.2f}"


def test_html_never_reads() -> None:
    x = gt.ones(2, 3) * 2
    with gt.flush_guard("disallow"):
        assert x._repr_html_() == "<code>gt.Tensor [2, 3] float32, pending</code>"


def test_results_with_names() -> None:
    for ask in (
        lambda m, x: x.max(1), lambda m, x: m.min(x, 0), lambda m, x: x.sort(), lambda m, x: m.topk(x, 1), lambda m, x: x.kthvalue(2),
        lambda m, x: x.median(0), lambda m, x: m.nanmedian(x, 1), lambda m, x: x.mode(), lambda m, x: x.cummax(0), lambda m, x: m.cummin(x, 1),
        lambda m, x: x.aminmax(), lambda m, x: m.frexp(x), lambda m, x: m.histogram(x, 3), lambda m, x: m.lu_unpack(x, m.tensor([2, 2]).int()),
        lambda m, x: m.linalg.lu(x), lambda m, x: m.linalg.inv_ex(x), lambda m, x: m.linalg.lu_factor(x), lambda m, x: m.linalg.lu_factor_ex(x),
        lambda m, x: m.linalg.cholesky_ex(x @ x.T), lambda m, x: m.linalg.slogdet(x), lambda m, x: m.slogdet(x), lambda m, x: x.slogdet(),
        lambda m, x: m.linalg.solve_ex(x, x), lambda m, x: m.tensor(2.0).max(0),
    ):  # fmt: skip
        mine, theirs = (ask(m, m.tensor([[1.0, 3.0], [4.0, 2.0]])) for m in (gt, torch))
        assert repr(mine) == repr(theirs).replace("torch.", "gt.")
        name = type(theirs).__name__
        assert isinstance(mine, getattr(gt.return_types, name)) and type(mine).__name__ == name
        again = pickle.loads(pickle.dumps(mine))
        assert type(again) is type(mine) and [v.tolist() for v in again] == [v.tolist() for v in mine]
    for ask in (lambda m, x: m.linalg.eig(x), lambda m, x: m.linalg.eigh(x), lambda m, x: m.linalg.svd(x), lambda m, x: m.svd(x), lambda m, x: m.qr(x)):
        mine, theirs = (ask(m, m.eye(2)) for m in (gt, torch))  # signs are not promised
        assert repr(mine).split("=")[0] == repr(theirs).split("=")[0].replace("torch.", "gt.")
    assert gt.linalg.eigh(gt.eye(2))._fields == ("eigenvalues", "eigenvectors")

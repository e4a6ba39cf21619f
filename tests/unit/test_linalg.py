"""Factorizations whose vectors are defined up to sign: products and orthogonality instead of values."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gt
from gt.ir.evaluate import evaluate_node
from gt.ir.ops import OPS
from gt.ir.types import TensorType, float64


def run(name: str, x: np.ndarray, **attrs: object) -> tuple[np.ndarray, ...]:
    op = OPS[name]
    types = op.infer_types((TensorType(x.shape, float64),), tuple(attrs.items()))
    return evaluate_node(op, [x], attrs, types)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (2, 3, 5)])
@pytest.mark.parametrize("full", [False, True])
def test_svd_on_both_engines(shape: tuple[int, ...], full: bool) -> None:
    x = np.random.default_rng(0).normal(size=shape)
    k = min(shape[-2:])
    by_torch = [t.numpy() for t in gt.linalg.svd(gt.tensor(x), full_matrices=full)]
    for u, s, vh in (run("svd", x, full=full), by_torch):
        np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x, atol=1e-10)
        np.testing.assert_allclose(
            np.swapaxes(u, -1, -2) @ u,
            np.broadcast_to(np.eye(u.shape[-1]), (*shape[:-2], *[u.shape[-1]] * 2)),
            atol=1e-10,
        )


@pytest.mark.parametrize("upper", [False, True])
def test_eigh_on_both_engines(upper: bool) -> None:
    x = np.random.default_rng(1).normal(size=(2, 4, 4))
    whole = (
        np.triu(x) + np.swapaxes(np.triu(x, 1), -1, -2) if upper else np.tril(x) + np.swapaxes(np.tril(x, -1), -1, -2)
    )
    by_torch = [t.numpy() for t in gt.linalg.eigh(gt.tensor(x), "U" if upper else "L")]
    for values, vectors in (run("eigh", x, upper=upper), by_torch):
        np.testing.assert_allclose(vectors * values[..., None, :] @ np.swapaxes(vectors, -1, -2), whole, atol=1e-10)
        assert (np.diff(values) >= 0).all()


@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "bij,bjk->bik",
        "ii->i",
        "ii",
        "ij->ji",
        "i,j->ij",
        "...ij,...jk->...ik",
        "abc,cd,de->abe",
        "ij,ij->",
    ],
)
def test_einsum_equals_numpy(equation: str) -> None:
    rng, sizes = np.random.default_rng(2), {"i": 3, "j": 4, "k": 2, "b": 2, "a": 2, "c": 3, "d": 4, "e": 2}
    terms = equation.split("->")[0].replace("...", "").split(",")
    arrays = [rng.normal(size=[sizes[c] if term != "ii" else 3 for c in term]) for term in terms]
    got = gt.einsum(equation, *map(gt.tensor, arrays))
    np.testing.assert_allclose(got.numpy(), np.einsum(equation, *arrays), atol=1e-12)


def test_einsum_refuses_what_does_not_fit() -> None:
    with pytest.raises(RuntimeError, match="fewer operands were provided|more operands were provided"):
        gt.einsum("ij,jk", gt.ones(2, 3))
    with pytest.raises(RuntimeError, match="does not broadcast with previously seen size"):
        gt.einsum("ij,jk", gt.ones(2, 3), gt.ones(4, 5))


@pytest.mark.parametrize("n", [1, 4])
def test_eig_rebuilds_its_matrix_and_eigvals_have_torchs_gradient(n):
    a = np.random.default_rng(n).standard_normal((n, n))
    values, vectors = gt.linalg.eig(gt.tensor(a))
    np.testing.assert_allclose(a @ vectors.numpy(), vectors.numpy() * values.numpy(), atol=1e-10)
    x, tx = gt.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
    for m, t in ((gt, x), (torch, tx)):
        (m.linalg.eigvals(t).abs() ** 2).sum().backward()  # does not depend on the order of the values
    np.testing.assert_allclose(x.grad.numpy(), tx.grad.numpy(), rtol=1e-8, atol=1e-10)


def test_a_beta_of_0_reads_nothing_and_keeps_the_dtype():
    x = gt.tensor([[math.inf, math.nan, 1.0]], requires_grad=True)
    y = gt.addmm(x, gt.ones(1, 2), gt.ones(2, 3), beta=0)
    y.sum().backward()
    assert y.tolist() == [[2.0, 2.0, 2.0]] and x.grad.tolist() == [[0.0, 0.0, 0.0]]
    b = gt.tensor([True, False])
    assert gt.addr(gt.eye(2, dtype=gt.bool), b, b, beta=False).tolist() == [[True, False], [False, False]]


def test_results_have_torchs_names():
    a = [[4.0, 1.0], [1.0, 3.0]]
    calls = {
        "svd": lambda m, t: m.svd(t), "method svd": lambda m, t: t.svd(), "frexp": lambda m, t: m.frexp(t), "lu": lambda m, t: m.lu(t, get_infos=True),
        "histogramdd": lambda m, t: m.histogramdd(t, [2, 2]), "triangular_solve": lambda m, t: m.triangular_solve(t, t),
        "inv_ex": lambda m, t: m.linalg.inv_ex(t), "cholesky_ex": lambda m, t: m.linalg.cholesky_ex(t),
        "solve_ex": lambda m, t: m.linalg.solve_ex(t, t), "qr": lambda m, t: m.qr(t), "slogdet": lambda m, t: m.slogdet(t),
        "eigh": lambda m, t: m.linalg.eigh(t), "aminmax": lambda m, t: m.aminmax(t), "sort": lambda m, t: m.sort(t),
    }  # fmt: skip
    for name, call in calls.items():
        want, have = (call(m, m.tensor(a)) for m in (torch, gt))
        fields = have._fields
        assert len(want) == len(have) == len(fields), name
        for i, field in enumerate(fields):
            assert getattr(want, field) is want[i] or name == "histogramdd", (name, field)
            assert getattr(have, field) is have[i]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_exponentials_of_complex_matrices(dtype):
    rng = np.random.default_rng(0)
    z = rng.standard_normal((2, 3, 3)) + 1j * rng.standard_normal((2, 3, 3))
    found = []
    for m in (gt, torch):
        x = m.tensor(z.astype(dtype), requires_grad=True)
        y = m.linalg.matrix_exp(-1j * (x + x.mH))
        (y * m.tensor(z.astype(dtype))).real.sum().backward()
        found.append([y.detach().numpy(), x.grad.numpy()])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 if dtype == "complex64" else 1e-12)
    np.testing.assert_allclose(OPS["matrix_exp"].numpy(z), torch.linalg.matrix_exp(torch.tensor(z)).numpy(), rtol=1e-10)

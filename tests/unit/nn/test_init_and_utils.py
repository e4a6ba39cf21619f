"""Initialisation draws from torch's distributions; gradient clipping and parameter vectors equal torch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import gt
from gt import nn
from gt.flush import counters


def drawn(m, function, *args, shape=(200, 150), **kwargs):
    (gt if m is gt else torch).manual_seed(0)
    return getattr(m.nn.init, function)(m.empty(*shape), *args, **kwargs).numpy()


DRAWS = [
    ("uniform_", (-1.0, 2.0), {}), ("normal_", (1.0, 0.5), {}), ("xavier_uniform_", (), {"gain": 2.0}), ("xavier_normal_", (), {}),
    ("kaiming_uniform_", (), {"a": math.sqrt(5)}), ("kaiming_normal_", (), {"mode": "fan_out", "nonlinearity": "relu"}),
    ("trunc_normal_", (0.0, 1.0, -0.5, 1.5), {}), ("sparse_", (0.4,), {"std": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), DRAWS, ids=[d[0] for d in DRAWS])
def test_draws_have_torchs_distribution(name, args, kwargs):
    got, want = drawn(gt, name, *args, **kwargs), drawn(torch, name, *args, **kwargs)
    spread = want.std()
    assert abs(got.mean() - want.mean()) < 0.03 * spread and abs(got.std() / spread - 1) < 0.03
    quantiles = np.linspace(0.01, 0.99, 25)
    np.testing.assert_allclose(np.quantile(got, quantiles), np.quantile(want, quantiles), atol=0.09 * spread)
    assert (
        got.min()
        >= want.min() - 0.35 * spread * (name in ("normal_", "xavier_normal_", "kaiming_normal_", "sparse_")) - 0.01 * spread * 3
    )


def test_exact_initialisations():
    assert drawn(gt, "eye_", shape=(3, 4)).tolist() == drawn(torch, "eye_", shape=(3, 4)).tolist()
    assert drawn(gt, "dirac_", 2, shape=(4, 2, 3, 3)).tolist() == drawn(torch, "dirac_", 2, shape=(4, 2, 3, 3)).tolist()
    assert drawn(gt, "constant_", 3.0, shape=(2,)).tolist() == [3.0, 3.0]
    zeros = drawn(gt, "sparse_", 0.25, shape=(8, 5)) == 0
    assert zeros.sum(0).tolist() == [2] * 5
    for shape in ((5, 9), (9, 5), (4, 2, 3)):
        q = drawn(gt, "orthogonal_", 2.0, shape=shape).reshape(shape[0], -1)
        q = q if q.shape[0] <= q.shape[1] else q.T
        np.testing.assert_allclose(q @ q.T, 4 * np.eye(len(q)), atol=1e-5)


@pytest.mark.parametrize("nonlinearity", ["linear", "conv2d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"])
def test_gains(nonlinearity):
    assert nn.init.calculate_gain(nonlinearity) == torch.nn.init.calculate_gain(nonlinearity)
    with pytest.raises(ValueError, match="Unsupported nonlinearity x"):
        nn.init.calculate_gain("x")
    with pytest.raises(ValueError, match="fewer than 2 dimensions"):
        nn.init.xavier_uniform_(gt.empty(3))


LAYERS = [
    lambda m: m.nn.Linear(300, 200), lambda m: m.nn.Conv2d(20, 40, 5), lambda m: m.nn.ConvTranspose1d(30, 40, 6),
    lambda m: m.nn.Embedding(200, 100), lambda m: m.nn.LSTM(60, 80), lambda m: m.nn.GRUCell(90, 70), lambda m: m.nn.Bilinear(20, 30, 40),
    lambda m: m.nn.MultiheadAttention(64, 4, add_bias_kv=True), lambda m: m.nn.Transformer(32, 2, 1, 1, 128),
]  # fmt: skip


@pytest.mark.parametrize("make", LAYERS)
def test_layers_start_as_torchs(make):
    gt.manual_seed(0)
    torch.manual_seed(0)
    for (name, p), (other, q) in zip(make(gt).named_parameters(), make(torch).named_parameters(), strict=True):
        assert name == other and tuple(p.shape) == tuple(q.shape)
        got, want = p.detach().numpy(), q.detach().numpy()
        if want.std() == 0:
            np.testing.assert_array_equal(got, want)
        elif want.size > 1000:
            assert abs(got.std() / want.std() - 1) < 0.1, name
            assert abs(np.abs(got).max() / np.abs(want).max() - 1) < 0.35, name


def with_gradients(m):
    rng = np.random.default_rng(0)
    params = [m.nn.Parameter(m.tensor(rng.standard_normal(s).astype(np.float32))) for s in ((3, 4), (5,), ())]
    for p in params[:2]:
        p.grad = m.tensor(rng.standard_normal(tuple(p.shape)).astype(np.float32)) * 3
    return params


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf, 3])
@pytest.mark.parametrize("limit", [0.5, 1e6])
def test_clip_grad_norm(norm_type, limit):
    results = []
    for m in (gt, torch):
        params = with_gradients(m)
        total = m.nn.utils.clip_grad_norm_(params, limit, norm_type)
        results.append([total.item(), *(p.grad.numpy() for p in params[:2])])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_clip_grad_norm_reads_nothing_and_reports_what_is_not_finite(settled):
    params = with_gradients(gt)
    before = counters.flushes
    gt.nn.utils.clip_grad_norm_(params, 1.0)
    assert counters.flushes == before
    params[0].grad.fill_(math.nan)
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        gt.nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)
    assert gt.nn.utils.clip_grad_norm_([], 1.0).item() == 0.0


def test_clip_grad_value_and_vectors():
    params, other = with_gradients(gt), with_gradients(torch)
    gt.nn.utils.clip_grad_value_(params, 0.7)
    torch.nn.utils.clip_grad_value_(other, 0.7)
    np.testing.assert_array_equal(params[0].grad.numpy(), other[0].grad.numpy())
    vector = gt.nn.utils.parameters_to_vector(params)
    np.testing.assert_array_equal(vector.detach().numpy(), torch.nn.utils.parameters_to_vector(other).detach().numpy())
    gt.nn.utils.vector_to_parameters(vector * 2, params)
    np.testing.assert_array_equal(params[1].detach().numpy(), other[1].detach().numpy() * 2)
    with pytest.raises(TypeError, match="expected torch.Tensor, but got: list"):
        gt.nn.utils.vector_to_parameters([1.0], params)


@pytest.mark.parametrize("kwargs", [{}, {"batch_first": True, "padding_value": 2.0}, {"padding_side": "left"}])
def test_pad_sequence(kwargs):
    rows = [np.arange(n * 2, dtype=np.float32).reshape(n, 2) for n in (3, 1, 2)]
    got = gt.nn.utils.rnn.pad_sequence([gt.tensor(r) for r in rows], **kwargs)
    np.testing.assert_array_equal(got.numpy(), torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in rows], **kwargs).numpy())
    if "padding_side" not in kwargs:
        parts = gt.nn.utils.rnn.unpad_sequence(got, [3, 1, 2], kwargs.get("batch_first", False))
        assert [p.tolist() for p in parts] == [r.tolist() for r in rows]

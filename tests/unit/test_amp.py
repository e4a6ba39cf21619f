"""Mixed precision: which dtypes come out, and that training agrees with torch's autocast."""

import numpy as np
import pytest
import torch

import gt

A = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
W = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)


@pytest.mark.parametrize(
    "compute",
    [
        lambda m, x, w: x @ w.T, lambda m, x, w: m.nn.functional.linear(x, w),
        lambda m, x, w: (x @ w.T).sum(), lambda m, x, w: (x @ w.T) + x.sum(1, keepdim=True),
        lambda m, x, w: m.cat([x @ w.T, x]  , 1), lambda m, x, w: m.nn.functional.layer_norm(x @ w.T, (3,)),
        lambda m, x, w: m.relu(x @ w.T), lambda m, x, w: m.nn.functional.gelu(x @ w.T),
        lambda m, x, w: m.nn.functional.conv1d(x[None], w[:, None, :].repeat(1, 4, 1)[:, :, :2]),
        lambda m, x, w: m.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    ],
)  # fmt: skip
def test_dtypes_and_values_equal_torchs(compute):
    with gt.autocast("cpu", dtype=gt.bfloat16):
        got = compute(gt, gt.tensor(A), gt.tensor(W))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        want = compute(torch, torch.tensor(A), torch.tensor(W))
    assert got.dtype.name == str(want.dtype).removeprefix("torch.")
    np.testing.assert_allclose(got.float().numpy(), want.float().numpy(), rtol=2e-2, atol=5e-2)


def test_torchs_lists_for_cuda_hold_on_every_device():
    with gt.autocast("cpu"):
        y = gt.tensor(A) @ gt.tensor(W).T
        assert y.dtype is gt.bfloat16
        assert y.exp().dtype is y.softmax(-1).dtype is (y**2).dtype is gt.float32


def test_weights_stay_float32_and_train():
    w, tw = gt.tensor(W, requires_grad=True), torch.tensor(W, requires_grad=True)
    for m, p in ((gt, w), (torch, tw)):
        x = m.tensor(A)
        opt = m.optim.SGD([p], lr=0.1)
        for _ in range(3):
            with m.autocast("cpu", dtype=m.bfloat16):
                loss = m.nn.functional.cross_entropy(m.nn.functional.linear(x, p), m.tensor([0, 1, 2, 0]))
            loss.backward()
            assert p.grad.dtype is m.float32
            opt.step()
            opt.zero_grad()
    np.testing.assert_allclose(w.detach().numpy(), tw.detach().numpy(), rtol=2e-2, atol=2e-2)


def test_nested_and_disabled():
    x = gt.tensor(A)
    with gt.autocast("cpu"):
        with gt.autocast("cpu", enabled=False):
            assert (x @ x.T).dtype is gt.float32
        assert (x @ x.T).dtype is gt.bfloat16
    assert (x @ x.T).dtype is gt.float32
    with pytest.warns(UserWarning, match="float16 or bfloat16"), gt.autocast("cpu", dtype=gt.float64):
        assert (x @ x.T).dtype is gt.float32

"""Old and rarely used names of torch's, against torch."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

import gt

RNG = np.random.default_rng(0)
A, W, B = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 3), (12, 3), (12,)))
H, V = RNG.standard_normal((2, 4)).astype(np.float32), RNG.standard_normal((12, 4)).astype(np.float32)
IMAGES = RNG.standard_normal((2, 5, 3, 3)).astype(np.float32)

CALLS = {
    "orgqr": lambda m, t: m.orgqr(t(W[:4]), t(np.ones(3, np.float32))),
    "batch_norm": lambda m, t: m.batch_norm(t(A), None, None, t(A[0]), t(A[0] ** 2), False, 0.1, 1e-5, True),
    "embedding": lambda m, t: m.embedding(t(W), m.tensor([[1, 2], [0, 5]])),
    "lstm_cell": lambda m, t: m.lstm_cell(t(A), (t(H[:, :3]), t(H[:, 1:])), t(W), t(V[:, :3]), t(B), t(B))[1],
    "gru_cell": lambda m, t: m.gru_cell(t(A), t(H), t(W), t(V), t(B), t(B)),
    "rnn_tanh_cell": lambda m, t: m.rnn_tanh_cell(t(A), t(H), t(W[:4]), t(V[:4])),
    "rnn_relu_cell": lambda m, t: m.rnn_relu_cell(t(A), t(H), t(W[:4]), t(V[:4])),
    "range": lambda m, t: m.range(1, 4, 0.5),
    "range down": lambda m, t: m.range(4, 1, -2, dtype=m.int64),
    "init": lambda m, t: m.nn.init.constant(m.zeros(2, 3), 0.5) + m.nn.init.eye(m.zeros(2, 3)),
    "lu": lambda m, t: m.lu(t(W[:3]))[0],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_values(name: str) -> None:
    want, have = (CALLS[name](m, m.tensor) for m in (torch, gt))
    assert str(have.dtype).removeprefix("gt.") == str(want.dtype).removeprefix("torch.") and tuple(have.shape) == tuple(want.shape)
    np.testing.assert_allclose(have.numpy(), want.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["Conv2d", "ConvTranspose2d", "Linear"])
def test_fused_with_batch_norm(kind: str) -> None:
    sizes = (5, 4, 2) if "Conv" in kind else (3, 4)
    layer, norm = getattr(gt.nn, kind)(*sizes).eval(), (gt.nn.BatchNorm2d if "Conv" in kind else gt.nn.BatchNorm1d)(4).eval()
    norm.running_mean.copy_(gt.tensor(H[0])), norm.running_var.copy_(gt.tensor(H[1] ** 2 + 0.1))
    x = gt.tensor(IMAGES if "Conv" in kind else A)
    if kind == "Linear":
        fused = gt.nn.utils.fuse_linear_bn_eval(layer, norm)
    else:
        fused = gt.nn.utils.fuse_conv_bn_eval(layer, norm, transpose="Transpose" in kind)
    np.testing.assert_allclose(fused(x).detach().numpy(), norm(layer(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError, match="eval"):
        gt.nn.utils.fuse_conv_bn_eval(layer.train(), norm)


def test_skip_init_and_old_clipping() -> None:
    layer: Any = gt.nn.utils.skip_init(gt.nn.Linear, 3, 4)
    assert layer.weight.shape == (4, 3) and layer.weight.requires_grad
    layer(gt.ones(2, 3)).sum().backward()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gt.nn.utils.clip_grad_norm(layer.parameters(), 1.0)
    assert seen and abs(sum(float(p.grad.square().sum()) for p in layer.parameters()) - 1) < 1e-4
    assert gt.version.__version__ == gt.__version__ and gt.version.cuda is None


@pytest.mark.parametrize("cast", [False, True])
def test_custom_forward_and_backward_under_autocast(cast: bool) -> None:
    found = []
    for m in (torch, gt):

        class Product(m.autograd.Function):
            @staticmethod
            @m.amp.custom_fwd(device_type="cpu", cast_inputs=m.float32 if cast else None)
            def forward(ctx: Any, a: Any, b: Any, m: Any = m) -> Any:
                ctx.save_for_backward(a, b)
                out = a @ b
                found.append(str(out.dtype).split(".")[-1])
                return out

            @staticmethod
            @m.amp.custom_bwd(device_type="cpu")
            def backward(ctx: Any, g: Any) -> Any:
                a, b = ctx.saved_tensors
                back = g.float() @ b.mT.float()
                found.append(str(back.dtype).split(".")[-1])
                return back.to(a.dtype), (a.mT.float() @ g.float()).to(b.dtype)

        x = m.tensor(A, requires_grad=True)
        with m.autocast("cpu", dtype=m.bfloat16):
            y = Product.apply(x, m.tensor(A.T))
        y.float().sum().backward()
        found.append(np.round(x.grad.float().numpy(), 1).tolist())
    assert found[: len(found) // 2] == found[len(found) // 2 :]

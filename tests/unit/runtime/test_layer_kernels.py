"""Products of one row, as sums that a GPU's compiler fuses, and attention, beside torch's own."""

from __future__ import annotations

import pytest
import torch

from gt.runtime import layer_kernels


@pytest.fixture(autouse=True)
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_kernels, "_fuses", lambda x: True)
    torch.manual_seed(0)


@pytest.mark.parametrize("k", [0, 5, 1024, 1031, 3072, 11008])
@pytest.mark.parametrize("lead", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_a_row_through_a_linear_layer(k: int, lead: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(*lead, k, dtype=dtype), torch.randn(7, k, dtype=dtype), torch.randn(7, dtype=dtype)
    for b in (None, bias):
        torch.testing.assert_close(layer_kernels.row_linear(x, weight, b), torch.nn.functional.linear(x, weight, b), atol=2e-4, rtol=2e-2)


@pytest.mark.parametrize(("a", "b"), [((1, 5), (5, 3)), ((2, 3, 1, 2048), (3, 2048, 4)), ((4, 1, 0), (4, 0, 2)), ((1, 1), (2, 1, 6))])
def test_a_row_times_a_matrix(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = torch.randn(a), torch.randn(b)
    torch.testing.assert_close(layer_kernels.row_matmul(x, y), x @ y, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_one_query_attends_as_many_do(masked: bool) -> None:
    q, k, v = torch.randn(2, 3, 1, 8), torch.randn(2, 3, 33, 8), torch.randn(2, 3, 33, 8)
    mask = torch.where(torch.rand(2, 1, 1, 33) < 0.3, float("-inf"), 0.0) if masked else None
    got, _ = layer_kernels.attention(q, k, v, mask, False, 0.5)
    torch.testing.assert_close(got, torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=0.5))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("s", "t", "d", "e"), [(1, 1, 4, 4), (64, 64, 16, 16), (300, 300, 8, 8), (7, 700, 5, 5), (70, 3, 8, 8), (33, 33, 8, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attention_and_its_gradients(causal: bool, s: int, t: int, d: int, e: int, dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, n, 3, w, dtype=dtype).transpose(1, 2) for n, w in ((s, d), (t, d), (t, e)))
    g = torch.randn(2, 3, s, e, dtype=dtype)
    y, lse = layer_kernels.attention(q, k, v, None, causal, 0.3)
    got = layer_kernels.attention_backward(g, q, k, v, y, lse, None, causal, 0.3)
    scores = q @ k.mT * 0.3
    scores = scores.masked_fill(~torch.ones(s, t, dtype=torch.bool).tril(), float("-inf")) if causal else scores
    torch.testing.assert_close(lse, scores.logsumexp(-1))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    want = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal, scale=0.3)
    torch.testing.assert_close(y, want)
    for a, b in zip(got, torch.autograd.grad(want, leaves, g), strict=True):
        torch.testing.assert_close(a, b, atol=3e-5, rtol=1e-4)

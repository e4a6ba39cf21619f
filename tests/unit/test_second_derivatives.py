"""Second derivatives and derivatives that are not there, compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import gt

HESSIANS: dict[str, tuple[Callable[[Any, Any], Any], list[float]]] = {
    "cumprod": (lambda m, a: a.cumprod(0).sum(), [2.0, 3.0, 4.0]),
    "cumprod of a zero": (lambda m, a: a.cumprod(0).sum(), [2.0, 0.0, 4.0]),
    "prod of zeros": (lambda m, a: a.prod(), [0.0, 0.0, 4.0]),
    "abs of rfft": (lambda m, a: m.fft.rfft(a).abs().sum(), [2.0, 3.0, 4.0]),
    "abs of stft": (lambda m, a: m.stft(a, 4, 2, 4, m.ones(4), return_complex=True).abs().sum(), [2.0, 3.0, 4.0, 1.0, 5.0, 2.0]),
    "abs of complex": (lambda m, a: m.complex(a, a * a).abs().sum(), [2.0, 3.0, 4.0]),
    "sgn of complex": (lambda m, a: m.sgn(m.complex(a, a * a)).real.sum(), [2.0, 3.0, 4.0]),
    "logcumsumexp": (lambda m, a: a.logcumsumexp(0).sum(), [2.0, 3.0, 4.0]),
    "logcumsumexp, one result": (lambda m, a: a.logcumsumexp(0)[1], [2.0, 3.0, 4.0]),
    "igamma": (lambda m, a: m.igamma(m.ones(3), a).sum(), [2.0, 3.0, 4.0]),
    "igammac": (lambda m, a: m.igammac(m.ones(3), a).sum(), [2.0, 3.0, 4.0]),
    "zeta": (lambda m, a: m.special.zeta(2.0, a).sum(), [2.0, 3.0, 4.0]),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessian_is_torchs(name: str) -> None:
    function, at = HESSIANS[name]
    want = torch.autograd.functional.hessian(lambda a: function(torch, a), torch.tensor(at))
    have = gt.autograd.functional.hessian(lambda a: function(gt, a), gt.tensor(at))
    torch.testing.assert_close(torch.tensor(have.tolist()), want, rtol=1e-4, atol=1e-5)


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "igamma": lambda m, x: m.igamma(x, m.ones(2)),
    "igammac": lambda m, x: m.igammac(x, m.ones(2)),
    "zeta": lambda m, x: m.special.zeta(x, m.ones(2)),
    "floor_divide": lambda m, x: x // 0.3,
    "a number by a tensor": lambda m, x: 3.0 // x,
    "heaviside": lambda m, x: m.heaviside(x, m.ones(2)),
    "heaviside's values": lambda m, x: m.heaviside(m.ones(2), x),
    "unique": lambda m, x: m.unique(x),
    "unique_consecutive": lambda m, x: m.unique_consecutive(x),
    "histogram": lambda m, x: m.histogram(x, 3).hist,
    "qr, complete": lambda m, x: m.linalg.qr(m.stack([x, x * x, x]), mode="complete")[0],
    "qr, r": lambda m, x: m.linalg.qr(m.stack([x, x * x, x]), mode="r")[1],
}


@pytest.mark.parametrize("name", REFUSED)
def test_gradients_that_are_not_there_are_refused_where_torch_refuses_them(name: str) -> None:
    texts = []
    for m in (torch, gt):
        x: Any = m.tensor([0.7, 1.3], requires_grad=True)
        y = REFUSED[name](m, x)
        assert y.requires_grad
        y.tolist()  # the value is there
        with pytest.raises(RuntimeError) as caught:
            (y.sum() + x.sum()).backward()
        texts.append((str(caught.value), caught.type))
    assert texts[0] == texts[1]


def test_dividing_with_rounding_has_a_gradient_of_zero() -> None:
    for mode in ("floor", "trunc"):
        x = gt.tensor([0.7, 1.3], requires_grad=True)
        y = gt.div(x, 0.3, rounding_mode=mode)
        (y.sum() + x.sum()).backward()
        assert x.grad is not None and x.grad.tolist() == [1, 1]


def test_values_of_what_has_no_gradient_are_unchanged() -> None:
    x = gt.tensor([0.7, float("nan"), 1.3, 1.3], requires_grad=True)
    assert str(gt.unique_consecutive(x).tolist()) == "[0.699999988079071, nan, 1.2999999523162842]"
    assert gt.heaviside(x, gt.zeros(4)).tolist() == torch.heaviside(torch.tensor(x.tolist()), torch.zeros(4)).tolist()

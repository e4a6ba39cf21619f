"""Second derivatives and derivatives that are not there, compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
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
    "embedding with padding": (
        lambda m, a: (m.nn.functional.embedding(m.tensor([0, 2]), a.unsqueeze(1), padding_idx=0)[:, 0] * a[1]).sum(), [2.0, 3.0, 4.0]
    ),
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


WITHOUT_SLOPE: dict[str, tuple[tuple[int, ...], Any]] = {
    "avg_pool1d": ((1, 2, 6), lambda m, x: m.nn.functional.avg_pool1d(x, 2)),
    "avg_pool2d": ((1, 2, 4, 4), lambda m, x: m.nn.functional.avg_pool2d(x, 2)),
    "avg_pool3d": ((1, 2, 4, 4, 2), lambda m, x: m.nn.functional.avg_pool3d(x, 2)),
    "max_pool1d": ((1, 2, 6), lambda m, x: m.nn.functional.max_pool1d(x, 2)),
    "max_pool2d": ((1, 2, 4, 4), lambda m, x: m.nn.functional.max_pool2d(x, 2)),
    "max_pool3d": ((1, 2, 4, 4, 2), lambda m, x: m.nn.functional.max_pool3d(x, 2)),
    "adaptive_avg_pool1d": ((1, 2, 5), lambda m, x: m.nn.functional.adaptive_avg_pool1d(x, 3)),
    "adaptive_avg_pool2d": ((1, 2, 5, 4), lambda m, x: m.nn.functional.adaptive_avg_pool2d(x, (3, 2))),
    "adaptive_avg_pool3d": ((1, 2, 4, 4, 3), lambda m, x: m.nn.functional.adaptive_avg_pool3d(x, 2)),
    "adaptive_max_pool1d": ((1, 2, 5), lambda m, x: m.nn.functional.adaptive_max_pool1d(x, 3)),
    "adaptive_max_pool2d": ((1, 2, 5, 4), lambda m, x: m.nn.functional.adaptive_max_pool2d(x, (3, 2))),
    "adaptive_max_pool3d": ((1, 2, 4, 4, 3), lambda m, x: m.nn.functional.adaptive_max_pool3d(x, 2)),
    "interpolate": ((1, 2, 5), lambda m, x: m.nn.functional.interpolate(x, 3, mode="area")),
    "reflect": ((1, 2, 5), lambda m, x: m.nn.functional.pad(x, (1, 2), "reflect")),
    "replicate": ((1, 2, 5), lambda m, x: m.nn.functional.pad(x, (1, 2), "replicate")),
    "nll_loss sum": ((3, 4), lambda m, x: m.nn.functional.nll_loss(x, m.tensor([0, 1, 3]), reduction="sum")),
    "nll_loss mean": ((3, 4), lambda m, x: m.nn.functional.nll_loss(x, m.tensor([0, 1, 3]))),
    "nll_loss weighted": ((3, 4), lambda m, x: m.nn.functional.nll_loss(x, m.tensor([0, 1, 3]), m.tensor([1.0, 2.0, 3.0, 4.0]))),
    "threshold": ((4,), lambda m, x: m.nn.functional.threshold(x, 0.1, 2.0)),
    "softshrink": ((4,), lambda m, x: m.nn.functional.softshrink(x)),
    "hardshrink": ((4,), lambda m, x: m.nn.functional.hardshrink(x)),
    "prelu": ((4,), lambda m, x: m.nn.functional.prelu(x, m.tensor([0.25]))),
    "sum": ((4,), lambda m, x: x.sum()),
    "a reflection of a computed value": ((1, 2, 5), lambda m, x: m.nn.functional.pad(x * 2, (1, 2), "reflect")),
    "circular": ((1, 2, 5), lambda m, x: m.nn.functional.pad(x, (1, 2), "circular")),
    "mean pool": ((1, 2, 4), lambda m, x: m.nn.functional.adaptive_avg_pool1d(x, 1)),
}


@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
@pytest.mark.parametrize("name", WITHOUT_SLOPE)
def test_a_gradient_that_does_not_depend_on_the_values_needs_one_where_torchs_does(name: str, read: bool) -> None:
    shape, function = WITHOUT_SLOPE[name]
    values = np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(np.float32)

    def outcome(m: Any) -> Any:
        x = m.tensor(values, requires_grad=True)
        out = function(m, x)
        if read:
            out.tolist()
        (g,) = m.autograd.grad(out.sum(), x, create_graph=True)
        if read:
            g.tolist()
        second = m.autograd.grad(g.sum(), x)[0].tolist() if g.requires_grad else None
        return g.requires_grad, second, np.round(np.array(g.tolist()), 5).tolist()

    assert outcome(gt) == outcome(torch)


def test_the_gradient_of_a_convolutions_bias_needs_one_by_its_operands() -> None:
    def outcome(m: Any) -> Any:
        x, w, b = (m.ones(s, requires_grad=True) for s in ((1, 2, 3, 3), (2, 2, 2, 2), (2,)))
        (g,) = m.autograd.grad(m.nn.functional.conv2d(x, w, b).sum(), b, create_graph=True)
        return g.requires_grad, [t.tolist() for t in m.autograd.grad(g.sum(), (x, w), materialize_grads=True)]

    assert outcome(gt) == outcome(torch)

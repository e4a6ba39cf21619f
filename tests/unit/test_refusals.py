# ruff: noqa: B023 - functions made in a loop are called in it
"""Dtypes and ranks that torch refuses are refused here, and what it computes is computed: both run the same call."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

import gt

Call = Callable[[Any], Any]
INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
BOUNDS = ((0, 2), (0, 3), (-5, 3), (0, 128), (0, 129), (0, 256), (0, 257), (-128, 0), (-129, 0), (0, 32769), (0, 2**31 + 1), (300, 400))


def outcome(m: Any, call: Call) -> Any:
    """Give an error's class, or a result's dtype and shape."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = call(m)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            return next(k for k in (NotImplementedError, IndexError, RuntimeError, TypeError, ValueError) if isinstance(error, k))
    return (str(made.dtype).split(".")[-1], tuple(made.shape)) if hasattr(made, "dtype") else None


def same(call: Call, what: str) -> None:
    assert outcome(gt, call) == outcome(torch, call), what


@pytest.mark.parametrize("name", INTEGERS)
def test_draws_of_whole_numbers(name: str) -> None:
    for low, high in BOUNDS:
        same(lambda m: m.randint(low, high, (2,), dtype=getattr(m, name)), f"randint({low}, {high})")
        same(lambda m: m.randint_like(m.zeros(2, dtype=getattr(m, name)), low, high), f"randint_like({low}, {high})")
        same(lambda m: m.zeros(2, dtype=getattr(m, name)).random_(low, high), f"random_({low}, {high})")
    for start in (0, 1, 2, 100, 200, -5):
        same(lambda m: m.zeros(2, dtype=getattr(m, name)).random_(start, None), f"random_({start}, None)")
    for n in (0, 2, 128, 129, 256, 257):
        same(lambda m: m.randperm(n, dtype=getattr(m, name)), f"randperm({n})")


@pytest.mark.parametrize("name", [*INTEGERS, "float16", "float32", "complex64"])
def test_other_draws(name: str) -> None:
    calls = (("normal_", ()), ("uniform_", ()), ("exponential_", ()), ("cauchy_", ()), ("log_normal_", ()), ("geometric_", (0.3,)))
    for method, args in (*calls, ("bernoulli_", (0.5,)), ("uniform_", (0, 1e6))):
        same(lambda m: getattr(m.zeros(2, dtype=getattr(m, name)), method)(*args), method)
    same(lambda m: m.normal(0.0, 1.0, (2,), dtype=getattr(m, name)), "normal")
    for method in ("normal_", "xavier_normal_", "kaiming_normal_"):
        same(lambda m: getattr(m.nn.init, method)(m.zeros(2, 2, dtype=getattr(m, name))), method)


def test_both_parts_are_drawn_in_the_range() -> None:
    drawn = gt.zeros(200, dtype=gt.complex64).uniform_(2, 3).numpy()
    for part in (drawn.real, drawn.imag):
        assert part.min() >= 2 and part.max() < 3


def test_spans_beyond_int64() -> None:
    wide = gt.randint(-(2**63), 2**63 - 1, (1000,)).numpy()
    assert 400 < (wide < 0).sum() < 600 and len(set(wide)) == 1000
    assert (abs(wide.astype(float)) > 2.0**62).sum() > 400
    assert (gt.zeros(50, dtype=gt.int64).random_(2**63 - 2, None) >= 2**63 - 2).all()
    low = gt.zeros(500, dtype=gt.int8).random_(100, None)
    assert (int(low.min()), int(low.max())) == (100, 127)


@pytest.mark.parametrize("name", [*INTEGERS, "float32"])
def test_index_dtypes(name: str) -> None:
    def at(m: Any, n: int = 2) -> Any:
        return m.zeros(n, dtype=getattr(m, name))

    calls: dict[str, Call] = {
        "x[i]": lambda m: m.ones(2, 3)[at(m)],
        "x[i, i]": lambda m: m.ones(2, 2)[at(m), at(m)],
        "x[0-d]": lambda m: m.ones(2, 3)[at(m)[0]],
        "x[i] = 0": lambda m: m.ones(2, 3).__setitem__(at(m), 0.0),
        "index_put": lambda m: m.ones(2, 3).index_put((at(m),), m.zeros(())),
        "gather": lambda m: m.ones(2).gather(0, at(m)),
        "gather of none": lambda m: m.ones(2).gather(0, at(m, 0)),
        "take": lambda m: m.ones(2).take(at(m)),
        "put": lambda m: m.ones(2).put(at(m), m.ones(2)),
        "take_along_dim": lambda m: m.ones(2).take_along_dim(at(m), 0),
        "index_select": lambda m: m.ones(2).index_select(0, at(m)),
        "index_select of none": lambda m: m.ones(2).index_select(0, at(m, 0)),
        "select": lambda m: m.ones(2).select(0, at(m)[0]),
        "scatter": lambda m: m.ones(2).scatter(0, at(m), 1.0),
        "scatter_add": lambda m: m.ones(2).scatter_add(0, at(m), m.ones(2)),
        "scatter_reduce": lambda m: m.ones(2).scatter_reduce(0, at(m), m.ones(2), "amax"),
        "index_add": lambda m: m.ones(2).index_add(0, at(m), m.ones(2)),
        "index_add of none": lambda m: m.ones(2).index_add(0, at(m, 0), m.ones(0)),
        "index_copy": lambda m: m.ones(2).index_copy(0, at(m), m.ones(2)),
        "index_fill": lambda m: m.ones(2).index_fill(0, at(m), 1.0),
        "index_reduce": lambda m: m.ones(2).index_reduce(0, at(m), m.ones(2), "amax"),
        "embedding": lambda m: m.nn.functional.embedding(at(m), m.ones(2, 3)),
        "embedding_bag": lambda m: m.nn.functional.embedding_bag(at(m), m.ones(2, 3), m.zeros(1, dtype=m.int64)),
        "one_hot": lambda m: m.nn.functional.one_hot(at(m), 3),
        "nll_loss": lambda m: m.nn.functional.nll_loss(m.ones(2, 3), at(m)),
        "multilabel_margin_loss": lambda m: m.nn.functional.multilabel_margin_loss(m.ones(2), at(m)),
        "max_unpool1d": lambda m: m.nn.functional.max_unpool1d(m.ones(1, 1, 2), at(m).reshape(1, 1, 2), 2),
        "repeat_interleave": lambda m: m.ones(2).repeat_interleave(at(m)),
        "bincount": lambda m: m.bincount(at(m)),
        "binary_cross_entropy_with_logits": lambda m: m.nn.functional.binary_cross_entropy_with_logits(m.ones(2), at(m)),
        "mse_loss": lambda m: m.nn.functional.mse_loss(m.ones(2), at(m)),
        "smooth_l1_loss": lambda m: m.nn.functional.smooth_l1_loss(m.ones(2), at(m)),
        "huber_loss": lambda m: m.nn.functional.huber_loss(m.ones(2), at(m)),
        "soft_margin_loss": lambda m: m.nn.functional.soft_margin_loss(m.ones(2), at(m)),
        "mse_loss of it": lambda m: m.nn.functional.mse_loss(at(m), at(m), reduction="none"),
    }
    if name in ("bool", "float32"):
        del calls["select"]
    for what, call in calls.items():
        same(call, what)


def test_numpy_indices_are_whole_numbers() -> None:
    x = gt.arange(3)
    assert x[np.array([2, 0], dtype=np.int8)].tolist() == [2, 0]


def test_losses_over_two_dtypes() -> None:
    def loss(m: Any, name: str) -> Any:
        given = m.tensor([[0.5, 2.0, -1.0]]), m.tensor([[0.2, 0.7, 0.1]], dtype=getattr(m, name))
        return m.nn.functional.cross_entropy(*given)

    for name in ("float16", "float32", "float64"):
        mine, theirs = loss(gt, name), loss(torch, name)
        assert str(mine.dtype)[3:] == str(theirs.dtype)[6:]
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-6)
    truth = gt.nn.functional.mse_loss(gt.tensor([0.5, 0.25]), gt.tensor([True, False]))
    assert truth.item() == 0.15625


@pytest.mark.parametrize("name", ["int32", "float16", "float32", "float64"])
@pytest.mark.parametrize("other", ["int64", "float32", "float64"])
def test_result_dtypes_of_losses(name: str, other: str) -> None:
    def given(m: Any) -> Any:
        return m.ones(2, 3, dtype=getattr(m, other)), m.ones(2, 3, dtype=getattr(m, name))

    losses = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div", "soft_margin_loss", "binary_cross_entropy_with_logits")
    for loss in losses:
        same(lambda m: getattr(m.nn.functional, loss)(*given(m), reduction="none"), loss)
    same(lambda m: m.nn.functional.binary_cross_entropy(m.ones(2, 3), m.ones(2, 3), weight=given(m)[1]), "weighted")


def test_one_target_for_scores_without_a_batch() -> None:
    scores = gt.arange(4.0).requires_grad_()
    loss = gt.nn.functional.cross_entropy(scores, gt.tensor([1]))
    assert loss.shape == () and loss.item() == pytest.approx(2.4401897)
    loss.backward()
    np.testing.assert_allclose(scores.grad.numpy(), torch.softmax(torch.arange(4.0), 0).numpy() - [0, 1, 0, 0], rtol=1e-5)
    with pytest.raises(ValueError, match="1D target must have size 1"):
        gt.nn.functional.cross_entropy(scores, gt.tensor([1, 2]))
    for target in (1, [1]):
        for reduction in ("mean", "sum", "none"):
            smooth = {"label_smoothing": 0.1, "reduction": reduction}
            same(lambda m: m.nn.functional.cross_entropy(m.ones(4), m.tensor(target), **smooth), f"{target} {reduction}")
            same(lambda m: m.nn.functional.cross_entropy(m.ones(4), m.tensor(target), m.ones(4), **smooth), f"{target} by weight")


@pytest.mark.parametrize("shape", [(3,), (3, 3), (1, 3, 3), (1, 1, 3, 3), (1, 1, 1, 3, 3), (1, 1, 1, 1, 3, 3)])
def test_ranks(shape: tuple[int, ...]) -> None:
    for mode in ("nearest", "nearest-exact", "area", "linear", "bilinear", "trilinear", "bicubic"):
        same(lambda m: m.nn.functional.interpolate(m.ones(shape), size=2, mode=mode), mode)
    for name in ("dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"):
        same(lambda m: getattr(m.nn.functional, name)(m.ones(shape), training=True), name)
    for name in ("avg_pool2d", "max_pool2d", "unfold"):
        same(lambda m: getattr(m.nn.functional, name)(m.ones(shape), 2), name)
    for name in ("int64", "bool", "complex64"):
        same(lambda m: m.nn.functional.interpolate(m.ones(1, 1, 3, 3, dtype=getattr(m, name)), size=2), name)


def test_channels_that_are_dropped() -> None:
    for name, shape, lead in (("dropout2d", (8, 9, 5), 2), ("dropout2d", (8, 9), 2), ("dropout2d", (4, 5, 2, 2, 2), 2),
                              ("dropout1d", (9, 5), 1), ("dropout3d", (9, 2, 3, 2), 1), ("dropout3d", (9, 5), 1)):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = getattr(gt.nn.functional, name)(gt.ones(shape)).numpy()
        channels = out.reshape(int(np.prod(shape[:lead])), -1)
        assert (channels == channels[:, :1]).all() and set(channels[:, 0]) == {0.0, 2.0}, (name, shape)
        if lead == 2:
            assert len({tuple(row) for row in out.reshape(*shape[:2], -1)[:, :, 0]}) > 1  # not by the first dim alone


def test_topk_is_no_view() -> None:
    for dim, k in ((1, 2), (0, 1), (1, 4)):
        values, indices = gt.rand(2, 4).topk(k, dim)
        assert values.is_contiguous() and indices.is_contiguous()
        assert values.stride() == torch.rand(2, 4).topk(k, dim)[0].stride()
        assert indices.view(-1).shape == (values.numel(),)


def test_lstsq_without_residuals() -> None:
    for driver in (None, "gels", "gelsy", "gelsd", "gelss"):
        mine, theirs = (m.linalg.lstsq(m.eye(4)[:, :2], m.ones(4, 3), driver=driver) for m in (gt, torch))
        assert [tuple(t.shape) for t in mine] == [tuple(t.shape) for t in theirs]


def test_torch_values_are_named() -> None:
    theirs = torch.ones(1)
    for call in (lambda: gt.nn.Linear(1, 2)(theirs), lambda: gt.cat([gt.ones(1), theirs]), lambda: gt.ones(1) @ theirs,
                 lambda: gt.where(gt.ones(1) > 0, theirs, 0.0)):  # fmt: skip
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            call()
    for call in (lambda: gt.ones(1) == theirs, lambda: theirs == gt.ones(1), lambda: gt.ones(1) != theirs, lambda: gt.ones(1) == np.ones(1)):
        with pytest.raises(TypeError, match=r"expected a gt\.Tensor or a number"):
            call()
    x = gt.ones(1, requires_grad=True)
    module = gt.nn.Module()
    module.register_buffer("kept", gt.ones(1))
    x.register_hook(lambda g: theirs if g.sum() == 3 else None)
    calls: dict[str, Callable[[], Any]] = {
        "backward": lambda: (x * 2).backward(theirs), "autograd.backward": lambda: gt.autograd.backward(x * 2, theirs),
        "backward of": lambda: gt.autograd.backward(theirs),
        "autograd.grad": lambda: gt.autograd.grad(x * 2, theirs), "grad_outputs": lambda: gt.autograd.grad(x * 2, x, theirs),
        "hook": lambda: (x * 3).backward(), "einsum": lambda: gt.einsum("i->i", theirs), "data": lambda: setattr(x, "data", theirs),
        "grad": lambda: setattr(x, "grad", theirs), "Parameter": lambda: gt.nn.Parameter(theirs),
        "register_buffer": lambda: module.register_buffer("more", theirs), "buffer": lambda: setattr(module, "kept", theirs),
        "register_parameter": lambda: module.register_parameter("more", theirs),
        "masked_fill": lambda: x.masked_fill(theirs > 0, 0.0), "masked_fill by": lambda: x.masked_fill(x > 0, theirs[0]),
        "masked_fill_": lambda: x.detach().masked_fill_(x > 0, theirs[0]), "put_": lambda: x.detach().put_(gt.tensor([0]), theirs),
        "lerp": lambda: x.lerp(x, theirs), "clamp": lambda: x.clamp(theirs), "view_as": lambda: x.view_as(theirs),
        "type_as": lambda: x.type_as(theirs), "full": lambda: gt.full((1,), theirs[0]),
        "parameters_to_vector": lambda: gt.nn.utils.parameters_to_vector([theirs]), "vjp": lambda: gt.func.vjp(lambda x: x, x)[1](theirs),
        "pad_sequence": lambda: gt.nn.utils.rnn.pad_sequence([theirs]), "jvp": lambda: gt.func.jvp(lambda x: x, (x,), (theirs,)),
        **{kind: lambda kind=kind: getattr(gt.nn, kind)(1, 1)(theirs.reshape(1, 1)) for kind in ("LSTM", "GRU", "RNN", "LSTMCell")},  # type: ignore[misc]
        "hx": lambda: gt.nn.GRU(1, 1)(gt.ones(1, 1), theirs.reshape(1, 1)),
    }  # fmt: skip
    for what, call in calls.items():
        with pytest.raises((TypeError, RuntimeError)) as fault:
            call()
        assert "torch.Tensor" in str(fault.value), f"{what}: {fault.value!r}"
    assert (gt.ones(1) == None) is False and (gt.ones(1) == "a") is False  # noqa: E711


def test_torch_devices() -> None:
    assert gt.zeros(2, device=torch.device("cpu")).tolist() == [0, 0]
    assert gt.device(torch.device("cuda", 1)) == gt.device("cuda:1")
    assert gt.zeros(1).device == torch.device("cpu") and torch.device("cpu") == gt.zeros(1).device


def test_shapes_of_indices() -> None:
    x = gt.ones(2, 3)
    two, three = gt.tensor([0, 1]), gt.tensor([0, 1, 2])
    for call in (lambda: x[two, three], lambda: x.__setitem__((two, three), 1.0), lambda: x.index_put((two, three), gt.ones(()))):
        with pytest.raises(IndexError, match=r"indexing tensors could not be broadcast together with shapes \[2\], \[3\]"):
            call()
    with pytest.raises(RuntimeError, match=r"value tensor of shape \[4\] cannot be broadcast to indexing result of shape \[6\]"):
        x[x > 0] = gt.ones(4)


@pytest.mark.parametrize("name", [*INTEGERS, "float32", "float64", "complex64"])
def test_second_operands_of_losses_and_distances(name: str) -> None:
    f, values = np.array([[0.2, 0.7], [0.4, 0.9]], np.float32), [[0, 1], [1, 0]]
    calls: dict[str, Callable[[Any, Any, Any], Any]] = {
        "soft margin": lambda m, f, o: m.nn.functional.soft_margin_loss(f, o),
        "soft margin, other first": lambda m, f, o: m.nn.functional.soft_margin_loss(o, f),
        "cross entropy by weight": lambda m, f, o: m.nn.functional.binary_cross_entropy(f, f, weight=o),
        "of logits by weight": lambda m, f, o: m.nn.functional.binary_cross_entropy_with_logits(f, f, weight=o),
        "of logits by pos_weight": lambda m, f, o: m.nn.functional.binary_cross_entropy_with_logits(f, f, pos_weight=o + 1),
        "cosine": lambda m, f, o: m.nn.functional.cosine_similarity(f, o * 20),
        "cosine, other first": lambda m, f, o: m.nn.functional.cosine_similarity(o * 20, f),
        "cosine of one dtype": lambda m, f, o: m.nn.functional.cosine_similarity(o, o),
        "cdist": lambda m, f, o: m.cdist(f, o),
        "cdist, other first": lambda m, f, o: m.cdist(o, f),
        "margin ranking": lambda m, f, o: m.nn.functional.margin_ranking_loss(f, f * 2, o),
        "hinge": lambda m, f, o: m.nn.functional.hinge_embedding_loss(f, o * 2 - 1),
        "cosine embedding": lambda m, f, o: m.nn.functional.cosine_embedding_loss(f, f * 2, (o * 2 - 1)[0]),
        "mean square by weight": lambda m, f, o: m.nn.functional.mse_loss(f, f * 2, weight=o),
        "huber by weight": lambda m, f, o: m.nn.functional.huber_loss(f, f * 2, weight=o),
        "poisson": lambda m, f, o: m.nn.functional.poisson_nll_loss(f, o),
        "gaussian": lambda m, f, o: m.nn.functional.gaussian_nll_loss(f, o, f),
        "pairwise": lambda m, f, o: m.nn.functional.pairwise_distance(f, o),
        "normalize": lambda m, f, o: m.nn.functional.normalize(o),
        "multi margin by weight": lambda m, f, o: m.nn.functional.multi_margin_loss(f, m.tensor([0, 1]), weight=o[0]),
        "prelu": lambda m, f, o: m.nn.functional.prelu(f, o[0, :1] if o.is_complex() else f[0, :1]),
        "dist": lambda m, f, o: m.dist(f, o),
    }
    for what, call in calls.items():
        both = lambda m: call(m, m.tensor(f), m.tensor(values, dtype=getattr(m, name)))  # noqa: E731
        same(both, what)
        if isinstance(outcome(torch, both), tuple):
            np.testing.assert_allclose(both(gt).numpy(), both(torch).numpy(), rtol=2e-5, err_msg=what)


def test_torch_dtypes() -> None:
    x, d = gt.zeros(2), torch.float64
    for made in (x.to(d), x.to("cpu", d), x.to(None, d), x.to(np.float64), x.to(np.dtype("float64")), gt.nn.Linear(1, 1).to(d).weight,
                 gt.nn.Linear(1, 1).to("cpu", d).weight, gt.nn.Linear(1, 1).to(np.float64).weight, x.type(torch.DoubleTensor)):  # fmt: skip
        assert made.dtype is gt.float64
    assert x.to(torch.device("cpu")) is x and x.to(0) is x and x.to(None) is x and x.to("cuda:1", non_blocking=True) is x
    assert gt.promote_types(d, gt.float32) is gt.float64 and gt.promote_types(gt.int8, torch.uint8) is gt.int16
    gt.set_default_dtype(torch.float32)
    assert gt.get_default_dtype() is gt.float32
    for wrong in (3.5, object(), torch.zeros(2), torch.float8_e5m2, "float", [gt.float64]):
        for call in (lambda: x.to(wrong), lambda: gt.nn.Linear(1, 1).to(wrong)):
            with pytest.raises((TypeError, RuntimeError)):
                call()
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        x.to(other=torch.zeros(2))


def test_torch_indices() -> None:
    x, i, b = gt.arange(3.0), torch.tensor([0]), torch.tensor([True, False, True])
    for key in (i, b, torch.tensor(0), torch.tensor(True), [i], [torch.tensor(0)], (i,), (None, i), (..., b)):
        for call in (lambda: x[key], lambda: x.__setitem__(key, 1.0)):
            with pytest.raises(TypeError, match=r"torch\.Tensor; use gt\.tensor\(\.\.\.\) first"):
                call()
    assert x.tolist() == [0, 1, 2]
    for call in (lambda: x.index_put((i,), gt.ones(1)), lambda: x.masked_fill(b, 0.0), lambda: x.masked_scatter(b, x),
                 lambda: x.masked_select(b), lambda: x.take_along_dim(i, 0)):  # fmt: skip
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            call()


@pytest.mark.parametrize("name", [*INTEGERS, "float32", "float64", "complex64"])
def test_dtypes_of_counts_and_positions(name: str) -> None:
    calls: dict[str, Callable[[Any, Any], Any]] = {
        "histc": lambda m, t: m.histc(t, 4, 0, 3),
        "histc of the data's range": lambda m, t: t.histc(4),
        "histogram": lambda m, t: m.histogram(t, 4).hist,
        "histogram between edges": lambda m, t: m.histogram(t, m.tensor([0.0, 1, 2])).hist,
        "histogram between its edges": lambda m, t: m.histogram(m.ones(2), t).hist,
        "histogram by weight": lambda m, t: m.histogram(m.ones(3), 4, weight=t).hist,
        "histogramdd": lambda m, t: m.histogramdd(t.reshape(3, 1), [2]).hist,
        "histogramdd by weight": lambda m, t: m.histogramdd(m.ones(3, 1), [2], weight=t).hist,
        "tril_indices": lambda m, t: m.tril_indices(2, 2, dtype=t.dtype),
        "triu_indices": lambda m, t: m.triu_indices(2, 2, dtype=t.dtype),
        "no triu_indices": lambda m, t: m.triu_indices(0, 2, dtype=t.dtype),
        "unravel_index": lambda m, t: m.unravel_index(t, (3, 2))[0],
        "vander": lambda m, t: m.vander(t * 100),
        "vander of two": lambda m, t: m.vander(t, 2, increasing=True),
        "vander of one": lambda m, t: m.vander(t, 1),
        "linalg.vander": lambda m, t: m.linalg.vander(t + t),
    }
    for what, call in calls.items():
        both = lambda m: call(m, m.tensor([0, 1, 3], dtype=getattr(m, name)))  # noqa: E731
        same(both, what)
        if isinstance(outcome(torch, both), tuple):
            np.testing.assert_array_equal(both(gt).numpy(), both(torch).numpy(), err_msg=what)
    assert gt.linalg.vander(gt.tensor([float("inf"), 2.0])).tolist() == [[1, float("inf")], [1, 2]]


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int64", "complex64"])
@pytest.mark.parametrize("given", ["float16", "bfloat16", "float32", "float64"])
def test_dtypes_of_scales_and_statistics(given: str, name: str) -> None:
    calls: dict[str, Callable[[Any, Any, Any], Any]] = {
        "layer": lambda f, x, p: f.layer_norm(x, (4,), p, p),
        "layer by weight": lambda f, x, p: f.layer_norm(x, (4,), p),
        "layer by bias": lambda f, x, p: f.layer_norm(x, (4,), None, p),
        "layer by both": lambda f, x, p: f.layer_norm(x, (4,), p, x[0]),
        "rms": lambda f, x, p: f.rms_norm(x, (4,), p),
        "rms of it": lambda f, x, p: f.rms_norm(p, (4,), p),
        "group": lambda f, x, p: f.group_norm(x, 2, p, p),
        "batch": lambda f, x, p: f.batch_norm(x, None, None, p, p, True),
        "batch with statistics": lambda f, x, p: f.batch_norm(x, p.clone(), p.clone()),
        "batch with a variance": lambda f, x, p: f.batch_norm(x, x[0] + 1, p.clone()),
        "batch with all": lambda f, x, p: f.batch_norm(x, x[0] + 1, x[0] + 1, p, p),
        "training with statistics": lambda f, x, p: f.batch_norm(x, p.clone(), p.clone(), training=True),
        "instance": lambda f, x, p: f.instance_norm(x[:, :, None].expand(3, 4, 3), None, None, p),
    }
    for what, call in calls.items():
        both = lambda m: call(  # noqa: E731
            m.nn.functional, (m.arange(12.0).reshape(3, 4) % 5).to(getattr(m, given)), m.tensor([1, 2, 3, 1]).to(getattr(m, name))
        )
        same(both, what)
        if isinstance(outcome(torch, both), tuple):
            mine, theirs = (both(m).to(m.complex64 if both(m).is_complex() else m.float32).numpy() for m in (gt, torch))
            np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=5e-2 if "16" in given + name else 1e-4, err_msg=what)


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (1, 4), (1, 4, 1), (1, 4, 2), (2, 4, 1), (0, 4)])
def test_groups_of_one_value(shape: tuple[int, ...]) -> None:
    for groups in (2, shape[1]):
        same(lambda m: m.nn.functional.group_norm(m.ones(shape), groups), f"{groups} groups")


LIKE_TORCH: dict[str, Any] = {
    "fill_ with a tensor of a dim": lambda m: m.zeros(3).fill_(m.tensor([1.0])),
    "meshgrid of two dtypes": lambda m: m.meshgrid(m.ones(2), m.ones(2, dtype=m.float64), indexing="ij"),
    "abs_ of complex numbers": lambda m: m.tensor([1 + 1j]).abs_(),
    "absolute_ of complex numbers": lambda m: m.tensor([1 + 1j]).absolute_(),
    "unfold without channels": lambda m: m.nn.functional.unfold(m.ones(1, 0, 3, 3), 2),
    "unfold without rows": lambda m: m.nn.functional.unfold(m.ones(2, 0, 3), 2),
    "a target's gradient": lambda m: m.nn.functional.soft_margin_loss(m.ones(2), m.ones(2, requires_grad=True)),
    **{
        f"adaptive_{kind}_pool{n}d of {shape}": lambda m, kind=kind, n=n, shape=shape: getattr(
            m.nn.functional, f"adaptive_{kind}_pool{n}d"
        )(m.ones(shape), 2)
        for kind, n, shape in (
            ("avg", 2, (1, 2, 0, 3)), ("avg", 2, (2, 3, 0)), ("avg", 3, (1, 2, 0, 3, 3)), ("avg", 3, (1, 0, 3, 3, 3)),
            ("max", 1, (1, 0, 3)), ("max", 1, (1, 2, 0)), ("max", 2, (1, 2, 0, 3)), ("max", 3, (1, 0, 3, 3, 3)),
        )
    },
    **{
        f"{dtype} to the power of {exponent}": lambda m, dtype=dtype, exponent=exponent: m.tensor([2], dtype=getattr(m, dtype)) ** exponent
        for dtype, exponent in (
            ("uint8", 300), ("int8", 128), ("int16", 40_000), ("int32", 3_000_000_000), ("float16", 70_000), ("bfloat16", 1e39),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", LIKE_TORCH)
def test_what_torch_refuses_is_refused(name: str) -> None:
    with pytest.raises(RuntimeError) as theirs:
        LIKE_TORCH[name](torch)
    with pytest.raises(RuntimeError) as ours:
        LIKE_TORCH[name](gt)
    assert str(ours.value) == str(theirs.value)


def test_what_is_near_is_computed() -> None:
    def outcomes(m: Any) -> list[Any]:
        f = m.nn.functional
        with m.no_grad():
            loss = f.soft_margin_loss(m.ones(2), m.ones(2, requires_grad=True)).item()
        return [
            round(loss, 6), m.zeros(3).fill_(m.tensor(1.0)).tolist(), m.tensor([1], dtype=m.uint8).pow(255).tolist(),
            m.tensor([1.0]).pow(3_000_000_000).tolist(), m.tensor([1.0]).pow(1e39).tolist(), tuple(f.unfold(m.ones(0, 2, 3, 3), 2).shape),
            *[tuple(f.adaptive_avg_pool2d(m.ones(s), 2).shape) for s in ((0, 2, 3, 3), (1, 0, 3, 3))],
            tuple(f.adaptive_max_pool2d(m.ones(0, 3, 3), 2).shape), str(f.adaptive_avg_pool1d(m.ones(1, 2, 0), 1).tolist()),
        ]  # fmt: skip

    assert outcomes(gt) == outcomes(torch)


def test_an_error_that_was_caught_keeps_no_tensor() -> None:
    refused = gt.ones(3)[gt.tensor([9])]
    kept = weakref.ref(refused)
    gc.collect()
    gc.disable()
    try:
        with suppress(IndexError):
            refused.tolist()
        del refused
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.roll(m.tensor(1.5), 1, 0), lambda m: m.roll(m.tensor(1.5), (1, 2), (0, -1)), lambda m: m.unbind(m.tensor(1.5)),
        lambda m: m.take_along_dim(m.tensor(1.5), m.tensor(0), 0),
    ],
)  # fmt: skip
def test_a_tensor_without_dims_has_none_to_go_along(call: Call) -> None:
    """At the call, not at the read of what it gives."""
    for m in (torch, gt):
        with pytest.raises(IndexError, match="^Dimension specified as 0 but tensor has no dimensions") as caught:
            call(m)
        assert str(caught.value).splitlines()[0].startswith("Dimension specified as 0"), m

"""Functions of gt.nn.functional beside torch's: values and gradients. Those with a module are in ``test_module_db``."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as TF  # noqa: N812

import gt
import gt.nn.functional as F  # noqa: N812
from gt.rule import RULES
from gt.trace import state
from tests.unit.nn.torch_twin import backward_both, close, fresh, leaves, to_gt

RNG = np.random.default_rng(0)


def rand(*shape, grad=True, positive=False):
    values = RNG.standard_normal(shape).astype(np.float32)
    return torch.tensor(np.abs(values) + 0.1 if positive else values, requires_grad=grad)


def bools(*shape):
    return torch.tensor(RNG.random(shape) > 0.3)


def signs(*shape):
    return torch.tensor(np.sign(RNG.standard_normal(shape)).astype(np.float32))


def classes(n, *shape):
    return torch.tensor(RNG.integers(0, n, shape))


IMAGE = rand(2, 4, 6, 7)
SDPA = "scaled_dot_product_attention"
CASES = [
    (SDPA, (rand(2, 3, 5, 4), rand(2, 3, 6, 4), rand(2, 3, 6, 8)), {}),
    (SDPA, (rand(2, 3, 5, 4), rand(2, 3, 5, 4), rand(2, 3, 5, 4)), {"is_causal": True, "scale": 0.3}),
    (SDPA, (rand(2, 3, 5, 4), rand(2, 3, 6, 4), rand(2, 3, 6, 4), bools(5, 6)), {}),
    (SDPA, (rand(2, 3, 5, 4), rand(2, 3, 6, 4), rand(2, 3, 6, 4), rand(2, 1, 5, 6)), {}),
    (SDPA, (rand(2, 3, 5, 4), rand(2, 3, 6, 4), rand(2, 3, 6, 4), bools(2, 1, 1, 6)), {}),
    (SDPA, (rand(5, 4), rand(6, 4), rand(6, 4)), {}),
    (SDPA, (rand(2, 5, 4), rand(2, 6, 4), rand(2, 6, 4), rand(2, 5, 6)), {}),
    (SDPA, (rand(2, 3, 2, 5, 4), rand(2, 3, 2, 6, 4), rand(2, 3, 2, 6, 4)), {}),
    (SDPA, (rand(2, 8, 5, 4), rand(2, 2, 5, 4), rand(2, 2, 5, 4)), {"enable_gqa": True, "is_causal": True}),
    ("pad", (IMAGE, (1, 2)), {"value": 3.0}),
    ("pad", (IMAGE, (1, -2, -1, 3)), {}),
    ("pad", (IMAGE, (2, 1, 1, 2)), {"mode": "reflect"}),
    ("pad", (IMAGE, (2, 1, 1, 2)), {"mode": "replicate"}),
    ("pad", (IMAGE, (2, 1, 1, 2)), {"mode": "circular"}),
    ("one_hot", (classes(5, 3, 4), 6), {}),
    ("normalize", (rand(3, 4),), {}),
    ("normalize", (rand(3, 4),), {"p": 3.0, "dim": 0}),
    ("cosine_similarity", (rand(3, 4), rand(3, 4)), {}),
    ("cosine_similarity", (rand(3, 4, 2), rand(1, 4, 2)), {"dim": 1}),
    ("pairwise_distance", (rand(3, 4), rand(3, 4)), {"p": 1.5, "keepdim": True}),
    ("interpolate", (IMAGE,), {"scale_factor": 2}),
    ("interpolate", (IMAGE,), {"size": (4, 9), "mode": "bilinear"}),
    ("interpolate", (IMAGE,), {"size": (9, 5), "mode": "bilinear", "align_corners": True}),
    ("interpolate", (rand(2, 3, 7),), {"scale_factor": 1.6, "mode": "linear"}),
    ("interpolate", (IMAGE,), {"size": (4, 9), "mode": "nearest-exact"}),
    ("unfold", (IMAGE, (2, 3)), {"dilation": 2, "padding": 1, "stride": 2}),
    ("pixel_shuffle", (IMAGE, 2), {}),
    ("pixel_unshuffle", (rand(2, 3, 4, 6), 2), {}),
    ("adaptive_avg_pool2d", (IMAGE, (4, None)), {}),
    ("adaptive_max_pool2d", (IMAGE, (4, 5)), {"return_indices": True}),
    ("max_pool2d", (IMAGE, 3, 2, 1), {"return_indices": True}),
    ("avg_pool2d", (IMAGE, (3, 2)), {"stride": 2, "padding": 1, "ceil_mode": True, "divisor_override": 5}),
    ("conv2d", (IMAGE, rand(6, 2, 3, 2)), {"groups": 2, "padding": "same", "dilation": 2}),
    ("conv1d", (rand(3, 8), rand(5, 3, 4), rand(5)), {"stride": 2, "padding": 1}),
    ("conv_transpose2d", (IMAGE, rand(4, 2, 3, 3), rand(4)), {"stride": 2, "output_padding": 1, "groups": 2}),
    ("linear", (rand(2, 3), rand(3)), {}),
    ("bilinear", (rand(5, 2), rand(5, 3), rand(4, 2, 3), rand(4)), {}),
    ("embedding", (classes(5, 3, 2), rand(5, 4), 1), {}),
    ("glu", (rand(3, 4),), {"dim": 0 + 1}),
    ("prelu", (IMAGE, rand(4)), {}),
    ("hardtanh", (rand(9),), {"min_val": -0.5, "max_val": 0.7}),
    ("cross_entropy", (rand(4, 5), classes(5, 4), rand(5, grad=False, positive=True)), {"ignore_index": 2, "label_smoothing": 0.2}),
    ("cross_entropy", (rand(4, 5, 3), classes(5, 4, 3)), {"reduction": "none"}),
    ("cross_entropy", (rand(4, 5), torch.softmax(rand(4, 5, grad=False), 1), rand(5, grad=False, positive=True)), {"label_smoothing": 0.1}),
    ("cross_entropy", (rand(5), classes(5)), {}),
    ("nll_loss", (rand(4, 5), classes(5, 4), rand(5, grad=False, positive=True)), {"reduction": "sum"}),
    ("mse_loss", (rand(3, 2), rand(3, 2)), {"weight": rand(3, 2, grad=False, positive=True)}),
    ("huber_loss", (rand(9), rand(9)), {"delta": 0.5, "reduction": "none"}),
    ("smooth_l1_loss", (rand(9), rand(9)), {"beta": 0.0}),
    ("binary_cross_entropy_with_logits", (rand(4, 3), bools(4, 3).float()), {"pos_weight": rand(3, grad=False, positive=True)}),
    ("binary_cross_entropy_with_logits", (torch.zeros(3, requires_grad=True), torch.tensor([0.0, 1.0, 0.5])), {"reduction": "sum"}),
    ("binary_cross_entropy", (torch.sigmoid(rand(4, 3)).detach().requires_grad_(), bools(4, 3).float()), {}),
    ("kl_div", (rand(4, 3), torch.softmax(rand(4, 3, grad=False), 1)), {"reduction": "batchmean"}),
    ("kl_div", (rand(4, 3), rand(4, 3)), {"reduction": "sum", "log_target": True}),
    ("gaussian_nll_loss", (rand(4, 3), rand(4, 3), rand(4, 3, positive=True)), {"full": True}),
    ("gaussian_nll_loss", (rand(4, 3), rand(4, 3), 0.5), {}),
    ("poisson_nll_loss", (rand(4, 3), rand(4, 3, positive=True, grad=False)), {"full": True}),
    ("triplet_margin_loss", (rand(4, 3), rand(4, 3), rand(4, 3)), {"swap": True}),
    ("margin_ranking_loss", (rand(4), rand(4), signs(4)), {"margin": 0.3}),
    ("hinge_embedding_loss", (rand(4), signs(4)), {}),
    ("cosine_embedding_loss", (rand(4, 3), rand(4, 3), signs(4)), {"margin": 0.2}),
    ("multi_margin_loss", (rand(4, 5), classes(5, 4)), {"p": 2, "weight": rand(5, grad=False, positive=True)}),
    ("multilabel_soft_margin_loss", (rand(4, 3), bools(4, 3).float()), {}),
    ("soft_margin_loss", (rand(4, 3), signs(4, 3)), {}),
    ("batch_norm", (rand(3, 4, 2), torch.zeros(4), torch.ones(4), rand(4), rand(4)), {"training": True}),
    ("batch_norm", (rand(3, 4), torch.zeros(4), torch.ones(4)), {}),
    ("instance_norm", (IMAGE, torch.zeros(4), torch.ones(4)), {}),
    ("layer_norm", (rand(2, 3, 4), (3, 4)), {}),
    ("layer_norm", (rand(2, 3, 4), (4,), rand(4)), {}),
    ("rms_norm", (rand(2, 3, 4), (4,)), {}),
    ("group_norm", (IMAGE, 2, rand(4), rand(4)), {}),
    ("local_response_norm", (IMAGE, 3), {}),
    ("softmax", (rand(3, 4),), {"dim": 1, "dtype": torch.float64}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_values_and_gradients_equal_torch(name, args, kwargs):
    theirs_in = fresh((args, kwargs))
    ours_in = to_gt(theirs_in)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = leaves(getattr(TF, name)(*theirs_in[0], **theirs_in[1]))
        got = leaves(getattr(F, name)(*ours_in[0], **ours_in[1]))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        close(g, w, f"result {i}")
    if want[0].dtype is torch.float32:
        backward_both(got, want)
    for i, (g, w) in enumerate(zip(leaves(ours_in), leaves(theirs_in), strict=True)):
        if w.grad is not None:
            close(g.grad, w.grad, f"gradient of input {i}")
        close(g, w, f"input {i} afterwards")


def numbers(*shape):
    return torch.tensor(RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape), dtype=torch.complex64).requires_grad_()


COMPLEX = [
    ("conv1d", (numbers(3, 8), numbers(5, 3, 4), numbers(5)), {"stride": 2, "padding": 1}),
    ("conv2d", (numbers(2, 4, 6, 7), numbers(6, 2, 3, 2), numbers(6)), {"groups": 2, "padding": "same", "dilation": 2}),
    ("conv3d", (numbers(1, 2, 3, 4, 3), numbers(2, 2, 2, 2, 1)), {}),
    ("conv_transpose2d", (numbers(2, 4, 3, 3), numbers(4, 2, 3, 3), numbers(4)), {"stride": 2, "output_padding": 1, "groups": 2}),
    ("conv_transpose1d", (numbers(0, 4, 3), numbers(4, 2, 3)), {}),
    ("rms_norm", (numbers(2, 3, 4), (4,), numbers(4)), {}),
    ("rms_norm", (numbers(2, 3, 4), (3, 4)), {"eps": 0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs"), COMPLEX, ids=[f"{i}-{c[0]}" for i, c in enumerate(COMPLEX)])
def test_complex_values_and_gradients_equal_torch(name, args, kwargs):
    theirs_in = fresh((args, kwargs))
    ours_in = to_gt(theirs_in)
    want, got = getattr(TF, name)(*theirs_in[0], **theirs_in[1]), getattr(F, name)(*ours_in[0], **ours_in[1])
    close(got, want, "result")
    (want.real * 2 - want.imag).sum().backward()
    (got.real * 2 - got.imag).sum().backward()
    for i, (g, w) in enumerate(zip(leaves(ours_in), leaves(theirs_in), strict=True)):
        if w.grad is not None:
            close(g.grad, w.grad, f"gradient of input {i}")


def test_attention_is_one_fused_node(settled):
    q, k = gt.randn(2, 4, 5, 8, requires_grad=True), gt.randn(2, 4, 5, 8)
    before = len(state.trace.code)
    F.scaled_dot_product_attention(q, k, k, is_causal=True)
    ops = [RULES[code >> 1].op for code, _ in state.trace.code[before:]]
    assert [op.name for op in ops if op] == ["scaled_dot_product_attention"]
    layer = gt.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    before = len(state.trace.code)
    layer(gt.randn(3, 2, 8))
    names = [RULES[code >> 1].op.name for code, _ in state.trace.code[before:] if RULES[code >> 1].op]
    assert names.count("scaled_dot_product_attention") == 1 and "softmax" not in names


ERRORS = [
    (SDPA, (rand(2, 3), rand(2, 3).double(), rand(2, 3)), {}, "Expected query, key, and value to have the same dtype"),
    ("dropout", (rand(3), 1.5), {}, "dropout probability has to be between 0 and 1"),
    ("cross_entropy", (rand(3, 4), classes(4, 2)), {}, r"Expected input batch_size \(3\) to match target batch_size \(2\)"),
    ("cross_entropy", (rand(3, 4), classes(4, 3)), {"reduction": "avg"}, "avg is not a valid value for reduction"),
    ("conv2d", (rand(1, 3, 4, 4), rand(2, 2, 3, 3)), {}, "Given groups=1"),
    ("conv2d", (rand(1, 3, 2, 2), rand(2, 3, 3, 3)), {}, "Kernel size can't be greater than actual input size"),
    ("conv2d", (IMAGE, rand(4, 3, 3)), {"padding": "same"}, "Expected 3-dimensional input for 3-dimensional weight"),
    ("conv2d", (IMAGE, rand(4, 4, 3, 3), numbers(4)), {}, "Input type .* and bias type .* should be the same"),
    ("conv2d", (rand(3, 3), rand(2, 3, 3, 3)), {}, r"Expected 3D \(unbatched\) or 4D \(batched\) input to conv2d"),
    ("layer_norm", (rand(2, 3), (4,)), {}, r"Given normalized_shape=\[4\], expected input with shape \[\*, 4\]"),
    ("group_norm", (rand(2, 3, 4), 2), {}, "Expected number of channels in input to be divisible by num_groups"),
    ("batch_norm", (rand(1, 3), torch.zeros(3), torch.ones(3)), {"training": True}, "Expected more than 1 value per channel when training"),
    ("binary_cross_entropy", (rand(3), rand(4)), {}, r"Using a target size .* that is different to the input size"),
    ("glu", (rand(3),), {}, "Halving dimension must be even, but dimension 0 is size 3"),
    ("embedding", (rand(3), rand(4, 2)), {}, "Expected tensor for argument #1 'indices'"),
    ("pad", (rand(3), (1,)), {}, "adding length must be divisible by 2"),
    ("linear", (rand(2, 3), rand(4, 5)), {}, r"mat1 and mat2 shapes cannot be multiplied \(2x3 and 5x4\)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args", "kwargs", "text"), ERRORS, ids=[f"{i}-{c[0]}" for i, c in enumerate(ERRORS)])
def test_errors_are_torchs(name, args, kwargs, text):
    with pytest.raises((RuntimeError, ValueError), match=text) as theirs:
        getattr(TF, name)(*args, **kwargs)
    with pytest.raises(theirs.type, match=text):
        getattr(F, name)(*to_gt(args), **to_gt(kwargs))


@pytest.mark.parametrize("name", ["dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"])
def test_dropouts_keep_the_mean(name):
    gt.manual_seed(3)
    shape = {"dropout1d": (400, 50, 2), "dropout3d": (400, 50, 1, 1, 2)}.get(name, (400, 50, 2, 1))
    out = getattr(F, name)(gt.randn(shape) if "alpha" in name else gt.ones(shape), 0.3, training=True).numpy()
    if "alpha" in name:
        assert abs(out.mean()) < 0.02 and abs(out.std() - 1) < 0.02
    else:
        assert abs(out.mean() - 1) < 0.03
        np.testing.assert_allclose(np.unique(out), [0, 1 / 0.7], rtol=1e-6)
    flat = out.reshape(400, 50, -1)
    whole = np.abs(flat[..., 0] - flat[..., 1]).max() == 0
    assert whole == (name not in ("dropout", "alpha_dropout", "feature_alpha_dropout"))
    assert getattr(F, name)(gt.ones(shape), 0.3, training=False).numpy().min() == 1


def test_activations_in_place_change_their_input():
    for name in ("relu_", "elu_", "leaky_relu_", "hardtanh_", "selu_", "celu_"):
        x = gt.tensor([-1.0, 2.0])
        out = getattr(F, name)(x)
        assert out is x and x.tolist() == pytest.approx(getattr(TF, name)(torch.tensor([-1.0, 2.0])).tolist())
    x = gt.tensor([-1.0, 2.0])
    assert gt.nn.Threshold(0.0, 9.0, inplace=True)(x) is x and x.tolist() == [9.0, 2.0]


def test_gumbel_softmax_draws_classes():
    gt.manual_seed(0)
    logits = gt.log(gt.tensor([0.2, 0.3, 0.5])).expand(4000, 3)
    hard = F.gumbel_softmax(logits, hard=True).numpy()
    assert set(np.unique(hard.round(5))) == {0.0, 1.0}
    np.testing.assert_allclose(hard.mean(0), [0.2, 0.3, 0.5], atol=0.03)


@pytest.mark.parametrize(
    "kwargs", [{"momentum": None}, {"momentum": 0.3, "affine": False}, {"track_running_stats": False}], ids=str
)
def test_running_statistics_over_batches(kwargs):
    ours, theirs = gt.nn.BatchNorm1d(3, **kwargs), torch.nn.BatchNorm1d(3, **kwargs)
    data = np.random.default_rng(3).standard_normal((4, 5, 3)).astype(np.float32)
    for x in data[:3]:
        close(ours(gt.tensor(x)), theirs(torch.tensor(x)), "output in training")
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value, name)
    ours.eval(), theirs.eval()
    close(ours(gt.tensor(data[3])), theirs(torch.tensor(data[3])), "output in evaluation")


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_dropout_between_recurrent_layers(name, dropout):
    gt.manual_seed(0)
    layer = getattr(gt.nn, name)(4, 6, 2, dropout=dropout)
    x = gt.randn(5, 3, 4)
    different = np.abs(layer(x)[0].detach().numpy() - layer(x)[0].detach().numpy()).max() > 1e-3
    assert different == (dropout > 0)
    layer.eval()
    np.testing.assert_array_equal(layer(x)[0].detach().numpy(), layer(x)[0].detach().numpy())


HALVES = {  # what torch computes in float32 and rounds once
    "rms_norm": lambda m, a: m.nn.functional.rms_norm(a[0] * 0.01, (8,)),
    "rms_norm of small": lambda m, a: m.nn.RMSNorm(8).to(a[0].dtype)(a[0] * 1e-3).detach(),
    "batch_norm": lambda m, a: m.nn.functional.batch_norm(a[0], a[1], a[2], a[3], a[4]),
    "batch_norm by float32": lambda m, a: m.nn.functional.batch_norm(a[0], a[1].float(), a[2].float(), a[3].float(), a[4].float()),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("what", HALVES)
def test_norms_of_halves(what, dtype):
    given = [RNG.standard_normal(s).astype(np.float32) for s in ((6, 8), (8,), (8,), (8,), (8,))]
    given[2] = np.abs(given[2]) + 0.1
    ours, theirs = (HALVES[what](m, [m.from_numpy(v).to(getattr(m, dtype)) for v in given]).float().numpy() for m in (gt, torch))
    unit = 2.0 ** (-8 if dtype == "bfloat16" else -11)
    np.testing.assert_allclose(ours, theirs, rtol=2 * unit, atol=0)
    assert (ours != theirs).mean() < 0.05


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_instance_norm_of_halves_is_rounded_once(dtype):
    """With statistics in float32 or none; torch's own is up to 8 units off."""
    x, w, b = (torch.tensor(RNG.standard_normal(s)).to(getattr(torch, dtype)) for s in ((1, 6, 8), (6,), (6,)))
    right = TF.instance_norm(x.double(), None, None, w.double(), b.double()).to(x.dtype).float().numpy()
    for running in ((None, None), (gt.zeros(6), gt.ones(6))):
        ours = F.instance_norm(to_gt(x), *running, to_gt(w), to_gt(b))
        np.testing.assert_array_equal(ours.float().numpy(), right)


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_convolutions_of_mixed_operands_under_autocast(name):
    x, z = np.ones((1, 2, 5, 5), np.float32), np.ones((1, 2, 5, 5), np.complex64)
    with gt.autocast(name, dtype=gt.bfloat16):
        out = gt.nn.ConvTranspose2d(2, 2, 2)(gt.nn.Conv2d(2, 2, 3)(gt.tensor(x)))
        whole = F.conv2d(gt.tensor(z), gt.tensor(z))
        across = F.conv_transpose2d(gt.tensor(z), gt.tensor(z).mT.reshape(2, 1, 5, 5))
    assert out.dtype is gt.bfloat16 and whole.dtype is gt.complex64
    np.testing.assert_allclose(whole.numpy(), TF.conv2d(torch.tensor(z), torch.tensor(z)).numpy(), rtol=1e-5)
    np.testing.assert_allclose(across.numpy(), TF.conv_transpose2d(torch.tensor(z), torch.tensor(z).mT.reshape(2, 1, 5, 5)).numpy(), rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_smoothing_skips_ignored_examples_whatever_they_hold(reduction):
    def run(m):
        x = m.tensor([[1.0, math.nan, 2.0], [0.5, -1.0, 3.0], [math.inf, 1.0, -math.inf]], requires_grad=True)
        loss = m.nn.functional.cross_entropy(x, m.tensor([-100, 1, -100]), label_smoothing=0.1, reduction=reduction)
        (g,) = m.autograd.grad(loss.sum(), x)
        return loss.tolist(), g.tolist()

    assert repr(run(gt)) == repr(run(torch))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_torchs_own_signatures_of_losses_and_norms() -> None:
    rng = np.random.default_rng(0)
    a, b, x = rng.standard_normal((3, 4)), rng.uniform(0.1, 1, (3, 4)), rng.standard_normal((2, 3, 5))
    weight, shift = rng.standard_normal(3), rng.standard_normal(3)
    found: list[list[Any]] = []
    for m in (gt, torch):
        p, q, y, w, s = (m.tensor(v, requires_grad=True) for v in (a, b, x, weight, shift))
        mean, variance = m.zeros(3, dtype=m.float64), m.ones(3, dtype=m.float64)
        out = [m.kl_div(p, q), m.kl_div(p, q, 0, log_target=True), m.kl_div(p, q, reduction=2)]
        out += [m.instance_norm(y, w, s, mean, variance, True, 0.3, 1e-5, False), m.instance_norm(y, w, s, mean, variance, False, 0.1, 1e-5, True)]
        grads = m.autograd.grad(sum((o * o).sum() for o in out), [p, q, y, w, s])
        found.append([v.detach().numpy() for v in (*out, *grads, mean, variance)])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"out_features": (2, 3), "bias": True}, {"ignore_index": 1, "reduction": "sum", "bias": True}])
@pytest.mark.parametrize("probabilities", [False, True])
def test_cross_entropy_of_a_linear_layer(options: dict[str, Any], probabilities: bool) -> None:
    if probabilities and "ignore_index" in options:
        options = {**options, "label_smoothing": 0.2}
        del options["ignore_index"]
    rng, out = np.random.default_rng(0), options.get("out_features", ())
    x = rng.standard_normal((2, 5))
    target = rng.dirichlet(np.ones(4), (2, *out)).swapaxes(1, -1) if probabilities else rng.integers(0, 4, (2, *out))
    if probabilities and len(out) == 2:
        target = np.moveaxis(rng.dirichlet(np.ones(4), (2, *out)), -1, 1)
    weight = rng.uniform(0.5, 1, 4)
    theirs = torch.nn.LinearCrossEntropyLoss(5, 4, weight=torch.tensor(weight), dtype=torch.float64, **options)
    mine = gt.nn.LinearCrossEntropyLoss(5, 4, weight=gt.tensor(weight), dtype=gt.float64, **options)
    assert repr(mine) == repr(theirs) and list(mine.state_dict()) == list(theirs.state_dict())
    mine.load_state_dict({k: gt.tensor(v) for k, v in theirs.state_dict().items()})
    found = []
    for m, layer in ((gt, mine), (torch, theirs)):
        y = m.tensor(x, requires_grad=True)
        loss = layer(y, m.tensor(target))
        loss.sum().backward()
        found.append([v.detach().numpy() for v in (loss, y.grad, *(p.grad for p in layer.parameters()))])
        with pytest.raises(RuntimeError, match="expected weight shape"):
            m.nn.LinearCrossEntropyLoss(5, 4, weight=m.ones(3))
        with pytest.raises(RuntimeError, match="label_smoothing to be in range"):
            m.nn.LinearCrossEntropyLoss(5, 4, label_smoothing=2)
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)

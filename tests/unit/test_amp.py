"""Mixed precision: which dtypes come out, and that training agrees with torch's autocast."""

import re

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


# Every function of torch's two lists, and others beside them. ``x``, ``y``: [4, 4]; ``v``: [4]; ``b``: [2, 3, 4]; ``i``: an image
# [1, 2, 4, 4]; ``u``: a volume; ``p``: [4, 4] within 0 to 1; ``n``: labels [4]; ``s``: a symmetric positive matrix.
F = "m.nn.functional."
BOTH = f"""
x @ y; m.mm(x, y); m.bmm(b, b.mT); m.addmm(x, x, y); m.baddbmm(b @ b.mT, b, b.mT); m.addbmm(m.ones(3, 3), b, b.mT); m.matmul(x, v)
m.einsum("ij,jk", x, y); m.linalg.multi_dot([x, y, x]); m.chain_matmul(x, y); m.linalg.vecdot(x, y); {F}linear(x, y); x.matmul(y)
{F}conv1d(b, b[:, :, :2]); {F}conv2d(i, i[:, :, :2, :2]); {F}conv3d(u, u[:, :, :2, :2, :2]); {F}conv_transpose1d(b, b[0, :, :2][:, None])
{F}conv_transpose2d(i, i[:, :, :2, :2].transpose(0, 1)); {F}conv_transpose3d(u, u[:, :, :2, :2, :2].transpose(0, 1)); {F}prelu(x, v[:1])
{F}scaled_dot_product_attention(b, b, b); m.mv(x, v); m.addmv(v, x, v); m.addr(x, v, v); m.dot(v, v); m.vdot(v, v); m.inner(x, y); m.outer(v, v)
m.tensordot(x, y, 1); {F}bilinear(x, x, x[None]); m.matrix_power(x, 2)
m.acos(p); m.asin(p); m.cosh(x); m.erfinv(p); m.exp(x); m.expm1(x); m.log(p); m.log10(p); m.log2(p); m.log1p(p); m.reciprocal(p); m.rsqrt(p)
m.sinh(x); m.tan(x); x ** 2; 2 ** x; p ** x; 1 / p; {F}softplus(x); {F}layer_norm(x, (4,)); {F}rms_norm(x, (4,)); {F}group_norm(i, 2)
m.norm(x); x.norm(dim=1); m.linalg.norm(x); m.linalg.vector_norm(x); m.linalg.matrix_norm(x); {F}cosine_similarity(x, y); {F}normalize(x)
{F}poisson_nll_loss(x, y); {F}cosine_embedding_loss(x, y, m.ones(4)); {F}nll_loss(x, n); {F}cross_entropy(x, n); {F}cross_entropy(x, p)
{F}hinge_embedding_loss(x, m.ones(4, 4)); {F}kl_div(x, p); {F}l1_loss(x, y); {F}smooth_l1_loss(x, y); {F}huber_loss(x, y); {F}mse_loss(x, y)
{F}margin_ranking_loss(v, v, m.ones(4)); {F}multilabel_margin_loss(x, n.expand(4, 4).contiguous()); {F}soft_margin_loss(x, m.ones(4, 4))
{F}triplet_margin_loss(x, y, p); {F}multi_margin_loss(x, n); {F}binary_cross_entropy_with_logits(x, p); {F}gaussian_nll_loss(x, y, p)
m.dist(x, y); {F}pdist(x); m.cdist(x, y); m.renorm(x, 2, 0, 1.0); m.logsumexp(x, 1); {F}interpolate(i, scale_factor=2); {F}interpolate(i, scale_factor=2, mode="bilinear")
m.prod(x); x.prod(1); m.softmax(x, 1); m.log_softmax(x, 1); x.softmax(1); {F}softmax(x, 1); {F}softmin(x, 1); m.cumprod(x, 0); m.cumsum(x, 0); m.sum(x); x.sum(1)
m.addcdiv(x, y, p); m.addcmul(x, y, y); m.atan2(x, y); m.cross(x[:, :3], y[:, :3], dim=1); x.index_put((n,), v); x.scatter_add(0, n[None], y[:1])
m.cat([x, y]); m.stack([x, y]); x.index_copy(0, n.unique(), y[: n.unique().numel()]); {F}pdist(x)
{F}adaptive_avg_pool3d(u, 2); {F}adaptive_max_pool3d(u, 2); {F}avg_pool3d(u, 2); {F}max_pool3d(u, 2); m.quantile(x, 0.5); m.nanquantile(x, 0.5)
m.polar(p, x); m.trace(x); m.view_as_complex(x.reshape(8, 2)); {F}pad(b, (1, 1), "reflect"); {F}pad(b, (1, 1), "replicate"); {F}pad(i, (1, 1, 1, 1), "reflect")
{F}pad(u, (1, 1, 1, 1, 1, 1), "replicate"); {F}pad(i, (1, 1, 1, 1), "circular"); m.stft(v, 4, 1, return_complex=True)
m.cholesky(s); m.cholesky_inverse(s); m.cholesky_solve(x, s); m.inverse(s); m.pinverse(s); m.qr(s)[0]; m.svd(s)[1]; m.triangular_solve(x, s)[0]
m.linalg.cholesky(s); m.linalg.cholesky_ex(s)[0]; m.linalg.cond(s); m.linalg.eig(s)[0]; m.linalg.eigh(s)[0]; m.linalg.eigvals(s); m.linalg.eigvalsh(s)
m.linalg.householder_product(s, v); m.linalg.inv(s); m.linalg.inv_ex(s)[0]; m.linalg.lstsq(s, x)[0]; m.linalg.qr(s)[0]; m.linalg.solve(s, x)
m.linalg.svd(s)[1]; m.linalg.svdvals(s); m.linalg.tensorinv(s.reshape(2, 2, 2, 2)); m.linalg.tensorsolve(s, v); s.inverse(); m.linalg.matrix_rank(s)
m.fft.fft(x); m.fft.fft2(x); m.fft.fftn(x); m.fft.hfft(x); m.fft.ifft(x); m.fft.ifft2(x); m.fft.ifftn(x); m.fft.ihfft(x); m.fft.irfft(x); m.fft.rfft(x); m.fft.rfft2(x)
m.relu(x); m.sigmoid(x); m.tanh(x); {F}gelu(x); {F}silu(x); x.mean(); x.var(); x.std(1); x.max(); m.sqrt(p); x + y; x * y; x / p; m.sin(x); m.logaddexp(x, y)
{F}mish(x); {F}logsigmoid(x); {F}elu(x); {F}hardswish(x); {F}batch_norm(x, v * 1, v * 1, training=True); {F}instance_norm(i); {F}max_pool2d(i, 2); {F}avg_pool2d(i, 2)
m.maximum(x, y); m.where(x > 0, x, y); m.logit(p); m.erf(x); m.lerp(x, y, 0.5); m.var_mean(x)[1]; x.sort()[0]; x.abs(); m.cumsum(x, 0, dtype=x.dtype); x.sum(dtype=x.dtype)
m.softmax(x, 1, dtype=x.dtype); m.diff(x); m.clamp(x, 0); {F}glu(x); {F}dropout(x, 0.0); m.kron(x, y); m.logcumsumexp(x, 0); x.amax(1); m.hypot(x, y); m.nansum(x)
"""  # noqa: E501
CALLS = [call.strip() for call in BOTH.replace("\n", ";").split(";") if call.strip()]


def operands(m, dtype):
    rng = np.random.default_rng(3)
    t = lambda *shape: m.tensor(rng.standard_normal(shape).astype(np.float32)).to(dtype)  # noqa: E731
    x, s = t(4, 4), rng.standard_normal((4, 4)).astype(np.float32)
    return {
        "m": m, "x": x, "y": t(4, 4), "v": t(4), "b": t(2, 3, 4), "i": t(1, 2, 4, 4), "u": t(1, 2, 4, 4, 4),
        "p": m.tensor(rng.uniform(0.1, 0.9, (4, 4)).astype(np.float32)).to(dtype), "n": m.tensor([1, 0, 3, 2]),
        "s": m.tensor(s @ s.T + 4 * np.eye(4, dtype=np.float32)).to(dtype),
    }  # fmt: skip


def dtype_of(m, call, device, dtype):
    with m.autocast(device, dtype=m.bfloat16):
        return str(eval(call, operands(m, getattr(m, dtype))).dtype).rpartition(".")[2]  # noqa: S307 - the calls above


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("call", CALLS)
def test_the_cpus_lists_are_torchs(call, dtype):
    try:
        want = dtype_of(torch, call, "cpu", dtype)
    except (RuntimeError, NotImplementedError):  # no kernel for it there
        pytest.skip("torch has no kernel for it")
    assert dtype_of(gt, call, "cpu", dtype) == want


# As documented: https://docs.pytorch.org/docs/stable/amp.html, "CUDA Op-Specific Behavior"; composed functions by what they call.
CUDA_LOW = re.findall(
    r"\S+",
    "@ mm bmm addmm baddbmm addbmm matmul einsum multi_dot chain_matmul vecdot linear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d prelu scaled_dot_product_attention mv addmv addr matrix_power",
)
CUDA_FLOAT32 = re.findall(
    r"\S+",
    "** 1/p acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus layer_norm rms_norm group_norm norm "
    "vector_norm matrix_norm cosine_similarity normalize poisson_nll_loss cosine_embedding_loss nll_loss cross_entropy hinge_embedding_loss "
    "kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss "
    "multi_margin_loss binary_cross_entropy_with_logits gaussian_nll_loss dist pdist cdist renorm logsumexp interpolate prod softmax "
    "log_softmax softmin cumprod cumsum sum",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("call", CALLS)
def test_cudas_lists_are_as_documented(call, dtype):
    word = "@" if " @ " in call and "(" not in call else "**" if "**" in call else "1/p" if call == "1 / p" else call
    name = word.partition("(")[0].rpartition(".")[2]
    try:
        want = str(eval(call, operands(torch, getattr(torch, dtype))).dtype).removeprefix("torch.")  # noqa: S307
    except (RuntimeError, NotImplementedError):
        want = None if name not in CUDA_FLOAT32 else "float32"
    if "dtype=" not in call:
        want = "bfloat16" if name in CUDA_LOW else "float32" if name in CUDA_FLOAT32 else want
    if want is not None:
        assert dtype_of(gt, call, "cuda", dtype) == want


def test_operands_of_two_widths_take_the_wider_and_losses_may_be_refused():
    x, low = gt.tensor(A), gt.tensor(A).bfloat16()
    with gt.autocast("cuda", dtype=gt.bfloat16):
        assert gt.addcmul(low, low, x).dtype is gt.tensordot(low, x, 2).dtype is gt.float32
        assert gt.nn.MSELoss()(low, low).dtype is gt.float32
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            gt.nn.functional.binary_cross_entropy(x, x)
    with gt.autocast("cpu", dtype=gt.bfloat16):
        assert gt.cat([low, x]).dtype is gt.nn.functional.binary_cross_entropy(low.sigmoid(), low.sigmoid()).dtype is gt.float32


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


def test_a_grad_scaler_steps_skips_and_scales_as_torchs():
    found = []
    for m in (gt, torch):
        p = m.tensor([1.0, 2.0], requires_grad=True)
        opt = m.optim.SGD([p], lr=0.1)
        scaler = m.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        seen = []
        for i in range(6):
            opt.zero_grad()
            scaler.scale((p * p).sum() * (float("inf") if i == 3 else 1.0)).backward()
            if i == 1:
                scaler.unscale_(opt)
                m.nn.utils.clip_grad_norm_([p], 1.0)
            scaler.step(opt)
            scaler.update()
            seen.append((scaler.get_scale(), p.detach().tolist()))
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.scale(p.sum()).backward()
            scaler.unscale_(opt)
            scaler.unscale_(opt)
        state = scaler.state_dict()
        again = m.amp.GradScaler("cpu")
        again.load_state_dict(state)
        found.append((np.array([s for s, _ in seen]), np.array([v for _, v in seen]), sorted(state), again.get_scale()))
        assert m.amp.GradScaler("cpu", enabled=False).scale(p) is p
    np.testing.assert_allclose(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-6)
    assert found[0][2:] == found[1][2:]


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda nn: nn.LSTM(8, 3), 1), (lambda nn: nn.LSTM(8, 3, 2, bidirectional=True), 4), (lambda nn: nn.LSTM(8, 3, proj_size=2), 1),
        (lambda nn: nn.GRU(8, 3), 1), (lambda nn: nn.RNN(8, 3), 1), (lambda nn: nn.LSTMCell(8, 3), 0), (lambda nn: nn.GRUCell(8, 3), 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("halved", [False, True])
def test_recurrent_layers_have_torchs_dtypes(make, count, given, halved):
    found = []
    weights = None
    for m in (torch, gt):
        layer = make(m.nn)
        if weights is None:
            weights = {name: p.detach().numpy() for name, p in layer.state_dict().items()}
        layer.load_state_dict({name: m.tensor(w) for name, w in weights.items()})
        x = m.tensor(A)[:, None] if count else m.tensor(A)
        if halved and count:
            x = x.bfloat16()  # from a layer before
        out = 2 if "hr" in " ".join(weights) else 3
        starts = [m.zeros(*((count, 1) if count else (4,)), n) for n in (out, 3)]
        hx = (tuple(starts) if "LSTM" in type(layer).__name__ else starts[0],) if given else ()
        with m.autocast("cpu", dtype=m.bfloat16), m.no_grad():
            y = layer(x, *hx)
        found.append([t for part in (y if isinstance(y, tuple) else (y,)) for t in (part if isinstance(part, tuple) else (part,))])
    for want, have in zip(*found, strict=True):
        assert have.dtype.name == str(want.dtype).removeprefix("torch.")
        np.testing.assert_allclose(have.float().numpy(), want.float().numpy(), rtol=3e-2, atol=3e-2)


def test_on_cuda_all_recurrent_layers_are_low():
    for layer, x in ((gt.nn.LSTM(8, 3), A[:, None]), (gt.nn.GRU(8, 3), A[:, None]), (gt.nn.GRUCell(8, 3), A)):
        with gt.autocast("cuda", dtype=gt.bfloat16):
            y = layer(gt.tensor(x))
        assert (y[0] if isinstance(y, tuple) else y).dtype is gt.bfloat16


@pytest.mark.parametrize(
    "calls",
    ["scale step step", "scale unscale unscale", "scale step unscale", "scale update", "scale zero step", "scale zero unscale step",
     "scale zero unscale update", "step", "unscale", "update", "scale step update update", "scale step update"],
)  # fmt: skip
def test_a_scaler_used_out_of_order_says_so_as_torchs(calls: str) -> None:
    found = []
    for m in (gt, torch):
        p = m.ones(2).requires_grad_()
        optimizer, scaler = m.optim.SGD([p], lr=0.1), m.amp.GradScaler("cpu")
        acts = {
            "scale": lambda p=p, s=scaler: s.scale((p * p).sum()).backward(), "step": lambda o=optimizer, s=scaler: s.step(o),
            "unscale": lambda o=optimizer, s=scaler: s.unscale_(o), "update": scaler.update, "zero": optimizer.zero_grad,
        }  # fmt: skip
        try:
            for call in calls.split():
                acts[call]()
            found.append(None)
        except (RuntimeError, AssertionError) as error:
            found.append((type(error), str(error)))
    assert found[0] == found[1]


def test_mixed_precision_is_switched_without_a_block() -> None:
    seen = []
    for m in (gt, torch):
        a, got = m.ones(2, 2), []

        def look(m=m, a=a, got=got) -> None:
            states = m.is_autocast_enabled("cpu"), m.is_autocast_enabled("cuda"), m.get_autocast_dtype("cpu"), m.get_autocast_dtype("cuda")
            got.append(str((*states, (a @ a).dtype)).replace("torch.", "gt."))

        try:
            look()
            m.set_autocast_enabled("cpu", True)
            look()
            m.set_autocast_dtype("cpu", m.float16)
            look()
            with m.autocast("cpu"):
                look()
            with m.autocast("cpu", dtype=m.bfloat16):
                look()
            with m.autocast("cpu", enabled=False):
                look()
            look()
            m.set_autocast_enabled("cuda", False)
            look()
            m.set_autocast_enabled("cpu", False)
            look()
        finally:
            m.set_autocast_enabled("cpu", False)
            m.set_autocast_dtype("cpu", m.bfloat16)
        m.set_autocast_dtype("cuda", m.bfloat16)
        got.append(str(m.get_autocast_dtype("cuda")).replace("torch.", "gt."))
        m.set_autocast_dtype("cuda", m.float16)
        m.set_autocast_enabled(True)
        assert m.is_autocast_enabled("cuda")
        m.set_autocast_enabled(False)
        assert not m.is_autocast_enabled("cuda")
        for wrong in (lambda m=m: m.set_autocast_enabled("foo", True), lambda m=m: m.set_autocast_dtype("foo", m.float16)):
            with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
                wrong()
        seen.append(got)
    assert seen[0] == seen[1]

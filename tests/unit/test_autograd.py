"""Gradients: torch's tape semantics."""

from contextlib import suppress

import numpy as np
import pytest
import torch

import gt
from gt.trace import state


def pair(*arrays):
    """The same leaves for gt and torch."""
    return [gt.tensor(a, requires_grad=True) for a in arrays], [torch.tensor(a, requires_grad=True) for a in arrays]


def same(got, want, **kw):
    np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), **({"rtol": 1e-5, "atol": 1e-6} | kw))


RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((4, 3)).astype(np.float32), RNG.standard_normal((3, 2)).astype(np.float32)


@pytest.mark.parametrize("read_first", [False, True], ids=["one graph", "flush between"])
def test_gradients_equal_torch(read_first):
    (a, b), (ta, tb) = pair(A, B)
    for m, x, y in ((gt, a, b), (torch, ta, tb)):
        loss = (m.tanh(x @ y) * x.sum()).exp().mean()
        if read_first:
            loss.item()
        loss.backward()
    same(a.grad, ta.grad)
    same(b.grad, tb.grad)


def test_accumulates_over_steps_as_torch():
    (a,), (ta,) = pair(A)
    for _ in range(3):
        (a * a).sum().backward()
        (ta * ta).sum().backward()
        same(a.grad, ta.grad)


def test_training_loop_gradients_equal_torch_at_every_step():
    (w, x), (tw, tx) = pair(B, A)
    opt, topt = gt.optim.SGD([w], lr=0.1), torch.optim.SGD([tw], lr=0.1)
    for _ in range(4):
        (x.detach() @ w).pow(2).mean().backward()
        (tx.detach() @ tw).pow(2).mean().backward()
        same(w.grad, tw.grad)
        opt.step(), topt.step()
        opt.zero_grad(), topt.zero_grad()
    same(w, tw)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, {"maximize": True}])
def test_sgd_equals_torch(options):
    (w,), (tw,) = pair(A)
    opt, topt = gt.optim.SGD([w], lr=0.05, **options), torch.optim.SGD([tw], lr=0.05, **options)
    for step in range(5):
        for group in (opt.param_groups[0], topt.param_groups[0]):
            group["lr"] = 0.05 / (step + 1)
        (w**3).sum().backward(), (tw**3).sum().backward()
        opt.step(), topt.step(), opt.zero_grad(), topt.zero_grad()
    same(w, tw)


def test_second_backward_needs_retain_graph():
    (a,), _ = pair(A)
    loss = (a * a).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    np.testing.assert_allclose(a.grad.numpy(), 4 * A, rtol=1e-6)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_second_backward_across_flushes():
    (a,), _ = pair(A)
    loss = (a * a).sum()
    loss.item()
    loss.backward(retain_graph=True)
    loss.item()
    loss.backward()
    np.testing.assert_allclose(a.grad.numpy(), 4 * A, rtol=1e-6)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_double_backward():
    (a,), (ta,) = pair(A)
    for m, x in ((gt, a), (torch, ta)):
        (g,) = m.autograd.grad((x**3).sum(), x, create_graph=True)
        (g * x).sum().backward()
    same(a.grad, ta.grad)


def test_grad_of_an_intermediate_and_unused():
    (a, b), _ = pair(A, B)
    h = a * 2
    (gh,) = gt.autograd.grad((h * h).sum(), h)
    np.testing.assert_allclose(gh.numpy(), 4 * A, rtol=1e-6)
    with pytest.raises(RuntimeError, match="not have been used"):
        gt.autograd.grad((a * a).sum(), b)
    assert gt.autograd.grad((a * a).sum(), b, allow_unused=True) == (None,)


def test_no_grad_detach_and_leaf_flags():
    (a,), _ = pair(A)
    with gt.no_grad():
        b = a * 2
    c = (a * 3).detach()
    assert not b.requires_grad and not c.requires_grad and b.is_leaf and a.is_leaf
    d = a * b + c
    assert d.requires_grad and not d.is_leaf
    d.sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), 2 * A, rtol=1e-6)


def test_requires_grad_set_after_use_does_not_reach_back():
    x, y = gt.tensor([2.0]), gt.tensor([3.0], requires_grad=True)
    early = x * y
    x.requires_grad_()
    (early * x).sum().backward()
    assert x.grad.tolist() == [6.0] and y.grad.tolist() == [4.0]


def test_errors_have_torchs_texts():
    a = gt.ones(2, 2, requires_grad=True)
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        (a * 2).backward()
    with pytest.raises(RuntimeError, match="does not require grad"):
        gt.ones(1).sum().backward()
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        a += 1
    with pytest.raises(RuntimeError, match="view of a leaf Variable"):
        a[0] += 1
    with pytest.raises(RuntimeError, match="numpy.. on Tensor that requires grad"):
        a.numpy()
    with pytest.raises(RuntimeError, match="floating point"):
        gt.tensor([1, 2]).requires_grad_()


@pytest.mark.parametrize("flush", [False, True])
def test_value_changed_in_place_is_noticed(flush):
    a = gt.ones(3, requires_grad=True)
    b = a * 2
    c = (b * b).sum()
    if flush:
        c.item()
        with gt.no_grad():
            a.mul_(2)
        d = (a * a).sum()
        with gt.no_grad():
            a.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            d.backward()
    else:
        b += 1
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            c.backward()


def test_in_place_ops_are_differentiated():
    (a,), (ta,) = pair(A)
    for x in (a, ta):
        y = x * 2
        y[1:] *= 3
        y[:, 0] = x[:, 1]
        (y * y).sum().backward()
    same(a.grad, ta.grad)


@pytest.mark.parametrize("flush", [False, True])
def test_hooks_and_retain_grad(flush):
    (a,), (ta,) = pair(A)
    seen = []
    for x in (a, ta):
        x.register_hook(lambda g: g * 2)
        h = x * 3
        h.retain_grad()
        h.register_hook(lambda g: seen.append(1) or g + 1)
        loss = (h * h).sum()
        if flush:
            loss.item()
        loss.backward()
        seen.append(h.grad)
    assert len(seen) == 4
    same(a.grad, ta.grad)


class Stop(Exception):
    pass


def stopping(*given):
    raise Stop


def failing_tensor(m, x, on):
    h = x * 3
    if on:
        h.register_hook(stopping)
    return h


def failing_module(m, x, on):
    layer = m.nn.Identity()
    if on:
        layer.register_full_backward_hook(stopping)
    return layer(x * 3)


def failing_module_first(m, x, on):
    layer = m.nn.Identity()
    if on:
        layer.register_full_backward_pre_hook(stopping)
    return layer(x * 3)


def failing_function(m, x, on):
    class Triple(m.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            ctx.save_for_backward(value)
            return value * 3

        @staticmethod
        def backward(ctx, g):
            return stopping() if on else g * 3

    return Triple.apply(x)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("fails", [failing_tensor, failing_module, failing_module_first, failing_function])
def test_what_a_hook_raises_comes_out_of_backward_and_nothing_has_changed(fails, flush):
    (a,), (ta,) = pair(A)
    for m, x in ((gt, a), (torch, ta)):
        before = m.ones(A.shape) * 2
        x.grad = before.clone()
        other = m.ones(A.shape).requires_grad_()
        loss = (fails(m, x, True) * other).sum()
        if flush:
            loss.item()
        with pytest.raises(Stop):
            loss.backward()
        assert m.is_grad_enabled() and (x.grad == before).all()
        with pytest.raises(Stop):
            m.autograd.grad((fails(m, x, True) * 2).sum(), x)
        (fails(m, x, False) * x).sum().backward()
    same(a.grad, ta.grad)
    y = gt.tensor([1.0, 2.0], requires_grad=True)
    other = gt.tensor([3.0, 4.0], requires_grad=True)
    h = y * 2
    handle = h.register_hook(stopping)
    loss = (h * other).sum()
    with pytest.raises(Stop):
        loss.backward()
    assert y.grad is None and other.grad is None  # torch keeps what it had computed
    handle.remove()
    loss.backward()  # and would have freed the graph
    assert y.grad.tolist() == [6.0, 8.0] and other.grad.tolist() == [2.0, 4.0]


@pytest.mark.parametrize("hook", [stopping, lambda g: g.sum().item() and None], ids=["raises", "reads"])
def test_what_follows_a_backward_is_under_the_scopes_it_is_in(hook, clean, settled):
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    x = gt.ones(4, 2, requires_grad=True)
    with gt.signal.context("rows", backward="rows"):
        h = x * 2
        k = h * h
    h.register_hook(hook)
    with suppress(Stop):
        k.sum().backward()
    y = gt.ones(4, 2) + 1
    assert state.trace.signal_at(len(state.trace.code) - 1) is None and y.sum().item() == 16.0


def test_two_losses_share_a_trunk_across_a_flush():
    (a,), (ta,) = pair(A)
    for x in (a, ta):
        trunk = (x * 2).tanh()
        one, two = (trunk**2).sum(), trunk.exp().sum()
        one.item()
        one.backward(retain_graph=True)
        two.backward()
    same(a.grad, ta.grad)


def test_optimizer_refuses_what_torch_refuses():
    with pytest.raises(ValueError, match="empty parameter list"):
        gt.optim.SGD([], lr=0.1)
    with pytest.raises(ValueError, match="learning rate"):
        gt.optim.SGD([gt.ones(1, requires_grad=True)], lr=-1)
    w = gt.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match="more than one"):
        gt.optim.SGD([{"params": [w]}, {"params": [w]}], lr=0.1)


class _Cube:
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale, x.sum()

    @staticmethod
    def backward(ctx, g, gsum):
        (x,) = ctx.saved_tensors
        return g * 3 * x**2 * ctx.scale + gsum, None


@pytest.mark.parametrize("flush", [False, True])
def test_custom_function_equals_torchs(flush):
    (a,), (ta,) = pair(A)
    for m, x in ((gt, a), (torch, ta)):
        f = type("Cube", (m.autograd.Function,), {"forward": _Cube.forward, "backward": _Cube.backward})
        y, s = f.apply(x * 2, 0.5)
        loss = (y.tanh() + s).sum()
        if flush:
            loss.item()
        loss.backward()
    same(a.grad, ta.grad)


def test_custom_function_with_wrong_number_of_gradients():
    bad = type("Bad", (gt.autograd.Function,), {"forward": lambda ctx, x, y: x + y, "backward": lambda ctx, g: g})
    a = gt.ones(2, requires_grad=True)
    with pytest.raises(RuntimeError, match="incorrect number of gradients"):
        bad.apply(a, a).sum().backward()


def test_anomaly_mode_names_the_line():
    a = gt.tensor([-1.0, 4.0], requires_grad=True)
    with gt.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=r"sqrt is NaN \(recorded at .*test_autograd.py"):
        (a.sqrt() * 0).sum().backward()


def test_a_read_in_the_middle_of_a_forward_changes_no_gradient():
    (a,), (ta,) = pair(A)
    for x in (a, ta):
        b = x * 2
        b.tolist()
        c = b * b + x
        c[0].tolist()
        (c * b).sum().backward()
    same(a.grad, ta.grad)


def test_a_complex_output_needs_its_gradient_given():
    with pytest.raises(RuntimeError, match="only for real scalar outputs but got gt.complex64"):
        gt.tensor(1 + 2j, requires_grad=True).square().backward()


PIECEWISE = {
    "relu": lambda m, x: m.nn.functional.relu(x), "leaky_relu": lambda m, x: m.nn.functional.leaky_relu(x, 0.2),
    "hardtanh": lambda m, x: m.nn.functional.hardtanh(x, -0.5, 0.5), "l1_norm of rows": lambda m, x: (x.abs() * m.ones(2, 3)).sum(1),
    "relu of a product": lambda m, x: m.nn.functional.relu(x @ m.ones(3, 3)), "rrelu": lambda m, x: m.nn.functional.rrelu(x, 0.2, 0.2),
}  # fmt: skip


@pytest.mark.parametrize("function", PIECEWISE.values(), ids=PIECEWISE)
def test_gradients_with_a_constant_slope_can_be_differentiated(function):
    start = [[0.5, -0.25, 2.0], [-1.0, 0.125, -3.0]]
    found = []
    for m in (gt, torch):
        x = m.tensor(start, requires_grad=True)
        (g,) = m.autograd.grad(function(m, x).sum(), x, create_graph=True)
        assert g.requires_grad
        ((g.norm(2, 1) - 1) ** 2).mean().backward()
        found.append([g.tolist(), (x.grad + m.zeros(2, 3)).tolist()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


def test_a_gradient_penalty_reaches_biases_as_torchs():
    found = []
    for m in (gt, torch):
        net = m.nn.Sequential(m.nn.Linear(3, 4), m.nn.ReLU(), m.nn.Linear(4, 4), m.nn.LeakyReLU(0.2), m.nn.Linear(4, 1))
        with m.no_grad():
            for i, p in enumerate(net.parameters()):
                p.copy_((m.arange(p.numel()).reshape(p.shape) * (i + 1)).float().sin())
        x = m.arange(15.0).reshape(5, 3).cos().requires_grad_()
        (g,) = m.autograd.grad(net(x).sum(), x, create_graph=True)
        ((g.norm(2, 1) - 1) ** 2).mean().backward()
        found.append([None if p.grad is None else p.grad.numpy() for p in (x, *net.parameters())])
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not found[0][2].any()


def test_a_count_has_a_gradient_of_zeros():
    x = gt.tensor([0.0, 2.0, float("inf")], requires_grad=True)
    y = x.norm(p=0)
    y.backward()
    assert y.item() == 2.0 and x.grad.tolist() == [0.0, 0.0, 0.0]
    (g,) = gt.autograd.grad(gt.nn.functional.relu(x).sum(), x, create_graph=True)
    (g * 2).sum().backward()
    assert g.tolist() == [0.0, 1.0, 1.0] and x.grad.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda m, x: m.autograd.grad(x.sum(), []), RuntimeError, "`inputs` argument to `grad\\(\\)` cannot be empty"),
        (lambda m, x: m.autograd.grad([], [x]), RuntimeError, "at index 0 appears to not have been used"),
        (lambda m, x: m.autograd.grad(x.sum(), x, []), RuntimeError, "got 1 tensors and 0 gradients"),
        (lambda m, x: m.autograd.grad(x.sum(), x, allow_unused=False, materialize_grads=True), ValueError, "Expected allow_unused to be True"),
        (lambda m, x: m.autograd.grad(x.sum(), m.ones(2)), RuntimeError, "One of the differentiated Tensors does not require grad"),
    ],
)  # fmt: skip
def test_grad_refuses_what_torchs_does(call, error, text):
    for m in (torch, gt):
        with pytest.raises(error, match=text):
            call(m, m.ones(2, requires_grad=True))


@pytest.mark.parametrize("out, given", [("complex64", "float32"), ("float32", "complex64"), ("complex64", "int64"), ("float64", "complex128")])
def test_gradients_to_start_from_are_complex_where_the_tensors_are(out, given):
    said = []
    for m in (torch, gt):
        x = m.ones(2, dtype=getattr(m, out), requires_grad=True)
        y, g = x * 2, m.ones(2, dtype=getattr(m, given))
        for call in (y.backward, lambda g, y=y, x=x, m=m: m.autograd.grad(y, x, g)):
            with pytest.raises(RuntimeError, match="For complex Tensors, both grad_output and output are required to have the same dtype") as e:
                call(g)
            said.append(str(e.value).replace("gt.", "torch."))
    assert said[:2] == said[2:]
    with pytest.raises(RuntimeError, match=r"grad_output\[1\] has a dtype"):
        gt.autograd.grad([y.real.sum(), y], x, [None, g])


def test_a_hook_after_accumulation_runs_for_the_first_gradient_too():
    x, seen = gt.ones(2, requires_grad=True), []
    x.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))
    for _ in range(2):
        (x * 3).sum().backward()
    assert seen == [[3.0, 3.0], [6.0, 6.0]]


@pytest.mark.parametrize("make", [lambda x: x[0], lambda x: x * 2, lambda x: (x * 2)[:2]], ids=["view", "computed", "view of computed"])
@pytest.mark.parametrize("read", [False, True], ids=["pending", "read"])
def test_a_value_that_an_output_does_not_depend_on_has_no_gradient(make, read):
    x = gt.ones(3, requires_grad=True)
    y = make(x)
    if read:
        y.tolist()
    assert gt.autograd.grad(x.sum(), y, allow_unused=True) == (None,)
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        gt.autograd.grad(x.sum(), y)
    x.sum().backward(inputs=[y])
    assert y.grad is None
    assert gt.autograd.grad((y * 2).sum(), y)[0].tolist() == (y.detach() * 0 + 2).tolist()

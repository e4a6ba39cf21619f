"""``autograd.functional``, ``gradcheck`` and ``gt.func`` against torch: the same calls on both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt

RNG = np.random.default_rng(0)
X, V, W = RNG.standard_normal((3,)), RNG.standard_normal((3,)), RNG.standard_normal((3, 3))


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [t for k in sorted(value) for t in flat(value[k])]
    return [t for v in value for t in flat(v)] if isinstance(value, tuple | list) else [value]


def same(call: Any) -> None:
    results = []
    for m in (gt, torch):
        x, v, w = (m.tensor(a) for a in (X, V, W))
        results.append(flat(call(m, x, v, w)))
    assert len(results[0]) == len(results[1])
    for mine, theirs in zip(*results, strict=True):
        assert mine.requires_grad == theirs.requires_grad
        np.testing.assert_allclose(mine.detach().numpy(), theirs.detach().numpy(), rtol=1e-9, atol=1e-12)


def closed_over(m: Any, p: Any, v: Any) -> Any:
    """Differentiate by ``v`` what also depends on a parameter."""
    return m.func.grad(lambda t: (t * t * p).sum())(v)


AF = [
    lambda m, x, v, w: m.autograd.functional.jacobian(lambda t: (w @ t).tanh(), x),
    lambda m, x, v, w: m.autograd.functional.jacobian(lambda a, b: (a * b, (a**2).sum()), (x, v)),
    lambda m, x, v, w: m.autograd.functional.jacobian(lambda a, b: a.sum(), (x, v), create_graph=True),
    lambda m, x, v, w: m.autograd.functional.jacobian(lambda a: a.exp(), x, strategy="forward-mode", vectorize=True),
    lambda m, x, v, w: m.autograd.functional.hessian(lambda t: (w @ t).sin().sum(), x),
    lambda m, x, v, w: m.autograd.functional.hessian(lambda a, b: (a * b).exp().sum(), (x, v)),
    lambda m, x, v, w: m.autograd.functional.vjp(lambda t: (w @ t).tanh(), x, v),
    lambda m, x, v, w: m.autograd.functional.vjp(lambda a, b: (a * b).sum(), (x, v)),
    lambda m, x, v, w: m.autograd.functional.jvp(lambda t: (w @ t).tanh(), x, v),
    lambda m, x, v, w: m.autograd.functional.jvp(lambda a, b: (a * b, a), (x, v), (v, x)),
    lambda m, x, v, w: m.autograd.functional.hvp(lambda t: (w @ t).sin().sum(), x, v),
    lambda m, x, v, w: m.autograd.functional.vhp(lambda a, b: (a * b).exp().sum(), (x, v), (v, x)),
    lambda m, x, v, w: m.autograd.grad(
        (w @ (t := x.clone().requires_grad_())).tanh(), t, m.eye(3, dtype=m.float64), is_grads_batched=True
    ),
]
FUNC = [
    lambda m, x, v, w: m.func.grad(lambda t: (w @ t).sin().sum())(x),
    lambda m, x, v, w: m.func.grad(lambda a, b: ((a * b).sum(), a), argnums=(0, 1), has_aux=True)(x, v),
    lambda m, x, v, w: m.func.grad(lambda t: m.func.grad(lambda u: (u**3).sum())(t).sin().sum())(x),
    lambda m, x, v, w: m.func.grad(lambda p: (p["w"] @ p["x"]).sum())({"w": w, "x": x}),
    lambda m, x, v, w: m.func.grad_and_value(lambda t: (w @ t).sin().sum())(x),
    lambda m, x, v, w: m.func.vjp(lambda t: (w @ t).tanh(), x)[1](v),
    lambda m, x, v, w: m.func.vjp(lambda a, b: (a * b, a), x, v)[1]((x, v)),
    lambda m, x, v, w: m.func.linearize(lambda t: (w @ t).tanh(), x)[1](v),
    lambda m, x, v, w: m.func.linearize(lambda p, q: {"a": p["x"] * q, "b": q}, {"x": x}, v)[1]({"x": v}, x),
    lambda m, x, v, w: m.func.jacfwd(lambda t: (t > 0).sum())(x),
    lambda m, x, v, w: m.func.jvp(lambda t: (w @ t).tanh(), (x,), (v,)),
    lambda m, x, v, w: m.func.jvp(lambda a, b: (a * b, a.exp()), (x, v), (v, x)),
    lambda m, x, v, w: m.func.jacrev(lambda t: (w @ t).tanh())(x),
    lambda m, x, v, w: m.func.jacfwd(lambda a, b: a * b, argnums=(0, 1))(x, v),
    lambda m, x, v, w: m.func.hessian(lambda t: (w @ t).sin().sum())(x),
    lambda m, x, v, w: m.func.vmap(lambda a, b: a.dot(b))(w, w),
    lambda m, x, v, w: m.vmap(lambda a, b: (a * b, b.sum()), in_dims=(1, None), out_dims=(1, 0))(w, x),
    lambda m, x, v, w: m.vmap(m.func.grad(lambda p, t: (p @ t).tanh().sum()), in_dims=(None, 0))(w, w),
    lambda m, x, v, w: m.vmap(lambda d: d["a"] + d["b"], in_dims=({"a": 0, "b": None},))({"a": w, "b": x}),
    lambda m, x, v, w: m.vmap(m.vmap(lambda a, b: a * b, in_dims=(0, None)), in_dims=(None, 0))(x, v),
    lambda m, x, v, w: m.vmap(lambda a, k, d: a + k + d["k"])(w, k=w[0], d={"k": w[1]}),
    lambda m, x, v, w: m.func.vmap(m.func.hessian(lambda t: (t**3).sum()))(w),
    lambda m, x, v, w: closed_over(m, x.requires_grad_(), v),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", AF + FUNC)
def test_transforms_give_what_torchs_do(call: Any) -> None:
    same(call)


def test_functional_call_differentiates_by_the_parameters_given() -> None:
    results = []
    for m in (gt, torch):
        model = m.nn.Sequential(m.nn.Linear(3, 2), m.nn.Tanh(), m.nn.Linear(2, 1)).double()
        params = {k: m.tensor(np.sin(np.arange(p.numel())).reshape(p.shape)) for k, p in model.named_parameters()}
        loss = lambda p, x, m=m, model=model: m.func.functional_call(model, p, (x,)).sum()  # noqa: E731
        per_example = m.func.vmap(m.func.grad(loss), in_dims=(None, 0))(params, m.tensor(W))
        results.append(flat(m.func.grad(loss)(params, m.tensor(W))) + flat(per_example))
        before = {k: p.detach().clone() for k, p in model.named_parameters()}
        assert all((before[k] == p).all() for k, p in model.named_parameters())
        with pytest.raises(RuntimeError, match="nothing"):
            m.func.functional_call(model, {"nothing": m.ones(1)}, (m.tensor(W),), strict=True)
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-9)


def test_stacked_models_are_called_one_by_one() -> None:
    models = [gt.nn.Linear(3, 2) for _ in range(3)]
    params, buffers = gt.func.stack_module_state(models)
    x = gt.randn(4, 3)
    found = gt.vmap(lambda p, b: gt.func.functional_call(models[0], (p, b), (x,)))(params, buffers)
    np.testing.assert_allclose(found.detach().numpy(), gt.stack([m(x) for m in models]).detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.vmap(lambda a, b: a + b)(m.ones(2), m.ones(3)),
        lambda m: m.vmap(lambda a: a, in_dims=2)(m.ones(2)),
        lambda m: m.vmap(lambda a: 1)(m.ones(2)),
        lambda m: m.vmap(lambda a: a + m.rand(1))(m.ones(2)),
        lambda m: m.func.grad(lambda a: a * 2)(m.ones(2)),
        lambda m: m.func.linearize(lambda a: a, m.ones(2))[1](m.ones(3)),
        lambda m: m.func.linearize(lambda a: a, m.ones(2))[1](m.ones(2), m.ones(2)),
        lambda m: m.func.linearize(lambda a: a, m.ones(2))[1](m.ones(2).double()),
        lambda m: m.autograd.functional.jvp(lambda a: a, m.ones(2)),
        lambda m: m.autograd.functional.vjp(lambda a: a, m.ones(2), m.ones(3)),
        lambda m: m.autograd.functional.hessian(lambda a: a, m.ones(2)),
        lambda m: m.autograd.functional.jacobian(lambda a: m.ones(2), m.ones(2), strict=True),
        lambda m: m.autograd.gradcheck(lambda a: a, (m.ones(2),)),
    ],
)
def test_mistakes_are_errors_as_in_torch(call: Any) -> None:
    with pytest.raises((ValueError, RuntimeError, TypeError)) as theirs:
        call(torch)
    with pytest.raises(type(theirs.value)):
        call(gt)


class Wrong(gt.autograd.Function):
    """Its gradient is twice what it is."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    @gt.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


def test_gradcheck_finds_a_wrong_gradient() -> None:
    x = gt.tensor(X, requires_grad=True)
    w = gt.tensor(W, requires_grad=True)
    assert gt.autograd.gradcheck(lambda w, x: (w @ x).tanh(), (w, x)) and gt.autograd.gradgradcheck(lambda x: x.sin() * x, x)
    with pytest.raises(gt.autograd.GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"):
        gt.autograd.gradcheck(Wrong.apply, x)
    assert not gt.autograd.gradcheck(Wrong.apply, x, raise_exception=False)


def test_once_differentiable_refuses_second_gradients() -> None:
    x = gt.tensor(X, requires_grad=True)
    (g,) = gt.autograd.grad(Wrong.apply(x).square().sum(), x, create_graph=True)
    np.testing.assert_allclose(g.detach().numpy(), 4 * X)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        g.sum().backward()


def test_backward_of_several_tensors_adds_up() -> None:
    found = []
    for m in (gt, torch):
        x = m.tensor(X, requires_grad=True)
        m.autograd.backward([(x * 2).sum(), x * x], [None, m.tensor(V)])
        found.append(x.grad.numpy())
    np.testing.assert_allclose(*found)


def test_an_argument_that_is_not_used_has_a_gradient_of_zeros():
    for lib in (gt, torch):
        found = lib.func.grad(lambda x, y: (x * x).sum(), argnums=(0, 1))(lib.ones(2), lib.ones(3))
        assert [g.tolist() for g in found] == [[2.0, 2.0], [0.0, 0.0, 0.0]]


def test_the_function_of_vjp_gives_a_tuple_for_one_primal_too():
    for lib in (gt, torch):
        x = lib.tensor([1.0, 2.0])
        (found,) = lib.func.vjp(lambda a: a**2, x)[1](x)
        assert found.tolist() == [2.0, 8.0]
        (found,) = lib.func.vjp(lambda a: (a["x"] ** 2, a), {"x": x}, has_aux=True)[1](x)
        assert found["x"].tolist() == [2.0, 8.0]


@pytest.mark.parametrize("name", ["grad", "grad_and_value", "jacrev", "jacfwd", "hessian", "vjp", "jvp", "linearize"])
@pytest.mark.parametrize("case", ["int", "bool", "inside", "second", "number"])
def test_what_has_no_gradient_is_refused_as_in_torch(name: str, case: str) -> None:
    raised = []
    for m in (torch, gt):
        x, n = m.ones(2), m.tensor([1, 2])
        args = {"int": (n,), "bool": (n > 1,), "inside": ({"x": x, "n": n},), "second": (x, n), "number": (2.0,)}[case]
        function = getattr(m.func, name)
        with pytest.raises((ValueError, RuntimeError, AttributeError)) as fault:
            total = lambda *a, x=x: sum((v["x"] * v["n"] if isinstance(v, dict) else v * x).sum() for v in a)  # noqa: E731
            if name in ("vjp", "linearize"):
                function(total, *args)
            elif name == "jvp":
                function(total, args, args)
            else:
                function(total, argnums=tuple(range(len(args))))(*args)
        raised.append(fault.value)
    if case != "number":  # there torch's forward mode does not get to say what is wrong
        assert type(raised[0]) is type(raised[1]) and str(raised[0]).replace("torch.", "gt.") == str(raised[1])


@pytest.mark.parametrize("name", ["jacrev", "jacfwd"])
def test_jacobians_are_real(name: str) -> None:
    for m in (torch, gt):
        z = m.ones(2, dtype=m.complex64)
        with pytest.raises(RuntimeError, match="Expected all inputs to be real"):
            getattr(m.func, name)(lambda a: a.abs())(z)
        with pytest.raises(RuntimeError, match="Expected all outputs to be real"):
            getattr(m.func, name)(lambda a, z=z: a * z)(m.ones(2))


@pytest.mark.parametrize("function", [lambda x: 3.0, lambda x: None, lambda x: (x, 3), lambda x: ()], ids=["number", "nothing", "one of two", "empty"])
@pytest.mark.parametrize("call", [
    lambda m, f, x: m.func.vjp(f, x), lambda m, f, x: m.func.jvp(f, (x,), (x,)), lambda m, f, x: m.func.jacrev(f)(x),
    lambda m, f, x: m.func.jacfwd(f)(x),
], ids=["vjp", "jvp", "jacrev", "jacfwd"])  # fmt: skip
def test_what_is_no_tensor_is_named(call, function):
    said = []
    for m in (gt, torch):
        with pytest.raises(RuntimeError) as fault:
            call(m, function, m.ones(2))
        said.append(str(fault.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("function", [
    lambda x: 3.0, lambda x: None, lambda x: (x * x, 3), lambda x: {"a": x * x, "b": ["s", x.sum()]}, lambda x: (),
], ids=["number", "nothing", "one of two", "inside", "empty"])  # fmt: skip
def test_linearize_hands_on_what_is_no_tensor(function):
    def found(m: Any) -> Any:
        x = m.tensor([1.0, 2.0])
        out, along = m.func.linearize(function, x)
        return shown((out, along(x)))

    def shown(v: Any) -> Any:
        if isinstance(v, dict):
            return {k: shown(w) for k, w in v.items()}
        return type(v)(map(shown, v)) if isinstance(v, tuple | list) else v.tolist() if hasattr(v, "tolist") else v

    assert found(gt) == found(torch)


@pytest.mark.parametrize("call", [
    lambda m, x: m.func.jvp(lambda x: x, (x,), x), lambda m, x: m.func.jvp(lambda x: x, (x,), [x]), lambda m, x: m.func.jvp(lambda x: x, (), ()),
    lambda m, x: m.func.jvp(lambda x: x, (x,), (x, x)), lambda m, x: m.func.jvp(lambda x: x[0], ((x, x),), ((x, 3),)),
    lambda m, x: m.func.jvp(lambda x: x, (3.0,), (x,)), lambda m, x: m.func.jvp(lambda x: x, (x,), (m.ones(3),)),
    lambda m, x: m.func.vjp(lambda x: x, x)[1](3.0), lambda m, x: m.func.vjp(lambda x: (x, x), x)[1]((x, 3.0)),
    lambda m, x: m.func.vjp(lambda x: (x, 3), x, has_aux=True), lambda m, x: m.func.vjp(lambda x: x, x, has_aux=True),
    lambda m, x: m.func.jvp(lambda x: (x, None), (x,), (x,), has_aux=True), lambda m, x: m.func.jacrev(lambda x: (x, "s"), has_aux=True)(x),
    lambda m, x: m.func.jacfwd(lambda x: (x, {"a": "s"}), has_aux=True)(x), lambda m, x: m.func.grad(lambda x: (x.sum(), "s"), has_aux=True)(x),
])  # fmt: skip
def test_tangents_cotangents_and_more_that_are_no_tensors(call):
    faults = []
    for m in (gt, torch):
        with pytest.raises((RuntimeError, TypeError)) as fault:
            call(m, m.ones(2))
        faults.append((type(fault.value), str(fault.value).partition(" Got primals")[0]))
    assert faults[0] == faults[1]

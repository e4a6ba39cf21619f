"""Jacobians, Hessians and products with them. Source: torch.autograd.functional.

Owns: what is asked of functions of tensors; each row of a matrix is one backward. Next: ``gradients``, ``gt.func`` (transforms).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.autograd.several import grad
from gt.functions import create
from gt.functions.shape import reshape, stack
from gt.grad_mode import enable_grad
from gt.handle import Handle

Tensors = tuple[Any, ...]


def _tuple(value: Any, what: str) -> tuple[bool, Tensors]:
    """Say whether a value is a tuple, and give it as one. Errors: TypeError if it is not made of tensors."""
    found = tuple(value) if isinstance(value, tuple | list) else (value,)
    for i, t in enumerate(found):
        if not isinstance(t, Handle):
            named = f"Value at index {i}" if isinstance(value, tuple | list) else "The value"
            raise TypeError(f"The {what} must be either a Tensor or a tuple of Tensors but {named.lower()} has type {type(t)}.")
    return isinstance(value, tuple | list), found


def _fresh(inputs: Tensors, create_graph: bool) -> Tensors:
    """Give tensors to differentiate by: the inputs' own history is kept only if the result is to be differentiated."""
    return tuple(
        t.view_as(t) if create_graph and t._rg else t.detach().requires_grad_()  # type: ignore[attr-defined]
        for t in inputs
    )


def _done(values: Any, create_graph: bool) -> Any:
    if isinstance(values, tuple):
        return tuple(_done(v, create_graph) for v in values)
    return values if create_graph else values.detach()


def _vector(v: Any, like: Tensors, name: str) -> Tensors:
    """Give ``v`` as a tuple with the shapes of ``like``; ones for a single number if it is None."""
    if v is None:
        if len(like) != 1 or like[0].numel() != 1:
            raise RuntimeError(
                f"The vector v can only be None if {'the user-provided function returns' if name == 'vjp' else 'the input is'} "
                "a single Tensor with a single element."
            )
        return (create.ones_like(like[0]),)
    given = _tuple(v, "vector v")[1]
    if len(given) != len(like):
        raise RuntimeError(f"v is a tuple of invalid length: should be {len(like)} but got {len(given)}.")
    for i, (a, b) in enumerate(zip(given, like, strict=True)):
        if a.shape != b.shape:
            raise RuntimeError(f"Entry {i} in v has invalid size: should be {b.shape} but got {a.shape}.")
    return given


def _derivatives(outputs: Tensors, inputs: Tensors, seeds: Tensors | None, create_graph: bool, strict: bool, what: str) -> Tensors:
    """Give gradients, zeros where an input was not used, unless ``strict``."""
    needed = [i for i, o in enumerate(outputs) if o._rg]
    if strict and len(needed) < len(outputs):
        raise RuntimeError(
            f"Output {next(i for i in range(len(outputs)) if i not in needed)} of {what} is independent of the inputs."
        )
    found: tuple[Any, ...] = (None,) * len(inputs)
    if needed:
        given = None if seeds is None else [seeds[i] for i in needed]
        found = grad([outputs[i] for i in needed], inputs, given, retain_graph=True, create_graph=create_graph, allow_unused=True)
    for i, g in enumerate(found):
        if g is None and strict:
            raise RuntimeError(f"The output of {what} is independent of input {i}. This is not allowed in strict mode.")
    return tuple(create.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True))


def vjp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """Give the outputs of ``func`` and ``v`` times its Jacobian, in the form of the inputs."""
    with enable_grad():
        many, given = _tuple(inputs, "inputs given to vjp")
        own = _fresh(given, create_graph)
        many_out, outputs = _tuple(func(*own), "outputs of the user-provided function given to vjp")
        seeds = _vector(v, outputs, "vjp")
        found = _derivatives(outputs, own, seeds, create_graph, strict, "the user-provided function")
    out, product = _done(outputs, create_graph), _done(found, create_graph)
    return (out if many_out else out[0]), (product if many else product[0])


def jvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """Give the outputs of ``func`` and its Jacobian times ``v``, in the form of the outputs: two backwards."""
    with enable_grad():
        many, given = _tuple(inputs, "inputs given to jvp")
        own = _fresh(given, create_graph)
        tangents = _vector(v, own, "jvp")
        many_out, outputs = _tuple(func(*own), "outputs of the user-provided function given to jvp")
        product = _forward(outputs, own, tangents, create_graph, strict)
    out, product = _done(outputs, create_graph), _done(product, create_graph)
    return (out if many_out else out[0]), (product if many_out else product[0])


def _forward(outputs: Tensors, inputs: Tensors, tangents: Tensors, create_graph: bool, strict: bool) -> Tensors:
    """Differentiate the gradients by their seeds: they are linear in them."""
    seeds = tuple(create.zeros_like(o).requires_grad_() for o in outputs)
    grads = _derivatives(outputs, inputs, seeds, True, strict, "the user-provided function")
    return _derivatives(grads, seeds, tangents, create_graph, False, "the Jacobian")


def jacobian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """Give the Jacobian: for an output of shape O and an input of shape I one of shape O + I, in tuples as outputs and inputs are.

    Both strategies give the same values, and ``vectorize`` changes nothing: each element of an output (of an input, for
    "forward-mode") is a backward, recorded in one graph.
    """
    if strategy not in ("reverse-mode", "forward-mode"):
        raise AssertionError(
            'Expected strategy to be either "forward-mode" or "reverse-mode". Hint: If your function has more outputs than inputs, '
            '"forward-mode" tends to be more performant. Otherwise, prefer to use "reverse-mode".'
        )
    with enable_grad():
        many, given = _tuple(inputs, "inputs given to jacobian")
        own = _fresh(given, create_graph)
        many_out, outputs = _tuple(func(*own), "outputs of the user-provided function given to jacobian")
        rows = tuple(_rows(o, own, create_graph, strict) for o in outputs)
    rows = _done(rows, create_graph)
    if not many:
        return tuple(r[0] for r in rows) if many_out else rows[0][0]
    return rows if many_out else rows[0]


def _rows(output: Any, inputs: Tensors, create_graph: bool, strict: bool) -> Tensors:
    """Give the Jacobian of one output by each input."""
    flat = reshape(output, (-1,))
    found = [
        _derivatives((flat[i],), inputs, None, create_graph, strict, "the user-provided function") for i in range(output.numel())
    ]
    if not found:
        return tuple(create.zeros(*output.shape, *t.shape, dtype=output.dtype) for t in inputs)
    return tuple(
        reshape(stack(list(column)), (*output.shape, *t.shape)) for column, t in zip(zip(*found, strict=True), inputs, strict=True)
    )


def _scalar(func: Callable[..., Any], name: str) -> Callable[..., Any]:
    def single(*args: Any) -> Any:
        out = func(*args)
        if not isinstance(out, Handle):
            raise RuntimeError(f"The function given to {name} should return a single Tensor")
        if out.numel() != 1:
            raise RuntimeError(f"The Tensor returned by the function given to {name} should contain a single element")
        return out.reshape(())  # type: ignore[attr-defined]

    return single


def hessian(
    func: Callable[..., Any], inputs: Any, create_graph: bool = False, strict: bool = False, vectorize: bool = False,
    outer_jacobian_strategy: str = "reverse-mode",
) -> Any:  # fmt: skip
    """Give the Hessian of a function with one number as its result: for inputs of shapes I and J one of shape I + J."""
    many, given = _tuple(inputs, "inputs given to hessian")
    scalar = _scalar(func, "hessian")

    def gradient(*args: Any) -> Any:
        found = jacobian(scalar, args, create_graph=True, strict=strict)
        return found if many else found[0]

    return jacobian(gradient, given if many else given[0], create_graph=create_graph, strict=strict)


def vhp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """Give the value of a function with one number as its result and ``v`` times its Hessian."""
    return _hessian_product(func, inputs, v, create_graph, strict, "vhp")


def hvp(func: Callable[..., Any], inputs: Any, v: Any = None, create_graph: bool = False, strict: bool = False) -> tuple[Any, Any]:
    """Give the value of a function with one number as its result and its Hessian times ``v``: the same, for it is symmetric."""
    return _hessian_product(func, inputs, v, create_graph, strict, "hvp")


def _hessian_product(func: Callable[..., Any], inputs: Any, v: Any, create_graph: bool, strict: bool, name: str) -> tuple[Any, Any]:
    with enable_grad():
        many, given = _tuple(inputs, f"inputs given to {name}")
        own = _fresh(given, create_graph)
        vector = _vector(v, own, name)
        out = _scalar(func, name)(*own)
        grads = _derivatives((out,), own, None, True, strict, "the user-provided function")
        found = _derivatives(grads, own, vector, create_graph, strict, "the gradient")
    product = _done(found, create_graph)
    return _done(out, create_graph), (product if many else product[0])


__all__ = ["hessian", "hvp", "jacobian", "jvp", "vhp", "vjp"]

"""Gradients against differences of values. Source: torch.autograd.gradcheck. Reads values. Next: ``functional``."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.autograd.several import grad
from gt.functions import create, draw
from gt.functions.shape import reshape
from gt.handle import Handle
from gt.ir.blame import Located


class GradcheckError(Located, RuntimeError):
    """A gradient is not what differences of values say."""


def _outputs(value: Any) -> list[Any]:
    return [o for o in (value if isinstance(value, tuple | list) else (value,)) if isinstance(o, Handle) and o.dtype.kind == "f"]


def _numerical(function: Callable[..., Any], inputs: list[Any], at: int, eps: float) -> list[np.ndarray[Any, Any]]:
    """Give the Jacobian of each output by one input: [elements of the input, elements of the output], by central differences."""
    x = inputs[at]
    start = x.detach().numpy()
    columns = []
    for i in range(start.size):
        sides = []
        for step in (eps, -eps):
            moved = start.copy()
            moved.reshape(-1)[i] += step
            given = [create.tensor(moved, dtype=x.dtype).requires_grad_() if j == at else t for j, t in enumerate(inputs)]
            sides.append([o.detach().numpy().reshape(-1) for o in _outputs(function(*given))])
        columns.append([(a - b) / (2 * eps) for a, b in zip(*sides, strict=True)])
    return [np.stack(each) for each in zip(*columns, strict=True)]


def _analytical(output: Any, x: Any) -> np.ndarray[Any, Any]:
    """Give the Jacobian of one output by one input as ``grad`` gives it: [elements of the input, elements of the output]."""
    rows = np.zeros((output.numel(), x.numel()))
    if output._rg:
        flat = reshape(output, (-1,))
        for i in range(output.numel()):
            (g,) = grad(flat[i], x, retain_graph=True, allow_unused=True)
            if g is not None:
                rows[i] = g.detach().numpy().reshape(-1)
    return rows.T


def gradcheck(
    func: Callable[..., Any], inputs: Any, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3, raise_exception: bool = True,
    nondet_tol: float = 0.0, check_undefined_grad: bool = True, check_grad_dtypes: bool = False, check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False, check_forward_ad: bool = False, check_backward_ad: bool = True, fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:  # fmt: skip
    """Check gradients against central differences; give True, or raise GradcheckError (False without ``raise_exception``).

    Inputs that need gradients should be float64. Every entry is compared, ``fast_mode`` or not; the options after it that torch has
    for its own machinery (batched gradients, forward mode, undefined gradients) are accepted without effect.
    """
    given = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    wanted = [i for i, t in enumerate(given) if isinstance(t, Handle) and t._rg]
    if not wanted:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, but none of the them have requires_grad=True."
        )
    for i in wanted:
        if given[i].dtype.kind == "c":
            raise NotImplementedError("gradcheck takes no complex inputs: check a function of their real and imaginary parts")
        if given[i].dtype.name != "float64":
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. This check will likely fail if "
                "all the inputs are not of double precision floating point or complex. ",
                stacklevel=2,
            )
    outputs = _outputs(func(*given))
    for i in wanted:
        for o, (output, numbers) in enumerate(zip(outputs, _numerical(func, given, i, eps), strict=True)):
            found = _analytical(output, given[i])
            if not np.allclose(found, numbers, rtol, atol, equal_nan=True):
                if not raise_exception:
                    return False
                raise GradcheckError(
                    f"Jacobian mismatch for output {o} with respect to input {i},\nnumerical:{numbers}\nanalytical:{found}\n"
                )
    return True


def gradgradcheck(
    func: Callable[..., Any], inputs: Any, grad_outputs: Any = None, *, eps: float = 1e-6, atol: float = 1e-5, rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False, raise_exception: bool = True, nondet_tol: float = 0.0, check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False, check_batched_grad: bool = False, check_fwd_over_rev: bool = False, check_rev_over_rev: bool = True,
    fast_mode: bool = False, masked: bool = False,
) -> bool:  # fmt: skip
    """Check second gradients against differences of first ones, for drawn ``grad_outputs`` if none are given."""
    given = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    if grad_outputs is None:
        seeds = tuple(draw.randn(*o.shape, dtype=o.dtype).requires_grad_() for o in _outputs(func(*given)))
    else:
        seeds = tuple(grad_outputs) if isinstance(grad_outputs, tuple | list) else (grad_outputs,)
    wanted = [i for i, t in enumerate(given) if isinstance(t, Handle) and t._rg]

    def gradients(*args: Any) -> Any:
        own, cotangents = args[: len(given)], args[len(given) :]
        outs = _outputs(func(*own))
        found = grad(outs, [own[i] for i in wanted], list(cotangents), create_graph=True, allow_unused=True)
        return tuple(create.zeros_like(own[i]) if g is None else g for i, g in zip(wanted, found, strict=True))

    return gradcheck(gradients, (*given, *seeds), eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception)


__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]

"""The tape of before gt was rewritten. Ops record themselves now, and derivatives are declared with them. Next: ``gt.autograd``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gt.autograd import no_grad as _no_grad
from gt.earlier import moved
from gt.ir.blame import warn_user

__getattr__ = moved("gt.client.autograd", no_grad="gt.no_grad")


class AutogradGraph:
    """What is left of the tape: ``backward`` and ``no_grad`` are the tensors' own."""

    tape: tuple[Any, ...] = ()

    def record(self, output: Any, inputs: Sequence[Any], grad_fn: Callable[..., Any]) -> None:
        """Record nothing."""
        warn_user("a tape takes no entries now: write a gt.autograd.Function for a derivative of your own")

    def backward(self, loss: Any) -> None:
        loss.backward()

    def no_grad(self) -> Any:
        return _no_grad()


def get_graph() -> AutogradGraph:
    """Give a graph whose methods are the tensors' own."""
    warn_user("gt.client.autograd.get_graph is no longer there: use loss.backward(), gt.no_grad() and gt.autograd.grad")
    return AutogradGraph()


def add_grad(grad_output: Any) -> list[Any]:
    """Give the gradients of a sum's two operands."""
    _tell("add_grad")
    return [grad_output, grad_output]


def mul_grad(left: Any, right: Any) -> Callable[[Any], list[Any]]:
    """Give what makes the gradients of a product's operands."""
    _tell("mul_grad")
    return lambda grad_output: [grad_output * right, grad_output * left]


def matmul_grad(left: Any, right: Any) -> Callable[[Any], list[Any]]:
    """Give what makes the gradients of a matrix product's operands."""
    _tell("matmul_grad")
    return lambda grad_output: [grad_output @ right.mT, left.mT @ grad_output]


def _tell(name: str) -> None:
    warn_user(f"gt.client.autograd.{name} is not needed now: gt.autograd.grad(outputs, inputs) gives gradients")


__all__ = ["AutogradGraph", "add_grad", "get_graph", "matmul_grad", "mul_grad"]

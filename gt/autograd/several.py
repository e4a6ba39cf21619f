"""``autograd.backward`` and ``autograd.grad``: of several tensors, and of many gradients of them. Next: ``gradients``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.autograd import gradients
from gt.expand import FULL
from gt.functions.shape import stack
from gt.grad_mode import set_grad_enabled
from gt.handle import Handle
from gt.ir.types import got
from gt.recording import record

if TYPE_CHECKING:
    from gt.tensor import Tensor


def backward(
    tensors: Tensor | Sequence[Tensor],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Accumulate the gradients of several tensors, added up, into ``.grad`` of the leaves. Source: torch.autograd.backward."""
    given = grad_tensors if grad_tensors is not None else grad_variables
    roots: list[Any] = _listed(tensors)
    gradients.accumulate(roots, _seeds(roots, given), inputs, create_graph if retain_graph is None else retain_graph, create_graph)


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """Give the gradients of ``outputs`` with respect to ``inputs``, leaving ``.grad`` alone. Source: torch.autograd.grad.

    ``is_grads_batched``: ``grad_outputs`` have a first dim more, over which gradients are computed, one backward each.
    ``only_inputs`` changes nothing: nothing else gets gradients. Errors: RuntimeError if an input was not used, unless ``allow_unused``.
    """
    if not only_inputs:
        warnings.warn(
            "only_inputs argument is deprecated and is ignored now (defaults to True). To accumulate gradient for other parts of the "
            "graph, please use gt.autograd.backward.",
            FutureWarning,
            stacklevel=2,
        )
    keep = create_graph if retain_graph is None else retain_graph
    unused = materialize_grads if allow_unused is None else allow_unused
    if materialize_grads and not unused:
        raise ValueError("Expected allow_unused to be True or not passed when materialize_grads=True, but got: allow_unused=False.")
    if is_grads_batched:
        given = _listed(grad_outputs)
        count: int = next(g._type.shape[0] for g in given if g is not None)
        rows = []
        for i in range(count):
            seeds = [None if g is None else g[i] for g in given]
            rows.append(grad(outputs, inputs, seeds, keep or i < count - 1, create_graph, True, unused, False, materialize_grads))
        return tuple(None if column[0] is None else stack(column) for column in zip(*rows, strict=True))
    roots, targets = _listed(outputs), _listed(inputs)
    if not targets:
        raise RuntimeError("`inputs` argument to `grad()` cannot be empty.")
    seeds = _seeds(roots, grad_outputs)
    for t in targets:
        if not isinstance(t, Handle):
            raise TypeError(f"expected Tensors to differentiate by, but got {got(t)}")
    if not all(t._rg for t in targets):
        raise RuntimeError("One of the differentiated Tensors does not require grad")
    with set_grad_enabled(create_graph):
        out: list[Any] = []
        for t, g in zip(targets, before_hooks(roots, seeds, targets, keep, create_graph), strict=True):
            if g is None and materialize_grads:
                g = record(FULL, (), (("shape", t._type.shape), ("value", 0.0), ("dtype", t._type.dtype)))
                g.requires_grad_(create_graph)
            elif g is None and not unused:
                raise RuntimeError(
                    f"The differentiated Tensor at index {len(out)} appears to not have been used in the graph. "
                    "Set allow_unused=True if this is the desired behavior."
                )
            else:
                g = g if g is None else gradients.through_hooks(t, g, create_graph)
            out.append(g)
    return tuple(out)


def before_hooks(
    roots: Sequence[Tensor], seeds: Sequence[Any], targets: Sequence[Tensor], retain: bool, create_graph: bool
) -> list[Tensor | None]:
    """Give gradients as they are before the hooks of the leaves among ``targets``: parts of them, where a backward adds more."""
    with set_grad_enabled(create_graph):
        found = {id(t): g for t, g in gradients._gradients(roots, seeds, targets, retain, create_graph)} if roots else {}
    return [found.get(id(t)) for t in targets]


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if hasattr(tensors, "requires_grad") else list(tensors)


def _seeds(roots: list[Any], given: Any) -> list[Any]:
    """Give the gradient of each tensor to start from. Errors: RuntimeError if it is missing or does not fit."""
    seeds = [None] * len(roots) if given is None else _listed(given)
    if len(seeds) != len(roots):
        raise RuntimeError(f"got {len(roots)} tensors and {len(seeds)} gradients")
    return [gradients._check_seed(root, seed, at) for at, (root, seed) in enumerate(zip(roots, seeds, strict=True))]


__all__ = ["backward", "grad"]

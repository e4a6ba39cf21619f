"""``autograd.backward`` and ``autograd.grad``: of several tensors, and of many gradients of them. Next: ``gradients``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.autograd import gradients
from gt.functions.shape import stack
from gt.handle import Handle

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
    roots: list[Any] = [tensors] if isinstance(tensors, Handle) else list(tensors)
    seeds: list[Any] = [None] * len(roots) if given is None else [given] if isinstance(given, Handle) else list(given)
    wanted: Any = [inputs] if isinstance(inputs, Handle) else inputs
    if inputs is not None and not wanted:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    if len(seeds) != len(roots):
        raise RuntimeError(f"got {len(roots)} tensors and {len(seeds)} gradients")
    keep = create_graph if retain_graph is None else retain_graph
    checked = [gradients._check_seed(root, seed) for root, seed in zip(roots, seeds, strict=True)]
    for tensor, g in gradients._gradients(roots, checked, wanted, keep, create_graph):
        gradients._accumulate(tensor, g, create_graph)


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
    unused = materialize_grads if allow_unused is None else allow_unused
    if not is_grads_batched:
        return gradients.grad(outputs, inputs, grad_outputs, retain_graph, create_graph, unused, materialize_grads)
    given: list[Any] = [grad_outputs] if isinstance(grad_outputs, Handle) else list(grad_outputs)
    count: int = next(g._type.shape[0] for g in given if g is not None)
    keep = create_graph if retain_graph is None else retain_graph
    rows = []
    for i in range(count):
        seeds = [None if g is None else g[i] for g in given]
        rows.append(gradients.grad(outputs, inputs, seeds, keep or i < count - 1, create_graph, unused, materialize_grads))
    return tuple(None if column[0] is None else stack(column) for column in zip(*rows, strict=True))


__all__ = ["backward", "grad"]

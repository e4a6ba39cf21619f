"""Gradients on the client: torch's tape semantics over recorded traces.

Owns: ``backward`` and hooks. How gradients are computed is the ``autodiff`` pass's: a backward over one pending trace
is recorded as a single ``grad`` node. Next: ``several`` (``grad``), ``tape`` (what a backward reaches), ``expand``
(when one node will not do).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gt.expand import Hook, call_hook, expand, ones, own
from gt.function import Function, FunctionCtx, free_tape
from gt.grad_mode import enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled
from gt.handle import Handle
from gt.hooks import RemovableHandle, add
from gt.ir.ops import OPS
from gt.ir.types import got
from gt.operand import ValueRef
from gt.recording import record
from gt.tape import Key, history_of, key_of, walk
from gt.trace import holding, state

if TYPE_CHECKING:
    from gt.tensor import Tensor

GRAD, ADD = OPS["grad"], OPS["add"]


def backward(
    self: Tensor,
    gradient: Tensor | None = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Tensor | Sequence[Tensor] | None = None,
) -> None:
    """Accumulate the gradient of this tensor into ``.grad`` of the leaves it was computed from.

    Errors: RuntimeError if it needs no gradient, is not a scalar and ``gradient`` is not given, or was walked before without
    ``retain_graph``. Source: torch.Tensor.backward.
    """
    accumulate([self], [_check_seed(self, gradient)], inputs, create_graph if retain_graph is None else retain_graph, create_graph)


def accumulate(
    roots: Sequence[Tensor], seeds: Sequence[Any], inputs: Tensor | Sequence[Tensor] | None, retain: bool, create_graph: bool
) -> None:
    """Add gradients to ``.grad``: of ``inputs``, or of all leaves. Errors: RuntimeError where ``inputs`` is empty."""
    wanted: Any = [inputs] if isinstance(inputs, Handle) else inputs
    if wanted is not None and not wanted:
        raise RuntimeError("`inputs` argument to `backward()` cannot be empty.")
    plain = state.recorder is None
    with set_grad_enabled(create_graph):
        for tensor, g in _gradients(roots, seeds, wanted, retain, create_graph):
            if plain and tensor._grad is None and not tensor._hooks and not tensor._after:
                tensor._grad = g
            else:
                _accumulate(tensor, g, create_graph)


def _check_seed(root: Tensor, gradient: Any, at: int = 0) -> Any:
    if not isinstance(root, Handle):
        raise TypeError(f"expected a Tensor to differentiate, but got {got(root)}")
    if not root._rg:
        raise RuntimeError(f"element {at} of tensors does not require grad and does not have a grad_fn")
    if gradient is None:
        if root._type.numel != 1:
            raise RuntimeError("grad can be implicitly created only for scalar outputs")
        if root._type.dtype.kind == "c":
            raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {root._type.dtype!r}")
        return None if not root._type.shape else ones(root._type)
    if not isinstance(gradient, Handle):
        raise TypeError(f"gradients can be either Tensors or None, but got {got(gradient)}")
    if gradient._type.shape != root._type.shape:
        raise RuntimeError(
            f"Mismatch in shape: grad_output[{at}] has a shape of {gradient.shape} and output[{at}] has a shape of {root.shape}."
        )
    if (gradient._type.dtype.kind == "c") != (root._type.dtype.kind == "c"):
        raise RuntimeError(
            "For complex Tensors, both grad_output and output are required to have the same dtype. Mismatch in dtype: "
            f"grad_output[{at}] has a dtype of {gradient.dtype!r} and output[{at}] has a dtype of {root.dtype!r}."
        )
    return gradient.to(root._type.dtype)


def _gradients(
    roots: Sequence[Tensor], seeds: Sequence[Any], targets: Sequence[Tensor] | None, retain: bool, create_graph: bool
) -> list[tuple[Tensor, Tensor]]:
    """Give (tensor, gradient) for each target that is reached, or for each leaf if no targets are named.

    The caller records with gradients if ``create_graph``, without otherwise.
    """
    direct = [
        (root, ones(root._type) if seed is None else own(seed, create_graph))
        for root, seed in zip(roots, seeds, strict=True)
        if root._leaf
    ]
    if direct:  # a leaf as an output: its gradient is the seed
        wanted = None if targets is None else {id(t) for t in targets}
        found = [(t, g) for t, g in direct if wanted is None or id(t) in wanted]
        rest = [(root, seed) for root, seed in zip(roots, seeds, strict=True) if not root._leaf]
        if rest:
            found += _gradients([r for r, _ in rest], [g for _, g in rest], targets, retain, create_graph)
        return _merge([t for t, _ in found], [g for _, g in found])
    with holding():
        return _gradients_of(roots, seeds, targets, retain, create_graph)


def _gradients_of(
    roots: Sequence[Tensor], seeds: Sequence[Any], targets: Sequence[Tensor] | None, retain: bool, create_graph: bool
) -> list[tuple[Tensor, Tensor]]:
    keys = [key_of(root) for root in roots]
    if any(key is None for key in keys):
        raise RuntimeError("the graph of this tensor is gone: it was freed by an earlier backward()")
    asked = {id(t): history_of(t) for t in targets or () if not t._leaf}
    chosen = None if targets is None else {id(t) for t in targets}
    reach = walk([k for k in keys if k is not None], [k for k in asked.values() if k is not None], chosen)
    leaves = reach.leaves
    if targets is not None and chosen is not None:
        leaves = [(key, t) for key, t in leaves if id(t) in chosen and t._leaf]
        leaves += [(key, t) for t in targets if not t._leaf and (key := asked[id(t)]) in reach.reached]
    trace = state.trace
    simple = len(roots) == 1 and set(reach.entries) == {trace} and not reach.hooked and not create_graph and not state.check_nan
    if simple and leaves:
        found = _record_grad(roots[0], seeds[0], leaves)
    elif leaves:
        pairs = expand([k for k in keys if k is not None], seeds, reach, leaves, create_graph)
        found = _merge([t for t, _ in pairs], [g for _, g in pairs])
    else:
        found = []
    if not retain:
        free_tape(reach)
    return found


def _record_grad(root: Tensor, seed: Any, leaves: list[tuple[Key, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Record one grad node: the whole tape is in the pending trace."""
    refs = [ValueRef(trace, index, t._type) for (trace, index), t in leaves]
    operands = (root, *refs) if seed is None else (root, seed, *refs)
    out = record(GRAD, operands, (("has_seed", seed is not None),))
    tensors, grads = [t for _, t in leaves], out if isinstance(out, tuple) else (out,)
    if len({id(t) for t in tensors}) == len(tensors):
        return list(zip(tensors, grads, strict=True))
    return _merge(tensors, grads)


def _merge(tensors: Sequence[Tensor], grads: Sequence[Any]) -> list[tuple[Tensor, Tensor]]:
    """Add up the gradients of a leaf that was reached through several values."""
    found: dict[int, tuple[Tensor, Any]] = {}
    for t, g in zip(tensors, grads, strict=True):
        if id(t) in found:
            g = record(ADD, (found[id(t)][1], g))
        found[id(t)] = (t, g)
    return list(found.values())


def through_hooks(tensor: Tensor, g: Tensor, create_graph: bool) -> Tensor:
    """Give the gradient of a leaf as its hooks, which may keep what they see, leave it."""
    if not tensor._hooks or not tensor._leaf:
        return g
    for hook in list(tensor._hooks.values()):
        g = call_hook(hook, g)
    return own(g, create_graph)


def _accumulate(tensor: Tensor, g: Tensor, create_graph: bool) -> None:
    g = through_hooks(tensor, g, create_graph)
    if state.recorder is not None:
        state.recorder.grad_of(tensor)
    if tensor._grad is None:
        tensor._grad = g
    elif create_graph:
        tensor._grad = tensor._grad + g
    else:
        tensor._grad._assign(record(ADD, (tensor._grad, g)))
    for after in list(tensor._after.values()) if tensor._after else ():
        if after(tensor) is not None:
            raise RuntimeError("Tensor post accumulate grad hooks should return None.")


# -- hooks


def register_hook(self: Tensor, hook: Hook) -> RemovableHandle:
    """Call ``hook(grad)`` when the gradient of this tensor is known; what it returns, if not None, replaces it."""
    if not self._rg:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    key = None if self._leaf else history_of(self)
    if key is not None:
        key[0].hooks = True
        # Those of what it is now: a change in place begins another table. They outlive the tensor, as torch's.
        self._hooks = key[0].hooked.setdefault(key[1], {})
    elif self._hooks is None:
        self._hooks = {}
    return add(self._hooks, hook)


def register_post_accumulate_grad_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> RemovableHandle:
    """Call ``hook(tensor)`` each time ``backward`` has accumulated the gradient of this leaf."""
    if not self._rg:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if not self._leaf:
        raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
    if self._after is None:
        self._after = {}
    return add(self._after, hook)


def retain_grad(self: Tensor) -> None:
    """Keep the gradient of a tensor that is not a leaf in ``.grad``."""
    if not self._rg:
        raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
    if self._leaf or self._retains:
        return
    self._retains = True
    key = history_of(self)
    if key is not None:
        key[0].leaves[key[1]] = (weakref.ref(self), self._version)


class set_detect_anomaly:  # noqa: N801 - torch's name
    """Look for NaN in every gradient, or no more; also for a ``with`` block."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = state.anomaly, state.check_nan
        state.anomaly, state.check_nan = mode, mode and check_nan

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        state.anomaly, state.check_nan = self._before


class detect_anomaly:  # noqa: N801 - torch's name
    """Raise, naming the forward line, when a backward makes a NaN. Slow: every gradient is read."""

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan

    def __enter__(self) -> None:
        self._mode = set_detect_anomaly(True, self._check_nan)

    def __exit__(self, *_: object) -> None:
        self._mode.__exit__()


def is_anomaly_enabled() -> bool:
    """Say whether anomaly mode is on in this thread."""
    return state.anomaly


__all__ = [
    "Function", "FunctionCtx", "detect_anomaly", "is_anomaly_enabled", "set_detect_anomaly",
    "Hook", "backward", "enable_grad", "inference_mode", "is_grad_enabled", "is_inference_mode_enabled", "no_grad", "register_hook",
    "register_post_accumulate_grad_hook", "retain_grad",
    "set_grad_enabled",
]  # fmt: skip

"""``Optimizer``: parameter groups, state, and the edge after a step.

Owns: what all optimizers share. A subclass says its defaults, its per-parameter state and how a group steps.
Next: ``sgd``, ``gt.ir.ops.optim`` (meaning).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from gt import trace as tracing
from gt.autograd import no_grad
from gt.handle import Handle
from gt.trace import state


class Optimizer:
    """Base of all optimizers. Reading the learning rate anew each step, it never makes a new graph."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.state: dict[Any, dict[str, Any]] = defaultdict(dict)
        self.param_groups: list[dict[str, Any]] = []
        if isinstance(params, Handle):
            raise TypeError("params argument given to the optimizer should be an iterable of Tensors or dicts, but got gt.Tensor")
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        group = dict(param_group)
        params = group["params"]
        group["params"] = [params] if isinstance(params, Handle) else list(params)
        for p in group["params"]:
            if isinstance(p, tuple):
                raise TypeError("optimizer got named parameters: pass model.parameters()")
            if not isinstance(p, Handle):
                raise TypeError(f"optimizer can only optimize Tensors, but one of the params is {type(p).__name__}")
            if not p._leaf:
                raise ValueError("can't optimize a non-leaf Tensor")
        known = {id(p) for g in self.param_groups for p in g["params"]}
        if any(id(p) in known for p in group["params"]):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append({**group, **{k: v for k, v in self.defaults.items() if k not in group}})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or zero them. Work pending since a step is submitted, without the gradients."""
        for group in self.param_groups:
            for p in group["params"]:
                if p._grad is not None:
                    if set_to_none:
                        p._grad = None
                    else:
                        with no_grad():
                            p._grad.zero_()
        if state.trace.edge:
            tracing.settle(state.trace, "zero_grad() after optimizer.step()")

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters from their gradients. The pending work is submitted at the next read, zero_grad or op."""
        loss = closure() if closure is not None else None
        with no_grad():
            for group in self.param_groups:
                params = [p for p in group["params"] if p._grad is not None]
                if params:
                    self._step(group, params)
        state.trace.edge = True
        return loss

    def _step(self, group: dict[str, Any], params: list[Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not say how it steps")

    def state_dict(self) -> dict[str, Any]:
        """Give state by parameter number, and the groups with numbers for parameters, as torch."""
        numbers = {id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        groups = [{**g, "params": [numbers[id(p)] for p in g["params"]]} for g in self.param_groups]
        return {"state": {numbers[id(p)]: dict(s) for p, s in self.state.items()}, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave. Errors: ValueError if groups or their sizes differ."""
        if len(state_dict["param_groups"]) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        params = [p for g in self.param_groups for p in g["params"]]
        for own, given in zip(self.param_groups, state_dict["param_groups"], strict=True):
            if len(own["params"]) != len(given["params"]):
                raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
            own.update({k: v for k, v in given.items() if k != "params"})
        self.state = defaultdict(dict, {params[int(i)]: dict(s) for i, s in state_dict["state"].items()})

    def __repr__(self) -> str:
        groups = []
        for i, g in enumerate(self.param_groups):
            options = "\n".join(f"    {k}: {v}" for k, v in sorted(g.items()) if k != "params")
            groups.append(f"Parameter Group {i}\n{options}")
        return f"{type(self).__name__} (\n" + "\n".join(groups) + "\n)"

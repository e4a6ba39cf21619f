"""``Optimizer``: parameter groups, state, hooks, and the edge after a step.

Owns: what all optimizers share. A subclass says its defaults, its per-parameter state, and how a group steps.
Next: ``sgd``, ``adam``, ``gt.ir.ops.optim`` (meaning).

The step count of a parameter is a number here and a 0-d tensor to who looks at it (``parameter_state``). Learning rates and step counts
are run-time scalars: changing them makes no new graph.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

from gt import session as sessions
from gt.autograd import enable_grad, no_grad
from gt.functions import create
from gt.functions.numeric import view_as_complex, view_as_real
from gt.functions.promote import cast, operand
from gt.handle import Handle
from gt.hooks import RemovableHandle, Table, add
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.types import Scalar, float32, float64
from gt.operand import Number
from gt.optim.parameter_state import COUNTS, ParameterState, count_of, number
from gt.recording import record, record_into
from gt.tensor import Tensor
from gt.trace import apart, replaced, settle, state

Group = dict[str, Any]
INF = math.inf
stored = dict.__getitem__  # what is there, without making a count a tensor


def starts_apart() -> bool:
    """Whether what a first step finds is made by runs of its own, so that it is the program that all later ones are.

    Not on several workers, where the step says how parameters and state are split; nor before anything has run, as all of that is
    one program.
    """
    session = sessions.running()
    return session is not None and session.num_workers() == 1


def starting() -> AbstractContextManager[None]:
    """Have new state made apart."""
    return apart("the state of an optimizer") if starts_apart() else nullcontext()


class Optimizer:
    """Base of all optimizers."""

    _takes_complex = True  # as pairs of real numbers, as torch's
    _numbers: list[Scalar] | None = None  # while a step is replayed: its learning rate, counts and what follows from them

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.state: dict[Any, dict[str, Any]] = defaultdict(self._own_state)
        self.param_groups: list[Group] = []
        self._hooks: dict[str, Table] = defaultdict(dict)
        if isinstance(params, Handle):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, but got torch.FloatTensor"
                if params.dtype is float32
                else f"params argument given to the optimizer should be an iterable of Tensors or dicts, but got {type(params).__name__}"
            )
        if defaults.get("differentiable"):
            raise NotImplementedError(
                "differentiable=True is not supported: write the update with tensor operations to differentiate it"
            )
        groups = list(params)
        if not groups:
            raise ValueError("optimizer got an empty parameter list")
        for group in groups if isinstance(groups[0], dict) else [{"params": groups}]:
            self.add_param_group(group)
        if starts_apart() and any(p._trace is state.trace for group in self.param_groups for p in group["params"]):
            settle(state.trace, "an optimizer of parameters that are still to be made")

    # -- groups

    def add_param_group(self, param_group: Group) -> None:
        """Add parameters with options of their own."""
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        given = param_group["params"]
        if isinstance(given, set):
            raise TypeError(
                "optimizer parameters need to be organized in ordered collections, but the ordering of tensors in sets will change between "
                "runs. Please use a list instead."
            )
        _name_apart(param_group, [given] if isinstance(given, Handle) else list(given))
        params = param_group["params"]
        for p in params:
            if not isinstance(p, Handle):
                raise TypeError(
                    f"optimizer can only optimize Tensors, but one of the params is {type(p).__module__}.{type(p).__name__}"
                )
            if not (p._leaf or p._retains):
                raise ValueError("can't optimize a non-leaf Tensor")
            if p.is_complex() and not self._takes_complex:
                raise NotImplementedError(f"{type(self).__name__} does not take complex parameters: optimize the real and imaginary parts")
        for name, default in self.defaults.items():
            param_group.setdefault(name, default)
        if len(params) != len({id(p) for p in params}):
            warnings.warn(
                "optimizer contains a parameter group with duplicate parameters; in future, this will cause an error; see "
                "github.com/pytorch/pytorch/issues/40967 for more information",
                stacklevel=3,
            )
        for group in self.param_groups:
            if ("param_names" in param_group) != ("param_names" in group):
                word = "with names" if "param_names" in param_group else "without names"
                raise ValueError(
                    f"all optimizer param groups should be with/without names. cannot add param group {word} to the optimizer"
                )
        known = {id(p) for g in self.param_groups for p in g["params"]}
        if any(id(p) in known for p in params):
            raise ValueError("some parameters appear in more than one parameter group")
        self.param_groups.append(param_group)
        replaced()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or zero them. Work pending since a step is submitted, without the gradients, unless much would be kept."""
        recorder = state.recorder
        for group in self.param_groups:
            for p in group["params"]:
                if recorder is not None:
                    recorder.grad_of(p)
                if p._grad is not None:
                    if set_to_none:
                        p._grad = None
                    else:
                        with no_grad():
                            p._grad.zero_()
        if state.trace.edge and not state.trace.waits():
            settle(state.trace, "zero_grad() after optimizer.step()")

    # -- stepping

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters from their gradients. The pending work is submitted at the next read, zero_grad or op."""
        for hook in list(self._hooks["step_pre"].values()):
            hook(self, (closure,) if closure is not None else (), {})
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            for group in self.param_groups:
                if state.recorder is not None:
                    for p in group["params"]:
                        state.recorder.grad_of(p)
                params = [p for p in group["params"] if p._grad is not None]
                if params:
                    self._step_recorded(group, params)
        state.trace.end_step()
        self._opt_called = True
        for hook in list(self._hooks["step_post"].values()):
            hook(self, (closure,) if closure is not None else (), {})
        return loss

    def _step_recorded(self, group: Group, params: list[Any]) -> None:
        if state.recorder is None:
            self._step(group, params)
        else:
            with state.recorder.fresh(partial(self._numbers_of, group, params)):
                self._step(group, params)

    def _numbers_of(self, group: Group, params: list[Any]) -> list[Scalar]:
        """Count a step and give its numbers as ``_step`` would record them, without recording anything."""
        self._numbers = []
        try:
            self._step(group, params)
            return self._numbers
        finally:
            self._numbers = None

    def _step(self, group: Group, params: list[Any]) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not say how it steps")

    def _counted(self, params: list[Any], start: Callable[[Any], dict[str, Any]]) -> list[tuple[float, list[Any]]]:
        """Count a step for each parameter, starting the state of new ones. Gives parameters by their count."""
        by_count: dict[float, list[Any]] = {}
        owns = [self.state[p] for p in params]
        if not all(owns):
            with starting():
                for p, own in zip(params, owns, strict=True):
                    if not own:
                        own.update({"step": 0.0, **start(p)})
        for p, own in zip(params, owns, strict=True):
            count = stored(own, "step")
            own["step"] = count = (count if count.__class__ is float else count_of(own)) + 1
            if count in by_count:
                by_count[count].append(p)
            else:
                by_count[count] = [p]
        return list(by_count.items())

    def _record(self, op: str, params: list[Any], states: list[str], scalars: Iterable[Any], attrs: Attrs) -> None:
        """Record one node over parameters of each dtype, and take its results for parameters and states."""
        numbers = [scalar(s) for s in scalars]
        if self._numbers is not None:
            self._numbers += [n.value for n in numbers if isinstance(n, Number)] * len({p._type.dtype for p in params})
            return
        by_dtype: dict[Any, list[Any]] = {}
        for p in params:
            by_dtype.setdefault(p._type.dtype, []).append(p)
        for each in by_dtype.values():
            owns = [self.state[p] for p in each] if states else []
            held = [stored(own, name) for name in states for own in owns]
            targets = [*each, *held]
            inputs = (*each, *[p._grad for p in each], *held, *numbers)
            update(OPS[op], inputs, (("num", len(each)), *attrs), targets)

    # -- hooks

    def _hook(self, kind: str, hook: Any, prepend: bool = False) -> RemovableHandle:
        return add(self._hooks[kind], hook, prepend)

    def register_step_pre_hook(self, hook: Any) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` before each step."""
        return self._hook("step_pre", hook)

    def register_step_post_hook(self, hook: Any) -> RemovableHandle:
        """Call ``hook(optimizer, args, kwargs)`` after each step."""
        return self._hook("step_post", hook)

    def register_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` before a state dict is made."""
        return self._hook("state_dict_pre", hook, prepend)

    def register_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` on a new state dict; what it returns, if not None, replaces it."""
        return self._hook("state_dict_post", hook, prepend)

    def register_load_state_dict_pre_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer, state_dict)`` before it is loaded; what it returns, if not None, replaces it."""
        return self._hook("load_pre", hook, prepend)

    def register_load_state_dict_post_hook(self, hook: Any, prepend: bool = False) -> RemovableHandle:
        """Call ``hook(optimizer)`` when a state dict is loaded."""
        return self._hook("load_post", hook, prepend)

    # -- state dicts

    def state_dict(self) -> dict[str, Any]:
        """Give state by parameter number, and the groups with numbers for parameters, as torch."""
        for hook in list(self._hooks["state_dict_pre"].values()):
            hook(self)
        numbers = {id(p): i for i, p in enumerate(chain.from_iterable(g["params"] for g in self.param_groups))}
        groups = [
            {**{k: v for k, v in g.items() if k != "params"}, "params": [numbers[id(p)] for p in g["params"]]}
            for g in self.param_groups
        ]
        out: dict[str, Any] = {
            "state": {numbers[id(p)]: dict(s) for p, s in self.state.items()},
            "param_groups": groups,
        }
        for hook in list(self._hooks["state_dict_post"].values()):
            changed = hook(self, out)
            out = out if changed is None else changed
        return out

    @property
    def _counts(self) -> bool:
        """Say whether it is one of gt's own, which count steps in Python numbers, and not one that does its own ``step``."""
        return type(self)._step is not Optimizer._step

    @property
    def _own_state(self) -> Callable[..., dict[str, Any]]:
        """Give the class of what is kept of one parameter."""
        return ParameterState if self._counts else dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, here or in torch. Errors: ValueError if groups or their sizes differ."""
        state_dict = dict(state_dict)
        for hook in list(self._hooks["load_pre"].values()):
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        saved = state_dict["param_groups"]
        if len(saved) != len(self.param_groups):
            raise ValueError("loaded state dict has a different number of parameter groups")
        if any(len(a["params"]) != len(b["params"]) for a, b in zip(self.param_groups, saved, strict=True)):
            raise ValueError("loaded state dict contains a parameter group that doesn't match the size of optimizer's group")
        given = chain.from_iterable(g["params"] for g in saved)
        by_number = dict(zip(given, chain.from_iterable(g["params"] for g in self.param_groups), strict=True))
        taken = {by_number[i]: self._own_state(_taken(by_number[i], s, self._counts)) for i, s in state_dict["state"].items()}
        self.state = defaultdict(self._own_state, taken)
        groups = []
        for own, new in zip(self.param_groups, saved, strict=True):
            names = {"param_names": own["param_names"]} if "param_names" in own and "param_names" not in new else {}
            rest = {k: copy.deepcopy(v) for k, v in new.items() if k != "params"}
            groups.append({**self.defaults, **rest, **names, "params": own["params"]})
        self.param_groups = groups
        replaced()
        for hook in list(self._hooks["load_post"].values()):
            hook(self)

    def __repr__(self) -> str:
        text = type(self).__name__ + " ("
        for i, g in enumerate(self.param_groups):
            text += f"\nParameter Group {i}\n" + "".join(f"    {k}: {g[k]}\n" for k in sorted(g) if k != "params")
        return text + ")"


def update(op: OpDef, inputs: tuple[Any, ...], attrs: Attrs, targets: list[Any]) -> None:
    """Record one node over tensors of one dtype and let each target take its result."""
    if targets[0]._type.dtype.kind == "c":
        for target, value in zip(targets, in_pairs(op, inputs, attrs, targets), strict=True):
            target._assign(value)
        return
    if all([t._base is None for t in targets]):
        record_into(op, inputs, attrs, targets)
        return
    out = record(op, inputs, attrs)  # a view writes its base too
    for target, value in zip(targets, out if isinstance(out, tuple) else (out,), strict=True):
        target._assign(value)


def in_pairs(op: OpDef, inputs: tuple[Any, ...], attrs: Attrs, like: list[Any]) -> list[Any]:
    """Record one node in which complex tensors are pairs of real numbers; results are complex where ``like`` is."""
    given = tuple(view_as_real(t.resolve_conj()) if isinstance(t, Tensor) and t._type.dtype.kind == "c" else t for t in inputs)
    out = record(op, given, attrs)
    values = out if isinstance(out, tuple) else (out,)
    return [view_as_complex(v) if t._type.dtype.kind == "c" else v for t, v in zip(like, values, strict=True)]


def _name_apart(group: Group, given: list[Any]) -> None:
    """Take names off parameters given as (name, parameter)."""
    names = [p[0] for p in given if isinstance(p, tuple)]
    group["params"] = [p[1] if isinstance(p, tuple) else p for p in given]
    if names and len(names) != len(given):
        raise ValueError("all optimizer params should be with/without names. Some param names are missing")
    if names:
        group["param_names"] = names


def scalar(value: Any) -> Any:
    """Give a learning rate or step count as a run-time scalar, in the precision torch computes it in."""
    return cast(value.reshape(()), float64) if isinstance(value, Tensor) else operand(float(value), float64)


def _taken(p: Any, given: dict[str, Any], counts: bool) -> dict[str, Any]:
    """Give a parameter's state in its dtype, as values of its own."""
    out: dict[str, Any] = {}
    for key, value in given.items():
        if key in COUNTS and counts:
            out[key] = number(value)
        elif key == "step" and isinstance(value, Handle):
            out[key] = value.detach().clone()  # type: ignore[attr-defined]
        elif isinstance(value, Handle):
            out[key] = cast(value.detach(), p.dtype if value.is_floating_point() else value.dtype).clone()
        elif hasattr(value, "__array__"):
            held = value
            if hasattr(value, "detach"):  # torch's
                held = value.detach().cpu()
                held = (held if held.is_complex() else held.float()).numpy()
            out[key] = create.tensor(held, dtype=p.dtype)
        else:
            out[key] = value
    return out


def check(lr: Any, **limits: tuple[Any, float]) -> None:
    """Check a learning rate and other (value, upper limit) options; names and texts are torch's."""
    if isinstance(lr, Handle):
        if lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
    elif not lr >= 0.0:
        raise ValueError(f"Invalid learning rate: {lr}")
    for name, (value, limit) in limits.items():
        if not 0.0 <= value < limit and not (value == limit == 1.0 and name == "rho"):
            raise ValueError(f"Invalid {name.replace('__', ' ')} value: {value}")


def check_betas(betas: tuple[float, float]) -> None:
    """Check two decay rates."""
    for i, beta in enumerate(betas):
        if not 0.0 <= beta < 1.0:
            raise ValueError(f"Invalid beta parameter at index {i}: {beta}")

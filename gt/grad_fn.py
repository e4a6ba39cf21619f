"""``grad_fn``: what made a tensor, as a thing to look at: its name, and what made its operands.

Owns: reading the tape. Must not know: how gradients are computed. Next: ``trace`` (where entries are), ``tape`` (what a backward does).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from gt.ir.opdef import OpDef
from gt.rule import RULES, Rule
from gt.trace import Trace


class GradFn:
    """An op on the tape, of a class with its name. ``name()`` and ``next_functions`` as torch's; read only."""

    __slots__ = ("_trace", "_entry", "_operands", "variable")

    def __init__(self, trace: Trace | None, entry: int, operands: tuple[int, ...] = (), variable: Any = None) -> None:
        self._trace, self._entry, self._operands = trace, entry, operands
        self.variable = variable  # the leaf that AccumulateGrad is of

    def name(self) -> str:
        """Give the op's name with Backward0 behind it; torch::autograd::AccumulateGrad for a leaf."""
        return type(self).__name__ if self.variable is None else "torch::autograd::AccumulateGrad"

    @property
    def next_functions(self) -> tuple[tuple[GradFn | None, int], ...]:
        """Give, for each operand, what made it, and which of its results it is; (None, 0) where no gradient goes."""
        if self._trace is None:
            return ()
        return tuple(_made_by(self._trace, id) for id in self._operands)

    def _attrs(self) -> dict[str, Any]:
        """Give the attributes of the op."""
        return {} if self._trace is None else dict(RULES[self._trace.code[self._entry][0] >> 1].attrs)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """Refuse an unknown name, and say where hooks go."""
        hint = f": register hooks on tensors, with x.{name.replace('pre', '')}(hook)" if name in ("register_hook", "register_prehook") else ""
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GradFn) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, int]:
        return id(self._trace), self._entry, id(self.variable)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} object at {hash(self) & (1 << 48) - 1:#x}>"


@cache
def _class(name: str) -> type[GradFn]:
    return type(name, (GradFn,), {"__slots__": ()})


def grad_fn_of(trace: Trace, id: int) -> GradFn | None:
    """Give what made a value of a trace."""
    return _made_by(trace, id)[0]


def _made_by(trace: Trace, id: int) -> tuple[GradFn | None, int]:
    leaf = trace.leaves.get(id)
    tensor = leaf[0]() if leaf is not None else None
    if tensor is not None and tensor._leaf:
        return _class("AccumulateGrad")(None, -1, variable=tensor), 0
    while id in trace.links:
        trace, id = trace.links[id]
    first = 0
    for entry, (code, operands) in enumerate(trace.code):
        rule = RULES[code >> 1]
        if id < first + len(rule.outputs):
            if not code & 1:
                return None, 0
            return _class(_name(trace, entry, rule))(trace, entry, _operands(rule, operands)), id - first
        first += len(rule.outputs)
    return None, 0


def _name(trace: Trace, entry: int, rule: Rule) -> str:
    assert rule.op is not None
    if entry in trace.custom:
        return f"{trace.custom[entry][0].__name__}Backward"
    return backward_name(rule.op)


def backward_name(op: OpDef) -> str:
    """Give the name that torch would print for the backward of an op."""
    return "".join(word.capitalize() for word in op.name.split("_")) + "Backward0"


def _operands(rule: Rule, operands: tuple[int, ...]) -> tuple[int, ...]:
    """Give the operands of an entry; of a user's function its inputs alone."""
    return operands[: dict(rule.attrs).get("num_inputs", len(operands))]  # type: ignore[index, misc]

"""Rules: ops on given attributes and operand types, with the types of their results. Each is there once.

Owns: ``Rule``, ``RULES``, ``rule_of``; the entries of a trace's inputs and numbers, which are rules without an op. One look-up in a
dictionary is shape inference. Must not know: traces, values. Next: ``trace`` (whose entries name rules), ``gt.ir.opdef`` (what infers).
"""

from __future__ import annotations

from typing import Any

from gt.ir.blame import Located, users_line
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef
from gt.ir.types import DTYPES, TensorType
from gt.runtime.session import CallLock


class Rule:
    """An op on given attributes and types. ``id`` is even; ``id + 1`` in an entry says the entry is on the tape."""

    __slots__ = ("id", "taped", "op", "attrs", "inputs", "outputs", "single", "count", "differentiable", "saved", "kept")

    def __init__(self, op: OpDef | None, attrs: Attrs, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...]):
        self.id = 2 * len(RULES)
        self.taped = self.id + 1
        self.op, self.attrs, self.inputs, self.outputs = op, attrs, inputs, outputs
        self.single = outputs[0] if len(outputs) == 1 else None
        self.count = len(outputs)
        self.differentiable = op is not None and (op.vjp is not None or op.decompose is not None)
        self.saved: dict[tuple[bool, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {}  # what the vjp reads
        self.kept: dict[Any, tuple[tuple[int, ...], tuple[int, ...]]] = {}  # what torch would save
        RULES.append(self)


RULES: list[Rule] = []
rules_by_key: dict[Any, Rule] = {}
_lock = CallLock()


def rule_of(op: OpDef, attrs: Attrs, inputs: tuple[TensorType, ...]) -> Rule:
    key = (op, attrs, *inputs)
    found = rules_by_key.get(key)
    if found is None:
        try:
            outputs = op.infer_types(inputs, attrs)
        except Exception as error:  # torch's words, and then what torch would leave out
            if not isinstance(error, Located):
                error.add_note(f"in {op.name}({', '.join(map(repr, inputs))}) at {users_line()}")
            raise
        with _lock:
            found = rules_by_key.get(key) or rules_by_key.setdefault(key, Rule(op, attrs, inputs, outputs))
    return found


def _leaf_rule(kind: str, type: TensorType) -> Rule:
    key = (kind, type)
    found = rules_by_key.get(key)
    if found is None:
        with _lock:
            found = rules_by_key.get(key) or rules_by_key.setdefault(key, Rule(None, ((kind, True),), (), (type,)))
    return found


class _InputEntries(dict[TensorType, tuple[int, tuple[int, ...]]]):
    """What inputs are in a trace, by type."""

    def __missing__(self, type: TensorType) -> tuple[int, tuple[int, ...]]:
        self[type] = entry = _leaf_rule("input", type).id, ()
        return entry


input_entries = _InputEntries()
zero_d = {dtype: TensorType((), dtype) for dtype in DTYPES}
number_entries = {type: (_leaf_rule("scalar", type).id, ()) for type in zero_d.values()}

"""Capture: the graph that a trace, or a part of it, becomes.

Owns: ``build_graph``. Must not know: what is live, where graphs run. Next: ``flush`` (which asks for one for each new key), ``gt.ir.graph``.
"""

from __future__ import annotations

from gt.ir.graph import Graph, Node, Value
from gt.ir.signals import PlanOptions
from gt.ir.types import TensorType
from gt.rounds import Part
from gt.rule import RULES
from gt.signal_marks import Named, told_apart
from gt.source import assigned_name, location
from gt.trace import Trace


def build_graph(
    trace: Trace, name: str, outputs: tuple[int, ...], donated: frozenset[int], signals: tuple[Named, ...], options: PlanOptions,
    part: Part | None = None,
) -> Graph:  # fmt: skip
    """Make the graph of a trace, or of a part of it. Runs once for each new key."""
    names = trace.names.get
    by_name = any(found.params for _, found in signals)  # rules for parameters know values by name: no variable's will do
    inputs: list[Value] = []
    scalars: list[Value] = []
    nodes: list[Node] = []
    values: dict[int, Value] = {}
    start, stop, at = 0, len(trace.code), 0
    if part is not None:
        start, stop, at = part.start, part.stop, part.first
        types = types_by_value(trace)
        inputs = [Value(types[id], names(id, "")) for id in part.inputs]
        scalars = [Value(types[id], names(id, "")) for id in part.scalars]
        values.update(zip((*part.inputs, *part.scalars), (*inputs, *scalars), strict=True))
    marks = iter([*told_apart(trace.marks), (len(trace.code) + 1, None)])
    signal: str | None = None
    next_at, next_signal = next(marks)
    for entry in range(start, stop):
        (id, operands), where = trace.code[entry], trace.where[entry]
        while entry >= next_at:
            signal = next_signal[0] if next_signal else None
            next_at, next_signal = next(marks)
        rule = RULES[id >> 1]
        if rule.op is None:
            if part is None:
                values[at] = value = Value(rule.outputs[0], names(at, ""))
                (inputs if rule.attrs[0][0] == "input" else scalars).append(value)
            at += 1
            continue
        if rule.single is not None:
            hint = names(at) or ("" if by_name or not where else assigned_name(*where))
            results: tuple[Value, ...] = (Value(rule.single, hint),)
        else:
            results = tuple([Value(t, names(i, "")) for i, t in enumerate(rule.outputs, at)])
        taken = tuple([values[i] for i in operands])
        nodes.append(Node(rule.op, taken, results, rule.attrs, location(*where) if where else None, signal, bool(id & 1)))
        for value in results:
            values[at] = value
            at += 1
    return Graph(
        name, tuple(inputs), tuple(scalars), tuple(nodes), tuple([values[i] for i in outputs]),
        donated=donated, signals=signals, options=options,
    )  # fmt: skip


def types_by_value(trace: Trace) -> list[TensorType]:
    """Give the types of all values of a trace."""
    return [type for id, _ in trace.code for type in RULES[id >> 1].outputs]

"""What it costs to write an op in others that work on parts of a dim it must have whole, and where its results are then.

``options`` lists where such an op could split; here each is written out, placed node by node, and priced. Owns:
``written_apart``. Must not know: any one op (``OpDef.when_split`` says how). Next: ``split_ops`` (writes them).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Sharding
from gt.passes.options import Call, Option, Part
from gt.passes.placement import Choice, Problem, choose
from gt.passes.split_ops import write_apart


@lru_cache(maxsize=4096)
def written_apart(call: Call, part: Part) -> Part:
    """Give a part whose options that split what must be whole are priced; those that cannot be written are left out."""
    if not any(option.apart for option in part.options):
        return part
    options = [_written(call, part, option) if option.apart else option for option in part.options]
    return replace(part, options=tuple(option for option in options if option is not None))


def _written(call: Call, part: Part, option: Option) -> Option | None:
    where = {i: Sharding.replicated(call.mesh, t.ndim) for i, t in enumerate(call.operands)}
    where |= zip(part.operands, option.requires, strict=True)
    inputs = tuple(Value(t.placed(where[i])) for i, t in enumerate(call.operands))
    node = Node(call.op, inputs, tuple(Value(t) for t in call.results), call.attrs)
    graph, written = write_apart(Graph("apart", inputs, (), (node,), node.outputs), {node: option.apart})
    if not written:
        return None
    placed = {v: s for v in inputs if (s := v.type.sharding) is not None}
    seconds, steps = 0.0, []
    for step in graph.nodes:
        choice, spent = _placed(graph, step, placed, call)
        seconds += spent
        steps.append(choice)
        placed |= zip(step.outputs, choice.produces, strict=True)
    produces = tuple(placed[graph.outputs[i]] for i in part.results)
    return replace(option, produces=produces, seconds=seconds, steps=tuple(steps))


def _placed(graph: Graph, node: Node, placed: dict[Value, Sharding], call: Call) -> tuple[Choice, float]:
    """Give how a node computes where its operands are, and the seconds, results taken as they are made."""
    operands, results = (tuple(v.type.placed(None) for v in values) for values in (node.inputs, node.outputs))
    rule = node.op.rule(operands, results, node.attrs)
    current = tuple(placed[v] for v in node.inputs)
    if rule is None:
        whole = tuple(Sharding.replicated(call.mesh, t.ndim) for t in (*operands, *results))
        return Choice(whole[: len(operands)], whole[len(operands) :], (), 0.0), 0.0
    uses = tuple(len(graph.uses[v]) == 1 for v in node.inputs)
    problem = Problem(
        call.mesh, rule, operands, results, current, (None,) * len(results),
        node.op.linear_groups(len(operands), node.attrs), uses, (frozenset(),) * len(operands),
    )  # fmt: skip
    choice = choose(problem)
    return choice, choice.seconds - sum(problem.result_s(r, made) for r, made in enumerate(choice.produces))


__all__ = ["written_apart"]

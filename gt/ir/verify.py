"""What makes a graph valid, stage by stage.

Owns: ``verify`` and ``VerifyError``, whose text names the fault, the node, the user's line and the nodes around it.
The pass runner calls it after passes. Must not know: passes. Next: ``gt.passes.pipeline``.
"""

from __future__ import annotations

from collections.abc import Iterable

from gt.ir.advice import Advised
from gt.ir.factors import PENDING, Factor, Rule
from gt.ir.graph import Attrs, AttrValue, Coord, Graph, Node, Stage, Value
from gt.ir.mesh import Reduction, Sharding
from gt.ir.ops import OPS, collective
from gt.ir.text import node_text, value_names
from gt.ir.tiles import aligned

# Ops that change placement, by rules of their own.
_MOVES = frozenset(OPS[name] for name in collective.__all__ if name in OPS)
_AROUND = 3  # nodes shown before and after the one at fault


class VerifyError(Advised):
    """A graph breaks a rule of its stage. Always gt's own fault, never the user's."""


def verify(graph: Graph) -> None:
    """Check a graph against the rules of its stage. Errors: VerifyError at the first fault."""
    defined: set[Value] = set()
    seen: set[object] = set()
    for kind, values in (("input", graph.inputs), ("scalar", graph.scalars)):
        for i, value in enumerate(values):
            if value in defined:
                raise _fault(graph, f"{kind} {i} is listed twice")
            defined.add(value)
            _check_placement(graph, value, f"{kind} {i}", None)
    for i, value in enumerate(graph.scalars):
        if value.type.shape:
            raise _fault(graph, f"scalar {i} is not 0-d but {value.type!r}")
    if not all(0 <= i < len(graph.inputs) for i in graph.donated):
        raise _fault(graph, f"donated {sorted(graph.donated)} of {len(graph.inputs)} inputs")
    for at, node in enumerate(graph.nodes):
        _check_node(graph, at, node, defined, seen)
    for i, value in enumerate(graph.outputs):
        if value not in defined:
            raise _fault(graph, f"output {i} ({value!r}) is not defined")


def _check_node(graph: Graph, at: int, node: Node, defined: set[Value], seen: set[object]) -> None:
    """Check a node. ``seen``: the ops on types that were found right, as most of a graph's nodes are like others."""
    for i, value in enumerate(node.inputs):
        if value not in defined:
            raise _fault(graph, f"operand {i} ({value!r}) is not defined before the node", at)
    for i, value in enumerate(node.outputs):
        if value in defined:
            raise _fault(graph, f"result {i} ({value!r}) is defined twice", at)
        defined.add(value)
    kind = node.op, node.attrs, tuple([v.type for v in node.inputs]), tuple([v.type for v in node.outputs])
    if kind in seen:
        return
    for i, value in enumerate(node.outputs):
        _check_placement(graph, value, f"result {i}", at)
    if len({name for name, _ in node.attrs}) != len(node.attrs):
        raise _fault(graph, "an attribute is given twice", at)
    _check_effect(graph, at, node)
    _check_types(graph, at, node)
    if graph.stage is Stage.EXPLICIT and node.op not in _MOVES and (why := placement_fault(node)):
        raise _fault(graph, why, at)
    seen.add(kind)


def _check_effect(graph: Graph, at: int, node: Node) -> None:
    early = graph.stage in (Stage.GLOBAL, Stage.SHARDED)
    if node.op.effect == "comm" and early:
        raise _fault(graph, f"a collective in a {graph.stage.value} graph", at)
    if node.op.effect == "grad" and graph.stage is not Stage.GLOBAL:
        raise _fault(graph, f"a grad node is left in a {graph.stage.value} graph: autodiff expands it", at)
    if graph.stage is not Stage.LOCAL and any(_has_coord(value) for _, value in node.attrs):
        raise _fault(graph, f"an attribute that differs by worker in a {graph.stage.value} graph", at)


def _check_types(graph: Graph, at: int, node: Node) -> None:
    if not node.op.takes(len(node.inputs)):
        takes = " ".join(node.op.operands) or "no operands"
        raise _fault(graph, f"{node.op.name} takes {takes}, got {len(node.inputs)} operands", at)
    attrs = _at_first_worker(node) if graph.stage is Stage.LOCAL else node.attrs
    try:
        inferred = node.op.infer_types(tuple(v.type for v in node.inputs), attrs)
    except (TypeError, ValueError, IndexError, KeyError, RuntimeError, AssertionError) as error:
        raise _fault(graph, f"{node.op.name} does not take these operands: {error}", at) from error
    if len(inferred) != len(node.outputs):
        raise _fault(graph, f"{len(node.outputs)} results where {node.op.name} gives {len(inferred)}", at)
    for i, (value, want) in enumerate(zip(node.outputs, inferred, strict=True)):
        got = value.type
        if got.shape != want.shape or got.dtype is not want.dtype:
            raise _fault(graph, f"result {i} is declared {got.placed(None)!r}, {node.op.name} gives {want!r}", at)


def _check_placement(graph: Graph, value: Value, what: str, at: int | None) -> None:
    placed = value.type.sharding
    if placed is None:
        if graph.stage is not Stage.GLOBAL:
            raise _fault(graph, f"{what} ({value!r}) has no sharding in a {graph.stage.value} graph", at)
        return
    if len(placed.dims) != value.type.ndim:
        raise _fault(graph, f"{what} ({value!r}) has {value.type.ndim} dims, its sharding {len(placed.dims)}", at)
    used = [a for d in placed.dims for a in d] + [a for a, _ in placed.partial]
    known = dict(placed.mesh.axes)
    for axis in used:
        if axis not in known:
            raise _fault(graph, f"{what} ({value!r}) is placed on axis {axis}, which its mesh lacks", at)
    if len(set(used)) != len(used):
        raise _fault(graph, f"{what} ({value!r}) uses a mesh axis twice", at)


def placement_fault(node: Node) -> str:
    """Give why a node cannot run where its operands are, each worker on its own part; nothing if it can.

    Read off the op's sharding rule: a factor is split alike wherever it appears, results are pending sums exactly
    where a reduced factor is split or the op passes a pending sum on.
    """
    homes = {_placed(v).mesh for v in node.outputs}
    if len(homes) != 1:
        return "results live on different meshes"
    (home,) = homes
    operands = [_placed(v) for v in node.inputs]
    for i, placed in enumerate(operands):
        if placed.mesh != home:
            if not placed.is_replicated or not set(home.workers) <= set(placed.mesh.workers):
                return f"operand {i} ({node.inputs[i]!r}) is not on the workers of the result"
            operands[i] = Sharding.replicated(home, node.inputs[i].type.ndim)
    results = [_placed(v) for v in node.outputs]
    if all(p.is_replicated for p in (*operands, *results)):
        return ""
    rule = node.op.rule([v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    if rule is None:
        return f"{node.op.name} has no sharding rule but a split or pending operand or result"
    split: dict[Factor, tuple[str, ...]] = {}
    terms = list(zip(operands, rule.operands, strict=True)) + list(zip(results, rule.results, strict=True))
    for placed, dims in terms:
        for axes, factors in zip(placed.dims, dims, strict=True):
            if axes and (not factors or rule.kind[factors[0]] == "whole"):
                return f"a dim that must be whole is split over {', '.join(axes)}"
            own = rule.split_by(factors, axes, home) if factors else {}
            if own is None:
                return f"the parts of a dim over {', '.join(axes)} are no parts of its factors {', '.join(factors)}"
            for factor in factors:
                if split.setdefault(factor, own.get(factor, ())) != own.get(factor, ()):
                    return f"factor {factor} is split over {split[factor]} here and over {own.get(factor, ())} there"
    near = any(rule.kind[f] == "near" and axes for f, axes in split.items())
    if near and (rule.near is None or not aligned(operands[0], results[0], node.inputs[0].type.shape, rule.near)):
        return "rows that other workers hold are read"
    return _pending_fault(node, rule, operands, results, split)


def _pending_fault(
    node: Node, rule: Rule, operands: list[Sharding], results: list[Sharding], split: dict[Factor, tuple[str, ...]]
) -> str:
    passed: dict[str, set[int]] = {}
    for i, placed in enumerate(operands):
        for axis, reduce in placed.partial:
            if reduce != "sum":
                return f"operand {i} is a pending {reduce}, which nothing may read"
            passed.setdefault(axis, set()).add(i)
    groups = [set(g) for g in node.op.linear_groups(len(operands), node.attrs)]
    for axis, pending in passed.items():
        if pending not in groups:
            return (
                f"operands {sorted(pending)} are pending sums over {axis}, {node.op.name} is not linear in just these"
            )
    kept = {f for dims in rule.results for d in dims for f in d}
    reduced = {f: axes for f, axes in split.items() if rule.kind[f] in PENDING}
    if lost := [f for f, axes in split.items() if axes and f not in kept and f not in reduced and rule.kind[f] != "near"]:
        return f"factor {lost[0]} is split and lost: no result has it and nothing reduces it"
    for i, placed in enumerate(results):
        own = {f for d in rule.results[i] for f in d}
        want: dict[str, Reduction] = dict.fromkeys(passed, "sum")
        for factor, axes in reduced.items():
            if factor not in own:
                want |= dict.fromkeys(axes, PENDING[rule.kind[factor]])
        if want != dict(placed.partial):
            return (
                f"result {i} should be pending over {want or 'nothing'}, it is declared so over {dict(placed.partial)}"
            )
    return ""


def _placed(value: Value) -> Sharding:
    assert value.type.sharding is not None
    return value.type.sharding


def _has_coord(value: AttrValue) -> bool:
    return isinstance(value, Coord) or (isinstance(value, tuple) and any(_has_coord(v) for v in value))


def _at_first_worker(node: Node) -> Attrs:
    """Give the attributes as the first worker has them: its coordinates are all zero."""
    if not any(_has_coord(value) for _, value in node.attrs):
        return node.attrs
    return tuple((name, _zero(value)) for name, value in node.attrs)


def _zero(value: AttrValue) -> AttrValue:
    if isinstance(value, Coord):
        return value.base
    return tuple(_zero(v) for v in value) if isinstance(value, tuple) else value


def _fault(graph: Graph, fault: str, at: int | None = None) -> VerifyError:
    lines = [f"graph @{graph.name} ({graph.stage.value}): {fault}"]
    if at is None:
        return VerifyError(lines[0])
    node = graph.nodes[at]
    if node.loc is not None:
        lines.append(
            f"  at {node.loc} in {node.loc.function}" + (f": {node.loc.source.strip()}" if node.loc.source else "")
        )
    names = value_names(graph)
    lines += _nodes_around(graph.nodes, at, names)
    return VerifyError("\n".join(lines))


def _nodes_around(nodes: tuple[Node, ...], at: int, names: dict[Value, str]) -> Iterable[str]:
    for i in range(max(0, at - _AROUND), min(len(nodes), at + _AROUND + 1)):
        yield f"{'->' if i == at else '  '} {i:4d}  {node_text(nodes[i], names)}"


__all__ = ["VerifyError", "verify"]

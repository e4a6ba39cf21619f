"""Makes one op of the cross entropy of halves and of its gradient, where a step has both: a row of logits is read twice, not four times.

In a step what the loss's gradient is multiplied with is known before the loss. Runs on each worker's part, behind ``chunk_rows``, where rows are
whole. Owns: ``FuseLoss``. Next: ``gt.runtime.loss_kernels`` (what it runs as).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gt.ir.graph import Graph, Node, Stage, Value
from gt.ir.ops import OPS
from gt.ir.types import HALVES, float32
from gt.passes.context import Context
from gt.passes.dce import Dce


@dataclass(frozen=True)
class FuseLoss:
    """Logits of ``least`` bytes or more: smaller ones cost less than what is around them."""

    name: ClassVar[str] = "fuse_loss"
    least: int = 1 << 20

    def run(self, graph: Graph, context: Context) -> Graph:
        if graph.stage is not Stage.LOCAL:
            return graph
        given = graph
        for node in given.nodes:
            if node.op.name == "log_softmax_backward" and (found := self._found(graph, node)) is not None:
                graph = _fused(graph, found)
        return graph if graph is given else Dce().run(graph, context)

    def _found(self, graph: Graph, node: Node) -> _Loss | None:
        """Give the loss that a gradient of log_softmax belongs to; None unless all of it is read here alone."""
        g, y = node.inputs
        back, softmax, narrow = _made(graph, g, "nll_loss_backward"), _made(graph, y, "log_softmax"), _only_reader(graph, node.output, "cast")
        if back is None or softmax is None or narrow is None or y.type.ndim != 2 or softmax.attr["dim"] != 1:
            return None
        wide = _made(graph, softmax.inputs[0], "cast")
        readers = {user for user, _ in graph.uses[y]} - {node}
        if wide is None or len(readers) != 1 or y in graph.outputs or _only_reader(graph, g, node.op.name) is None:
            return None
        (loss,) = readers
        if loss.op.name != "nll_loss" or len(loss.inputs) != 2 or len(back.inputs) != 2:
            return None
        logits, target, (scale, checked) = wide.inputs[0], loss.inputs[1], back.inputs
        fits = (
            logits.type.dtype is narrow.output.type.dtype in HALVES and logits.type.nbytes >= self.least and y.type.dtype is float32
            and loss.attr["reduction"] == "sum" and "dtype" not in loss.attr and "start" not in back.attr
            and loss.attr["ignore_index"] == back.attr["ignore_index"] and not scale.type.ndim and scale.type.dtype is float32
            and _checked(graph, checked, target)
        )  # fmt: skip
        return _Loss(logits, target, scale, loss, node, narrow, (back, softmax)) if fits else None


@dataclass(frozen=True)
class _Loss:
    """What one op is made of: the sum of the losses, and the gradient as ``narrow`` gives it."""

    logits: Value
    target: Value
    scale: Value
    loss: Node
    gradient: Node
    narrow: Node
    between: tuple[Node, ...]


def _made(graph: Graph, value: Value, op: str) -> Node | None:
    node = graph.producer.get(value)
    return node if node is not None and node.op.name == op else None


def _only_reader(graph: Graph, value: Value, op: str) -> Node | None:
    readers = [user for user, _ in graph.uses.get(value, ())]
    return readers[0] if len(readers) == 1 and readers[0].op.name == op and value not in graph.outputs else None


def _checked(graph: Graph, target: Value, raw: Value) -> bool:
    """Whether ``target`` is ``raw`` with each class known to be one, or the same part of both."""
    while target is not raw:
        check = _made(graph, target, "in_range")
        if check is not None:
            return check.inputs[0] is raw
        a, b = graph.producer.get(target), graph.producer.get(raw)
        if a is None or b is None or not (a.op is b.op and a.op.view and a.attrs == b.attrs):
            return False
        target, raw = a.inputs[0], b.inputs[0]
    return False


def _fused(graph: Graph, found: _Loss) -> Graph:
    """Put one op where the first of both was, what it needs in front of it; the graph as it is if that needs the loss.

    So the sum over workers of how many targets count may come earlier: on all of them alike.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    first = min(found.loss, found.narrow, key=place.__getitem__)
    at = place[first]
    gone = {found.loss, found.gradient, found.narrow, *found.between}
    needed: set[Node] = set()
    pending = [found.logits, found.target, found.scale]
    while pending:
        node = graph.producer.get(pending.pop())
        if node is None or node in needed or place[node] < at:
            continue
        if node in gone:
            return graph
        needed.add(node)
        pending += node.inputs
    fused = Node(
        OPS["cross_entropy_grad"], (found.logits, found.target, found.scale), (found.loss.output, found.narrow.output),
        (("ignore_index", found.loss.attr["ignore_index"]),), found.loss.loc, found.loss.signal, why="a loss and its gradient",
    )  # fmt: skip
    nodes: list[Node] = []
    for node in graph.nodes:
        if node is first:
            nodes += [*(n for n in graph.nodes if n in needed), fused]
        elif node not in gone and node not in needed:
            nodes.append(node)
    return graph.with_nodes(nodes)


__all__ = ["FuseLoss"]

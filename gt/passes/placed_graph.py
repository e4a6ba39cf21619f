"""Writes a placed graph: each node where it computes, with one ``reshard`` for each value and placement it is read in.

Owns: ``PlacedGraph``, the reasons shown to the user, and what strict mode refuses. Must not know: how placements are
chosen. Next: ``insert_collectives``.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace

from gt.ir.graph import Graph, Node, Value
from gt.ir.mesh import Sharding
from gt.ir.ops import OPS, collective
from gt.ir.text import readable_names
from gt.ir.types import HALVES, DType, TensorType, float32
from gt.passes.context import Context, Origin, PlanRefused
from gt.passes.cost import time_text
from gt.passes.half_sums import adds_halves, in_float32, is_sum
from gt.passes.placement import Choice
from gt.passes.reshard import cost_s, is_local, plan_reshard, usable_as

KEPT = ("parameters ", "updated in place", "auto: ")  # how reasons start of values that are joined for use, as is their purpose
ASKED = ("signal ", *KEPT)  # how reasons start that a user gave, or asked for
CAST = OPS["cast"]
REDUCTIONS = (collective.all_reduce, collective.reduce_scatter)


def placement(value: Value) -> Sharding:
    assert value.type.sharding is not None
    return value.type.sharding


class PlacedGraph:
    """Nodes as they are placed. ``placed``: where each value is for its readers; ``origin``: why, if someone said so.

    ``needed``: where each value is brought for some reader.
    """

    def __init__(
        self, graph: Graph, context: Context, placed: Mapping[Value, Sharding], origin: Mapping[Value, str],
        needed: Mapping[Value, Set[Sharding]],
    ) -> None:  # fmt: skip
        self.context, self.placed, self.origin, self.strict = context, placed, origin, graph.options.strict
        self.needed, self.inputs = needed, graph.inputs
        self.asking = {name for name, config in graph.signals if config.shard is not None}
        self.nodes: list[Node] = []
        self.at: Node
        self.now: dict[Value, Value] = {v: v for v in (*graph.inputs, *graph.scalars)}
        self.moved: dict[tuple[Value, Sharding], Value] = {}
        self.copies: dict[Value, list[Value]] = {}
        self.source: dict[Value, Value] = {}  # what copies are of
        self.sums: dict[Value, Node] = {}  # pending sums, with what makes them of others, linear in all of these together
        self.wide: dict[Value, Value] = {}  # values in float32 that stand for these halves
        self.casts: dict[tuple[Value, DType], Value] = {}

    def add(self, node: Node, choice: Choice) -> None:
        self.at = node
        inputs = []
        brought = ""
        for i, (value, need) in enumerate(zip(node.inputs, choice.requires, strict=True)):
            seconds = cost_s(placement(self.now[value]), need, value.type)
            if seconds and (self.now[value], need) not in self.moved:
                brought += f"; operand {i} is brought there in {time_text(seconds)}"
            why = f"operand {i} of {node.op.name}{_split_text(choice)}"
            if node.signal in self.asking and need.mesh.workers != placement(self.now[value]).mesh.workers:
                why = f"signal {node.signal!r} is on other workers: {why}"
            for whole in self._whole_first(value, need):
                self.move(self.now[value], whole, node, why)
            inputs.append(self.move(self.now[value], need, node, why))
        outputs = self._compute(node, choice, tuple(inputs))
        for value, made in zip(node.outputs, outputs, strict=True):
            origin = self.origin.get(value, "")
            why = origin or "a result must not be pending"
            self.now[value] = self.move(made, self.placed[value], node, why)
            self._note(node, made, self.now[value], origin, choice, brought)

    def _compute(self, node: Node, choice: Choice, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """Append the node; pending sums of halves that it gives are in float32."""
        made = node
        if adds_halves(node, choice, inputs, self.wide):
            low = node.op.autocast == "low"  # products of halves, whatever they are added up in
            change = self._halved if low else (lambda v: v) if node.op.wide else self._widened
            made = in_float32(node, tuple(map(change, inputs)))
        elif node.op is not CAST:
            inputs = tuple(map(self._halved, inputs))
        outputs = tuple(Value(v.type.placed(p), v.hint) for v, p in zip(made.outputs, choice.produces, strict=True))
        placed = replace(made, inputs=inputs if made is node else made.inputs, outputs=outputs)
        self.nodes.append(placed)
        joint = any(len(group) == len(inputs) for group in node.op.linear_groups(len(inputs), node.attrs))
        if joint and len(inputs) > 1 and len(outputs) == 1 and is_sum(placement(outputs[0])):
            self.sums[outputs[0]] = placed
        for value, asked in zip(outputs, node.outputs, strict=True):
            if value.type.dtype is not asked.type.dtype:
                self.wide[value] = asked
        return outputs

    def _cast(self, value: Value, dtype: DType, hint: str = "") -> Value:
        key = value, dtype
        if key not in self.casts:
            out = Value(TensorType(value.type.shape, dtype, value.type.sharding), hint)
            self.nodes.append(Node(CAST, (value,), (out,), (("dtype", dtype),), self.at.loc, self.at.signal))
            self.casts[key] = out
        return self.casts[key]

    def _widened(self, value: Value) -> Value:
        return self._cast(value, float32) if value.type.dtype in HALVES else value

    def _halved(self, value: Value) -> Value:
        asked = self.wide.get(value)
        return value if asked is None else self._cast(value, asked.type.dtype, asked.hint)

    def _note(self, node: Node, made: Value, value: Value, origin: str, choice: Choice, brought: str) -> None:
        """Keep why a result is where it is, and what bringing the operands there costs."""
        at = f" at {node.loc}" if node.loc is not None else ""
        if origin or not placement(value).is_replicated:
            self.context.note(value, origin or f"as its operands{_split_text(choice)}")
            source = None if origin else self._followed(node, value)
            reason = origin or f"{node.op.name} computes it there{_split_text(choice)}"
            self.context.origins[value] = Origin(reason + at + brought, source)
            return
        split = [self.now[v] for v in node.inputs if not placement(self.now[v]).is_replicated]
        if not split:
            told = [self.now[v] for v in node.inputs if self.now[v] in self.context.origins]
            if told:
                source = max(told, key=lambda v: v.type.nbytes)
                self.context.origins[value] = Origin(f"whole, as what {node.op.name} reads{at}", source)
            return
        reason = f"{node.op.name} computes it whole"
        if node.op.factors is None:
            reason += f", as {node.op.name} has no sharding rule"
            self.context.note(value, f"whole: {node.op.name} has no sharding rule")
        if made is not value:
            joined = "its pending sums are added up" if placement(made).partial else "its parts are joined"
            reason = f"{joined} in {time_text(cost_s(placement(made), placement(value), value.type))}: {node.op.name} computes them"
        source = max(split, key=lambda v: v.type.nbytes)
        where = "all workers" if placement(value).mesh.size == self.context.mesh.size else "its workers"
        self.context.origins[value] = Origin(f"whole on {where}: {reason}{_split_text(choice)}{at}{brought}", source)

    def _refuse(self, value: Value, need: Sharding, node: Node | None, why: str) -> None:
        """In strict mode: refuse to join or exchange parts where no signal asks for it.

        That a signal split the value asks for no more than that. Adding up pending sums is part of the op; parameters
        split by a rule are joined for use.
        """
        origin = self.context.origins.get(value)
        asked = why.startswith(ASKED) or (origin is not None and origin.reason.startswith(KEPT))
        if asked or is_local(placement(value), need, value.type):
            return
        if all(s.op in REDUCTIONS or not s.op.effect for s in plan_reshard(placement(value), need, value.type.placed(None))):
            return
        wanted, names = value.type.placed(need), readable_names(self.inputs, self.nodes)
        where = f" at {node.loc}: {node.loc.source}" if node is not None and node.loc is not None else ""
        raise PlanRefused(
            f"strict: {names.get(value, 'a value')}: {value.type!r} would be moved to {wanted!r} ({why}){where}\nNo signal asks for it: mark the value with a "
            f"signal that places it so, or split it another way. It is there because:\n  "
            + "\n  ".join(self.context.explain(value, names))
        )

    def _followed(self, node: Node, value: Value) -> Value | None:
        """Give the operand that a result is placed as: one with an axis of its own, the largest first."""
        axes = placement(value).used_axes
        found = [self.now[v] for v in node.inputs if placement(self.now[v]).used_axes & axes]
        return max(found, key=lambda v: v.type.nbytes, default=None)

    def move(self, value: Value, need: Sharding, node: Node | None, why: str) -> Value:
        if value in self.wide and not is_sum(need):
            return self._added_up(value, need, node, why)
        if usable_as(placement(value), need):
            return value
        return self._moved(value, need, node, why)

    def _added_up(self, value: Value, need: Sharding, node: Node | None, why: str) -> Value:
        """Bring a sum of halves in float32 to where it is not pending, as a half; once it is one it is moved as one."""
        source = self._nearest(value, need)
        if is_sum(placement(source)):
            return self._halved(self._moved(value, need, node, why))
        return self.move(self._halved(source), need, node, why)

    def _moved(self, value: Value, need: Sharding, node: Node | None, why: str) -> Value:
        key = (value, need)
        if key not in self.moved:
            if self.strict:
                self._refuse(value, need, node, why)
            sums = self._of_sums(value, need)
            if not sums:
                moved = Value(value.type.placed(need), value.hint)
                loc, signal = (node.loc, node.signal) if node is not None else (None, None)
                source = self._nearest(value, need)
                self.nodes.append(Node(collective.reshard, (source,), (moved,), loc=loc, signal=signal, why=why))
                self._keep(value, moved)
            for maker, there in reversed(sums):
                parts = tuple(self._moved(p, _added(p), node, why) if t is None else t for p, t in zip(maker.inputs, there, strict=True))
                out = Value(maker.output.type.placed(_added(maker.output)), maker.output.hint)
                self.nodes.append(replace(maker, inputs=parts, outputs=(out,)))
                self._keep(maker.output, out)
        return self.moved[key]

    def _keep(self, value: Value, moved: Value) -> None:
        self.moved[value, placement(moved)] = moved
        self.copies.setdefault(value, [value]).append(moved)
        self.source[moved] = value
        if value in self.wide:
            self.wide[moved] = self.wide[value]

    def _of_sums(self, value: Value, need: Sharding) -> list[tuple[Node, list[Value | None]]]:
        """Give what makes a pending sum of what is there of it, added up already, and of the one part that is new, None: that part is
        all there is to add up. If it is such a sum too, what makes it comes next.

        What a layer adds to a residual stream is added up by itself: the stream before it is whole, and need not be kept pending.
        """
        sums: list[tuple[Node, list[Value | None]]] = []
        while (value, need) not in self.moved and (there := self._there(value, need)) is not None:
            sums.append((self.sums[value], there))
            value = self.sums[value].inputs[there.index(None)]
            need = _added(value)
        return sums

    def _there(self, value: Value, need: Sharding) -> list[Value | None] | None:
        """Give what is there of the parts of a pending sum, None for the one that is new; None if that is no cheaper to add up."""
        maker = self.sums.get(value)
        if maker is None or need != _added(value) or value in self.wide:
            return None
        there: list[Value | None] = []
        for part in maker.inputs:
            source = self.source.get(part, part)
            at = (copy for copy in (source, *self.copies.get(source, ())) if usable_as(placement(copy), _added(part)))
            there.append(next(at, None))
        new = [part for part, copy in zip(maker.inputs, there, strict=True) if copy is None]
        if len(new) != 1 or self._nearest_s(new[0], _added(new[0])) > self._nearest_s(value, need):
            return None  # of what is there elsewhere already, a part is cut or joined
        return there

    def _nearest_s(self, value: Value, need: Sharding) -> float:
        return cost_s(placement(self._nearest(value, need)), need, value.type)

    def _whole_first(self, value: Value, need: Sharding) -> list[Sharding]:
        """Give the whole value if a later reader needs it and this one a cut of it: then one collective serves both."""
        have = placement(self.now[value])
        if usable_as(have, need) or is_local(have, need, value.type):
            return []
        later = self.needed.get(value, frozenset())
        return [w for w in later if w != need and w.is_replicated and is_local(w, need, value.type)][:1]

    def _nearest(self, value: Value, need: Sharding) -> Value:
        """Give the value or the copy of it made for another reader that is cheapest to bring there.

        A sum that one reader wants whole and another in parts is added up once.
        """
        copies = self.copies.get(value, [value])
        return min(copies, key=lambda copy: cost_s(placement(copy), need, value.type))


def _added(value: Value) -> Sharding:
    """Give where a value is once its pending sums are added up."""
    return Sharding(placement(value).mesh, placement(value).dims)


def _split_text(choice: Choice) -> str:
    """Say which factors are split, for reasons shown to the user."""
    parts = [f"factor {factor} over {', '.join(axes)}" for factor, axes in choice.factors]
    return f", which splits {' and '.join(parts)}" if parts else ""


__all__ = ["PlacedGraph", "placement"]

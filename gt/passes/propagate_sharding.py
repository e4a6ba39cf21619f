"""Gives every value a placement: GLOBAL -> SHARDED.

Signals and the placements of inputs are given; everything else is derived over the factors of the ops' rules. Forward,
each node computes where its operands are (``placement``). Backward, a value that every reader cuts in the same way is
made so at once, if its node can without communication. The two alternate until nothing changes. A node's home mesh is
its signal's, else that of its largest split operand, else the one its operands reach with the fewest bytes.

An op that would need a dim whole that arrives split is written in ops that do not, where its declaration knows how
(``split_ops``), and the graph is placed again; so it is once an update of tensors on different workers is written as several
(``split_updates``). With ``auto: search`` most of this is decided beforehand
(``auto_shard``). A placement that differs from where a value is made becomes a ``reshard`` node, one for all its readers.
Must not know: any op, how a reshard is done. Next: ``insert_collectives``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gt.ir.graph import Graph, Node, Stage, Value, exchanged
from gt.ir.mesh import Mesh, Sharding
from gt.ir.signals import SignalConfig
from gt.ir.text import readable_names
from gt.passes.auto_shard import NOTHING, Decided, Given, search
from gt.passes.context import Context, Origin
from gt.passes.cost import compute_s
from gt.passes.dce import Dce
from gt.passes.homes import homes_apart
from gt.passes.placed_graph import PlacedGraph, placement
from gt.passes.placement import Choice, Problem, choose, components
from gt.passes.reasons import placement_notes
from gt.passes.reshard import cost_s, is_local, usable_as
from gt.passes.search_graph import GRADIENT
from gt.passes.signal_placement import ParamPlacement, cut, declared_mesh, involved, signal_mesh
from gt.passes.split_ops import split_ops
from gt.passes.split_updates import split_updates
from gt.passes.work import node_work

UNPLACED = SignalConfig()
IN_PLACE = "updated in place"
RULE = "parameters "  # reasons that a rule for parameters gives begin so
CLEARLY_FASTER = 0.9
ROUNDS = 4  # forward and backward alternate at most so often; two suffice for all but contrived graphs


@dataclass(frozen=True)
class PropagateSharding:
    """Place every value. ``search_s``: how long an automatic search may take."""

    name: ClassVar[str] = "propagate_sharding"
    search_s: float = 20.0

    def run(self, graph: Graph, context: Context) -> Graph:
        present = context.mesh
        context.mesh = _everything(graph, present)
        inputs = _place_inputs(graph, context.mesh)
        if context.mesh.size == 1 or not _anything_placed(graph, exchanged(graph.inputs, inputs), context.mesh):
            placed = _everything_whole(graph, inputs, context.mesh)
            context.output_shardings = [placement(v) for v in placed.outputs]
            return placed
        graph = graph.on(inputs) if inputs else graph
        _note_workers(graph, context, present)
        decided = NOTHING
        if graph.options.auto == "search":
            given = _Placer(graph, Context(context.mesh)).given()
            graph, decided = search(graph, context, given, self.search_s)
        return _placed(graph, context, decided).emit()


def _settled(graph: Graph, context: Context, decided: Decided, joined: bool) -> _Placer:
    """Give what has placed a graph, or what the graph is rewritten to. ``joined``: as of ``_Placer``."""
    noted = len(context.notes)
    for number in range(4 * ROUNDS):
        del context.notes[noted:]
        placer = _Placer(graph, context, decided, joined)
        placer.settle()
        kept_apart = split_updates(graph, placer.placed, decided.choices)
        kept_apart = split_ops(kept_apart, placer.placed, placer.choices, decided.choices, windows_only=number >= ROUNDS)
        if kept_apart is graph:
            return placer
        graph = kept_apart
    raise AssertionError("what is rewritten for windows is not cut any further")


def _placed(graph: Graph, context: Context, decided: Decided) -> _Placer:
    """Give what has placed a graph: with split parameters joined for use where a step is clearly faster so.

    Op by op a small batch is moved to the parameters, as it takes less, and then its activations at every layer.
    """
    noted = len(context.notes)
    apart = _settled(graph, context, decided, False)
    if decided is not NOTHING or not any(apart.placed[v].is_split for v in apart.parameters):
        return apart
    if _settled(graph, Context(context.mesh), decided, True).seconds() >= apart.seconds() * CLEARLY_FASTER:
        return apart
    del context.notes[noted:]
    return _settled(graph, context, decided, True)


# -- what is given


def _everything(graph: Graph, mesh: Mesh) -> Mesh:
    """Give the mesh of all workers that take part: with the axes that signals name, else those some input is split on."""
    if graph.options.auto == "off":  # a search, or splitting what is created, may use all
        placed = [v.type.sharding for v in graph.inputs if v.type.sharding is not None]
        mesh = involved((config for _, config in graph.signals), placed, mesh)
    declared = declared_mesh((config for _, config in graph.signals), mesh, graph.options.auto == "search")
    if declared is not mesh:
        return declared
    inputs = (v.type.sharding.mesh for v in graph.inputs if v.type.sharding is not None and v.type.sharding.is_split)
    return next((m for m in inputs if m.workers == mesh.workers), mesh)


def _note_workers(graph: Graph, context: Context, present: Mesh) -> None:
    """Note which signals ask for workers or axes that are not there, at the first node of each."""
    problems = {name: signal_mesh(config, present)[1] for name, config in graph.signals if config.shard is not None}
    for node in graph.nodes:
        if problem := problems.pop(node.signal or "", ""):
            context.note(node, f"signal {node.signal!r}: {problem}")


def _following(node: Node) -> Sequence[int] | None:
    """Give the results that belong to another result; None if the op knows no such."""
    return None if node.op.follows is None else node.op.follows(len(node.inputs), node.attr)


def _own_axes(sharding: Sharding, everything: Mesh) -> Sharding:
    """Rename the axes of an older mesh that share a name with the present one: programs look coordinates up by name."""
    mesh = sharding.mesh
    taken = dict(everything.axes)
    if mesh == everything or not any(axis in taken for axis, _ in mesh.axes):
        return sharding
    names = {axis: f"{axis}{Mesh.line(mesh.workers).name}" for axis, _ in mesh.axes}
    if len(mesh.axes) == 1:
        fresh = Mesh.line(mesh.workers)
        names = {mesh.axes[0][0]: fresh.axes[0][0]}
    else:
        fresh = Mesh(mesh.name + Mesh.line(mesh.workers).name, tuple((names[a], n) for a, n in mesh.axes), mesh.workers)
    return Sharding(
        fresh,
        tuple(tuple(names[a] for a in axes) for axes in sharding.dims),
        tuple((names[a], reduce) for a, reduce in sharding.partial),
    )


def _place_inputs(graph: Graph, mesh: Mesh) -> dict[Value, Value]:
    """Say where inputs and scalars live that no place is said of, or one in other axes: whole on all workers that take part."""
    mapping: dict[Value, Value] = {}
    for value in (*graph.inputs, *graph.scalars):
        own, whole = value.type.sharding, Sharding.replicated(mesh, value.type.ndim)
        placed = whole if own is None or usable_as(own, whole) else own.on(mesh) or _own_axes(own, mesh)
        if placed != own:
            mapping[value] = Value(value.type.placed(placed), value.hint)
    return mapping


def _anything_placed(graph: Graph, inputs: Sequence[Value], mesh: Mesh) -> bool:
    """Whether there is anything to derive from: a signal that shards, or an input not whole on all workers."""
    if graph.options.auto == "search":
        return bool(graph.nodes)
    if graph.options.auto == "rows" and any(node.op.creates for node in graph.nodes):
        return True
    if any(placement(v).mesh != mesh or not placement(v).is_replicated for v in inputs):
        return True
    if any(config.params for _, config in graph.signals):
        return True
    asked = {name for name, config in graph.signals if config.shard is not None}
    return any(node.signal in asked for node in graph.nodes)


def _everything_whole(graph: Graph, inputs: Mapping[Value, Value], mesh: Mesh) -> Graph:
    """Place every value whole on all workers: nothing to choose, nothing to communicate. ``inputs``: those that are placed anew."""
    types = {value.type for node in graph.nodes for value in node.outputs}
    whole = {type_: type_.placed(Sharding.replicated(mesh, type_.ndim)) for type_ in types}
    mapping = dict(inputs)
    nodes = []
    for node in graph.nodes:
        outputs = tuple([Value(whole[v.type], v.hint) for v in node.outputs])
        nodes.append(node.on(exchanged(node.inputs, mapping), outputs))
        mapping.update(zip(node.outputs, outputs, strict=True))
    get = lambda values: exchanged(values, mapping)  # noqa: E731
    return replace(
        graph, inputs=get(graph.inputs), scalars=get(graph.scalars), nodes=tuple(nodes), outputs=get(graph.outputs), stage=Stage.SHARDED
    )


class _Placer:
    """The state of one propagation.

    ``fixed``: placements that users asked for or that an update in place keeps, with the reason. ``homes``: meshes that users
    asked nodes to be computed on. ``wishes``: placements
    that all readers of a value ask for. ``placed``: where each value is for its readers. ``choices``: how each node
    computes. ``origin``: why a value is where it is. ``joined``: ops choose as if split parameters were whole.
    """

    def __init__(self, graph: Graph, context: Context, decided: Decided = NOTHING, joined: bool = False) -> None:
        self.graph, self.context, self.mesh, self.decided, self.joined = graph, context, context.mesh, decided, joined
        self.configs = dict(graph.signals)
        self.fixed: dict[Value, Sharding] = {}
        self.homes: dict[Node, Mesh] = {}
        self.origin: dict[Value, str] = {}
        self.wishes: dict[Value, Sharding] = {}
        self.placed: dict[Value, Sharding] = {v: placement(v) for v in (*graph.inputs, *graph.scalars)}
        self.choices: dict[Node, Choice] = {}
        self.needed: dict[Value, set[Sharding]] = {}  # where values are brought for some reader
        self.memo: dict[tuple[object, ...], Choice] = {}  # nodes alike, such as those of equal layers, choose alike
        self.is_output = set(graph.outputs)
        self.num_uses = {v: len(uses) for v, uses in graph.uses.items()}
        for value in graph.inputs:
            self.origin[value] = "where its buffer lives" if not placement(value).is_replicated else ""
        self._read_signals()
        self._place_parameters()
        self.parameters = self._parameters()
        if graph.options.auto == "rows":
            self._split_created()
        self._keep_updates()
        self.origin |= {v: why for v, why in decided.reasons.items() if v not in self.origin or v in decided.landed}
        for value, placed in decided.landed.items():
            (self.placed if value in self.placed else self.fixed)[value] = placed

    # -- given placements

    def given(self) -> Given:
        """Give what is said of a graph before anything is decided. That an update stays in place is no reason to stay."""
        fixed = {v: placed for v, placed in self.fixed.items() if self.origin[v] != IN_PLACE}
        settled = frozenset(v for v in self.graph.inputs if self.origin[v].startswith(RULE))
        return Given({v: self.placed[v] for v in (*self.graph.inputs, *self.graph.scalars)}, fixed, settled)

    def _read_signals(self) -> None:
        for node in self.graph.nodes:
            config = self.configs.get(node.signal) if node.signal else None
            if node.signal is None or config is None or config.shard is None:
                continue
            mesh, _ = signal_mesh(config, self.mesh)
            if mesh is None:
                continue
            if config.shard.only_workers:
                self.homes[node] = mesh
                continue
            follows = _following(node)
            for value in node.outputs if follows is None else [node.outputs[r] for r in follows]:
                self.fixed[value], problem = cut(config.shard, mesh, value.type)
                self.origin[value] = f"signal {node.signal!r}"
                if problem and value.type.numel != 1:  # nobody expects one number to be split
                    self.context.note(value, f"signal {node.signal!r}: {problem}")

    def _place_parameters(self) -> None:
        """Bring what a rule for parameters names, by its name, to where the rule says: inputs at once, results when made.

        A gradient that is kept is split as its parameter. Those of a stage stay on its workers, as does what is only updated.
        """
        rules = ParamPlacement.of((config for _, config in self.graph.signals), self.mesh)
        if not rules.rules:
            return
        homes, sums = homes_apart(self.graph, self.mesh, self.placed), self._summed_gradients()
        for value in (*self.graph.inputs, *dict.fromkeys(self.graph.outputs)):
            hint = sums.get(value, value.hint)
            gradient = hint.startswith(GRADIENT)
            found = rules.find(hint.removeprefix(GRADIENT), value.type, homes.get(value))
            if found is None or (gradient and found[0].is_replicated):
                continue
            placed, pattern, problem = found
            (self.placed if value in self.placed else self.fixed)[value] = placed
            self.origin[value] = f"parameters {pattern!r}"
            if problem:
                self.context.note(value, f"parameters {pattern!r}: {problem}")
        self._place_before_updates()

    def _summed_gradients(self) -> dict[Value, str]:
        """Give each sum of gradients of one parameter, as of several microbatches, their name."""
        found: dict[Value, str] = {}
        for node in self.graph.nodes:
            names = {found.get(v, v.hint) for v in node.inputs} - {""}
            if len(names) != 1 or not (name := names.pop()).startswith(GRADIENT) or len(node.inputs) < 2:
                continue
            adds = tuple(range(len(node.inputs))) in node.op.linear_groups(len(node.inputs), node.attrs)
            if adds and {v.type.shape for v in node.inputs} == {v.type.shape for v in node.outputs}:
                found |= dict.fromkeys(node.outputs, name)
        return found

    def _parameters(self) -> set[Value]:
        """Give what rules for parameters place, and what is made of nothing else."""
        found = {v for v, why in self.origin.items() if why.startswith(RULE)}
        for node in self.graph.nodes:
            if node.inputs and found.issuperset(node.inputs):
                found.update(node.outputs)
        return found

    def _place_before_updates(self) -> None:
        """Make what an update reads for a split parameter where the parameter goes: its value before, state, a kept gradient.

        In a graph that makes a parameter and updates it, only the updated one has the name; the first was whole otherwise.
        """
        for node in reversed(self.graph.nodes):
            updated = {node.outputs[r]: node.inputs[o] for r, o in node.op.inplace_pairs(len(node.inputs), node.attrs)}
            ruled = [v for v in updated if v in self.fixed and self.fixed[v].is_split and self.origin[v].startswith(RULE)]
            rule = node.op.rule([v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
            if not ruled or rule is None or node.op.follows is None:
                continue
            wanted: dict[Value, dict[Value | None, None]] = {}  # by what is read: the parameters it is read for
            for part in components(rule):
                leader = next((node.outputs[r] for r in part.results if node.outputs[r] in ruled), None)
                for value in (node.inputs[i] for i in part.operands):
                    fits = leader is not None and updated[leader] not in self.placed and value.type.shape == leader.type.shape
                    wanted.setdefault(value, {})[leader if fits else None] = None
            for value, leaders in wanted.items():  # zeros may be read for several
                leader, *others = leaders
                kept = value in updated.values() or value in self.is_output
                if None in leaders or leader is None or not kept or value in self.placed or value in self.fixed:
                    continue
                if all(self.fixed[other] == self.fixed[leader] for other in others if other is not None):
                    self.fixed[value], self.origin[value] = self.fixed[leader], self.origin[leader]

    def _split_created(self) -> None:
        """The simple automatic rule: created tensors are split by rows where the workers divide them.

        Constants that nobody keeps are made where they are read.
        """
        axes = tuple(axis for axis, _ in self.mesh.axes)
        for node in self.graph.nodes:
            if not node.op.creates or self.configs.get(node.signal or "", UNPLACED).shard is not None:
                continue
            for value in node.outputs:
                fits = value.type.ndim > 1 and value.type.shape[0] and value.type.shape[0] % self.mesh.size == 0
                if fits and value not in self.fixed and (node.op.random or value in self.is_output):
                    rows = tuple(axes if d == 0 else () for d in range(value.type.ndim))
                    self.fixed[value] = Sharding(self.mesh, rows)
                    self.origin[value] = "created tensors are split by rows (GT_AUTO_SHARD=0 keeps them whole)"

    def _keep_updates(self) -> None:
        """An output that overwrites an input stays where the input is, or the next step would be another plan.

        Only what belongs to a parameter (``OpDef.follows``), the state of an optimizer, may be split to suit the
        parameter; and a signal over a step places the state, not the parameters, also of the step whose graph makes them.
        """
        inputs, homes = set(self.graph.inputs), {v: self.homes.get(node, self.mesh) for node in self.graph.nodes for v in node.outputs}
        for node in self.graph.nodes:
            follows = _following(node)
            for result, operand in node.op.inplace_pairs(len(node.inputs), node.attrs):
                new, old = node.outputs[result], node.inputs[operand]
                if new not in self.is_output or new in self.fixed or new.type.shape != old.type.shape:
                    continue
                own = follows is not None and result in follows
                if old in inputs and not (own and self.placed[old].is_replicated):
                    self.fixed[new] = self.placed[old]
                elif old not in inputs and follows and not own and self.fixed.keys() >= {node.outputs[r] for r in follows}:
                    self.fixed[new] = self.fixed.get(old) or Sharding.replicated(homes[old], old.type.ndim)
                else:
                    continue
                self.origin[new] = IN_PLACE

    # -- forward

    def settle(self) -> None:
        """Go forward and backward until nothing changes."""
        self.forward()
        for _ in range(ROUNDS):
            if not self.backward():
                break
            self.forward()

    def forward(self) -> None:
        self.needed.clear()
        for node in self.graph.nodes:
            self.choices[node] = choice = self._choose(node)
            for value, need in zip(node.inputs, choice.requires, strict=True):
                if not usable_as(self.placed[value], need):
                    self.needed.setdefault(value, set()).add(need)
            for value, made in zip(node.outputs, choice.produces, strict=True):
                want = self._target(node, value, made)
                self.placed[value] = made if usable_as(made, want) else want

    def _target(self, node: Node, value: Value, made: Sharding) -> Sharding:
        """Give where a value is wanted once made: as asked; a graph output is never left pending."""
        asked = self._asked(node, value)
        if asked is not None:
            return asked
        if made.partial and value in self.is_output:
            return Sharding(made.mesh, made.dims)
        return made

    def _choose(self, node: Node) -> Choice:
        if node.outputs and (decided := self.decided.choices.get(node.outputs[0])) is not None:
            return decided
        home = self._home(node)
        current = self._found(node)
        types = tuple(v.type.placed(None) for v in node.inputs)
        results = tuple(v.type for v in node.outputs)
        rule = node.op.rule(types, results, node.attrs) if home.size > 1 else None
        if rule is None:
            whole = tuple(Sharding.replicated(home, t.ndim) for t in types)
            requires = tuple(have if usable_as(have, w) else w for have, w in zip(current, whole, strict=True))
            return Choice(requires, tuple(Sharding.replicated(home, t.ndim) for t in results), (), 0.0)
        wanted = tuple(self._asked(node, v) or self.wishes.get(v) for v in node.outputs)
        uses = tuple(self.num_uses[v] + (v in self.is_output) == 1 for v in node.inputs)
        done = tuple(frozenset(self.needed.get(v, ())) for v in node.inputs)
        key = (node.op, node.attrs, home, types, results, current, wanted, uses, done)
        if key not in self.memo:
            linear = node.op.linear_groups(len(node.inputs), node.attrs)
            self.memo[key] = choose(Problem(home, rule, types, results, current, wanted, linear, uses, done))
        return self.memo[key]

    def _found(self, node: Node) -> tuple[Sharding, ...]:
        """Give where an op takes its operands to be: parameters that are to be joined whole, beside others that are split."""
        placed = tuple(self.placed[v] for v in node.inputs)
        if not self.joined or node.op.inplace_pairs(len(node.inputs), node.attrs):
            return placed
        own = [v in self.parameters for v in node.inputs]
        if not any(p.is_split for p, mine in zip(placed, own, strict=True) if not mine):
            return placed
        return tuple(
            Sharding.replicated(p.mesh, v.type.ndim) if mine and p.is_split else p
            for v, p, mine in zip(node.inputs, placed, own, strict=True)
        )

    def seconds(self) -> float:
        """Give the predicted time of what is placed, one thing after another."""
        total = 0.0
        moves: dict[tuple[Value, Sharding, Sharding], None] = {}
        for node in self.graph.nodes:
            choice = self.choices[node]
            sizes = dict(self._home(node).axes)
            shares = math.prod(sizes.get(axis, 1) for _, axes in choice.factors for axis in axes)
            nbytes = sum(v.type.nbytes for v in node.outputs)
            total += compute_s(node_work(node) // shares, nbytes // shares)
            moves |= {(v, made, self.placed[v]): None for v, made in zip(node.outputs, choice.produces, strict=True)}
            moves |= {(v, self.placed[v], need): None for v, need in zip(node.inputs, choice.requires, strict=True)}
        return total + sum(cost_s(have, want, v.type) for v, have, want in moves)

    def _asked(self, node: Node, value: Value) -> Sharding | None:
        """Give the placement a result must end in, if any."""
        asked = self.fixed.get(value)
        if value in self.decided.landed:
            return asked
        return None if asked is not None and node.op.view and self._only_moves_whole(node) else asked

    def _only_moves_whole(self, node: Node) -> bool:
        """Whether the node merely rearranges values that are whole, such as the transpose of a parameter.

        Cutting those by the signal of the layer they are in would only have them gathered again.
        """
        if not all(self.placed[v].is_replicated for v in node.inputs):
            return False
        rule = node.op.rule(tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs), node.attrs)
        return rule is not None and rule.operands[:1] != rule.results[:1]

    def _home(self, node: Node) -> Mesh:
        if node in self.homes:
            return self.homes[node]
        asked = [a for v in node.outputs if (a := self._asked(node, v)) is not None]
        if asked and (node.signal in self.configs or not node.inputs):
            return asked[0].mesh
        operands = [(self.placed[v], v.type) for v in node.inputs]
        split = [(p, t) for p, t in operands if not p.is_replicated]
        if split:
            return max(split, key=lambda pair: pair[1].nbytes)[0].mesh
        if asked:
            return asked[0].mesh
        wished = [self.wishes[v] for v in node.outputs if v in self.wishes]
        if wished:
            return wished[0].mesh
        meshes = dict.fromkeys([self.mesh, *(p.mesh for p, _ in operands)])
        reach = lambda mesh: sum(cost_s(p, Sharding.replicated(mesh, t.ndim), t) for p, t in operands)  # noqa: E731
        return min(meshes, key=reach)

    # -- backward

    def backward(self) -> bool:
        """Find values that every reader cuts alike, and wish them made so. Whether a wish is new."""
        needs: dict[Value, list[Sharding]] = {v: [self.placed[v]] for v in self.graph.outputs}
        found = False
        for node in reversed(self.graph.nodes):
            choice = self.choices[node]
            before = len(self.wishes)
            for value in node.outputs:
                self._wish(value, needs.get(value, []))
            if len(self.wishes) > before:
                found = True
                choice = self._choose(node)
            for value, need in zip(node.inputs, choice.requires, strict=True):
                needs.setdefault(value, []).append(need)
        return found

    def _wish(self, value: Value, needs: list[Sharding]) -> None:
        have = self.placed[value]
        if value in self.fixed or value in self.wishes or not needs or not have.is_replicated:
            return
        need = needs[0]
        if need != have and not need.partial and all(n == need for n in needs) and is_local(have, need, value.type):
            self.wishes[value] = need

    # -- the placed graph

    def emit(self) -> Graph:
        emitted = PlacedGraph(self.graph, self.context, self.placed, self.origin, self.needed)
        for value in self.graph.inputs:
            emitted.now[value] = moved = emitted.move(value, self.placed[value], None, self.origin[value])
            if moved is not value or placement(value).is_split:
                self.context.note(moved, self.origin[value])
                self.context.origins[moved] = Origin(self.origin[value])
        for node in self.graph.nodes:
            emitted.add(node, self.choices[node])
        outputs = tuple(emitted.now[v] for v in self.graph.outputs)
        self.context.output_shardings = [placement(v) for v in outputs]
        names = readable_names(self.graph.inputs, emitted.nodes)
        self.context.output_reasons = [self.context.explain(v, names) for v in outputs]
        placed = replace(self.graph, nodes=tuple(emitted.nodes), outputs=outputs, stage=Stage.SHARDED)
        placed = Dce().run(placed, self.context)  # of sums that were to be pending, and are added up part by part
        self.context.placement_notes = placement_notes(self.graph, placed, self.context)
        return placed

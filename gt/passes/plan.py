"""From a captured graph to each worker's program: the planner's entry.

Owns: ``Cluster``, ``Plan``, ``plan_graph``, ``run_pipeline``. Next: ``pipeline`` (the passes in order).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from gt.ir.graph import Graph
from gt.ir.mesh import Mesh, Sharding
from gt.ir.program import Program
from gt.passes.estimate import predicted_s
from gt.passes.pipeline import DEFAULT, Context, OnPass, Pipeline, Verify
from gt.passes.reasons import PlanReasons, plan_reasons, shown_notes


@dataclass(frozen=True)
class Cluster:
    """The workers a plan may use, by index. Values that no signal places are whole on all that take part."""

    workers: tuple[int, ...]

    @property
    def mesh(self) -> Mesh:
        return Mesh("all", (("w", len(self.workers)),), self.workers)


@dataclass(frozen=True)
class Plan:
    """Programs by worker, and where each output lands. Input placements are those of the graph's inputs.

    ``reasons``: for each output why it is there, from its own reason back to what the user said. ``told``: these and all else
    that the plan says of itself, as it travels; its name and notes where one worker does everything. ``seconds``: how long a run
    takes by prediction, 0 unless asked for.
    """

    programs: Mapping[int, Program]
    outputs: tuple[Sharding, ...]
    reasons: tuple[tuple[str, ...], ...] = ()
    told: PlanReasons = PlanReasons("")
    seconds: float = 0.0


def run_pipeline(
    pipeline: Pipeline, graph: Graph, mesh: Mesh, verify: Verify = "ends", on_pass: OnPass | None = None
) -> tuple[Graph, Context]:
    """Run a pipeline; give the last graph and what passes noted. ``on_pass`` hears of the passes that led there.

    A search under a limit on memory that its plan keeps anyway finds what it finds without. It reckons with more than a run takes, for
    later passes save some, so it is held to the limit only where these are not enough.
    """
    limit = graph.options.memory_limit
    made = {out: node.loc for node in graph.nodes for out in node.outputs}
    locs = tuple(map(made.get, graph.outputs))
    tries = [(graph, True)]
    if limit is not None and graph.options.auto == "search":
        free = replace(graph, options=msgspec.structs.replace(graph.options, memory_limit=None))
        tries = [(free, True), (graph, False), *tries]
    for tried, within in tries:
        heard: list[tuple[str, Graph, Graph, float]] = []
        context = Context(mesh, within=within, output_locs=locs)
        final = pipeline.run(tried, context, verify, lambda *step, heard=heard: heard.append(step))  # type: ignore[misc]
        if limit is None or context.memory is None or context.memory.most <= limit:
            break
    if on_pass is not None:
        for step in heard:
            on_pass(*step)
    return final, context


def plan_graph(graph: Graph, cluster: Cluster, pipeline: Pipeline = DEFAULT, *, timed: bool = False) -> Plan:
    """Lower a captured graph whose inputs are placed; ``timed``: say how long it will take. Errors: PassError naming the pass at fault."""
    final, context = run_pipeline(pipeline, graph, cluster.mesh)
    assert context.programs is not None
    everyone = len(cluster.workers)
    told = plan_reasons(final, context, everyone) if everyone > 1 else PlanReasons(graph.name, notes=shown_notes(context))
    seconds = predicted_s(final, context) if timed else 0.0
    return Plan(context.programs, tuple(context.output_shardings), tuple(context.output_reasons), told, seconds)

"""What ``gt compile`` shows: a graph as captured, after each pass that changed it, and each worker's program.

Owns: reading scripts and ``.gtir`` files, lowering them step by step, choosing and writing what is asked for.
Must not know: the command line. Next: ``scripted`` (runs a script), ``gt.ir.text`` and ``gt.ir.dot`` (the forms).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gt.drawing import draw_graph, draw_layouts
from gt.ir.dot import to_dot, to_json
from gt.ir.graph import Graph, Stage
from gt.ir.program import Collective, Compute, Program, unpack_attrs
from gt.ir.text import attr_text, parse_graph, print_graph, print_program, value_names
from gt.ir.verify import verify
from gt.passes.estimate import Estimate, estimate
from gt.passes.lower_programs import Programs
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster, run_pipeline
from gt.passes.reasons import shown_notes

MANY = 64  # workers: beyond, one program for each role is shown, and graphs are verified at both ends only
_WORKERS = re.compile(r"^; workers: ([1-9]\d*)$", re.MULTILINE)  # what a dump notes for reading it again
FORMATS = {"text": "gtir", "json": "json", "dot": "dot"}


@dataclass(frozen=True)
class Step:
    """The graph after one pass; ``name`` is "captured" for the graph that no pass has seen."""

    name: str
    graph: Graph


@dataclass(frozen=True)
class Lowered:
    """A graph on its way down: every step that changed it, the programs, and what a run is estimated to cost.

    ``programs``: of all workers that take part, or of one for each role where there are many; ``every`` has all.
    ``reasons``: why each output is where it is. ``order``: all passes, those that changed nothing too. ``notes``: on placement and memory.
    """

    steps: tuple[Step, ...]
    programs: tuple[Program, ...]
    estimate: Estimate
    num_workers: int = 1
    runs: int = 0
    reasons: tuple[tuple[str, ...], ...] = ()
    order: tuple[str, ...] = ()
    every: Mapping[int, Program] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.steps[0].graph.name


@dataclass(frozen=True)
class Selection:
    """Which steps and programs to show: all of them unless a stage, passes or workers are named."""

    stage: str | None = None
    passes: tuple[str, ...] = ()
    workers: tuple[int, ...] = ()

    def steps(self, lowered: Lowered) -> list[tuple[int, Step]]:
        """Give the chosen steps, each with its number among all."""
        numbered = list(enumerate(lowered.steps))
        if self.passes:
            return [(i, s) for i, s in numbered if s.name in self.passes]
        if self.stage == "captured":
            return numbered[:1]
        if self.stage == "programs" or (self.stage is None and self.workers):
            return []
        return [(i, s) for i, s in numbered if self.stage in (None, s.graph.stage.value)]

    def programs(self, lowered: Lowered) -> list[Program]:
        if self.passes and not self.workers or self.stage not in (None, "programs"):
            return []
        if self.workers:
            return [lowered.every[w] for w in sorted(set(self.workers)) if w in lowered.every]
        return list(lowered.programs)

    def nothing(self, lowered: Lowered) -> list[tuple[str, str]]:
        """Give what is asked for by name and not there, and why."""
        changed = {step.name for step in lowered.steps}
        passes = [(f"after {name}", "it changed nothing") for name in self.passes if name not in changed]
        shows = self.stage in (None, "programs")
        return passes + [(f"worker {w}", "it takes no part") for w in self.workers if shows and w not in lowered.every]


_MAKES = {"propagate_sharding": Stage.SHARDED, "insert_collectives": Stage.EXPLICIT, "localize": Stage.LOCAL}


def _rest(pipeline: Pipeline, graph: Graph) -> Pipeline:
    """Give the passes that a graph of its stage has not been through."""
    done = [i for i, p in enumerate(pipeline.passes) if _MAKES.get(p.name) is graph.stage]
    return Pipeline(pipeline.passes[done[-1] + 1 :]) if done else pipeline


def lower(graph: Graph, cluster: Cluster, pipeline: Pipeline = DEFAULT, runs: int = 0) -> Lowered:
    """Lower a captured graph, verifying after each pass and keeping each step that changed it. Errors: PassError."""
    steps = [Step("captured", graph)]

    def observe(name: str, before: Graph, after: Graph, seconds: float) -> None:
        if after is not before:
            steps.append(Step(name, after))

    pipeline = _rest(pipeline, graph)
    many = len(cluster.workers) > MANY
    final, context = run_pipeline(pipeline, graph, cluster.mesh, "ends" if many else "each", observe)
    if not isinstance(context.programs, Programs):
        raise ValueError(f"the pipeline {pipeline} makes no programs: end it with lower_programs")
    shown = sorted(context.programs.roles() if many else context.programs)
    return Lowered(
        tuple(steps), tuple(context.programs[w] for w in shown), estimate(final, context), len(cluster.workers), runs,
        tuple(context.output_reasons), ("captured", *(p.name for p in pipeline.passes)), context.programs, shown_notes(context),
    )  # fmt: skip


def read_gtir(path: Path) -> tuple[Graph, int]:
    """Read a dumped graph, and for how many workers it was dumped or, if that is not noted, which its placements name.

    Errors: ParseError, VerifyError, OSError.
    """
    text = path.read_text(encoding="utf-8")
    graph = parse_graph(text)
    verify(graph)
    noted = _WORKERS.search(text)
    meshes = [v.type.sharding.mesh for v in graph.values if v.type.sharding is not None]
    return graph, int(noted[1]) if noted else max((max(m.workers) + 1 for m in meshes), default=1)


# -- showing


def summary(lowered: Sequence[Lowered]) -> str:
    """Give one line for each graph: what it holds and what it moves."""
    rows: list[tuple[str, ...]] = [("graph", "runs", "nodes", "regions", "collectives", "bytes moved", "where")]
    for one in lowered:
        program = one.programs[0]
        collectives = [c for c in program.collectives if c.kind != "wait"]
        where = next((str(n.loc) for n in reversed(one.steps[0].graph.nodes) if n.loc), "")
        counts = (
            one.runs, len(one.steps[0].graph.nodes), sum(isinstance(s, Compute) for s in program.steps),
            len(collectives), sum(c.nbytes for c in collectives),
        )  # fmt: skip
        rows.append((one.name, *map(str, counts), where))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() + "\n" for row in rows)


def render(lowered: Sequence[Lowered], selection: Selection, form: str) -> str:
    """Give everything chosen as one text: readable text, one JSON object, or DOT drawings one after another."""
    if form == "json":
        return json.dumps({"graphs": [_json(one, selection) for one in lowered]}, indent=1) + "\n"
    mark, parts = "//" if form == "dot" else ";", []
    for one in lowered:
        for _, title, body in _pieces(one, selection, form):
            parts.append(f"{mark} ---- {title}\n{body}")
        parts += [f"{mark} ---- {one.name}: {what}: {why}\n" for what, why in selection.nothing(one)]
    return "\n".join(parts)


def write(lowered: Sequence[Lowered], selection: Selection, form: str, folder: Path) -> list[Path]:
    """Write each chosen piece to a file of its own: ``GRAPH/NN-PASS.gtir``, ``GRAPH/worker-W.txt``."""
    out = []
    for one in lowered:
        for name, _, body in _pieces(one, selection, form):
            suffix = "txt" if form == "text" and name.startswith("worker-") else FORMATS[form]
            path = folder / one.name / f"{name}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, encoding="utf-8")
            out.append(path)
    return out


def draw(lowered: Sequence[Lowered], selection: Selection, form: str, folder: Path) -> list[Path]:
    """Draw each chosen graph, ``GRAPH/NN-PASS.svg``, and where its inputs and outputs lie, ``GRAPH/layouts.svg``.

    Errors: TooLarge, ImportError.
    """
    out = []
    for one in lowered:
        (folder / one.name).mkdir(parents=True, exist_ok=True)
        for number, step in selection.steps(one):
            out.append(folder / one.name / f"{number:02d}-{step.name}.{form}")
            draw_graph(step.graph, out[-1])
        placed = next((s.graph for s in one.steps if s.graph.stage in (Stage.SHARDED, Stage.EXPLICIT)), None)
        if placed is not None:
            names = value_names(placed)
            values = [(names[v], v.type) for v in dict.fromkeys((*placed.inputs, *placed.outputs)) if v.type.ndim]
            out.append(folder / one.name / f"layouts.{form}")
            draw_layouts(values, out[-1])
    return out


def _pieces(one: Lowered, selection: Selection, form: str) -> Iterator[tuple[str, str, str]]:
    """Give file name, title and text of each chosen step and program."""
    for number, step in selection.steps(one):
        text = {
            "text": lambda g: print_graph(g, locations=True).replace("\n", f"\n; workers: {one.num_workers}\n", 1),
            "json": lambda g: json.dumps(to_json(g), indent=1) + "\n",
            "dot": to_dot,
        }[form](step.graph)
        title = f"{one.name}: {'captured' if number == 0 else f'after {step.name}'}"
        yield f"{number:02d}-{step.name}", title, text
    for program in selection.programs(one):
        text = {
            "text": print_program,
            "json": lambda p: json.dumps(msgspec.to_builtins(p), indent=1) + "\n",
            "dot": program_dot,
        }[form](program)
        yield f"worker-{program.worker}", f"{one.name}: worker {program.worker}", text


def _json(one: Lowered, selection: Selection) -> dict[str, Any]:
    return {
        "name": one.name,
        "runs": one.runs,
        "steps": [{"pass": s.name, "graph": to_json(s.graph)} for _, s in selection.steps(one)],
        "programs": [msgspec.to_builtins(p) for p in selection.programs(one)],
    }


# -- drawings of programs


def program_dot(program: Program) -> str:
    """Give a worker's program as DOT text: its regions and collectives in order."""
    name = f"{program.name} worker {program.worker}"
    lines = [f"digraph {_quoted(name)} {{", "  node [shape=box, fontname=monospace];"]
    for i, (label, color) in enumerate(_steps(program)):
        lines.append(f"  s{i} [label={label}, style=filled, fillcolor={color}];")
        if i:
            lines.append(f"  s{i - 1} -> s{i};")
    return "\n".join([*lines, "}"]) + "\n"


def _steps(program: Program) -> Iterator[tuple[str, str]]:
    """Give label and colour of each region and collective."""
    for step in program.steps:
        if isinstance(step, Compute):
            ops = [node.op for node in step.nodes]
            shown = ops if len(ops) <= 12 else [*ops[:11], f"... {len(ops) - 11} more"]
            yield _quoted(f"region, {len(ops)} ops" + (", compiled" if step.compile else ""), *shown), "white"
        elif isinstance(step, Collective):
            attrs = ", ".join(f"{name}={attr_text(value)}" for name, value in unpack_attrs(step.attrs))
            lines = [f"{'begin ' if step.begins else ''}{step.kind} {step.nbytes} B", f"group {' '.join(map(str, step.group))}", attrs, step.why]
            yield _quoted(*(line for line in lines if line)), "lightsalmon"


def _quoted(*lines: str) -> str:
    """Quote lines of a DOT label."""
    escaped = (line.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") for line in lines)
    return '"' + "\\n".join(escaped) + '"'


__all__ = [
    "FORMATS", "Lowered", "Selection", "Step", "draw", "lower", "read_gtir", "render", "summary", "write",
]  # fmt: skip

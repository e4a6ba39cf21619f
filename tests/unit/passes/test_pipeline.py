"""The runner: strings that round-trip, options, verification, dumps, and failures that can be repeated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh
from gt.ir.text import parse_graph, print_graph
from gt.ir.types import TensorType, float32
from gt.passes.context import Context
from gt.passes.pipeline import DEFAULT, PASSES, Pass, PassError, Pipeline, PipelineError
from gt.passes.plan import Cluster, plan_graph

TEXT = """gtir 1
graph @g global {
  input %x: f32[4]
  %a = exp(%x) : f32[4]
  %b = exp(%x) : f32[4]
  %c = mul(%a, %b) : f32[4]
  return %c
}
"""


def context() -> Context:
    return Context(Mesh("all", (("w", 1),), (0,)))


@dataclass(frozen=True)
class Breaks:
    """A pass that returns a graph in which nothing is defined."""

    name: str = "breaks"

    def run(self, graph: Graph, context: Context) -> Graph:
        return replace(graph, outputs=(Value(TensorType((), float32)),))


@dataclass(frozen=True)
class Raises:
    name: str = "raises"

    def run(self, graph: Graph, context: Context) -> Graph:
        raise KeyError("lost")


@pytest.mark.parametrize(
    "text", ["dce", "autodiff,dce", "decompose{all=true},dce", "fuse_hot_path{min_repeats=2,min_nodes=3}", ""]
)
def test_strings_round_trip(text: str) -> None:
    assert str(Pipeline.parse(text)) == text
    assert Pipeline.parse(str(Pipeline.parse(text))) == Pipeline.parse(text)


def test_spaces_and_defaults_are_left_out() -> None:
    assert str(Pipeline.parse(" autodiff , fuse_hot_path{ min_repeats = 3 } ")) == "autodiff,fuse_hot_path"
    assert str(DEFAULT) == ",".join(PASSES)


@pytest.mark.parametrize(
    ("text", "why"),
    [("nothing", "unknown pass 'nothing'"), ("dce{x=1}", "dce: "), ("dce{x}", "expected option=value"),
     ("fuse_hot_path{min_repeats=two}", "'two' is no number"), ("a b", "expected name")],
)  # fmt: skip
def test_bad_strings(text: str, why: str) -> None:
    with pytest.raises(PipelineError, match=why.replace("(", "\\(")):
        Pipeline.parse(text)


@pytest.mark.parametrize(("verify", "blamed"), [("each", "breaks"), ("ends", "breaks")])
def test_a_broken_graph_is_blamed_on_the_pass(verify: str, blamed: str) -> None:
    steps: tuple[Pass, ...] = (*Pipeline.parse("cse").passes, Breaks())
    with pytest.raises(PassError) as caught:
        Pipeline(steps).run(parse_graph(TEXT), context(), verify=verify)  # type: ignore[arg-type]
    assert caught.value.pass_name == blamed and "output 0" in str(caught.value)
    before = parse_graph(caught.value.gtir)
    assert [n.op.name for n in before.nodes] == ["exp", "mul"]  # the graph before the pass, after cse
    assert caught.value.rest == "breaks"


def test_a_pass_that_raises_leaves_its_input_and_the_rest_of_the_pipeline() -> None:
    steps = (Raises(), *Pipeline.parse("cse,dce").passes)
    with pytest.raises(PassError, match="pass raises: KeyError: 'lost'") as caught:
        Pipeline(steps).run(parse_graph(TEXT), context())
    assert caught.value.rest == "raises,cse,dce" and parse_graph(caught.value.gtir) == parse_graph(TEXT)


def test_off_verifies_nothing() -> None:
    assert Pipeline((Breaks(),)).run(parse_graph(TEXT), context(), verify="off").outputs[0].type.shape == ()


def test_the_hook_sees_every_pass() -> None:
    seen: list[tuple[str, bool]] = []
    Pipeline.parse("cse,cse,dce").run(
        parse_graph(TEXT), context(), on_pass=lambda name, before, after, seconds: seen.append((name, before is after))
    )
    assert seen == [("cse", False), ("cse", True), ("dce", True)]


def test_plan_graph_gives_a_program_for_each_worker() -> None:
    plan = plan_graph(parse_graph(TEXT), Cluster((2, 5)))
    assert set(plan.programs) == {2, 5} and plan.programs[5].worker == 5
    assert len(plan.outputs) == 1 and plan.outputs[0].mesh.workers == (2, 5)
    assert plan.programs[2].steps == plan.programs[5].steps


def test_a_dumped_graph_gives_the_same_programs() -> None:
    path = next(Path(__file__).resolve().parents[2].glob("golden/lower_programs/data_parallel.gtir"))
    graph = parse_graph(path.read_text().split("; expected")[0])
    again = parse_graph(print_graph(graph, locations=True))
    cluster = Cluster((0, 1, 2, 3))
    assert plan_graph(again, cluster).programs == plan_graph(graph, cluster).programs
    front = Pipeline.parse("autodiff,decompose,simplify,cse,dce,propagate_sharding,insert_collectives")
    middle = front.run(graph, Context(cluster.mesh))
    rest = Pipeline.parse("localize,fuse_hot_path,plan_memory,lower_programs")
    whole, half = Context(cluster.mesh), Context(cluster.mesh)
    rest.run(middle, whole)
    rest.run(parse_graph(print_graph(middle, locations=True)), half)
    assert whole.programs is not None and half.programs is not None
    for worker, program in whole.programs.items():
        assert half.programs[worker].outputs == program.outputs
        assert [type(s) for s in half.programs[worker].steps] == [type(s) for s in program.steps]

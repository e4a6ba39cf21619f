"""Sharded equals unsharded where torch computes: random steps on workers as they are, run several times on the values that they keep.

Whole numbers are compared bit by bit, what rounds as float64 does. Repeat a failure with ``--hypothesis-seed=N``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.types import DType, TensorType, float64
from gt.passes.context import Context
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster, Plan, plan_graph
from gt.runtime.cutting import Cut, cut_plan
from gt.runtime.planner import place_inputs
from gt.runtime.simulator import parts_of, whole_of
from tests.property.sharding_graphs import Recorder, record
from tests.property.torch_workers import TorchWorkers
from tests.property.training_graphs import Steps, laid_out, steps

TOLERANCE = {"float64": 1e-8, "float32": 2e-3, "float16": 0.1}
EXACT = {"float64": 2.0**53, "float32": 2.0**22, "float16": 2.0**10}  # beyond which sums of whole numbers round, and what compares them may differ
GRADIENTS = Pipeline.parse("autodiff")
PIPELINES = {
    "default": DEFAULT,
    "travelling": Pipeline.parse(str(DEFAULT).replace("fuse_hot_path", "fuse_hot_path{overlap_s=-1.0}")),  # as if all took long
    "chunked": Pipeline.parse(str(DEFAULT).replace("chunk_rows", "chunk_rows{above=1,target=1}")),
}


@pytest.fixture(scope="module")
def workers() -> Iterator[TorchWorkers]:
    made = TorchWorkers(4)
    yield made
    made.close()


@pytest.mark.timeout(300)
@settings(max_examples=300)
@given(steps(), st.sampled_from(list(PIPELINES)), st.sampled_from([1, 1, 1, 3, 20]))
def test_steps_on_workers_equal_steps_on_numpy(workers: TorchWorkers, case: Steps, pipeline: str, parts: int) -> None:
    run_both(workers, case, PIPELINES[pipeline], parts)


def run_both(workers: TorchWorkers, case: Steps, pipeline: Pipeline = DEFAULT, parts: int = 1) -> None:
    """Run a case on the workers and on NumPy; after each step, all that is kept is what it was, or is what it should be.

    ``parts``: each run in so many, where it can be cut.
    """
    there = There(case, workers, pipeline, parts)
    whole = GRADIENTS.run(case.graph, Context(there.cluster.mesh))
    now = list(case.inputs)
    try:
        for run in range(case.runs):
            largest = [0.0]
            want = evaluate(whole, now, seen=lambda node, given, made, largest=largest: largest.append(most(made)))
            if max(largest) > EXACT[now[0].dtype.name]:
                return
            there.step(want)
            there.check(f"run {run}")
            now = [want[case.states[i]] if i in case.states else array for i, array in enumerate(now)]
    finally:
        there.close()


def most(arrays: Sequence[np.ndarray]) -> float:
    """Give the largest magnitude in arrays of floats."""
    return max([float(np.abs(a).max()) for a in arrays if a.dtype.kind in "fc" and a.size], default=0.0)


class There:
    """A case on workers: its values by uid, where they are and what they should be, and its plans by where the inputs are."""

    def __init__(self, case: Steps, workers: TorchWorkers, pipeline: Pipeline, parts: int) -> None:
        self.case, self.workers, self.pipeline, self.parts = case, workers, pipeline, parts
        self.cluster = Cluster(tuple(range(case.num_workers)))
        self.plans: dict[tuple[Sharding, ...], tuple[Plan, list[int], Cut | None]] = {}
        self.values: dict[int, tuple[str, Sharding, np.ndarray]] = {}
        self.inputs = []
        for i, (value, array, layout) in enumerate(zip(case.graph.inputs, case.inputs, case.layouts, strict=True)):
            placed = value.type.sharding or Sharding.replicated(self.cluster.mesh, value.type.ndim)
            own = parts_of(array, placed, value.type.dtype)
            uid = workers.keep({w: laid_out(part, layout) for w, part in own.items()})
            self.values[uid] = f"x{i}", placed, array
            self.inputs.append(uid)

    def step(self, want: Sequence[np.ndarray]) -> None:
        """Run once, and put what replaces inputs in their place."""
        plan, loaded, cut = self._plan()
        states = self.case.states
        freed = [self.inputs[i] for i in states if i not in self.case.held]
        if cut is None:
            made = self.workers.run(loaded[0], self.inputs, len(want), freed)
        else:
            made = self._run_in_parts(loaded, cut, len(want), freed)
        for i, (uid, placed, array) in enumerate(zip(made, plan.outputs, want, strict=True)):
            self.values[uid] = f"output {i}", placed, array
        for uid in freed:
            del self.values[uid]
        for i, output in states.items():
            self.inputs[i] = made[output]

    def check(self, when: str) -> None:
        """Compare all values that are kept with what they should be."""
        for uid, (name, placed, want) in self.values.items():
            parts = self.workers.parts(uid)
            type_, tolerance = TensorType(want.shape, DType.by_name[want.dtype.name]), TOLERANCE[want.dtype.name]
            got = whole_of({w: parts[w] for w in placed.mesh.workers}, placed, type_)
            np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=f"{when}: {name}")

    def close(self) -> None:
        self.workers.free(list(self.values))
        for _, loaded, _ in self.plans.values():
            for plan in loaded:
                self.workers.unload(plan)

    def _plan(self) -> tuple[Plan, list[int], Cut | None]:
        placed = tuple(self.values[uid][1] for uid in self.inputs)
        if placed not in self.plans:
            types = [v.type.placed(p) for v, p in zip(self.case.graph.inputs, placed, strict=True)]
            plan, cut = plan_graph(place_inputs(self.case.graph, types), self.cluster, self.pipeline), None
            if self.parts > 1:
                cut = cut_plan(plan.programs, len(types), len(plan.outputs), self.parts, 0)
            programs = [plan.programs] if cut is None else [part.programs for part in cut.parts]
            self.plans[placed] = plan, [self.workers.load(p) for p in programs], cut
        return self.plans[placed]

    def _run_in_parts(self, loaded: Sequence[int], cut: Cut, outputs: int, freed: Sequence[int]) -> list[int]:
        """Run a plan part by part, each freeing what no later one reads."""
        made, kept = self.workers.new(outputs), self.workers.new(cut.kept)
        for plan, part in zip(loaded, cut.parts, strict=True):
            over = [uid for i, uid in enumerate(self.inputs) if i in part.last_inputs and uid in freed]
            over += [kept[k] for k in part.last_kept]
            over = [*freed, *kept] if part is cut.parts[-1] else over
            self.workers.execute(plan, [*self.inputs, *made, *kept], [*made, *kept], over)
        return made


def case_of(graph: Graph, num_workers: int, states: dict[int, int], inputs: Sequence[np.ndarray], runs: int = 3) -> Steps:
    return Steps(graph, tuple(inputs), num_workers, states, ("plain",) * len(inputs), frozenset(), runs)


@pytest.mark.parametrize("late", [False, True])
def test_what_a_worker_keeps_of_a_transfer_is_read_before_it_is_overwritten(workers: TorchWorkers, late: bool) -> None:
    """Rows that go one worker on are put together with those that stay where they are first read, behind the update of both."""
    x = TensorType((6,), float64, Sharding(Cluster((0, 1, 2)).mesh, (("w",),)))

    def body(recorder: Recorder, x: Value) -> list[Value]:
        rows = OPS["slice"](x, starts=(1,), stops=(6,), steps=(1,))
        new = OPS["sub"](x, OPS["full"](shape=(), value=1.0, dtype=float64))
        return [OPS["neg"](OPS["mul"](rows, OPS["sum"](new, dims=(0,), keepdim=False, dtype=float64))) if late else rows, new]

    run_both(workers, case_of(record([x], body, donated=[0]), 3, {0: 1}, [np.arange(6.0)]))


def test_a_view_that_has_an_element_twice_is_kept_as_a_copy(workers: TorchWorkers) -> None:
    """The next run updates it in place."""
    flat, square = TensorType((4,), float64), TensorType((2, 2), float64)

    def first(recorder: Recorder, x: Value) -> list[Value]:
        return [OPS["as_strided"](OPS["neg"](x), size=(2, 2), stride=(1, 1), offset=0)]

    def then(recorder: Recorder, x: Value, more: Value) -> list[Value]:
        return [OPS["add"](x, more)]

    cluster = Cluster((0,))
    x, more = (workers.keep({0: torch.ones(shape, dtype=torch.float64)}) for shape in (4, (2, 2)))
    plans = [workers.load(plan_graph(graph, cluster).programs) for graph in (record([flat], first), record([square, square], then, donated=[0]))]
    (twice,) = workers.run(plans[0], [x], 1)
    (new,) = workers.run(plans[1], [twice, more], 1, [twice])
    np.testing.assert_array_equal(workers.parts(new)[0], np.zeros((2, 2)))
    workers.free([x, more, new])
    for plan in plans:
        workers.unload(plan)

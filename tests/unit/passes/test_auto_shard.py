"""The automatic search finds the layouts that people write by hand, keeps what they ask for, and says why."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.signals import PlanOptions, ShardConfig, SignalConfig
from gt.ir.types import TensorType, float32, float64
from gt.passes import pipeline
from gt.passes.autodiff import Autodiff
from gt.passes.context import Context, PlanRefused
from gt.passes.cost import H100
from gt.passes.estimate import estimate
from gt.passes.pipeline import Pipeline
from gt.passes.plan import Cluster, plan_graph, run_pipeline
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import Recorder, everyone, record
from tests.property.training_steps import SEARCH, adamw, classifier, mean_square, mlp, next_step, residual

EIGHT = Cluster(tuple(range(8)))
UNHURRIED = "propagate_sharding{search_s=100}"  # what is found hangs on no other user of the machine
DEFAULT = Pipeline.parse(str(pipeline.DEFAULT).replace("propagate_sharding", UNHURRIED))
EXPLICIT = Pipeline.parse(f"autodiff,decompose,simplify,cse,dce,{UNHURRIED},insert_collectives")
ROWS, COLUMNS, WHOLE = (("w",), ()), ((), ("w",)), ((), ())


class Planned:
    """A step as every run but the first finds it: parameters and moments are where the plan keeps them."""

    def __init__(self, step: Graph, cluster: Cluster = EIGHT) -> None:
        first = Context(cluster.mesh)
        DEFAULT.run(step, first, verify="each")
        self.step, self.context = next_step(step, first.output_shardings), Context(cluster.mesh)
        self.final = DEFAULT.run(self.step, self.context, verify="each")
        assert self.context.output_shardings == first.output_shardings, "the next search finds the same"
        self.outputs = self.context.output_shardings
        assert self.context.memory is not None
        self.peak = max(self.context.memory.peak_nbytes.values())
        self.explicit = EXPLICIT.run(self.step, Context(cluster.mesh))

    def comms(self, of_matrices: bool = True) -> Counter[str]:
        """Count the collectives, those on values of one dim or none left out."""
        nodes = (n for n in self.explicit.nodes if n.op.effect == "comm")
        return Counter(n.op.name for n in nodes if n.output.type.ndim > 1 or not of_matrices)

    def splits(self, op: str) -> set[tuple[object, ...]]:
        """Give how the first result of each node of an op is split."""
        placed = [n.outputs[0].type.sharding for n in self.explicit.nodes if n.op.name == op]
        return {p.dims for p in placed if p is not None}

    @property
    def notes(self) -> list[str]:
        return [why for _, why in self.context.notes if why.startswith("auto: ")]


# -- what people write by hand


def test_a_batch_heavy_mlp_is_data_parallel() -> None:
    found = Planned(mlp(65536, (512, 1024, 1024, 64)))
    assert all(placed.is_replicated for placed in found.outputs), "every worker has the whole model"
    assert found.splits("relu") == {ROWS}, "and a part of the batch"
    assert found.comms() == {"all_reduce": 3}, "one for the gradient of each weight"


def test_a_wide_mlp_is_split_by_columns_then_rows() -> None:
    found = Planned(mlp(64, (4096, 16384, 4096)))
    up, up_bias, down = found.outputs[1:4]
    assert (up.dims, up_bias.dims, down.dims) == (ROWS, (("w",),), COLUMNS)
    assert (found.outputs[5].dims, found.outputs[7].dims) == (ROWS, COLUMNS), "moments are with their parameter"
    assert found.splits("relu") == {COLUMNS}
    assert found.comms() == {"all_reduce": 1}, "one sum of the activations; the input needs no gradient"


def test_wide_residual_blocks_take_two_sums_each() -> None:
    found = Planned(residual(64, 4096, 16384, blocks=3))
    assert found.comms() == {"all_reduce": 2 * 3 - 1}, "forward and backward of each block, but not to the input"


def test_a_model_that_does_not_fit_is_fully_sharded() -> None:
    sizes, limit = (512, *(2048,) * 8), 300_000_000
    free = Planned(mlp(16384, sizes))
    assert free.peak > limit and not all(p.is_split for p in free.outputs[1:17:2])
    roomy = Planned(mlp(16384, sizes, options=PlanOptions("search", memory_limit=4 * limit)))
    assert roomy.comms() == free.comms(), "a limit that does not bind changes nothing"
    found = Planned(mlp(16384, sizes, options=PlanOptions("search", memory_limit=limit)))
    assert found.peak <= limit
    weights, moments = found.outputs[1:17:2], found.outputs[17:49:2]
    assert all(p.is_split for p in (*weights, *moments))
    assert found.comms() == {"all_gather": 8, "reduce_scatter": 8}, "each weight is joined, each gradient kept in parts"
    assert found.splits("relu") == {ROWS}, "and each worker has a part of the batch"
    gathers = [n for n in found.final.nodes if n.op.name == "all_gather" and n.output.type.shape == (2048, 2048)]
    assert len(gathers) >= 7 + 5, "joined once more for the backward, but for the layers next to it"
    assert any("whole, which takes more memory" in lines[0] for lines in found.context.output_reasons)


def test_what_fits_nowhere_takes_the_least_and_says_so() -> None:
    found = Planned(mlp(64, (256, 256, 64), options=PlanOptions("search", memory_limit=100_000)))
    assert any("which is the least found, over" in note for note in found.notes)
    assert found.peak < Planned(mlp(64, (256, 256, 64))).peak


def with_gradients(step: Graph) -> Graph:
    """Give a step that keeps the gradients, as ``.grad`` does until it is set to None."""
    grad = next(n for n in step.nodes if n.op.name == "grad")
    return replace(step, outputs=(*step.outputs, *grad.outputs))


def steady(step: Graph, cluster: Cluster = EIGHT) -> tuple[float, int, list[Sharding]]:
    """Give the predicted seconds and the peak of every run but the first, and where outputs are."""
    first, then = Context(cluster.mesh), Context(cluster.mesh)
    DEFAULT.run(step, first)
    own = 1 + sum(v.hint[:1] in "pmv" for v in step.inputs)
    final = DEFAULT.run(next_step(step, first.output_shardings[:own]), then)
    found = estimate(final, then)
    return found.seconds, found.peak_nbytes, then.output_shardings


def test_gradients_that_are_kept_stay_in_parts() -> None:
    step = mlp(16, (1024, 8192, 8192, 1024))
    seconds, peak, outputs = steady(step)
    kept_s, kept_peak, kept = steady(with_gradients(step))
    assert kept[: len(outputs)] == outputs, "the same plan"
    assert all(p.is_split for p, v in zip(kept[len(outputs) :], step.inputs[1:], strict=False) if v.type.ndim > 1)
    written = sum(v.type.nbytes for v in step.inputs[1:7]) / 8
    assert kept_s <= seconds + 1.1 * written / H100.memory_bandwidth, "which takes as long but for writing them"
    assert kept_peak <= peak + 1.1 * written


def test_a_tighter_limit_is_never_predicted_to_be_faster() -> None:
    step = with_gradients(mlp(16, (1024, 8192, 8192, 1024)))
    _, peak, _ = steady(step)
    found = [
        steady(replace(step, options=PlanOptions("search", memory_limit=round(peak * share))))[0] for share in (8, 2, 1.2, 1.0, 0.9)
    ]
    assert all(looser <= tighter * 1.001 for looser, tighter in itertools.pairwise(found)), found
    assert found[0] == pytest.approx(steady(step)[0], rel=1e-3), "a limit that does not bind changes nothing"


def test_a_limit_that_is_kept_anyway_changes_nothing_and_is_not_said_to_be_missed() -> None:
    """The search does not see that a loss head is computed in chunks of rows: it reckons with more than the run takes."""
    step = classifier(16384, 512, 32768)
    free, without = run_pipeline(DEFAULT, step, EIGHT.mesh)
    assert without.memory is not None
    found, context = run_pipeline(DEFAULT, replace(step, options=PlanOptions("search", memory_limit=without.memory.most)), EIGHT.mesh)
    assert estimate(found, context).seconds == estimate(free, without).seconds
    assert [note for note in context.placement_notes if "memory_limit" in note or "over" in note] == []
    limit = without.memory.most * 85 // 100  # a quarter less is more than any plan saves
    found, context = run_pipeline(DEFAULT, replace(step, options=PlanOptions("search", memory_limit=limit)), EIGHT.mesh)
    assert context.memory is not None and context.memory.most <= limit


@pytest.mark.parametrize("limit", [100_000, 300_000_000])
def test_a_run_over_the_limit_is_noted_with_its_figure(limit: int) -> None:
    context = Context(EIGHT.mesh)
    DEFAULT.run(mlp(64, (256, 256, 64), options=PlanOptions("search", memory_limit=limit)), context)
    assert context.memory is not None
    peak, notes = max(context.memory.peak_nbytes.values()), [n for n in context.placement_notes if n.startswith("memory_limit: a run takes")]
    assert [f"up to {peak / 1e6:.4g} MB" in note and "limit of 0.1 MB" in note for note in notes] == [True] * (peak > limit)
    assert (peak > limit) == (limit < 1_000_000)


def test_classes_are_split_over_their_own_parts() -> None:
    """With 64 rows of 131,072 classes the logits are split by class; softmax exchanges parts or is written in sums."""
    found = Planned(classifier(64, 4096, 131072))
    assert found.outputs[1].dims == ROWS and found.splits("linear") | found.splits("add") >= {COLUMNS}
    assert "all_gather" not in found.comms()


def test_ops_that_need_a_dim_whole_are_written_apart() -> None:
    """Seven rows cannot be split over eight workers: the softmax over very many classes is."""
    found = Planned(classifier(7, 256, 1 << 22))
    assert not found.splits("log_softmax") and found.comms(of_matrices=False)["all_reduce"] >= 2


def test_on_two_axes_each_takes_what_suits_it() -> None:
    mesh = {"dp": 4, "tp": 2}
    use = SignalConfig(mesh=mesh)
    step = mlp(16384, (1024, 8192, 1024))
    found = Planned(replace(step, signals=(("", use),)))
    assert dict(found.context.mesh.axes) == mesh
    (split,) = found.splits("relu")
    assert split[0], "the batch at least is split"


# -- what is asked for stays


def test_what_a_signal_places_stays_there() -> None:
    def loss(data: Sequence[Value], params: Sequence[Value]) -> Value:
        return mean_square(OPS["linear"](data[0], params[0]))

    step = adamw([TensorType((65536, 512), float32)], [(1024, 512)], loss)
    linear = next(n for n in step.nodes if n.op.name == "linear")
    nodes = tuple(replace(n, signal="s") if n is linear else n for n in step.nodes)
    asked = (("s", SignalConfig(ShardConfig(axis=1))),)
    found = Planned(replace(step, nodes=nodes, signals=asked))
    assert COLUMNS in found.splits("linear"), "data parallel would split rows"
    assert Planned(step).splits("linear") == {ROWS}


def test_parameters_placed_by_name_stay_there() -> None:
    asked = SignalConfig(mesh={"dp": 8}, params={"p0": {1: "dp"}})
    found = Planned(replace(mlp(65536, (512, 1024, 64)), signals=(("", asked),)))
    assert found.outputs[1].dims == ((), ("dp",)) and found.outputs[3].is_replicated


def test_signals_with_workers_of_their_own_are_not_searched() -> None:
    def body(recorder: Recorder, x: Value) -> list[Value]:
        recorder.signal = "half"
        (y,) = recorder.emit(OPS["copy"], (x,), ())
        recorder.signal = None
        return [OPS["neg"](y)]

    graph = record([TensorType((8, 8), float64)], body, {"half": ShardConfig(0, (2, 3))})
    graph, context = replace(graph, options=SEARCH), Context(EIGHT.mesh)
    DEFAULT.run(graph, context)
    assert any("not searched, as signals name workers of their own" in why for _, why in context.notes)
    assert context.output_shardings[0].mesh.workers == (2, 3)


def test_inputs_that_no_update_moves_stay_where_they_are() -> None:
    split = Sharding(everyone(8), ROWS)

    def body(recorder: Recorder, x: Value, w: Value) -> list[Value]:
        return [OPS["matmul"](x, w)]

    graph = record([TensorType((64, 256), float64, split), TensorType((256, 256), float64)], body)
    plan = plan_graph(replace(graph, options=SEARCH), EIGHT, DEFAULT)
    assert plan.outputs[0].dims == ROWS and not plan.programs[0].collectives


# -- why


def test_every_decision_keeps_what_it_costs_beside_the_next_best() -> None:
    found = Planned(mlp(64, (4096, 16384, 4096)))
    reasons = [lines[0] for lines in found.context.output_reasons]
    assert "auto: splits dim 0 over w, cost 0 vs " in reasons[1] and "splits dim 1 over w" in reasons[1]
    assert all("auto: " in reason and " cost " in reason for reason in reasons[1:])
    assert len(found.context.origins) > 10 and any("factor" in o.reason for o in found.context.origins.values())
    (summary,) = (note for note in found.notes if " a run, " in note)
    assert "whole on every worker" in summary and "decisions" in summary


def test_strict_mode_allows_what_the_search_moves() -> None:
    plan_graph(mlp(64, (4096, 16384, 4096), options=PlanOptions("search", strict=True)), EIGHT)


def test_without_scipy_the_client_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(PlanRefused, match=r"needs SciPy: pip install 'gt-tensor\[solver\]'"):
        plan_graph(mlp(40, (16, 24, 8)), EIGHT)  # sizes of no other test: a search is remembered


def test_no_time_is_no_plan_and_the_rules_place() -> None:
    context = Context(EIGHT.mesh)
    Pipeline.parse(str(EXPLICIT).replace("search_s=100", "search_s=0")).run(
        residual(48, 640, 1280, blocks=12), context
    )
    assert any(why.startswith("auto: ") for _, why in context.notes)


def test_one_worker_has_nothing_to_search() -> None:
    context = Context(Cluster((0,)).mesh)
    DEFAULT.run(mlp(64, (32, 32)), context)
    assert not context.notes or not any("auto" in why for _, why in context.notes)


# -- values


@pytest.mark.parametrize("options", [SEARCH, PlanOptions("search", memory_limit=20_000)], ids=["fast", "small"])
def test_a_step_equals_the_unsharded_one(options: PlanOptions) -> None:
    for step in (mlp(16, (8, 24, 9), float64, options), residual(6, 8, 16, 2, float64, options)):
        rng = np.random.default_rng(0)
        inputs = [np.abs(rng.standard_normal(v.type.shape)).astype(v.type.dtype.numpy) for v in step.inputs]
        whole = Autodiff().run(step, Context(everyone(1)))
        for a, b in zip(simulate_graph(step, inputs, (), 4), evaluate(whole, inputs), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)

"""Large logits and their loss are computed a chunk of rows at a time: equal values, less memory, and notes where not."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.mesh import Mesh
from gt.ir.opdef import OPS
from gt.ir.signals import ShardConfig
from gt.ir.types import DType, TensorType, bfloat16, float16, float32, float64, int64
from gt.passes.context import Context
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import Recorder, record

ONE = Mesh("all", (("w", 1),), (0,))
B, T, D, V = 8, 6, 5, 40
Loss = Callable[[Recorder, Value, Value, Value, Value], Value]


def chunking(target: int, above: int = 4000) -> Pipeline:
    return Pipeline.parse(str(DEFAULT).replace("chunk_rows", f"chunk_rows{{above={above},target={target}}}"))


WHOLE = Pipeline.parse(str(DEFAULT).replace("chunk_rows,", ""))


def step(loss: Loss, dtype: DType = float64, keep: Sequence[str] = (), signals: dict[str, ShardConfig] | None = None) -> Graph:
    """Give the graph of a loss head and its gradients by hidden states, weight and bias; ``keep``: names of values kept, too."""

    def body(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> list[Value]:
        result = loss(recorder, x, w, b, target)
        recorder.signal = None
        recorder.nodes = [replace(node, taped=True) for node in recorder.nodes]
        grads = recorder.emit(OPS["grad"], (result, x, w, b), (("has_seed", False),))
        makers = {node.op.name: node.output for node in recorder.nodes if len(node.outputs) == 1}
        return [result, *grads, *(makers[name] for name in keep)]

    types = [TensorType((B, T, D), dtype), TensorType((V, D), dtype), TensorType((V,), dtype), TensorType((B, T), int64)]
    return record(types, body, signals)


def arrays(seed: int = 0, ignored: int = -100) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, V, (B, T))
    target[rng.random((B, T)) < 0.2] = ignored
    return [rng.normal(size=(B, T, D)), rng.normal(size=(V, D)), rng.normal(size=V), target]


def entropy(logits: Value, target: Value, reduction: str = "mean", ignore: int = -100, smoothing: float = 0.0) -> Value:
    return OPS["cross_entropy"](logits, target, reduction=reduction, ignore_index=ignore, label_smoothing=smoothing)


def flat(x: Value) -> Value:
    return OPS["reshape"](x, shape=(B * T, *x.type.shape[2:]))


def gpt(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    """As nanoGPT and GPT-2 write it: [B, T, V], then a view."""
    return entropy(flat(OPS["linear"](x, w, b)), flat(target))


def classes_in_the_middle(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    return entropy(OPS["permute"](OPS["linear"](x, w, b), dims=(0, 2, 1)), target)


def times(value: Value, by: float) -> Value:
    return OPS["mul"](value, OPS["full"](shape=(), value=by, dtype=value.type.dtype))


def scaled(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    return times(gpt(recorder, x, w, b, target), 1 / 3)


def beside_others(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    """The loss is one of a sum, and weights and hidden states have other gradients, too."""
    sums = [OPS["sum"](OPS["mul"](v, v), dims=tuple(range(v.type.ndim)), keepdim=False, dtype=v.type.dtype) for v in (x, w)]
    return OPS["add"](OPS["add"](gpt(recorder, x, w, b, target), sums[0]), sums[1])


def micro_steps(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    parts = []
    for i in range(2):
        rows, cut = ((i * B // 2, 0, 0), ((i + 1) * B // 2, T, D)), (("starts", "stops"), (1, 1, 1))
        own = OPS["slice"](x, starts=rows[0], stops=rows[1], steps=cut[1])
        goal = OPS["slice"](target, starts=rows[0][:2], stops=rows[1][:2], steps=cut[1][:2])
        logits = OPS["reshape"](OPS["linear"](own, w, b), shape=(B * T // 2, V))
        parts.append(times(entropy(logits, OPS["reshape"](goal, shape=(B * T // 2,))), 0.5))
    return OPS["add"](*parts)


def per_token(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    """Unreduced, weighed by position, then averaged."""
    each = entropy(flat(OPS["linear"](x, w, b)), flat(target), "none")
    weight = OPS["cast"](OPS["iota"](shape=(B * T,), dim=0, start=0, step=1, dtype=int64), dtype=each.type.dtype)
    return OPS["mean"](OPS["mul"](each, weight), dims=(0,), keepdim=False)


LOSSES: dict[str, Loss] = {
    "gpt": gpt, "scaled": scaled, "beside others": beside_others, "micro-steps": micro_steps, "per token": per_token,
    "classes in the middle": classes_in_the_middle,
    "sum": lambda r, x, w, b, t: entropy(flat(OPS["linear"](x, w, b)), flat(t), "sum"),
    "ignored class": lambda r, x, w, b, t: entropy(flat(OPS["linear"](x, w, b)), flat(t), ignore=3),
    "smoothed": lambda r, x, w, b, t: entropy(flat(OPS["linear"](x, w, b)), flat(t), smoothing=0.1),
    "flat, no bias": lambda r, x, w, b, t: OPS["add"](entropy(OPS["linear"](flat(x), w), flat(t)), OPS["mean"](b, dims=(0,), keepdim=False)),
    "matmul": lambda r, x, w, b, t: entropy(flat(OPS["add"](OPS["matmul"](x, OPS["permute"](w, dims=(1, 0))), b)), flat(t)),
    "softcap": lambda r, x, w, b, t: entropy(times(OPS["tanh"](times(flat(OPS["linear"](x, w, b)), 0.1)), 10.0), flat(t)),
}  # fmt: skip


def planned(graph: Graph, pipeline: Pipeline) -> tuple[Graph, Context, int]:
    context = Context(ONE)
    final = pipeline.run(graph, context, verify="each")
    assert context.memory is not None
    return final, context, context.memory.peak_nbytes[0]


def notes(context: Context) -> list[str]:
    return [n for n in context.placement_notes if "chunks of rows" in n]


@pytest.mark.parametrize("name", LOSSES)
def test_chunks_give_the_loss_and_all_gradients(name: str) -> None:
    graph, data = step(LOSSES[name]), arrays(ignored=3 if name == "ignored class" else -100)
    expected = evaluate(planned(graph, WHOLE)[0], data)
    final, context, peak = planned(graph, chunking(2000))
    assert any("computed in" in n for n in notes(context))
    assert all(v.type.nbytes <= 5000 for n in final.nodes for v in n.outputs), "the logits are never whole"
    assert peak < planned(graph, WHOLE)[2]
    for a, b in zip(expected, evaluate(final, data), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


def positions_first(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    """Rows of [T, B, D]: chunks go by T, then by B, and what is joined is the gradient of the [B, T, D] they were made of."""
    total = lambda v: OPS["sum"](v, dims=tuple(range(v.type.ndim)), keepdim=False, dtype=v.type.dtype)  # noqa: E731
    own = OPS["add"](total(OPS["sin"](OPS["permute"](x, dims=(1, 0, 2)))), total(OPS["mul"](x, x)))
    return OPS["add"](own, OPS["add"](total(w), total(b)))


def test_parts_are_joined_in_the_order_of_their_own_dims() -> None:
    graph, data = step(positions_first), arrays()
    expected = evaluate(planned(graph, WHOLE)[0], data)
    final, context, _ = planned(graph, chunking(100, 1000))
    assert any("f64[6, 8, 5]" in n and "computed in 24 chunks" in n for n in notes(context)), notes(context)
    for a, b in zip(expected, evaluate(final, data), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


def half(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
    """Under autocast: products of bfloat16, the loss in float32."""
    low = [OPS["cast"](v, dtype=bfloat16) for v in (x, w, b)]
    return entropy(OPS["cast"](flat(OPS["linear"](*low)), dtype=float32), flat(target))


def test_gradients_of_halves_are_added_up_in_float32() -> None:
    graph, data = step(half, float32), [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays()]
    final, context, _ = planned(graph, chunking(1000))
    assert any("computed in 8 chunks" in n for n in notes(context))
    added = [n.output.type for n in final.nodes if n.op.name == "add"]
    assert len(added) == 3 * 7 and all(t.dtype is float32 for t in added), "loss, weight's and bias's gradients"
    for a, b in zip(evaluate(planned(graph, WHOLE)[0], data), evaluate(final, data), strict=True):
        np.testing.assert_allclose(b, a, rtol=2**-8, atol=1e-4)


def test_what_an_op_gives_beside_a_sum_of_halves_is_one() -> None:
    """A norm's gradient is read by rows, as halves; those of its parameters are sums over rows."""

    def body(recorder: Recorder, x: Value, w: Value, g: Value) -> list[Value]:
        y, mean, rstd = OPS["layer_norm"](x, w, w, eps=1e-5)
        own, weight, bias = OPS["layer_norm_backward"](g, x, mean, rstd, w)
        two = OPS["full"](shape=(), value=2.0, dtype=float16)
        return [OPS["sum"](OPS["div"](own, two), dims=(1,), keepdim=False, dtype=float16), weight, bias]

    types = [TensorType((40, 48), float16), TensorType((48,), float16), TensorType((40, 48), float16)]
    inputs = [np.random.default_rng(0).normal(size=t.shape).astype(np.float16) for t in types]
    graph = record(types, body)
    _, context, _ = planned(graph, chunking(1000, 1000))
    assert any("computed in 4 chunks" in note for note in notes(context))
    for got, want in zip(simulate_graph(graph, inputs, (), 1, chunking(1000, 1000)), evaluate(graph, inputs), strict=True):
        np.testing.assert_allclose(got, want, 1e-2, 2e-2)


def test_a_gradient_that_needs_the_loss_first_is_not_chunked() -> None:
    def squared(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
        loss = gpt(recorder, x, w, b, target)
        return OPS["mul"](loss, loss)

    final, context, _ = planned(step(squared), chunking(2000))
    assert notes(context) and all("not computed in chunks of rows: its gradient depends on" in n for n in notes(context))
    assert final == planned(step(squared), WHOLE)[0]


def test_logits_that_are_kept_stay_whole() -> None:
    graph, data = step(gpt, keep=["linear"]), arrays()
    final, context, peak = planned(graph, chunking(2000))
    assert any("not computed in chunks of rows: it is whole" in n for n in notes(context))
    large = [n.op.name for n in final.nodes if any(v.type.nbytes > 5000 for v in n.outputs)]
    assert large == ["linear"], "what follows them is in chunks all the same"
    assert peak < planned(graph, WHOLE)[2]
    for a, b in zip(evaluate(planned(graph, WHOLE)[0], data), evaluate(final, data), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


def test_small_values_are_left_alone() -> None:
    graph = step(gpt)
    final, context, _ = planned(graph, DEFAULT)
    assert not notes(context) and final == planned(graph, WHOLE)[0]


def signalled(loss: Loss) -> Loss:
    def run(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
        recorder.signal = "s"
        x, w = OPS["copy"](x), OPS["copy"](w)
        return loss(recorder, x, w, b, target)

    return run


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", ["gpt", "sum", "smoothed", "micro-steps"])
def test_split_work_gives_the_same(name: str, axis: int) -> None:
    """Over rows each worker's part is chunked; split classes are not, as collectives stand in between."""
    signals = {"s": ShardConfig(axis=axis)}
    graph, data = step(signalled(LOSSES[name]), signals=signals), arrays()
    pipeline = chunking(1000, above=1500)
    expected = evaluate(planned(step(LOSSES[name]), WHOLE)[0], data)
    for a, b in zip(expected, simulate_graph(graph, data, (), 2, pipeline), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)
    context = Context(Cluster((0, 1)).mesh)
    pipeline.run(graph, context, verify="each")
    if axis == 0:
        assert any("computed in" in n for n in notes(context))


def test_split_classes_are_not_chunked_and_say_so() -> None:
    def head(recorder: Recorder, x: Value, w: Value, b: Value, target: Value) -> Value:
        recorder.signal = "s"
        w, recorder.signal = OPS["copy"](w), None
        return gpt(recorder, x, w, b, target)

    graph, data = step(head, signals={"s": ShardConfig(axis=0)}), arrays()
    pipeline, context = chunking(1000, above=1500), Context(Cluster((0, 1)).mesh)
    pipeline.run(graph, context, verify="each")
    assert notes(context) and all("not computed in chunks of rows: each worker has other classes" in n for n in notes(context))
    for a, b in zip(evaluate(planned(step(gpt), WHOLE)[0], data), simulate_graph(graph, data, (), 2, pipeline), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


def test_rows_split_unevenly_are_not_chunked_and_the_note_names_value_and_reason() -> None:
    def body(recorder: Recorder, x: Value, w: Value, target: Value) -> list[Value]:
        recorder.signal = "s"
        x = OPS["copy"](x)
        recorder.signal = None
        loss = entropy(OPS["linear"](x, w), target)
        recorder.nodes = [replace(node, taped=True) for node in recorder.nodes]
        return [loss, *recorder.emit(OPS["grad"], (loss, w), (("has_seed", False),))]

    types = [TensorType((B * T - 1, D), float64), TensorType((V, D), float64), TensorType((B * T - 1,), int64)]
    graph = record(types, body, {"s": ShardConfig(axis=0)})
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(B * T - 1, D)), rng.normal(size=(V, D)), rng.integers(0, V, B * T - 1)]
    pipeline, context = chunking(1000, above=1500), Context(Cluster((0, 1)).mesh)
    pipeline.run(graph, context, verify="each")
    told = [n for n in context.placement_notes if "chunks" in n]
    why = r"mask_pad depends on which of its rows a worker has \(\w+ reads its padding\)"
    assert told and all(re.match(rf"%[a-z_]+(#\d)?: f64\[.*: not computed in chunks of rows: {why}", n) for n in told), told
    for a, b in zip(evaluate(planned(graph, WHOLE)[0], data), simulate_graph(graph, data, (), 2, pipeline), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12, atol=1e-13)


def test_rows_times_the_same_rows_stay_whole() -> None:
    """Chunks of both operands' rows would give only the blocks on the product's diagonal."""

    def body(recorder: Recorder, x: Value, target: Value) -> list[Value]:
        ordered, places = OPS["sort"](x, dim=1, descending=False)
        loss = OPS["nll_loss"](OPS["cast"](places, dtype=float64), target, reduction="sum", ignore_index=-100)
        return [OPS["linear"](ordered, x), loss, OPS["nll_loss_backward"](loss, target, shape=(7, 8), ignore_index=-100)]

    graph = record([TensorType((7, 8), float64), TensorType((7,), int64)], body)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(7, 8)), rng.integers(0, 8, 7)]
    for a, b in zip(evaluate(planned(graph, WHOLE)[0], data), evaluate(planned(graph, chunking(64, above=64))[0], data), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


def test_weights_that_are_made_are_no_loss_head() -> None:
    def body(recorder: Recorder, x: Value) -> list[Value]:
        recorder.signal = "s"
        made = OPS["cast"](OPS["iota"](shape=(64, 64), dim=0, dtype=int64), dtype=float64)
        return [OPS["mul"](made, x)]

    graph = record([TensorType((64, 64), float64)], body, {"s": ShardConfig(axis=0)})
    context = Context(Cluster((0, 1)).mesh)
    chunking(1000, above=1500).run(graph, context, verify="each")
    assert not [n for n in notes(context) if "chunks" in n]


def test_a_gradient_kept_whole_is_chunked_only_if_that_saves_memory() -> None:
    """Of logits that are there anyway: the chunks of their gradient, joined, are as much as the chunks would save."""

    def body(recorder: Recorder, logits: Value, target: Value) -> list[Value]:
        loss = entropy(logits, target)
        recorder.nodes = [replace(node, taped=True) for node in recorder.nodes]
        return [loss, *recorder.emit(OPS["grad"], (loss, logits), (("has_seed", False),))]

    graph = record([TensorType((B * T, V), float64), TensorType((B * T,), int64)], body)
    final, context, peak = planned(graph, chunking(2000))
    assert notes(context) and all("not computed in chunks of rows: it is whole, as it is kept" in n for n in notes(context))
    assert final == planned(graph, WHOLE)[0]
    assert peak < 3.1 * B * T * V * 8, "logits, log-softmax, and one gradient that the other overwrites"

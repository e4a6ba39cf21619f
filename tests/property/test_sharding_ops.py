"""Every op of the table through the passes: operands split, whole on some workers or pending, on simulated workers."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import evaluate_node
from gt.ir.graph import Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.types import TensorType, bfloat16, complex64, float16, float32, float64, int64
from gt.runtime import kernels
from gt.runtime.render import expression
from gt.runtime.simulator import simulate_graph
from tests.property.samples import SAMPLES, Sample, cases
from tests.property.sharding_graphs import Recorder, everyone, placement, record
from tests.property.test_ops_values import compare


def check(name: str, sample: Sample, rng: Random, num_workers: int) -> None:
    """Run one call with each operand placed anyhow; some floating operands arrive as sums that are still pending."""
    op, numbers = OPS[name], np.random.default_rng(rng.getrandbits(32))
    arrays, types, pending = [], [], []
    for array, type_ in zip(sample.operands(), sample.types, strict=True):
        finite = type_.dtype is float64 and bool(np.all(np.isfinite(array))) and array.size > 0
        pending.append(finite and rng.random() < 0.4)
        if pending[-1]:
            parts = numbers.normal(size=(num_workers, *array.shape)) * 3
            parts[0] = array - parts[1:].sum(0)
            arrays.append(parts)
            split = (("w",), *((),) * array.ndim)
            types.append(TensorType(parts.shape, float64, Sharding(everyone(num_workers), split)))
        else:
            arrays.append(array)
            types.append(type_.placed(placement(rng, type_.shape, num_workers)))

    def body(recorder: Recorder, *inputs: Value) -> tuple[Value, ...]:
        operands = [
            recorder.emit(OPS["sum"], (x,), (("dims", (0,)), ("keepdim", False), ("dtype", float64)))[0] if late else x
            for x, late in zip(inputs, pending, strict=True)
        ]
        return recorder.emit(op, operands, tuple(sample.attrs.items()))

    graph = record(types, body)
    whole = [np.asarray(a.sum(0)) if late else a for a, late in zip(arrays, pending, strict=True)]
    outs = [TensorType(v.type.shape, v.type.dtype) for v in graph.outputs]
    want = evaluate_node(op, whole, sample.attrs, outs)
    got = simulate_graph(graph, arrays, (), num_workers)
    placed = [t.sharding for t in types]
    for a, b, type_ in zip(got, want, outs, strict=True):
        loose = 1e-7 if type_.dtype is float64 else 1e-4 if type_.dtype is complex64 else sample.tolerance
        compare(a, b, type_.dtype, loose, f"{name} {sample.types} {sample.attrs} placed {placed} pending {pending}")


@pytest.mark.parametrize("name", sorted(n for n in SAMPLES if not OPS[n].effect))
def test_placed_anyhow(name: str) -> None:
    rng = Random(zlib.crc32(name.encode()))
    for sample in cases(OPS[name], rng.getrandbits(20)):
        if any(d in (float16, bfloat16) for d in sample.dtypes):
            continue  # partial sums in halves round differently
        for num_workers in (2, 3):
            check(name, sample, rng, num_workers)


@pytest.mark.parametrize("name", ["index_select", "index", "embedding"])
def test_rows_that_one_worker_has_keep_the_sign_of_a_zero(name: str) -> None:
    x = np.array([[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0], [1.0, -0.0], [-0.0, np.nan]], np.float32)
    index = np.array([4, 0, 2, 1, 3, 2])
    attrs = {"index_select": (("dim", 0),), "index": (("dims", (0,)),), "embedding": ()}[name]
    for num_workers in (2, 3, 4):
        types = [TensorType(x.shape, float32, Sharding(everyone(num_workers), (("w",), ()))), TensorType(index.shape, int64)]
        graph = record(types, lambda recorder, *operands: recorder.emit(OPS[name], operands, attrs))
        (got,) = simulate_graph(graph, [x, index], (), num_workers)
        assert_same_bits(got, x[index])


def test_what_is_a_pending_sum_for_a_while_keeps_the_sign_of_a_zero() -> None:
    x = np.array([-0.0, 0.0, 1.0], np.float32)
    moves: dict[str, dict[str, Any]] = {"partial_from_whole": {"axes": ("w",)}, "partial_from_part": {"axes": ("w",), "dim": 0}}
    for op, attrs in moves.items():
        local = [{"index": i} if op == "partial_from_whole" else {"start": 3 * i, "whole": 6} for i in range(2)]
        types = (TensorType((3 if op == "partial_from_whole" else 6,), float32),)
        parts = [evaluate_node(OPS[op], [x], attrs | own, types)[0] for own in local]
        assert_same_bits(parts[0] + parts[1], x if op == "partial_from_whole" else np.concatenate([x, x]))
        source = [expression(OPS[op], ("x",), attrs | own, types) for own in local]
        a, b = (eval(text, {"torch": torch, "x": torch.from_numpy(x)}) for text in source)
        assert_same_bits((a + b).numpy(), (parts[0] + parts[1]).astype(np.float32))
    weight, index = torch.from_numpy(x[:, None]), torch.tensor([0, 1, 2])
    rows = [kernels.own_rows(weight[a:b], index, 0, a, 3) for a, b in ((0, 2), (2, 3))]
    assert_same_bits((rows[0] + rows[1]).numpy(), x[:, None])


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))

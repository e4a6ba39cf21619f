"""Every op of the table through the passes: operands split, whole on some workers or pending, on simulated workers."""

from __future__ import annotations

import zlib
from random import Random

import numpy as np
import pytest

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import evaluate_node
from gt.ir.graph import Value
from gt.ir.mesh import Sharding
from gt.ir.opdef import OPS
from gt.ir.types import TensorType, bfloat16, complex64, float16, float64
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

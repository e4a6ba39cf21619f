"""Updates in groups: each member behind what it waits for, and before whatever reads what it gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph, Value
from gt.ir.opdef import OPS
from gt.ir.types import TensorType, float64
from gt.ir.verify import verify
from gt.passes.updates_soon import updates_soon
from tests.property.sharding_graphs import Recorder, record

PLAIN = tuple(
    sorted({"momentum": 0.0, "nesterov": False, "weight_decay": 0.0, "dampening": 0.0, "maximize": False, "first": False}.items())
)
SIZE = TensorType((8,), float64)


def step(gradients_read_last: Sequence[int], results_read_first: Sequence[int]) -> Graph:
    """A step over three parameters whose gradients come one by one; numbers of those read behind all else, or right behind the step."""

    def body(recorder: Recorder, *inputs: Value) -> list[Value]:
        one = lambda name, x: recorder.emit(OPS[name], (x,), ())[0]  # noqa: E731
        params, lr = inputs[:3], inputs[3]
        grads = [one("sin", p) for p in params]
        new = recorder.emit(OPS["sgd_step"], (*params, *grads, lr), (("num", 3), *PLAIN))
        read = [one("neg", new[i]) for i in results_read_first]
        return [*new, *read, *(one("exp", grads[i]) for i in gradients_read_last)]

    return record([SIZE] * 3 + [TensorType((), float64)], body)


@pytest.mark.parametrize("late", [(), (0,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("early", [(), (0,), (2,), (1, 2), (0, 1, 2)])
def test_a_group_runs_before_its_results_are_read(late: tuple[int, ...], early: tuple[int, ...]) -> None:
    graph = step(late, early)
    found, _ = updates_soon(graph, ())
    verify(found)
    values = [np.linspace(0, 1 + i, 8) for i in range(3)] + [np.asarray(0.1)]
    for a, b in zip(evaluate(found, values), evaluate(graph, values), strict=True):
        np.testing.assert_array_equal(a, b)
    assert sum(node.attr["num"] for node in found.nodes if node.op.name == "sgd_step") == 3

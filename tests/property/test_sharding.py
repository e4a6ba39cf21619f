"""Sharded equals unsharded: random graphs under random placements and signals, on simulated workers, bit by bit.

Repeat a failure with ``pytest tests/property/test_sharding.py --hypothesis-seed=N``.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from gt.ir.evaluate import evaluate
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import Case, cases


@pytest.mark.timeout(300)
@settings(max_examples=2000)
@given(cases())
def test_sharded_equals_unsharded(case: Case) -> None:
    want = evaluate(case.graph, case.inputs)
    got = simulate_graph(case.graph, case.inputs, (), case.num_workers)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"output {i}")


EAGER = Pipeline.parse(str(DEFAULT).replace("fuse_hot_path", "fuse_hot_path{overlap_s=-1.0}"))  # as if all took long


@settings(max_examples=500)
@given(cases())
def test_collectives_that_travel_meanwhile(case: Case) -> None:
    want = evaluate(case.graph, case.inputs)
    got = simulate_graph(case.graph, case.inputs, (), case.num_workers, EAGER)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"output {i}")

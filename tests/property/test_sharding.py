"""Sharded equals unsharded: random graphs under random placements and signals, on simulated workers, bit by bit.

Repeat a failure with ``pytest tests/property/test_sharding.py --hypothesis-seed=N``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.evaluate import evaluate
from gt.ir.signals import PlanOptions
from gt.passes.context import Context
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster
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


CHUNKED = Pipeline.parse(str(DEFAULT).replace("chunk_rows", "chunk_rows{above=1,target=1}"))


@settings(max_examples=200)
@given(cases(), st.sampled_from([0.8, 0.3]))
def test_less_memory(case: Case, share: float) -> None:
    """Recomputing and chunks of rows on any workers; sums of whole numbers are exact in any order."""
    context = Context(Cluster(tuple(range(case.num_workers))).mesh)
    DEFAULT.run(case.graph, context)
    assert context.memory is not None
    limit = PlanOptions(memory_limit=max(1, int(context.memory.most * share)))
    want = evaluate(case.graph, case.inputs)
    got = simulate_graph(replace(case.graph, options=limit), case.inputs, (), case.num_workers, CHUNKED)
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"output {i}")

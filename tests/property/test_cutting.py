"""A plan in parts is the plan: random graphs on simulated workers, whole and cut anywhere, bit by bit.

Each part is simulated alone, so a collective that one worker has before a cut and another after it is a deadlock here.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.evaluate import as_dtype
from gt.ir.mesh import Sharding
from gt.ir.program import Collective
from gt.passes.pipeline import DEFAULT, Pipeline
from gt.passes.plan import Cluster, plan_graph
from gt.runtime.cutting import cut_plan
from gt.runtime.simulator import parts_of, simulate
from tests.property.sharding_graphs import Case, cases

TRAVELLING = Pipeline.parse(str(DEFAULT).replace("fuse_hot_path", "fuse_hot_path{overlap_s=-1.0}"))  # as if all took long


@pytest.mark.timeout(300)
@settings(max_examples=150)
@given(cases(), st.sampled_from([2, 3, 7, 50]), st.sampled_from([DEFAULT, TRAVELLING]))
def test_parts_make_what_the_whole_makes(case: Case, parts: int, pipeline: Pipeline) -> None:
    graph, cluster = case.graph, Cluster(tuple(range(case.num_workers)))
    plan = plan_graph(graph, cluster, pipeline)
    held: dict[int, dict[int, np.ndarray]] = {w: {} for w in cluster.workers}  # by worker and position
    for i, (value, array) in enumerate(zip(graph.inputs, case.inputs, strict=True)):
        placed = value.type.sharding or Sharding.replicated(cluster.mesh, value.type.ndim)
        for w, part in parts_of(as_dtype(array, value.type.dtype), placed, value.type.dtype).items():
            held[w][i] = part
    n, m = len(graph.inputs), len(graph.outputs)
    want = simulate(plan.programs, {w: [values.get(i) for i in range(n)] for w, values in held.items()})
    cut = cut_plan(plan.programs, n, m, parts, 100)
    if cut is None:
        return
    assert 2 <= len(cut.parts) <= parts and sum(p.share for p in cut.parts) == pytest.approx(1)
    assert [p.id for p in cut.parts] == [100 + i for i in range(len(cut.parts))]
    count = n + m + cut.kept
    for part in cut.parts:
        got = simulate(part.programs, {w: [held[w].get(i) for i in range(count)] for w in part.programs})
        for w, outputs in got.items():
            held[w] |= {n + position: array for position, array in outputs.items()}
        for values in held.values():  # nothing is read that was let go
            for position in [*part.last_inputs, *(n + m + k for k in part.last_kept)]:
                values.pop(position, None)
    for w, outputs in want.items():
        for position, array in outputs.items():
            np.testing.assert_array_equal(held[w][n + position], array)
    assert not any(n + m + k in values for values in held.values() for k in range(cut.kept))
    whole = [c.number for p in plan.programs.values() for c in p.collectives]
    assert sorted(whole) == sorted(
        c.number for part in cut.parts for p in part.programs.values() for c in p.collectives if isinstance(c, Collective)
    )

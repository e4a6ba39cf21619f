"""The search is exact: it finds what trying everything finds, what makes it quick costs little, what it reckons is what is sent.

And whatever it picks computes the same: any way of any op, on any graph. Repeat a failure with
``pytest tests/property/test_auto_shard.py --hypothesis-seed=N``; steps are named by their seed.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.ir.evaluate import evaluate
from gt.ir.graph import Graph
from gt.ir.mesh import Mesh
from gt.ir.ops.collective import node_bytes
from gt.ir.signals import PlanOptions
from gt.passes import auto_shard
from gt.passes.axes_in_turn import solve_in_turn
from gt.passes.context import Context
from gt.passes.cost import Machine
from gt.passes.estimate import estimate
from gt.passes.integer_program import Effort, Solution, solve
from gt.passes.merge_alike import merge_alike
from gt.passes.search_problem import Problem, memory
from gt.passes.search_problem import evaluate as seconds_of
from gt.runtime.simulator import simulate_graph
from tests.property.sharding_graphs import everyone, make_case
from tests.property.training_steps import SEARCH, any_step, mlp, next_step, residual
from tests.unit.passes.test_auto_shard import DEFAULT, EXPLICIT

EXACT = Effort(gap=1e-7, seconds=60.0)
PROVEN = Effort(gap=1e-4, seconds=60.0)
UNHURRIED = Effort(seconds=60.0)
EIGHT = everyone(8)
GRID = Mesh.grid((("dp", 4), ("tp", 2)), tuple(range(8)))
# Where sending is dear and starting to send is not, even small graphs are worth splitting in many ways.
DEAR = Machine(
    launch_s=1e-7, hop_s=1e-8, reduce_bandwidth=1e9, gather_bandwidth=1e9, exchange_bandwidth=1e9, link_bandwidth=1e9,
    memory_bandwidth=4e9, flops=1e10,
)


def problem_of(graph: Graph, mesh: Mesh, machine: Machine | None = None, monkeypatch: Any = None) -> Problem:
    """Give the problem that the search makes of a graph, unreduced."""
    seen: list[Problem] = []

    def keep(problem: Problem, most: int) -> Any:
        seen.append(problem)
        return merge_alike(problem, 0)  # what is found here does not count: the smallest is the quickest

    context = Context(mesh) if machine is None else Context(mesh, machine=machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_shard, "merge_alike", keep)
        patch.setattr(auto_shard, "_solve", whole)
        EXPLICIT.run(graph, context)
    return seen[0]


def solution(problem: Problem, picks: tuple[int, ...]) -> Solution:
    return Solution(picks, seconds_of(problem, picks), 0.0, tuple(memory(problem, picks)))


def whole(problem: Problem, *_: object) -> Solution:
    return solution(problem, (0,) * len(problem.units))


# -- exact


def test_what_is_found_is_what_trying_everything_finds() -> None:
    tried = 0
    for seed in range(150):
        case = make_case(seed, Random(seed).randint(1, 6))
        if case.graph.signals:
            continue
        problem = problem_of(replace(case.graph, options=SEARCH), everyone(case.num_workers), DEAR)
        if not 2 <= math.prod(len(unit.ways) for unit in problem.units) <= 2000:
            continue
        tried += 1
        costs = {p: seconds_of(problem, p) for p in itertools.product(*(range(len(u.ways)) for u in problem.units))}
        found = solve(problem, None, EXACT)
        assert found is not None and found.seconds == pytest.approx(min(costs.values()), rel=1e-6), seed
        assert found.bound <= found.seconds * (1 + 1e-6)
        held = {p: max(memory(problem, p)) for p in costs}
        limit = (min(held.values()) + held[found.picks]) // 2
        fits = [cost for p, cost in costs.items() if held[p] <= limit]
        within = solve(problem, limit, EXACT)
        assert within is not None and within.peak <= limit, seed
        assert within.seconds == pytest.approx(min(fits), rel=1e-6), seed
    assert tried > 15, "too few graphs are small enough to try everything"


@pytest.mark.parametrize("seed", range(10))
def test_layers_that_decide_as_one_cost_little(seed: int) -> None:
    """The form that large graphs are solved in, beside the exact program: merged as far as it ever is."""
    rng = Random(seed)
    batch, width, inner = rng.choice((64, 16384)), rng.choice((256, 1024, 4096)), rng.choice((256, 1024, 4096))
    problem = problem_of(residual(batch, width, inner, blocks=8), EIGHT)
    merged = merge_alike(problem, most=0)
    assert len(merged.problem.units) < 0.85 * len(problem.units)
    exact, found = solve(problem, None, EXACT), solve(merged.problem)
    assert exact is not None and found is not None
    assert seconds_of(problem, merged.spread(found.picks)) == pytest.approx(found.seconds), "the same choice, the same cost"
    assert sum(memory(problem, merged.spread(found.picks))) == sum(found.held), "and the same memory"
    assert exact.bound * (1 - 1e-6) <= found.seconds <= 1.05 * exact.seconds


@pytest.mark.parametrize("seed", range(22))
def test_a_small_graph_as_shipped_costs_what_the_exact_program_finds(seed: int) -> None:
    problem = problem_of(any_step(seed), EIGHT)
    merged = merge_alike(problem, auto_shard.KINDS)
    exact, found = solve(problem, None, PROVEN), solve_in_turn(merged.problem, EIGHT, None, UNHURRIED)
    assert exact is not None and found is not None and exact.bound >= (1 - 2e-4) * exact.seconds, "the exact program is solved"
    assert found.seconds <= 1.05 * exact.seconds


@pytest.mark.parametrize("sizes", [(256, 512, 256), (64, 4096, 8192), (8192, 256, 1024)])
def test_two_axes_in_turn_cost_little_more_than_at_once(sizes: tuple[int, ...]) -> None:
    problem = problem_of(mlp(sizes[0], sizes[1:]), GRID)
    at_once, in_turn = solve(problem, None, EXACT), solve_in_turn(problem, GRID, None, UNHURRIED)
    assert at_once is not None and in_turn is not None
    assert at_once.bound * (1 - 1e-6) <= in_turn.seconds <= 1.05 * at_once.seconds


# -- true


@pytest.mark.parametrize("seed", range(12))
def test_what_the_search_reckons_is_what_is_sent(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the wires that move, and bytes of the collectives inserted; starting one costs nothing here."""
    machine = Machine(0.0, 0.0, *[1e11] * 4)
    kept: list[tuple[Problem, Solution]] = []

    def keep(problem: Problem, *_: object) -> Solution:
        found = solve(problem, None, Effort(gap=0.02, seconds=60.0))
        assert found is not None
        kept.append((problem, found))
        return found

    monkeypatch.setattr(auto_shard, "_solve", keep)
    graph = EXPLICIT.run(any_step(seed), Context(EIGHT, machine=machine))
    ((problem, found),) = kept
    reckoned = sum(problem.wire_s(wire, found.picks) / wire.times for wire in problem.wires) * machine.link_bandwidth
    # Inputs are moved once before the first of many runs.
    sent = sum(node_bytes(n) for n in graph.nodes if n.op.effect == "comm" and n.inputs[0] not in graph.inputs)
    assert reckoned == pytest.approx(sent, rel=0.01, abs=20_000) and sent


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 10])
def test_what_the_search_reckons_is_near_what_the_plan_is_predicted_to_take(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a factor of 1.6, one thing after another, as the search counts. The plan fuses more than that; the search lets a lone sum
    share the start of others.
    """
    kept: list[Solution | None] = []

    def keep(problem: Problem, *rest: Any) -> Solution | None:
        kept.append(found := solve_in_turn(problem, *rest))
        return found

    monkeypatch.setattr(auto_shard, "_solve", keep)
    first, context = Context(EIGHT), Context(EIGHT)
    DEFAULT.run(any_step(seed), first)
    final = DEFAULT.run(next_step(any_step(seed), first.output_shardings), context)  # parameters are where they live
    found = estimate(final, context)
    assert kept[-1] is not None and 1 / 1.6 <= (found.compute_s + found.comm_s) / kept[-1].seconds <= 1.6


# -- correct


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.integers(1, 30))
def test_any_choice_computes_the_same(seed: int, count: int) -> None:
    check(seed, count, lambda problem: solution(problem, any_picks(problem, seed)))


@pytest.mark.parametrize(("seed", "count"), [(240, 30), (164, 20), (2823474748, 14), (2501033042, 13), (3914363009, 21)])
def test_gathers_that_travel_together_wait_for_what_they_read(seed: int, count: int) -> None:
    """A gather of a bucket reads what another collective makes, behind the first of its bucket."""
    check(seed, count, lambda problem: solution(problem, any_picks(problem, seed)))


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.integers(5, 25))
def test_the_best_choice_computes_the_same(seed: int, count: int) -> None:
    check(seed, count, None)


def any_picks(problem: Problem, seed: int) -> tuple[int, ...]:
    rng = Random(seed)
    return tuple(rng.randrange(len(unit.ways)) for unit in problem.units)


def check(seed: int, count: int, pick: Any) -> None:
    case = make_case(seed, count)
    # With a limit sums are made as soon as they can be.
    graph = replace(case.graph, options=PlanOptions("search", memory_limit=500 if seed % 2 else None))
    with pytest.MonkeyPatch.context() as patch:
        if pick is not None:
            patch.setattr(auto_shard, "_solve", lambda problem, *_: pick(problem))
        got = simulate_graph(graph, case.inputs, (), case.num_workers)
    for i, (a, b) in enumerate(zip(got, evaluate(graph, case.inputs), strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"output {i} of seed {seed}, {count} nodes")

"""Where a plan may be cut, what a part is given, and what it costs to say so."""

from __future__ import annotations

import time

from gt.ir.program import Collective, Compute, Free, Program, WireNode, WireType
from gt.runtime.cutting import MAX_PARTS, cut_plan

TYPE = WireType((4, 4), "float32")
PAIR = (0, 1)


def compute(first: int, count: int, compile: bool = False, inplace: bool = False) -> Compute:
    """A chain of nodes from slot ``first`` to ``first + count``."""
    nodes = tuple(WireNode("neg", (first + i,), (first + i + 1,), (TYPE,), (), 0) for i in range(count))
    pairs = tuple((i, ((0, 0),)) for i in range(count)) if inplace else ()
    return Compute(nodes, (first,), (first + count,), f"k{first}", compile, pairs)


def program(worker: int, *steps: object, last: int, donated: tuple[int, ...] = ()) -> Program:
    return Program(worker, ((0, 0),), (), steps, ((0, last),), (("train.py", 3, "step"),), donated)  # type: ignore[arg-type]


def test_a_chain_keeps_one_value_between_its_parts_and_overwrites_what_the_whole_would() -> None:
    cut = cut_plan({0: program(0, compute(0, 8, inplace=True), Free((3,)), last=8, donated=(0,))}, 1, 1, 4, 7)
    assert cut is not None and [p.id for p in cut.parts] == [7, 8, 9, 10] and cut.kept == 3
    programs = [p.programs[0] for p in cut.parts]
    assert [len(p.steps[0].nodes) for p in programs] == [2, 2, 2, 2]  # type: ignore[union-attr]
    assert [p.inputs for p in programs] == [((0, 0),), ((2, 2),), ((3, 4),), ((4, 6),)]
    assert [p.outputs for p in programs] == [((1, 2),), ((2, 4),), ((3, 6),), ((0, 8),)]
    assert [p.donated for p in programs] == [(0,), (2,), (4,), (6,)]
    assert [p.last_inputs for p in cut.parts] == [{0}, set(), set(), set()]
    assert [p.last_kept for p in cut.parts] == [set(), {0}, {1}, {2}]
    assert all(not any(isinstance(s, Free) for s in p.steps) for p in programs[:1])


def test_nothing_is_cut_inside_what_is_compiled_as_one_or_while_a_collective_is_under_way() -> None:
    assert cut_plan({0: program(0, compute(0, 8, compile=True), last=8)}, 1, 1, 4, 1) is None
    begins = Collective("all_reduce", 0, 0, 20, TYPE, PAIR, (("reduce", "sum"),), begins=True)
    wait = Collective("wait", 1, 20, 20, TYPE, PAIR)
    steps = (compute(0, 2), begins, compute(2, 6), wait, compute(8, 2))
    cut = cut_plan({w: program(w, *steps, last=10) for w in PAIR}, 1, 1, 50, 1)
    assert cut is not None
    whole = [p for part in cut.parts for w, p in part.programs.items() if w == 0 and p.collectives]
    assert len(whole) == 1 and len(whole[0].collectives) == 2


def test_programs_whose_collectives_are_in_no_common_order_are_not_cut() -> None:
    first, second = (Collective("all_reduce", n, 0, 30 + n, TYPE, PAIR, (("reduce", "sum"),)) for n in (1, 2))
    steps = compute(0, 4)
    there = {0: program(0, steps, first, second, last=4), 1: program(1, steps, second, first, last=4)}
    assert cut_plan(there, 1, 1, 4, 1) is None


def test_a_long_program_is_cut_soon() -> None:
    start = time.thread_time()
    cut = cut_plan({0: program(0, compute(0, 20_000), last=20_000)}, 1, 1, 10_000, 1)
    assert cut is not None and len(cut.parts) == MAX_PARTS
    assert time.thread_time() - start < 5

"""A data-parallel step of some size: what its first collective parts, and what is done while the last travels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gt
from gt import session as sessions
from gt.ir.program import Collective, Compute, Program
from gt.passes.plan import Cluster
from gt.scripted import ScriptSession, ShapesOnly

WIDTH, LAYERS, ROWS = 2048, 4, 1024


@pytest.fixture(scope="module")
def program() -> Program:
    return a_step(autocast=False)


def a_step(autocast: bool, layers: int = LAYERS) -> Program:
    """Worker 0's of the second step: layers of 16 MiB, a mean over targets that count, AdamW."""
    gt.disconnect()
    gt.get_config().clear()
    session = ScriptSession(ShapesOnly(), Cluster((0, 1, 2, 3)))
    with sessions.pinned(session):
        model = gt.nn.Sequential(*(gt.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
        optim = gt.optim.AdamW(model.parameters())
        gt.load_config(str(Path(__file__).parents[3] / "examples" / "sharding" / "data.yaml"))
        with gt.signal.context("batch"):
            x, y = gt.from_numpy(np.ones((ROWS, WIDTH), np.float32)), gt.from_numpy(np.ones(ROWS, np.int64))
        for _ in range(3):
            with gt.autocast("cpu", dtype=gt.bfloat16, enabled=autocast):
                loss = gt.nn.functional.cross_entropy(model(x).float(), y)
            loss.backward()
            optim.step()
            optim.zero_grad()
            loss.item()
    gt.get_config().clear()
    return next(reversed(session.found.values())).plan.programs[0]


def kinds(program: Program) -> list[str]:
    """Give each step as what it is: a collective's kind, or the ops of a region that say what it is for."""
    out = []
    for step in program.steps:
        if isinstance(step, Collective):
            out.append(f"{step.kind} {step.nbytes >> 20} MiB" if step.kind != "wait" else f"wait for {step.type.shape}")
        elif isinstance(step, Compute):
            ops = {node.op for node in step.nodes}
            out.append(" ".join(name for name in ("log_softmax", "log_softmax_backward", "adamw_step") if name in ops))
    return [text for text in out if text]


def test_how_many_targets_count_is_known_before_it_could_part_forward_and_backward(program: Program) -> None:
    found = kinds(program)
    assert found[0] == "all_reduce 0 MiB", "of the targets alone"
    assert "log_softmax log_softmax_backward" in found, "one region"
    first = next(step for step in program.steps if isinstance(step, Compute))
    assert {node.op for node in first.nodes} <= {"full", "ne", "sum", "mask_pad"}


def test_gradients_that_are_there_are_used_while_the_last_travels(program: Program) -> None:
    found = kinds(program)
    sent = [i for i, text in enumerate(found) if text == "all_reduce 24 MiB"]  # what a member sends of 16 MiB
    updates = [i for i, text in enumerate(found) if text == "adamw_step"]
    assert len(sent) == len(updates) == LAYERS
    assert updates[0] > sent[-1], "none stands in the way of what is still to be computed"
    waits = [i for i, text in enumerate(found) if text == f"wait for {(WIDTH, WIDTH)}"]
    assert all(wait < update for wait, update in zip(waits, updates, strict=True))
    assert all(update < wait for wait, update in zip(waits[1:], updates, strict=False)), "no update waits for a gradient that comes later"


def test_gradients_are_cast_where_they_are_used_in_the_order_in_which_they_come() -> None:
    layers = 12  # so many that what is cast is kept as it was meanwhile
    program = a_step(True, layers)
    begun = [step.output for step in program.steps if isinstance(step, Collective) and step.begins and step.nbytes > 1 << 20]
    waits = [step.output for step in program.steps if isinstance(step, Collective) and step.kind == "wait" and step.output in begun]
    assert len(begun) == layers and waits == begun
    readers = [step for step in program.steps if isinstance(step, Compute) and not set(begun).isdisjoint(step.inputs)]
    assert len(readers) == layers, "one region for each"
    ops = [{node.op for node in step.nodes} for step in readers]
    assert all({"adamw_step"} <= own <= {"adamw_step", "cast"} for own in ops)
    assert any("cast" in own for own in ops)


def test_what_goes_with_a_gradient_starts_with_it(program: Program) -> None:
    sums = [step for step in program.steps if isinstance(step, Collective) and step.kind == "all_reduce"]
    with_next = [dict(step.attrs).get("with_next", False) for step in sums]
    assert [step.type.shape for step in sums[1:3]] == [(WIDTH, WIDTH), ()], "the loss's sum is in the launch of the first gradient"
    assert with_next == [False, True, False, False, False, False]


def test_a_gradient_that_nothing_else_reads_is_summed_where_it_is(program: Program) -> None:
    sums = [step for step in program.steps if isinstance(step, Collective) and step.kind == "all_reduce" and step.nbytes > 1 << 20]
    assert len(sums) == LAYERS and all(step.inplace for step in sums)
    assert not any(step.inplace for step in program.steps if isinstance(step, Collective) and step.kind == "wait")

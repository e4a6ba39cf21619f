"""Sums over workers that start in one launch do so on all of its workers alike, with nothing in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt import ShardConfig, SignalConfig, nn
from gt import session as sessions
from gt.ir.program import Collective, Free, Program
from gt.passes.plan import Cluster
from gt.scripted import ScriptSession, ShapesOnly

LAYOUTS = Path(__file__).parents[2] / "examples" / "sharding"
LAYERS = {
    "linear": lambda width: nn.Linear(width, width),
    "norm": lambda width: nn.LayerNorm(width),
    "tanh": lambda width: nn.Tanh(),
}


def plans(width: int, rows: int, workers: int, sets: dict[str, list[int]], layers: list[tuple[str, str]]) -> list[dict[int, Program]]:
    """Give the programs of training steps of layers, each under a signal."""
    for name, members in sets.items():
        gt.register_config(name, SignalConfig(shard=ShardConfig(axis=0, workers=members)))
    session = ScriptSession(ShapesOnly(), Cluster(tuple(range(workers))))
    with sessions.pinned(session):
        model = nn.Sequential(*(LAYERS[kind](width) for kind, _ in layers))
        optimizer: Any = gt.optim.AdamW(model.parameters())
        for _ in range(2):
            h = gt.from_numpy(np.ones((rows, width), np.float32))
            for layer, (_, signal) in zip(model, layers, strict=True):
                with gt.signal.context(signal):
                    h = layer(h)
            with gt.signal.context(layers[-1][1]):
                loss = h.square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
    gt.get_config().clear()
    return [dict(found.plan.programs) for found in session.found.values()]


def launches(program: Program) -> list[tuple[int, ...]]:
    """Give the numbers of the sums that a worker starts together. What is to start with another is followed by it, and only begins."""
    found: list[tuple[int, ...]] = []
    open_: tuple[int, ...] = ()
    for step in program.steps:
        if isinstance(step, Free):
            continue
        if not open_ and not (isinstance(step, Collective) and dict(step.attrs).get("with_next")):
            continue
        assert isinstance(step, Collective) and step.kind == "all_reduce" and step.begins, f"{step} within a launch"
        open_ = (*open_, step.number)
        if not dict(step.attrs).get("with_next"):
            found.append(open_)
            open_ = ()
    assert not open_, "nothing comes to it"
    return found


def check(programs: dict[int, Program]) -> int:
    """Check that workers that meet in a sum start it with the same others; give how many launches there are."""
    started: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
    for program in programs.values():
        together = {number: launch for launch in launches(program) for number in launch}
        for step in program.collectives:
            if step.kind == "all_reduce":
                launch = together.get(step.number, (step.number,))
                assert started.setdefault((step.number, step.group), launch) == launch
    return len({launch for launch in started.values() if len(launch) > 1})


BOTH = {"both": [0, 1], "last": [1]}


@pytest.mark.parametrize(
    ("width", "rows", "layers"),
    [
        (2048, 3072, [("norm", "both"), ("linear", "both"), ("norm", "both"), ("linear", "last"), ("linear", "last")]),
        (1024, 3072, [("linear", "both")] * 3 + [("linear", "last")]),
        (1024, 3072, [("linear", "both"), ("tanh", "both"), ("linear", "both"), ("linear", "last")]),
    ],
    ids=["sent behind", "one has nothing to compute meanwhile", "the other has"],
)
def test_workers_that_do_more_start_what_the_others_start(width: int, rows: int, layers: list[tuple[str, str]], alone: None) -> None:
    counts = [check(programs) for programs in plans(width, rows, 2, BOTH, layers)]
    assert min(counts) > 0


def test_what_is_read_at_once_starts_together_too(alone: None) -> None:
    gt.load_config(str(LAYOUTS / "data.yaml"))
    for programs in plans(512, 256, 2, {"batch": [0, 1]}, [("linear", "batch")] * 6):
        assert check(programs) == 1
        assert sum(step.kind == "all_reduce" for step in programs[0].collectives) == 7


@settings(max_examples=40)
@given(st.data())
def test_any_layers_on_any_workers(data: st.DataObject) -> None:
    gt.get_config().clear()
    workers = data.draw(st.integers(2, 4))
    sets = {
        f"s{i}": sorted(data.draw(st.sets(st.integers(0, workers - 1), min_size=1)))
        for i in range(data.draw(st.integers(1, 3)))
    }  # fmt: skip
    depth = data.draw(st.integers(2, 6))
    kinds = ["linear", *(data.draw(st.sampled_from(sorted(LAYERS))) for _ in range(depth - 1))]
    signals = sorted(data.draw(st.sampled_from(sorted(sets))) for _ in range(depth))
    width = data.draw(st.sampled_from([300, 1024, 2048]))
    for programs in plans(width, 3072, workers, sets, list(zip(kinds, signals, strict=True))):
        check(programs)

"""A training run that is killed, and resumed, is the run that was not: every loss, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from gt.checkpoint import folders
from tests.fault.checkpointed import STEPS, begin, seen, train, wait_for

pytestmark = pytest.mark.timeout(120)
KILL_AT = 9  # steps done when it is killed, wherever a save is then


def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole, killed, folder = tmp_path / "whole", tmp_path / "killed", tmp_path / "runs"
    train(tmp_path / "undisturbed", whole)
    with begin(folder, killed, stop=KILL_AT) as process:  # it goes no further, whenever the kill comes
        wait_for(killed, KILL_AT, process)
        process.kill()
    there = folders.whole(folder)
    assert there and all((path / "index.json").exists() for path in there.values())
    with begin(folder, killed) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err.decode()
    wanted = {step: loss for step, loss, _ in seen(whole)}
    assert list(wanted) == list(range(1, STEPS + 1))
    first, second = (
        [(step, loss) for step, loss, p in seen(killed) if p == who] for who in dict.fromkeys(p for *_, p in seen(killed))
    )
    assert first[-1][0] == KILL_AT, "it was killed before its end"
    assert [step for step, _ in second] == list(range(max(there) + 1, STEPS + 1)), "and went on from the newest checkpoint"
    assert [(step, loss) for step, loss in first + second if wanted[step] != loss] == []
    assert list(folders.whole(folder)) == [STEPS - 2, STEPS], "what was under way when the script ended is written"
    assert sorted(path.name for path in folder.iterdir()) == [folders.LOCK, *(folders.name_of(step) for step in (STEPS - 2, STEPS))]

"""Every example runs as a person would run it, and does what it says."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DIGITS = ROOT / "examples" / "digits.py"
CONFIG = ROOT / "examples" / "config_digits.yaml"


def run(*arguments: object, timeout_s: float = 110, **environment: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def losses(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", output)]


def final_accuracy(output: str) -> float:
    match = re.search(r"test accuracy (\d+\.\d+)%", output)
    assert match is not None, output
    return float(match[1])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_are_short_and_open_with_their_commands(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 150
    assert f"python examples/{path.name}" in (ast.get_docstring(ast.parse(text)) or "")


def test_every_example_is_run_here() -> None:
    assert [p.name for p in EXAMPLES] == ["char_gpt.py", "digits.py", "digits_cnn.py", "tabular.py"]


def test_char_gpt_learns_and_plots(tmp_path: Path) -> None:
    out = run(ROOT / "examples" / "char_gpt.py", "--steps", 40, "--width", 32, "--plot", tmp_path / "p.png")
    held_out, uniform = map(float, re.search(r"held-out loss (\S+) \(a uniform guess: (\S+)\)", out).groups())  # type: ignore[union-attr]
    assert held_out < 0.85 * uniform
    assert "The " in out


def test_digits_cnn_learns(tmp_path: Path) -> None:
    assert final_accuracy(run(ROOT / "examples" / "digits_cnn.py", "--epochs", 4, "--plot", tmp_path / "p.png")) > 85


def test_tabular_fits(tmp_path: Path) -> None:
    out = run(ROOT / "examples" / "tabular.py", "--steps", 200, "--plot", tmp_path / "p.png")
    assert float(re.search(r"network (\S+),", out)[1]) > 0.3  # type: ignore[index]


def test_digits_in_this_process() -> None:
    out = run(DIGITS)
    seen = losses(out)
    assert len(seen) == 20
    assert seen[-1] < 0.1 * seen[0]
    assert final_accuracy(out) >= 95


@pytest.mark.timeout(240)
def test_digits_on_four_workers_equals_one() -> None:
    one = losses(run(DIGITS, "--epochs", 2))
    four = losses(run(DIGITS, "--epochs", 2, "--workers", 4, "--config", CONFIG))
    assert len(one) == 2
    assert four == pytest.approx(one, abs=2e-4)  # printed to four places


def test_digits_stops_after_steps_and_on_bad_config(tmp_path: Path) -> None:
    assert len(losses(run(DIGITS, "--steps", 5))) == 1
    bad = tmp_path / "bad.yaml"
    bad.write_text("batch:\n  shrad: {}\n")
    done = subprocess.run(
        [sys.executable, str(DIGITS), "--config", str(bad)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{bad}:2:3: batch: unknown key 'shrad'; did you mean 'shard'?" in done.stderr

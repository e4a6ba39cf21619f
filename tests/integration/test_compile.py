"""The compiled tier for real: a child compiles, this process loads, checks and swaps. Cold it takes half a minute."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch._guards import TracingContext, tracing
from torch._inductor import standalone_compile
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gt.ir.types import float32, int64
from gt.runtime import compile_process, layer_kernels
from gt.runtime.cuda_graph import Graphs
from gt.runtime.engine import ExecutionError
from gt.runtime.errors import fault_of
from gt.runtime.executor import TorchEngine, TorchLoaded
from tests.integration.programs import gone, wait_for
from tests.unit.runtime.program_builder import ProgramBuilder

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Hot:
    """A program that ran until it was compiled, in a fresh cache: ``folder``."""

    folder: Path
    loaded: TorchLoaded
    began: str  # its tier at first
    children: int  # processes there were
    artefacts: list[Path]


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hot]:
    """One cache for the module, in which all else is found: nothing but this compiles the step."""
    folder = tmp_path_factory.mktemp("compiled")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        engine = TorchEngine(compile_after=3, compile_after_s=0.0, cache_dir=folder)
        try:
            loaded = engine.load(step_program())
            began = loaded.tier
            run_until(loaded, lambda: loaded.tier == "compiled" or bool(loaded.stats.notes))
            yield Hot(folder, loaded, began, len(psutil.Process().children()), [*folder.glob("*.bin")])
        finally:
            engine.close()


@pytest.fixture(scope="module")
def folder(hot: Hot) -> Path:
    return hot.folder


@pytest.fixture(autouse=True)
def _inductor_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
    yield


NEWS = slice(2, 5)  # the outputs that overwrite inputs; behind them, what is drawn


def step_program(compile: bool = False) -> Any:
    """Adam on a linear layer with dropout: scalars of both kinds, random values, a diagonal, updates in place."""
    b = ProgramBuilder()
    x, w, m, v = b.input(16, 8), b.input(4, 8), b.input(4, 8), b.input(4, 8)
    lr, step, seed, stream = b.scalar(), b.scalar(), b.scalar(int64), b.scalar(int64)
    dropped = b("dropout", x, seed, stream, p=0.5)
    h = b("linear", dropped, w)
    loss = b("sum", b("square", h), dims=(0, 1), keepdim=False, dtype=float32)
    g = b("matmul", b("permute", h, dims=(1, 0)), x)
    attrs = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False, "maximize": False}
    pairs = ((0, 0), (1, 2), (2, 3))
    news = b.apply("adam_step", w, g, m, v, lr, step, num=1, inplace=pairs, **attrs)
    part = b("slice", dropped, starts=(3, 0), stops=(11, 8), steps=(1, 1))
    diagonal = b("as_strided", part, size=(8,), stride=(9,), offset=0)
    draws = [dropped, diagonal, b("random_normal", seed, stream, shape=(64, 33), dtype=float32)]
    return b.program(loss, b("relu", h), *news, *draws, compile=compile)


def values(seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(16, 8), torch.randn(4, 8), torch.zeros(4, 8), torch.zeros(4, 8)]


def run_until(loaded: TorchLoaded, done: Callable[[], bool], limit_s: float = 240.0) -> None:
    until = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < until, loaded.stats
        loaded.run(values(), [0.1, 1.0, 3, 4])
        compiling = [p.future for p in loaded.pieces if p.future is not None]
        futures.wait(compiling, timeout=max(until - time.monotonic(), 0))


def check_against_eager(loaded: TorchLoaded) -> None:
    """Compiled and eager agree over steps with changing scalars, and both update in place."""
    eager = TorchEngine(compile_after=0).load(step_program())
    mine, theirs = values(1), values(1)
    addresses = [t.data_ptr() for t in mine]
    for step in range(1, 6):
        scalars = [0.1 / step, float(step), step, 2**40 + step]
        got, expected = loaded.run(list(mine), scalars), eager.run(list(theirs), scalars)
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g, e, rtol=1e-4, atol=1e-5)
        assert all(g.equal(e) for g, e in zip(got[NEWS.stop :], expected[NEWS.stop :], strict=True)), "random bits differ"
        assert [t.data_ptr() for t in got[NEWS]] == addresses[1:]
        torch.testing.assert_close(mine[1], theirs[1], rtol=1e-4, atol=1e-5)


def test_a_hot_program_is_compiled_elsewhere_and_swapped_in(hot: Hot) -> None:
    loaded = hot.loaded
    assert hot.began == "eager" and loaded.stats.notes == [] and loaded.stats.compile_s > 0
    assert hot.children >= 1 and len(hot.artefacts) == 1
    before = {*hot.folder.glob("*.bin")}
    check_against_eager(loaded)
    assert {*hot.folder.glob("*.bin")} == before  # a changed scalar is no new artefact
    turned = values()
    turned[0] = torch.randn(8, 16).t()
    loaded.run(turned, [0.1, 1.0, 3, 4])
    assert loaded.stats.strided_fallbacks == 1
    check_against_eager(loaded)
    assert loaded.stats.compiled_runs > 10


def test_compiled_products_of_one_row_equal_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is multiplied may be computed here, or lie within a larger value at an offset and with strides of its own."""
    monkeypatch.setattr(layer_kernels, "_fuses", lambda x: torch.compiler.is_compiling())
    row = layer_kernels.row_linear

    def products(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        gelu = torch.nn.functional.gelu(row(x[:1, 0], w))
        normal = torch.layer_norm(x, (64,))
        inner = (x[0].sin() + 1)[2:3].unsqueeze(0)
        return row(gelu, v), row(normal[1, -1:], w), row((x[0] * 2).mT.mT[3:4], w), row(x[1, 4], w), layer_kernels.row_matmul(inner, w.t().cos())

    values = [torch.randn(s, generator=torch.Generator().manual_seed(0)) for s in ((2, 5, 64), (256, 64), (64, 256))]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    with mode, compile_process._compiling():
        examples = [torch.empty(v.shape) for v in values]
        graph = make_fx(products)(*examples)
    assert "inductor_force_stride_order" in graph.code
    with tracing(TracingContext(mode)):
        compiled = standalone_compile(graph, examples, dynamic_shapes="from_tracing_context")
    for got, expected in zip(compiled(*values), products(*values), strict=True):
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_what_is_compiled_is_captured(folder: Path) -> None:
    """The artefact loads, updates in place and becomes part of one CUDA graph; scalars and random keys stay run-time."""
    engine = TorchEngine("cuda:0", compile_after=3, compile_after_s=0.0, cache_dir=folder)
    engine.graphs = Graphs(engine.device)
    try:
        loaded, eager = engine.load(step_program()), TorchEngine("cuda:0", compile_after=0).load(step_program())
        mine, theirs = ([t.cuda() for t in values(1)] for _ in range(2))
        addresses = [t.data_ptr() for t in mine]
        until, step = time.monotonic() + 240, 0
        while not (loaded.tier == "graph" and loaded.stats.compiled_pieces) or step % 5:
            assert time.monotonic() < until and not loaded.stats.notes, loaded.stats
            step += 1
            scalars = [0.01 / step, float(step), step, 2**40 + step]
            got, expected = loaded.run(list(mine), scalars), eager.run(list(theirs), scalars)
            for g, e in zip(got, expected, strict=True):
                torch.testing.assert_close(g, e, rtol=1e-3, atol=1e-4)
            assert all(g.equal(e) for g, e in zip(got[NEWS.stop :], expected[NEWS.stop :], strict=True)), "random bits differ"
            assert [t.data_ptr() for t in got[NEWS]] == addresses[1:]
            for t, other in zip(mine, theirs, strict=True):
                t.copy_(other)  # rounding must not add up over so many steps
        assert loaded.stats.graph_runs > 0
    finally:
        engine.close()


RESTARTED = """
import sys
from pathlib import Path
from gt.runtime.compiler import _Child
from gt.runtime.executor import TorchEngine
from tests.integration.test_compile import check_against_eager, run_until, step_program
def refuse(self):
    raise AssertionError("a cached artefact needs no compile")
_Child.start = refuse
engine = TorchEngine(compile_after=10**9, cache_dir=Path(sys.argv[1]))
loaded = engine.load(step_program())
run_until(loaded, lambda: loaded.tier == "compiled" or bool(loaded.stats.notes), limit_s=90)
assert loaded.stats.notes == [] and loaded.stats.compile_s == 0, loaded.stats
check_against_eager(loaded)
engine.close()
print(loaded.tier)
"""


def test_a_restart_starts_hot(folder: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", RESTARTED, str(folder)], env=env, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["compiled"]


def test_compile_true_compiles_before_the_second_run(folder: Path) -> None:
    engine = TorchEngine(compile_after=0, cache_dir=folder)
    try:
        loaded = engine.load(step_program(compile=True))
        loaded.run(values(), [0.1, 1.0, 3, 4])
        assert loaded.tier == "compiled" and loaded.stats.notes == []
        check_against_eager(loaded)
    finally:
        engine.close()


def test_wrong_compiled_code_is_never_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(compile_after=0, cache_dir=folder)
    wrong = [torch.zeros(()), torch.zeros(16, 4), torch.zeros(16, 8), torch.zeros(8), torch.zeros(64, 33)]
    monkeypatch.setattr("gt.runtime.compiler._load", lambda path, folder: lambda args: wrong)
    try:
        loaded = engine.load(step_program(compile=True))
        check_against_eager(loaded)
        assert loaded.tier == "eager" and "results differ" in loaded.stats.notes[0]
    finally:
        engine.close()


def test_what_cannot_be_compiled_stays_eager_and_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.compiler._CHILD", "import sys; sys.exit('no compiler here')")
    b = ProgramBuilder()
    program = b.program(b("exp", b.input(5)), compile=True)
    engine = TorchEngine(compile_after=0, cache_dir=folder)
    try:
        loaded = engine.load(program)
        (out,) = loaded.run([torch.zeros(5)], [])
        assert out.tolist() == [1.0] * 5 and loaded.tier == "eager"
        assert "no compiler here" in loaded.stats.notes[0]
    finally:
        engine.close()


def test_a_bad_index_is_the_same_error_compiled_and_eager(folder: Path) -> None:
    """Compiled code knows neither the op nor torch's class, and of itself takes negative indices where eager torch does not."""

    def program(compile: bool) -> Any:
        b = ProgramBuilder()
        w, rows, classes, places = b.input(5, 8), *(b.input(4, dtype=int64) for _ in range(3))
        picked, checked = b("index_select", w, rows, dim=0), b("in_range", classes, size=5, ignore=-100)
        return b.program(b("exp", b("index", picked, places, dims=(0,))), checked, b("neg", w), compile=compile)

    def outcome(loaded: TorchLoaded, *indices: list[int]) -> tuple[str, str] | list[Any]:
        try:
            return [t.tolist() for t in loaded.run([torch.arange(40.0).view(5, 8) / 9, *map(torch.tensor, indices)], [])]
        except ExecutionError as error:
            return fault_of(error).kind, str(error)

    engine, good = TorchEngine(compile_after=0, cache_dir=folder), [0, 3, 1, 2]
    try:
        loaded, eager = engine.load(program(True)), TorchEngine(compile_after=0).load(program(False))
        bad = ([77, 0, 0, 0], good, good), (good, [0, 0, -1, 0], good), ([-1, 0, 0, 0], good, good), (good, good, [4, 0, 0, 0])
        first = outcome(loaded, *bad[0])
        assert loaded.tier == "eager" and not loaded.stats.notes  # values were at fault, so the code is tried again
        assert outcome(loaded, good, good, good) == outcome(eager, good, good, good) and loaded.tier == "compiled"
        assert first == outcome(loaded, *bad[0])
        for given in (*bad, (good, good, [-5, 0, 0, 0])):
            got, want = outcome(loaded, *given), outcome(eager, *given)
            assert got == want and want[0] == "index" and "model.py:" in want[1], given
        fine = (good, [-100, 4, 0, 1], [-1, -4, 0, 3])
        torch.testing.assert_close(outcome(loaded, *fine), outcome(eager, *fine))
    finally:
        engine.close()


PARENT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from gt.runtime.executor import TorchEngine
from tests.unit.runtime.program_builder import ProgramBuilder
b = ProgramBuilder()
engine = TorchEngine(compile_after=1, compile_after_s=0.0, cache_dir=Path(sys.argv[2]))
loaded = engine.load(b.program(b("exp", b("neg", b.input(int(sys.argv[3]))))))
while True:
    loaded.run([torch.zeros(int(sys.argv[3]))], [])
    if engine._compiler is not None and engine._compiler.children[0].process is not None:
        print(engine._compiler.children[0].process.pid, flush=True)
        break
if sys.argv[4] == "wait":
    sys.stdin.read()
"""


@pytest.mark.parametrize(("end", "size"), [("kill", 101), ("exit", 102)])
def test_the_compiling_process_ends_with_its_parent(folder: Path, end: str, size: int) -> None:
    mode = "wait" if end == "kill" else "leave"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(ROOT), str(folder), str(size), mode], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert parent.stdout is not None and parent.stdin is not None
    pid, children = int(parent.stdout.readline()), list[psutil.Process]()
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
        children.append(psutil.Process(pid))
    if end == "kill":
        parent.send_signal(signal.SIGKILL)
    parent.wait(timeout=60)
    parent.stdin.close()
    parent.stdout.close()
    assert wait_for(lambda: gone(children)), f"the compiling process {children} outlives its parent"

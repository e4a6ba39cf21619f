"""Keys, folders and refusals of the compiled tier; compiling itself is in tests/integration/test_compile.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gt.ir.types import complex64, int64
from gt.runtime import kernels
from gt.runtime.compile_process import InputSpec, Request, flat, use_inductor_cache
from gt.runtime.compiler import Compiled, CompileError, Compiler, _code_version, _load, artefact_key, cache_folder, spec_of
from gt.runtime.executor import TorchEngine
from gt.runtime.layout import Piece, lay_out
from gt.runtime.render import build, render_piece
from tests.unit.runtime.bombs import bomb
from tests.unit.runtime.program_builder import Doubling, ProgramBuilder

ROOT = Path(__file__).resolve().parents[3]


def piece(op: str = "exp", shift: int = 0) -> Piece:
    b = ProgramBuilder()
    for _ in range(shift):
        b.input(2)
    x = b.input(4, 4)
    y = b.collective("all_reduce", b("neg", x))
    b.lines += shift
    return lay_out(b.program(b(op, y))).stretches[1].piece


def key(p: Piece, spec: InputSpec, threads: int = 1) -> str:
    return artefact_key(p, [spec], "cpu", threads)


SPEC = spec_of(torch.zeros(4, 4))


def test_equal_pieces_have_equal_keys_wherever_they_stand() -> None:
    assert key(piece(), SPEC) == key(piece(shift=3), SPEC)


OTHERS = [torch.zeros(4, 4).t(), torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, 8)[:, ::2], torch.zeros(4, 5)]


@pytest.mark.parametrize("other", OTHERS)
def test_a_key_holds_dtype_and_layout(other: torch.Tensor) -> None:
    assert key(piece(), spec_of(other)) != key(piece(), SPEC)


def test_a_key_holds_the_ops_and_the_threads() -> None:
    assert len({key(piece(), SPEC), key(piece("neg"), SPEC), key(piece(), SPEC, threads=2)}) == 3


def test_a_key_holds_what_writes_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    names, read = set(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: names.add(path.name) or read(path))
    assert _code_version.__wrapped__() == _code_version()
    assert {"nn.py", "render.py", "compile_process.py", "loss_kernels.py", "last_sums.py"} <= names


def test_the_folder_is_made_private(tmp_path: Path) -> None:
    made = cache_folder(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    assert cache_folder(made) == made


def test_a_folder_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(CompileError, match="chmod 700"):
        cache_folder(tmp_path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(CompileError, match="only its owner"):
        cache_folder(tmp_path / "link")


def test_a_refused_folder_leaves_the_program_eager(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    b = ProgramBuilder()
    engine = TorchEngine(compile_after=1, compile_after_s=0.0, cache_dir=tmp_path)
    loaded = engine.load(b.program(b("exp", b.input(3))))
    for _ in range(5):
        assert loaded.run([torch.zeros(3)], [])[0].tolist() == [1.0] * 3
    assert loaded.tier == "eager" and "chmod 700" in loaded.stats.notes[0]


def test_a_closed_compiler_refuses(tmp_path: Path) -> None:
    compiler = Compiler(torch.device("cpu"), tmp_path / "c")
    compiler.close()
    compiler.close()
    with pytest.raises(CompileError, match="closed"):
        compiler.submit(piece(), [SPEC]).result(timeout=10)


ENDS = """
import sys, threading, time
from pathlib import Path
import torch
from gt.runtime import compiler
from tests.unit.runtime.test_compiler import piece
begun = threading.Event()
def load(path, folder):
    begun.set()
    time.sleep(0.5)
    print("loaded", torch.ops.prims.sum is not None)
    return lambda args: args
compiler._load = load
made = compiler.Compiler(torch.device("cpu"), Path(sys.argv[1]))
specs = (compiler.spec_of(torch.ones(3)),)
made.path(piece(), specs).touch()
made.submit(piece(), specs)
begun.wait()
"""


def test_a_load_under_way_ends_before_torch_does(tmp_path: Path) -> None:
    """Else what is half read is dropped, of which torch complains on stderr."""
    done = subprocess.run([sys.executable, "-c", ENDS, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "loaded True\n", "")


def test_without_a_threshold_nothing_starts(tmp_path: Path) -> None:
    b = ProgramBuilder()
    engine = TorchEngine(compile_after=0, cache_dir=tmp_path / "c")
    loaded = engine.load(b.program(b("exp", b.input(3))))
    for _ in range(300):
        loaded.run([torch.zeros(3)], [])
    assert not (tmp_path / "c").exists()


def test_inputs_that_share_memory_with_an_overwritten_one_forbid_compiling(tmp_path: Path) -> None:
    b = ProgramBuilder()
    w, g, lr = b.input(4), b.input(4), b.scalar()
    (new,) = b.apply("sgd_step", w, g, lr, num=1, momentum=0.0, nesterov=False, weight_decay=0.0, dampening=0.0,
                     maximize=False, first=False, inplace=((0, 0),))  # fmt: skip
    engine = TorchEngine(compile_after=1, compile_after_s=0.0, cache_dir=tmp_path / "c")
    loaded = engine.load(b.program(new))
    shared = torch.ones(4)
    for _ in range(4):
        loaded.run([shared, shared], [0.5])
    assert "shares memory" in loaded.stats.notes[0] and not (tmp_path / "c").exists()


# -- climbing, with the compiled form run uncompiled in place of Inductor


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Piece]:
    """The pieces that were asked for."""
    pieces: list[Piece] = []

    def obtain(self: Compiler, request: Request, child: Any) -> Compiled:
        pieces.append(request.piece)
        source = render_piece(request.piece, "compiled")
        function = flat(build(source, torch=torch, kernels=kernels, device=torch.device("cpu")), request.piece)
        strides = tuple(s.stride for s in request.specs)
        return Compiled(lambda args: function(*args), request.piece.kept(), strides, 0.25)

    monkeypatch.setattr(Compiler, "_obtain", obtain)
    return pieces


def layers(compile: bool = False) -> Any:
    """Two equal pieces and a last one, each with scalars, between collectives."""
    b = ProgramBuilder()
    v, z, n = b.input(4), b.input(4, dtype=complex64), b.scalar(int64)
    for scalar in (b.scalar(), b.scalar()):
        v = b.collective("all_reduce", b("add", b("mul", v, scalar), scalar))
    last = b("add", v, b("cast", b("abs", b("mul", z, b.scalar(complex64))), dtype=b.types[v].dtype))
    return b.program(last, b("cast", b("add", n, n), dtype=b.types[v].dtype), compile=compile)


def run_layers(loaded: Any, step: int) -> list[list[float]]:
    out = loaded.run([torch.arange(4.0), torch.ones(4, dtype=torch.complex64)], [step, 2.0, 0.5 * step, 1j], Doubling())
    return [t.tolist() for t in out]


def climb(loaded: Any) -> None:
    for _ in range(2000):
        run_layers(loaded, 1)
        if loaded.stats.compiled_pieces == loaded.stats.pieces:
            return
        futures = [p.future for p in loaded.pieces if p.future is not None and p.compiled is None]
        for future in futures:
            future.result(timeout=30)
    raise AssertionError(loaded.stats)


def test_a_program_with_collectives_climbs_piece_by_piece(tmp_path: Path, made: list[Piece]) -> None:
    engine = TorchEngine(compile_after=3, compile_after_s=0.0, cache_dir=tmp_path / "c")
    try:
        loaded, eager = engine.load(layers()), TorchEngine(compile_after=0).load(layers())
        climb(loaded)
        assert loaded.tier == "compiled" and loaded.stats.pieces == 3
        assert len(made) == 2  # the two layers share one
        for step in range(5):
            assert run_layers(loaded, step) == run_layers(eager, step)
    finally:
        engine.close()


def test_a_hot_program_waits_for_its_runs_and_its_time(tmp_path: Path, made: list[Piece]) -> None:
    engine = TorchEngine(compile_after=5, compile_after_s=3600.0, cache_dir=tmp_path / "c")
    try:
        loaded = engine.load(layers())
        for _ in range(50):
            run_layers(loaded, 1)
        assert made == [] and loaded.tier == "eager"
    finally:
        engine.close()


def test_a_marked_piece_is_compiled_in_the_first_run(tmp_path: Path, made: list[Piece]) -> None:
    engine = TorchEngine(compile_after=0, cache_dir=tmp_path / "c")
    try:
        loaded = engine.load(layers(compile=True))
        first = run_layers(loaded, 1)
        assert loaded.stats.compiled_pieces == 1 and len(made) == 1  # only the last piece is marked
        assert (loaded.stats.marked, loaded.stats.made, loaded.stats.waits) == (1, 1, False)
        assert run_layers(loaded, 1) == first
    finally:
        engine.close()


def test_a_failing_compile_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Compiler, request: Request, child: Any) -> Compiled:
        raise ValueError("no such lowering")

    monkeypatch.setattr(Compiler, "_obtain", fail)
    engine = TorchEngine(compile_after=1, compile_after_s=0.0, cache_dir=tmp_path / "c")
    try:
        b = ProgramBuilder()
        loaded = engine.load(b.program(b("exp", b.input(3))))
        for _ in range(50):
            loaded.run([torch.zeros(3)], [])
            if (future := loaded.pieces[0].future) is not None:
                future.exception(timeout=30)
        assert loaded.stats.notes == ["piece of 1 op stays eager: ValueError: no such lowering"]
    finally:
        engine.close()


@pytest.mark.parametrize("spoil", ["file", "folder", "link", "owner"])
def test_compiled_code_that_others_may_have_written_is_not_loaded(spoil: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds pickles: reading it runs what it says."""
    folder = cache_folder(tmp_path / "cache")
    target = tmp_path / "ran"
    path = folder / "x.bin"
    path.write_bytes(bomb(target))
    match spoil:
        case "file":
            path.chmod(0o666)
        case "folder":
            folder.chmod(0o777)
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case _:
            monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(CompileError, match="others may have written"):
        _load(str(path), folder)
    assert not target.exists()


def test_inductors_own_folder_must_not_be_open_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # whatever comes to stand there goes again
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    use_inductor_cache(tmp_path)
    own = tmp_path / "inductor"
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(own) and own.stat().st_mode & 0o777 == 0o700
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(shared))
    with pytest.raises(OSError, match="chmod 700"):
        use_inductor_cache(tmp_path)

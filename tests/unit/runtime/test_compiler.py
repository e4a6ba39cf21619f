"""Keys, folders and refusals of the compiled tier; compiling itself is in tests/integration/test_compile.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gt.runtime.compiler import CompileError, Compiler, InputSpec, artefact_key, private_folder, spec_of
from gt.runtime.executor import TorchEngine
from gt.runtime.layout import Piece, lay_out
from tests.unit.runtime.program_builder import ProgramBuilder


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


@pytest.mark.parametrize(
    "other",
    [spec_of(torch.zeros(4, 4).t()), spec_of(torch.zeros(4, 4, dtype=torch.float64)), spec_of(torch.zeros(4, 8)[:, ::2])],
)
def test_a_key_holds_dtype_and_layout(other: InputSpec) -> None:
    same = other == SPEC
    assert (key(piece(), other) == key(piece(), SPEC)) == same


def test_a_key_holds_the_ops_and_the_threads() -> None:
    assert len({key(piece(), SPEC), key(piece("neg"), SPEC), key(piece(), SPEC, threads=2)}) == 3


def test_the_folder_is_made_private(tmp_path: Path) -> None:
    made = private_folder(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    assert private_folder(made) == made


def test_a_folder_others_can_enter_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(CompileError, match="chmod 700"):
        private_folder(tmp_path)


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(CompileError, match="only its owner"):
        private_folder(tmp_path / "link")


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

"""The eager tier beside the NumPy reference; memory, scalars and errors."""

from __future__ import annotations

import weakref
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gt.ir.types import bfloat16, bool_, complex64, float16, float32, float64, int32, int64
from gt.runtime import kernels
from gt.runtime.agreement import PART, apart, disagreement
from gt.runtime.compiler import CompileError
from gt.runtime.engine import ExecutionError
from gt.runtime.executor import TorchEngine
from gt.runtime.layout import lay_out
from gt.runtime.numpy_engine import NumpyEngine
from gt.runtime.piece import TorchPiece
from gt.runtime.render import build, pack, render_piece, render_program
from tests.unit.runtime.program_builder import Doubling, ProgramBuilder, run_on

SGD: dict[str, Any] = {"nesterov": False, "weight_decay": 0.0, "dampening": 0.0, "maximize": False}


@pytest.fixture
def engine() -> TorchEngine:
    return TorchEngine(compile_after=0)


def draw(shape: tuple[int, ...], dtype: Any = float32, seed: int = 0) -> np.ndarray:
    """Random values in wire form."""
    rng = np.random.default_rng(seed + len(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0, 4, shape).astype(dtype.numpy)
    if dtype.kind == "c":
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(np.complex64)
    values = rng.normal(size=shape).astype(np.float32)
    if dtype is bfloat16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype.numpy)


CASES: dict[str, tuple[str, list[tuple[Any, ...]], dict[str, Any]]] = {
    "add broadcast": ("add", [((3, 4),), ((4,),)], {}),
    "matmul batched": ("matmul", [((2, 3, 4),), ((4, 5),)], {}),
    "linear": ("linear", [((3, 4),), ((5, 4),), ((5,),)], {}),
    "compare": ("le", [((3, 4),), ((3, 1),)], {}),
    "where": ("where", [((3, 4), bool_), ((3, 4),), ((),)], {}),
    "cast": ("cast", [((3, 4),)], {"dtype": int32}),
    "cast to bool": ("cast", [((3, 4),)], {"dtype": bool_}),
    "reshape": ("reshape", [((3, 4),)], {"shape": (2, 6)}),
    "expand": ("expand", [((3, 1),)], {"shape": (2, 3, 4)}),
    "sum": ("sum", [((3, 4),)], {"dims": (1,), "keepdim": True, "dtype": float32}),
    "sum of bool": ("sum", [((3, 4), bool_)], {"dims": (0, 1), "keepdim": False, "dtype": int64}),
    "amax": ("amax", [((3, 4),)], {"dims": (0,), "keepdim": False}),
    "permute": ("permute", [((2, 3, 4),)], {"dims": (2, 0, 1)}),
    "slice": ("slice", [((5, 6),)], {"starts": (1, 0), "stops": (4, 6), "steps": (1, 2)}),
    "pad": ("pad", [((2, 3),)], {"low": (1, 0), "high": (0, 2), "interior": (0, 1), "value": 0.5}),
    "cat": ("cat", [((2, 3),), ((4, 3),)], {"dim": 0}),
    "flip": ("flip", [((2, 3),)], {"dims": (1,)}),
    "roll": ("roll", [((2, 3),)], {"shifts": (1,), "dims": (1,)}),
    "iota": ("iota", [], {"shape": (2, 3), "dim": 1, "dtype": int64}),
    "full": ("full", [], {"shape": (2, 3), "value": float("inf"), "dtype": float16}),
    "full 0-d": ("full", [], {"shape": (), "value": 3, "dtype": int32}),
    "empty": ("add", [((0, 4),), ((4,),)], {}),
    "0-d": ("mul", [((),), ((),)], {}),
    "bfloat16": ("mul", [((3, 4), bfloat16), ((4,), bfloat16)], {}),
    "float16": ("exp", [((3, 4), float16)], {}),
    "float64": ("log", [((3, 4), float64)], {}),
    "complex": ("mul", [((3, 4), complex64), ((4,), complex64)], {}),
    "softmax": ("softmax", [((3, 4),)], {"dim": 1}),
    "log_softmax": ("log_softmax", [((3, 4),)], {"dim": -1}),
    "gelu": ("gelu", [((3, 4),)], {"approximate": "tanh"}),
    "logical_not": ("logical_not", [((3, 4), bool_)], {}),
    "bitwise_and": ("bitwise_and", [((3, 4), int32), ((4,), int32)], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_family_agrees_with_numpy(case: str, engine: TorchEngine) -> None:
    op, operands, attrs = CASES[case]
    b = ProgramBuilder()
    inputs = [b.input(*spec[0], dtype=spec[1] if len(spec) > 1 else float32) for spec in operands]
    result = b(op, *inputs, **attrs)
    dtype = b.types[result].dtype
    copied = b("copy", result)  # outputs own their memory
    program = b.program(copied)
    arrays = [draw(spec[0], spec[1] if len(spec) > 1 else float32, i) for i, spec in enumerate(operands)]
    (got,) = run_on(engine, program, arrays)
    (expected,) = run_on(NumpyEngine(), program, arrays)
    assert got.dtype == expected.dtype and got.shape == expected.shape
    if dtype is bfloat16:
        got, expected = ((a.astype(np.uint32) << 16).view(np.float32) for a in (got, expected))
    rtol = {float16: 2e-3, bfloat16: 1e-2}.get(dtype, 1e-5)
    np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)


def mlp_step() -> tuple[ProgramBuilder, tuple[int, ...]]:
    """A training step: two linear layers, squared error, SGD with momentum in place."""
    b = ProgramBuilder()
    x, y = b.input(8, 5), b.input(8, 3)
    params = [b.input(6, 5), b.input(6), b.input(3, 6), b.input(3)]
    buffers = [b.input(*b.types[p].shape) for p in params]
    lr = b.scalar()
    w1, b1, w2, b2 = params
    h = b("linear", x, w1, b1)
    r = b("relu", h)
    error = b("sub", b("linear", r, w2, b2), y)
    loss = b("sum", b("square", error), dims=(0, 1), keepdim=False, dtype=float32)
    g = b("mul", error, b("full", shape=(), value=2.0, dtype=float32))
    total = {"dims": (0,), "keepdim": False, "dtype": float32}
    gw2, gb2 = b("matmul", b("permute", g, dims=(1, 0)), r), b("sum", g, **total)
    zero = b("full", shape=(), value=0.0, dtype=float32)
    gh = b("where", b("le", r, zero), zero, b("matmul", g, w2))
    gw1, gb1 = b("matmul", b("permute", gh, dims=(1, 0)), x), b("sum", gh, **total)
    pairs = tuple((i, i) for i in range(4)) + tuple((4 + i, 8 + i) for i in range(4))
    news = b.apply("sgd_step", *params, gw1, gb1, gw2, gb2, *buffers, lr, num=4, momentum=0.9, inplace=pairs, **SGD)
    return b, (loss, *news)


def test_a_training_step_agrees_with_numpy_and_updates_in_place(engine: TorchEngine) -> None:
    b, outputs = mlp_step()
    program = b.program(*outputs)
    arrays = [draw(b.types[slot].shape, seed=slot) for slot in b.inputs]
    held = [engine.from_host(a.copy(), float32) for a in arrays]
    addresses = [t.data_ptr() for t in held[2:]]
    got = engine.load(program).run(list(held), [0.01])
    reference = NumpyEngine()
    expected = reference.load(program).run([a.copy() for a in arrays], [0.01])
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(engine.to_host(mine, float32), theirs, rtol=1e-4, atol=1e-5)
    assert [t.data_ptr() for t in got[1:]] == addresses
    assert all(new is old for new, old in zip(got[1:], held[2:], strict=True))


def test_nothing_is_overwritten_without_proof(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    w, g, lr = b.input(4), b.input(4), b.scalar()
    (new,) = b.apply("sgd_step", w, g, lr, num=1, momentum=0.0, **SGD)
    held = [torch.ones(4), torch.ones(4)]
    (updated,) = engine.load(b.program(new)).run(list(held), [0.5])
    assert updated.tolist() == [0.5] * 4 and held[0].tolist() == [1.0] * 4


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16, int32, int64], ids=str)
@pytest.mark.parametrize("op", ["add", "mul", "maximum", "where", "eq"])
def test_scalar_operands_give_the_declared_dtype(op: str, dtype: Any, engine: TorchEngine) -> None:
    b = ProgramBuilder()
    x, s, t = b.input(3, dtype=dtype), b.scalar(dtype), b.scalar(dtype)
    mask = b("eq", x, x)
    outputs = [b(op, mask, a, c) if op == "where" else b(op, a, c) for a, c in ((x, s), (s, x), (s, t))]
    program = b.program(*outputs)
    arrays = [draw((3,), dtype)]
    got, expected = run_on(engine, program, arrays, [3, 2]), run_on(NumpyEngine(), program, arrays, [3, 2])
    for mine, theirs, slot in zip(got, expected, outputs, strict=True):
        assert mine.shape == theirs.shape == b.types[slot].shape
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_a_half_is_multiplied_by_the_rounded_number(dtype: Any, engine: TorchEngine) -> None:
    b = ProgramBuilder()
    x, s = b.input(64, dtype=dtype), b.scalar(dtype)
    constant, exact = (b("full", shape=(), value=value, dtype=dtype) for value in (0.1, 0.5))
    program = b.program(b("mul", x, s), b("mul", x, constant), b("mul", x, exact))
    arrays = [draw((64,), dtype)]
    for got, expected in zip(*(run_on(e, program, arrays, [0.1]) for e in (engine, NumpyEngine())), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert " * 0.5" in render_program(program) and " * 0.1" not in render_program(program)


def test_both_forms_of_a_piece_give_the_same() -> None:
    b, outputs = mlp_step()
    (stretch,) = lay_out(b.program(*outputs)).stretches
    names: dict[str, Any] = {"torch": torch, "kernels": kernels, "device": torch.device("cpu")}
    first = [torch.from_numpy(draw(b.types[slot].shape, seed=slot)) for slot in b.inputs]
    second = [t.clone() for t in first]
    eager = build(render_piece(stretch.piece, "eager"), **names)(list(first), (0.01,))
    floats, ints = pack(stretch.piece.scalars, [0.01])
    compiled = build(render_piece(stretch.piece, "compiled"), **names)
    (loss,) = compiled(list(second), torch.tensor(floats, dtype=torch.float64), torch.tensor(ints, dtype=torch.int64))
    torch.testing.assert_close(loss, eager[0])
    for one, two in zip(first, second, strict=True):
        torch.testing.assert_close(one, two)


def test_random_values_take_their_keys_as_numbers(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    seed, stream = b.scalar(int64), b.scalar(int64)
    x = b("random_uniform", seed, stream, shape=(4, 5), dtype=float32)
    program = b.program(x)
    (got,), (expected,) = (run_on(e, program, [], [5, 2**40 + 1]) for e in (engine, NumpyEngine()))
    np.testing.assert_array_equal(got, expected)


def test_collectives_run_between_pieces(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    x, s = b.input(4), b.scalar()
    y = b.collective("all_reduce", b("mul", x, s))
    z = b.collective("all_reduce", b("add", y, x))
    program = b.program(b("neg", z), y)
    arrays = [draw((4,))]
    for got, expected in zip(*(run_on(e, program, arrays, [3.0]) for e in (engine, NumpyEngine())), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    comm = Doubling()
    engine.load(program).run([torch.ones(4)], [1.0], comm)
    assert comm.asked == [0, 1]


def test_what_is_dead_is_freed_while_the_program_runs(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    x = b.input(64)
    y = b("exp", b("neg", x))
    program = b.program(b("neg", b.collective("all_reduce", y)))
    value = torch.ones(64)
    reference = weakref.ref(value)
    alive: list[bool] = []

    class Looking(Doubling):
        def run(self, step: Any, tensor: Any) -> Any:
            alive.append(reference() is not None)
            return super().run(step, tensor)

    inputs = [value]
    del value
    engine.load(program).run(inputs, [], Looking())
    assert alive == [False] and inputs == []


@pytest.mark.parametrize("backend", [TorchEngine, NumpyEngine])
def test_an_error_names_the_op_and_the_users_line(backend: Any) -> None:
    b = ProgramBuilder()
    x, y = b.input(4, 5), b.input(5, 3)
    b("exp", x)
    product = b("matmul", x, y)
    engine = backend()
    wrong = [engine.from_host(np.ones(shape, np.float32), float32) for shape in ((4, 5), (4, 3))]
    with pytest.raises(ExecutionError, match=r"matmul: .*\(given f32\[4, 5\], f32\[4, 3\], recorded at model.py:2 in main\)\n") as caught:
        engine.load(b.program(product)).run(wrong, [])
    assert caught.value.op == "matmul"
    assert caught.value.location is not None and caught.value.location.line == 2
    assert caught.value.where == "model.py:2"


class Slow:
    """A compiler that has nothing yet, and in the end fails."""

    def __init__(self) -> None:
        self.asked: Future[Any] = Future()

    def is_cached(self, *_: Any) -> bool:
        return False

    def submit(self, *_: Any) -> Future[Any]:
        return self.asked

    def close(self) -> None:
        """Nothing to end."""


def test_it_says_why_it_is_not_compiled_until_it_is_or_never_will_be() -> None:
    b = ProgramBuilder()
    x = b.input(4)
    program = b.program(b("exp", b("neg", x)))
    never = TorchEngine(compile_after=0).load(program)
    assert never.uncompiled.startswith("not compiled: GT_COMPILE_AFTER is 0; ")
    engine = TorchEngine(compile_after=3, compile_after_s=0.0)
    engine._compiler = compiler = Slow()  # type: ignore[assignment]
    loaded = engine.load(program)
    for _ in range(3):
        assert loaded.uncompiled.startswith("not compiled yet: that begins after 3 runs which took 0 s in all (GT_COMPILE_AFTER), or at once")
        loaded.run([torch.ones(4)], [])
    while loaded.pieces[0].future is None:
        loaded.run([torch.ones(4)], [])
    assert loaded.stats.runs < 8 and loaded.uncompiled == "not compiled yet: compiling is under way"
    compiler.asked.set_exception(CompileError("no such op"))
    assert loaded.uncompiled == "not compiled yet: its next runs check and take what has been compiled"
    loaded.run([torch.ones(4)], [])
    assert loaded.uncompiled == "" and "stays eager: no such op" in loaded.stats.notes[0]
    c = ProgramBuilder()
    marked = engine.load(c.program(c("exp", c.input(4)), compile=True))
    assert marked.uncompiled == "not compiled yet: its first run compiles it, as a signal asks for"


def test_a_failing_collective_names_its_line(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    program = b.program(b("neg", b.collective("all_reduce", b("exp", b.input(4)))))

    class Broken:
        def run(self, step: Any, tensor: Any) -> Any:
            raise ConnectionError("the other worker is gone")

    with pytest.raises(ExecutionError, match="all_reduce: ConnectionError: the other worker is gone") as caught:
        engine.load(program).run([torch.ones(4)], [], Broken())
    assert caught.value.location is not None and caught.value.location.line == 2


@pytest.mark.parametrize("backend", [TorchEngine, NumpyEngine])
@pytest.mark.parametrize("dtype", [float32, bfloat16, bool_, int64, complex64, float16], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_host_arrays_go_in_and_come_out(backend: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    engine, array = backend(), draw(shape, dtype)
    array.setflags(write=False)
    value = engine.from_host(array, dtype)
    first = engine.to_host(value, dtype)
    np.testing.assert_array_equal(first, array)
    assert first.dtype == array.dtype and first.shape == shape
    if first.size:
        first.reshape(-1)[0] = 0 if first.reshape(-1)[0] else 1
        np.testing.assert_array_equal(engine.to_host(value, dtype), array)


def test_a_fetched_array_is_not_changed_by_the_next_update(engine: TorchEngine) -> None:
    value = engine.from_host(np.ones(4, np.float32), float32)
    fetched = engine.to_host(value, float32)
    value.add_(1)
    assert fetched.tolist() == [1.0] * 4


def test_gradients_stay_on_in_the_callers_thread(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    program = b.program(b("exp", b.input(4)))
    engine.load(program).run([torch.ones(4)], [])
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize(
    ("expected", "got", "word"),
    [
        (torch.ones(3), torch.ones(3) + 1e-6, ""),
        (torch.ones(3), torch.ones(3) + 1e-2, "largest difference"),
        (torch.full((3,), float("nan")), torch.full((3,), float("nan")), ""),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 1.0]), "largest"),
        (torch.tensor([1e-7, 1.0]), torch.tensor([3e-7, 1.0]), ""),
        (torch.zeros(3), torch.ones(3), "largest difference"),
        (torch.arange(5), torch.arange(5), ""),
        (torch.arange(5), torch.arange(5) + 1, "5 of 5"),
        (torch.ones(3), torch.ones(4), "[3]"),
        (torch.ones(3), torch.ones(3, dtype=torch.float64), "float64"),
        (torch.ones(0), torch.ones(0), ""),
    ],
)
def test_tiers_agree_up_to_rounding(expected: torch.Tensor, got: torch.Tensor, word: str) -> None:
    said = disagreement(expected, got)
    assert (word in said) if word else said == ""


def test_sums_of_rounded_halves_may_differ_more_where_they_cancel() -> None:
    torch.manual_seed(0)
    expected = torch.randn(4096)
    rounded = expected * (1 + 0.03 * torch.randn(4096))
    assert "largest" in disagreement(expected, rounded) and disagreement(expected, rounded, halves=True) == ""
    wrong = expected.clone()
    wrong[7] += expected.abs().max()
    assert "largest" in disagreement(expected, wrong, halves=True)
    assert "largest" in disagreement(expected, expected.roll(1), halves=True)
    infinite = torch.cat([rounded, torch.tensor([float("inf")])])
    assert "largest" in disagreement(torch.cat([expected, torch.zeros(1)]), infinite, halves=True)


@pytest.mark.parametrize("dtype", [float32, bfloat16])
def test_what_rounding_leaves_of_sums_that_cancel_is_no_difference(engine: TorchEngine, dtype: Any) -> None:
    build = ProgramBuilder()
    x = build.input(64, 32, dtype=dtype)
    p = build("softmax", x, dim=1)
    rows = build("sum", x, dims=(1,), keepdim=False, dtype=dtype)
    one, other = build("sum", rows, dims=(0,), keepdim=True, dtype=dtype), build("sum", x, dims=(0, 1), keepdim=True, dtype=dtype)
    off = build("sub", one, build("reshape", other, shape=(1,)))  # 0 but for rounding
    loaded = engine.load(build.program(p, off))
    (piece,) = loaded.pieces
    values = torch.randn(64, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16 if dtype is bfloat16 else torch.float32)

    def differing(noise: float, wrong: float) -> Any:
        def function(args: list[torch.Tensor]) -> list[torch.Tensor]:
            return [t + noise if t.shape == (1,) else t * (1 + wrong) for t in piece.eager(list(args), ())]

        return SimpleNamespace(function=function, kept=(-1,) * 9, strides=((32, 1),), seconds=0.0)

    small, large = (1e-5, 1e-2) if dtype is float32 else (0.5, 50.0)
    (left,) = [t for t in piece.eager([values.clone()], ()) if t.shape == (1,)]
    assert "largest" in disagreement(left, left + small, halves=dtype is bfloat16)
    for noise, wrong, kept in ((0.0, 0.0, True), (small, 0.0, True), (large, 0.0, False), (0.0, 0.3, False)):
        piece.compiled, piece.settled = differing(noise, wrong), False
        piece._check([values.clone()], ())
        assert (piece.call == piece._run_compiled) is kept, (noise, wrong, loaded.stats.notes)


@pytest.mark.parametrize("most", [1 << 28, 0])
@pytest.mark.parametrize("kind", ["right", "wrong", "raises"])
def test_a_check_leaves_what_the_eager_tier_makes_of_what_is_overwritten(engine: TorchEngine, kind: str, most: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("gt.runtime.piece.MAX_SPARED", most)
    build = ProgramBuilder()
    p, g, m, lr = build.input(8), build.input(8), build.input(8), build.scalar()
    news = build.apply("sgd_step", p, g, m, lr, num=1, momentum=0.9, inplace=((0, 0), (1, 2)), **SGD)
    loaded = engine.load(build.program(*news))
    (piece,) = loaded.pieces
    values = [torch.randn(8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    wanted = [t.clone() for t in values]
    piece.eager(list(wanted), (0.1,))

    def function(args: list[torch.Tensor]) -> list[torch.Tensor]:
        out = piece.eager(list(args[:3]), (0.1,))
        if kind != "right":
            args[0].fill_(7.0), args[2].fill_(7.0)
        if kind == "raises":
            raise RuntimeError("broken")
        return [t for t, k in zip(out, piece.kept, strict=True) if k < 0]

    piece.compiled, piece.settled = SimpleNamespace(function=function, kept=piece.kept, strides=((1,),) * 3, seconds=0.0), False
    given = [t.clone() for t in values]
    got = piece._check(list(given), (0.1,))
    assert all(torch.equal(a, b) for a, b in zip(given, wanted, strict=True)) and torch.equal(got[0], wanted[0])
    assert (piece.call == piece._run_compiled) is (kind == "right"), loaded.stats.notes


@pytest.mark.parametrize("shape", [(7, 3, 5), (64,), (2, 2, 2, 9), ()])
def test_large_results_are_compared_in_parts(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    a = torch.randn(shape)
    same, off, holed = a + 1e-6, a.clone(), a.clone()
    off.reshape(-1)[-1] += 1
    holed.reshape(-1)[-1] = float("nan")
    cases = [(a, same), (a, off), (a, holed), (holed, holed), (a > 0, off > 5), (a.bfloat16(), off.bfloat16()), (a + 1j, off + 1j)]
    whole = [(disagreement(x, y, halves), apart(x, y)) for x, y in cases for halves in (False, True)]
    monkeypatch.setattr("gt.runtime.agreement.PART", 4)
    assert [(disagreement(x, y, halves), apart(x, y)) for x, y in cases for halves in (False, True)] == whole
    assert [bool(text) for text, _ in whole[::2]] == [False, True, True, False, bool((a > 0).any()), True, True]


def test_a_check_takes_little_memory_beside_its_values() -> None:
    a = torch.zeros(1, 4 * PART, dtype=torch.bfloat16)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        assert not disagreement(a, a.clone(), True)
    held = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert peak <= a.nbytes + 32 * PART


def test_strides_of_dims_of_one_say_nothing_about_a_layout() -> None:
    piece: Any = SimpleNamespace(compiled=SimpleNamespace(strides=((8, 8, 1), (1,))))
    one = torch.zeros(8).as_strided((1, 1, 8), (3, 8, 1))
    assert TorchPiece._fits(piece, [torch.zeros(1, 1, 8), torch.zeros(4)])
    assert TorchPiece._fits(piece, [one, torch.zeros(1).as_strided((1,), (7,))])
    assert not TorchPiece._fits(piece, [one, torch.zeros(8)[::2]])
    assert not TorchPiece._fits(piece, [torch.zeros(2, 1, 8).transpose(0, 2), torch.zeros(4)])


@pytest.mark.parametrize(("pieces", "tiers"), [((0,), "c"), ((), "")])
def test_workers_of_a_program_run_what_all_of_them_have_compiled(pieces: tuple[int, ...], tiers: str, engine: TorchEngine) -> None:
    b = ProgramBuilder()
    loaded = engine.load(b.program(b("mul", b.input(4), b.scalar())))
    loaded.stats.together = True
    (piece,) = loaded.pieces
    function = lambda args: [args[0] * args[1][0].to(torch.float32)]  # noqa: E731
    piece.compiled, piece.settled = SimpleNamespace(function=function, kept=piece.kept, strides=((1,),), seconds=0.0), True  # type: ignore[assignment]
    loaded.stats.compiled_pieces = 1
    x = torch.arange(4.0)
    assert loaded.run([x], [2.0])[0].equal(2 * x) and loaded.tiers == "" and piece.waits_for_others
    loaded.swap(pieces)
    assert loaded.run([x], [2.0])[0].equal(2 * x) and loaded.tiers == tiers
    assert loaded.stats.compiled_pieces == len(pieces) and bool(loaded.stats.notes) == (not pieces)

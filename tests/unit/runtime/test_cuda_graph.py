"""What is captured and when, what is copied, whose memory outputs are: with graphs faked on the CPU, and on a GPU."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from gt.ir.types import complex64, float32, float64, int64
from gt.runtime.cuda_graph import MAX_CAPTURES, PAID_OFF, SLOTS, Graphs, ScalarSlots
from gt.runtime.executor import TorchEngine, TorchLoaded
from tests.unit.runtime.fake_graph import FakeCapturer, fake_graphs
from tests.unit.runtime.program_builder import Doubling, ProgramBuilder

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SGD: dict[str, Any] = {"nesterov": False, "weight_decay": 0.0, "dampening": 0.0, "maximize": False, "first": False}


@pytest.fixture(params=["fake", pytest.param("cuda", marks=needs_gpu)])
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "fake":
        made = TorchEngine(compile_after=0, graphs=fake_graphs()[0])
        yield made
    else:
        made = TorchEngine("cuda:0", compile_after=0)
        made.graphs = Graphs(made.device)
        yield made
        made.close()


def step_program(size: int = 4) -> Any:
    """w -= lr * (x * x + w), in place; gives the sum of the old w, x twice and the new w."""
    b = ProgramBuilder()
    x, w, lr = b.input(size), b.input(size), b.scalar(float64)
    loss = b("sum", w, dims=(0,), keepdim=False, dtype=float32)
    twice = b("add", x, x)
    g = b("add", b("mul", x, x), w)
    (new,) = b.apply("sgd_step", w, g, lr, num=1, momentum=0.0, inplace=((0, 0),), **SGD)
    program = b.program(loss, twice, new)
    return type(program)(**{f: getattr(program, f) for f in program.__struct_fields__} | {"donated": (w,)})


class Steps:
    """Runs ``step_program`` as a worker does, beside the same in plain floats."""

    def __init__(self, engine: TorchEngine, size: int = 4) -> None:
        self.engine, self.loaded = engine, engine.load(step_program(size))
        self.w = torch.ones(size, device=engine.device)
        self.expected = torch.ones(size, device=engine.device)

    def __call__(self, x: torch.Tensor, lr: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
        old = self.w
        loss, twice, self.w = self.loaded.run([x, self.w], [lr])
        torch.testing.assert_close(loss, self.expected.sum())
        torch.testing.assert_close(twice, x + x)
        self.expected = self.expected - lr * (x * x + self.expected)
        torch.testing.assert_close(self.w, self.expected)
        assert self.w is old
        return loss, twice

    @property
    def unit(self) -> Any:
        return self.loaded.unit

    def batch(self, value: float) -> torch.Tensor:
        return torch.full((self.w.numel(),), float(value), device=self.engine.device)


def test_the_third_run_is_captured_and_scalars_never_recapture(engine: TorchEngine) -> None:
    steps = Steps(engine)
    for i in range(3 * SLOTS):
        steps(steps.batch(0.01 * i), lr=0.1 / (i + 1))
    assert steps.loaded.tier == "graph" and steps.loaded.stats.notes == []
    assert steps.unit.stats.captures == 1 and steps.unit.stats.replays == 3 * SLOTS - 2
    assert steps.unit.stats.copied_inputs == 1  # the batch; the parameter is read where it is
    assert steps.loaded.stats.graph_runs == 3 * SLOTS - 2


def test_a_batch_that_stays_is_read_at_its_address(engine: TorchEngine) -> None:
    steps, x = Steps(engine), torch.ones(4, device=engine.device)
    for _ in range(5):
        steps(x)
    assert steps.unit.stats.copied_inputs == 0
    x.mul_(0.5)  # written in place, it is still read
    steps(x)
    assert steps.unit.stats.captures == 1


def test_a_batch_that_moves_after_all_is_copied_from_then_on(engine: TorchEngine) -> None:
    steps, x = Steps(engine), torch.ones(4, device=engine.device)
    for _ in range(5):
        steps(x)
    for i in range(5):
        steps(steps.batch(0.1 * i))
    assert steps.unit.stats.captures == 2 and steps.unit.stats.copied_inputs == 1


def test_a_parameter_that_moves_is_run_plainly_and_captured_anew(engine: TorchEngine) -> None:
    steps = Steps(engine)
    for i in range(4):
        steps(steps.batch(i))
    steps.w = steps.w.clone()
    steps(steps.batch(1.0))
    assert steps.unit.stats.misses == 1 and steps.loaded.stats.graph_runs == 2
    steps(steps.batch(2.0))
    assert steps.unit.stats.captures == 2 and steps.loaded.stats.graph_runs == 3


def test_a_parameter_given_other_memory_is_not_read_where_it_was(engine: TorchEngine) -> None:
    """As a graph with collectives does to what is in its memory, when another value comes there."""
    steps = Steps(engine)
    for i in range(6):
        steps(steps.batch(i))
    assert steps.engine.graphs is not None
    steps.engine.graphs.move_out(steps.w)
    steps(steps.batch(1.0))
    assert steps.unit.stats.misses == 1
    steps(steps.batch(2.0))
    assert steps.unit.stats.captures == 2


def test_a_parameter_that_moves_every_step_is_copied(engine: TorchEngine) -> None:
    """Somebody holds each old value, so the worker hands over copies."""
    steps, held = Steps(engine), []
    for i in range(12):
        held.append((steps.w, steps.expected))
        steps.w = steps.w.clone()
        out = steps.loaded.run([steps.batch(i), steps.w], [0.1])
        steps.expected = steps.expected - 0.1 * (steps.batch(i) ** 2 + steps.expected)
        steps.w = out[2]
        torch.testing.assert_close(steps.w, steps.expected)
    assert steps.unit.captured is not None and steps.unit.stats.copied_inputs == 2
    for old, expected in held:
        torch.testing.assert_close(old, expected)


def move_often(steps: Steps, every: int, runs: int) -> None:
    for i in range(runs):
        steps(steps.batch(i % 3))
        if i % every == every - 1:
            steps.w = steps.w.clone()


def test_a_parameter_that_moves_now_and_then_stays_where_it_is(engine: TorchEngine) -> None:
    steps = Steps(engine)
    move_often(steps, every=PAID_OFF + 4, runs=10 * (PAID_OFF + 4))
    assert steps.unit.stats.captures == 10 and steps.unit.stats.copied_inputs == 1
    assert steps.unit.stats.replays == 10 * (PAID_OFF + 4) - 11


def test_captures_that_never_pay_off_end(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.cuda_graph.MANY", 100)
    steps = Steps(engine)
    move_often(steps, every=4, runs=6 * MAX_CAPTURES)
    assert steps.unit.stats.captures == MAX_CAPTURES and steps.loaded.tier == "eager"
    assert "inputs moved soon after" in steps.loaded.stats.notes[0]


def test_outputs_that_live_on_keep_their_values(engine: TorchEngine) -> None:
    steps, held = Steps(engine), []
    for i in range(8):
        x = steps.batch(i)
        held.append((*steps(x), x + x, steps.expected.clone()))
    for _, twice, expected, _ in held:
        torch.testing.assert_close(twice, expected)
    addresses = {t.data_ptr() for _, t, _, _ in held[2:-1]}
    assert len(addresses) == 5  # each moved out of the scratch


def test_dead_outputs_are_not_copied(engine: TorchEngine) -> None:
    steps = Steps(engine)
    for i in range(4):
        steps(steps.batch(i))
    assert steps.engine.graphs is not None
    steps(steps.batch(1.0))
    gc.collect()
    assert all(ref() is None for ref in steps.engine.graphs.lent)


def test_programs_share_scratch_and_values_between_them_survive(engine: TorchEngine) -> None:
    """Rule 13: each replay may overwrite all scratch, so what one program gives another must lie outside."""
    first, second = Steps(engine), Steps(engine, size=6)
    kept = []
    for i in range(6):
        x = first.batch(i)
        _, twice = first(x)
        second(second.batch(i))
        torch.testing.assert_close(twice, x + x)
        _, chained = first(twice)  # an output in scratch as the next replay's input
        torch.testing.assert_close(chained, 4 * x)
        kept.append((twice, chained, x))
    for twice, chained, x in kept:
        torch.testing.assert_close(twice, 2 * x)
        torch.testing.assert_close(chained, 4 * x)
    assert first.loaded.tier == second.loaded.tier == "graph"


def test_an_output_in_scratch_captured_as_a_steady_input_is_moved_first(engine: TorchEngine) -> None:
    first, second = Steps(engine), Steps(engine)
    for i in range(4):
        first(first.batch(i))
    _, x = first(first.batch(0.5))
    for _ in range(4):
        second(x)
    for i in range(3):
        first(first.batch(i))
        second(x)
    assert second.unit.stats.captures == 1 and second.unit.stats.misses == 0


def test_another_layout_runs_plainly(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    x = b.input(4, 4)
    h = x
    for _ in range(6):
        h = b("add", h, x)
    loaded = engine.load(b.program(h))
    x = torch.arange(16.0, device=engine.device).reshape(4, 4)
    for i in range(5):
        torch.testing.assert_close(loaded.run([x * i], [])[0], 7 * i * x)
    turned = x.t()
    for _ in range(3):
        torch.testing.assert_close(loaded.run([turned], [])[0], 7 * turned)


def test_random_keys_are_read_anew_by_each_replay(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    seed, stream = b.scalar(int64), b.scalar(int64)
    u = b("random_uniform", seed, stream, shape=(64,), dtype=float32)
    h = u
    for _ in range(5):
        h = b("add", h, u)
    loaded, plain = engine.load(b.program(h)), TorchEngine(str(engine.device), compile_after=0).load(b.program(h))
    seen = []
    for i in range(8):
        (got,), (expected,) = loaded.run([], [7, 2**40 + i]), plain.run([], [7, 2**40 + i])
        torch.testing.assert_close(got, expected)
        seen.append(got.tolist())
    assert loaded.tier == "graph" and len({tuple(s) for s in seen}) == 8


def test_the_driver_of_several_pieces_is_captured_whole(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    x = v = b.input(4)
    for i in range(3):  # regions of one key, which become pieces of their own
        if i < 2:
            v = b("add", b("mul", v, b.scalar(float32)), x)
        else:
            z = b("mul", b("cast", v, dtype=complex64), b.scalar(complex64))
            v = b("add", b("abs", z), x)
        b.cut()
    program = b.program(v)
    loaded, plain = engine.load(program), TorchEngine(str(engine.device), compile_after=0).load(program)
    assert (len(loaded.pieces), len(plain.pieces)) == (3, 1)
    for i in range(6):
        value = torch.arange(4.0, device=engine.device) + i
        (got,), (expected,) = loaded.run([value], [i, 0.5, 3j]), plain.run([value], [i, 0.5, 3j])
        torch.testing.assert_close(got, expected)
    assert loaded.tier == "graph"


def test_a_program_whose_collectives_no_graph_can_hold_is_captured_piece_by_piece(engine: TorchEngine) -> None:
    b = ProgramBuilder()
    x, s = b.input(4), b.scalar()
    h = b("mul", x, s)
    for _ in range(6):
        h = b("add", h, x)
    y = b.collective("all_reduce", h)
    for _ in range(6):
        y = b("add", y, x)
    program = b.program(y)
    loaded, plain = engine.load(program), TorchEngine(str(engine.device), compile_after=0).load(program)
    held = []
    for i in range(6):
        value = torch.arange(4.0, device=engine.device) + i
        (got,) = loaded.run([value], [0.5 * i], Doubling())
        (expected,) = plain.run([value], [0.5 * i], Doubling())
        held.append((got, expected))
    for got, expected in held:
        torch.testing.assert_close(got, expected)
    assert [p.unit.stats.replays for p in loaded.pieces if p.unit] == [4, 4]
    assert loaded.stats.notes == ["no CUDA graph of the whole program: its collectives are not NCCL's"]


def test_what_cannot_be_captured_says_why_and_runs_on(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.graphs is not None
    steps, whole = Steps(engine), engine.graphs.capturer.capture

    def broken(body: Any, inputs: Any) -> Any:
        def waits(x: Any) -> Any:
            out = body(x)
            if engine.device.type == "cuda":
                out[0].item()  # waits for the device, which no graph can hold
            raise RuntimeError("operation not permitted when stream is capturing")

        return whole(waits, [t.clone() for t in inputs])

    monkeypatch.setattr(engine.graphs.capturer, "capture", broken)
    for i in range(5):
        steps(steps.batch(i))
    assert steps.loaded.tier == "eager" and len(steps.loaded.stats.notes) == 1
    assert steps.loaded.stats.notes[0].startswith("no CUDA graph: ")
    monkeypatch.undo()
    other = Steps(engine)
    for i in range(5):
        other(other.batch(i))
    assert other.loaded.tier == "graph"


def adamw_program(size: int) -> Any:
    b = ProgramBuilder()
    g, w, m, v, lr, step, scale = *(b.input(size) for _ in range(4)), b.scalar(float64), b.scalar(float64), b.scalar(float32)
    attrs = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1, "amsgrad": False, "maximize": False}
    new = b.apply("adamw_step", w, b("div", g, scale), m, v, lr, step, num=1, inplace=((0, 0), (1, 2), (2, 3)), **attrs)
    for _ in range(4):  # enough nodes for a graph
        g = b("mul", g, g)
    program = b.program(*new, g)
    return type(program)(**{f: getattr(program, f) for f in program.__struct_fields__} | {"donated": (w, m, v)})


def test_runs_made_again_at_their_tiers_are_equal_to_the_last_bit(engine: TorchEngine) -> None:
    """Also what follows them, until there is a graph again."""
    generator = torch.Generator(engine.device).manual_seed(0)
    g, *begin = (torch.rand(4096, device=engine.device, generator=generator) for _ in range(4))

    def trained(loaded: TorchLoaded, given: list[str | None]) -> tuple[list[str], list[torch.Tensor]]:
        states, tiers = [t.clone() for t in begin], []
        for i, at in enumerate(given):
            if at is None:
                loaded.pieces[0].record()  # a run like any other
            *states, _ = loaded.run([g, *states], [0.1 / (i + 1), i + 1.0, i + 3.0], None, at)
            tiers.append(loaded.tiers)
        return tiers, [t.clone() for t in states]

    loaded, again = engine.load(adamw_program(4096)), engine.load(adamw_program(4096))
    tiers, expected = trained(loaded, [None] * 8)
    assert tiers[:2] == ["", ""] and tiers[-1] == "g"
    for given in ([*tiers], [*tiers[:6], None, None]):
        told, got = trained(again, given)
        assert told == tiers and again.tier == "eager"
        assert all(torch.equal(one, other) for one, other in zip(got, expected, strict=True))


def test_graphs_beyond_the_budget_go_and_the_program_with_its_graph_frees_it() -> None:
    graphs, capturer = fake_graphs(budget=100)
    engine = TorchEngine(compile_after=0, graphs=graphs)
    first, second = Steps(engine), Steps(engine)
    for _ in range(4):  # a graph of this program holds 4 + 16 + 16 bytes
        first(first.batch(1.0))
        second(second.batch(1.0))
    assert len(graphs.held) == 2 and graphs.nbytes == 72
    third = Steps(engine)
    for _ in range(3):
        third(third.batch(1.0))
    assert len(graphs.held) == 2 and first.unit.captured is None and capturer.made[0].is_reset
    del third
    gc.collect()
    assert len(graphs.held) == 1 and graphs.nbytes == 36
    first(first.batch(1.0))
    assert first.loaded.tier == "graph"
    graphs.reset()
    assert first.loaded.tier == "eager" and graphs.nbytes == 0


def test_short_programs_get_no_graph() -> None:
    engine = TorchEngine(compile_after=0, graphs=fake_graphs()[0])
    b = ProgramBuilder()
    loaded: TorchLoaded = engine.load(b.program(b("exp", b.input(4))))
    for _ in range(5):
        loaded.run([torch.zeros(4)], [])
    assert loaded.unit is None and loaded.tier == "eager"


def test_scalars_are_laid_out_piece_by_piece() -> None:
    sources = [(("float32", "int64"), (2, 0)), ((), ()), (("complex64", "bool", "float64"), (1, 3, 2))]
    slots = ScalarSlots(sources, torch.device("cpu"))
    slots.fill([5, 1 + 2j, 0.25, True])
    (f0, i0), nothing, (f2, i2) = slots.views
    assert f0 is not None and i0 is not None and f2 is not None and i2 is not None
    assert (f0.tolist(), i0.tolist(), f2.tolist(), i2.tolist()) == ([0.25], [5], [1.0, 2.0, 0.25], [1])
    assert nothing == (None, None)
    for i in range(3 * SLOTS):
        slots.fill([i, 0j, 0.5 * i, False])
        assert i0.tolist() == [i] and f0.tolist() == [0.5 * i]


def test_a_fake_capture_has_no_effect() -> None:
    x = torch.ones(3)
    capturer = FakeCapturer()
    graph, (out, same) = capturer.capture(lambda a: [a[0].add_(1) * 2, a[0]], [x])
    assert x.tolist() == [1.0] * 3 and same is x
    graph.replay()
    assert x.tolist() == [2.0] * 3 and out.tolist() == [4.0] * 3

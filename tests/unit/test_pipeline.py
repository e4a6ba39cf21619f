"""``gt.pipeline``: the order of work, what it holds, how long it waits, what is refused. Workers are simulated."""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import gt
from gt import ShardConfig, SignalConfig, nn
from gt import session as sessions
from gt.cli import main
from gt.compiling import lower
from gt.ir.ops import OPS
from gt.ir.program import Collective, Compute, Free, Program
from gt.nn import functional as F  # noqa: N812
from gt.passes.estimate import Estimate
from gt.passes.plan import Cluster
from gt.pipeline_schedule import actions_of, bubble, in_time
from gt.runtime.simulated import SimulatedSession
from gt.scripted import ScriptSession, ShapesOnly

WIDTH = 4
RNG = np.random.default_rng(0)


pytestmark = pytest.mark.usefixtures("alone")


def layers(count: int, width: int = WIDTH) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(count)))


def rows(count: int, width: int = WIDTH) -> gt.Tensor:
    return gt.from_numpy(RNG.normal(size=(count, width)).astype(np.float32))


def run(num_workers: int, microbatches: int, rows_each: int = 2, steps: int = 1, **options: Any) -> SimulatedSession:
    """Run steps of a pipeline of equal stages, each on one worker."""
    session = SimulatedSession(num_workers)
    with sessions.pinned(session):
        gt.manual_seed(0)
        pipe = gt.pipeline([layers(3) for _ in range(num_workers)], microbatches=microbatches, loss_fn=F.mse_loss, **options)
        count = rows_each * microbatches
        for _ in range(steps):
            pipe.zero_grad()
            pipe.step(rows(count), target=rows(count)).item()
    return session


# -- order


def test_a_stage_warms_up_then_alternates_then_drains() -> None:
    text = lambda *args: " ".join(map(str, actions_of(*args)))  # noqa: E731
    assert text(0, 4, 6, "1f1b") == "F0 F1 F2 F3 B0 F4 B1 F5 B2 B3 B4 B5"
    assert text(2, 4, 6, "1f1b") == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 B5"
    assert text(3, 4, 3, "1f1b") == "F0 B0 F1 B1 F2 B2"
    assert text(0, 4, 2, "1f1b") == "F0 F1 B0 B1"
    assert text(1, 4, 3, "gpipe") == "F0 F1 F2 B0 B1 B2"


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_nothing_begins_before_what_it_needs_and_waiting_is_the_textbooks(stages: int, microbatches: int, schedule: Any) -> None:
    timed = in_time(stages, microbatches, schedule)
    end = {(t.action.stage, t.action.microbatch, t.action.backward): t.end for t in timed}
    assert len(end) == len(timed) == 2 * stages * microbatches
    for t in timed:
        s, i, backward = t.action.stage, t.action.microbatch, t.action.backward
        for neighbour in [(s + 1, i, True) if backward else (s - 1, i, False), (s, i, False)]:
            if neighbour in end and neighbour != (s, i, backward):
                assert end[neighbour] <= t.start
    assert [t.start for t in timed] == sorted(t.start for t in timed)
    assert bubble(stages, microbatches, schedule) == pytest.approx((stages - 1) / (microbatches + stages - 1))


def told(program: Program) -> str:
    """Read a stage's order off its program: what it receives or sends is a forward or backward of a neighbour's microbatch."""
    me, seen, out = program.worker, {"F": 0, "B": 0}, []
    for step in program.collectives:
        source, target = step.group
        kind = "F" if source < target else "B"
        ends_it = me == source if me not in (0, LAST) else True
        if step.kind in ("send", "wait") and ends_it:
            out.append(f"{kind}{seen[kind]}")
            seen[kind] += 1
    return " ".join(out)


LAST = 3


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_programs_follow_the_schedule(schedule: Any) -> None:
    session = run(LAST + 1, 6, schedule=schedule)
    for worker, program in session.runs[-1].plan.programs.items():
        assert told(program) == " ".join(map(str, actions_of(worker, LAST + 1, 6, schedule)))
        assert {c.kind for c in program.collectives} == {"send", "receive", "wait"}


# -- what is held


def most_held(program: Program) -> int:
    """Give the most bytes that a program holds beside its inputs and what it gives."""
    kept = {slot for _, slot in (*program.inputs, *program.outputs)} | {slot for slot, _ in program.scalars}
    held: dict[int, int] = {}
    most = 0
    for step in program.steps:
        if isinstance(step, Compute):
            types = {out: t for node in step.nodes for out, t in zip(node.outputs, node.types, strict=True)}
            views = {out for node in step.nodes if OPS[node.op].view for out in node.outputs}
            held |= {slot: 4 * math.prod(types[slot].shape) for slot in step.outputs if slot not in views}
        elif isinstance(step, Collective) and step.output >= 0:
            held[step.output] = 4 * math.prod(step.type.shape)
        elif isinstance(step, Free):
            held = {slot: n for slot, n in held.items() if slot not in step.slots}
        most = max(most, sum(n for slot, n in held.items() if slot not in kept))
    return most


def test_a_stage_holds_no_more_microbatches_than_stages_are_left() -> None:
    stages, m, each = 4, 8, 64
    tensor = 4 * WIDTH * each  # a microbatch leaves four of them on a stage: what came in, and after each of three layers
    ours = [most_held(p) for p in run(stages, m, each).runs[-1].plan.programs.values()]
    theirs = [most_held(p) for p in run(stages, m, each, schedule="gpipe").runs[-1].plan.programs.values()]
    for stage in range(stages):
        assert ours[stage] <= (stages - stage) * 4 * tensor + 5 * tensor  # beside them gradients, and the next input on its way
        assert theirs[stage] >= m * 3 * tensor > ours[stage]
    peaks = [p.peak_nbytes for p in run(stages, m, each).runs[-1].plan.programs.values()]
    assert peaks[1] > peaks[2] > peaks[3], "the planner says so too"


# -- waiting


def predicted(num_workers: int, microbatches: int, stages: Sequence[Callable[..., Any]], **options: Any) -> Estimate:
    """Give what the planner expects of a step."""
    cluster = Cluster(tuple(range(num_workers)))
    script = ScriptSession(ShapesOnly(), cluster)
    with sessions.pinned(script):
        pipe = gt.pipeline(stages, microbatches=microbatches, loss_fn=F.mse_loss, **options)
        gt.cat([p.reshape(-1)[:1] for p in pipe.parameters()]).tolist()
        x, target = (gt.from_numpy(np.zeros((microbatches * 8192, 2048), np.float32)) for _ in range(2))
        x.requires_grad_()  # so that the first stage goes all the way back, too
        pipe.step(x, target=target).item()
    return lower(list(script.found.values())[-1].graph, cluster).estimate


def wide() -> nn.Module:
    return nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(16)))


@pytest.mark.parametrize(("stages", "microbatches", "schedule"), [(2, 4, "1f1b"), (4, 4, "1f1b"), (3, 9, "1f1b"), (4, 4, "gpipe")])
def test_the_planner_predicts_the_textbooks_bubble_for_equal_stages(stages: int, microbatches: int, schedule: Any) -> None:
    found = predicted(stages, microbatches, [wide() for _ in range(stages)], schedule=schedule)
    assert found.bubble == pytest.approx((stages - 1) / (microbatches + stages - 1), abs=0.03)
    assert found.seconds == pytest.approx(found.compute_s / (1 - found.bubble), rel=0.1), "the busiest stage computes"


@pytest.mark.filterwarnings("ignore:gt.pipeline. 3 stages")
@pytest.mark.parametrize(("workers", "right"), [(1, 0.0), (2, 0.28)])
def test_stages_that_share_a_worker_take_turns_and_do_not_wait_for_themselves(workers: int, right: float) -> None:
    with sessions.pinned(SimulatedSession(workers)):
        assert gt.pipeline(layers(3), microbatches=4).bubble == pytest.approx(right)
    assert predicted(workers, 4, [wide() for _ in range(3)]).bubble == pytest.approx(right, abs=0.03), "so says the plan"


def test_an_uneven_cut_waits_longer_and_the_plan_says_so(tmp_path: Path) -> None:
    even = predicted(2, 4, [wide(), wide()])
    uneven = predicted(2, 4, [wide(), nn.Sequential(wide(), wide())])
    assert uneven.bubble > even.bubble + 0.1
    script = tmp_path / "train.py"
    script.write_text(
        "import gt\nfrom gt import nn\npipe = gt.pipeline(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), 4, "
        "nn.functional.mse_loss)\nx = gt.ones(64, 64)\nprint(pipe.step(x, target=x).item())\n"
    )
    done = CliRunner().invoke(main, ["plan", str(script), "--workers", "2", "--shapes"])
    assert done.exit_code == 0, done.output
    assert re.search(r"on each of 2 workers, \d+\.\d% of it waiting for each other \(bubble\)", done.output)


def test_the_pipeline_tells_its_bubble_and_workers() -> None:
    with sessions.pinned(SimulatedSession(4)):
        pipe = gt.pipeline(layers(4), microbatches=6, parts=2)
        assert pipe.bubble == pytest.approx(1 / 7)
        assert pipe.workers == ((0, 1), (2, 3))
        assert "bubble=14%" in repr(pipe)


# -- stages


def test_a_sequential_is_cut_into_parts_of_about_equal_size() -> None:
    small, large = (lambda: nn.Linear(2, 2)), (lambda: nn.Linear(20, 20))
    with sessions.pinned(SimulatedSession(4)):
        cut = lambda modules, parts: [len(s) for s in gt.pipeline(nn.Sequential(*modules), 2, parts=parts).stages]  # noqa: E731
        assert cut([small() for _ in range(6)], 3) == [2, 2, 2]
        assert cut([large(), small(), small(), large()], 2) in ([2, 2], [1, 3], [3, 1])
        assert cut([small(), small(), small(), large(), large()], 2) == [4, 1]
        assert cut([large(), small(), small()], 3) == [1, 1, 1]
        assert cut([nn.ReLU(), nn.ReLU(), large()], 2) == [2, 1]
        with pytest.raises(ValueError, match="a Sequential of 2 modules cannot be cut into 3 parts"):
            cut([small(), small()], 3)


def test_parameters_and_their_gradients_and_state_live_on_their_stage() -> None:
    session = SimulatedSession(4)
    with sessions.pinned(session):
        pipe = gt.pipeline([layers(1), layers(1)], microbatches=2, loss_fn=F.mse_loss, workers=[[3, 1], [0, 2]])
        optimizer = gt.optim.AdamW(pipe.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            pipe.step(rows(8), target=rows(8)).item()
            optimizer.step()
        gt.cat([p.detach().reshape(-1) for p in pipe.parameters()]).tolist()
        for stage, workers in zip(pipe.stages, ((3, 1), (0, 2)), strict=True):
            for p in stage.parameters():
                for value in (p, p.grad, optimizer.state[p]["exp_avg"]):
                    assert session.sharding(value._buffer.id).mesh.workers == workers


@pytest.mark.parametrize("named", [False, True], ids=["workers", "signals"])
@pytest.mark.parametrize("read_first", [False, True])
@pytest.mark.parametrize("sets", [[[3, 1], [0, 2]], [[0, 1, 2], [5, 4, 3]]], ids=["pairs", "threes"])
def test_rules_for_parameters_split_them_within_their_stage(named: bool, read_first: bool, sets: list[list[int]]) -> None:
    """The mesh that rules are over is laid over the workers of each stage, also where a flush does no more than update."""
    gt.register_mesh({"dp": -1, "tp": 2})
    gt.register_params({"*weight": {0: "tp"}, "*": {}})
    given: dict[str, Any] = {"workers": sets}
    if named:
        for i, own in enumerate(sets):
            gt.register_config(f"s{i}", SignalConfig(shard=ShardConfig(axis=None, workers=own)))
        given = {"signals": ["s0", "s1"]}
    session = SimulatedSession(2 * len(sets[0]))
    with sessions.pinned(session):
        pipe = gt.pipeline([layers(1), layers(1)], microbatches=2, loss_fn=F.mse_loss, **given)
        optimizer = gt.optim.AdamW(pipe.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            loss = pipe.step(rows(8), target=rows(8))
            if read_first:
                loss.item()
            optimizer.step()
            pipe.stages[0][0][0].weight.tolist()
        for stage, workers in zip(pipe.stages, sets, strict=True):
            for name, p in stage.named_parameters():
                for value in (p, optimizer.state[p]["exp_avg"]):
                    placed = session.sharding(value._buffer.id)
                    assert list(placed.mesh.workers) == workers[:2] and placed.is_split == name.endswith("weight"), name
                if name.endswith("weight"):
                    assert p.grad is not None and session.sharding(p.grad._buffer.id) == session.sharding(p._buffer.id)


def test_pipelines_on_different_workers_may_share_a_flush() -> None:
    session = SimulatedSession(4)
    with sessions.pinned(session):
        pipes = [gt.pipeline([layers(1), layers(1)], 2, F.mse_loss, workers=sets) for sets in ([[0], [1]], [[3], [2, 0]])]
        losses = [pipe.step(rows(4), target=rows(4)) for pipe in pipes]
        gt.stack(losses).tolist()
        found = [session.sharding(next(iter(s.parameters()))._buffer.id).mesh.workers for pipe in pipes for s in pipe.stages]
    assert found == [(0,), (1,), (3,), (2, 0)]


def test_gradients_of_inputs_and_extra_losses_come_back() -> None:
    with sessions.pinned(SimulatedSession(2)):
        gt.manual_seed(0)
        model = layers(2)
        x, y = rows(5), rows(5)
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        loss = F.mse_loss(model(theirs), y)
        loss.backward()
        want = [p.grad.numpy().copy() for p in model.parameters()]
        losses: list[gt.Tensor] = []
        pipe = gt.pipeline(model, microbatches=2, loss_fn=F.mse_loss)
        pipe.zero_grad()
        got = pipe.step(ours, target=y, losses=losses)
        np.testing.assert_allclose(got.item(), loss.item(), rtol=1e-6)
        np.testing.assert_allclose(sum(w * t.item() for w, t in zip((0.6, 0.4), losses, strict=True)), loss.item(), rtol=1e-6)
        np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-5, atol=1e-7)
        for p, g in zip(pipe.parameters(), want, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), g, rtol=1e-5, atol=1e-7)
        pipe.step(x, target=y)
        for p, g in zip(pipe.parameters(), want, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), 2 * g, rtol=1e-5, atol=1e-7, err_msg="gradients are added")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_gradients_go_on_through_what_was_computed_before_the_step(schedule: Any) -> None:
    before, model, teacher = nn.Linear(WIDTH, WIDTH), layers(2), nn.Linear(WIDTH, WIDTH)
    of_both = [*before.parameters(), *model.parameters(), *teacher.parameters()]
    seen: list[np.ndarray] = []

    def given(data: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        h = before(data).tanh()
        h.register_hook(lambda g: seen.append(g.numpy().copy()))
        return h, teacher(data)

    with sessions.pinned(SimulatedSession(2)):
        data = rows(5)
        h, y = given(data)
        loss = F.mse_loss(model(h) * h, y)
        loss.backward()
        want = [p.grad.numpy().copy() for p in of_both]
        for p in of_both:
            p.grad = None
        stages = [lambda a, b: (model[0](a), b), lambda a, b: model[1](a) * b]
        h, y = given(data)
        got = gt.pipeline(stages, 3, F.mse_loss, schedule=schedule).step(h, h, target=y)
        np.testing.assert_allclose(got.item(), loss.item(), rtol=1e-6)
        for p, g in zip(of_both, want, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), g, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-5, atol=1e-7)
    assert len(seen) == 2, "a hook of what a pipeline is given is called once, with the gradient of all rows"


def test_functions_pass_several_values_and_what_is_no_tensor() -> None:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def begin(x: gt.Tensor, scale: float) -> tuple[gt.Tensor, gt.Tensor, float]:
        h = first(x) * scale
        return h.tanh(), h.exp(), scale

    def end(a: gt.Tensor, b: gt.Tensor, scale: float) -> gt.Tensor:
        return second(a + b) / scale

    with sessions.pinned(SimulatedSession(2)):
        x, y = rows(6), rows(6)
        loss = F.mse_loss(end(*begin(x, 0.5)), y)
        loss.backward()
        want = [first.weight.grad.numpy().copy(), second.weight.grad.numpy().copy()]
        first.weight.grad = second.weight.grad = None
        pipe = gt.pipeline([begin, end], microbatches=3, loss_fn=F.mse_loss)
        np.testing.assert_allclose(pipe.step(x, 0.5, target=y).item(), loss.item(), rtol=1e-6)
        for p, g in zip((first.weight, second.weight), want, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), g, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(pipe(x, 0.5).detach().numpy(), end(*begin(x, 0.5)).detach().numpy(), rtol=1e-6)


def test_a_stage_may_give_one_tensor_twice() -> None:
    first = nn.Linear(WIDTH, WIDTH)

    def begin(x: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        h = first(x)
        return h, h

    with sessions.pinned(SimulatedSession(2)):
        x, y = rows(4), rows(4)
        F.mse_loss(first(x) * first(x), y).backward()
        want = first.weight.grad.numpy().copy()
        first.weight.grad = None
        gt.pipeline([begin, lambda a, b: a * b], microbatches=2, loss_fn=F.mse_loss).step(x, target=y)
        np.testing.assert_allclose(first.weight.grad.numpy(), want, rtol=1e-5, atol=1e-7)


def test_a_step_is_replayed_under_jit_and_may_be_flushed_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [RNG.normal(size=(8, WIDTH)).astype(np.float32) for _ in range(2)]

    def train(wrap: Callable[[Any], Any]) -> tuple[list[float], int]:
        session = SimulatedSession(2)
        with sessions.pinned(session):
            gt.manual_seed(0)
            pipe = gt.pipeline(layers(4), microbatches=4, parts=2, loss_fn=F.mse_loss)
            optimizer = gt.optim.SGD(pipe.parameters(), lr=0.1)

            def step() -> gt.Tensor:
                optimizer.zero_grad()
                loss = pipe.step(x, target=y)
                optimizer.step()
                return loss

            x, y = map(gt.from_numpy, arrays)
            step = wrap(step)
            return [step().item() for _ in range(5)], len(session.runs)

    want, runs = train(lambda step: step)
    assert want[-1] < want[0]
    assert train(gt.jit)[0] == want
    monkeypatch.setattr(sys.modules["gt.trace"], "MAX_PENDING", 100)
    cut, more = train(lambda step: step)
    np.testing.assert_allclose(cut, want, rtol=1e-6)
    assert more > 2 * runs


# -- what cannot be


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": [[0, 1], [1, 2]]}, r"worker 1 is in stages 0 and 1: .* take 1 out of one of them"),
        ({"workers": [[0]]}, "2 stages, but workers for 1"),
        ({"signals": ["left"]}, "2 stages, but signals for 1"),
        ({"signals": ["left", "both"]}, r"worker 0 is in stages 0 and 1: .* Stage 0 has workers \[0, 1\], stage 1 \[0, 2\]"),
        ({"signals": ["left", "nowhere"]}, "signal 'nowhere' names no workers: give it 'shard: {workers: "),
        ({"signals": ["left", "both"], "workers": [[0], [1]]}, "both say where stages are"),
        ({"microbatches": 0}, "microbatches must be a number from 1 up, got 0"),
        ({"microbatches": True}, "microbatches must be a number from 1 up, got True"),
        ({"workers": [[], [1]]}, r"stage 0: .*expected different numbers from 0 up, at least one, got \[\]"),
        ({"workers": [[0], [1, -1]]}, r"stage 1: .*expected different numbers from 0 up, at least one, got \[1, -1\]"),
        ({"schedule": "zb"}, "schedule is one of '1f1b', 'gpipe', got 'zb'"),
        ({"parts": 2}, "parts= cuts a Sequential"),
    ],
)
def test_a_pipeline_that_cannot_be_says_what_to_change(options: dict[str, Any], says: str) -> None:
    gt.register_config("left", SignalConfig(shard=ShardConfig(axis=0, workers=(0, 1))))
    gt.register_config("both", SignalConfig(shard=ShardConfig(axis=None, workers=(0, 2))))
    gt.register_config("nowhere", SignalConfig(shard=ShardConfig(axis=0)))
    with sessions.pinned(SimulatedSession(4)), pytest.raises(ValueError, match=says):
        gt.pipeline([layers(1), layers(1)], **{"microbatches": 2, **options})


@pytest.mark.parametrize(
    ("last", "says"),
    [(lambda x: {"logits": x}, "dict"), (lambda x: x.sum(), "Tensor of no dims"), (lambda x: (x, 2.0), "float"), (lambda x: None, "NoneType")],
)
def test_what_cannot_be_joined_of_microbatches_is_told(last: Any, says: str) -> None:
    with sessions.pinned(SimulatedSession(2)):
        pipe = gt.pipeline([layers(1), last], microbatches=2)
        with pytest.raises(TypeError, match=f"last stage gives tensors with the rows of a microbatch along dim 0, got {says}$"):
            pipe(rows(4))


@pytest.mark.parametrize("own", [None, 3, "01", [0.5]])
def test_what_is_no_list_of_workers_is_refused(own: Any) -> None:
    with sessions.pinned(SimulatedSession(4)), pytest.raises(TypeError, match=r"gt.pipeline: stage 1: workers.*(expected worker numbers|are ints)"):
        gt.pipeline([layers(1), layers(1)], microbatches=2, workers=[[0], own])


def test_a_worker_in_two_stages_of_a_file_is_told_with_both_places(tmp_path: Path) -> None:
    path = tmp_path / "stages.yaml"
    path.write_text("first: {shard: {workers: [0, 1]}}\n\nsecond:\n  shard: {workers: [1, 2]}\n")
    gt.load_config(path)
    says = rf"Stage 0 \(at {path}:1:1\) has workers \[0, 1\], stage 1 \(at {path}:3:1\) \[1, 2\]: take 1 out of one of them"
    with sessions.pinned(SimulatedSession(4)), pytest.raises(ValueError, match=says):
        gt.pipeline([layers(1), layers(1)], microbatches=2, signals=["first", "second"])


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_batch_of_few_rows_is_cut_into_them(count: int, schedule: Any) -> None:
    with sessions.pinned(SimulatedSession(2)):
        gt.manual_seed(0)
        x, y, stages = rows(count), rows(count), [layers(1), layers(1)]
        loss = F.mse_loss(stages[1](stages[0](x)), y)
        loss.backward()
        want = [p.grad.numpy() for stage in stages for p in stage.parameters()]
        for stage in stages:
            stage.zero_grad()
        pipe = gt.pipeline(stages, microbatches=4, loss_fn=F.mse_loss, schedule=schedule)
        each: list[gt.Tensor] = []
        np.testing.assert_allclose(pipe.step(x, target=y, losses=each).item(), loss.item(), rtol=1e-5)
        assert len(each) == min(count, 4) and pipe(x).shape == (count, WIDTH)
        for p, w in zip(pipe.parameters(), want, strict=True):
            np.testing.assert_allclose(p.grad.numpy(), w, rtol=1e-4, atol=1e-6)


def test_batches_that_cannot_be_cut_say_so() -> None:
    with sessions.pinned(SimulatedSession(2)):
        pipe = gt.pipeline([layers(1), layers(1)], microbatches=4, loss_fn=F.mse_loss)
        with pytest.raises(ValueError, match="a batch of no rows"):
            pipe.step(rows(0), target=rows(0))
        with pytest.raises(ValueError, match=r"different sizes there: \[4, 8\]"):
            pipe.step(rows(8), target=rows(4))
        with pytest.raises(ValueError, match="needs a loss"):
            gt.pipeline([layers(1), layers(1)], microbatches=4).step(rows(8))
        with pytest.raises(TypeError, match="modules or functions, got"):
            gt.pipeline([3, layers(1)], microbatches=4)  # type: ignore[list-item]


def test_fewer_workers_than_stages_share_with_one_warning_and_strictly_not_at_all() -> None:
    with sessions.pinned(SimulatedSession(2)):
        with pytest.warns(gt.SignalWarning, match="4 stages, 2 workers: stages use") as caught:
            pipe = gt.pipeline([layers(1) for _ in range(4)], microbatches=2, loss_fn=F.mse_loss)
            pipe.step(rows(4), target=rows(4)).item()
        assert len(caught) == 1 and caught[0].filename == __file__
        assert pipe.workers == ((0,), (0,), (1,), (1,))
        with pytest.warns(gt.SignalWarning, match=r"workers \[9\] are not present: stages use \[\[0\], \[1\]\]") as caught:
            gt.pipeline([layers(1), layers(1)], microbatches=2, workers=[[0, 9], [1]])
        assert len(caught) == 1
        gt.get_config().strict = True
        with pytest.raises(gt.ConfigError, match="4 stages, 2 workers"):
            gt.pipeline([layers(1) for _ in range(4)], microbatches=2)


@pytest.mark.parametrize("known", [(), ("first",)])
def test_stages_whose_signals_nobody_configured_are_placed_as_by_default(known: tuple[str, ...]) -> None:
    for name in known:
        gt.register_config(name, SignalConfig(shard=ShardConfig(workers=(0,))))
    make = lambda: gt.pipeline([layers(1), layers(1)], microbatches=2, loss_fn=F.mse_loss, signals=["first", "second"])  # noqa: E731
    with sessions.pinned(SimulatedSession(4)):
        with pytest.warns(gt.SignalWarning) as caught:
            pipe = make()
        assert pipe.workers == ((0, 1), (2, 3)) and len(caught) == 1 + len(known)
        pipe.step(rows(4), target=rows(4)).item()
        gt.get_config().strict = True
        with pytest.raises(gt.UnknownSignal):
            make()


def test_strict_mode_lets_stages_send_to_each_other() -> None:
    gt.get_config().strict = True
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(2, 2)


# -- gradients follow the workers of the forward


def test_gradients_are_computed_where_the_forward_ran_wherever_backward_is_called() -> None:
    gt.register_config("first", SignalConfig(shard=ShardConfig(axis=0, workers=(0, 1)), backward_signal="back"))
    gt.register_config("second", SignalConfig(shard=ShardConfig(axis=0, workers=(2, 3))))
    gt.register_config("back", SignalConfig(shard=ShardConfig(replicated=True, workers=(1, 0))))
    session = SimulatedSession(4)
    with sessions.pinned(session):
        gt.manual_seed(0)
        a, b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        x = rows(8)
        with gt.signal.context("first"):
            h = a(x).relu()
        with gt.signal.context("second"):
            loss = b(h).square().mean()
            loss.backward()  # in the scope of the second: the first's gradients still go where its own scope says
        got = [p.grad.numpy() for p in (*a.parameters(), *b.parameters())]
        where = [session.sharding(p.grad._buffer.id) for p in (a.weight, b.weight)]
    assert where[0].mesh.workers == (1, 0) and where[0].is_replicated
    assert set(where[1].mesh.workers) == {2, 3}
    assert all(np.isfinite(g).all() for g in got)


def test_two_stages_without_a_pipeline_send_the_activations_and_their_gradients_alone() -> None:
    for name, workers in (("first", (0, 1)), ("second", (2, 3))):
        gt.register_config(name, SignalConfig(shard=ShardConfig(axis=0, workers=workers)))
    session = SimulatedSession(4)
    with sessions.pinned(session):
        with gt.signal.context("first"):
            a = nn.Linear(WIDTH, WIDTH)
        with gt.signal.context("second"):
            b = nn.Linear(WIDTH, WIDTH)
        optimizer = gt.optim.SGD([*a.parameters(), *b.parameters()], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with gt.signal.context("first"):
                h = a(rows(8)).relu()
            with gt.signal.context("second"):
                loss = b(h).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
    programs = session.runs[-1].plan.programs
    messages = [c for p in programs.values() for c in p.collectives if c.kind == "send"]
    across = [c for c in messages if (c.group[0] < 2) != (c.group[1] < 2)]
    assert {c.number for c in messages} == {c.number for c in across}
    assert len({c.number for c in across}) == 2, "activations there, gradients back: no parameter moves"


CLASSES = np.array([-100, -100, 3, 0, 1, -100, 2, 2, -100, 4])
WEIGHT = np.array([1.0, 0.5, 2.0, 1.0, 3.0], np.float32)


def weighted() -> nn.Module:
    return nn.CrossEntropyLoss(weight=gt.from_numpy(WEIGHT))


class OwnLoss(nn.CrossEntropyLoss):
    """A loss under another name; its forward is gt's."""


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        (lambda: F.cross_entropy, {}),
        (lambda: partial(F.cross_entropy, ignore_index=2, label_smoothing=0.1), {}),
        (lambda: partial(F.cross_entropy, reduction="sum"), {}),
        (weighted, {}),
        (lambda: nn.CrossEntropyLoss(reduction="sum"), {}),
        (lambda: OwnLoss(label_smoothing=0.1), {}),
        (lambda: OwnLoss(reduction="sum").forward, {}),
        (lambda: lambda a, b: F.cross_entropy(a, b, reduction="sum"), {"reduction": "sum"}),
        (lambda: lambda a, b: (a.square().sum(1) * (b + 101)).sum(), {"reduction": "sum"}),
    ],
)
@pytest.mark.parametrize("microbatches", [3, 5])  # of five, the first has no target that counts
def test_a_loss_is_that_of_the_whole_batch(loss: Callable[[], Any], options: dict[str, Any], microbatches: int) -> None:
    data = np.random.default_rng(0).normal(size=(10, 5)).astype(np.float32)
    found = []
    for count in (1, 2):
        with sessions.pinned(SimulatedSession(count)):
            gt.manual_seed(0)
            lost = loss()
            classes = np.abs(CLASSES) % 5 if "ignore_index" in getattr(lost, "keywords", {}) else CLASSES
            stages = [layers(1, 5), layers(1, 5)]
            x, y = gt.from_numpy(data), gt.from_numpy(classes)
            if count == 1:
                value = lost(stages[1](stages[0](x)), y)
                value.backward()
            else:
                value = gt.pipeline(stages, microbatches=microbatches, loss_fn=lost, **options).step(x, target=y)
            gradient = stages[0][0][0].weight.grad
            found.append((value.item(), gradient.numpy()))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.MSELoss().forward, F.mse_loss, OwnLoss()])
def test_a_reduction_that_is_not_the_losss_own_is_refused(loss: Callable[..., gt.Tensor]) -> None:
    with pytest.raises(ValueError, match="the loss's own reduction is 'mean', reduction='sum' was given"):
        gt.pipeline([layers(1)], microbatches=2, loss_fn=loss, reduction="sum")
    gt.pipeline([layers(1)], microbatches=2, loss_fn=loss, reduction="mean")


SUMS: list[Callable[..., gt.Tensor]] = [
    lambda a, b: (a - b).square().sum(), lambda a, b: F.cross_entropy(a, b.argmax(1), reduction="sum"),
    lambda a, b: F.nll_loss(a, b.argmax(1), reduction="sum"), lambda a, b: F.mse_loss(a, b, reduction="sum"),
]  # fmt: skip


@pytest.mark.parametrize("loss", SUMS)
def test_a_loss_that_ends_in_a_sum_is_asked_about(loss: Callable[..., gt.Tensor]) -> None:
    with sessions.pinned(SimulatedSession(2)):
        pipe = gt.pipeline([layers(1), layers(1)], microbatches=2, loss_fn=loss)
        with pytest.warns(UserWarning, match="reduction='sum'"):
            pipe.step(rows(4), target=rows(4))
    with pytest.raises(ValueError, match="'mean' or 'sum'"):
        gt.pipeline([layers(1)], microbatches=1, reduction="none")

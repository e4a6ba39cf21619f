"""Why it is slow or wrong, by gt's own tools: ``gt.explain``, ``gt.stats``, ``gt.debug``, ``GT_DUMP``, ``GT_CHECK``, ``gt explain``."""

from __future__ import annotations

import contextlib
import io
import re
import resource
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import gt
from gt import flush, graph_history, telling
from gt.checking import CheckFailed, NanMade
from gt.cli import main
from gt.ir.opdef import OPS
from gt.runtime import env
from gt.runtime.embedded import EmbeddedSession
from gt.runtime.errors import Fault
from gt.runtime.exit_codes import code_of_process
from gt.session import pinned
from tests.integration.programs import environment, run, server

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def here() -> Iterator[None]:
    gt.disconnect()
    with pinned(EmbeddedSession("numpy")):
        yield


def line() -> int:
    return sys._getframe(1).f_lineno


def ones(*shape: int) -> gt.Tensor:
    return gt.from_numpy(np.ones(shape, np.float32))


def latest() -> graph_history.Recompiled:
    found = gt.stats().recompiled
    assert found
    return found[-1]


@pytest.mark.usefixtures("here")
def test_another_shape_is_why_a_line_makes_another_graph() -> None:
    w = ones(4, 4)
    for n in (8, 8, 6):
        made = (ones(n, 4) @ w).relu(), line()
        made[0].sum().item()
    one = latest()
    assert (one.field, one.old, one.new) == ("shape of operand 0 of matmul", "[8, 4]", "[6, 4]")
    assert one.where == f"{__file__}:{made[1]}" and "drop_last=True" in one.advice and one.site == f"{__file__}:{made[1] + 1}"
    assert gt.explain(made[0]).recompiled == one and str(one) in str(gt.explain(made[0]))


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("made", [ones, gt.zeros, gt.randn], ids=["operand", "shape", "random"])
@pytest.mark.parametrize(
    ("sizes", "last"),
    [((8, 8, 6), [True]), ((6, 8), [False]), ((8, 6, 4), [True, False]), ((4, 8, 6, 9), [False] * 3), (("ab", "a"), [False])],
    ids=str,
)
def test_only_a_shape_that_may_be_the_last_batchs_is_told_to_be_padded_as_one(
    made: Callable[..., gt.Tensor], sizes: tuple[int | str, ...], last: list[bool]
) -> None:
    w = ones(4, 4)
    w.sum().item()
    for n in sizes:
        x = made(n, 4) if isinstance(n, int) else made(4, len(n), 4)  # the second dim: sequences of several lengths
        (x @ w).sum().item()
    told = [one for one in gt.stats().recompiled if "shape" in one.field or "size" in one.field]
    assert ["the last batch" in one.advice for one in told] == last, told
    assert all("a few sizes" in one.advice for one, is_last in zip(told, last, strict=True) if not is_last)


@pytest.mark.usefixtures("here")
def test_gradients_that_add_up_are_told_as_that_also_in_a_first_step_that_makes_parameters() -> None:
    w, scale = gt.randn(4, 4, requires_grad=True), gt.randn(4, requires_grad=True)
    told = []
    for step in range(6):
        if step == 3:
            w.grad = scale.grad = None
        loss, added = (gt.randn(2, 4) @ w * scale).square().mean().backward(), line()
        assert loss is None
        (w.grad.sum() + scale.grad.sum()).item()  # one line flushes all of them
        told.append(latest() if step else None)
    assert [told[1].field, told[1].old, told[1].new] == ["what gradients are added to", "nothing", "those of before"]
    assert told[1].where.endswith(f":{added}") and "until zero_grad()" in told[1].advice and told[2] is told[1]
    assert [told[3].field, told[3].old, told[3].new] == ["what gradients are added to", "those of before", "nothing"]
    assert told[5] is told[3]


MADE = (
    lambda x: x + 1, lambda x: x * 2, lambda x: x.sin(), lambda x: gt.rand(3), lambda x: x + gt.ones(3), lambda x: x.sum() + gt.zeros(3),
    lambda x: gt.cat((x, x))[:3],
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(range(len(MADE))), max_size=8), min_size=2, max_size=3))
def test_any_two_graphs_of_a_line_can_be_compared(programs: list[list[int]]) -> None:
    x = gt.from_numpy(np.ones(3, np.float32))
    for program in programs:
        h = x
        for i in program:
            h = MADE[i](h)
        (h * 3).tolist()
    told = [str(one) for one in gt.stats().recompiled]
    assert told or len({tuple(program) for program in programs}) == 1


@pytest.mark.usefixtures("here")
def test_what_is_done_once_hides_no_other_change() -> None:
    x, w = ones(3, 3), None
    for step in range(2):
        w = gt.randn(3, 3) if w is None else w
        y = x @ w
        y = y.exp() if step else y
        y.sum().item()
    assert latest().field == "the op" and latest().old.startswith("sum") and latest().new == "exp" and "control flow" in latest().advice


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("change", "field", "old", "new", "advice"),
    [
        (lambda x, i: x.double() if i else x, "the op", "sum", "cast", "cast to one dtype before"),
        (lambda x, i: x if i else x.double(), "dtype of sum", "gt.float64", "gt.float32", "cast to one dtype before"),
        (lambda x, i: x + gt.ones(3, dtype=(gt.half, gt.int32)[i]), "dtype of full", "gt.float16", "gt.int32", "cast to one dtype"),
        (lambda x, i: x.sum(dim=i), "dims of sum", "(0,)", "(1,)", "Python number"),
        (lambda x, i: x.exp() if i else x.log(), "the op", "log", "exp", "control flow"),
        (lambda x, i: x.exp().exp() if i else x.exp(), "the op", "sum", "exp", "control flow"),
    ],
)
def test_what_differs_is_named(change: object, field: str, old: str, new: str, advice: str) -> None:
    kept = []
    for i in range(2):
        kept.append(change(ones(3, 3), i).sum())  # type: ignore[operator]
        kept[-1].item()
    one = latest()
    assert one.field == field and one.old.startswith(old) and one.new.startswith(new) and advice in one.advice


@pytest.mark.usefixtures("here")
def test_a_held_input_is_told_and_is_why_a_graph_is_another() -> None:
    held = []
    for i in range(2):
        x = ones(5, 5)
        if i == 0:
            held.append(x)
        y = x * 2
        del x
        y.numpy()
    assert "still held" in latest().field and (latest().old, latest().new) == ("held", "given up")
    x = ones(5, 5)
    told = gt.explain(x * 3)
    assert told.kept == ("input 0: f32[5, 5]",) and "not donated, as something still holds them:\n  input 0: f32[5, 5]" in str(told)


@pytest.mark.usefixtures("here")
def test_a_first_step_that_does_more_is_told_as_that() -> None:
    w = gt.rand(3, 3)
    for _ in range(2):
        (w * 2).sum().item()
    assert (
        latest().field == "what comes before the rest"
        and latest().old == "1 op starting with random_uniform"
        and "is done once" in latest().advice
    )


@pytest.mark.usefixtures("here")
def test_a_first_step_that_makes_what_the_others_have_is_told_as_that_wherever_it_does() -> None:
    model = gt.nn.Sequential(gt.nn.Linear(8, 32), gt.nn.ReLU(), gt.nn.Linear(32, 1))
    optimizer = gt.optim.Adam(model.parameters())
    x = gt.randn(64, 8)
    y = x.sum(dim=1, keepdim=True)
    for _ in range(3):
        loss = gt.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
    (one,) = gt.stats().recompiled
    assert one.field == "what comes before the rest" and "is done once" in one.advice
    data = gt.randn(20, 4)
    for step in range(3):
        data[5 * step : 5 * step + 5].sum().item()
    assert [one.field for one in gt.stats().recompiled[-2:]] == ["starts of slice"] * 2  # what was made at first aside
    for first in (True, False):
        z = x.exp().log().sin()
        if first:
            z = z.cos()  # reads what both steps make: not done once
        z.sum().item()
    assert "control flow" in latest().advice


@pytest.mark.usefixtures("here")
def test_a_read_that_splits_a_step_is_told_as_lines_run_more_or_less_often() -> None:
    layer, x = gt.nn.Linear(4, 3), ones(2, 4)
    optimizer = gt.optim.SGD(layer.parameters(), lr=0.1)
    found = []
    for i in range(16):
        (layer(x) ** 2).mean().backward()
        forward = line() - 1
        if i == 9:
            layer.weight.grad.sum().item()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        found += [one for one in gt.stats().recompiled if one not in found]
    (split,) = [one for one in found if one.where == f"{__file__}:{forward}"]
    assert (split.field, split.old, split.new) == ("what comes before the rest", "10 ops starting with linear", "nothing")
    assert split.where == f"{__file__}:{forward}" and "how often lines are run" in split.advice
    assert not any("pad the last batch" in one.advice for one in found)


@pytest.mark.usefixtures("here")
def test_what_an_op_reads_is_told_by_what_made_it() -> None:
    held = []
    for i in range(2):
        a, b = ones(3, 3).exp(), ones(3, 3).log()
        held.append((a, b))
        held.append(b - a if i else a - b)
        held[-1].numpy()
    one = latest()
    assert one.field == "what sub reads"
    assert re.findall(r"(\w+) \(", one.old) == ["exp", "log"] and re.findall(r"(\w+) \(", one.new) == ["log", "exp"]


@pytest.mark.usefixtures("here")
def test_signals_of_the_first_step_alone_are_no_reason() -> None:
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    with gt.signal.context("rows"):
        a = gt.randn(8, 8)
    for _ in range(2):
        (a + a).sum().item()
    assert latest().field == "what comes before the rest" and latest().old == "1 op starting with random_normal"
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    for axis in (0, 1):
        gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=axis)))
        with gt.signal.context("rows"):
            b = a * 3
        b.sum().item()
    assert latest().field == "shard of signal 'rows'" and latest().old != latest().new and "before the loop" in latest().advice
    for name in ("rows", None):
        with gt.signal.context(name) if name else contextlib.nullcontext():
            b = a.exp()
        b.sum().item()
    assert (latest().field, latest().old, latest().new) == ("the signal of exp", "rows", "none")
    gt.get_config().clear()


@pytest.mark.usefixtures("here")
def test_a_graph_is_compared_with_the_one_most_like_it_from_its_line() -> None:
    w = ones(4, 4)

    def read(x: gt.Tensor) -> float:
        return x.sum().item()

    for n in (8, 7, 6):
        read((ones(n, 4) @ w).relu())
        read(gt.cat([ones(3)]).sort()[0].exp().log())
    found = [one for one in gt.stats().recompiled if one.field == "shape of operand 0 of matmul"]
    assert [(one.old, one.new) for one in found] == [("[8, 4]", "[7, 4]"), ("[7, 4]", "[6, 4]")]
    (other,) = [one for one in gt.stats().recompiled if one not in found]
    assert other.field == "what is done" and "each kind of work" in other.advice


@pytest.mark.usefixtures("here")
def test_equal_steps_are_one_graph_and_nothing_is_told() -> None:
    before = gt.stats()
    x = ones(4)
    for step in range(5):
        (x * step).sum().item()
    after = gt.stats()
    assert after.flushes - before.flushes == 5 and after.graphs - before.graphs == 1 and after.recompiled == before.recompiled


@pytest.mark.usefixtures("here")
def test_parts_of_one_flush_are_not_taken_for_each_other() -> None:
    def chain() -> gt.Tensor:
        y = ones(3)
        for _ in range(3000):
            y = y * 1.0 + 0.5
        return y.exp()

    for _ in range(2):
        chain().sum().item()
    made = gt.stats()
    assert made.recompiled == () and len(graph_history.graphs()) > 1  # several parts, each known the second time


def test_graphs_of_a_session_are_not_compared_with_those_of_the_one_before() -> None:
    gt.disconnect()
    for n in (3, 4):
        with pinned(EmbeddedSession("numpy")):
            ones(n, n).sum().item()
            assert [(told.name, told.recompiled) for told in graph_history.graphs()] == [("flush0", None)]


@pytest.mark.usefixtures("here")
def test_how_it_runs_and_why_there_is_no_graph_is_told() -> None:
    told = gt.explain(ones(4) + 1)
    assert [(one.workers, one.tier, one.backend) for one in told.runs] == [((0,), "eager", "numpy")]
    assert "runs eager on worker 0; not compiled: the numpy backend compiles nothing; no CUDA graph: the numpy backend runs it on the CPU" in str(told)


def test_what_a_piece_notes_reaches_whoever_asks() -> None:
    gt.disconnect()
    with pinned(EmbeddedSession("torch")) as _:
        y = ones(4) + 1
        y.numpy()
        session = gt.session.running()
        (loaded,) = session.usage.runner.loaded.values()
        loaded.stats.notes.append("a piece stays eager: it would not compile")
        (one,) = gt.explain(y).runs
        assert one.notes == ("a piece stays eager: it would not compile",) and one.backend == "torch"
        assert "; a piece stays eager: it would not compile; no CUDA graph: the torch backend runs it on the CPU" in str(
            gt.explain(y)
        )


@pytest.mark.usefixtures("here")
def test_stats_say_which_lines_flush_and_what_workers_did() -> None:
    x = ones(100)
    for _ in range(7):
        (x + 1).numpy(), line()
    at = line() - 1
    told = gt.stats()
    found = [one for one in told.lines if one.where == f"{__file__}:{at}"]
    assert [(one.count, one.reason) for one in found] == [(7, "a value was read")]
    (worker,) = told.server.workers
    assert worker.usage.runs == 7 and worker.tiers == {"eager": 1} and worker.usage.run_s > 0
    assert [(p.runs, p.name) for p in worker.usage.busiest] == [(7, "flush0")]
    assert f"{__file__}:{at}: 7 x a value was read" in str(told) and "worker 0 (cpu, numpy): 7 runs" in str(told)
    out = io.StringIO()
    gt.debug.print_stats(out)
    gt.debug.print_worker_stats(out)
    assert out.getvalue().count("flush0: 7 runs") == 2 and gt.debug.get_worker_stats()[0]["runs"] == 7


@pytest.mark.usefixtures("here")
def test_what_differs_again_and_again_is_told_once_with_how_often() -> None:
    w = ones(4, 4)
    for n in range(5, 40):
        (ones(n, 4) @ w).relu().sum().item()
    text = str(gt.stats())
    told = [part for part in text.splitlines() if "is another graph than" in part]
    assert len(told) == 1 and "was [38, 4], is [39, 4]" in told[0] and told[0].endswith(" (34 such graphs, this is the latest)")
    explained = telling.report(None).splitlines()
    at = next(i for i, part in enumerate(explained) if "run eager on worker 0; not compiled: the numpy backend compiles nothing" in part)
    named = explained[at].partition(" run ")[0].split(", ")
    assert set(named) < {f"flush{n}" for n in range(35)} and explained[at + 1].startswith(f"and {35 - len(named)} more")


@pytest.mark.usefixtures("here")
def test_that_only_the_latest_flushes_have_lines_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ones(3)
    assert "flushed at:" in str(gt.stats()) or gt.stats().flushes > len(flush.recent)
    monkeypatch.setattr(flush, "recent", deque(maxlen=4))
    monkeypatch.setattr(flush.counters, "flushes", 0)
    monkeypatch.setattr(flush.counters, "reasons", {})  # replays of other tests
    for _ in range(6):
        (x + 1).numpy()
    assert "flushed at, the latest 4 of which that is kept:\n" in str(gt.stats())


@pytest.mark.usefixtures("here")
def test_replays_are_told_as_flushes_without_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flush, "recent", deque(maxlen=1024))
    monkeypatch.setattr(flush.counters, "flushes", 0)
    monkeypatch.setattr(flush.counters, "reasons", {})
    x, double = ones(3), gt.jit(lambda x: x * 2)
    for _ in range(6):
        double(x).numpy()
    replays = flush.counters.reasons["gt.jit"]
    assert 0 < replays < flush.counters.flushes and f"\nflushed at, {replays} replays aside:\n" in str(gt.stats())


def test_without_a_session_there_is_nothing_to_tell() -> None:
    gt.disconnect()
    out = io.StringIO()
    gt.debug.print_worker_stats(out)
    assert out.getvalue() == "no worker: nothing has run\n" and gt.stats().server is None and gt.debug.get_worker_stats() == {}


@pytest.mark.usefixtures("here")
def test_the_tape_is_printed_newest_first_with_lines() -> None:
    w, x = ones(3, 2), ones(4, 3)
    w.requires_grad_()
    h, made = x @ w, line()
    loss, summed = (h * 2).sum(), line()
    out = io.StringIO()
    gt.debug.print_tape(loss, out)
    lines = out.getvalue().splitlines()
    assert [re.search(r"= (\w+)\(", text)[1] for text in lines] == ["sum", "mul", "matmul"]
    assert lines[0].endswith(f"{__file__}:{summed}") and lines[2] == f"f32[4, 2] = matmul(f32[4, 3], f32[3, 2])  {__file__}:{made}"
    loss.backward(retain_graph=True)
    assert len(gt.debug.get_tape(loss)) == 3
    loss.backward()
    with pytest.raises(RuntimeError, match=r"tape is gone: backward\(\) has freed it. Look at it before"):
        gt.debug.get_tape(loss)
    with pytest.raises(RuntimeError, match="no tape: it does not require grad"):
        gt.debug.get_tape(x)
    for leaf in (w, gt.rand(2, requires_grad=True)):  # run, and pending
        with pytest.raises(RuntimeError, match="no tape: it is a leaf"):
            gt.debug.print_tape(leaf)
    with pytest.raises(TypeError, match="expected a gt.Tensor, got int"):
        gt.debug.get_tape(3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("here")
def test_a_tape_of_what_is_pending_says_so_when_nothing_is() -> None:
    def printed() -> list[str]:
        out = io.StringIO()
        gt.debug.print_tape(file=out)
        return out.getvalue().splitlines()

    total = (ones(4) + 1).sum()
    assert printed()[0].startswith("f32[] = sum(")
    total.item()
    assert gt.debug.get_tape() == [] and printed() == ["nothing is pending: all that was recorded has run, or was sent to run"]


@pytest.mark.usefixtures("here")
def test_new_graphs_are_dumped_for_gt_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.DUMP, "_read", [str(tmp_path / "dumps")])
    x = ones(4, 4)
    for _ in range(3):
        (x @ x).sum().item()
    (path,) = (tmp_path / "dumps").iterdir()
    done = CliRunner().invoke(main, ["compile", str(path), "--workers", "2"])
    assert done.exit_code == 0 and path.name.endswith("-flush0.gtir") and "matmul" in path.read_text()


@pytest.mark.usefixtures("here")
def test_a_folder_that_cannot_be_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(env.DUMP, "_read", [str(tmp_path / "file" / "dumps")])
    with pytest.raises(OSError, match="GT_DUMP: the folder cannot be made"):
        (ones(4, 4) * 2).numpy()


@pytest.mark.usefixtures("here")
def test_a_full_disk_ends_the_dumps_with_one_warning_and_not_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env.DUMP, "_read", [str(tmp_path)])
    assert (ones(4) * 2).sum().item() == 8
    (whole,) = tmp_path.iterdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.warns(UserWarning, match="GT_DUMP: no more graphs are written: File too large: .*-flush1.gtir") as told:
            assert [(ones(n) * 3).sum().item() for n in (5, 6)] == [15, 18]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(told) == 1 and told[0].filename == __file__ and [*tmp_path.iterdir()] == [whole]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gt.disconnect()
    monkeypatch.setattr(env.CHECK, "_read", ["numpy"])
    monkeypatch.setattr(env.BACKEND, "_read", ["torch"])
    yield
    gt.disconnect()


@pytest.mark.usefixtures("checked")
def test_each_flush_is_run_on_numpy_too() -> None:
    model = gt.nn.Linear(6, 3)
    opt = gt.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = (model(gt.rand(5, 6)).tanh() ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        loss.item()
    session = gt.session.running()
    assert session.checked >= 3 and session.unchecked == 0


@pytest.mark.parametrize(
    ("compute", "op", "said"),
    [
        (lambda x: ((x - 1).log() * 2).sum(), "log", "makes NaN at [2] of -0.5; no operand has NaN"),
        (lambda x: (x / 0 - x / 0).sum(), "sub", "makes NaN at [0] of inf, inf"),
        (lambda x: (x.reshape(1, 3) / 0) @ gt.zeros(3, 1), "matmul", "makes NaN at [0, 0] of f32[1, 3] with inf, f32[3, 1]"),
    ],
)
def test_the_first_op_that_makes_nan_is_named_with_its_line(
    compute: Callable[[gt.Tensor], gt.Tensor], op: str, said: str, monkeypatch: pytest.MonkeyPatch, checked: None
) -> None:
    given = gt.tensor([1.0, 2.0, 0.5])
    assert np.isnan(compute(given).sum().item())  # numpy alone finds no difference
    gt.disconnect()
    monkeypatch.setattr(env.CHECK, "_read", ["nan"])
    with pytest.raises(NanMade) as caught:
        compute(gt.tensor([1.0, 2.0, 0.5])).sum().item()
    assert any(note.startswith("what to do: Keep that op's operands where it has a value") for note in caught.value.__notes__)
    assert caught.value.op == op and said in str(caught.value) and caught.value.where.startswith(f"{__file__}:")
    gt.disconnect()
    x = gt.tensor([1.0, float("nan")])
    assert np.isnan((x * 2).sum().item())  # it was given


GIVEN: dict[str, Callable[[gt.Tensor, float], gt.Tensor]] = {
    "full": lambda x, v: gt.full((2,), v) + x[0],
    "pad": lambda x, v: gt.nn.functional.pad(x, (1, 1), value=v),
    "nan_to_num": lambda x, v: (x / 0).nan_to_num(posinf=v),
    "leaky_relu": lambda x, v: gt.nn.functional.leaky_relu(-x, v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
}


@pytest.mark.parametrize("name", GIVEN)
def test_what_an_op_is_told_to_give_it_does_not_make(name: str, monkeypatch: pytest.MonkeyPatch, checked: None) -> None:
    gt.disconnect()
    monkeypatch.setattr(env.CHECK, "_read", ["nan"])
    assert np.isnan(GIVEN[name](gt.tensor([1.0, 2.0]), float("nan")).sum().item())
    made, at = gt.full((2,), 0.0), line()
    with pytest.raises(NanMade) as caught:
        (made / made).sum().item()
    assert caught.value.where == f"{__file__}:{at + 2}"


@pytest.mark.usefixtures("checked")
def test_the_first_op_that_differs_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    template = OPS["tanh"].torch
    object.__setattr__(OPS["tanh"], "torch", "torch.tanh({x}) * 1.01")
    try:
        x = ones(3, 4)
        h, made = (x + 1).tanh(), line()
        y = h.exp().sum()
        with pytest.raises(CheckFailed, match=r"tanh at .*differs from NumPy: at \[0, 0\] gt has 0.97.*, NumPy 0.96") as caught:
            y.item()
        assert caught.value.op == "tanh" and caught.value.where == f"{__file__}:{made}"
    finally:
        object.__setattr__(OPS["tanh"], "torch", template)


SEVERAL_ANSWERS: dict[str, tuple[Callable[[gt.Tensor], Sequence[gt.Tensor]], str]] = {  # and what makes the op's torch form ``v`` wrong
    "eigh": (lambda x: gt.linalg.eigh(x @ x.T), "v[0], v[1] * 1.01"),
    "eig": (lambda x: [v.real for v in gt.linalg.eig(x)], "v[0], v[1].flip(-1)"),
    "eigvals": (lambda x: [gt.linalg.eigvals(x).real], "v * 1.01"),
    "svd": (lambda x: gt.linalg.svd(x), "v[0], v[1], v[2].flip(-2)"),
    "topk": (lambda x: x.sign().flatten().topk(9), "v[0], v[1] * 0"),
    "kthvalue": (lambda x: x.sign().flatten().kthvalue(9), "v[0] + 1, v[1]"),
    "median": (lambda x: x.sign().flatten().median(0), "v[0] + 1, v[1]"),
    "mode": (lambda x: x.sign().int().mode(1), "-v[0], v[1]"),
}


@pytest.mark.usefixtures("checked")
def test_what_hangs_on_none_of_several_answers_is_compared_as_a_whole_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.checking.CheckingSession._first", lambda *args: None)  # each op by itself agrees
    template = OPS["tanh"].torch
    object.__setattr__(OPS["tanh"], "torch", "torch.tanh({x}) * 1.01")
    try:
        x = gt.from_numpy(np.ones(50, np.float32))
        places, h = x.topk(3)[1], x.tanh()
        with pytest.raises(CheckFailed, match="so it is how they run together"):
            h.sum().item()
        assert places.shape == (3,)
    finally:
        object.__setattr__(OPS["tanh"], "torch", template)


@pytest.mark.parametrize("name", SEVERAL_ANSWERS)
@pytest.mark.usefixtures("checked")
def test_another_of_several_right_answers_is_no_difference_and_a_wrong_one_is(name: str) -> None:
    compute, wrong = SEVERAL_ANSWERS[name]

    def read(seed: int, size: int) -> None:
        x = np.random.default_rng(seed).standard_normal((size, size)).astype(np.float32)
        results = compute(gt.from_numpy(x))
        results[0].sum().item()  # all results are looked at

    for seed in range(5):
        read(seed, 12)
    assert gt.session.running().checked == 5
    op = OPS[name]
    template = op.torch

    def torch(names: list[str], attrs: dict[str, Any], types: list[Any]) -> str:
        right = template(names, attrs, types) if callable(template) else template.format(x=names[0], **attrs)
        return f"(lambda v: ({wrong}))({right})"

    object.__setattr__(op, "torch", torch)
    try:
        with pytest.raises(CheckFailed, match=f"{name} at .*differs from NumPy.* in what all its right answers have alike"):
            read(0, 13)  # planned anew
    finally:
        object.__setattr__(op, "torch", template)


@pytest.mark.usefixtures("checked")
def test_what_roundings_leave_where_sums_cancel_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    x = gt.from_numpy(np.random.default_rng(0).standard_normal(1000).astype(np.float32))
    assert abs((x - x.mean()).sum().item()) < 1e-3
    assert (x * 1.5).sum().double().item() == pytest.approx(float(x.numpy().sum()) * 1.5, rel=1e-3)
    norm = gt.nn.BatchNorm1d(3)
    norm(gt.from_numpy(np.random.default_rng(1).standard_normal((64, 3)).astype(np.float32))).square().mean().backward()
    assert norm.weight.grad.shape == (3,) and np.isfinite(norm.bias.grad.numpy()).all()
    template = OPS["exp"].torch
    object.__setattr__(OPS["exp"], "torch", "torch.exp({x}) * 1.001")
    try:
        with pytest.raises(CheckFailed, match="exp at"):
            (x.exp() - 1).sum().item()
    finally:
        object.__setattr__(OPS["exp"], "torch", template)


SCRIPT = """
import numpy as np
import gt
w = gt.from_numpy(np.ones((4, 4), np.float32))
for n in (8, 8, 6):
    x = gt.from_numpy(np.ones((n, 4), np.float32))
    total = (x @ w).sum()
    print(total.item())
"""


def test_the_command_explains_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run(f"import sys; sys.argv = ['gt', 'explain', {str(script)!r}, 'one']; from gt.cli import main; main()", tmp_path)
    assert done.code == 0, done.err
    assert done.out.count(".0\n") == 3 and "3 flushes, 2 new graphs" in done.out
    assert "train.py:8: 3 x a value was read" in done.out
    assert "shape of operand 0 of matmul at" in done.out and "was [8, 4], is [6, 4]" in done.out
    assert re.search(r"flush\d+, flush\d+ run eager on worker 0; not compiled.*; no CUDA graph", done.out)
    script.write_text(SCRIPT + "raise ValueError('so it ends')\n")
    done = run(f"import sys; sys.argv = ['gt', 'explain', {str(script)!r}]; from gt.cli import main; main()", tmp_path)
    assert done.code == 1 and "3 flushes" in done.out and "so it ends" in done.err and "runpy" not in done.err
    script.write_text(SCRIPT + "raise SystemExit('so it stops')\n")
    done = run(f"import sys; sys.argv = ['gt', 'explain', {str(script)!r}]; from gt.cli import main; main()", tmp_path)
    assert done.code == 1 and "3 flushes" in done.out and done.err.endswith("so it stops\n")


ENDS = {
    "x = gt.ones(3\n": 1,  # no line of it runs
    "import broken\n": 1,
    "import os; os.chdir('/'); print(__file__, gt.ones(1).item()); 1 / 0\n": 1,
    "import sys; sys.excepthook = lambda *a: print('hooked', a[0], file=sys.stderr); 1 / 0\n": 1,
    "raise gt.WorkerLost('it is gone')\n": 4,
    "from signal import *; signal(SIGINT, default_int_handler); raise_signal(SIGINT)\n": 130,  # ignored by what runs in the background
}


@pytest.mark.parametrize(("last", "code"), ENDS.items())
def test_a_script_that_is_explained_ends_as_by_itself(last: str, code: int, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("(\n")
    (tmp_path / "train.py").write_text(f"import gt\n{last}")

    def ended(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, *words, "train.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True)

    alone, told = ended(), ended("-m", "gt", "explain")
    assert told.stderr == alone.stderr and told.stdout.startswith(alone.stdout)
    assert told.returncode == code and code_of_process(alone.returncode) in (code, 1) and "new graph" in told.stdout


LOST = """
import os, signal, sys, time
import gt
gt.ones(3).sum().item()
os.kill(int(sys.argv[1]), signal.SIGKILL)
if sys.argv[2] == "raises":
    gt.ones(4).sum().item()
sys.exit(7)
"""


@pytest.mark.parametrize(("how", "code"), [("ends", 7), ("raises", 3)])
def test_a_server_that_died_is_told_and_all_else_that_is_known(how: str, code: int, tmp_path: Path) -> None:
    with server(1, GT_WORKER_LEASE="0") as there:
        script = tmp_path / "lost.py"
        script.write_text(LOST)
        words = [str(script), str(there.process.pid), how]
        done = run(f"import sys; sys.argv = ['gt', 'explain', *{words!r}]; from gt.cli import main; main()", tmp_path, GT_ADDR=there.address)
        there.process.wait(30)
        there.process.returncode = 0  # it ended as it was to
        assert done.code == code, done.err
    found = done.out.splitlines()
    assert f"  {script}:4: 1 x a value was read" in found
    unknown = r"of the workers nothing is known: (the|no) gt server (at|answers at) localhost"  # the first where the loss was noticed
    assert any(re.match(unknown, text) for text in found), done.out
    assert ("Traceback" in done.err) == (how == "raises") and "click" not in done.err


def test_what_is_counted_here_is_told_without_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    gt.disconnect()
    session = EmbeddedSession("numpy")
    with pinned(session):
        ones(3).sum().item()
        fault = Fault("dispatcher_lost", "the gt server at host:1 died")
        monkeypatch.setattr(session, "status", lambda: (_ for _ in ()).throw(fault.exception()))
        told, out = gt.stats(), io.StringIO()
        assert told.flushes >= 1 and told.server is None and told.missing == fault.message
        assert str(told).endswith("\nof the workers nothing is known: the gt server at host:1 died")
        gt.debug.print_worker_stats(out)
        assert out.getvalue() == "the gt server at host:1 died\n" and gt.debug.get_worker_stats() == {}


OUTPUTS = {"sys.stdout.close()": "err", "sys.stdout = None": "out", "sys.stdout = open('told.txt', 'w')": "out"}


@pytest.mark.parametrize(("last", "where"), OUTPUTS.items())
def test_what_a_script_did_to_its_output_is_in_nobodys_way(last: str, where: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"import sys, gt\ngt.ones(3).sum().item()\n{last}\n")
    words = [sys.executable, "-m", "gt", "explain", "train.py"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    told = {"out": done.stdout, "err": done.stderr}
    assert told[where].startswith("1 flush, 1 new graph\n")


SHARED = """
import sys
import gt
x = gt.ones(6, 6)
for n in range(int(sys.argv[1])):
    (x + 1).sum(dim=n).tolist()
"""


def test_at_a_shared_server_the_command_tells_of_the_scripts_own_programs_alone(tmp_path: Path) -> None:
    script = tmp_path / "shared.py"
    with server(1) as there:
        for count, lines in ((1, ["flush0 runs eager on worker 0"]), (2, ["flush1, flush0 run eager on worker 0"])):
            script.write_text(SHARED + f"# {count}\n" if count == 1 else SHARED.replace("+ 1", "* 2"))
            code = f"import sys; sys.argv = ['gt', 'explain', {str(script)!r}, '{count}']; from gt.cli import main; main()"
            done = run(code, tmp_path, GT_ADDR=there.address)
            assert done.code == 0, done.err
            found = [part.partition(";")[0] for part in done.out.splitlines() if "eager on" in part]
            assert found == lines, done.out
            assert ("worker 0 (cpu, numpy), for all its clients: 3 runs" in done.out) == (count == 2)

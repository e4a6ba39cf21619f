"""``gt.explain``, ``gt.comm_budget`` and strict mode through what users call: on worker processes and in this process."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import gt
from gt import config as configs
from gt import session as sessions
from gt.cli import main
from gt.flush import counters
from gt.ir.signals import ShardConfig, SignalConfig
from gt.runtime.env import BACKEND
from gt.runtime.launch import LocalCluster, start_local
from gt.runtime.simulated import SimulatedSession
from tests.integration.programs import run

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    started = start_local(4, backend="numpy")
    yield started
    started.stop()


@pytest.fixture
def four(cluster: LocalCluster) -> Iterator[None]:
    """Four workers, and signals that split by rows, on some workers, and over a dim that is not there."""
    configs.get_config().clear()
    gt.connect(cluster.address)
    gt.register_config("rows", SignalConfig(shard=ShardConfig(axis=0)))
    gt.register_config("pair", SignalConfig(shard=ShardConfig(axis=0, workers=[2, 1])))
    gt.register_config("missing", SignalConfig(shard=ShardConfig(axis=5)))
    yield
    gt.disconnect()
    configs.get_config().clear()


def rows(*shape: int) -> gt.Tensor:
    with gt.signal.context("rows"):
        return gt.from_numpy(np.ones(shape, np.float32))


def line() -> int:
    """Give the line of the caller."""
    return sys._getframe(1).f_lineno


@pytest.mark.usefixtures("four")
def test_it_says_where_why_what_made_it_and_what_that_sent() -> None:
    x, w = rows(64, 32), gt.from_numpy(np.ones((32, 16), np.float32))
    h, made = x @ w, line()
    total, summed = h.sum(), line()
    told, asked = gt.explain(total), line()
    assert (told.type, told.workers, told.num_workers, told.is_split) == ("f32[]", (0, 1, 2, 3), 4, False)
    assert "its pending sums are added up in" in told.why[0] and told.why[0].endswith(f"{__file__}:{summed}")
    assert f"matmul computes it there, which splits factor m over w at {__file__}:{made}" in told.why[1]
    assert told.why[2].endswith("where its buffer lives") and len(told.why) == 3
    assert (told.reason, told.where) == ("gt.explain", f"{__file__}:{asked}")
    (sent,) = told.sent
    assert (sent.kind, sent.axes, sent.count, sent.nbytes) == ("all_reduce", ("w",), 1, 6)  # 2 * 3/4 of 4 bytes
    assert (sent.why, sent.where) == ("a result must not be pending", f"{__file__}:{summed}")
    assert told.notes == ()
    text = str(gt.explain(h))
    assert text.splitlines()[0] == "f32[64@w, 16] on workers 0-3, f32[16, 16] on each"
    assert f"made by {told.graph}, which ran for: gt.explain at {__file__}:{asked}" in text, "one flush made both"
    assert f"6 B by all_reduce over w for a result must not be pending at {__file__}:{summed}" in text
    assert repr(gt.explain(h)) == text


@pytest.mark.usefixtures("four")
def test_what_has_no_name_is_called_by_its_op_and_line() -> None:
    x = rows(64, 32)
    total = (x + 1).sin().sin().sum(dim=0)
    told, at = gt.explain(total), line() - 1
    names = [why.partition(": ")[0] for why in told.why]
    assert names == ["%total", f"%sin:{at}#2", f"%sin:{at}", f"%add:{at}", "%input0"]
    assert gt.explain(x.sum(dim=0)).why[0].startswith(f"%sum:{line()}: f32[32] on all: whole on all workers: its pending sums")
    called = gt.nn.functional.relu(x)  # a call's result, whatever lies behind the call in the bytecode
    assert gt.explain(called).why[0].startswith("%called: ")


@pytest.mark.usefixtures("four")
def test_the_cost_of_a_conflict_is_told_and_who_asked() -> None:
    a, b = rows(8, 8), rows(8, 8)
    product, at = a @ b, line()
    told = gt.explain(product)
    assert re.search(r"splits factor m over w at .*; operand 1 is brought there in [\d.]+ us", told.why[0])
    (sent,) = told.sent
    assert (sent.kind, sent.nbytes, sent.where) == ("all_gather", 192, f"{__file__}:{at}")
    assert sent.why.startswith("operand 1 of matmul")


@pytest.mark.usefixtures("four")
def test_uploads_say_what_placed_them() -> None:
    told = gt.explain(rows(8, 2))
    assert told.why == ("uploaded under a signal that asks for this",) and told.type == "f32[8@w, 2]"
    told = gt.explain(gt.from_numpy(np.ones((8, 2), np.float32)))
    assert told.why == ("uploaded outside of any signal that places: whole on all workers",)
    assert "made by an upload from this process" in str(told) and told.sent == ()
    with pytest.warns(gt.SignalWarning), gt.signal.context("missing"):
        ignored = gt.from_numpy(np.ones((8, 2), np.float32))
    assert gt.explain(ignored).why == ("uploaded under a signal that could not split it, so kept whole",)


@pytest.mark.usefixtures("four")
def test_a_loss_and_what_its_gradient_is_made_of_are_not_told_to_be_whole() -> None:
    """What the backward of a mean makes has one element, in as many dims as there are."""
    w = gt.ones(4, 4, requires_grad=True)
    gt.register_config("both", SignalConfig(shard=ShardConfig(axis=0), backward_signal="both"))
    with gt.signal.context("both"):
        loss = (rows(8, 4) @ w).square().mean()
    loss.backward()
    assert gt.explain(loss).notes == gt.explain(w.grad).notes == ()


@pytest.mark.usefixtures("four")
def test_an_axis_that_is_not_there_is_in_the_notes() -> None:
    x = rows(8, 4)
    with gt.signal.context("missing"):
        h, at = x * 2, line()
    with pytest.warns(gt.SignalWarning):
        told = gt.explain(h + 1)
    assert told.notes == (f"%mul:{at}: f32[8, 4]: signal 'missing': kept whole: f32[8, 4] has no dim 5 at {__file__}:{at}",)
    assert told.why[1].endswith(f"signal 'missing' at {__file__}:{at}"), "what is whole goes back to who said so, too"
    assert told.notes[0] in str(told)


@pytest.mark.usefixtures("four")
def test_some_workers_in_their_order_and_transfers_between_them() -> None:
    x = gt.from_numpy(np.ones((8, 4), np.float32))
    with gt.signal.context("pair"):
        h = x * 2
    told = gt.explain(h)
    assert str(told).startswith("f32[8@w2_1, 4] on workers 2, 1, f32[4, 4] on each\n"), str(told)
    assert told.workers == (2, 1) and "signal 'pair'" in told.why[0]
    with gt.signal.context("rows"):
        moved = h + 1
    (sent,) = gt.explain(moved).sent
    assert (sent.kind, sent.axes) == ("transfer", ()) and "signal 'rows'" in sent.why


@pytest.mark.usefixtures("four")
def test_views_parameters_and_values_read_before() -> None:
    x = rows(8, 4)
    h = x * 2
    before, read = h.sum().item(), line()
    assert before == 64
    told = gt.explain(h)
    assert (told.reason, told.where) == ("a value was read", f"{__file__}:{read}")
    assert gt.explain(h.t()).type == "f32[4, 8@w]"
    gt.register_params({"*weight": {0: "w"}, "*": {}})
    gt.register_mesh({"w": 4})
    layer = gt.nn.Linear(4, 8)
    layer(x).sum().backward()
    assert "parameters '*weight'" in gt.explain(layer.weight).why[0]
    assert gt.explain(layer.weight.grad).type == "f32[8@w, 4]"


@pytest.mark.usefixtures("four")
def test_a_view_is_told_without_a_run_or_a_read_of_it() -> None:
    h = rows(8, 4) * 2
    h.numpy()
    flushes, made = counters.flushes, gt.explain(h)
    for view, type_, local in (
        (h.detach(), "f32[8@w, 4]", (2, 4)), (h.t(), "f32[4, 8@w]", (4, 2)), (h[2:6].t(), "f32[4, 4@w]", (4, 1)), (h.view(2, 16), "f32[2, 16]", (2, 16)),
        (h.unsqueeze(0).detach(), "f32[1, 8@w, 4]", (1, 2, 4)), (h[:, 1], "f32[8@w]", (2,)),
    ):  # fmt: skip
        told = gt.explain(view)
        assert (told.type, told.local_shape) == (type_, local) and told.graph == made.graph and told.why[-1] == made.why[-1]
    assert counters.flushes == flushes
    assert (h.t()[1].numpy() == 2).all()


@pytest.mark.usefixtures("four")
def test_a_replay_names_its_graph() -> None:
    step = gt.jit(lambda x: (x * 2).sum(dim=1))
    x = rows(8, 4)
    told = [gt.explain(step(x)) for _ in range(6)]
    assert {t.type for t in told} == {"f32[8@w]"} and len({t.graph for t in told[-2:]}) == 1
    assert "which gt.jit replayed" in str(told[-1]) and told[-1].why


@pytest.mark.usefixtures("four")
def test_what_failed_fails_here_too_and_costs_nobody_the_session() -> None:
    x = rows(8, 4)
    bad = gt.from_numpy(np.ones((5, 2), np.float32))[gt.tensor([1, 77])]
    with pytest.raises(IndexError, match="77"):
        bad.numpy()
    with pytest.raises(IndexError, match="77"):
        gt.explain(bad + 1)
    for wrong in (1, "x", None, np.ones(3)):
        with pytest.raises(TypeError, match="gt.explain: expected a gt.Tensor"):
            gt.explain(wrong)  # type: ignore[arg-type]
    with gt.flush_guard("disallow"), pytest.raises(gt.ReadRefused):
        gt.explain(x * 2)
    assert gt.explain(x + 1).type == "f32[8@w, 4]"


def test_one_worker_splits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKEND, "_read", ["numpy"])
    x = gt.from_numpy(np.ones((8, 4), np.float32))
    told, at = gt.explain(x * 2), line()
    assert told.why == ("whole: there is one worker, so nothing is split",) and told.sent == ()
    assert str(told).splitlines() == [
        "f32[8, 4] on worker 0",
        "  whole: there is one worker, so nothing is split",
        f"made by {told.graph}, which ran for: gt.explain at {__file__}:{at}",
        "runs eager on worker 0; not compiled: the numpy backend compiles nothing; no CUDA graph: the numpy backend runs it on the CPU",
        "not donated, as something still holds them:",
        "  input 0: f32[8, 4]",
    ]
    assert "made by an upload" in str(gt.explain(x))
    with gt.comm_budget(0):
        assert (x * 3).sum().item() == 96


def test_simulated_workers_explain_as_real_ones_do() -> None:
    configs.get_config().clear()
    gt.register_mesh({"dp": 2, "tp": 2})
    gt.register_config("grid", SignalConfig(shard=ShardConfig(dims={0: "dp", 1: "tp"})))
    with sessions.pinned(SimulatedSession(4)):
        with gt.signal.context("grid"):
            x = gt.from_numpy(np.ones((8, 6), np.float32))
        told = gt.explain(x.sum(dim=1))
        assert str(told).startswith("f32[8@dp] on workers 0-3 (dp=2, tp=2), f32[4] on each\n")
        assert [(s.kind, s.axes) for s in told.sent] == [("all_reduce", ("tp",))]
    configs.get_config().clear()


# -- limits


@pytest.mark.usefixtures("four")
def test_a_budget_names_the_collective_who_asked_and_the_line() -> None:
    a, b = rows(8, 8), rows(8, 8)
    with gt.comm_budget(191):
        product, at = a @ b, line()
    with pytest.raises(gt.RunError) as caught:
        product.numpy()
    said = str(caught.value)
    assert "comm_budget: worker 0 would send 192 bytes, 191 are allowed" in said
    assert re.search(rf"192 B all_gather for operand 1 of matmul.*, {re.escape(__file__)}:{at}", said)
    with gt.comm_budget("192B"):
        assert (a @ b).sum(dim=1).numpy().tolist() == [64.0] * 8
    assert (a @ b).numpy().shape == (8, 8), "and it ends with its block"


@pytest.mark.usefixtures("four")
def test_a_budget_counts_what_each_worker_sends() -> None:
    """Of rows shifted down by one, all workers but the first send theirs."""
    x = rows(8, 8)
    with gt.comm_budget(31):
        shifted = x[1:] + 1
    with pytest.raises(gt.RunError, match="comm_budget: worker 1 would send 32 bytes, 31 are allowed"):
        shifted.numpy()
    with gt.comm_budget(32):
        assert (x[1:] + 1).numpy().shape == (7, 8)


@pytest.mark.usefixtures("four")
def test_a_budget_holds_for_what_its_block_records_alone() -> None:
    a, b = rows(8, 8), rows(8, 8)
    before = a @ b
    with gt.comm_budget(0):
        within = a + 1
    assert before.numpy().shape == within.numpy().shape == (8, 8)
    gathered = gt.jit(lambda a, b: a @ b)
    for _ in range(5):
        assert gathered(a, b).numpy().shape == (8, 8)
    with gt.comm_budget(0):
        refused = gathered(a, b)
    with pytest.raises(gt.RunError, match="comm_budget"):
        refused.numpy()


@pytest.mark.usefixtures("four")
@pytest.mark.parametrize("budgets", [(10, 100_000), (100_000, 10)])
def test_of_nested_budgets_the_smallest_counts(budgets: tuple[int, int]) -> None:
    a, b = rows(8, 8), rows(8, 8)
    with gt.comm_budget(budgets[0]), gt.comm_budget(budgets[1]):
        product = a @ b
    with pytest.raises(gt.RunError, match="would send 192 bytes, 10 are allowed"):
        product.numpy()


def test_a_budget_that_ends_before_one_inside_it_takes_only_itself_away() -> None:
    """As those of two threads may, or of generators."""
    outer, inner = gt.comm_budget(100), gt.comm_budget(200)
    for block in (outer, inner):
        block.__enter__()
    outer.__exit__(None, None, None)
    assert gt.get_config().comm_bytes == 200
    inner.__exit__(None, None, None)
    assert gt.get_config().comm_bytes is None


def test_a_budget_may_be_used_again_and_inside_itself() -> None:
    budget = gt.comm_budget(7)
    for _ in range(2):
        with budget, budget:
            assert gt.get_config().comm_bytes == 7
        assert gt.get_config().comm_bytes is None


def test_a_budget_is_a_whole_number_of_bytes_or_text() -> None:
    for wrong, why in ((-1, "from 0 up, .* got -1"), ("a lot", "comm_budget: .*got 'a lot'")):
        with pytest.raises(ValueError, match=why):
            gt.comm_budget(wrong)  # type: ignore[arg-type]
    with gt.comm_budget("1 MiB"):
        assert gt.get_config().comm_bytes == 1 << 20
    with gt.comm_budget("0"):
        assert gt.get_config().comm_bytes == 0
    for wrong in (1.5, None, True):
        with pytest.raises(TypeError, match="comm_budget: expected a number of bytes from 0 up, or text such as"):
            gt.comm_budget(wrong)  # type: ignore[arg-type]


@pytest.mark.usefixtures("four")
def test_strict_mode_names_op_line_and_why() -> None:
    x, w = rows(8, 4), gt.from_numpy(np.ones((4, 4), np.float32))
    gt.get_config().strict = True
    h, made = x @ w, line()
    out, at = h.sort(dim=0)[0], line()
    with pytest.raises(gt.RunError) as caught:
        out.numpy()
    said = str(caught.value)
    for words in ("strict: ", "operand 0 of sort", f"{__file__}:{at}", "h.sort(dim=0)", "No signal asks for it", "matmul computes it there",
                  f"{__file__}:{made}"):  # fmt: skip
        assert words in said, said
    with gt.signal.context("rows"):
        assert (x * 2).sum().item() == 64, "pending sums are no move"
    gt.get_config().strict = False
    assert (x @ w).sort(dim=0)[0].numpy().shape == (8, 4)


STRICT = """
import numpy as np
import gt
gt.gpu_workers(2)
gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
with gt.signal.context("rows"):
    x = gt.from_numpy(np.ones((8, 4), np.float32))
h = x * 2
print((h + 1).sum().item())
h.sort(dim=0)[0].numpy()
"""


def test_strict_by_environment(tmp_path: Path) -> None:
    done = run(STRICT, tmp_path, GT_STRICT="1")
    assert done.code == 1 and done.out == "96.0\n"
    assert "strict: " in done.err and "operand 0 of sort" in done.err and "script.py:9: h.sort(dim=0)[0].numpy()" in done.err


def test_gt_plan_follows_a_script_that_explains(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(STRICT.replace("h.sort(dim=0)[0].numpy()", "print(gt.explain(h))"))
    result = CliRunner().invoke(main, ["plan", str(script), "--workers", "4"])
    configs.get_config().clear()
    assert result.exit_code == 0 and "f32[8@w, 4] on workers 0-3, f32[2, 4] on each" in result.output, result.output

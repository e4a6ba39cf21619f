"""Recording and flushing: what is a new graph, what is not, and that nothing is lost. Rules of section 9 of the design."""

import gc
import os
import queue
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gt
from gt.flush import counters
from gt.ir.ops import OPS
from gt.recording import _record, _record_into, record
from gt.rule import rule_of
from gt.trace import Trace, state


@pytest.fixture
def graphs():
    """The number of new graphs since the test began."""
    gt.ones(1).sum().item()
    start = counters.graphs
    return lambda: counters.graphs - start


def test_changing_scalars_make_no_new_graph(graphs):
    x = gt.tensor([1.0] * 4)
    for i in range(5):
        assert ((x * (i + 0.5) + i) ** 2).sum().item() == pytest.approx(4 * (i + 0.5 + i) ** 2)
    assert graphs() == 1


def test_learning_rate_and_random_streams_make_no_new_graph(graphs):
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.1)
    seen = set()
    for i in range(6):
        opt.param_groups[0]["lr"] = 0.1 / (i + 1)
        (w * gt.randn(3)).sum().backward()
        opt.step()
        opt.zero_grad()
        seen.add(tuple(w.tolist()))
    assert len(seen) == 6
    assert graphs() <= 2


def test_rule_1_an_input_also_held_elsewhere_is_another_graph_and_is_not_overwritten():
    w = gt.ones(3, requires_grad=True)
    opt = gt.optim.SGD([w], lr=1.0)
    held = []
    for i in range(4):
        held.append(w.detach().clone() if i % 2 else w.detach())
        before = w.tolist()
        (w * 2).sum().backward()
        opt.step()
        opt.zero_grad()
        held[-1] = (held[-1], before)
    for t, before in held[1::2]:
        assert t.tolist() == before


def test_rule_1_two_inputs_that_are_views_of_one_storage():
    base = gt.tensor(np.arange(6, dtype=np.float32))
    a, b = base[:3], base[3:]
    a += b
    b += a
    assert base.tolist() == [3, 5, 7, 6, 9, 12]
    assert a.tolist() == [3, 5, 7] and b.tolist() == [6, 9, 12]


def test_rule_2_two_models_of_equal_shapes_flushed_before_backward():
    one, two = gt.full((3,), 2.0, requires_grad=True), gt.full((3,), 5.0, requires_grad=True)
    losses = [(w * w).sum() for w in (one, two)]
    assert [loss.item() for loss in losses] == [12.0, 75.0]
    losses[1].backward()
    losses[0].backward()
    assert one.grad.tolist() == [4.0] * 3 and two.grad.tolist() == [10.0] * 3


def test_rule_3_an_index_out_of_range_raises_with_the_users_line():
    table, index = gt.tensor([[1.0, 1.0]] * 4), gt.tensor([0, 9])
    picked = gt.nn.functional.embedding(index, table)
    with pytest.raises((IndexError, RuntimeError), match="test_recording.py"):
        picked.numpy()
    assert (table + 1).sum().item() == 16


def test_rule_6_the_user_rewrites_an_array_after_from_numpy():
    a = np.ones(1000, np.float32)
    t = gt.from_numpy(a)
    u = gt.tensor(a)
    a[:] = 7
    assert t.sum().item() == 1000 and u.sum().item() == 1000


def test_rule_6_a_step_does_not_change_an_array_handed_out():
    w = gt.ones(4, requires_grad=True)
    shown = w.detach().numpy()
    opt = gt.optim.SGD([w], lr=1.0)
    for _ in range(3):
        w.sum().backward()
        opt.step()
        opt.zero_grad()
    assert shown.tolist() == [1, 1, 1, 1] and w.tolist() == [-2, -2, -2, -2]
    shown[:] = 9
    assert w.tolist() == [-2, -2, -2, -2]


def test_rule_7_a_fetch_under_way_sees_the_value_at_its_call():
    w = gt.ones(100_000, requires_grad=True)
    opt = gt.optim.SGD([w], lr=1.0)
    pending = []
    for _ in range(5):
        buffer = w.detach()._materialise()
        pending.append(buffer.session.fetch(buffer.id))
        w.sum().backward()
        opt.step()
        opt.zero_grad()
    assert [float(f.result()[0]) for f in pending] == [1.0, 0.0, -1.0, -2.0, -3.0]


def test_rule_12_logits_loss_and_grads_alive_at_the_end_of_a_step(graphs):
    w = gt.ones(3, 2, requires_grad=True)
    opt = gt.optim.SGD([w], lr=0.5)
    kept = []
    for i in range(4):
        logits = gt.full((1, 3), 1.0) @ w
        loss = logits.sum()
        loss.backward()
        opt.step()
        kept.append((logits, loss))
        assert w.grad is not None
        if i % 2:
            loss.item()
        opt.zero_grad()
    assert [loss.item() for _, loss in kept] == [6.0, 3.0, 0.0, -3.0]
    assert [logits.tolist()[0][0] for logits, _ in kept] == [3.0, 1.5, 0.0, -1.5]


@pytest.mark.parametrize("classes", [8, (1 << 22) // 4])  # logits of 128 bytes, and of 16 MiB
def test_a_step_waits_for_the_end_of_a_function_that_names_something_large(classes):
    model = gt.nn.Linear(2, classes)
    opt = gt.optim.SGD(model.parameters(), lr=0.5)
    x, y = gt.ones(4, 2), gt.zeros(4, dtype=gt.int64)
    made = []

    def train():
        logits = model(x)
        loss = gt.nn.functional.cross_entropy(logits, y)
        loss.backward()
        opt.step()
        opt.zero_grad()
        made.append(logits._trace is not None)
        return loss

    losses = [train() for _ in range(4)]
    assert [float(loss) for loss in losses] == sorted(map(float, losses), reverse=True)
    assert made == [classes > 8] * 4, "the step is submitted at zero_grad unless it would keep much"
    logits = model(x)
    gt.nn.functional.cross_entropy(logits, y).backward()
    opt.step()
    opt.zero_grad()
    assert logits.detach().numpy().shape == (4, classes), "named: kept"


def test_rule_14_integer_scalars_wrap_as_their_dtype():
    x = gt.tensor([250], dtype=gt.uint8)
    assert (x + 300).tolist() == [(250 + 300) % 256]
    assert (gt.tensor([1]) + True).tolist() == [2]
    assert (gt.tensor([1]) * 2.5).dtype is gt.float32


def test_rule_18_a_forked_child_refuses_and_the_parent_goes_on():
    x = gt.ones(3) * 2
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            (x + 1).tolist()
            answer = b"worked"
        except RuntimeError as e:
            answer = str(e).encode()
        os.write(write, answer)
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"forked child" in os.read(read, 4096)
    os.close(read), os.close(write)
    assert x.tolist() == [2, 2, 2]


def test_rule_19_two_threads_record_and_values_cross():
    shared = gt.ones(8) * 3
    results: dict[int, float] = {}
    errors: list[BaseException] = []

    def work(i: int) -> None:
        try:
            x = gt.full((8,), float(i))
            for _ in range(50):
                x = x + shared
            results[i] = x.sum().item()
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not errors
    assert results == {i: 8 * (i + 150.0) for i in range(4)}


def test_a_value_made_by_a_thread_that_ended_is_not_lost():
    made = []
    t = threading.Thread(target=lambda: made.append(gt.ones(4) * 5))
    t.start()
    t.join(60)
    assert (made[0] + 1).tolist() == [6, 6, 6, 6]


def test_a_loop_that_never_reads_is_handed_over_where_it_comes_round():
    """Else each piece ends elsewhere in the loop's body, and none is like another."""
    random = np.random.default_rng(0)
    weights = [gt.from_numpy(random.standard_normal((4, 4)).astype(np.float32)) for _ in range(6)]
    cache, x = gt.zeros(4, 4), gt.ones(4, 4)
    before, made = counters.flushes, []
    for _ in range(2500):
        x = (x + 1.0) * 0.5
        for w in weights:
            x = (x @ w).tanh()
        cache.add_(x)
        made.append(counters.graphs)
    assert counters.flushes - before >= 5
    assert made[-1] == made[1500]
    theirs, h = [w.numpy() for w in weights], np.ones((4, 4), np.float32)
    for _ in range(2500):
        h = (h + np.float32(1)) * np.float32(0.5)
        for w in theirs:
            h = np.tanh(h @ w)
    np.testing.assert_allclose(x.numpy(), h, rtol=1e-3, atol=1e-4)


def test_a_long_chain_flushes_itself_in_equal_pieces(graphs):
    x = gt.zeros(4)
    for _ in range(3 * 4096 + 10):
        x = x + 1
    assert x.tolist() == [3 * 4096 + 10] * 4
    assert graphs() <= 9


def test_nothing_runs_twice_when_a_value_is_read_before_backward():
    w = gt.ones(4, requires_grad=True)
    ran = []
    from gt import session

    def count(key, graph):
        ran.append([n.op.name for n in graph.nodes])

    session.on_define.append(count)
    try:
        loss = (w.exp() * 3).sum()
        loss.item()
        loss.backward()
        w.grad.tolist()
    finally:
        session.on_define.remove(count)
    assert sum(names.count("exp") for names in ran) == 1


def test_errors_are_raised_at_the_users_line_with_both_shapes():
    with pytest.raises(RuntimeError, match=r"2x3 and 4x5"):
        gt.ones(2, 3) @ gt.ones(4, 5)
    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\) must match the size of tensor b \(4\)"):
        gt.ones(2, 3) + gt.ones(2, 4)
    with pytest.raises(RuntimeError, match=r"shape '\[4\]' is invalid for input of size 6"):
        gt.ones(6).reshape(4)
    with pytest.raises(IndexError, match="out of bounds for dimension 0 with size 3"):
        gt.ones(3)[5]
    assert state.trace is not None


def test_signals_nest_unwind_and_never_change_values(clean):
    gt.register_config("outer", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0])))
    gt.register_config("inner", gt.SignalConfig(compile=False))
    with gt.signal.context("outer"):
        assert gt.signal.current_signal() == "outer"
        with pytest.raises(KeyError), gt.signal.context("inner", backward="outer"):
            assert gt.signal.get_signal_stack() == ["outer", "inner"]
            assert gt.signal.current_backward_signal() == "outer"
            raise KeyError("x")
        assert gt.signal.get_signal_stack() == ["outer"]
        x = gt.ones(4) * 2
    assert gt.signal.current_signal() is None
    assert gt.signal.tensor(x, name="outer").tolist() == [2, 2, 2, 2]
    with pytest.raises(RuntimeError, match="no signal"):
        gt.signal.exit("outer")


def test_an_error_in_a_signals_block_takes_nothing_with_it(clean):
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    w = gt.ones(4, 4, requires_grad=True)
    for i in range(3):
        with pytest.raises(ValueError, match="shape"), gt.signal.context("rows"):
            gt.signal.enter("rows")
            h = w * 2
            kept = h @ w
            kept.reshape(3, 3)  # refused at the line, while work of the block is pending
        assert gt.signal.get_signal_stack() == []
        (kept.sum() * (i + 1)).backward()
        assert kept.tolist() == [[8.0] * 4] * 4 and w.grad is not None
        assert w.grad.tolist() == [[16.0 * (i + 1)] * 4] * 4
        w.grad = None


def test_a_signals_block_ends_alone_in_any_order_and_may_be_used_again(clean):
    for name in ("o", "p"):
        gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(axis=0)))

    def generator():
        with gt.signal.context("o"):
            yield

    begun = generator()
    next(begun)
    with gt.signal.context("p"):
        gt.signal.enter("o")
        begun.close()
        assert gt.signal.get_signal_stack() == ["p", "o"]
    assert gt.signal.get_signal_stack() == [], "what enter began inside a block ends with it"
    gt.signal.enter("p")
    next(begun := generator())
    gt.signal.exit("o")
    begun.close()
    assert gt.signal.get_signal_stack() == ["p"], "ended by exit, it has nothing left to end"
    gt.signal.exit("p")
    block = gt.signal.context("o")
    for _ in range(2):
        with block, gt.signal.context("p"), block:
            assert gt.signal.get_signal_stack() == ["o", "p", "o"]
        assert gt.signal.get_signal_stack() == []
    assert block(gt.signal.get_signal_stack)() == ["o"], "as a decorator"
    begun = generator()
    next(begun)
    with ThreadPoolExecutor(1) as other, pytest.raises(RuntimeError, match="another thread than it began in"):
        other.submit(begun.close).result()
    assert gt.signal.get_signal_stack() == ["o"]
    gt.signal.exit("o")


def test_a_signals_name_may_have_any_characters(clean):
    for name in ("encoder>decoder", ">", "a>b>c"):
        gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        for backward in (None, "b", name):
            gt.signal.enter(name, backward)
            assert gt.signal.current_signal() == name and gt.signal.get_signal_stack() == [name]
            gt.signal.exit(name)
    with pytest.warns(gt.SignalWarning, match="not>configured"):
        gt.signal.enter("not>configured")
    gt.signal.exit("not>configured")
    with pytest.raises(gt.ConfigError, match="a signal's name must not be empty"):
        gt.register_config("", gt.SignalConfig())


def test_a_thread_that_reads_does_not_disturb_one_that_records():
    """Each read flushes the other thread's trace, at any point of what it is doing."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    waiting: queue.Queue[tuple[gt.Tensor, float] | None] = queue.Queue(maxsize=4)
    wrong: list[object] = []

    def read() -> None:
        while (item := waiting.get()) is not None:
            try:
                if item[0].item() != item[1]:
                    wrong.append(item)
            except Exception as error:
                wrong.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        total, base, w = gt.zeros(4), gt.zeros(4, 4), gt.ones(4, requires_grad=True)
        row = base[1]
        for i in range(1, 151):
            total.add_(1)
            row.add_(1)
            base.t().mul_(1.0)
            (w * w).sum().backward()
            waiting.put(((gt.ones(4) * i).sum(), 4.0 * i))
            total.mul_(1.0)
            row[0] = row[1]
            waiting.put((total.sum(), 4.0 * i))
            if i % 10 == 0:
                waiting.put((row.sum(), 4.0 * i))
                assert w.grad.tolist() == [2.0 * i] * 4
    finally:
        for _ in readers:
            waiting.put(None)
        for reader in readers:
            reader.join()
        sys.setswitchinterval(before)
    assert wrong == [] and base[1].tolist() == [150.0] * 4


@pytest.mark.parametrize("view", [False, True])
def test_batches_of_a_loop_that_never_reads_are_given_back(monkeypatch, view):
    monkeypatch.setattr(sys.modules["gt.trace"], "MAX_KEPT", 1 << 20)
    monkeypatch.setattr(state.modes, "held", 0)
    gt.ones(1).sum().item()  # a new trace, with the new bound
    before = dict(counters.reasons)
    total, kept = gt.zeros(()), []
    for i in range(80):
        batch = gt.tensor(np.full((128, 256), float(i), dtype=np.float32))  # 128 KiB
        total = total + (batch.reshape(-1) if view else batch).mean()
        if i < 6:
            kept.append(batch)  # held by the caller: flushing would give nothing back
    flushed = [r for r in counters.reasons if counters.reasons[r] > before.get(r, 0)]
    assert flushed == ["more than 1 MiB kept by pending work alone"]
    assert 2 <= counters.reasons[flushed[0]] - before.get(flushed[0], 0) <= 9
    assert total.item() == sum(range(80))
    assert [k.mean().item() for k in kept] == list(range(6))


def test_an_op_of_more_views_than_a_trace_holds():
    parts = [gt.tensor([float(i), -float(i)]) for i in range(2500)]
    stacked = gt.stack(parts)  # 2,500 inputs and as many views, which a flush in between would make stale
    assert stacked.sum(0).tolist() == [2500 * 2499 / 2, -2500 * 2499 / 2]
    assert stacked[2499].tolist() == [2499.0, -2499.0]


def test_the_bytes_of_a_model_that_is_gone_count_no_longer():
    state.modes.held = 1 << 30
    for _ in range(31):
        gt.ones(4).sum().item()
    assert state.modes.held < 64


class Dropped:
    """Part of a cycle: what it does at its end, it does wherever the collector of cycles runs."""

    def __init__(self, act):
        self.act, self.me = act, self

    def __del__(self):
        self.act()


@pytest.fixture
def unraisable(monkeypatch):
    """What finalizers raise."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda given: found.append(given.exc_value))
    return found


@pytest.mark.parametrize("act", ["reads", "records"])
def test_finalizers_use_tensors_wherever_the_collector_runs(unraisable, act):
    """Recording allocates: the collector may start in the middle of any op."""
    before, seen, kept = gc.get_threshold(), [], []
    x, weight = gt.tensor([1.0, 2.0, 3.0]), gt.ones(3, requires_grad=True)

    def step(every):
        y, total = x, x
        for _ in range(4):
            value = record(OPS["mul"], (x, weight))
            gc.set_threshold(every)
            Dropped(lambda v=value: seen.append(v.detach().tolist()) if act == "reads" else kept.append(v + v))
            gc.enable()
            y = record(OPS["add"], (y, record(OPS["permute"], (x,), (("dims", (0,)),), 1, True)))
            high, where = record(OPS["topk"], (y,), (("k", 2), ("dim", 0), ("largest", True)))
            gc.disable()
            gc.collect()
            total = total + high.sum() * 0 + where[0] * 0
        assert y.tolist() == [5.0, 10.0, 15.0] and total.tolist() == [1.0, 2.0, 3.0]

    gc.collect()
    gc.disable()
    try:
        step(before[0])  # from now on all rules are known
        gc.freeze()  # from now on collecting is fast
        for every in range(1, 30):
            step(every)
    finally:
        gc.set_threshold(*before)
        gc.enable()
        gc.unfreeze()
    assert not unraisable
    assert seen == [[1.0, 2.0, 3.0]] * len(seen) and [k.tolist() for k in kept] == [[2.0, 4.0, 6.0]] * len(kept)
    assert len(seen) + len(kept) == 4 * 30


def test_finalizers_use_tensors_while_a_thread_uses_them_for_the_first_time(unraisable):
    """What gt keeps for a thread is made at its first op: the collector may start in the middle of that."""
    before, kept = gc.get_threshold(), []

    def first(every):
        Dropped(lambda: kept.append(gt.ones(2) + 1))
        gc.set_threshold(every)
        gc.enable()
        gt.rand(1)
        gc.disable()
        gc.collect()

    first(before[0])
    gc.freeze()  # from now on collecting is fast
    try:
        for every in range(1, 60):
            thread = threading.Thread(target=first, args=(every,))
            thread.start()
            thread.join()
    finally:
        gc.set_threshold(*before)
        gc.enable()
        gc.unfreeze()
    assert not unraisable and [k.tolist() for k in kept] == [[2.0, 2.0]] * 60


def test_what_reads_in_the_middle_of_an_op_is_told_so_and_nothing_is_lost(monkeypatch):
    """As a finalizer does that runs when recording drops the last reference to something."""
    x, y = gt.ones(3), gt.ones(3)
    z = x + y
    gt.ones(1).sum().item()
    total, entered = gt.zeros(3) + 2, Trace.enter

    def enter(self, tensor):
        with pytest.raises(RuntimeError, match="in the middle of recording"):
            total.tolist()
        return entered(self, tensor)

    with monkeypatch.context() as patched:
        patched.setattr(Trace, "enter", enter)
        w = x + z
    assert total.tolist() == [2.0] * 3 and w.tolist() == [3.0] * 3


@pytest.mark.parametrize("which", ["record", "record_into"])
def test_what_records_in_the_middle_of_an_op_is_told_so_and_the_op_goes_on(monkeypatch, which):
    x, y = gt.ones(3), gt.ones(3)
    gt.ones(1).sum().item()
    entered, refused = Trace.enter, []

    def enter(self, tensor):
        for act in (lambda: x * 2, lambda: _record_into(OPS["add"], (x, x), (), [y])):
            with pytest.raises(RuntimeError, match="while an op was being recorded"):
                act()
            refused.append(act)
        return entered(self, tensor)

    with monkeypatch.context() as patched:
        patched.setattr(Trace, "enter", enter)
        if which == "record":
            y = _record(OPS["add"], (x, y))
        else:
            _record_into(OPS["add"], (x, y), (), [y])
    assert y.tolist() == [2.0] * 3 and x.tolist() == [1.0] * 3 and len(refused) == 4


def test_operands_are_looked_at_again_if_a_finalizer_records_or_reads_before_an_op_is_appended(monkeypatch):
    x, y = gt.ones(3), gt.ones(3)
    view = x[1:]
    acts = [lambda: x.add_(1), lambda: (x + 0).tolist(), lambda: None]
    looked = []

    def rule(op, attrs, inputs):
        if acts:
            looked.append(acts.pop(0)())
        return rule_of(op, attrs, inputs)

    with monkeypatch.context() as patched:
        patched.setattr(sys.modules["gt.recording"], "rules_by_key", {})
        patched.setattr(sys.modules["gt.recording"], "rule_of", rule)
        out = _record(OPS["add"], (view, y[1:]))
    assert out.tolist() == [3.0, 3.0] and looked

"""Loops in a flush: equal rounds run one small graph, with the values of the whole, and steps with gradients stay whole."""

import random
import signal
import threading

import numpy as np
import pytest
import torch

import gt
from gt import flush, graph_history, rounds
from gt import session as sessions
from gt.runtime.interrupt import SHIELD
from gt.runtime.simulated import SimulatedSession


@pytest.fixture
def planned(monkeypatch):
    """The sizes of the graphs that are new since the test began."""
    gt.ones(1).sum().item()
    sizes = []
    monkeypatch.setattr(sessions, "on_define", [*sessions.on_define, lambda number, graph: sizes.append(len(graph.nodes))])
    return sizes


@pytest.fixture
def cuts(monkeypatch):
    """The flushes there were: their entries, outputs and parts."""
    found = []

    def cut(code, outputs):
        parts = rounds.cut(code, outputs)
        found.append((list(code), outputs, parts))
        return parts

    monkeypatch.setattr(flush, "cut", cut)
    return found


def chain(t, x, count):
    h = x
    for i in range(count):
        h = (h + x, h * 0.5, h.sin(), h.relu())[i % 4]
    return h


def test_a_chain_of_ten_thousand_plans_little_and_a_second_one_nothing(planned):
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    want = chain(torch, torch.from_numpy(x), 10_000).numpy()
    for _ in range(2):
        np.testing.assert_allclose(chain(gt, gt.from_numpy(x), 10_000).numpy(), want, rtol=1e-4)
        assert sum(planned) < 800, planned
    assert len(planned) < 30


def test_a_short_loop_that_is_run_often_is_planned_whole(planned):
    graph_history.forget()
    x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    want, a, found = chain(torch, torch.from_numpy(x), 190).numpy(), gt.from_numpy(x), []
    for _ in range(flush.OFTEN + 3):
        np.testing.assert_allclose(chain(gt, a, 190).numpy(), want, rtol=1e-4)
        found.append(max(planned, default=0))
    assert found[0] == found[flush.OFTEN - 1] < 100 and found[-1] > 150
    before = len(planned)
    np.testing.assert_allclose(chain(gt, a + 1, 40).numpy(), chain(torch, torch.from_numpy(x) + 1, 40).numpy(), rtol=1e-4)
    assert len(planned) == before + 1  # which has a number of its own
    (whole,) = [told for told in graph_history.graphs() if told.name.startswith(flush.LOOP)]
    assert whole.recompiled is None  # it is no other work than its parts


def test_a_loop_that_was_run_in_parts_is_one_run_under_jit():
    def f(x):
        for _ in range(600):
            x = x + 1
        return x

    x = gt.zeros(4)
    x.numpy()
    np.testing.assert_array_equal(f(x).numpy(), np.full(4, 600))
    traced = gt.jit(f)
    for _ in range(5):
        np.testing.assert_array_equal(traced(x).numpy(), np.full(4, 600))
    np.testing.assert_array_equal((f(x) + 1).numpy(), np.full(4, 601))


MOVES = (
    lambda t, u, v, w, i: (u + v) * 0.5,
    lambda t, u, v, w, i: (u - w).tanh(),
    lambda t, u, v, w, i: u * (0.5 + i % 3),
    lambda t, u, v, w, i: (u @ w).sin(),
    lambda t, u, v, w, i: u.max(0)[0] + v * 0.25,
    lambda t, u, v, w, i: t.where(u > v, u, v - 0.1),
    lambda t, u, v, w, i: (u.t() * 0.9).t(),
    lambda t, u, v, w, i: u / (1 + u.abs().sum()),
)


def body_of(seed):
    """A loop made up: several carried values, with lags, numbers, constants, results kept now and then, changes in place, views."""

    def body(t, x, w, count):
        rng = random.Random(seed)
        ops = [rng.randrange(len(MOVES) + 1) for _ in range(rng.randint(1, 12))]
        picks = [(rng.randrange(3), rng.randrange(3)) for _ in ops]
        every = rng.choice([1, 2, 7, 1000])
        state, kept, total = [x, x * 0.5, w], [], t.zeros(4, 4)
        for i in range(count):
            for op, (a, b) in zip(ops, picks, strict=True):
                if op == len(MOVES):
                    total += state[a][1].clamp(-1, 1)
                else:
                    state[b] = MOVES[op](t, state[a], state[b], w, i)
            if i % every == 0:
                kept.append(state[0].sum())
        return [*state, total, t.stack(kept)]

    return body


@pytest.mark.parametrize("seed", range(6))
def test_loops_have_the_values_of_the_whole_and_parts_said_to_be_alike_are(seed, cuts, monkeypatch):
    values = [np.random.default_rng(k).standard_normal((4, 4)).astype(np.float32) for k in (1, 2)]
    body, count = body_of(seed), 300 + 17 * (seed % 5)

    def run():
        return [v.numpy() for v in body(gt, *map(gt.from_numpy, values), count)]

    with gt.no_grad():
        got = run()
        again = run()
    for code, outputs, parts in cuts:
        table = rounds._Table(code, outputs) if parts else None
        before = 0
        for part in parts:
            alone = table.part(part.start, part.stop, before)
            assert part == alone
            before = part.first
    monkeypatch.setattr(flush, "cut", lambda code, outputs: [])
    gt.disconnect()
    for a, b, c, d in zip(got, again, run(), body(torch, *map(torch.from_numpy, values), count), strict=True):
        np.testing.assert_array_equal(a, c)
        np.testing.assert_array_equal(b, c)
        np.testing.assert_allclose(a, d.numpy(), rtol=1e-3, atol=1e-4, equal_nan=True)


def test_made_up_loops_are_cut(cuts):
    x = gt.ones(4, 4)
    for seed in range(6):
        body_of(seed)(gt, x, x * 0.3, 1000)[0].numpy()
    assert sum(bool(parts) for _, _, parts in cuts) >= 2  # others index with tensors, and an index may be refused


def test_random_numbers_of_a_loop_are_those_of_rounds_alone():
    def walk(read):
        gt.manual_seed(3)
        h = gt.zeros(5)
        for i in range(600):
            h = h * 0.9 + gt.randn(5)
            if read and i % 50 == 0:
                h.numpy()
        return h.numpy()

    np.testing.assert_array_equal(walk(False), walk(True))


def test_a_step_with_a_gradient_and_layers_with_their_own_weights_stay_whole(planned):
    w = gt.ones(4, 4, requires_grad=True)
    h = gt.ones(2, 4)
    for _ in range(300):
        h = (h @ w).tanh() * 0.5
    h.sum().backward()
    assert w.grad.shape == (4, 4) and w.grad.numpy().any()
    assert len(planned) == 1
    layers = [gt.from_numpy(np.eye(4, dtype=np.float32)) for _ in range(300)]
    h = gt.ones(2, 4)
    for layer in layers:
        h = (h @ layer).tanh() * 0.5
    h.numpy()
    assert len(planned) == 2


def test_gradients_of_a_tape_longer_than_a_flush(planned):
    def slope(t):
        a = t.linspace(0.1, 0.9, 6).requires_grad_()
        h = a
        for _ in range(1500):
            h = (h * 1.001).sin() + a * 0.01
        h.sum().backward()
        return a.grad

    want = slope(torch).numpy()
    np.testing.assert_allclose(slope(gt).numpy(), want, rtol=1e-4)
    whole = len(planned)
    np.testing.assert_allclose(slope(gt).numpy(), want, rtol=1e-4)
    assert max(planned) < 1000 and len(planned) == whole


def test_what_a_loop_reads_is_left_alone_and_given_back():
    x = gt.from_numpy(np.full((3,), 2.0, np.float32))
    h = x
    for _ in range(2000):
        h = h * 1.0001 + x * 0.001
    first = h.numpy()
    h = x
    for _ in range(2000):
        h = h * 1.0001 + x * 0.001
    del x
    np.testing.assert_array_equal(h.numpy(), first)


def test_an_interrupted_wait_leaves_the_loop_pending(monkeypatch):
    session = sessions.current()
    x = gt.from_numpy(np.full((3,), 2.0, np.float32))

    def loop():
        h = x * 1.5
        for _ in range(1000):
            h = h * 0.999 + x
        return h

    want, h = loop().numpy(), loop()
    real, runs = session.run, []

    def run(*args):
        runs.append(args)
        if len(runs) == 5:
            with SHIELD.lifted():
                signal.raise_signal(signal.SIGINT)
        return real(*args)

    monkeypatch.setattr(session, "run", run)
    with pytest.raises(KeyboardInterrupt):
        h.numpy()
    np.testing.assert_array_equal(h.numpy(), want)
    np.testing.assert_array_equal(x.numpy(), [2, 2, 2])


def test_a_loop_under_jit_is_one_run():
    @gt.jit
    def loop(x):
        h = x
        for _ in range(600):
            h = h * 0.99 + x
        return h

    x = gt.ones(4)
    found = [loop(x).numpy() for _ in range(4)]
    want = torch.ones(4)
    for _ in range(600):
        want = want * 0.99 + 1
    for each in found:
        np.testing.assert_allclose(each, want.numpy(), rtol=1e-4)


def test_several_workers_and_threads(alone):
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    want = chain(torch, torch.from_numpy(x), 700).numpy()
    session = SimulatedSession(3)
    with sessions.pinned(session):
        np.testing.assert_allclose(chain(gt, gt.from_numpy(x), 700).numpy(), want, rtol=1e-4)
        assert len(session.runs) > 3
    found = {}

    def work(name):
        found[name] = chain(gt, gt.from_numpy(x), 2000 + name).numpy()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, got in found.items():
        np.testing.assert_allclose(got, chain(torch, torch.from_numpy(x), 2000 + name).numpy(), rtol=1e-4)
    assert len(found) == 3

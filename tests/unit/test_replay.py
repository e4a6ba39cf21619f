"""``gt.jit``: replayed calls equal recorded ones, and what a replay could get wrong is refused or found."""

from __future__ import annotations

import signal

import numpy as np
import pytest

import gt
import gt.nn.functional as F
from gt import session as sessions


def training(jit: bool, steps: int = 20, optimizer: str = "AdamW", **options: object) -> tuple[list[float], list[np.ndarray]]:
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Dropout(0.3), gt.nn.Linear(16, 4))
    optim = getattr(gt.optim, optimizer)(model.parameters(), lr=1e-2, **options)
    schedule = gt.optim.lr_scheduler.StepLR(optim, 5, 0.5)

    def step(x: gt.Tensor, y: gt.Tensor) -> gt.Tensor:
        optim.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optim.step()
        return loss

    call = gt.jit(step, check_every=7) if jit else step
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        losses.append(call(gt.from_numpy(rng.standard_normal((5, 8), np.float32)), gt.from_numpy(rng.integers(0, 4, 5))))
        schedule.step()
    if jit:
        assert call.replays > steps // 2
        (signature,) = call.signatures.values()
        assert len(signature.steps[0].donated) >= 4, "parameters and their state are updated in place"
    return [loss.item() for loss in losses], [t.numpy() for p in model.parameters() for t in (p.detach(), p.grad)]


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [("AdamW", {}), ("Adam", {"amsgrad": True}), ("SGD", {"momentum": 0.9, "nesterov": True}), ("SGD", {}), ("NAdam", {}),
     ("RAdam", {}), ("RMSprop", {}), ("Adagrad", {}), ("Lion", {})],
)  # fmt: skip
def test_training_is_bit_equal_to_training_without_it(optimizer, options):
    alone, replayed = (training(jit, optimizer=optimizer, **options) for jit in (False, True))
    assert replayed[0] == alone[0]
    for a, b in zip(alone[1], replayed[1], strict=True):
        np.testing.assert_array_equal(a, b)


def test_gradients_accumulate_and_zero_grad_may_come_last():
    def train(jit):
        w = gt.ones(3, requires_grad=True)
        optim = gt.optim.SGD([w], lr=0.1)

        def step(x):
            for part in x.split(2):
                (w * part).square().sum().backward()
            optim.step()
            optim.zero_grad()
            return w.detach() * 1

        call = gt.jit(step) if jit else step
        return [call(gt.full((4, 3), i / 10)) for i in range(8)]

    for a, b in zip(train(False), train(True), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_arguments_are_written_in_place_and_earlier_results_stay():
    @gt.jit
    def put(cache, at, value):
        cache += value
        return cache.sum(), {"last": [value * 2]}

    cache = gt.zeros(4)
    held = []
    for i in range(8):
        total, rest = put(cache, 1, gt.full((4,), float(i)))
        held.append((total, rest["last"][0]))
    assert put.replays == 6
    assert cache.tolist() == [28.0] * 4
    assert [t.item() for t, _ in held] == [4.0 * sum(range(i + 1)) for i in range(8)]
    assert [v[0].item() for _, v in held] == [2.0 * i for i in range(8)]


def test_a_value_held_elsewhere_is_not_overwritten():
    w = gt.zeros(2)
    other = gt.zeros(2)

    @gt.jit
    def step():
        w.add_(1)
        return w * 1

    seen = []
    for i in range(8):
        step()
        if i % 2:
            other.data = w
            seen.append(other)
            other = gt.zeros(2)
    assert [t[0].item() for t in seen] == [2.0, 4.0, 6.0, 8.0]
    assert w.tolist() == [8.0, 8.0]


def test_another_shape_value_or_mode_is_recorded_anew():
    traced = []

    @gt.jit
    def f(x, scale=1.0):
        traced.append(tuple(x.shape))
        return x * scale

    for n in (2, 3):
        for _ in range(4):
            assert f(gt.ones(n)).tolist() == [1.0] * n
    for _ in range(4):
        assert f(gt.ones(2), scale=3.0).tolist() == [3.0, 3.0]
    with gt.no_grad():
        f(gt.ones(2))
    gt.set_float32_matmul_precision("high")
    try:
        f(gt.ones(2))
    finally:
        gt.set_float32_matmul_precision("highest")
    assert traced == [(2,)] * 2 + [(3,)] * 2 + [(2,)] * 2 + [(2,)] * 2


def test_a_function_that_comes_to_do_something_else_is_found_at_a_check():
    state = {"relu": False, "factor": 2.0}

    @gt.jit(check_every=5)
    def f(x):
        x = x * state["factor"]
        return x.relu() if state["relu"] else x.tanh()

    for _ in range(4):
        f(gt.ones(2))
    state["relu"] = True
    with pytest.raises(gt.JitMismatch, match=r"is relu on .*test_replay.py.*; what was replayed had tanh"):
        f(gt.ones(2))
    for _ in range(4):
        assert f(gt.ones(2)).tolist() == [2.0, 2.0]
    state["factor"] = 3.0
    with pytest.raises(gt.JitMismatch, match="a number is 3.0; what was replayed had 2.0"):
        f(gt.ones(2))
    assert f(gt.ones(2)).tolist() == [3.0, 3.0]


def test_reading_inside_is_refused_at_the_line():
    @gt.jit
    def f(x):
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(gt.JitError, match="a value is read inside"):
        f(gt.ones(2))
    assert (gt.ones(2) + 1).tolist() == [2.0, 2.0]


def test_random_numbers_go_on_as_without_it():
    def draw(jit):
        gt.manual_seed(3)
        f = gt.jit(lambda x: x + gt.rand(3)) if jit else lambda x: x + gt.rand(3)
        return [f(gt.zeros(3)).tolist() for _ in range(6)] + [gt.rand(2).tolist()]

    assert draw(True) == draw(False)


def test_methods_views_results_that_are_arguments_and_nesting():
    class Counter:
        def __init__(self):
            self.n = gt.zeros(())

        @gt.jit
        def tick(self, x):
            self.n += 1
            return inner(x), x, self.n

    inner = gt.jit(lambda x: x * 2)
    counter, grid = Counter(), gt.arange(6.0).reshape(2, 3)
    for i in range(6):
        doubled, same, n = counter.tick(grid[1])
        assert doubled.tolist() == [6.0, 8.0, 10.0] and same.tolist() == [3.0, 4.0, 5.0]
        assert n.item() == counter.n.item() == i + 1
    with pytest.raises(gt.JitError, match="view was written"):
        gt.jit(lambda x: x.add_(1))(grid[0])


def test_unhashable_arguments_and_aliases():
    with pytest.raises(gt.JitError, match="hashed"):
        gt.jit(lambda x, y: x)(gt.ones(1), {1, 2})
    add = gt.jit(lambda x, y: x + y)
    a, b = gt.ones(1), gt.full((1,), 5.0)
    for _ in range(4):
        assert add(a, a).item() == 2.0
    for _ in range(4):
        assert add(a, b).item() == 6.0


def test_gradients_made_inside_and_used_outside():
    def train(jit):
        gt.manual_seed(0)
        model = gt.nn.Linear(4, 2)
        optim = gt.optim.SGD(model.parameters(), lr=0.1)

        def backward(x):
            loss = model(x).square().mean()
            loss.backward()
            return loss

        call = gt.jit(backward) if jit else backward
        losses = []
        for i in range(10):
            if i % 2:
                optim.zero_grad()  # every other time they accumulate
            losses.append(call(gt.full((3, 4), 1.0 + i)).item())
            optim.step()
        for _ in range(6):
            model.zero_grad()
            losses.append(call(gt.ones(3, 4)).item())
            gt.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optim.step()
        return losses

    assert train(True) == train(False)


def test_gradients_of_arguments_and_steps_alone():
    w = gt.ones(2, requires_grad=True)
    optim = gt.optim.SGD([w], lr=1.0)
    step, double = gt.jit(optim.step), gt.jit(lambda x: (x * 2).sum().backward())
    for i in range(6):
        x = gt.full((2,), float(i), requires_grad=True)
        double(x)
        assert x.grad.tolist() == [2.0, 2.0]
        w.grad = x.grad
        step()
    assert w.tolist() == [-11.0, -11.0]
    assert double.replays >= 3


def test_tensors_that_come_to_share_a_buffer_are_told_apart():
    a, b = gt.ones(1), gt.zeros(1)
    f = gt.jit(lambda: a + 10 * b)
    b[:] = a
    for _ in range(4):
        assert f().item() == 11.0
    a.add_(1)
    assert f().item() == 12.0
    p, q = gt.zeros(1), gt.zeros(1)

    @gt.jit
    def both(x):
        p.add_(1)
        return x + 0

    for i in range(4):
        assert both(p).item() == i + 1
    assert both(q).item() == 0.0 and p.item() == 5.0


def test_other_parameters_state_or_modes_are_recorded_anew():
    model = gt.nn.Sequential(gt.nn.Linear(2, 2), gt.nn.BatchNorm1d(2), gt.nn.Dropout(0.5))
    f = gt.jit(lambda x: model(x))
    x = gt.randn(4, 2)
    for _ in range(4):
        f(x)
    assert f.replays >= 1
    model.eval()
    assert gt.equal(f(x), model(x))
    model[0].weight = gt.nn.Parameter(gt.zeros(2, 2))
    assert gt.equal(f(x), model(x))
    assert gt.jit(lambda x, y: x * y)(gt.ones(1), -0.0).signbit().item()

    w = gt.ones(1, requires_grad=True)
    optim = gt.optim.SGD([w], lr=1.0, momentum=0.5)

    def plain():
        optim.zero_grad()
        w.sum().backward()
        optim.step()

    step = gt.jit(plain)
    for _ in range(4):
        step()
    before, state = w.item(), optim.state_dict()
    state["state"][0]["momentum_buffer"] = gt.zeros(1)
    optim.load_state_dict(state)
    step()
    assert w.item() == before - 1.0


def test_a_schedule_inside_is_refused():
    w = gt.ones(1, requires_grad=True)
    optim = gt.optim.SGD([w], lr=1.0)
    schedule = gt.optim.lr_scheduler.StepLR(optim, 5)
    w.sum().backward()

    @gt.jit
    def step():
        optim.step()
        schedule.step()

    with pytest.raises(gt.JitError, match="schedule steps inside"):
        step()


def test_a_replay_whose_wait_is_ended_by_a_signal_counts_no_step_and_draws_no_number():
    class Told(BaseException):
        pass

    def tell(number, frame):
        raise Told

    def train(disturbed):
        gt.manual_seed(0)
        model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.Dropout(0.3), gt.nn.Linear(16, 4))
        optim = gt.optim.NAdam(model.parameters(), lr=1e-2)

        @gt.jit
        def step(x):
            optim.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optim.step()
            return loss

        x, window = gt.ones(5, 8), sessions.current()._window
        for turn in range(12):
            loss = step(x)
            if disturbed and turn > 6:
                loss.item()  # all runs are over
                taken = sum([1 for _ in iter(window.take, False)])
                with pytest.raises(Told):
                    signal.setitimer(signal.ITIMER_REAL, 0.02)
                    step(x)
                window.give(taken)
        assert step.replays > 6
        return loss.item(), [count["step"] for count in optim.state.values()], [p.tolist() for p in model.parameters()]

    before = signal.signal(signal.SIGALRM, tell)
    try:
        assert train(True) == train(False)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_what_is_no_function_and_no_number_of_calls_is_told_at_once():
    with pytest.raises(TypeError, match=r"gt.jit: expected a function, got 50; how often it checks itself is gt.jit\(check_every=...\)"):
        gt.jit(50)
    for kind, wrong in ((ValueError, 0), (ValueError, 1.5), (TypeError, "x"), (TypeError, None)):
        with pytest.raises(kind, match=f"check_every is a number of calls from 1 up, got {wrong!r}"):
            gt.jit(check_every=wrong)(lambda x: x)

"""``gt.jit``: replayed calls equal recorded ones, and what a replay could get wrong is refused or found."""

from __future__ import annotations

import numpy as np
import pytest

import gt
import gt.nn.functional as F


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

"""LBFGS: steps along directions from past gradients, with or without a line search. Source: torch.optim, after minFunc.

Reads the loss, and a few numbers for each iteration, to decide how to go on: two runs an iteration, on shapes that recur. Next: ``optimizer``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gt.autograd import enable_grad, no_grad
from gt.functions import create
from gt.functions.shape import cat
from gt.handle import Handle
from gt.optim.optimizer import Optimizer, check
from gt.optim.parameter_state import number
from gt.trace import state

Evaluate = Callable[[float], tuple[float, Any, float]]
ROOM = (4, 16, 64, *(2**n for n in range(8, 32, 2)))  # how long a history is made


class LBFGS(Optimizer):
    """Limited-memory BFGS over one group of parameters; ``step`` needs a closure that computes the loss and its gradients."""

    _takes_complex = False

    def __init__(
        self, params: Iterable[Any], lr: Any = 1, max_iter: int = 20, max_eval: int | None = None, tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9, history_size: int = 100, line_search_fn: str | None = None,
    ) -> None:  # fmt: skip
        check(lr)
        defaults = {
            "lr": lr, "max_iter": max_iter, "max_eval": max_iter * 5 // 4 if max_eval is None else max_eval, "tolerance_grad": tolerance_grad,
            "tolerance_change": tolerance_change, "history_size": history_size, "line_search_fn": line_search_fn,
        }  # fmt: skip
        super().__init__(params, defaults)
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")
        self._params = self.param_groups[0]["params"]
        self._padding: list[tuple[Any, Any, Any]] = []

    def _flat_gradient(self) -> Any:
        return cat([(p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1)) for p in self._params]).clone()

    def _move(self, size: float, direction: Any) -> None:
        at = 0
        for p in self._params:
            p.add_(direction[at : at + p.numel()].view_as(p) * size)
            at += p.numel()

    def _change(self, own: dict[str, Any], g: Any) -> tuple[Any, Any, Any, float]:
        """Give the gradient's change over the last step, that step, and their product, which this reads."""
        change, moved = g - own["prev_flat_grad"], own["d"] * own["t"]
        product = change.dot(moved)
        return change, moved, product, number(product)

    def _direction(self, own: dict[str, Any], g: Any, latest: tuple[Any, Any, Any, float] | None, history: int) -> Any:
        """Give the next direction, and keep the latest pair of a step and the gradient's change."""
        own["n_iter"] += 1
        if latest is None:
            own.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0)
            return -g
        change, moved, product, size = latest
        if size > 1e-10:
            if len(own["old_dirs"]) == history:
                for name in ("old_dirs", "old_stps", "ro"):
                    own[name].pop(0)
            own["old_dirs"].append(change)
            own["old_stps"].append(moved)
            own["ro"].append(1.0 / product)
            own["H_diag"] = product / change.dot(change)
        kept = list(zip(own["old_dirs"], own["old_stps"], own["ro"], strict=True))
        pairs = self._zeros(g, min(history, next(n for n in ROOM if n >= len(kept) or n > history)) - len(kept)) + kept
        q, shares = -g, []
        for y, s, r in reversed(pairs):
            shares.append(s.dot(q) * r)
            q = q - y * shares[-1]
        d = q * own["H_diag"]
        for (y, s, r), share in zip(pairs, reversed(shares), strict=True):
            d = d + s * (share - y.dot(d) * r)
        return d

    def _zeros(self, g: Any, count: int) -> list[tuple[Any, Any, Any]]:
        """Give pairs that change no direction: histories of a few lengths are graphs of a few kinds."""
        while len(self._padding) < count:
            self._padding.append((g.new_zeros(g.shape), g.new_zeros(g.shape), g.new_zeros(())))
        return self._padding[:count]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Iterate until a tolerance or ``max_iter`` or ``max_eval`` is reached. Gives the loss before."""
        if closure is None:
            raise TypeError("LBFGS.step() missing 1 required positional argument: 'closure'")
        if state.recorder is not None:
            raise NotImplementedError("LBFGS reads its loss, so gt.jit cannot replay its step: call it outside")
        for hook in list(self._hooks["step_pre"].values()):
            hook(self, (closure,), {})
        with no_grad():
            loss = self._iterate(closure)
        self._opt_called = True
        for hook in list(self._hooks["step_post"].values()):
            hook(self, (closure,), {})
        return loss

    def _iterate(self, closure: Callable[[], Any]) -> Any:
        group = self.param_groups[0]
        lr, tolerance = number(group["lr"]), group["tolerance_change"]
        own = self.state[self._params[0]]
        own.setdefault("func_evals", 0)
        own.setdefault("n_iter", 0)
        evaluate = enable_grad()(closure)
        # What is read together is computed together: each round of reads is one run, and they recur.
        first = evaluate()
        evaluations, g = 1, self._flat_gradient()
        own["func_evals"] += 1
        steep, latest = g.abs().max(), self._change(own, g) if own["n_iter"] else None
        loss = float(first)
        if number(steep) <= group["tolerance_grad"]:
            return first
        for iteration in range(1, group["max_iter"] + 1):
            own["d"] = d = self._direction(own, g, latest, group["history_size"])
            own["prev_flat_grad"], own["prev_loss"] = g, loss
            rises, total, reach = g.dot(d), g.abs().sum(), d.abs().max()
            slope = number(rises)
            own["t"] = min(1.0, 1.0 / number(total)) * lr if own["n_iter"] == 1 else lr
            if slope > -tolerance:
                break
            used = 0
            if group["line_search_fn"] is not None:
                if group["line_search_fn"] != "strong_wolfe":
                    raise RuntimeError("only 'strong_wolfe' is supported")
                start = [p.clone() for p in self._params]
                along = lambda t, d=d, start=start: self._evaluate(evaluate, start, t, d)  # noqa: E731
                loss, g, own["t"], used = strong_wolfe(
                    along, own["t"], number(reach), loss, g, slope, tolerance, group["max_eval"] - evaluations
                )
                self._move(own["t"], d)
                steep, latest = g.abs().max(), self._change(own, g)
            else:
                self._move(own["t"], d)
                if iteration != group["max_iter"]:
                    after, g, used = evaluate(), self._flat_gradient(), 1
                    steep, latest = g.abs().max(), self._change(own, g)
                    loss = float(after)
            evaluations += used
            own["func_evals"] += used
            if (
                iteration == group["max_iter"]
                or evaluations >= group["max_eval"]
                or number(steep) <= group["tolerance_grad"]
                or number(reach) * abs(own["t"]) <= tolerance
                or abs(loss - own["prev_loss"]) < tolerance
            ):
                break
        return first

    def _evaluate(self, closure: Callable[[], Any], start: list[Any], t: float, d: Any) -> tuple[float, Any, float]:
        """Give loss, gradient and slope a step away, and go back."""
        self._move(t, d)
        loss, g = closure(), self._flat_gradient()
        slope = g.dot(d)
        for p, value in zip(self._params, start, strict=True):
            p.copy_(value)
        return float(loss), g, number(slope)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, here or in torch."""
        super().load_state_dict(state_dict)
        self._params = self.param_groups[0]["params"]
        for own in self.state.values():
            for name in ("old_dirs", "old_stps", "ro"):
                own[name] = [_here(v) for v in own.get(name, [])]
            own.pop("al", None)
            for name in ("t", "prev_loss"):
                if name in own:
                    own[name] = number(own[name])


def _here(value: Any) -> Any:
    return create.tensor(value) if hasattr(value, "__array__") and not isinstance(value, Handle) else value


def interpolate(a: tuple[float, float, float], b: tuple[float, float, float], bounds: tuple[float, float] | None = None) -> float:
    """Give where the cubic through two (position, value, slope) is least, within bounds."""
    (x1, f1, g1), (x2, f2, g2) = a, b
    low, high = bounds if bounds is not None else (min(x1, x2), max(x1, x2))
    d1 = g1 + g2 - 3 * (f1 - f2) / (x1 - x2)
    square = d1**2 - g1 * g2
    if not square >= 0:
        return (low + high) / 2.0
    d2 = square**0.5
    at = (
        x2 - (x2 - x1) * ((g2 + d2 - d1) / (g2 - g1 + 2 * d2))
        if x1 <= x2
        else x1 - (x1 - x2) * ((g1 + d2 - d1) / (g1 - g2 + 2 * d2))
    )
    return min(max(at, low), high)


def strong_wolfe(
    evaluate: Evaluate,
    t: float,
    reach: float,
    f: float,
    g: Any,
    slope: float,
    tolerance: float,
    most: int,
    c1: float = 1e-4,
    c2: float = 0.9,
) -> tuple[float, Any, float, int]:
    """Give (loss, gradient, step, evaluations) at a step that meets the strong Wolfe conditions, or the best one found. ``reach``: how far a step of 1 goes."""
    at = lambda t: (t, *evaluate(t))  # noqa: E731 - (step, loss, gradient, slope)
    new, evaluations, previous = at(t), 1, (0.0, f, g, slope)
    done, searched = False, 0
    bracket: list[Any] = []
    while searched < most:
        t = new[0]
        if new[1] > f + c1 * t * slope or (searched > 1 and new[1] >= previous[1]):
            bracket = [previous, new]
            break
        if abs(new[3]) <= -c2 * slope:
            bracket, done = [new], True
            break
        if new[3] >= 0:
            bracket = [previous, new]
            break
        limits = (t + 0.01 * (t - previous[0]), t * 10)
        following = interpolate((previous[0], previous[1], previous[3]), (t, new[1], new[3]), limits)
        previous, new = new, at(following)
        evaluations += 1
        searched += 1
    if searched == most:
        bracket = [(0.0, f, g, slope), new]
    low, high = (0, 1) if bracket[0][1] <= bracket[-1][1] else (1, 0)
    slow = False
    while not done and searched < most and abs(bracket[1][0] - bracket[0][0]) * reach >= tolerance:
        ends = sorted((bracket[0][0], bracket[1][0]))
        a, b = ((v[0], v[1], v[3]) for v in bracket)
        t = interpolate(a, b)
        margin = 0.1 * (ends[1] - ends[0])
        if min(ends[1] - t, t - ends[0]) < margin:  # too near an end: once is allowed
            if slow or t >= ends[1] or t <= ends[0]:
                t = ends[1] - margin if abs(t - ends[1]) < abs(t - ends[0]) else ends[0] + margin
                slow = False
            else:
                slow = True
        else:
            slow = False
        new = at(t)
        evaluations += 1
        searched += 1
        if new[1] > f + c1 * t * slope or new[1] >= bracket[low][1]:
            bracket[high] = new
            low, high = (0, 1) if bracket[0][1] <= bracket[1][1] else (1, 0)
        else:
            if abs(new[3]) <= -c2 * slope:
                done = True
            elif new[3] * (bracket[high][0] - bracket[low][0]) >= 0:
                bracket[high] = bracket[low]
            bracket[low] = new
    best = bracket[low if len(bracket) > 1 else 0]
    return best[1], best[2], best[0], evaluations

"""``GradScaler``: losses scaled up so that float16 gradients do not vanish. Source: torch.amp.GradScaler. Next: ``amp``."""

from __future__ import annotations

from typing import Any

from gt.functions.reduce import all as all_
from gt.grad_mode import no_grad
from gt.handle import Handle


class GradScaler:
    """Scales losses, and skips steps whose gradients overflowed, after which the scale falls; it grows while all goes well.

    ``step`` reads whether gradients are finite. bfloat16 needs none of this.
    """

    def __init__(
        self, device: str = "cuda", init_scale: float = 2.0**16, growth_factor: float = 2.0, backoff_factor: float = 0.5,
        growth_interval: int = 2000, enabled: bool = True,
    ) -> None:  # fmt: skip
        if enabled and growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if enabled and backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._enabled, self._scale, self._tracker = enabled, float(init_scale), 0
        self._growth, self._backoff, self._interval = growth_factor, backoff_factor, growth_interval
        self._finite: dict[int, Any] = {}  # of optimizers whose gradients were unscaled since the last update
        self._stepped: set[int] = set()
        self._used = False  # whether a loss was scaled

    def is_enabled(self) -> bool:
        """Say whether losses are scaled."""
        return self._enabled

    def get_scale(self) -> float:
        """Give the scale, 1 if it is not enabled."""
        return self._scale if self._enabled else 1.0

    def scale(self, outputs: Any) -> Any:
        """Give a loss, or each of several, times the scale."""
        if not self._enabled:
            return outputs
        self._used = True
        if isinstance(outputs, Handle):
            return outputs * self._scale  # type: ignore[operator]
        return type(outputs)(self.scale(o) for o in outputs)

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, for example to clip them. Errors: RuntimeError if done before."""
        if not self._enabled:
            return
        self._check_used("unscale_")
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if id(optimizer) in self._finite:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        finite: Any = None
        with no_grad():
            for p in (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None):
                p.grad.mul_(1.0 / self._scale)
                fine = all_(p.grad.isfinite())
                finite = fine if finite is None else finite & fine
        self._finite[id(optimizer)] = finite

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Unscale gradients if that is not done, and step unless some are not finite. Reads whether they are."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._check_used("step")
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        if self._finite[id(optimizer)] is None:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        self._finite[id(optimizer)] = bool(self._finite[id(optimizer)])
        self._stepped.add(id(optimizer))
        return optimizer.step(*args, **kwargs) if self._finite[id(optimizer)] else None

    def update(self, new_scale: Any = None) -> None:
        """Lower the scale after gradients that were not finite, raise it after enough steps that were; or set it."""
        if not self._enabled:
            return
        self._check_used("update")
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            checks = [f for f in self._finite.values() if f is not None]
            if not checks:
                raise AssertionError("No inf checks were recorded prior to update.")
            if all(bool(f) for f in checks):
                self._tracker += 1
                if self._tracker == self._interval:
                    self._scale, self._tracker = self._scale * self._growth, 0
            else:
                self._scale, self._tracker = self._scale * self._backoff, 0
        self._finite, self._stepped = {}, set()

    def _check_used(self, name: str) -> None:
        if not self._used:
            raise AssertionError(
                f"Attempted {name} but _scale is None.  This may indicate your script did not use scaler.scale(loss or outputs) earlier in the "
                "iteration."
            )

    def get_growth_factor(self) -> float:
        return self._growth

    def get_backoff_factor(self) -> float:
        return self._backoff

    def get_growth_interval(self) -> int:
        return self._interval

    def state_dict(self) -> dict[str, Any]:
        """Give scale, factors and counts; nothing if it is not enabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale, "growth_factor": self._growth, "backoff_factor": self._backoff, "growth_interval": self._interval,
            "_growth_tracker": self._tracker,
        }  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, here or in torch."""
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._scale, self._growth = float(state_dict["scale"]), state_dict["growth_factor"]
        self._backoff, self._interval = state_dict["backoff_factor"], state_dict["growth_interval"]
        self._tracker = state_dict["_growth_tracker"]


__all__ = ["GradScaler"]

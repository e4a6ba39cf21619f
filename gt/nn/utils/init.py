"""``skip_init``: a module whose parameters are not drawn. Source: torch.nn.utils.init."""

from __future__ import annotations

from typing import Any

from gt.autograd import no_grad


def skip_init(module_cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Make a module with parameters that wait for values: zeros here."""
    module = module_cls(*args, **kwargs)
    with no_grad():
        for p in module.parameters():
            p.zero_()
    return module


__all__ = ["skip_init"]

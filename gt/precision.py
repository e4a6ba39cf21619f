"""How exactly float32 matrices are multiplied: torch's switch for TF32.

Owns: the choice, which every graph carries to its workers. Next: ``flush`` (which puts it there), ``gt.runtime.executor``.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from gt.ir.signals import PlanOptions, Precision
from gt.trace import settle, state

CHOICES = get_args(Precision)
_chosen: Precision = "highest"


def set_float32_matmul_precision(precision: Precision) -> None:
    """Multiply float32 matrices exactly ("highest"), or on a GPU faster with TF32 ("high") or bfloat16 ("medium").

    What was recorded before is computed as chosen before.
    """
    global _chosen
    if precision not in CHOICES:
        raise ValueError(f"set_float32_matmul_precision: expected one of {', '.join(CHOICES)}, got {precision!r}")
    if precision != _chosen:
        settle(state.trace, "matmul precision changed")
        _chosen = precision


def get_float32_matmul_precision() -> Precision:
    """Give how exactly float32 matrices are multiplied: "highest", "high" or "medium"."""
    return _chosen


def with_precision(options: PlanOptions) -> PlanOptions:
    """Give the options of a graph with the choice in them."""
    return options if options.float32_matmul == _chosen else msgspec.structs.replace(options, float32_matmul=_chosen)

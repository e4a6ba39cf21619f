"""Runs the rendered torch expression of one op on arrays, as a worker would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gt.ir.opdef import OpDef
from gt.ir.types import DType, TensorType
from gt.runtime import kernels
from gt.runtime.render import expression


def tensor(array: np.ndarray, dtype: DType) -> torch.Tensor:
    return torch.from_numpy(np.array(array)).to(getattr(torch, dtype.name))


def array(t: torch.Tensor) -> np.ndarray:
    t = t.detach().resolve_conj().cpu()
    return (t.to(torch.float32) if t.dtype is torch.bfloat16 else t).numpy()


def function(
    op: OpDef, count: int, attrs: dict[str, Any], types: Sequence[TensorType], overwrites: bool = False
) -> Any:
    """Make a Python function of the rendered expression. The global ``device`` is the CPU."""
    names = tuple(f"v{i}" for i in range(count))
    source = f"def region({', '.join(names)}):\n    return {expression(op, names, attrs, tuple(types), overwrites)}\n"
    scope: dict[str, Any] = {"torch": torch, "kernels": kernels, "device": torch.device("cpu")}
    exec(source, scope)  # noqa: S102 - the source is the op table's own
    return scope["region"]


def run(
    op: OpDef,
    tensors: Sequence[torch.Tensor],
    attrs: dict[str, Any],
    types: Sequence[TensorType],
    overwrites: bool = False,
) -> list[torch.Tensor]:
    """Evaluate the expression; one result or several as a list."""
    out = function(op, len(tensors), attrs, types, overwrites)(*tensors)
    if len(types) > 1 or isinstance(out, tuple):
        assert isinstance(out, tuple), f"{op.name} gave no tuple"
        return list(out)
    return [out]

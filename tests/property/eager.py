"""An emitter that runs each op at once on NumPy: op functions (vjps, decompositions) as plain functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gt.ir.evaluate import as_dtype, evaluate_node
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef, emitting
from gt.ir.types import DType, TensorType
from gt.passes.autodiff import backpropagate


class Array:
    """An array with its declared type."""

    def __init__(self, data: np.ndarray, type_: TensorType) -> None:
        self.data, self.type = data, type_


class _Step:
    def __init__(self, op: OpDef, attrs: Attrs, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        self.op, self.attrs, self.inputs, self.outputs = op, attrs, inputs, outputs


class Eager:
    """Runs ops as they are emitted; a decomposed op runs through its decomposition if ``decompose``."""

    def __init__(self, decompose: bool = False) -> None:
        self.decompose = decompose

    def emit(self, op: OpDef, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        types = op.infer_types(tuple(v.type for v in inputs), attrs)
        if self.decompose and op.decompose is not None:
            out = op.decompose(tuple(inputs), dict(attrs))
            out = out if isinstance(out, tuple | list) else (out,)
            for made, want in zip(out, types, strict=True):
                assert made.type is want, f"{op.name} decomposes to {made.type}, {want} is declared"
            return tuple(out)
        return tuple(map(Array, evaluate_node(op, [v.data for v in inputs], attrs, types), types))

    def constant(self, value: bool | int | float, dtype: DType) -> Array:
        return Array(as_dtype(np.asarray(value), dtype), TensorType((), dtype))


def call(
    op: OpDef, arrays: Sequence[np.ndarray], types: Sequence[TensorType], attrs: dict[str, Any], decompose: bool = False
) -> list[np.ndarray]:
    """Run one op."""
    emitter = Eager(decompose)
    with emitting(emitter):
        return [
            o.data
            for o in emitter.emit(op, [Array(a, t) for a, t in zip(arrays, types, strict=True)], tuple(attrs.items()))
        ]


def gradients(
    op: OpDef,
    arrays: Sequence[np.ndarray],
    types: Sequence[TensorType],
    attrs: dict[str, Any],
    weights: Sequence[np.ndarray | None],
) -> list[np.ndarray | None]:
    """Give the gradient of sum(weight * result) for each operand (None where there is none) through the op's vjp."""
    emitter = Eager()
    with emitting(emitter):
        inputs = [Array(a, t) for a, t in zip(arrays, types, strict=True)]
        outputs = emitter.emit(op, inputs, tuple(attrs.items()))
        seeds = {o: Array(w, o.type) for o, w in zip(outputs, weights, strict=True) if w is not None}
        found = backpropagate([_Step(op, tuple(attrs.items()), inputs, outputs)], seeds, inputs, lambda v: v)
    return [found[x].data if x in found else None for x in inputs]


class Recorded(Eager):
    """Keeps what it ran, for ``backpropagate``."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[_Step] = []

    def emit(self, op: OpDef, inputs: Sequence[Array], attrs: Attrs) -> tuple[Array, ...]:
        outputs = super().emit(op, inputs, attrs)
        self.steps.append(_Step(op, attrs, inputs, outputs))
        return outputs

"""Runs nodes and graphs on NumPy: the reference meaning of everything.

Owns: ``evaluate_node``, ``evaluate``, rounding to declared dtypes, and the wire form of arrays. Must not know: workers.
Next: ``ops`` (what each op computes), ``gt.passes.simulate`` (all workers' programs in one process).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.ir.graph import Attrs, AttrValue, Graph, Node, Value
from gt.ir.opdef import OpDef
from gt.ir.types import DType, Scalar, Shape, TensorType, bfloat16, float16

if TYPE_CHECKING:  # loading it takes long
    from numpy.typing import NDArray

    Array = NDArray[Any]


def round_bfloat16(x: Array) -> Array:
    """Round float32 to the 8 significant bits of bfloat16, ties to even."""
    x = np.ascontiguousarray(x, np.float32).reshape(np.shape(x))
    bits = x.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), x, rounded.view(np.float32))


def as_dtype(x: Any, dtype: DType) -> Array:
    """Convert a result to its declared dtype, rounding as torch does: float64 to halves by way of float32."""
    x = np.asarray(x)
    with np.errstate(all="ignore"):
        if dtype is bfloat16:
            return round_bfloat16(x.astype(np.float32, copy=False))
        if dtype is float16 and x.dtype == np.float64:
            x = x.astype(np.float32)
        return x.astype(dtype.numpy, copy=False)


def evaluate_node(
    op: OpDef, arrays: Sequence[Array], attrs: Attrs | Mapping[str, AttrValue], out_types: Sequence[TensorType]
) -> tuple[Array, ...]:
    """Run one op on arrays. Gives its results in the declared dtypes; they may share memory with the operands."""
    if op.numpy is None:
        hint = ": autodiff expands it first" if op.effect == "grad" else ""
        raise NotImplementedError(f"{op.name} has no NumPy meaning{hint}")
    with np.errstate(all="ignore"):
        out = op.numpy(*arrays, **dict(attrs))
        results = out if isinstance(out, tuple) else (out,)
        assert len(results) == len(out_types), f"{op.name} gave {len(results)} results, {len(out_types)} are declared"
        made = tuple(as_dtype(r, t.dtype) for r, t in zip(results, out_types, strict=True))
    for array, type_ in zip(made, out_types, strict=True):
        assert array.shape == type_.shape, f"{op.name} gave shape {array.shape}, {type_!r} is declared"
    return made


def evaluate(
    graph: Graph,
    inputs: Sequence[Array],
    scalars: Sequence[Scalar] = (),
    seen: Callable[[Node, list[Array], tuple[Array, ...]], None] | None = None,
) -> list[Array]:
    """Run a GLOBAL graph. ``inputs`` are in NumPy form (bfloat16 as float32). Outputs own their memory. ``seen`` is shown each op with
    its operands and results.
    """
    assert len(inputs) == len(graph.inputs) and len(scalars) == len(graph.scalars), "inputs or scalars are missing"
    values: dict[Value, Array] = {}
    for value, array in zip(graph.inputs, inputs, strict=True):
        assert array.shape == value.type.shape, f"input {value!r} was given shape {array.shape}"
        values[value] = as_dtype(array, value.type.dtype)
    for value, scalar in zip(graph.scalars, scalars, strict=True):
        with np.errstate(all="ignore"):
            values[value] = as_dtype(np.asarray(scalar), value.type.dtype)
    last = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    kept = set(graph.outputs)
    for i, node in enumerate(graph.nodes):
        arrays = [values[v] for v in node.inputs]
        made = evaluate_node(node.op, arrays, node.attrs, [o.type for o in node.outputs])
        if seen is not None:
            seen(node, arrays, made)
        values.update(zip(node.outputs, made, strict=True))
        for value in set(node.inputs):
            if last[value] == i and value not in kept:
                del values[value]
    return [np.array(values[v]) for v in graph.outputs]


# -- the wire form: NumPy's own, and uint16 for bfloat16


def to_wire(array: Array, dtype: DType) -> Array:
    """Give the wire form of an array in NumPy form, C-contiguous."""
    array = np.asarray(array)
    if dtype is bfloat16:
        array = (round_bfloat16(array).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    else:
        array = array.astype(dtype.numpy, copy=False)
    return np.ascontiguousarray(array).reshape(array.shape)


def from_wire(data: Any, shape: Shape, dtype: DType) -> Array:
    """Give the NumPy form of wire data: an array in wire form or a buffer of its bytes. May share its memory."""
    storage = np.dtype(np.uint16) if dtype is bfloat16 else dtype.numpy
    wire = data if isinstance(data, np.ndarray) and data.dtype == storage else np.frombuffer(data, storage)
    wire = wire.reshape(shape)
    if dtype is not bfloat16:
        return wire
    return (wire.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(shape)


__all__ = ["as_dtype", "evaluate", "evaluate_node", "from_wire", "round_bfloat16", "to_wire"]

"""The local placement ops: NumPy and rendered torch agree, for every dtype; what collectives send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.evaluate import evaluate_node
from gt.ir.graph import Node, Value
from gt.ir.mesh import Mesh, Sharding
from gt.ir.opdef import OPS
from gt.ir.ops import collective
from gt.ir.types import DType, TensorType, bool_, complex64, float32, float64, int8, int64, uint8

DTYPES = (bool_, uint8, int8, int64, float32, float64, complex64)
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("shard_slice", {"axes": ("w",), "dim": 0, "start": 2, "size": 2}),
    ("shard_slice", {"axes": ("w",), "dim": 1, "start": 0, "size": 3}),
    ("partial_from_whole", {"axes": ("w",), "index": 0}),
    ("partial_from_whole", {"axes": ("w",), "index": 2}),
    ("partial_from_part", {"axes": ("w",), "dim": 0, "start": 4, "whole": 12}),
    ("partial_from_part", {"axes": ("w",), "dim": 1, "start": 0, "whole": 6}),
    ("partial_from_part", {"axes": ("w",), "dim": 1}),
    ("pad_end", {"dim": 0, "size": 6}),
    ("pad_end", {"dim": 1, "size": 5}),
    ("dense", {}),
    ("unpad", {"dim": 1, "size": 2}),
    *(
        ("mask_pad", {"dim": dim, "reduce": reduce, "start": start, "size": 5})
        for reduce in ("sum", "max", "min") for dim, start in ((0, 0), (0, 3), (1, 4), (0, 9))
    ),
]  # fmt: skip


def torch_result(name: str, attrs: dict[str, Any], x: np.ndarray, out: TensorType) -> torch.Tensor:
    source = OPS[name].torch
    text = source.format(x="x", **attrs) if isinstance(source, str) else source(("x",), attrs, (out,))  # type: ignore[misc]
    return eval(text, {"torch": torch, "x": torch.from_numpy(x)})  # noqa: S307


@pytest.mark.parametrize(("name", "attrs"), CALLS)
@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_numpy_equals_torch(name: str, attrs: dict[str, Any], dtype: DType) -> None:
    if dtype is complex64 and attrs.get("reduce") in ("max", "min"):
        return  # complex numbers have no order
    x = np.arange(12).reshape(4, 3).astype(dtype.numpy)
    types = OPS[name].infer_types((TensorType(x.shape, dtype),), tuple(attrs.items()))
    (want,) = evaluate_node(OPS[name], [x], attrs, types)
    got = torch_result(name, attrs, x, types[0])
    assert str(got.dtype) == f"torch.{dtype.name}"
    np.testing.assert_array_equal(got.numpy(), want)


def test_masks_fill_with_the_identity() -> None:
    assert collective.identity_of("sum", float32) == 0 and collective.identity_of("max", float32) == -np.inf
    assert collective.identity_of("max", int8) == -128 and collective.identity_of("min", uint8) == 255
    assert collective.identity_of("max", bool_) is False and collective.identity_of("min", bool_) is True


def test_what_a_node_sends() -> None:
    mesh = Mesh("grid", (("a", 2), ("b", 4)), tuple(range(8)))
    x = Value(TensorType((16, 8), float32, Sharding(mesh, (("a",), ("b",)))))
    y = Value(TensorType((16, 8), float32, Sharding(mesh, (("a",), ()))))
    gather = Node(collective.all_gather, (x,), (y,), (("axes", ("b",)), ("dim", 1)))
    assert collective.node_bytes(gather) == 16 * 8 * 4 // 2 * 3 // 4  # of the half that this row of the mesh holds
    assert collective.node_bytes(Node(OPS["neg"], (x,), (x,))) == 0

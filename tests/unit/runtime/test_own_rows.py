"""Rows that an index takes of a part of a tensor, as a worker does that has no more: torch as NumPy, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gt.ir.evaluate import evaluate_node
from gt.ir.opdef import OPS
from gt.ir.types import DType, TensorType, bool_, float32, int64
from gt.runtime.kernels import own_rows

ROWS, PARTS = 7, 3
EACH = -(-ROWS // PARTS)


def parts(x: np.ndarray, dim: int) -> list[np.ndarray]:
    """Give each worker's, the last padded with junk."""
    pad = [(0, EACH * PARTS - ROWS if d == dim else 0) for d in range(x.ndim)]
    return np.split(np.pad(x, pad, constant_values=1), PARTS, axis=dim)


@pytest.mark.parametrize("dtype", [float32, int64, bool_], ids=repr)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("op", ["index", "index_select"])
def test_parts_add_up_to_what_is_taken_of_the_whole(op: str, dim: int, shape: tuple[int, ...], dtype: DType) -> None:
    if op == "index_select" and len(shape) != 1:
        return
    rng = np.random.default_rng(0)
    x = np.asarray(rng.integers(-9, 9, [ROWS if d == dim else 5 for d in range(2)]), dtype.numpy)
    index = np.asarray(rng.integers(-ROWS if op == "index" else 0, ROWS, shape))
    attrs: dict[str, Any] = {"dims": (dim,)} if op == "index" else {"dim": dim}
    want = np.take(x, index, axis=dim)
    total = np.zeros_like(want)
    for worker, part in enumerate(parts(x, dim)):
        own = tuple({**attrs, "start": worker * EACH, "rows": ROWS}.items())
        types = OPS[op].infer_types((TensorType(part.shape, dtype), TensorType(index.shape, int64)), own)
        (by_numpy,) = evaluate_node(OPS[op], [part, index], own, types)
        by_torch = own_rows(torch.tensor(part), torch.tensor(index), dim, worker * EACH, ROWS, from_end=op == "index")
        np.testing.assert_array_equal(by_torch.numpy(), by_numpy)
        total = total + by_numpy if dtype is not bool_ else total | by_numpy
    np.testing.assert_array_equal(total, want)


@pytest.mark.parametrize(("index", "from_end"), [(ROWS, True), (-ROWS - 1, True), (-1, False), (ROWS, False)])
def test_an_index_of_no_part_is_refused_by_every_worker(index: int, from_end: bool) -> None:
    for worker in range(PARTS):
        with pytest.raises(IndexError, match=f"index {index} is out of bounds for dimension 0 with size {ROWS}"):
            own_rows(torch.zeros(EACH, 2), torch.tensor([0, index]), 0, worker * EACH, ROWS, from_end)

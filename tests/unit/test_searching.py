# ruff: noqa: B023 - functions made in a loop are called in it
"""Places in sorted order and in a flattened tensor: torch's values, or its error and text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gt
from tests.unit.both_sides import alike

DTYPES = ("bool", "uint8", "int8", "int64", "float16", "bfloat16", "float32", "float64", "complex64")
EDGES, VALUES = [1, 2, 2, 4, 9], [0, 1, 1.5, 2, 3, 9, 10]
NAN, INF = float("nan"), float("inf")


def made(m: Any, values: Any, dtype: str) -> Any:
    return m.tensor(np.array(values)).to(getattr(m, dtype))


@pytest.mark.parametrize("edges", DTYPES)
def test_edges_and_values_of_two_dtypes(edges: str) -> None:
    for values in DTYPES:
        for options in ({}, {"right": True}, {"side": "right"}, {"side": "left", "out_int32": True}):
            alike(lambda m: m.searchsorted(made(m, EDGES, edges), made(m, VALUES, values), **options), f"{values} {options}", text=False)
        alike(lambda m: m.bucketize(made(m, VALUES, values), made(m, EDGES, edges), right=True, out_int32=True), values, text=False)
        alike(lambda m: m.searchsorted(made(m, EDGES, edges), made(m, 2.5, values)), f"one of {values}", text=False)
    for value in (2, 2.5, True, NAN, INF, -1, 300, 2**40):
        alike(lambda m: m.searchsorted(made(m, EDGES, edges), value), f"{value}")
        alike(lambda m: m.bucketize(value, made(m, EDGES, edges), right=True), f"{value}")


def test_integers_keep_fractions_and_last_digits_apart() -> None:
    assert gt.searchsorted(gt.tensor([1, 2, 3]), 2.5).item() == gt.bucketize(gt.tensor([2.5]), gt.tensor([1, 2, 3])).item() == 2
    big = gt.tensor([2**53, 2**53 + 1, 2**53 + 2])
    assert gt.searchsorted(big, 2**53 + 1).item() == gt.searchsorted(big, gt.tensor(2**53 + 1)).item() == 1


@pytest.mark.parametrize("right", [False, True])
def test_rows_of_edges_and_nans(right: bool) -> None:
    x = [NAN, INF, -INF, -0.0, 2.0]
    for edges in ([-INF, 0.0, 1.0, NAN, NAN], [NAN, NAN, 1.0, 0.0, -INF], [3.0, 1.0, 2.0, 5.0, 0.0]):
        for dtype in ("float16", "float32", "float64"):
            alike(lambda m: m.searchsorted(made(m, edges, dtype), made(m, x, dtype), right=right), f"{edges}")
            alike(lambda m: m.searchsorted(made(m, [edges, x], dtype), made(m, [x, edges], dtype), right=right), f"rows of {edges}")
    for sorter in ([1, 2, 4, 0, 3], [0, 1]):
        alike(lambda m: m.searchsorted(made(m, [4, 1, 2, 9, 2], "int64"), made(m, VALUES, "int64"), right=right, sorter=m.tensor(sorter)), "sorter", text=len(sorter) > 2)
    rows, order = [[4, 1, 2], [3, 2, 1]], [[1, 2, 0], [2, 1, 0]]
    alike(lambda m: m.searchsorted(m.tensor(rows), m.tensor([[0, 1, 9], [1, 2, 4]]), right=right, sorter=m.tensor(order)), "sorter of rows")


def test_what_is_refused() -> None:
    for x, y in (((2, 3), (2,)), ((2, 3), ()), ((), (1,)), ((), ()), ((2, 3, 4), (2, 3)), ((0,), (2,)), ((2, 0), (2, 2)), ((2, 3), (2, 0)), ((3,), (0,))):
        for dtype in ("float32", "complex64"):
            alike(lambda m: m.searchsorted(m.ones(size=x).to(getattr(m, dtype)), m.ones(size=y)), f"{x} {y}")
    three = lambda m: m.tensor([1.0, 2.0, 3.0])  # noqa: E731
    for options in ({"side": "middle"}, {"side": "left", "right": True}, {"side": "right", "right": True}, {"side": None}):
        alike(lambda m: m.searchsorted(three(m), three(m), **options), f"{options}")
    alike(lambda m: m.searchsorted(three(m), three(m), sorter=m.tensor([0, 1, 2], dtype=m.int32)), "sorter of int32")
    alike(lambda m: m.bucketize(three(m), three(m)[None]), "rows")
    for wrong in ("a", None, [1.0], np.ones(2)):
        alike(lambda m: m.searchsorted(three(m), wrong), "no tensor", text=False)
        alike(lambda m: m.bucketize(wrong, three(m)), "no tensor", text=False)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "bool", "float32"])
def test_unravel_index(dtype: str) -> None:
    for shape in ((3, 4), (12,), [3, 4], (), 5, (2, 1, 6), (-2, 3)):
        for at in ([0, 5, 11], [[1, 2], [3, 4]], 7, [], [100], [3, 0]):
            alike(lambda m: m.unravel_index(made(m, at, dtype), shape), f"{shape} {at}")
    if dtype in ("int32", "int64"):
        alike(lambda m: m.unravel_index(made(m, [-1, 2], dtype), (3, 4)), "from the end")
        alike(lambda m: m.unravel_index(made(m, [1], dtype), (2, 0)), "no elements", text=False)
    alike(lambda m: m.unravel_index(made(m, [1], dtype), (2.0, 3)), "no size", text=False)

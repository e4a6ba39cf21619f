"""Rules instantiated on shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gt.ir.factors import elementwise, reshape_rule, rule


def test_matmul() -> None:
    found = rule("...mk,...kn->...mn | +k", [(2, 3, 4), (4, 5)], [(2, 3, 5)])
    assert found.operands == ((("#0",), ("m",), ("k",)), (("k",), ("n",)))
    assert found.results == ((("#0",), ("m",), ("n",)),)
    assert found.size == {"#0": 2, "m": 3, "k": 4, "n": 5}
    assert found.kind == {"#0": "pass", "m": "pass", "k": "sum", "n": "pass"}


def test_elementwise_broadcasts_from_the_right() -> None:
    found = elementwise([(4, 1, 3), (5, 3), ()], [(4, 5, 3)])
    assert found.operands == ((("#0",), (), ("#2",)), (("#1",), ("#2",)), ())
    assert found.results == ((("#0",), ("#1",), ("#2",)),)


def test_size_1_dims_have_no_factor() -> None:
    found = rule("mk,kn->mn | +k", [(1, 4), (4, 1)], [(1, 1)])
    assert found.size == {"k": 4} and found.results == (((), ()),)


def test_marks() -> None:
    found = rule("abc.->ab | >c !b", [(2, 3, 4, 5)], [(2, 3)])
    assert [found.kind[f] for f in ("a", "b", "c")] == ["pass", "whole", "max"]
    assert found.kind[found.operands[0][3][0]] == "whole"


@pytest.mark.parametrize(
    ("source", "target", "left", "right"),
    [
        ((6,), (2, 3), (2,), (1, 1)),
        ((2, 3), (6,), (1, 1), (2,)),
        ((4, 6), (4, 2, 3), (1, 2), (1, 1, 1)),
        ((4, 1, 6), (4, 6), (1, 0, 1), (1, 1)),
    ],
)
def test_reshape_splits_and_merges(
    source: tuple[int, ...], target: tuple[int, ...], left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    found = reshape_rule(source, target)
    assert tuple(map(len, found.operands[0])) == left and tuple(map(len, found.results[0])) == right
    assert "whole" not in found.kind.values()


def test_reshape_keeps_a_common_major_factor() -> None:
    """(6, 2) and (4, 3) both start with two halves; what is below them must be whole."""
    found = reshape_rule((6, 2), (4, 3))
    (major,) = {f for f, kind in found.kind.items() if kind == "pass"}
    assert found.size[major] == 2
    assert found.operands[0][0][0] == major == found.results[0][0][0]


@given(st.data())
def test_a_major_factor_of_a_reshape_cuts_both_sides_alike(data: st.DataObject) -> None:
    """Cut by a factor, the parts of the source, reshaped, are the parts of the target."""
    source = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    count = math.prod(source)
    target, rest = [], count
    for _ in range(data.draw(st.integers(0, 3))):
        target.append(data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0])))
        rest //= target[-1]
    target.append(rest)
    found, array = reshape_rule(source, tuple(target)), np.arange(count).reshape(source)
    for dims, shape in ((found.operands[0], source), (found.results[0], tuple(target))):
        assert [math.prod(found.size[f] for f in d) for d in dims] == list(shape)
    for factor, kind in found.kind.items():
        both = found.operands[0], found.results[0]
        sides = [[d for d, fs in enumerate(dims) if fs[:1] == (factor,)] for dims in both]
        if kind == "whole" or not all(sides):
            continue
        parts = found.size[factor]
        cut = np.split(array, parts, sides[0][0])
        want = np.split(array.reshape(target), parts, sides[1][0])
        for a, b in zip(cut, want, strict=True):
            np.testing.assert_array_equal(a.reshape(b.shape), b)

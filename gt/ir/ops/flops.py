"""How many multiply-adds ops take whose rule does not say it: attention, convolutions, linear algebra, Fourier transforms.

Each gives half of the textbook's flops, from the types of one call. Source for matrices: Golub and Van Loan, Matrix Computations,
4th edition, the tables of chapters 3 to 8. A causal attention is half of a full one. Must not know: placements. Next: ``attention``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from gt.ir.types import TensorType

Types: TypeAlias = Sequence[TensorType]
Work: TypeAlias = Callable[[Types, Types, dict[str, Any]], int]
COMPLEX = 4  # real multiply-adds in a complex one
PRODUCTS = 10  # of matrices, that an exponential of one is made of


def _pairs(q: TensorType, k: TensorType, attrs: dict[str, Any]) -> int:
    """Give how many queries see how many keys, of all heads."""
    return math.prod(q.shape[:3]) * k.shape[2] // (2 if attrs["is_causal"] else 1)


def attention(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    q, k, v = operands[:3]
    return _pairs(q, k, attrs) * (q.shape[3] + v.shape[3])


def attention_backward(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    """The scores again, and the products of four gradients: 2.5 times the forward."""
    _, q, k, v = operands[:4]
    return _pairs(q, k, attrs) * (3 * q.shape[3] + 2 * v.shape[3])


def convolution(roles: str) -> Work:
    """``roles``: which operand, then result, is x, w(eight) or y; a bias comes third."""

    def work(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
        types = dict(zip(roles, (*operands[:2], *results), strict=True))
        moving = types["x" if attrs["transposed"] else "y"]
        return moving.numel * math.prod(types["w"].shape[1:])

    return work


def matrices(flops: Callable[[int, int], float]) -> Work:
    """``flops``: of one m by n matrix with m >= n, the first operand."""

    def work(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
        *batch, m, n = operands[0].shape
        each = flops(max(m, n), min(m, n)) / 2
        return round(math.prod(batch) * each) * (COMPLEX if operands[0].dtype.is_complex else 1)

    return work


def _lu(m: int, n: int) -> float:
    return m * n**2 - n**3 / 3


def solve(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    """LU, then two triangular solves for each column."""
    n = operands[0].shape[-1]
    return lu(operands, results, attrs) + results[0].numel * n * (COMPLEX if results[0].dtype.is_complex else 1)


def solve_triangular(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    n = operands[0].shape[-1]
    return results[0].numel * n // 2 * (COMPLEX if results[0].dtype.is_complex else 1)


def qr(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    reduced = lambda m, n: 2 * (2 * m * n**2 - 2 * n**3 / 3)  # noqa: E731
    complete = lambda m, n: 2 * m * n**2 - 2 * n**3 / 3 + 4 * (m**2 * n - m * n**2 + n**3 / 3)  # noqa: E731
    return matrices(complete if attrs["complete"] else reduced)(operands, results, attrs)


def svd(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    if attrs.get("full"):
        return matrices(lambda m, n: 4 * m**2 * n + 8 * m * n**2 + 9 * n**3)(operands, results, attrs)
    return matrices(lambda m, n: 14 * m * n**2 + 8 * n**3)(operands, results, attrs)


def pinv(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    """An SVD and the product of its factors."""
    return svd(operands, results, {}) + matrices(lambda m, n: 2 * m * n**2)(operands, results, attrs)


def fourier(operands: Types, results: Types, attrs: dict[str, Any]) -> int:
    """5 n log2(n) flops, half if one side is real."""
    full = max(operands[0], results[0], key=lambda t: t.numel)
    points = math.prod(full.shape[d] for d in attrs["dims"])
    flops = 5 * full.numel * math.log2(max(points, 1))
    return round(flops / (2 if operands[0].dtype.is_complex and results[0].dtype.is_complex else 4))


inverse = matrices(lambda m, n: 2 * n**3)
lu = matrices(_lu)
cholesky = matrices(lambda m, n: n**3 / 3)
svdvals = matrices(lambda m, n: 4 * m * n**2 - 4 * n**3 / 3)
eigh = matrices(lambda m, n: 9 * n**3)
eig = matrices(lambda m, n: 25 * n**3)
eigvals = matrices(lambda m, n: 10 * n**3)
matrix_exp = matrices(lambda m, n: 2 * PRODUCTS * n**3)

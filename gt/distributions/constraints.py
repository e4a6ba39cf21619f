"""What values and parameters of distributions may be; ``check`` gives a bool tensor. Source: torch.distributions.constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.functions.factorization import eigvalsh

Check = Callable[[Any], Any]


class Constraint:
    """A set of values. ``event_dim``: dims that are judged together; ``is_discrete``: whole numbers."""

    def __init__(self, name: str, check: Check, event_dim: int = 0, is_discrete: bool = False) -> None:
        self.name, self._check, self.event_dim, self.is_discrete = name, check, event_dim, is_discrete

    def check(self, value: Any) -> Any:
        """Give, for each element or event, whether it belongs to the set."""
        return self._check(value)

    def __repr__(self) -> str:
        return self.name


def interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Give the numbers between two bounds."""
    name = f"Interval(lower_bound={lower_bound}, upper_bound={upper_bound})"
    return Constraint(name, lambda v: (v >= lower_bound) & (v <= upper_bound))


def greater_than(lower_bound: Any) -> Constraint:
    """Give the numbers above a bound."""
    return Constraint(f"GreaterThan(lower_bound={lower_bound})", lambda v: v > lower_bound)


def greater_than_eq(lower_bound: Any) -> Constraint:
    """Give the numbers not below a bound."""
    return Constraint(f"GreaterThanEq(lower_bound={lower_bound})", lambda v: v >= lower_bound)


def integer_interval(lower_bound: Any, upper_bound: Any) -> Constraint:
    """Give the whole numbers between two bounds."""
    name = f"IntegerInterval(lower_bound={lower_bound}, upper_bound={upper_bound})"
    return Constraint(name, lambda v: (v % 1 == 0) & (v >= lower_bound) & (v <= upper_bound), 0, True)


def independent(base: Constraint, reinterpreted_batch_ndims: int) -> Constraint:
    """Give the events of a constraint whose last dims are judged together."""

    def check(value: Any) -> Any:
        found = base.check(value)
        for _ in range(reinterpreted_batch_ndims):
            found = found.all(-1)
        return found

    name = f"IndependentConstraint({base!r}, {reinterpreted_batch_ndims})"
    return Constraint(name, check, base.event_dim + reinterpreted_batch_ndims, base.is_discrete)


def _triangular(v: Any) -> Any:
    return (v.tril() == v).flatten(-2).all(-1)


def _cholesky_factor(v: Any) -> Any:
    return _triangular(v) & (v.diagonal(dim1=-2, dim2=-1) > 0).all(-1)


def _positive_definite(v: Any) -> Any:
    symmetric = ((v - v.mT).abs() <= 1e-6 + 1e-5 * v.abs()).flatten(-2).all(-1)
    return symmetric & (eigvalsh((v + v.mT) / 2) > 0).all(-1)


def _depends(value: Any) -> Any:
    raise ValueError("Cannot determine validity of dependent constraint")


dependent = Constraint("Dependent()", _depends)
real = Constraint("Real()", lambda v: v == v)  # noqa: PLR0124 - false for NaN alone
positive, nonnegative = greater_than(0.0), greater_than_eq(0.0)
unit_interval = interval(0.0, 1.0)
boolean = Constraint("Boolean()", lambda v: (v == 0) | (v == 1), 0, True)
nonnegative_integer = Constraint("IntegerGreaterThan(lower_bound=0)", lambda v: (v % 1 == 0) & (v >= 0), 0, True)
real_vector = independent(real, 1)
simplex = Constraint("Simplex()", lambda v: (v >= 0).all(-1) & ((v.sum(-1) - 1).abs() < 1e-6), 1)
one_hot = Constraint("OneHot()", lambda v: ((v == 0) | (v == 1)).all(-1) & (v.sum(-1) == 1), 1, True)
lower_cholesky = Constraint("LowerCholesky()", _cholesky_factor, 2)
positive_definite = Constraint("PositiveDefinite()", _positive_definite, 2)

__all__ = [
    "Constraint", "boolean", "dependent", "greater_than", "greater_than_eq", "independent", "integer_interval", "interval", "lower_cholesky",
    "nonnegative", "nonnegative_integer", "one_hot", "positive", "positive_definite", "real", "real_vector", "simplex", "unit_interval",
]  # fmt: skip

"""The report of unclaimed placements finds what a rule leaves out, and nothing where a rule says all."""

from __future__ import annotations

from dataclasses import replace

import pytest

import gt.ir.ops  # noqa: F401 - fills the table
from gt.ir.opdef import OPS
from tests.property.samples import cases
from tests.property.unclaimed import unclaimed


def test_a_rule_that_claims_too_little_is_reported() -> None:
    op = replace(OPS["matmul"], factors="...mk,...kn->...mn | !m !k", linear=())
    found = list(unclaimed(op, list(cases(OPS["matmul"], 0))))
    assert "factor m as pass" in found and "factor k as sum" in found
    assert "linear in operands [0] of 2" in found and "linear in operands [0, 1] of 2" not in found


@pytest.mark.parametrize("name", ["matmul", "add", "sum", "exp", "cumsum", "softmax", "embedding"])
def test_full_rules_leave_nothing(name: str) -> None:
    assert list(unclaimed(OPS[name], list(cases(OPS[name], 0)))) == []

"""Placements that hold but that no rule claims: ``python -m tests.property.unclaimed``.

For every op, each factor that its rule keeps whole is tried as one that passes or is reduced, and each operand as one
that the op is linear in, by brute force over two workers on the registry's samples. What holds in all of them may be
worth claiming; it is no proof (``abs`` is linear in what is never negative). Next: ``test_ops_sharding``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np

from gt.ir.evaluate import evaluate_node
from gt.ir.factors import FactorKind, Rule
from gt.ir.opdef import OPS, OpDef
from gt.ir.types import float64
from tests.property.samples import SAMPLES, Sample, cases
from tests.property.test_ops_sharding import can_cut, check_factor, sign_mixed
from tests.property.test_ops_values import compare

KINDS: tuple[FactorKind, ...] = ("pass", "sum", "max", "min")


def holds(op: OpDef, sample: Sample, rule: Rule, factor: str, kind: FactorKind) -> bool:
    """Whether each worker's own part gives its part of the result, or parts that add up to it."""
    tried = replace(rule, kinds=tuple((f, k) for f, k in rule.kinds if f != factor) + (() if kind == "pass" else ((factor, kind),)))
    if not can_cut(tried, factor, 2):
        return False
    try:
        check_factor(op, sample, tried, factor, 2)
    except Exception:  # a part that the op does not even take
        return False
    return True


def linear_in(op: OpDef, sample: Sample, group: tuple[int, ...]) -> bool:
    attrs = tuple(sample.attrs.items())
    types = op.infer_types(sample.types, attrs)
    split = {i: sign_mixed(sample.operands()[i], np.random.default_rng(0)) for i in group}
    try:
        with np.errstate(all="ignore"):
            want = evaluate_node(op, sample.operands(), attrs, types)
            made = [
                evaluate_node(op, [split[i][w] if i in split else a for i, a in enumerate(sample.operands())], attrs, types)
                for w in range(3)
            ]
            for value, type_, *pieces in zip(want, types, *made, strict=True):
                compare(sum(pieces), value, type_.dtype, 1e-9, op.name)
    except Exception:
        return False
    return True


def unclaimed(op: OpDef, samples: list[Sample]) -> Iterator[str]:
    """Give what holds in every sample where it can be tried."""
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        attrs = tuple(sample.attrs.items())
        types = op.infer_types(sample.types, attrs)
        rule = op.rule(sample.types, types, attrs)
        for factor, kind in rule.kinds if rule is not None else ():
            if kind == "whole" and rule is not None and rule.size[factor] > 1:
                for other in KINDS:
                    verdicts[f"factor {factor} as {other}"].append(holds(op, sample, rule, factor, other))
        floats = [i for i, d in enumerate(sample.dtypes) if d is float64]
        finite = all(np.all(np.isfinite(a)) for a in sample.operands())
        large = bool(types) and all(t.dtype is float64 and t.numel > 1 for t in types)
        if finite and large:
            claimed = {tuple(sorted(g)) for g in op.linear_groups(len(sample.arrays), attrs)}
            for group in (*((i,) for i in floats), *combinations(floats, 2)):
                if group not in claimed:
                    verdicts[f"linear in operands {list(group)} of {len(sample.arrays)}"].append(linear_in(op, sample, group))
    return (what for what, held in sorted(verdicts.items()) if len(held) > 1 and all(held))


def report() -> str:
    """Give one line for each op with something unclaimed, then the ops without a rule."""
    lines = []
    for name in sorted(SAMPLES):
        found = list(unclaimed(OPS[name], list(cases(OPS[name], 0)))) if not OPS[name].effect else []
        lines += [f"{name}: {what}" for what in found]
    bare = [n for n in sorted(OPS) if OPS[n].factors is None and OPS[n].decompose is None and not OPS[n].effect]
    return "\n".join([*lines, f"no rule: {', '.join(bare)}"]) + "\n"


if __name__ == "__main__":
    print(report(), end="")

"""What plan_memory's proofs rest on: an op gives results in memory of their own unless declared (``view``,
``shares``), each element in a place of its own, when torch runs it.

One undeclared alias, and an update in place would overwrite a value that is read later; torch refuses to update elements that share a place.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gt.ir.ops import OPS
from tests.property.samples import SAMPLES
from tests.property.torch_side import run, tensor

CALLS = 40  # samples of each op


def storages(tensors: list[torch.Tensor]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t.numel()}


@pytest.mark.parametrize("name", sorted(name for name in SAMPLES if OPS[name].torch is not None))
def test_results_share_memory_only_where_declared(name: str) -> None:
    op = OPS[name]
    for i, sample in enumerate(SAMPLES[name](np.random.default_rng(0))):
        if i >= CALLS:
            break
        operands = [tensor(a, t.dtype) for a, t in zip(sample.operands(), sample.types, strict=True)]
        types = op.infer_types(sample.types, tuple(sample.attrs.items()))
        results = run(op, operands, sample.attrs, types)
        shared = storages(results) & storages(operands[1:] if op.may_share(sample.types, types) else operands)
        assert not shared, f"{name}({sample.types}, {sample.attrs}) shares memory with an operand, undeclared"
        owned = [r for r in results if r.numel()]
        if not op.may_share(sample.types, types):
            twice = [r.stride() for r in owned if any(n > 1 and step == 0 for n, step in zip(r.shape, r.stride(), strict=True))]
            assert not twice, f"{name}({sample.types}, {sample.attrs}) has elements that share a place"
        assert len(storages(owned)) == len(owned), f"two results of {name} share memory"

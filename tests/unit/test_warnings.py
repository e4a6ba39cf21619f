"""What is warned of, as by torch: at the user's line, in torch's words."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch

import gt

CALLS = {
    "std": lambda m: m.ones(1).std(), "std by a correction": lambda m: m.std(m.ones(3), correction=3), "var": lambda m: m.var(m.ones(2, 1), 1),
    "var of two": lambda m: m.ones(2).var(), "var uncorrected": lambda m: m.ones(1).var(correction=0), "var of nothing": lambda m: m.ones(0, 3).var(0),
    "var of no rows": lambda m: m.ones(3, 0).var(0), "var of a number": lambda m: m.tensor(1.0).var(), "var_mean": lambda m: m.var_mean(m.ones(1)),
    "std_mean": lambda m: m.std_mean(m.ones(1, 2), 0), "std of complex": lambda m: m.ones(1, dtype=m.complex64).std(),
    "cov": lambda m: m.cov(m.ones(2, 1)), "cov of two": lambda m: m.cov(m.ones(2, 2)), "grad": lambda m: (m.ones(1, requires_grad=True) * 2).grad,
    "grad of a leaf": lambda m: m.ones(1, requires_grad=True).grad, "grad of a constant": lambda m: (m.ones(1) * 2).grad,
    "meshgrid": lambda m: m.meshgrid(m.ones(1), m.ones(2)), "meshgrid as said": lambda m: m.meshgrid(m.ones(1), indexing="ij"),
    "cartesian_prod": lambda m: m.cartesian_prod(m.ones(1), m.ones(2)), "T": lambda m: m.ones(1, 2, 3).T, "T of a matrix": lambda m: m.ones(2, 3).T,
    "T of a vector": lambda m: m.ones(2).T, "T of a number": lambda m: m.tensor(1.0).T, "H of a number": lambda m: m.tensor(1.0).H,
    "tensor": lambda m: m.tensor(m.ones(1)), "new_tensor": lambda m: m.ones(1).new_tensor(m.ones(1)), "tensor of tensors": lambda m: m.tensor([m.tensor(1.0)]),
    "as_tensor": lambda m: m.as_tensor(m.ones(1)),
}  # fmt: skip


def warned(call: Any, m: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", ResourceWarning)  # of whatever of another test is collected now
        call(m)
    for w in seen:
        assert w.category is UserWarning and (m is torch or w.filename == __file__)
    texts = [re.sub(r" See github.*| \(Triggered internally.*", "", str(w.message)).replace("torch.", "gt.") for w in seen]
    return list(dict.fromkeys(texts))  # torch warns of both parts of complex numbers


@pytest.mark.parametrize("name", CALLS)
def test_warnings_are_torchs(name: str) -> None:
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        theirs = warned(CALLS[name], torch)
    finally:
        torch.set_warn_always(before)
    assert warned(CALLS[name], gt) == theirs


def test_a_kept_gradient_is_read_without_a_warning() -> None:
    for m in (gt, torch):
        y = m.ones(1, requires_grad=True) * 2
        y.retain_grad()
        y.backward()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert y.grad.tolist() == [1.0]

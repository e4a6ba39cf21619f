"""A model in gt beside the same in torch: logits, gradients, optimizer steps, generation. For the tests of real models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from safetensors.torch import save_file

import gt
from gt import session as sessions
from gt.runtime.simulated import SimulatedSession

TOLERANCE = 1e-4


def load(model: Any, reference: torch.nn.Module, folder: Path) -> None:
    """Take the reference's values by way of a safetensors file and torch's own names; tied tables are stored once."""
    tied = {p.data_ptr(): n for n, p in reversed(list(reference.state_dict().items()))}
    save_file({n: reference.state_dict()[n] for n in tied.values()}, folder / "model.safetensors")
    found = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= set(reference.state_dict()) - set(tied.values())


def split(values: Any) -> gt.Tensor:
    """Give values whose rows are split over the workers there are."""
    with gt.signal.context("batch"):
        return gt.tensor(values)


def close(got: Any, want: torch.Tensor, what: str) -> None:
    np.testing.assert_allclose(got.numpy(force=True), want.detach().numpy(), rtol=TOLERANCE, atol=TOLERANCE, err_msg=what)


def check_gradients(model: Any, reference: torch.nn.Module) -> None:
    """Compare the gradients of all parameters, by name."""
    want = dict(reference.named_parameters())
    got = dict(model.named_parameters())
    assert set(got) == set(want)
    for name, p in got.items():
        close(p.grad, want[name].grad, f"gradient of {name}")


def check_training(
    model: Any, reference: torch.nn.Module, loss: Callable[[], Any], reference_loss: Callable[[], torch.Tensor],
    without: dict[str, slice] | None = None,
) -> None:  # fmt: skip
    """Train both for 20 steps and compare losses, step by step, and parameters at the end, but for parts ``without`` a gradient."""
    ours = gt.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    theirs = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.1)
    got, want = [], []
    for _ in range(20):
        ours.zero_grad()
        a = loss()
        a.backward()
        ours.step()
        got.append(a)
        theirs.zero_grad()
        b = reference_loss()
        b.backward()
        theirs.step()
        want.append(b.item())
    np.testing.assert_allclose([a.item() for a in got], want, rtol=TOLERANCE, atol=TOLERANCE)
    assert want[-1] < want[0]
    session = sessions.current()
    if isinstance(session, SimulatedSession):
        assert {c.kind for c in session.runs[-1].collectives} == {"all_reduce"}, "rows are split, gradients summed"
    for (name, p), q in zip(model.named_parameters(), reference.parameters(), strict=True):
        got_values, want_values = p.detach().numpy(), q.detach().numpy().copy()
        for end, part in (without or {}).items():
            if name.endswith(end):
                want_values[part] = got_values[part]
        np.testing.assert_allclose(got_values, want_values, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)

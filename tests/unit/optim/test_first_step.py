"""A first step is the program that later ones are, once the model is there."""

from __future__ import annotations

import numpy as np
import pytest

import gt
from gt import session as sessions


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "RMSprop", "Adagrad", "Lion"])
def test_a_first_step_is_planned_for_all_that_follow(optimizer, monkeypatch):
    seen = []
    monkeypatch.setattr(sessions, "on_define", [lambda key, graph: seen.append(len(graph.nodes))])
    model = gt.nn.Linear(7, 3)
    x = gt.ones(2, 7)
    model(x).sum().item()
    optim = getattr(gt.optim, optimizer)(model.parameters(), lr=0.01)
    made = []
    for _ in range(3):
        seen.clear()
        loss = model(x).square().sum()
        loss.backward()
        optim.step()
        optim.zero_grad()
        loss.item()
        made.append(len(seen))
    assert made[1:] == [0, 0], made


def test_a_model_is_made_when_an_optimizer_takes_it(monkeypatch):
    """Else its making is part of the first step, which is planned and compiled for itself."""
    gt.ones(1).item()
    seen = []
    monkeypatch.setattr(sessions, "on_define", [lambda key, graph: seen.append(len(graph.nodes))])
    model = gt.nn.Linear(11, 3)
    optim = gt.optim.AdamW(model.parameters(), lr=0.01)
    made = []
    for _ in range(3):
        seen.clear()
        loss = model(gt.from_numpy(np.ones((2, 11), np.float32))).square().sum()
        loss.backward()
        optim.step()
        optim.zero_grad()
        loss.item()
        made.append(len(seen))
    assert made == [2, 0, 0], "the optimizer's state, and the step"


def test_state_that_is_made_apart_leaves_what_is_pending_alone():
    gt.ones(1).item()
    w = gt.ones(3, requires_grad=True)
    pending = gt.arange(3) * 2.0
    optim = gt.optim.Adam([w])
    (w * pending).sum().backward()
    optim.step()
    assert pending.tolist() == [0.0, 2.0, 4.0]
    assert optim.state[w]["exp_avg"].tolist() == pytest.approx([0.0, 0.2, 0.4])

"""What ``requires_grad_(False)`` means for uses before and after it, as in torch. Next: ``gt.handle``, ``gt.tape``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt


def equal(story: Any) -> None:
    theirs, ours = story(torch), story(gt)
    assert len(theirs) == len(ours)
    for their, our in zip(theirs, ours, strict=True):
        assert (their is None) == (our is None)
        if their is not None:
            np.testing.assert_allclose(our.detach().numpy(), their.detach().numpy(), rtol=1e-6)


@pytest.mark.parametrize("thawed", [False, True])
@pytest.mark.parametrize("read", [False, True])
def test_a_leaf_gets_gradients_of_uses_while_it_was_not_frozen_if_it_is_not_now(read: bool, thawed: bool) -> None:
    def story(m: Any) -> list[Any]:
        w, x = m.full((2,), 3.0, requires_grad=True), m.full((2,), 2.0, requires_grad=True)
        first = w * x
        if read:
            first.sum().item()
        w.requires_grad_(False)
        second = w * x * 10
        w.requires_grad = thawed
        (first + second + w * x * 100).sum().backward()
        return [w.grad, x.grad]

    equal(story)


@pytest.mark.parametrize("read", [False, True])
def test_frozen_layers_are_not_trained_and_not_clipped(read: bool) -> None:
    def story(m: Any) -> list[Any]:
        model = m.nn.Sequential(m.nn.Linear(2, 2), m.nn.LayerNorm(2), m.nn.Linear(2, 1))
        with m.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(m.arange(p.numel()).reshape(p.shape) / 3 + i)
        optimizer = m.optim.SGD(model.parameters(), lr=0.1)
        x = m.tensor([[1.0, 2.0], [0.5, -1.0]])
        model(x).sum().backward()
        optimizer.step()
        if read:
            model[2].weight.sum().item()
        model[2].requires_grad_(False)
        model[1].weight.requires_grad_(False)
        frozen = [model[2].weight.clone(), model[2].bias.clone(), model[1].weight.clone()]
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            total = m.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        for now, then in zip((model[2].weight, model[2].bias, model[1].weight), frozen, strict=True):
            np.testing.assert_array_equal(now.detach().numpy(), then.numpy())
        return [total, *[p.grad for p in model.parameters()], *model.parameters()]

    equal(story)


def test_a_critic_frozen_while_the_generator_steps_keeps_its_own_gradients() -> None:
    def story(m: Any) -> list[Any]:
        generator, critic = m.nn.Linear(2, 2), m.nn.Linear(2, 1)
        with m.no_grad():
            for p in (*generator.parameters(), *critic.parameters()):
                p.copy_(m.arange(p.numel()).reshape(p.shape) / 5 + 0.1)
        steps = [m.optim.Adam(net.parameters(), lr=0.1) for net in (generator, critic)]
        seen, x = [], m.ones(3, 2)
        for _ in range(3):
            critic.requires_grad_(True)
            steps[1].zero_grad()
            (critic(generator(x).detach()).mean() - critic(2 * x).mean()).backward()
            steps[1].step()
            critic.requires_grad_(False)
            steps[0].zero_grad()
            (-critic(generator(x)).mean()).backward()
            steps[0].step()
            seen += [p.grad for p in (*generator.parameters(), *critic.parameters())]
        return [*seen, *generator.parameters(), *critic.parameters()]

    equal(story)


def test_the_gradient_of_a_leaf_frozen_meanwhile_cannot_be_asked_for() -> None:
    for m in (torch, gt):
        w = m.ones(2, requires_grad=True)
        loss = (w * w).sum()
        w.requires_grad_(False)
        with pytest.raises(RuntimeError, match="does not require grad"):
            m.autograd.grad(loss, [w])

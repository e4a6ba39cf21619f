"""A CUDA graph on the CPU: recorded work that runs again on the same memory, outputs in scratch that all graphs share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gt.runtime.cuda_graph import Graphs

Body = Callable[[list[torch.Tensor]], list[torch.Tensor]]


class FakeGraph:
    def __init__(self, owner: FakeCapturer, body: Body, inputs: Sequence[torch.Tensor]) -> None:
        self.owner, self.body = owner, body
        self.inputs = [t.detach() for t in inputs]  # a graph knows addresses, not tensors
        self.outputs: list[torch.Tensor | None] = []  # None: an input
        self.is_reset = False

    def replay(self) -> None:
        """As on the device: whatever any graph left in the scratch is gone."""
        assert not self.is_reset
        made = self.body(list(self.inputs))
        self.owner.scratch.fill_(0xA5)
        for static, new in zip(self.outputs, made, strict=True):
            if static is not None:
                static.copy_(new)

    def reset(self) -> None:
        self.is_reset = True


class FakeCapturer:
    """Captures without effect on the inputs. ``fail``: what the next capture raises."""

    def __init__(self, scratch_nbytes: int = 1 << 16) -> None:
        self.scratch = torch.zeros(scratch_nbytes, dtype=torch.uint8)
        self.made: list[FakeGraph] = []
        self.renewed = self.trimmed = 0
        self.fail: Exception | None = None

    def capture(self, body: Body, inputs: Sequence[torch.Tensor]) -> tuple[FakeGraph, list[torch.Tensor]]:
        if self.fail is not None:
            raise self.fail
        before = [t.clone() for t in inputs]
        graph = FakeGraph(self, body, inputs)
        outputs, at = body(list(inputs)), 0
        for i, output in enumerate(outputs):
            if any(output is t for t in inputs):
                graph.outputs.append(None)
                continue
            words = self.scratch[at : at + output.nbytes].view(output.dtype)
            outputs[i] = words.as_strided(output.shape, output.stride())
            graph.outputs.append(outputs[i])
            at += -(-output.nbytes // 64) * 64
        for t, old in zip(inputs, before, strict=True):
            t.copy_(old)
        self.made.append(graph)
        return graph, outputs


    def renew(self) -> None:
        self.renewed += 1

    def trim(self) -> None:
        self.trimmed += 1


def fake_graphs(budget: int = 1 << 30) -> tuple[Graphs, FakeCapturer]:
    capturer = FakeCapturer()
    return Graphs(torch.device("cpu"), capturer, budget), capturer

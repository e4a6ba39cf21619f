"""What a decoder keeps of the tokens that it has seen. Used by the decoders beside it."""

from __future__ import annotations

import math

import gt


class Cache:
    """Keys and values of the tokens seen so far, written in place; `position` is how many.

    Its size is fixed and the position is a number of the run, so one graph serves every step.
    """

    def __init__(self, layers: int, batch: int, heads: int, length: int, width: int) -> None:
        self.keys = [gt.zeros(batch, heads, length, width) for _ in range(layers)]
        self.values = [gt.zeros(batch, heads, length, width) for _ in range(layers)]
        self.length, self.position = length, 0

    def begin(self, count: int) -> gt.Tensor:
        """Give the positions of the next `count` tokens. Each will see itself and all before it."""
        self.at = gt.arange(count) + self.position
        self.mask = gt.where(gt.arange(self.length) <= self.at.unsqueeze(1), 0.0, -math.inf)
        self.position += count
        return self.at

    def update(self, layer: int, k: gt.Tensor, v: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        """Write the new tokens' keys and values; give those of all tokens."""
        self.keys[layer][:, :, self.at] = k
        self.values[layer][:, :, self.at] = v
        return self.keys[layer], self.values[layer]

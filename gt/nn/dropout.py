"""Dropout as modules: active while training. Next: ``functional.dropout``."""

from __future__ import annotations

from typing import Any

from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn.module import Module
from gt.tensor import Tensor


class _DropoutNd(Module):
    """What the dropouts share."""

    function: Any

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return type(self).function(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_DropoutNd):
    """Zero elements with probability ``p`` while training."""

    function = staticmethod(F.dropout)


class Dropout1d(_DropoutNd):
    """Zero whole channels of [n, c, l]."""

    function = staticmethod(F.dropout1d)


class Dropout2d(_DropoutNd):
    """Zero whole channels of [n, c, h, w]."""

    function = staticmethod(F.dropout2d)


class Dropout3d(_DropoutNd):
    """Zero whole channels of [n, c, d, h, w]."""

    function = staticmethod(F.dropout3d)


class AlphaDropout(_DropoutNd):
    """Set elements to selu's lower limit, keeping mean 0 and variance 1."""

    function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_DropoutNd):
    """Set whole channels to selu's lower limit, keeping mean 0 and variance 1."""

    function = staticmethod(F.feature_alpha_dropout)

"""``gt.nn.modules``: torch's path to the layers; every name of ``gt.nn`` is here too."""

from __future__ import annotations

import sys
from typing import Any

from gt.nn import (
    activation,
    attention,
    conv,
    dropout,
    linear,
    loss,
    module,
    normalization,
    padding,
    pooling,
    transformer,
)  # fmt: skip
from gt.nn import containers as container
from gt.nn import linear as sparse
from gt.nn import normalization as batchnorm
from gt.nn import recurrent as rnn
from gt.nn.module import Module

__all__ = [
    "Module", "activation", "attention", "batchnorm", "container", "conv", "dropout", "linear", "loss", "module", "normalization",
    "padding", "pooling", "rnn", "sparse", "transformer",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    return getattr(sys.modules["gt.nn"], name)

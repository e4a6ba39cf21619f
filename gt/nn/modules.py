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
from gt.nn import normalization as instancenorm
from gt.nn import recurrent as rnn
from gt.nn import tuples as utils
from gt.nn.module import Module

__all__ = [
    "Module", "activation", "attention", "batchnorm", "container", "conv", "dropout", "instancenorm", "linear", "loss", "module",
    "normalization", "padding", "pooling", "rnn", "sparse", "transformer", "utils",
]  # fmt: skip

for _name in __all__:  # the files that torch has here: the same modules, by a second name
    if _name != "Module":
        sys.modules[f"{__name__}.{_name}"] = globals()[_name]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # were this a package with gt.nn's files, importing from it would load them twice
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(sys.modules["gt.nn"], name)

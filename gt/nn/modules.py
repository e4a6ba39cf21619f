"""``gt.nn.modules``: torch's path to the layers; every name of ``gt.nn`` is here too, and in each of the files that torch has here."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from gt import nn
from gt.nn.module import Module

FILES = {  # of torch.nn.modules: where gt.nn has what is in them
    "activation": "activation", "attention": "attention", "batchnorm": "normalization", "channelshuffle": "padding",
    "container": "containers", "conv": "conv", "distance": "linear", "dropout": "dropout", "flatten": "linear", "fold": "padding",
    "instancenorm": "normalization", "linear": "linear", "loss": "loss", "module": "module", "normalization": "normalization",
    "padding": "padding", "pixelshuffle": "padding", "pooling": "pooling", "rnn": "recurrent", "sparse": "linear",
    "transformer": "transformer", "upsampling": "padding", "utils": "tuples",
}  # fmt: skip


class File(ModuleType):
    """A module of torch's that gt keeps elsewhere."""

    def __init__(self, name: str, own: ModuleType) -> None:
        super().__init__(f"{__name__}.{name}", own.__doc__)
        self.__dict__["_own"] = own

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        own = self.__dict__["_own"]
        return getattr(own if hasattr(own, name) else nn, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._own), *super().__dir__()})


for _name, _own in FILES.items():
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = File(_name, import_module(f"gt.nn.{_own}"))

__all__ = ["Module", *FILES]


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # were this a package with gt.nn's files, importing from it would load them twice
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(nn, name)

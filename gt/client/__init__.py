"""The package that tensors and layers were in before gt was rewritten. Next: ``gt.earlier``."""

from importlib import import_module
from typing import Any

from gt.earlier import moved

MODULES = ("autograd", "client", "nn", "tensor")
_moved = moved("gt.client", Tensor="gt.Tensor", Client="gt.client.client.Client")


def __getattr__(name: str) -> Any:
    return import_module(f"gt.client.{name}") if name in MODULES else _moved(name)

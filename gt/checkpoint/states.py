"""What has a state of its own, and how it is taken and given back: modules, optimizers, loaders, generators of random numbers.

Owns: ``state_of`` and ``give``. Must not know: files. Next: ``saving``, ``loading``.
"""

from __future__ import annotations

import random as python_random
import sys
from importlib import import_module
from typing import Any

import numpy as np

from gt.random import Generator, default_generator

NOTHING = object()


def state_of(obj: Any) -> Any:
    """Give the state of an object as a nest of arrays and numbers, NOTHING if it has none to give back later."""
    kind = type(obj)
    if hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict"):
        return obj.state_dict()
    if isinstance(obj, Generator):
        return obj.get_state()
    if isinstance(obj, np.random.Generator):
        return obj.bit_generator.state
    if isinstance(obj, np.random.RandomState):
        return obj.get_state(legacy=False)
    if isinstance(obj, python_random.Random):
        return obj.getstate()
    if _is_torchs(obj):
        return obj.get_state().numpy()
    return NOTHING


def give(obj: Any, state: Any) -> None:
    """Give an object the state that ``state_of`` took of one alike."""
    if isinstance(obj, Generator | np.random.RandomState):
        obj.set_state(state)
    elif isinstance(obj, np.random.Generator):
        obj.bit_generator.state = state
    elif isinstance(obj, python_random.Random):
        obj.setstate(state)
    elif _is_torchs(obj):
        obj.set_state(sys.modules["torch"].from_numpy(state))
    else:
        obj.load_state_dict(state)


def _is_torchs(obj: Any) -> bool:
    return type(obj).__name__ == "Generator" and type(obj).__module__.partition(".")[0] == "torch"


def random_state(host: bool) -> dict[str, Any]:
    """Give the state of gt's random stream of this thread, and if ``host`` of Python's, NumPy's and torch's of this process."""
    found: dict[str, Any] = {"gt": default_generator().get_state()}
    if host:
        found |= {"python": python_random.getstate(), "numpy": np.random.get_state(legacy=False)}
        if "torch" in sys.modules:  # else nothing has drawn from it
            found["torch"] = sys.modules["torch"].get_rng_state().numpy()
    return found


def set_random_state(state: dict[str, Any]) -> None:
    """Go on with the random streams as ``random_state`` found them."""
    default_generator().set_state(state["gt"])
    if "python" in state:
        python_random.setstate(state["python"])
        np.random.set_state(state["numpy"])
    if "torch" in state:
        torch = import_module("torch")
        torch.set_rng_state(torch.from_numpy(state["torch"]))


__all__ = ["NOTHING", "give", "random_state", "set_random_state", "state_of"]

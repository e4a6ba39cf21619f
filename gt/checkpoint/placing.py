"""Where what is loaded goes: to where the tensor is that takes it, so that no worker ever holds more of it than it keeps.

Owns: ``places`` and ``wanted``. Must not know: files. Next: ``loading``, ``gt.runtime.buffer_reasons`` (who knows where a value is).
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

from gt import session as sessions
from gt.checkpoint.saving import received
from gt.handle import Handle
from gt.ir.program import WireSharding
from gt.ir.signals import ShardConfig, SignalConfig
from gt.nests import Form, read_key
from gt.nn.module import Module
from gt.optim.optimizer import Optimizer
from gt.trace import settle, state


class Place(NamedTuple):
    """What an upload asks for to go where a tensor of this shape is."""

    shape: tuple[int, ...]
    signal: SignalConfig


Places = dict[str, Place]  # by the name of a tensor in the checkpoint


def wanted(form: Form, given: Any) -> Places:
    """Say where the tensors of a form go that ``given`` takes: a module's to its parameters, an optimizer's with these, a tensor's to it.

    Waits for the plans that placed them, if there are several workers. Errors: what made the run of a parameter fail.
    """
    if sessions.num_workers() == 1:
        return {}
    takers: dict[str, Handle] = {}
    if "tensor" in form:
        takers[form["tensor"]] = given
    elif isinstance(given, Module):
        own = given.state_dict(keep_vars=True)
        takers = {f["tensor"]: own[key] for key, f in _items(form["object"]) if "tensor" in f and isinstance(own.get(key), Handle)}
    elif isinstance(given, Optimizer):
        params = dict(enumerate(chain.from_iterable(group["params"] for group in given.param_groups)))
        for number, kept in _items(dict(_items(form["object"])).get("state", {})):
            takers |= {f["tensor"]: params[number] for _, f in _items(kept) if "tensor" in f and number in params}
    return places(takers)


def _items(form: Form) -> list[tuple[Any, Form]]:
    return [(read_key(key), inner) for key, inner in form.get("dict", ())]


def places(takers: dict[str, Handle]) -> Places:
    """Give where tensors are, of those that are split or only on some workers."""
    if state.trace.code:
        settle(state.trace, "gt.checkpoint.load")
    asked = {
        name: t._buffer.session.explain(t._buffer.id) for name, t in takers.items() if t._base is None and t._buffer is not None
    }
    found = {name: received(name, future) for name, future in asked.items()}
    signals = {name: signal_of(reasons.placed, reasons.num_workers) for name, reasons in found.items()}
    return {name: Place(takers[name]._type.shape, signal) for name, signal in signals.items() if signal is not None}


def signal_of(placed: WireSharding, num_workers: int) -> SignalConfig | None:
    """Give what an upload is to ask for to be placed so, None for whole on all workers."""
    workers = None if len(placed.workers) == num_workers else placed.workers
    split = {dim: axes for dim, axes in enumerate(placed.dims) if axes}
    if not split:
        return None if workers is None else SignalConfig(ShardConfig(replicated=True, axis=0, workers=workers))
    if len(placed.axes) == 1:
        return SignalConfig(ShardConfig(axis=next(iter(split)), workers=workers))
    return SignalConfig(ShardConfig(dims=dict(split), workers=workers), mesh=dict(placed.axes))


__all__ = ["Place", "Places", "places", "signal_of", "wanted"]

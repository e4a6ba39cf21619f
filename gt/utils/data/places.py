"""Where a loader is within an epoch, so that another one, in another process, can go on there.

Owns: what is noted of an epoch, and beginning one in its middle: the samplers draw their order again from the states of their generators
noted when they drew it, and the batches that were given are passed over without their data. Must not know: how batches are made.
Next: ``loading``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from gt.random import Generator, default_generator

States = dict[str, Any]
DEFAULT = "default"


def states_of(generators: dict[str, Any]) -> States:
    """Give the states of generators, and of this thread's default one, as plain values."""
    found: States = {DEFAULT: default_generator().get_state()}
    for name, generator in generators.items():
        state = generator.get_state()
        found[name] = state if isinstance(generator, Generator) else state.numpy().tobytes().hex()
    return found


def put_back(generators: dict[str, Any], states: States) -> None:
    """Give generators, and this thread's default one if it is among them, the states that ``states_of`` found."""
    for name, state in states.items():
        if name == DEFAULT:
            default_generator().set_state(state)
        elif isinstance(generators[name], Generator):
            generators[name].set_state(state)
        else:
            generators[name].set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))


class Epoch:
    """One way through the data: the generators' states when it began and when its order was first asked for, and what was given since.

    ``ahead``: batches are made before they are asked for; ``processes``: by processes. ``drawn``: the default generator of the thread
    that makes them, behind the last one given. ``resumed``: the state that is gone on with, for which the generators are as then.
    """

    def __init__(self, generators: dict[str, Any], ahead: bool, processes: bool, resumed: States | None) -> None:
        self.generators, self.ahead, self.processes, self.resumed = generators, ahead, processes, resumed
        self.begin = states_of(generators)
        self.order: States | None = None if resumed is None else resumed["order"]
        self.given: int = 0 if resumed is None else resumed["given"]
        self.drawn: Any = None if resumed is None else resumed["drawn"]
        self.over = False

    def state(self) -> States:
        """Give what another loader needs to go on."""
        return {"given": self.given, "begin": self.begin, "order": self.order, "drawn": self.drawn}

    def behind(self, values: Iterator[Any]) -> Iterator[Any]:
        """Give what order or batches an iterator gives; behind those that were given already, if the epoch is gone on with."""
        if self.order is None:
            self.order = states_of(self.generators)
        else:
            before = states_of(self.generators)
            put_back(self.generators, self.order)
            for _ in islice(values, self.given):
                pass
            if not self.ahead:
                put_back(self.generators, before)
            elif self.drawn is not None and not self.processes:
                default_generator().set_state(self.drawn)
        yield from values

    def marked(self, source: Iterator[Any], threaded: bool) -> Iterator[Any]:
        """Give batches with the state of the default generator of the thread that makes them, if that is a thread of its own."""
        if threaded and self.processes and self.drawn is not None:
            default_generator().set_state(self.drawn)
        for batch in source:
            yield batch, default_generator().get_state() if threaded else None


class Given(Iterator[Any]):
    """Counts the batches of an epoch as they are given."""

    def __init__(self, made: Iterator[Any], epoch: Epoch) -> None:
        self._made, self.epoch = made, epoch

    def __iter__(self) -> Given:
        return self

    def __del__(self) -> None:
        self.epoch.over = True  # a loop that was left is not gone on with

    def __next__(self) -> Any:
        try:
            batch, drawn = next(self._made)
        except StopIteration:
            self.epoch.over = True
            raise
        self.epoch.given += 1
        self.epoch.drawn = drawn
        return batch


class Order:
    """What torch's iterators take the order of a loader from: each time for the epoch that begins."""

    def __init__(self, loader: Any, sampler: Any) -> None:
        self._loader, self._sampler = weakref.ref(loader), sampler

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader()
        epoch = None if loader is None else loader._begun
        return iter(self._sampler) if epoch is None else epoch.behind(iter(self._sampler))

    def __len__(self) -> int:
        return len(self._sampler)


__all__ = ["DEFAULT", "Epoch", "Given", "Order", "put_back", "states_of"]

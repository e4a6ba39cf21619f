"""Random streams: which (seed, stream) the next random op gets.

Owns: generators and the default one of each thread. Random values are a function of (seed, stream, element index), so they
do not depend on workers, flushes or backends. Next: ``gt.ir.ops.random``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gt.devices import device as Device  # noqa: N812 - a generator has one of its own
from gt.thread_state import ThreadState
from gt.trace import state


class Generator:
    """A seed and the number of the next stream. Each random op takes one stream. A device is checked and changes nothing."""

    def __init__(self, device: Any = None) -> None:
        if device is not None:
            Device(device)
        self._seed = 0
        self._stream = 0

    @property
    def device(self) -> Device:
        """The CPU: numbers do not depend on where they are drawn."""
        return Device("cpu")

    def manual_seed(self, seed: int) -> Generator:
        """Start again from ``seed``. Errors: RuntimeError for no integer, ValueError outside -2**63 to 2**64 - 1."""
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise RuntimeError(f"manual_seed expected a long, but got {type(seed).__name__}")
        if not -(2**63) <= int(seed) < 2**64:
            raise ValueError(f"Overflow when unpacking long long: a seed has 64 bits, got {seed}")
        self._seed = (int(seed) + 2**63) % 2**64 - 2**63
        self._stream = 0
        return self

    def seed(self) -> int:
        """Start again from a seed the system draws, and give it."""
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 1)
        return self._seed

    def initial_seed(self) -> int:
        """Give the seed, as a number from 0 to 2**64 - 1."""
        return self._seed % 2**64

    def get_state(self) -> tuple[int, int]:
        """Give (seed, stream): the whole state."""
        return self._seed, self._stream

    def set_state(self, state: tuple[int, int]) -> Generator:
        self._seed, self._stream = int(state[0]), int(state[1])
        return self

    def clone_state(self) -> Generator:
        """Give another generator, which goes on from here too."""
        return Generator().set_state(self.get_state())


class _Default(ThreadState):
    """The default generator of each thread. The main thread's starts from a drawn seed; others from it and their number."""

    def begin(self) -> None:
        self.generator = Generator()
        self.generator.seed()


_default = _Default()


def default_generator() -> Generator:
    """Give this thread's default generator."""
    return _default.generator


class Drawn:
    """A (seed, stream) that a generator gave; called again, it is the next one."""

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.last = self()

    def __call__(self) -> tuple[int, int]:
        g = self.generator
        self.last = g._seed, g._stream
        g._stream += 1
        return self.last

    def again(self, part: int) -> tuple[int]:
        """Give the latest seed (0) or stream (1) once more."""
        return (self.last[part],)


def draw(generator: Generator | None) -> tuple[int, int]:
    """Take the next (seed, stream)."""
    drawn = Drawn(generator if generator is not None else _default.generator)
    if state.recorder is not None:
        state.recorder.drawn(drawn)
    return drawn.last


def manual_seed(seed: int) -> Generator:
    """Start this thread's random streams again from ``seed``."""
    return _default.generator.manual_seed(int(seed))


def seed() -> int:
    """Start this thread's random streams again from a seed the system draws, and give it."""
    return _default.generator.seed()


@contextmanager
def fork_rng(devices: object = None, enabled: bool = True) -> Iterator[None]:
    """Put the default generator's state back at the end of a block."""
    before = get_rng_state()
    try:
        yield
    finally:
        if enabled:
            set_rng_state(before)


def initial_seed() -> int:
    """Give the default generator's seed."""
    return _default.generator.initial_seed()


def get_rng_state() -> tuple[int, int]:
    """Give the default generator's state."""
    return _default.generator.get_state()


def set_rng_state(new_state: tuple[int, int]) -> None:
    """Set the default generator's state."""
    _default.generator.set_state(new_state)

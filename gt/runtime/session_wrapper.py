"""What stands before a session: all that goes in and comes out passes through it.

Owns: ``SessionWrapper``. Must not know: what it is put there for. Next: ``gt.checking``, ``gt.scripted``, ``gt.telling``, which are wrappers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.ir.graph import Graph
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar, TensorType
from gt.runtime.errors import Fault
from gt.runtime.session import Session

if TYPE_CHECKING:
    from gt.runtime.buffer_reasons import BufferReasons


class SessionWrapper:
    """A ``Session`` that passes on to ``inner`` whatever a subclass does not do itself. ``graphs``: those defined so far, by key."""

    def __init__(self, inner: Session) -> None:
        self.inner = inner
        self.graphs: dict[int, Graph] = {}

    def define(self, key: int, graph: Graph) -> None:
        self.graphs[key] = graph
        self.inner.define(key, graph)

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        return self.inner.run(key, inputs, outputs, scalars, frees, replaces, reads)

    def await_window(self) -> None:
        self.inner.await_window()

    def room(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        return self.inner.room(shape, dtype)

    def put(self, buffer: int, type: TensorType, data: np.ndarray, signal: SignalConfig | None) -> None:
        self.inner.put(buffer, type, data, signal)

    def fetch(self, buffer: int) -> Future[np.ndarray]:
        return self.inner.fetch(buffer)

    def explain(self, buffer: int) -> Future[BufferReasons]:
        return self.inner.explain(buffer)

    def free(self, buffers: Sequence[int]) -> None:
        self.inner.free(buffers)

    def num_workers(self) -> int:
        return self.inner.num_workers()

    def workers(self) -> tuple[int, ...]:
        return self.inner.workers()

    @property
    def closed(self) -> Fault | None:
        return self.inner.closed

    def close(self) -> None:
        self.inner.close()


__all__ = ["SessionWrapper"]

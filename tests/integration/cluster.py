"""Hand-written graphs and small clients for tests of the runtime with real processes.

Next: ``test_runtime``.
"""

from __future__ import annotations

import itertools

import numpy as np

from gt.ir import ops  # noqa: F401  the op table
from gt.ir.graph import Attrs, Graph, Location, Node, Value
from gt.ir.opdef import OPS
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import TensorType, float32
from gt.runtime.session import Session

LINE = Location("train.py", 12, "step", "y = x + x")


def rows() -> SignalConfig:
    return SignalConfig(shard=ShardConfig(axis=0))


def cols() -> SignalConfig:
    return SignalConfig(shard=ShardConfig(axis=1))


def graph_of(op: str, *types: TensorType, attrs: Attrs = ()) -> Graph:
    """Give the graph of one op on inputs of these types."""
    inputs = tuple(Value(t) for t in types)
    outputs = tuple(Value(t) for t in OPS[op].infer_types(types, attrs))
    return Graph(op, inputs, (), (Node(OPS[op], inputs, outputs, attrs, LINE),), outputs)


class Desk:
    """A session with buffers and keys counted for the caller."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.count = itertools.count(1)
        self.keys: dict[object, int] = {}

    def put(self, array: np.ndarray, signal: SignalConfig | None = None) -> int:
        buffer = next(self.count)
        self.session.put(buffer, TensorType(array.shape, float32), np.array(array, np.float32), signal)
        return buffer

    def run(
        self, op: str, *operands: tuple[int, tuple[int, ...]], attrs: Attrs = (), frees: tuple[int, ...] = ()
    ) -> int:
        """Run one op on (buffer, shape) operands."""
        types = tuple(TensorType(shape, float32) for _, shape in operands)
        key = self.keys.get((op, types, attrs))
        if key is None:
            key = self.keys[op, types, attrs] = len(self.keys) + 1
            self.session.define(key, graph_of(op, *types, attrs=attrs))
        out = next(self.count)
        self.session.run(key, [b for b, _ in operands], [out], [], list(frees))
        return out

    def get(self, buffer: int, timeout: float = 30.0) -> np.ndarray:
        return self.session.fetch(buffer).result(timeout)

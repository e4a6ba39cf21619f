"""Runs programs with NumPy: the reference that every other engine is tested against (``GT_BACKEND=numpy``).

Owns: ``NumpyEngine``. Values are arrays in NumPy form (bfloat16 as rounded float32). Nothing is updated in place.
Must not know: torch. Next: ``gt.ir.evaluate`` (what each op means).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from gt.ir.evaluate import as_dtype, evaluate_node, from_wire, to_wire
from gt.ir.graph import Attrs, Location
from gt.ir.opdef import OpDef
from gt.ir.program import Collective, Compute, Free, Program, WireNode
from gt.ir.types import DType, Scalar, TensorType
from gt.runtime.engine import Clock, Comm, ExecutionError, LoadedStats, Tier, given_types
from gt.runtime.errors import Fault
from gt.runtime.render import checked
from gt.runtime.salvage import Salvaged, salvage

Array = np.ndarray[Any, Any]
Ready = tuple[OpDef, Attrs, tuple[TensorType, ...]]


class NumpyLoaded:
    """A program interpreted node by node."""

    tier: Tier = "eager"
    joint = None
    tiers = ""
    uncompiled = "not compiled: the numpy backend compiles nothing"
    swappable: tuple[int, ...] | None = ()

    def __init__(self, program: Program) -> None:
        self.program = program
        self.stats = LoadedStats(pieces=1)
        self.undoes = program.refuses
        self.table = [Location(*entry) for entry in program.locations]
        self.ready: list[list[Ready]] = [
            [_ready(node) for node in step.nodes] if isinstance(step, Compute) else [] for step in program.steps
        ]
        self.outputs = {slot for _, slot in program.outputs}
        self.left: tuple[int, dict[int, Array]] | None = None  # of a failed run: the node it failed at, and the values

    def swap(self, compiled: Collection[int]) -> None:
        pass

    def run(
        self, inputs: list[Array], scalars: Sequence[Scalar], comm: Comm | None = None, tiers: str | None = None
    ) -> list[Array]:
        slots = self._slots(inputs, scalars)
        inputs.clear()
        at = 0
        for step, ready in zip(self.program.steps, self.ready, strict=True):
            if isinstance(step, Compute):
                for node, (op, attrs, types) in zip(step.nodes, ready, strict=True):
                    try:
                        slots.update(zip(node.outputs, self._node(node, op, attrs, types, slots), strict=True))
                    except ExecutionError:
                        self.left = at, slots
                        raise
                    at += 1
            elif isinstance(step, Collective):
                assert comm is not None, f"{step.kind} needs other workers"
                result = comm.run(step, slots[step.input] if step.input >= 0 else None)
                if step.output >= 0:
                    slots[step.output] = result
            elif isinstance(step, Free):
                for slot in step.slots:
                    slots.pop(slot, None)
        self.stats.runs += 1
        return [np.array(slots[slot]) for _, slot in self.program.outputs]

    def _slots(self, inputs: Sequence[Array | None], scalars: Sequence[Scalar]) -> dict[int, Array]:
        slots = {slot: array for (_, slot), array in zip(self.program.inputs, inputs, strict=False) if array is not None}
        for (slot, dtype), value in zip(self.program.scalars, scalars, strict=True):
            with np.errstate(all="ignore"):
                slots[slot] = as_dtype(np.asarray(value), DType.by_name[dtype])
        return slots

    def salvage(
        self, error: Exception | None, inputs: Sequence[Array | None], scalars: Sequence[Scalar], causes: Mapping[int, Fault]
    ) -> Salvaged | None:
        given = self._slots(inputs, scalars)
        left, self.left = self.left if error is not None else (0, {}), None
        if left is None:
            return None

        def run(node: WireNode, operands: Sequence[Array]) -> tuple[Array, ...]:
            return self._node(node, *_ready(node), dict(zip(node.inputs, operands, strict=True)))

        found = salvage(self.program, left[0], left[1] | given, {self.program.inputs[i][1]: cause for i, cause in causes.items()}, run)
        found.outputs[:] = [None if array is None else np.array(array) for array in found.outputs]
        return found

    def _node(
        self, node: WireNode, op: OpDef, attrs: Attrs, types: tuple[TensorType, ...], slots: dict[int, Array]
    ) -> tuple[Array, ...]:
        try:
            return evaluate_node(op, [slots[slot] for slot in node.inputs], attrs, types)
        except Exception as e:
            location = self.table[node.loc] if node.loc >= 0 else None
            given = given_types(node, self.program.made_types, slots)
            raise ExecutionError(op.name, location, f"{type(e).__name__}: {e}", given) from e


def _ready(node: WireNode) -> Ready:
    op, attrs, types = checked(node)
    return op, tuple(attrs.items()), types


class NumpyEngine:
    """Runs programs on the CPU with NumPy. Keeps nothing."""

    clock: Clock | None = None

    def load(self, program: Program) -> NumpyLoaded:
        return NumpyLoaded(program)

    def from_host(self, array: Array, dtype: DType) -> Array:
        owned = from_wire(array, array.shape, dtype)
        return owned if owned.flags.writeable else np.array(owned)

    def from_shared(self, array: Array, dtype: DType) -> Array:
        return self.from_host(np.array(array), dtype)

    def to_host(self, value: Array, dtype: DType, out: Array | None = None) -> Array:
        array = to_wire(value, dtype)
        if out is None:
            return np.array(array, order="C")
        np.copyto(out, array)
        return out

    def synchronize(self) -> None:
        """Nothing is ever under way."""

    def start_thread(self) -> None:
        """Nothing to prepare."""

    def close(self) -> None:
        """Nothing to end."""


__all__ = ["NumpyEngine", "NumpyLoaded"]

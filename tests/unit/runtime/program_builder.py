"""Writes worker programs by hand, for tests of what runs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

import gt.ir.ops  # noqa: F401 - fills the op table
from gt.ir.opdef import OPS
from gt.ir.program import Collective, Compute, Program, Step, WireNode, WireType, pack_attrs
from gt.ir.types import DType, TensorType, float32

Inplace = tuple[tuple[int, int], ...]


class ProgramBuilder:
    """Gives a slot for each input, scalar and node; ``cut`` ends a region, ``collective`` stands between two."""

    def __init__(self) -> None:
        self.types: list[TensorType] = []
        self.inputs: list[int] = []
        self.scalars: list[tuple[int, str]] = []
        self.steps: list[Step] = []
        self.nodes: list[WireNode] = []
        self.inplace: list[tuple[int, Inplace]] = []
        self.lines = 0

    def slot(self, type_: TensorType) -> int:
        self.types.append(type_)
        return len(self.types) - 1

    def input(self, *shape: int, dtype: DType = float32) -> int:
        self.inputs.append(self.slot(TensorType(shape, dtype)))
        return self.inputs[-1]

    def scalar(self, dtype: DType = float32) -> int:
        slot = self.slot(TensorType((), dtype))
        self.scalars.append((slot, dtype.name))
        return slot

    def apply(self, op: str, *inputs: int, inplace: Inplace = (), **attrs: Any) -> tuple[int, ...]:
        """Append a node; its location is line ``n`` for the n-th node."""
        items = tuple(attrs.items())
        types = OPS[op].infer_types(tuple(self.types[i] for i in inputs), items)
        outputs = tuple(self.slot(t) for t in types)
        if inplace:
            self.inplace.append((len(self.nodes), inplace))
        wire = tuple(WireType.of(t) for t in types)
        self.nodes.append(WireNode(op, inputs, outputs, wire, pack_attrs(items), self.lines))
        self.lines += 1
        return outputs

    def __call__(self, op: str, *inputs: int, inplace: Inplace = (), **attrs: Any) -> int:
        (output,) = self.apply(op, *inputs, inplace=inplace, **attrs)
        return output

    def cut(self, compile: bool = False) -> None:
        made = {slot for node in self.nodes for slot in node.outputs}
        read = tuple(dict.fromkeys(s for node in self.nodes for s in node.inputs if s not in made))
        self.steps.append(Compute(tuple(self.nodes), read, tuple(made), "k", compile, tuple(self.inplace)))
        self.nodes, self.inplace = [], []

    def collective(self, kind: str, slot: int) -> int:
        self.cut()
        output = self.slot(self.types[slot])
        type_ = self.types[slot]
        number = sum(isinstance(s, Collective) for s in self.steps)
        wire, attrs = WireType.of(type_), (("op", "sum"),)
        step = Collective(kind, number, slot, output, wire, (0, 1), attrs, type_.nbytes, self.lines)
        self.lines += 1
        self.steps.append(step)
        return output

    def program(self, *outputs: int, compile: bool = False) -> Program:
        if self.nodes:
            self.cut(compile)
        return Program(
            0, tuple(enumerate(self.inputs)), tuple(self.scalars), tuple(self.steps), tuple(enumerate(outputs)),
            tuple(("model.py", line + 1, "main") for line in range(self.lines)), name="test",
        )  # fmt: skip


class Doubling:
    """A Comm of two workers that hold the same. ``captured``: whether a CUDA graph could hold its collectives."""

    def __init__(self, captured: bool = False) -> None:
        self.asked: list[int] = []
        self.captured = captured

    def captures(self, groups: Iterable[tuple[int, ...]]) -> bool:
        return self.captured

    def finish(self) -> None:
        """Nothing is under way."""

    def run(self, step: Collective, tensor: Any) -> Any:
        self.asked.append(step.number)
        return tensor + tensor


def run_on(
    engine: Any, program: Program, inputs: Sequence[np.ndarray], scalars: Sequence[Any] = ()
) -> list[np.ndarray]:
    """Load and run once; inputs and outputs in wire form."""
    assert len(program.inputs) == len(inputs)
    loaded = engine.load(program)
    held = [engine.from_host(np.array(a), dtype_of_wire(a)) for a in inputs]
    outputs = loaded.run(held, scalars, Doubling())
    declared = {s: t for step in program.steps if isinstance(step, Compute) for n in step.nodes
                for s, t in zip(n.outputs, n.types, strict=True)}  # fmt: skip
    declared |= {step.output: step.type for step in program.steps if isinstance(step, Collective)}
    return [
        engine.to_host(v, DType.by_name[declared[slot].dtype])
        for v, (_, slot) in zip(outputs, program.outputs, strict=True)
    ]


def dtype_of_wire(array: np.ndarray) -> DType:
    """Give the dtype of an array in wire form; uint16 is bfloat16's."""
    return DType.by_name["bfloat16" if array.dtype == np.uint16 else str(array.dtype)]

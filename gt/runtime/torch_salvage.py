"""What is left of a torch run that met an error: found in the frames that the error passed through, where every live value is.

Owns: ``salvage_run``. The rest of the program runs op by op on them. Must not know: tiers, buffers.
Next: ``salvage`` (which ops run), ``executor`` (whose program it is), ``render`` (the source that the frames belong to).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import torch

from gt.ir.graph import Location
from gt.ir.opdef import OPS
from gt.ir.program import Compute, Program, WireNode
from gt.ir.types import Scalar
from gt.runtime import kernels
from gt.runtime.engine import ExecutionError, given_types, reason_of
from gt.runtime.errors import Fault
from gt.runtime.layout import Stretch, lay_out
from gt.runtime.render import build, render_piece
from gt.runtime.salvage import Salvaged, nodes_of, salvage

if TYPE_CHECKING:
    from gt.runtime.piece import TorchPiece

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True)
class Left:
    """Where a run was left: the node it goes on with, the values there are, by slot, and which inputs had been overwritten."""

    start: int
    values: dict[int, Tensor]
    overwritten: frozenset[int] = frozenset()


def salvage_run(
    program: Program,
    left: Left,
    scalars: Sequence[Scalar],
    causes: Mapping[int, Fault],
    device: torch.device,
) -> Salvaged:
    """Run the rest of a program. ``causes``: why values are missing, by slot."""
    table = [Location(*entry) for entry in program.locations]
    given = dict(zip((slot for slot, _ in program.scalars), scalars, strict=True))
    constants = {node.outputs[0]: node for node in nodes_of(program) if OPS[node.op].literal and not node.types[0].shape}

    def run(node: WireNode, operands: Sequence[Any]) -> list[Tensor]:
        """Run a node as the whole program would: with numbers and constants as such, in memory of its own."""
        own = {slot: value for slot, value in zip(node.inputs, operands, strict=True) if slot not in given and slot not in constants}
        nodes = [constants[slot] for slot in dict.fromkeys(node.inputs) if slot in constants]
        alone = msgspec.structs.replace(
            program,
            inputs=tuple(enumerate(own)),
            scalars=tuple(s for s in program.scalars if s[0] in node.inputs),
            steps=(Compute((*nodes, node), tuple(own), node.outputs, ""),),
            outputs=tuple(enumerate(node.outputs)),
            donated=(),
        )
        (part,) = lay_out(alone).stretches
        function = build(render_piece(part.piece, "eager"), torch=torch, kernels=kernels, device=device)
        try:
            results: list[Tensor] = function(list(own.values()), tuple(given[alone.scalars[at][0]] for at in part.scalars))
        except Exception as error:
            types = given_types(node, program.made_types, own)
            raise ExecutionError(node.op, table[node.loc] if node.loc >= 0 else None, reason_of(error), types) from error
        return results

    with torch.inference_mode():
        everything: dict[int, Any] = {**given, **{slot: run(node, ())[0] for slot, node in constants.items()}, **left.values}
        return salvage(program, left.start, everything, causes, run, left.overwritten)


def left_of(
    error: BaseException | None, program: Program, driver: Callable[..., Any] | None, pieces: Iterable[TorchPiece]
) -> Left | None:
    """Give where a run failed; None if the error came from elsewhere.

    What a compiled piece had begun to overwrite is not known, so there is nothing where such a piece failed.
    """
    frames: dict[CodeType, tuple[FrameType, int]] = {}
    while error is not None:
        if getattr(error, "overwrote", False):
            return None
        traceback = error.__traceback__
        while traceback is not None:
            frames[traceback.tb_frame.f_code] = traceback.tb_frame, traceback.tb_lineno
            traceback = traceback.tb_next
        error = error.__cause__
    values: dict[int, Tensor] = {}
    nodes = list(nodes_of(program))
    root: dict[int, int] = {}
    overwritten: set[int] = set()
    if driver is not None and driver.__code__ in frames:
        values.update(_tensors(frames[driver.__code__][0], lambda number: number))
    first = 0
    for piece in pieces:
        found = frames.get(piece.eager.__code__)
        count = len(piece.piece.nodes)
        at = count if found is None else piece.source.nodes[found[1] - 1]
        for i, pairs in piece.piece.inplace:
            node = nodes[first + i]
            for result, operand in pairs if i < at else ():
                slot = root[node.outputs[result]] = root.get(node.inputs[operand], node.inputs[operand])
                overwritten.add(slot)
        if found is not None:
            slots = _slots(piece.stretch, program, nodes[first : first + count])
            values |= _tensors(found[0], slots.__getitem__)
            return Left(first + at, values, frozenset(overwritten)) if at >= 0 else None
        first += count
    return None


def _slots(stretch: Stretch, program: Program, nodes: Iterable[WireNode]) -> list[int]:
    """Give the program's slots in the order in which a piece numbers them."""
    scalars = (program.scalars[at][0] for at in stretch.scalars)
    return [*stretch.inputs, *scalars, *(slot for node in nodes for slot in node.outputs)]


def _tensors(frame: FrameType, slot: Callable[[int], int]) -> dict[int, Tensor]:
    found = frame.f_locals.items()
    return {slot(int(name[1:])): value for name, value in found if name[0] == "v" and isinstance(value, torch.Tensor)}


__all__ = ["Left", "left_of", "salvage_run"]

"""What is left of a run that met an error: the ops that do not depend on the failed one still run, one after the other.

Owns: ``Salvaged`` and ``salvage``. An op that fails fails its results, and what reads them; nothing is overwritten any more, so inputs
that were to be updated are what they were. Must not know: torch, how an op runs, buffers.
Next: ``executor`` and ``numpy_engine`` (who say how far the run came), ``runner`` (what becomes of the rest).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gt.ir.program import Compute, Program, WireNode
from gt.runtime.errors import Fault


@dataclass(frozen=True)
class Salvaged:
    """``outputs``: in the program's order, None where ``causes`` says why there is none. ``kept``: the inputs, by position, that hold
    what they held before the run.
    """

    outputs: list[Any]
    causes: dict[int, Exception | Fault]
    kept: dict[int, Any]


def nodes_of(program: Program) -> Iterator[WireNode]:
    """Give the nodes of a program in order."""
    for step in program.steps:
        if isinstance(step, Compute):
            yield from step.nodes


def salvage(
    program: Program,
    start: int,
    values: dict[int, Any],
    causes: Mapping[int, Exception | Fault],
    run: Callable[[WireNode, Sequence[Any]], Sequence[Any]],
    overwritten: Container[int] = (),
) -> Salvaged:
    """Run a program without collectives from its node ``start`` on. ``values``: by slot, what is there; scalars and constants too.

    ``causes``: why other slots are not. ``run`` gives the results of a node, in memory of their own. ``overwritten``: slots of inputs
    whose memory the nodes before ``start`` have used for something else.
    """
    lost = dict(causes)
    outputs = [slot for _, slot in program.outputs]
    last: dict[int, int] = {}
    nodes = list(nodes_of(program))
    for i, node in enumerate(nodes):
        last.update(dict.fromkeys(node.inputs, i))
    staying = {slot for _, slot in program.inputs}.union(outputs)
    for i, node in enumerate(nodes[start:], start):
        missing = [slot for slot in node.inputs if slot not in values]
        if missing:
            lost.update(dict.fromkeys(node.outputs, next(lost[s] for s in missing)))
            continue
        try:
            values.update(zip(node.outputs, run(node, [values[slot] for slot in node.inputs]), strict=True))
        except Exception as error:
            lost.update(dict.fromkeys(node.outputs, error))
        for slot in node.inputs:
            if last[slot] == i and slot not in staying:
                values.pop(slot, None)
    return Salvaged(
        [values.get(slot) for slot in outputs],
        {i: lost[slot] for i, slot in enumerate(outputs) if slot not in values},
        {i: values[slot] for i, (_, slot) in enumerate(program.inputs) if slot in values and slot not in overwritten},
    )


__all__ = ["Salvaged", "nodes_of", "salvage"]

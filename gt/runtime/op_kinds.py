"""What kinds of op a program's time goes to: matmul, reduction, elementwise, copy. An estimate from its ops and the types of its inputs.

Nothing is measured op by op: a run's time is shared out by what each op has to compute and to touch. Kinds follow from the op table, no op
is named. Owns: ``KINDS``, ``shares``. Must not know: runs, engines. Next: ``usage`` (who asks), ``gt.passes.work`` (an op's kind).
"""

from __future__ import annotations

from collections.abc import Sequence

from gt.ir.ops import OPS
from gt.ir.program import Collective, Compute, Program, unpack_attrs
from gt.ir.types import DType, TensorType
from gt.passes.work import kind_of, multiply_adds

KINDS = ("matmul", "elementwise", "reduction", "copy")
CALL = 40_000  # bytes touched in the time that the call of an op takes
FLOPS = 10  # multiply-adds in the time that a byte takes


def shares(program: Program, inputs: Sequence[TensorType]) -> dict[str, float]:
    """Give what part of a run's own time goes to each kind; {} for a program that computes nothing. ``inputs``: in the program's order."""
    types = {slot: type_ for (_, slot), type_ in zip(program.inputs, inputs, strict=True)}
    types |= {slot: TensorType((), DType.by_name[name]) for slot, name in program.scalars}
    spent = dict.fromkeys(KINDS, 0.0)
    for step in program.steps:
        if isinstance(step, Collective) and step.output >= 0:
            types[step.output] = step.type.tensor_type
        elif isinstance(step, Compute):
            for node in step.nodes:
                op, attrs = OPS[node.op], unpack_attrs(node.attrs)
                operands, results = [types[slot] for slot in node.inputs], [t.tensor_type for t in node.types]
                types.update(zip(node.outputs, results, strict=True))
                touched = 0 if op.view else sum(t.nbytes for t in (*operands, *results))
                spent[kind_of(op, operands, results, attrs)] += CALL + max(
                    touched, multiply_adds(op, operands, results, attrs) / FLOPS
                )
    total = sum(spent.values())
    return {kind: part / total for kind, part in spent.items() if part} if total else {}


__all__ = ["KINDS", "shares"]

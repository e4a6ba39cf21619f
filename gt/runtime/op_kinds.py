"""What kinds of op a program's time goes to: matmul, reduction, elementwise, copy. An estimate from its ops and the types of its inputs.

Nothing is measured op by op: a run's time is shared out by what each op has to compute and to touch. Kinds follow from the op table, no op
is named. Owns: ``KINDS``, ``kind_of``, ``shares``. Must not know: runs, engines. Next: ``usage`` (who asks), ``gt.passes.work``.
"""

from __future__ import annotations

from collections.abc import Sequence

from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.program import Collective, Compute, Program, unpack_attrs
from gt.ir.types import DType, TensorType
from gt.passes.work import multiply_adds

KINDS = ("matmul", "elementwise", "reduction", "copy")
CALL = 40_000  # bytes touched in the time that the call of an op takes
FLOPS = 10  # multiply-adds in the time that a byte takes


def kind_of(op: OpDef, operands: Sequence[TensorType], results: Sequence[TensorType], attrs: Attrs) -> str:
    """Give the kind of a call: matmul sums products, reduction works along a dim, elementwise maps elements, copy only moves or makes them."""
    if op.view or op.creates or op.literal or not operands:
        return "copy"
    if multiply_adds(op, operands, results, attrs):
        return "matmul"
    rule = op.rule(operands, results, attrs)
    kinds = {kind for _, kind in rule.kinds} if rule is not None else {"whole"}
    if kinds & {"sum", "max", "min"} or (rule is not None and rule.halos):
        return "reduction"
    if op.indices or "near" in kinds or "index" in kinds:
        return "copy"
    moves = bool(op.linear) and all(r.shape != operands[0].shape for r in results)
    if kinds:
        return "copy" if moves else "reduction"
    return "elementwise"


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


__all__ = ["KINDS", "kind_of", "shares"]

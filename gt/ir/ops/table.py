"""The op table as a page: what ``docs/reference/operations.md`` is generated from.

Next: ``gt.ir.opdef`` (what the fields mean).
"""

from __future__ import annotations

from gt.ir.opdef import OPS, OpDef

COLUMNS = ("op", "operands", "meaning", "gradient", "sharding")


def _gradient(op: OpDef) -> str:
    if op.vjp is not None:
        return "yes"
    return "by decomposition" if op.decompose is not None else ""


def _sharding(op: OpDef) -> str:
    if isinstance(op.factors, str):
        return f"`{op.factors}`".replace("|", "\\|")
    if op.factors is not None:
        return "by shape"
    return "by decomposition" if op.decompose is not None else ""


def markdown() -> str:
    """Give a Markdown table of every op, by name."""
    rows = [COLUMNS, ("---",) * len(COLUMNS)]
    for name in sorted(OPS):
        op = OPS[name]
        doc = op.doc.replace("|", "\\|")
        rows.append(
            (f"`{name}`", f"`{' '.join(op.operands)}`" if op.operands else "", doc, _gradient(op), _sharding(op))
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


__all__ = ["markdown"]

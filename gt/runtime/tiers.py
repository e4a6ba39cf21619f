"""How the pieces of a program ran, a letter for each, as messages and the run log name it: what is made again runs so, bit for bit.

Eager code in a CUDA graph has its scalars on the device and rounds otherwise here and there (x / s is a product with 1 / s only without
it), so it is a tier of its own; compiled code gives the same in a graph and outside. Next: ``piece`` (who runs at them).
"""

from __future__ import annotations

EAGER, AS_IN_GRAPH, COMPILED = "e", "g", "c"


def compiled_pieces(tiers: str) -> tuple[int, ...]:
    """Give which pieces ran compiled code."""
    return tuple([i for i, tier in enumerate(tiers) if tier == COMPILED])


__all__ = ["AS_IN_GRAPH", "COMPILED", "EAGER", "compiled_pieces"]

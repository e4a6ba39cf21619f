"""The op table. Importing this package enters every op in ``gt.ir.opdef.OPS``.

One file per family; an op's declaration is its only home.
"""

from gt.ir.ops import (
    broadcast,
    compare,
    creation,
    elementwise,
    index,
    matmul,
    movement,
    nn,
    optim,
    random,
    reduce,
    special,
)

from gt.ir.ops import collective, grad  # isort: skip
from gt.ir.opdef import OPS  # isort: skip

__all__ = [
    "OPS", "broadcast", "collective", "compare", "creation", "elementwise", "grad", "index", "matmul", "movement", "nn", "optim",
    "random", "reduce", "special",
]  # fmt: skip

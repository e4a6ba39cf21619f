"""The op table. Importing this package enters every op in ``gt.ir.opdef.OPS``.

One file per family; an op's declaration is its only home.
"""

from gt.ir.opdef import OPS
from gt.ir.ops import (
    activation,
    attention,
    broadcast,
    collective,
    compare,
    convolution,
    creation,
    elementwise,
    grad,
    index,
    linalg,
    matmul,
    movement,
    nn,
    normalization,
    optim,
    order,
    position,
    random,
    reduce,
    special,
)

__all__ = [
    "OPS",
    "activation",
    "attention",
    "broadcast",
    "collective",
    "compare",
    "convolution",
    "creation",
    "elementwise",
    "grad",
    "index",
    "linalg",
    "matmul",
    "movement",
    "nn",
    "normalization",
    "optim",
    "order",
    "position",
    "random",
    "reduce",
    "special",
]

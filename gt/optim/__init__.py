"""``gt.optim``: optimizers with torch's arguments; one step is one node over all parameters."""

from gt.optim.optimizer import Optimizer
from gt.optim.sgd import SGD

__all__ = ["SGD", "Optimizer"]

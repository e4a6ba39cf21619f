"""``gt.optim``: optimizers and schedules with torch's arguments; one step is one node over all parameters of a group."""

from gt.optim import lr_scheduler, swa_utils
from gt.optim.adagrad import Adagrad
from gt.optim.adam import Adam, AdamW
from gt.optim.adaptive import Adadelta, Adamax, NAdam, RAdam
from gt.optim.lbfgs import LBFGS
from gt.optim.lion import Lion
from gt.optim.optimizer import Optimizer
from gt.optim.rmsprop import RMSprop
from gt.optim.sgd import SGD
from gt.optim.unfused import ASGD, Adafactor, Muon, Rprop

__all__ = [
    "ASGD", "LBFGS", "SGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "Muon", "NAdam", "Optimizer", "RAdam",
    "RMSprop", "Rprop", "lr_scheduler", "swa_utils",
]  # fmt: skip

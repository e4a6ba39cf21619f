"""``gt.optim``: optimizers and schedules with torch's arguments; one step is one node over all parameters of a group."""

from gt.optim import lr_scheduler
from gt.optim.adagrad import Adagrad
from gt.optim.adam import Adam, AdamW
from gt.optim.adaptive import Adadelta, Adamax, NAdam, RAdam
from gt.optim.lion import Lion
from gt.optim.optimizer import Optimizer
from gt.optim.rmsprop import RMSprop
from gt.optim.sgd import SGD

__all__ = [
    "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "NAdam", "Optimizer", "RAdam", "RMSprop", "lr_scheduler",
]  # fmt: skip

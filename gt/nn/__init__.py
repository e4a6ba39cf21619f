"""``gt.nn``: modules, layers, losses and, as in the documented quick start, optimizers."""

from gt.nn import functional, init
from gt.nn.layers import (
    GELU, BCEWithLogitsLoss, CrossEntropyLoss, Dropout, Embedding, Flatten, Identity, LayerNorm, Linear, LogSoftmax, ModuleDict,
    ModuleList, MSELoss, ReLU, Sequential, Sigmoid, SiLU, Softmax, Tanh,
)  # fmt: skip
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.optim import SGD

__all__ = [
    "BCEWithLogitsLoss", "CrossEntropyLoss", "Dropout", "Embedding", "Flatten", "GELU", "Identity", "LayerNorm", "Linear",
    "LogSoftmax", "MSELoss", "Module", "ModuleDict", "ModuleList", "Parameter", "ReLU", "SGD", "Sequential", "SiLU", "Sigmoid",
    "Softmax", "Tanh", "functional", "init",
]  # fmt: skip

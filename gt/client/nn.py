"""Names that layers and losses had before gt was rewritten. A layer's weight is [out, in] now, as torch's. Next: ``gt.earlier``."""

from gt.earlier import moved

__getattr__ = moved(
    "gt.client.nn", Module="gt.nn.Module", Linear="gt.nn.Linear", SGD="gt.optim.SGD", mse_loss="gt.nn.functional.mse_loss",
    binary_cross_entropy="gt.nn.functional.binary_cross_entropy",
    cross_entropy_loss="gt.nn.functional.binary_cross_entropy_with_logits",  # what it computed, in spite of its name
    relu="gt.relu", sigmoid="gt.sigmoid", tanh="gt.tanh",
)  # fmt: skip

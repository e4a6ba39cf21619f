"""Functions that ``torch`` itself has with other signatures than ``nn.functional``, and cells as functions.

Next: ``functional``, ``recurrent``.
"""

from __future__ import annotations

from typing import Any

from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn.recurrent import step
from gt.tensor import Tensor


def adaptive_max_pool1d(input: Tensor, output_size: Any) -> tuple[Tensor, Tensor]:
    """Give ``output_size`` maxima that cover the last dim, and where they are."""
    values, indices = F.adaptive_max_pool1d(input, output_size, return_indices=True)
    return values, indices


def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None, training: bool,
    momentum: float, eps: float, cudnn_enabled: bool = True,
) -> Tensor:  # fmt: skip
    """Normalise each channel (dim 1) by the batch's statistics while training, else by the running ones."""
    return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)


def binary_cross_entropy_with_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = 0
) -> Tensor:
    """Give the loss of logits against probabilities. ``reduction`` as of ``kl_div``."""
    return F.binary_cross_entropy_with_logits(input, target, weight, reduction=_reduction(reduction), pos_weight=pos_weight)


def embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False) -> Tensor:
    """Give rows of ``weight`` by index; the row ``padding_idx`` (-1: none) gets no gradient."""
    padding = padding_idx if padding_idx >= 0 else None
    return F.embedding(indices, weight, padding, scale_grad_by_freq=scale_grad_by_freq, sparse=sparse)


def instance_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, running_mean: Tensor | None, running_var: Tensor | None,
    use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Tensor:  # fmt: skip
    """Normalise each channel of each example over its spatial dims, or by the running statistics."""
    return F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)


def group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, cudnn_enabled: bool = True
) -> Tensor:
    """Normalise each group of channels (dim 1) of each example, then scale and shift by channel."""
    return F.group_norm(input, num_groups, weight, bias, eps)


def kl_div(input: Tensor, target: Tensor, reduction: int = 0, *, log_target: bool = False) -> Tensor:
    """Give target * (log(target) - input), ``input`` being log probabilities. ``reduction``: 0 for none, 1 for the mean, 2 for the sum."""
    kind = _reduction(reduction)
    loss: Tensor = F.kl_div(input, target, reduction="sum" if kind == "sum" else "none", log_target=log_target)
    return loss.mean() if kind == "mean" else loss


def layer_norm(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:  # fmt: skip
    """Normalise over the last dims to mean 0 and variance 1, then scale and shift."""
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


def _reduction(number: int) -> str:
    if number not in (0, 1, 2):
        raise RuntimeError(f"reduction must be 0 (none), 1 (mean) or 2 (sum), got {number}")
    return ("none", "mean", "sum")[number]


def _cell(mode: str, input: Tensor, state: tuple[Tensor, ...], w_ih: Tensor, w_hh: Tensor, b_ih: Any, b_hh: Any) -> tuple[Tensor, ...]:
    return step(mode, F.linear(input, w_ih, b_ih), state, w_hh, b_hh)


def lstm_cell(
    input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Give the next (h, c) of an LSTM."""
    h, c = _cell("LSTM", input, tuple(hx), w_ih, w_hh, b_ih, b_hh)
    return h, c


def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Give the next state of a GRU."""
    return _cell("GRU", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Give the next state of an RNN with tanh."""
    return _cell("RNN_TANH", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """Give the next state of an RNN with relu."""
    return _cell("RNN_RELU", input, (hx,), w_ih, w_hh, b_ih, b_hh)[0]


__all__ = [
    "batch_norm", "embedding", "group_norm", "gru_cell", "instance_norm", "kl_div", "layer_norm", "lstm_cell", "rnn_relu_cell",
    "rnn_tanh_cell",
]  # fmt: skip

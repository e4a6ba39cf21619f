"""Folding batch norms into the layers before them, for evaluation. Source: torch.nn.utils.fusion."""

from __future__ import annotations

import copy
from typing import Any

from gt.functions.create import ones_like, zeros_like
from gt.nn.parameter import Parameter


def fuse_conv_bn_weights(
    conv_w: Any, conv_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any, transpose: bool = False
) -> tuple[Parameter, Parameter]:
    """Give the weight and bias of the convolution that does both."""
    scale, shift = _line(bn_rm, bn_rv, bn_eps, bn_w, bn_b)
    shape = [1] * conv_w.ndim
    shape[1 if transpose else 0] = -1
    bias = (zeros_like(bn_rm) if conv_b is None else conv_b) * scale + shift
    rg = conv_w.requires_grad, conv_b.requires_grad if conv_b is not None else True
    return Parameter((conv_w * scale.reshape(shape)).detach(), rg[0]), Parameter(bias.detach().to(conv_w.dtype), rg[1])


def fuse_linear_bn_weights(
    linear_w: Any, linear_b: Any, bn_rm: Any, bn_rv: Any, bn_eps: float, bn_w: Any, bn_b: Any
) -> tuple[Parameter, Parameter]:
    """Give the weight and bias of the linear layer that does both."""
    return fuse_conv_bn_weights(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b)


def _line(mean: Any, variance: Any, eps: float, weight: Any, bias: Any) -> tuple[Any, Any]:
    weight = ones_like(mean) if weight is None else weight
    scale = weight * (variance + eps).rsqrt()
    return scale, (zeros_like(mean) if bias is None else bias) - mean * scale


def _fused(layer: Any, bn: Any, transpose: bool) -> Any:
    if layer.training or bn.training:
        raise AssertionError("Fusion only for eval!")
    fused = copy.deepcopy(layer)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_conv_bn_eval(conv: Any, bn: Any, transpose: bool = False) -> Any:
    """Give a convolution that does what ``bn`` after ``conv`` does in evaluation."""
    return _fused(conv, bn, transpose)


def fuse_linear_bn_eval(linear: Any, bn: Any) -> Any:
    """Give a linear layer that does what ``bn`` after ``linear`` does in evaluation."""
    if linear.out_features != bn.num_features and bn.num_features != 1:
        raise AssertionError("To fuse, linear.out_features == bn.num_features or bn.num_features == 1")
    return _fused(linear, bn, False)


__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]

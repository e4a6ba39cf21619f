"""Normalization layers. Running statistics are buffers, updated in place. Next: ``functional.norm``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gt.autograd import no_grad
from gt.functions import create
from gt.ir.types import int64, is_int
from gt.nn import functional as F  # noqa: N812 - torch's name
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.tensor import Tensor


class _Affine(Module):
    """Scale and shift, each of which a layer may be without."""

    weight: Parameter | None
    bias: Parameter | None

    def _register_affine(self, shape: int | tuple[int, ...], weight: bool, bias: bool, dtype: Any) -> None:
        for name, on in (("weight", weight), ("bias", weight and bias)):
            self.register_parameter(name, Parameter(create.empty(shape, dtype=dtype)) if on else None)

    def reset_parameters(self) -> None:
        """Set scale 1 and shift 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


class _NormBase(_Affine):
    """What batch and instance norm share: scale, shift, and running statistics."""

    _version = 2
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._register_affine(num_features, affine, bias, dtype)
        track = track_running_stats
        self.register_buffer("running_mean", create.zeros(num_features, dtype=dtype) if track else None)
        self.register_buffer("running_var", create.ones(num_features, dtype=dtype) if track else None)
        self.register_buffer("num_batches_tracked", create.tensor(0, dtype=int64) if track else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Start the running statistics again: mean 0, variance 1."""
        if self.track_running_stats:
            assert self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None
            with no_grad():
                self.running_mean.zero_()
                self.running_var.fill_(1)
                self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set scale 1 and shift 0, and start the running statistics again."""
        self.reset_running_stats()
        super().reset_parameters()

    def _check_input_dim(self, input: Tensor) -> None:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: dict[str, Any], strict: bool, missing_keys: list[str],
        unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        """Checkpoints of before ``num_batches_tracked`` keep the own count."""
        key = prefix + "num_batches_tracked"
        old = local_metadata.get("version") is None or local_metadata["version"] < 2
        if old and self.track_running_stats and key not in state_dict:
            state_dict[key] = self.num_batches_tracked
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)


def _dims_checked(*ranks: int) -> Any:
    """Give the input check of layers that take tensors of these ranks."""

    def _check_input_dim(self: Any, input: Tensor) -> None:
        if input.ndim not in ranks:
            raise ValueError(f"expected {' or '.join(f'{r}D' for r in ranks)} input (got {input.ndim}D input)")

    return _check_input_dim


class _BatchNorm(_NormBase):
    """Normalise channels over the batch; running statistics serve in evaluation."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        momentum: Any = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            with no_grad():
                self.num_batches_tracked.add_(1)
                if self.momentum is None:  # the average of all batches
                    momentum = 1.0 / self.num_batches_tracked
        by_batch = self.training or (self.running_mean is None and self.running_var is None)
        update = not self.training or self.track_running_stats
        return F.batch_norm(
            input, self.running_mean if update else None, self.running_var if update else None, self.weight, self.bias, by_batch, momentum,
            self.eps,
        )  # fmt: skip


class BatchNorm1d(_BatchNorm):
    """Batch norm of [n, c] or [n, c, l]."""

    _check_input_dim = _dims_checked(2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch norm of [n, c, h, w]."""

    _check_input_dim = _dims_checked(4)


class BatchNorm3d(_BatchNorm):
    """Batch norm of [n, c, d, h, w]."""

    _check_input_dim = _dims_checked(5)


class SyncBatchNorm(_BatchNorm):
    """Batch norm over all workers: gt's batch norm always sees the whole batch."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, track_running_stats: bool = True,
        process_group: None = None, device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        if process_group is not None:
            raise NotImplementedError("SyncBatchNorm: there are no process groups, the statistics are those of the whole batch")
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: None = None) -> Module:
        """Give the module with every batch norm in it replaced by one of this class with the same parameters and buffers."""
        out = module
        if isinstance(module, _BatchNorm):
            out = SyncBatchNorm(
                module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats, process_group,
                bias=module.bias is not None,
            )  # fmt: skip
            out._parameters.update(module._parameters)
            out._buffers.update(module._buffers)
            out.training = module.training
        for name, child in module.named_children():
            out.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return out

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")


class _InstanceNorm(_NormBase):
    """Normalise each channel of each example."""

    spatial: int

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False, track_running_stats: bool = False,
        device: Any = None, dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        batched = input.ndim == self.spatial + 2
        channels = input.shape[-self.spatial - 1]
        if channels != self.num_features and self.affine:
            raise ValueError(
                f"expected input's size at dim={-self.spatial - 1 + input.ndim} to match num_features ({self.num_features}), "
                f"but got: {channels}."
            )
        x = input if batched else input.unsqueeze(0)
        out = F.instance_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0, self.eps,
        )  # fmt: skip
        return out if batched else out.squeeze(0)


class InstanceNorm1d(_InstanceNorm):
    """Instance norm of [n, c, l] or [c, l]."""

    spatial, _check_input_dim = 1, _dims_checked(2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance norm of [n, c, h, w] or [c, h, w]."""

    spatial, _check_input_dim = 2, _dims_checked(3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance norm of [n, c, d, h, w] or [c, d, h, w]."""

    spatial, _check_input_dim = 3, _dims_checked(4, 5)


def _sizes(normalized_shape: int | Iterable[int]) -> tuple[int, ...]:
    return (normalized_shape,) if is_int(normalized_shape) else tuple(normalized_shape)


class LayerNorm(_Affine):
    """Normalise over the last dims, then scale and shift."""

    def __init__(
        self, normalized_shape: int | Iterable[int], eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._register_affine(self.normalized_shape, elementwise_affine, bias, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Divide by the root mean square over the last dims, then scale."""

    weight: Parameter | None

    def __init__(
        self, normalized_shape: int | Iterable[int], eps: float | None = None, elementwise_affine: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape = _sizes(normalized_shape)
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter(
            "weight", Parameter(create.empty(self.normalized_shape, dtype=dtype)) if elementwise_affine else None
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set scale 1."""
        if self.weight is not None:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(_Affine):
    """Normalise each group of channels of each example."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._register_affine(num_channels, affine, bias, dtype)
        self.reset_parameters()

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, bias={self.bias is not None}"


class LocalResponseNorm(Module):
    """Divide by the squares of neighbouring channels."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"

"""``gt.backends``: torch.backends' switches that ordinary scripts set.

Owns: which of them mean something here. Next: ``precision``.
"""

from __future__ import annotations

from types import SimpleNamespace

from gt.precision import get_float32_matmul_precision, set_float32_matmul_precision


class _Matmul:
    """Switches for products of matrices on GPUs."""

    allow_fp16_reduced_precision_reduction = True  # kept as set
    allow_bf16_reduced_precision_reduction = True

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 matrices may be multiplied with TF32."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        set_float32_matmul_precision("high" if allow else "highest")


def _no() -> bool:
    """Give False: a script does not choose devices or libraries."""
    return False


def _none() -> None:
    """Give None: no library of this process's own."""


def _accept(enabled: bool) -> None:
    """Accept a choice of kernels without effect: workers choose their own."""


cuda = SimpleNamespace(
    matmul=_Matmul(), is_built=_no, enable_flash_sdp=_accept, enable_mem_efficient_sdp=_accept, enable_math_sdp=_accept,
    enable_cudnn_sdp=_accept,
)  # fmt: skip
# kept as set: workers choose their own kernels
cudnn = SimpleNamespace(benchmark=False, deterministic=False, enabled=True, allow_tf32=True, is_available=_no, version=_none)
mps, mkl, mkldnn, openmp = (SimpleNamespace(is_available=_no, is_built=_no, enabled=True) for _ in range(4))

__all__ = ["cuda", "cudnn", "mkl", "mkldnn", "mps", "openmp"]

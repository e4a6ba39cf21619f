"""``gt.backends``: torch.backends' switches that ordinary scripts set.

Owns: which of them mean something here. Next: ``precision``.
"""

from __future__ import annotations

from types import SimpleNamespace

from gt.precision import get_float32_matmul_precision, set_float32_matmul_precision


class _Matmul:
    """Switches for products of matrices on GPUs."""

    @property
    def allow_tf32(self) -> bool:
        """Whether float32 matrices may be multiplied with TF32."""
        return get_float32_matmul_precision() != "highest"

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        set_float32_matmul_precision("high" if allow else "highest")


cuda = SimpleNamespace(matmul=_Matmul())
cudnn = SimpleNamespace(benchmark=False, deterministic=False, enabled=True)  # kept as set: workers choose their own kernels

__all__ = ["cuda", "cudnn"]

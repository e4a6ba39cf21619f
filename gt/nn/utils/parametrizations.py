"""Weight norm and spectral norm as parametrizations. Source: torch.nn.utils.parametrizations. Next: ``parametrize``."""

from __future__ import annotations

from typing import Any

from gt.autograd import no_grad
from gt.functions import draw
from gt.functions.linalg import mv
from gt.functions.norms import vector_norm
from gt.ir.types import DimError
from gt.nn.functional.distance import normalize
from gt.nn.module import Module
from gt.nn.utils.parametrize import register_parametrization


class _WeightNorm(Module):
    def __init__(self, dim: int | None = 0) -> None:
        super().__init__()
        self.dim = -1 if dim is None else dim

    def _norm(self, v: Any) -> Any:
        """Give the norm over all dims but one, or over all."""
        if self.dim == -1:
            return vector_norm(v)
        return vector_norm(v, 2, tuple(d for d in range(v.ndim) if d != self.dim), keepdim=True)

    def forward(self, weight_g: Any, weight_v: Any) -> Any:
        return weight_v * (weight_g / self._norm(weight_v))

    def right_inverse(self, weight: Any) -> tuple[Any, Any]:
        """Give size and direction."""
        return self._norm(weight), weight


class _SpectralNorm(Module):
    _u: Any
    _v: Any

    def __init__(self, weight: Any, n_power_iterations: int = 1, dim: int = 0, eps: float = 1e-12) -> None:
        super().__init__()
        ndim = weight.ndim
        if not -ndim <= dim < ndim:
            raise DimError(f"Dimension out of range (expected to be in range of [-{ndim}, {ndim - 1}] but got {dim})")
        if n_power_iterations <= 0:
            raise ValueError(f"Expected n_power_iterations to be positive, but got n_power_iterations={n_power_iterations}")
        self.dim, self.eps = dim % ndim, eps
        if ndim > 1:
            self.n_power_iterations = n_power_iterations
            matrix = self._matrix(weight.detach())
            for name, size in zip(("_u", "_v"), matrix.shape, strict=True):
                self.register_buffer(name, normalize(draw.randn(size, dtype=weight.dtype), dim=0, eps=eps))
            self._iterate(matrix, 15)

    def _matrix(self, weight: Any) -> Any:
        return weight.movedim(self.dim, 0).flatten(1)

    def _iterate(self, matrix: Any, count: int) -> None:
        with no_grad():
            for _ in range(count):
                self._u = normalize(mv(matrix, self._v), dim=0, eps=self.eps)
                self._v = normalize(mv(matrix.mT, self._u), dim=0, eps=self.eps)

    def forward(self, weight: Any) -> Any:
        if weight.ndim == 1:
            return normalize(weight, dim=0, eps=self.eps)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(matrix.detach(), self.n_power_iterations)
        return weight / self._u.dot(mv(matrix, self._v))

    def right_inverse(self, value: Any) -> Any:
        """Give the value itself."""
        return value


def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Train size (``original0``) and direction (``original1``) of a weight apart; one size for each index of ``dim``, or one in all."""
    if getattr(module, name, None) is None:
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    return register_parametrization(module, name, _WeightNorm(dim), unsafe=True)


def spectral_norm(
    module: Module, name: str = "weight", n_power_iterations: int = 1, eps: float = 1e-12, dim: int | None = None
) -> Module:
    """Divide a weight by its largest singular value, which each use while training knows better."""
    weight = getattr(module, name, None)
    if weight is None:
        raise ValueError(f"Module '{module}' has no parameter or buffer with name '{name}'")
    transposed = type(module).__name__.startswith("ConvTranspose")
    own = (1 if transposed else 0) if dim is None else dim
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, own, eps))


__all__ = ["spectral_norm", "weight_norm"]

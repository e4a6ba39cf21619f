"""``gt.utils``: what torch keeps under torch.utils."""

from gt.utils import checkpoint

__all__ = ["checkpoint"]

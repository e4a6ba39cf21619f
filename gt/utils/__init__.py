"""``gt.utils``: what torch keeps under torch.utils."""

from gt.utils import checkpoint, dlpack

__all__ = ["checkpoint", "dlpack"]

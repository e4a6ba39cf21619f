"""``gt.utils``: what torch keeps under torch.utils."""

from gt.utils import checkpoint, data, dlpack, hooks

__all__ = ["checkpoint", "data", "dlpack", "hooks"]

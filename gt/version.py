"""``gt.version``: what ``torch.version`` says of its build."""

from __future__ import annotations

from gt.ir.version import __version__

debug = False
cuda: str | None = None
hip: str | None = None
xpu: str | None = None
git_version = "Unknown"

__all__ = ["__version__", "cuda", "debug", "git_version", "hip", "xpu"]

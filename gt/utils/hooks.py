"""``gt.utils.hooks``: what removes a hook, where torch has it."""

from gt.hooks import RemovableHandle

__all__ = ["RemovableHandle"]

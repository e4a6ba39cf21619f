"""``gt.cuda``: what ordinary scripts ask of torch.cuda before they choose a device.

No device is the script's own here: workers have them, and signals place tensors on workers. So there is none to choose, and
the path a script takes without one is its path on any workers. Next: ``signal`` (placement), ``random``.
"""

from __future__ import annotations

from gt.random import manual_seed

manual_seed_all = manual_seed


def is_available() -> bool:
    """Give False: a script does not choose devices."""
    return False


def device_count() -> int:
    """Give 0: a script does not choose devices."""
    return 0


__all__ = ["device_count", "is_available", "manual_seed", "manual_seed_all"]

"""``gt.cuda``: what ordinary scripts ask of torch.cuda before they choose a device.

No device is the script's own here: workers have them, and signals place tensors on workers. So there is none to choose, and
the path a script takes without one is its path on any workers. Next: ``signal`` (placement), ``random``.
"""

from __future__ import annotations

from typing import Any

from gt import amp
from gt.accelerator import device_count, empty_cache, is_available, synchronize
from gt.naming import named
from gt.random import manual_seed
from gt.runtime.errors import OutOfMemoryError

manual_seed_all = manual_seed


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Give True: every worker computes in bfloat16."""
    return True


def is_initialized() -> bool:
    """Give False: this process starts no device."""
    return False


def memory_allocated(device: Any = None) -> int:
    """Give 0: what a worker holds is not this process's. ``gt`` on the command line shows it."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Do nothing: see ``memory_allocated``."""


def current_device() -> int:
    """Refuse: a script does not choose devices. Errors: RuntimeError, as torch without a GPU."""
    raise RuntimeError(
        "gt.cuda.current_device: no device is this script's own; workers have them, and signals say where tensors live"
    )


def _refused(name: str) -> Any:
    def call(device: Any = None) -> Any:
        raise RuntimeError(f"gt.cuda.{name}: no device is this script's own; workers have them, and is_available() says False")

    return named(call, name, "Refuse: see ``current_device``. Errors: RuntimeError.")


get_device_name, get_device_properties, get_device_capability, mem_get_info = (
    _refused(name) for name in ("get_device_name", "get_device_properties", "get_device_capability", "mem_get_info")
)


def ipc_collect() -> None:
    """Do nothing: this process holds no device's memory."""


def set_device(device: Any) -> None:
    """Accept a device and change nothing: placement is what signals say."""


__all__ = [
    "OutOfMemoryError",
    "amp", "current_device", "device_count", "empty_cache", "get_device_capability", "get_device_name",
    "get_device_properties", "ipc_collect", "is_available", "is_bf16_supported", "is_initialized", "manual_seed",
    "manual_seed_all", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "reset_peak_memory_stats",
    "set_device", "synchronize",
]  # fmt: skip

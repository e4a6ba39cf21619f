"""Loads compiled kernels onto a GPU without Python's lock.

Loading one waits for what the device is doing, and that may wait for another worker: a collective. torch keeps the lock meanwhile, so that
nothing else of the process runs: it launches nothing, and gives no sign of life. Owns: ``load_without_lock``, and
``tune_in_little_memory``, as kernels are tuned when they first run. Must not know: pieces, artefacts. Next: ``compiler`` (which loads).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from ctypes import byref, c_int, c_void_p
from typing import Any

import torch

_FLUSHED = 16 << 20  # bytes
_STATIC = 48 << 10  # bytes of shared memory that a kernel may have without asking
# The driver's own numbers.
_SHARED_SIZE, _LOCAL_SIZE, _NUM_REGS, _MAX_DYNAMIC_SHARED = 1, 3, 4, 8
_MAX_SHARED_OPTIN = 97
_PREFER_SHARED = 1


def load_without_lock() -> None:
    """Have torch load kernels of compiled code by ``load``. To be called before the first is; does nothing where there are none."""
    for name in ("static_triton_launcher", "static_cuda_launcher"):
        try:
            kernel = importlib.import_module(f"torch._inductor.runtime.{name}").StaticallyLaunchedCudaKernel
        except (ImportError, AttributeError):
            continue
        kernel.load_kernel = load_kernel
        return


def tune_in_little_memory() -> None:
    """Have torch empty less of the device's cache between two timings of a kernel, which it makes when one first runs: what it writes for
    that would be the most that a small program ever holds (60 MiB on an H200).
    """
    benchmarker: Any = getattr(importlib.import_module("torch._inductor.runtime.benchmarking"), "benchmarker", None)
    if isinstance(getattr(type(benchmarker), "L2_cache_size", None), functools.cached_property):
        benchmarker.L2_cache_size = _FLUSHED


def load_kernel(kernel: Any, device: int) -> None:
    """Load torch's description of a kernel, as its own method of this name does. Errors: RuntimeError, of the driver."""
    if kernel.function is not None:
        return
    module, kernel.function, kernel.n_regs, kernel.n_spills = load(driver(), kernel.cubin_path, kernel.name, kernel.shared, device)
    if hasattr(kernel, "module"):  # of a torch that unloads it with the kernel
        kernel.module = module
    kernel.cubin_path = kernel.cubin_raw = None


@functools.cache
def driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")  # whose calls let go of the lock


def load(driver: Any, path: str, name: str, shared: int, device: int) -> tuple[int, int, int, int]:
    """Give handles of module and function, registers, and spilled words of a kernel in a file. ``shared``: bytes that it needs.

    Errors: torch.OutOfMemoryError, which has torch try another configuration; RuntimeError, of the driver.
    """

    def call(function: str, *args: Any) -> None:
        code = getattr(driver, function)(*args)
        if code:
            text = ctypes.c_char_p()
            driver.cuGetErrorString(code, byref(text))
            raise RuntimeError(f"{function}: {(text.value or b'unknown error').decode()} ({name} of {path})")

    def number(function: str, *args: Any) -> int:
        value = c_int()
        call(function, byref(value), *args)
        return value.value

    context, module, function = c_void_p(), c_void_p(), c_void_p()
    call("cuCtxGetCurrent", byref(context))
    if not context:
        call("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
        call("cuCtxSetCurrent", context)
    call("cuModuleLoad", byref(module), path.encode())
    call("cuModuleGetFunction", byref(function), module, name.encode())
    most = number("cuDeviceGetAttribute", c_int(_MAX_SHARED_OPTIN), c_int(device))
    if shared >= most:
        raise torch.OutOfMemoryError(f"{name} needs {shared} bytes of shared memory, the device has {most}")
    if shared > _STATIC:
        call("cuFuncSetCacheConfig", function, c_int(_PREFER_SHARED))
        own = number("cuFuncGetAttribute", c_int(_SHARED_SIZE), function)
        call("cuFuncSetAttribute", function, c_int(_MAX_DYNAMIC_SHARED), c_int(most - own))
    registers = number("cuFuncGetAttribute", c_int(_NUM_REGS), function)
    spilled = number("cuFuncGetAttribute", c_int(_LOCAL_SIZE), function) // 4
    assert module.value is not None and function.value is not None
    return module.value, function.value, registers, spilled


__all__ = ["load", "load_kernel", "load_without_lock", "tune_in_little_memory"]

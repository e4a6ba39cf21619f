"""Kernels are loaded as the driver wants it, and the process goes on meanwhile."""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gt.runtime.compile_process import Request
from gt.runtime.compiler import Compiler, spec_of
from gt.runtime.kernel_loading import load, load_kernel, load_without_lock
from gt.runtime.layout import lay_out
from tests.unit.runtime.program_builder import ProgramBuilder

MOST = 227 << 10  # bytes of shared memory of an H100's block


class Driver:
    """Writes down what it is asked for. ``fails``: the call that gives an error."""

    def __init__(self, context: int = 1, fails: str = "") -> None:
        self.calls: list[str] = []
        self.context, self.fails = context, fails

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> int:
            numbers = [a.value for a in args if isinstance(a, ctypes.c_int)] + [a.decode() for a in args if isinstance(a, bytes)]
            self.calls.append(" ".join(map(str, (name, *numbers))))
            if name == self.fails:
                return 200
            given = {"cuCtxGetCurrent": self.context, "cuDevicePrimaryCtxRetain": 2, "cuModuleLoad": 3, "cuModuleGetFunction": 4}
            if name in given:
                args[0]._obj.value = given[name] or None
            elif name == "cuDeviceGetAttribute":
                args[0]._obj.value = MOST
            elif name == "cuFuncGetAttribute":
                args[0]._obj.value = {1: 1024, 3: 64, 4: 40}[args[1].value]
            elif name == "cuGetErrorString":
                args[1]._obj.value = b"device kernel image is invalid"
            return 0

        return call


def test_a_kernel_of_little_shared_memory() -> None:
    cuda = Driver()
    assert load(cuda, "/a.cubin", "add", 1000, 0) == (3, 4, 40, 16)
    assert cuda.calls[:3] == ["cuCtxGetCurrent", "cuModuleLoad /a.cubin", "cuModuleGetFunction add"]
    assert not any("Set" in call for call in cuda.calls)


def test_a_kernel_of_much_shared_memory_may_have_what_the_device_has() -> None:
    cuda = Driver()
    load(cuda, "/a.cubin", "add", 100 << 10, 0)
    assert "cuFuncSetCacheConfig 1" in cuda.calls and f"cuFuncSetAttribute 8 {MOST - 1024}" in cuda.calls
    with pytest.raises(torch.cuda.OutOfMemoryError, match=f"add needs {MOST} bytes of shared memory, the device has {MOST}"):
        load(Driver(), "/a.cubin", "add", MOST, 0)


def test_a_thread_without_a_context_takes_the_devices() -> None:
    cuda = Driver(context=0)
    load(cuda, "/a.cubin", "add", 0, 1)
    assert cuda.calls[:4] == ["cuCtxGetCurrent", "cuDevicePrimaryCtxRetain 1", "cuCtxSetCurrent", "cuModuleLoad /a.cubin"]


def test_what_the_driver_refuses_is_said() -> None:
    with pytest.raises(RuntimeError, match=r"cuModuleLoad: device kernel image is invalid \(add of /a.cubin\)"):
        load(Driver(fails="cuModuleLoad"), "/a.cubin", "add", 0, 0)


@pytest.mark.parametrize("module", [{}, {"module": None}], ids=["torch 2.11", "torch 2.13"])
def test_torchs_kernel_has_what_its_own_method_gives(module: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.runtime.kernel_loading.driver", lambda: Driver())
    kernel = SimpleNamespace(function=None, cubin_path="/a.cubin", cubin_raw=b"x", name="add", shared=0, **module)
    load_kernel(kernel, 0)
    assert (kernel.function, kernel.n_regs, kernel.n_spills, kernel.cubin_path) == (4, 40, 16, None)
    assert getattr(kernel, "module", 3) == 3
    kernel.cubin_path = "/not read again"
    load_kernel(kernel, 0)
    assert kernel.cubin_path == "/not read again"


def test_this_torch_loads_by_it() -> None:
    names = ("static_triton_launcher", "static_cuda_launcher")
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(f"torch._inductor.runtime.{name}"))
        except ImportError:
            continue
    kernel = found[0].StaticallyLaunchedCudaKernel
    before = kernel.load_kernel
    try:
        load_without_lock()
        assert kernel.load_kernel is load_kernel
    finally:
        kernel.load_kernel = before


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_others_run_while_a_kernel_is_loaded_onto_a_busy_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device computes for two seconds; another thread, which looks every 10 ms, is never kept from it for long."""
    loaded: list[str] = []
    monkeypatch.setattr("gt.runtime.kernel_loading.load", lambda *args: (loaded.append(args[2]), load(*args))[1])
    x = torch.rand(1000, device="cuda")
    specs = (spec_of(x),)
    compiler = Compiler(torch.device("cuda", 0), tmp_path)
    pieces = []
    for op in ("exp", "cos"):
        b = ProgramBuilder()
        pieces.append(lay_out(b.program(b(op, b.input(1000)))).stretches[0].piece)
    compiler.submit(pieces[0], specs).result(120)  # from here on all that loading imports is there
    path = compiler.path(pieces[1], specs)
    precision = torch.get_float32_matmul_precision()
    compiler.children[0].ask(Request(pieces[1], specs, compiler.device, compiler.threads, precision, str(path)))
    assert compiler.is_cached(pieces[1], specs) and loaded  # once for each way to launch it
    before = len(loaded)
    done, gaps = threading.Event(), [0.0]

    def look() -> None:
        last = time.monotonic()
        while not done.wait(0.01):
            last, before = time.monotonic(), last
            gaps.append(last - before)

    thread = threading.Thread(target=look)
    torch.cuda.synchronize()
    thread.start()
    torch.cuda._sleep(int(2 * 1.9e9))
    compiled = compiler.submit(pieces[1], specs).result(60)
    done.set()
    thread.join()
    (result,) = compiled.function([x])
    assert torch.allclose(result, x.cos()) and len(loaded) > before
    compiler.close()
    assert max(gaps) < 0.5

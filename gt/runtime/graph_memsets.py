"""Fills of a few words in a captured CUDA graph become kernels.

A library that needs a counter at zero (cuBLAS, cuDNN, torch's reductions) clears it by ``cudaMemsetAsync``, which a capture keeps as a memset
node. Between kernels such a node costs a switch of engines each way, several microseconds, where a kernel node costs one: a training
step of a transformer has more than a hundred. Must not know: what is captured. Next: ``cuda_graph`` (who captures).

Source: the graph management of the CUDA driver API. Its calls with edge data are there since driver 12.3; without them nothing is changed.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_void_p
from typing import Any

MAX_NBYTES = 64 << 10
MEMSET = 2  # CU_GRAPH_NODE_TYPE_MEMSET
THREADS = 128
FILL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry gt_fill(.param .u64 at, .param .u32 word, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %r<6>;
    .reg .b64 %d<4>;
    ld.param.u64 %d1, [at];
    ld.param.u32 %r1, [word];
    ld.param.u32 %r2, [count];
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r3, %r3, %r4, %r5;
    setp.ge.u32 %p, %r3, %r2;
    @%p ret;
    cvta.to.global.u64 %d2, %d1;
    mul.wide.u32 %d3, %r3, 4;
    add.u64 %d2, %d2, %d3;
    st.global.u32 [%d2], %r1;
    ret;
}
"""


class _Memset(ctypes.Structure):
    """CUDA_MEMSET_NODE_PARAMS. ``width``: elements of a row."""

    _fields_ = (
        ("at", c_void_p), ("pitch", c_size_t), ("value", c_uint), ("element_nbytes", c_uint), ("width", c_size_t), ("height", c_size_t),
    )  # fmt: skip


class _Kernel(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p), ("grid", c_uint * 3), ("block", c_uint * 3), ("shared_nbytes", c_uint),
        ("arguments", POINTER(c_void_p)), ("extra", c_void_p), ("kernel", c_void_p), ("context", c_void_p),
    )  # fmt: skip


class _Edge(ctypes.Structure):
    """CUgraphEdgeData: which part of a node waits for which of another; all zero: the whole for the whole."""

    _fields_ = (("source", ctypes.c_ubyte), ("target", ctypes.c_ubyte), ("kind", ctypes.c_ubyte), ("reserved", ctypes.c_ubyte * 5))


class DriverError(Exception):
    """The driver refused a call, or has no such call."""


def replace_memsets(graph: int) -> int:
    """Replace what can be of a ``cudaGraph_t`` that was not instantiated yet, on the current device; give how many were.

    Each node is replaced whole or left as it is, so the graph does the same work whatever is raised. Raises ``DriverError``.
    """
    driver = _driver()
    count = c_size_t(0)
    driver("cuGraphGetNodes", c_void_p(graph), None, byref(count))
    nodes = (c_void_p * count.value)()
    driver("cuGraphGetNodes", c_void_p(graph), nodes, byref(count))
    replaced = 0
    for node in map(c_void_p, nodes):
        kind = c_int()
        driver("cuGraphNodeGetType", node, byref(kind))
        if kind.value == MEMSET:
            replaced += _replace(driver, c_void_p(graph), node)
    return replaced


def word_of(value: int, element_nbytes: int) -> int:
    """Give the 32 bits that a fill with elements of 1, 2 or 4 bytes writes."""
    bits = 8 * element_nbytes
    element = value & ((1 << bits) - 1)
    return sum(element << at for at in range(0, 32, bits))


def _replace(driver: _Driver, graph: c_void_p, node: c_void_p) -> bool:
    memset = _Memset()
    driver("cuGraphMemsetNodeGetParams", node, byref(memset))
    nbytes = memset.width * memset.element_nbytes
    if memset.height > 1 or nbytes > MAX_NBYTES or nbytes % 4 or (memset.at or 0) % 4 or not nbytes:
        return False
    before, before_edges = _neighbours(driver, "cuGraphNodeGetDependencies_v2", node)
    after, after_edges = _neighbours(driver, "cuGraphNodeGetDependentNodes_v2", node)
    if any(e.source or e.target or e.kind for e in (*before_edges, *after_edges)):
        return False  # an edge that only nodes of certain kinds can have
    words = nbytes // 4
    values = c_void_p(memset.at), c_uint(word_of(memset.value, memset.element_nbytes)), c_uint(words)
    arguments = (c_void_p * 3)(*(ctypes.cast(byref(v), c_void_p) for v in values))
    kernel = _Kernel(driver.fill(), (-(-words // THREADS), 1, 1), (min(THREADS, words), 1, 1), 0, arguments)
    new = c_void_p()
    driver("cuGraphAddKernelNode_v2", byref(new), graph, before, c_size_t(len(before)), byref(kernel))
    try:
        if len(after):
            sources = (c_void_p * len(after))(*[new] * len(after))
            driver("cuGraphAddDependencies_v2", graph, sources, after, None, c_size_t(len(after)))
        driver("cuGraphDestroyNode", node)
    except DriverError:
        driver("cuGraphDestroyNode", new)
        raise
    return True


def _neighbours(driver: _Driver, call: str, node: c_void_p) -> tuple[Any, Any]:
    count = c_size_t(0)
    driver(call, node, None, None, byref(count))
    nodes, edges = (c_void_p * count.value)(), (_Edge * count.value)()
    if count.value:
        driver(call, node, nodes, edges, byref(count))
    return nodes, edges


class _Driver:
    """The CUDA driver's library, whose calls raise."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as e:
            raise DriverError(str(e)) from e
        self._fill: dict[int, c_void_p] = {}  # by context

    def __call__(self, name: str, *arguments: Any) -> None:
        function = getattr(self.library, name, None)
        if function is None:
            raise DriverError(f"the driver has no {name}")
        code = function(*arguments)
        if code:
            text = c_char_p()
            self.library.cuGetErrorName(c_int(code), byref(text))
            raise DriverError(f"{name}: {(text.value or b'').decode() or code}")

    def fill(self) -> c_void_p:
        """Give the kernel of the current context that fills words."""
        context = c_void_p()
        self("cuCtxGetCurrent", byref(context))
        key = context.value or 0
        if key not in self._fill:
            module, function = c_void_p(), c_void_p()
            self("cuModuleLoadData", byref(module), c_char_p(FILL))
            self("cuModuleGetFunction", byref(function), module, c_char_p(b"gt_fill"))
            self._fill[key] = function
        return self._fill[key]


@functools.cache
def _driver() -> _Driver:
    return _Driver()


__all__ = ["DriverError", "replace_memsets", "word_of"]

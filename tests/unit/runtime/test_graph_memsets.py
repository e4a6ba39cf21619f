"""Fills in a captured graph: which become kernels, and that a replaced node keeps its place among its neighbours.

The driver is faked by what its calls say of a graph; with a GPU, a real graph gives the same values.
"""

from __future__ import annotations

import ctypes
from ctypes import c_void_p
from typing import Any

import pytest
import torch

from gt.runtime import graph_memsets
from gt.runtime.graph_memsets import FILL, DriverError, replace_memsets, word_of

KERNEL, MEMSET = 0, 2


class Driver:
    """A graph as the driver knows it: kinds of nodes, fills, edges (with how they were made)."""

    def __init__(self, kinds: dict[int, int], fills: dict[int, tuple[int, ...]], edges: dict[tuple[int, int], int], lacks: str = "") -> None:
        self.kinds, self.fills, self.edges, self.lacks = kinds, fills, edges, lacks
        self.kernels: dict[int, tuple[int, int, int, int]] = {}  # at, word, count, threads

    def fill(self) -> c_void_p:
        return c_void_p(99)

    def __call__(self, name: str, *args: Any) -> None:
        if name == self.lacks:
            raise DriverError(name)
        getattr(self, name)(*args)

    def cuGraphGetNodes(self, graph: c_void_p, nodes: Any, count: Any) -> None:  # noqa: N802
        self._list(list(self.kinds), nodes, count)

    def cuGraphNodeGetType(self, node: c_void_p, kind: Any) -> None:  # noqa: N802
        kind._obj.value = self.kinds[node.value or 0]

    def cuGraphMemsetNodeGetParams(self, node: c_void_p, out: Any) -> None:  # noqa: N802
        (out._obj.at, out._obj.pitch, out._obj.value, out._obj.element_nbytes, out._obj.width, out._obj.height) = self.fills[node.value or 0]

    def cuGraphNodeGetDependencies_v2(self, node: c_void_p, nodes: Any, edges: Any, count: Any) -> None:  # noqa: N802
        found = [(a, kind) for (a, b), kind in self.edges.items() if b == node.value]
        self._list([a for a, _ in found], nodes, count)
        for i, (_, kind) in enumerate(found if edges is not None else ()):
            edges[i].kind = kind

    def cuGraphNodeGetDependentNodes_v2(self, node: c_void_p, nodes: Any, edges: Any, count: Any) -> None:  # noqa: N802
        found = [(b, kind) for (a, b), kind in self.edges.items() if a == node.value]
        self._list([b for b, _ in found], nodes, count)
        for i, (_, kind) in enumerate(found if edges is not None else ()):
            edges[i].kind = kind

    def cuGraphAddKernelNode_v2(self, out: Any, graph: c_void_p, before: Any, count: Any, kernel: Any) -> None:  # noqa: N802
        new = max(self.kinds) + 1
        out._obj.value, self.kinds[new] = new, KERNEL
        self.edges.update({(before[i], new): 0 for i in range(count.value)})
        k = kernel._obj
        value = lambda i, kind: kind.from_address(k.arguments[i]).value  # noqa: E731
        self.kernels[new] = value(0, c_void_p), value(1, ctypes.c_uint), value(2, ctypes.c_uint), k.grid[0] * k.block[0]

    def cuGraphAddDependencies_v2(self, graph: c_void_p, sources: Any, targets: Any, edges: Any, count: Any) -> None:  # noqa: N802
        self.edges.update({(sources[i], targets[i]): 0 for i in range(count.value)})

    def cuGraphDestroyNode(self, node: c_void_p) -> None:  # noqa: N802
        del self.kinds[node.value or 0]
        self.edges = {pair: kind for pair, kind in self.edges.items() if node.value not in pair}

    def _list(self, found: list[int], nodes: Any, count: Any) -> None:
        count._obj.value = len(found)
        for i, node in enumerate(found if nodes is not None else ()):
            nodes[i] = node


def run(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> int:
    monkeypatch.setattr(graph_memsets, "_driver", lambda: driver)
    return replace_memsets(1)


def chain(fill: tuple[int, ...], kind: int = 0) -> Driver:
    """Kernels 1 and 2, a fill 3 behind both, kernels 4 and 5 behind that."""
    edges = {(1, 3): kind, (2, 3): 0, (3, 4): 0, (3, 5): 0, (1, 5): 0}
    return Driver({1: KERNEL, 2: KERNEL, 3: MEMSET, 4: KERNEL, 5: KERNEL}, {3: fill}, edges)


def test_a_fill_becomes_a_kernel_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = chain((4096, 0, 0, 4, 300, 1))
    assert run(monkeypatch, driver) == 1
    assert driver.kinds == dict.fromkeys((1, 2, 4, 5, 6), KERNEL)
    assert set(driver.edges) == {(1, 6), (2, 6), (6, 4), (6, 5), (1, 5)}
    at, word, count, threads = driver.kernels[6]
    assert (at, word, count) == (4096, 0, 300) and 300 <= threads < 300 + graph_memsets.THREADS


@pytest.mark.parametrize(("fill", "word", "count"), [((64, 0, 0xAB, 1, 8, 1), 0xABABABAB, 2), ((64, 0, 0x1234, 2, 2, 1), 0x12341234, 1)])
def test_narrow_elements_are_written_as_words(monkeypatch: pytest.MonkeyPatch, fill: tuple[int, ...], word: int, count: int) -> None:
    driver = chain(fill)
    assert run(monkeypatch, driver) == 1
    assert driver.kernels[6][1:3] == (word, count) and driver.kernels[6][3] >= count


@pytest.mark.parametrize(
    "fill", [(4096, 512, 0, 4, 8, 2), (4096, 0, 0, 1, 6, 1), (4098, 0, 0, 4, 8, 1), (4096, 0, 0, 4, graph_memsets.MAX_NBYTES, 1), (4096, 0, 0, 4, 0, 1)]
)
def test_rows_odd_ends_and_long_fills_stay(monkeypatch: pytest.MonkeyPatch, fill: tuple[int, ...]) -> None:
    driver = chain(fill)
    edges = dict(driver.edges)
    assert run(monkeypatch, driver) == 0
    assert driver.kinds[3] == MEMSET and driver.edges == edges


def test_edges_of_other_kinds_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = chain((4096, 0, 0, 4, 8, 1), kind=1)
    assert run(monkeypatch, driver) == 0 and driver.kinds[3] == MEMSET


@pytest.mark.parametrize("lacks", ["cuGraphNodeGetDependencies_v2", "cuGraphAddKernelNode_v2", "cuGraphAddDependencies_v2"])
def test_a_driver_without_one_of_the_calls_changes_nothing(monkeypatch: pytest.MonkeyPatch, lacks: str) -> None:
    driver = chain((4096, 0, 0, 4, 8, 1))
    kinds, edges, driver.lacks = dict(driver.kinds), dict(driver.edges), lacks
    with pytest.raises(DriverError):
        run(monkeypatch, driver)
    assert driver.kinds == kinds and driver.edges == edges, "a fill that nothing waits for could come after what counts on it"


def test_words() -> None:
    assert [word_of(1, 1), word_of(0x1FF, 1), word_of(3, 2), word_of(7, 4)] == [0x01010101, 0xFFFFFFFF, 0x00030003, 7]
    assert b"gt_fill" in FILL


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_real_graph_gives_the_same_values() -> None:
    x = torch.randn(4096, 64, device="cuda")

    def body() -> list[torch.Tensor]:
        counts = torch.full((33,), 7, dtype=torch.int32, device="cuda")
        cleared = torch.zeros(1000, dtype=torch.uint8, device="cuda")
        return [x.sum(0), counts, cleared, (x * 2).sum(0) + counts[0]]

    def captured(edit: bool) -> tuple[Any, list[torch.Tensor], int]:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            graph.capture_begin()
            outputs = body()
            graph.capture_end()
        replaced = replace_memsets(graph.raw_cuda_graph()) if edit else 0
        graph.instantiate()
        return graph, outputs, replaced

    body()
    torch.cuda.synchronize()
    plain, expected, _ = captured(False)
    edited, outputs, replaced = captured(True)
    assert replaced > 0
    for _ in range(3):
        plain.replay()
        edited.replay()
        torch.cuda.synchronize()
        for a, b in zip(outputs, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)

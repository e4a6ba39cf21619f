"""``GT_CHECK=numpy``: every flush runs on NumPy too, in this process, and what differs is told with its op and line. ``GT_CHECK=nan``: so is
the first op that makes NaN of operands that have none.

Owns: ``CheckingSession``, which stands before a session and reads all that goes in and comes out; that makes each flush wait. Where a
result differs, the graph is run once more with all of its values as results, and the first op whose result is not what NumPy makes of that
op's own operands is named. If each op by itself agrees, it is how they run together: the tier, or how they are split.
Must not know: tensors, workers. Next: ``gt.ir.evaluate`` (NumPy's side), ``session`` (who puts it there).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.advice import Advised
from gt.ir.evaluate import evaluate, evaluate_node, from_wire, to_wire
from gt.ir.graph import Graph, Node, Value
from gt.ir.types import DType, Scalar, TensorType
from gt.passes.context import Context
from gt.passes.pipeline import Pipeline
from gt.passes.plan import Cluster
from gt.runtime.session import Session
from gt.runtime.session_wrapper import SessionWrapper

if TYPE_CHECKING:
    from gt.ir.evaluate import Array

log = logging.getLogger("gt.check")
RTOL = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 2e-4, "float64": 1e-8, "complex64": 2e-4, "complex128": 1e-8}
EPS = {n: 2.0**-b for n, b in (("float16", 10), ("bfloat16", 7), ("float32", 23), ("float64", 52), ("complex64", 23), ("complex128", 52))}
MOVES = 8
FIRST = 1 << 40  # numbers of buffers and graphs that only a check uses


class CheckFailed(Advised, AssertionError):
    """A flush gave another result than NumPy. ``op``, ``where``: the first op that differs, and the user's line of it."""

    def __init__(self, text: str, op: str, where: str) -> None:
        super().__init__(text)
        self.op, self.where = op, where


class NanMade(CheckFailed):
    """An op made NaN of operands that have none, under ``GT_CHECK=nan``. ``op``, ``where``: the op, and the user's line of it."""


class CheckingSession(SessionWrapper):
    """Runs all on ``inner`` and checks it; with ``nan``, NaN is a fault too. Errors: ``run`` raises CheckFailed, or its NanMade."""

    def __init__(self, inner: Session, nan: bool = False) -> None:
        super().__init__(inner)
        self.nan = nan
        self.checked = self.unchecked = 0
        self._expanded: dict[int, Graph | None] = {}
        self._debug: dict[int, int] = {}
        self._numbers = itertools.count(FIRST)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)  # what this kind of session has beside the interface

    def run(
        self, key: int, inputs: Sequence[int], outputs: Sequence[int], scalars: Sequence[Scalar], frees: Sequence[int],
        replaces: Sequence[int] = (), reads: int = -1,
    ) -> Future[np.ndarray] | None:  # fmt: skip
        graph = self.graphs[key]
        expanded = self._expand(key, graph)
        given = None if expanded is None else self._read(inputs, [v.type for v in graph.inputs])
        self.inner.run(key, inputs, outputs, scalars, frees, replaces)
        if expanded is None or given is None:
            self.unchecked += 1
            return None
        got = self._read(outputs, [v.type for v in graph.outputs])
        if got is None:
            self.unchecked += 1  # it failed: reading it says why
            return None
        self.checked += 1
        makes_nan: list[NanMade] = []

        def look(node: Node, operands: list[Array], made: tuple[Array, ...]) -> None:
            if not makes_nan and any(map(has_nan, made)) and not any(map(has_nan, operands)) and not given_nan(node.attrs):
                makes_nan.append(nan_made(graph.name, node, operands, next(filter(has_nan, made))))

        expected = evaluate(expanded, given, scalars, look if self.nan else None)
        bad = [i for i, (e, g) in enumerate(zip(expected, got, strict=True)) if apart(e, g, graph.outputs[i].type.dtype)]
        if bad:
            moved = noisy(expanded, given, scalars)
            bad = [i for i in bad if not is_rounding(expected[i], got[i], moved[i])]
        if bad:
            first = self._first(key, expanded, given, scalars)
            free = unsettled(expanded)
            certain = bad if first is not None else [i for i in bad if expanded.outputs[i] not in free]
            if certain:
                raise _failed(graph, certain[0], expected[certain[0]], got[certain[0]], first)
        if makes_nan:
            raise makes_nan[0]
        return None

    def _expand(self, key: int, graph: Graph) -> Graph | None:
        """Give the graph in ops that have a meaning in NumPy; None where there is an op that has not."""
        if key not in self._expanded:
            cluster = Cluster((0,))
            expanded = Pipeline.parse("autodiff").run(graph, Context(cluster.mesh), verify="off")
            without = next((n for n in expanded.nodes if n.op.numpy is None), None)
            if without is not None:
                log.warning("%s is not checked: NumPy has no %s", graph.name, without.op.name)
            self._expanded[key] = None if without is not None else expanded
        return self._expanded[key]

    def _read(self, buffers: Sequence[int], types: Sequence[TensorType]) -> list[Array] | None:
        futures = [self.inner.fetch(b) for b in buffers]
        try:
            wires = [future.result() for future in futures]
        except Exception:
            return None  # what failed before is told by whoever reads it
        return [np.array(from_wire(w, t.shape, t.dtype)) for w, t in zip(wires, types, strict=True)]

    def _first(
        self, key: int, graph: Graph, given: list[Array], scalars: Sequence[Scalar]
    ) -> tuple[Node, str, Array, Array] | None:
        """Give the first node whose result is not NumPy's of the same operands, with which result it is, and both."""
        made = [out for node in graph.nodes for out in node.outputs]
        if key not in self._debug:
            self._debug[key] = next(self._numbers)
            self.inner.define(
                self._debug[key], replace(graph, name=f"check_{graph.name}", outputs=tuple(made), donated=frozenset())
            )
        inputs = [next(self._numbers) for _ in given]
        for buffer, value, array in zip(inputs, graph.inputs, given, strict=True):
            self.inner.put(buffer, value.type.placed(None), _wire(array, value.type.dtype), None)
        outputs = [next(self._numbers) for _ in made]
        self.inner.run(self._debug[key], inputs, outputs, scalars, inputs)
        arrays = self._read(outputs, [v.type for v in made])
        self.inner.free(outputs)
        if arrays is None:
            return None
        values: dict[Value, Array] = _begin(graph, given, scalars) | dict(zip(made, arrays, strict=True))
        for node in graph.nodes:
            operands, types = [values[v] for v in node.inputs], [o.type for o in node.outputs]
            expected, dtypes = settled(node, operands, evaluate_node(node.op, operands, node.attrs, types))
            got, _ = settled(node, operands, [values[out] for out in node.outputs])
            wrong = [i for i, dtype in enumerate(dtypes) if apart(expected[i], got[i], dtype)]
            if wrong:
                near = [nudged(a, v.type.dtype) for a, v in zip(operands, node.inputs, strict=True)]
                moved, _ = settled(node, near, evaluate_node(node.op, near, node.attrs, types))
                wrong = [i for i in wrong if not is_rounding(expected[i], got[i], moved[i])]
            if wrong:
                free = node.op.settled is not None
                what = "in what all its right answers have alike" if free else f"result {wrong[0]}: {types[wrong[0]]!r}"
                return node, what, got[wrong[0]], expected[wrong[0]]
        return None


def unsettled(graph: Graph) -> set[Value]:
    """Give the values that hang on which of several right answers an op has given."""
    found: set[Value] = set()
    for node in graph.nodes:
        if node.op.settled is not None or not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return found


def settled(node: Node, operands: Sequence[Array], results: Sequence[Array]) -> tuple[Sequence[Array], list[DType]]:
    """Give what is to be the same in two right answers of a node, and how exact it is: the results, unless the op has several answers."""
    if node.op.settled is None:
        return results, [out.type.dtype for out in node.outputs]
    arrays = node.op.settled(operands, results, dict(node.attrs))
    return arrays, [node.outputs[0].type.dtype] * len(arrays)


def _failed(graph: Graph, at: int, expected: Array, got: Array, first: tuple[Node, str, Array, Array] | None) -> CheckFailed:
    if first is not None:
        node, what, theirs, ours = first
        where = str(node.loc or "")
        return CheckFailed(
            f"GT_CHECK: {graph.name}: {node.op.name}{f' at {where}' if where else ''} differs from NumPy: {shown(theirs, ours)}; "
            f"operands: {', '.join(repr(v.type) for v in node.inputs)}; {what}",
            node.op.name, where,
        )  # fmt: skip
    value = graph.outputs[at]
    node_of = {out: node for node in graph.nodes for out in node.outputs}
    where = str(node_of[value].loc or "") if value in node_of else ""
    return CheckFailed(
        f"GT_CHECK: {graph.name}: result {at} ({value.type!r}{f' of {where}' if where else ''}) differs from NumPy: "
        f"{shown(got, expected)}. Each op by itself agrees, so it is how they run together: their tier (GT_COMPILE_AFTER=0 stays eager), "
        "how they are split (one worker splits nothing), or sums of many roundings",
        "", where,
    )  # fmt: skip


def has_nan(array: Array) -> bool:
    """Say whether there is NaN in an array of any dtype."""
    return array.dtype.kind in "fc" and bool(np.isnan(array).any())


def given_nan(attrs: Iterable[object]) -> bool:
    """Say whether an op was told to give NaN, as what it fills with: then it makes none."""
    return any(given_nan(attr) if isinstance(attr, tuple) else isinstance(attr, float | complex) and attr != attr for attr in attrs)


def nan_made(graph: str, node: Node, operands: list[Array], made: Array) -> NanMade:
    """Give the error of an op that made NaN: where in its result, and what an elementwise op read there."""
    at, where = tuple(int(i) for i in np.argwhere(np.isnan(made))[0]), str(node.loc or "")
    there = []
    for array, value in zip(operands, node.inputs, strict=True):
        inf = " with inf" if array.dtype.kind in "fc" and np.isinf(array).any() else ""
        there.append(str(np.broadcast_to(array, made.shape)[at]) if node.op.factors is fx.elementwise else f"{value.type!r}{inf}")
    return NanMade(
        f"GT_CHECK: {graph}: {node.op.name}{f' at {where}' if where else ''} makes NaN{f' at {list(at)}' if at else ''} "
        f"of {', '.join(there) or 'nothing'}; no operand has NaN",
        node.op.name, where,
    )  # fmt: skip


def apart(expected: Array, got: Array, dtype: DType) -> bool:
    """Say whether two results differ by more than rounding: of the value itself, and of the largest there is."""
    if dtype.kind not in "fc":  # a rounding may decide a comparison, or an argmax
        return int((expected != got).sum()) > expected.size / 1000
    rtol = RTOL[dtype.name]
    with np.errstate(all="ignore"):
        size = np.abs(expected[np.isfinite(expected)])
        return not np.allclose(got, expected, rtol=rtol, atol=rtol * float(size.max(initial=0.0)), equal_nan=True)


def nudged(array: Array, dtype: DType) -> Array:
    """Give a copy whose floats are moved by up to two of their last bits."""
    if dtype.kind not in "fc":
        return array.copy()
    by = 2 * EPS[dtype.name] * np.random.default_rng(0).uniform(-1, 1, array.shape)
    return np.asarray(array * (1 + by), array.dtype)


def _begin(graph: Graph, given: Sequence[Array], scalars: Sequence[Scalar]) -> dict[Value, Array]:
    """Give the values of a graph's inputs and scalars."""
    numbers = [np.asarray(s).astype(v.type.dtype.numpy) for v, s in zip(graph.scalars, scalars, strict=True)]
    return dict(zip(graph.inputs, given, strict=True)) | dict(zip(graph.scalars, numbers, strict=True))


def noisy(graph: Graph, given: Sequence[Array], scalars: Sequence[Scalar]) -> list[Array]:
    """Give what a graph makes of these inputs where each op's operands are moved by their last bits."""
    values = _begin(graph, given, scalars)
    for node in graph.nodes:
        operands = [nudged(values[v], v.type.dtype) for v in node.inputs]
        values |= zip(node.outputs, evaluate_node(node.op, operands, node.attrs, [o.type for o in node.outputs]), strict=True)
    return [values[v] for v in graph.outputs]


def is_rounding(expected: Array, got: Array, moved: Array) -> bool:
    """Say whether two results differ by what is left of roundings where sums cancel: by a few times what ``moved`` operands make of it."""
    if expected.dtype.kind not in "fc":
        return False
    with np.errstate(all="ignore"):
        finite = np.isfinite(expected)
        if (finite != np.isfinite(got)).any():
            return False
        off, by = np.abs(got - expected)[finite], np.nan_to_num(np.abs(moved - expected)[finite], nan=0.0, posinf=0.0)
    return float(off.max(initial=0.0)) <= MOVES * float(by.max(initial=0.0))


def shown(got: Array, expected: Array) -> str:
    """Give where two results differ most, and what stands there."""
    with np.errstate(all="ignore"):
        off = np.abs(np.asarray(got, np.complex128 if got.dtype.kind == "c" else np.float64) - expected)
    at = np.unravel_index(int(np.argmax(np.nan_to_num(off, nan=np.inf))), off.shape) if off.size else ()
    index = [int(i) for i in at]
    return f"at {index} gt has {got[at]}, NumPy {expected[at]}" if index else f"gt has {got}, NumPy {expected}"


def _wire(array: Array, dtype: DType) -> np.ndarray:
    return np.array(to_wire(array, dtype))


__all__ = ["CheckFailed", "CheckingSession", "NanMade"]

"""One op, one declaration: everything gt knows about an op stands in one ``op(...)`` call under ``gt/ir/ops/``.

Owns: ``OpDef``, the op table, and the ambient *emitter* through which calling an op appends a node. The same vjp and
decomposition functions thus serve the passes (which emit into a graph) and the client (which records into its trace).
Must not know: any one op, torch. Next: ``ops/`` (the declarations), ``graph`` (nodes that name them).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Protocol

from gt.ir import factors as fx
from gt.ir.graph import Attrs, AttrValue, Coord
from gt.ir.types import DType, TensorType, check_sizes

OPS: dict[str, OpDef] = {}


class Var(Protocol):
    """What op functions pass around: anything with a type (a graph Value, a recorded tensor)."""

    @property
    def type(self) -> TensorType: ...


class Emitter(Protocol):
    """Appends a node and gives its outputs."""

    def emit(self, op: OpDef, inputs: Sequence[Any], attrs: Attrs) -> tuple[Any, ...]: ...

    def constant(self, value: bool | int | float, dtype: DType) -> Any:
        """Give a 0-d value that is the same in every run."""
        ...


class _Ambient(threading.local):
    emitter: Emitter | None = None


_ambient = _Ambient()


@contextmanager
def emitting(emitter: Emitter) -> Iterator[None]:
    """Make calls of ops append to ``emitter`` in this thread."""
    before = _ambient.emitter
    _ambient.emitter = emitter
    try:
        yield
    finally:
        _ambient.emitter = before


def emitter() -> Emitter:
    assert _ambient.emitter is not None, "an op was called outside emitting(...)"
    return _ambient.emitter


@dataclass(frozen=True)
class Local:
    """What an op needs to know to run on one worker's part: global and local types, and where the part starts.

    ``offset(i, d)``: the global index at which result ``i``'s dim ``d`` starts on a worker (a Coord, differing by worker).
    """

    inputs: tuple[TensorType, ...]  # local
    outputs: tuple[TensorType, ...]  # local
    global_inputs: tuple[TensorType, ...]
    global_outputs: tuple[TensorType, ...]

    def offset(self, output: int, dim: int) -> Coord | int:
        sharding = self.global_outputs[output].sharding
        assert sharding is not None
        strides, stride = [], self.outputs[output].shape[dim]
        for axis in reversed(sharding.dims[dim]):
            strides.append((axis, stride))
            stride *= sharding.mesh.axis_size(axis)
        return Coord(0, tuple(strides)) if strides else 0

    def input_offset(self, operand: int, dim: int) -> Coord | int:
        """Give the global index at which operand ``operand``'s dim ``dim`` starts on a worker."""
        swapped = Local(self.outputs, self.inputs, self.global_outputs, self.global_inputs)
        return swapped.offset(operand, dim)


Linear = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class OpDef:
    """The declaration of one op. Fields that take attributes get them as keyword arguments.

    doc:      one line, with shapes.
    operands: names of the operands; a last name ``*xs`` takes any number.
    infer:    ``(*types, **attrs) -> TensorType | tuple of them``; raises TypeMismatch kin for what does not fit.
    numpy:    ``(*arrays, **attrs) -> array | tuple``: the meaning, and every test's oracle.
    torch:    a template such as ``"torch.matmul({a}, {b})"``: operand and attribute names in braces (text attributes come
              without quotes), ``{out}`` the result's dtype as ``torch.float32``; or a function
              ``(operand names, attrs, output types) -> source of an expression``.
              An op of several results gives an expression for a tuple.
    vjp:      ``(gs, ys, *inputs, **attrs) -> gradient or None for each operand``, written with ops. ``gs`` holds a
              gradient or None for each result; for an op of one result ``g`` and ``y`` are passed bare.
    saves:    the operands and results that torch saves for this op's backward, and wants unchanged: names, ``y`` or ``y0 y1`` the
              results; ``a:b,c`` is ``a`` if the gradient of ``b`` or ``c`` is wanted; by ``a!`` gradients need one in torch, which
              is 0 as far as ``vjp`` does not say otherwise. Or ``(operand types, attrs, which
              operands are Python numbers) -> such a text``. None: what ``vjp`` reads.
    factors:  the sharding rule (``factors.py``): text, or ``(operand shapes, result shapes, attrs) -> Rule``.
              None: the op is replicated.
    linear:   groups of operands; the op is linear in each group jointly with the others fixed, so a pending sum may pass
              through when all of one group's operands, and no others, carry it. matmul: ``((0,), (1,))``; add: ``((0, 1),)``.
    when_split: ``(inputs, attrs, shards) -> outputs`` in other ops, in place of this one where a dim that must be whole
              arrives in so many parts: softmax over split classes. None: the parts are joined or exchanged first.
    near:     ``(inputs, attrs, parts) -> outputs`` in ops on windows, one for each worker, in place of this one where near
              factors (``factors.Halo``) are split; ``parts``: into how many each dim of each operand is.
    local:    ``(attrs, Local) -> attrs`` for one worker's part; default: the same attributes.
    scalars:  names of attributes that are given as run-time scalars instead when recorded (documentation).
    view:     the result only rearranges operand 0, and may share memory with it.
    shares:   ``(operand types, result types) -> bool`` for other ops whose torch form may give operand 0's memory back.
    creates:  makes a tensor out of nothing but attributes and numbers, as users do to begin with (randn, zeros).
    random:   result depends on the attributes seed/stream (never merged by cse, may be recomputed).
    decompose: ``(inputs, attrs) -> outputs`` in other ops. ``torch`` may then be None.
    inplace:  ``{result index: operand index}`` the torch lowering ``torch_inplace`` overwrites when donated.
    into:     by operand, the template that writes the result into its memory, for elementwise ops that end a chain from
              an input which it replaces: running statistics, counters.
    numbers:  operands that the torch lowering takes as Python numbers, giving the declared dtype (negative: from the
              end); the others are handed 0-d tensors. None: both sides of a lowering that is one infix operator, beside
              a tensor; else none.
    literal:  name of the attribute that is the value of a constant, for ops that make one.
    nonzero:  operands that must not hold integer zeros, padding included: divisors.
    indices:  operands of indices that the op reads unchecked, beside those it ``refuses``: padding must hold one that is in range.
    refuses:  operands whose values the op may refuse when it runs: indices, integer divisors, singular matrices. Of an op that takes
              any number, the last stands for all that follow.
    wide:     takes an attribute ``dtype`` that its sums are added up and given in: float32, of halves, where each worker's
              result is a partial sum. Other ops get operands in float32, but for those with ``autocast`` "low".
    autocast: "low" if mixed precision makes float operands of its low precision. The rest of it is ``gt.amp``'s.
    follows:  ``(number of operands, attrs) -> results`` that belong to another result, as an optimizer's states to
              the parameters: they are placed to suit it. None: no result leads another.
    subset:   ``(attrs, members) -> (operands, results, attrs)`` that concern some members of an op over many tensors,
              its attribute ``num``, so that it can be written as several. None: it cannot.
    work:     ``(operand types, result types, attrs) -> multiply-adds``. None: those of its contraction, by the factors: what is
              linear in two groups of operands and sums over a factor that both have.
    settled:  ``(operands, results, attrs) -> arrays`` that all right answers have alike, of an op that has several: which of equal
              elements is taken, the signs of vectors. None: there is one answer.
    effect:   "comm" for collectives, which keep their order; "grad" for the gradient node.
    """

    name: str
    operands: tuple[str, ...]
    infer: Callable[..., TensorType | tuple[TensorType, ...]]
    numpy: Callable[..., Any] | None
    torch: str | Callable[..., str] | None = None
    vjp: Callable[..., Any] | None = None
    saves: str | Callable[[Sequence[TensorType], dict[str, Any], tuple[bool, ...]], str] | None = None
    factors: str | Callable[..., fx.Rule] | None = None
    linear: Linear | Callable[..., Linear] = ()
    when_split: Callable[[tuple[Any, ...], dict[str, Any], int], Any] | None = None
    near: Callable[[tuple[Any, ...], dict[str, Any], tuple[tuple[int, ...], ...]], Any] | None = None
    local: Callable[[dict[str, Any], Local], dict[str, Any]] | None = None
    doc: str = ""
    view: bool = False
    shares: Callable[[Sequence[TensorType], Sequence[TensorType]], bool] | None = None
    creates: bool = False
    random: bool = False
    decompose: Callable[..., Any] | None = None
    torch_inplace: Callable[..., str] | None = None
    inplace: tuple[tuple[int, int], ...] | Callable[..., tuple[tuple[int, int], ...]] = ()
    into: Mapping[int, str] = field(default_factory=dict)
    follows: Callable[[int, dict[str, Any]], Sequence[int]] | None = None
    subset: Callable[[dict[str, Any], Sequence[int]], tuple[list[int], list[int], dict[str, Any]]] | None = None
    wide: bool = False
    autocast: str = ""
    work: Callable[[Sequence[TensorType], Sequence[TensorType], dict[str, Any]], int] | None = None
    settled: Callable[[Sequence[Any], Sequence[Any], dict[str, Any]], tuple[Any, ...]] | None = None
    effect: str = ""
    numbers: tuple[int, ...] | None = None
    literal: str = ""
    nonzero: tuple[int, ...] = ()
    indices: tuple[int, ...] = ()
    refuses: tuple[int, ...] = ()

    def __call__(self, *inputs: Any, **attrs: AttrValue) -> Any:
        """Append this op to the ambient emitter; one result comes bare, several as a tuple."""
        out = emitter().emit(self, inputs, tuple(attrs.items()))
        return out[0] if len(out) == 1 else out

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    def __reduce__(self) -> tuple[Callable[[str], OpDef], tuple[str]]:
        return OPS.__getitem__, (self.name,)

    def infer_types(self, types: tuple[TensorType, ...], attrs: Attrs) -> tuple[TensorType, ...]:
        """Give the result types. Sharding is not part of inference: results are unplaced."""
        out = self.infer(*(t.placed(None) if t.sharding else t for t in types), **dict(attrs))
        found = out if isinstance(out, tuple) else (out,)
        for type_ in found:
            check_sizes(type_.shape)
        return found

    def rule(self, operands: Sequence[TensorType], results: Sequence[TensorType], attrs: Attrs) -> fx.Rule | None:
        """Give the sharding rule on these shapes, or None if every dim must be whole."""
        return _rule(self, tuple(t.shape for t in operands), tuple(t.shape for t in results), attrs)

    def linear_groups(self, num_operands: int, attrs: Attrs) -> Linear:
        return self.linear(num_operands, dict(attrs)) if callable(self.linear) else self.linear

    def local_attrs(self, attrs: Attrs, where: Local) -> Attrs:
        return tuple(self.local(dict(attrs), where).items()) if self.local else attrs

    def inplace_pairs(self, num_operands: int, attrs: Attrs) -> tuple[tuple[int, int], ...]:
        """Give (result, operand) pairs that the in-place lowering overwrites."""
        return self.inplace(num_operands, dict(attrs)) if callable(self.inplace) else self.inplace

    def refused(self, num_operands: int) -> tuple[int, ...]:
        """Give the operands whose values the op may refuse when it runs, of so many."""
        many = bool(self.refuses) and self.operands[-1].startswith("*")
        return (*self.refuses, *range(self.refuses[-1] + 1, num_operands)) if many else self.refuses

    @cached_property
    def number_operands(self) -> tuple[int, ...]:
        """Give the operands whose torch lowering takes a Python number: Python's operators take one on either side."""
        if self.numbers is not None:
            return self.numbers
        names = re.fullmatch(r"\(\{(\w+)\} [^{}()]+ \{(\w+)\}\)", self.torch) if isinstance(self.torch, str) else None
        return (0, 1) if names and names.groups() == self.operands else ()

    def may_share(self, operands: Sequence[TensorType], results: Sequence[TensorType]) -> bool:
        """Tell whether a result may be in operand 0's memory."""
        return self.view or (self.shares is not None and self.shares(operands, results))

    def takes(self, count: int) -> bool:
        """Tell whether the op can have so many operands."""
        fixed = sum(not name.startswith("*") for name in self.operands)
        return count == fixed or (count > fixed and fixed < len(self.operands))

    def operand_names(self, count: int) -> tuple[str, ...]:
        if self.operands and self.operands[-1].startswith("*"):
            fixed = self.operands[:-1]
            return (*fixed, *(f"{self.operands[-1][1:]}{i}" for i in range(count - len(fixed))))
        return self.operands


@lru_cache(maxsize=65536)
def _rule(op: OpDef, operands: tuple[Any, ...], results: tuple[Any, ...], attrs: Attrs) -> fx.Rule | None:
    if op.factors is None:
        return None
    if isinstance(op.factors, str):
        return fx.rule(op.factors, operands, results)
    return op.factors(operands, results, dict(attrs))


def op(name: str, operands: str, **fields: Any) -> OpDef:
    """Declare an op and enter it in the table. ``operands`` are names separated by spaces."""
    assert name not in OPS, f"op {name} is declared twice"
    OPS[name] = declared = OpDef(name=name, operands=tuple(operands.split()), **fields)
    return declared

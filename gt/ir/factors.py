"""Sharding rules: how an op relates the dims of its operands, in factor notation.

A rule is written like an einsum with marks, e.g. matmul ``"...mk,...kn->...mn | +k"``. Each letter is a *factor*. A
mesh axis that splits a factor splits every dim made of it. Marks after ``|`` say what a split factor means:

======  =====================================================================================================
mark    meaning
======  =====================================================================================================
(none)  pass-through: each worker computes its own part
``+k``  each worker's result is a partial sum;  ``>k`` ``<k`` a partial max / min
``^k``  indexed: a worker gives zeros where an index is not of its part, so a partial sum; padding is never indexed
``!k``  must be whole: the operands are gathered first
``~k``  each worker has other rows of the operand's dim than of the result's, and is sent those it lacks (``Rule.near``)
======  =====================================================================================================

``(ab)`` is one dim made of ``a`` (major) and ``b``; ``1`` a dim of size 1 (never split); ``.`` a dim with a factor of
its own that must be whole; ``...`` leading batch dims, right-aligned, where a size-1 dim broadcasts.

Owns: parsing rules and instantiating them on types. Must not know: any op, any mesh. Next: ``propagate_sharding``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

from gt.ir.mesh import Mesh, Reduction
from gt.ir.tiles import Rows
from gt.ir.types import Shape

Factor: TypeAlias = str
DimFactors: TypeAlias = tuple[Factor, ...]  # major first; () for a dim of size 1
FactorKind: TypeAlias = Literal["pass", "sum", "max", "min", "index", "whole", "near"]
MARKS: dict[str, FactorKind] = {"+": "sum", ">": "max", "<": "min", "^": "index", "!": "whole", "~": "near"}
PENDING: dict[FactorKind, Reduction] = {"sum": "sum", "max": "max", "min": "min", "index": "sum"}


@dataclass(frozen=True)
class Halo:
    """Two near factors of an op that computes on windows: ``other`` is split as ``factor`` is, never by itself.

    The op is then written in ops on each worker's window (``OpDef.near``). ``moved`` is the one of which neighbours share
    ``rows`` rows. ``summed``: no result has them, each worker's is a partial sum.
    """

    factor: Factor
    other: Factor
    moved: Factor
    rows: int
    summed: bool = False


@dataclass(frozen=True)
class Rule:
    """A rule on concrete shapes: for each operand and result, the factors of each dim; sizes and kinds of factors.

    ``near``: the one result as rows of the one operand, for an op that only moves rows; its near dims have a factor each on
    either side, which are split together. ``halos``: the same of an op that computes on windows.
    """

    operands: tuple[tuple[DimFactors, ...], ...]
    results: tuple[tuple[DimFactors, ...], ...]
    sizes: tuple[tuple[Factor, int], ...]
    kinds: tuple[tuple[Factor, FactorKind], ...]  # those that are not "pass"
    near: Rows | None = None
    halos: tuple[Halo, ...] = ()

    @cached_property
    def size(self) -> dict[Factor, int]:
        return dict(self.sizes)

    @cached_property
    def kind(self) -> dict[Factor, FactorKind]:
        kinds: dict[Factor, FactorKind] = dict.fromkeys(self.size, "pass")
        kinds.update(self.kinds)
        return kinds

    @cached_property
    def partner(self) -> dict[Factor, Factor]:
        """Give for each near factor that may be split the one that is split with it."""
        found = {halo.factor: halo.other for halo in self.halos}
        if self.near is not None:
            pairs = zip(self.operands[0], self.results[0], strict=True)
            found |= {a[0]: b[0] for a, b in pairs if a and b and self.kind[a[0]] == "near"}
        return found

    @cached_property
    def following(self) -> frozenset[Factor]:
        """Give the near factors that are split only as those they follow."""
        led = {f for dims in self.results for d in dims for f in d if self.kind[f] == "near"} if self.near is not None else set()
        return frozenset(led | {halo.other for halo in self.halos})

    def volume(self, factors: Iterable[Factor]) -> int:
        """Give how often an op computes over these factors: rows and the windows over them count once, by the fewer."""
        counted = dict.fromkeys(factors)
        sizes = {f: self.size[f] for f in counted if f not in self.following}
        for halo in self.halos:
            if halo.factor in counted:
                sizes[halo.factor] = min(self.size[halo.factor], self.size[halo.other])
        return math.prod(sizes.values())

    @cached_property
    def pending(self) -> dict[Factor, Reduction]:
        """Give the reduction that is pending where a factor is split that a result lacks."""
        found = {f: PENDING[kind] for f, kind in self.kinds if kind in PENDING}
        return found | {halo.factor: "sum" for halo in self.halos if halo.summed}

    def split_by(self, factors: DimFactors, axes: tuple[str, ...], mesh: Mesh) -> dict[Factor, tuple[str, ...]] | None:
        """Give which factor of a dim each mesh axis splits: a minor one once the majors are in parts of one row.

        None if the parts of the dim are not parts of the factors.
        """
        if len(factors) == 1:
            return {factors[0]: axes}
        found: dict[Factor, tuple[str, ...]] = {}
        left = list(axes)
        for factor in factors:
            rows = self.size[factor]
            own: list[str] = []
            while left and rows > 1 and rows % mesh.axis_size(left[0]) == 0:
                rows //= mesh.axis_size(left[0])
                own.append(left.pop(0))
            found[factor] = tuple(own)
            if rows > 1:
                break
        return None if left else found


@lru_cache(maxsize=4096)
def _split(text: str) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...], tuple[tuple[str, str], ...]]:
    body, _, marks = text.partition("|")
    left, _, right = body.replace(" ", "").partition("->")
    tokens = re.compile(r"\.\.\.|\([a-zA-Z]+\)|[a-zA-Z]'?|1|\.")
    side = lambda s: tuple(tuple(tokens.findall(term)) for term in s.split(",")) if s else ()  # noqa: E731
    return side(left), side(right), tuple((m[1:], m[0]) for m in marks.split())


def rule(text: str, operands: Sequence[Shape], results: Sequence[Shape]) -> Rule:
    """Instantiate a rule on shapes. ``text`` names one term for each operand and result."""
    left, right, marks = _split(text)
    assert len(left) == len(operands) and len(right) == len(results), f"rule {text!r} for {operands} -> {results}"
    batch = max(
        (len(s) - (len(t) - 1) for t, s in zip((*left, *right), (*operands, *results), strict=True) if "..." in t),
        default=0,
    )
    sizes: dict[Factor, int] = {}
    kinds: dict[Factor, FactorKind] = {name: MARKS[mark] for name, mark in marks}
    private = 0

    def bind(term: tuple[str, ...], shape: Shape) -> tuple[DimFactors, ...]:
        nonlocal private
        out: list[DimFactors] = []
        spare = len(shape) - (len(term) - ("..." in term))
        at = 0
        for token in term:
            if token == "...":
                for i in range(batch - spare, batch):
                    size, name = shape[at], f"#{i}"
                    at += 1
                    if size == 1:
                        out.append(())
                    else:
                        sizes[name] = max(size, sizes.get(name, 0)) if size else 0
                        out.append((name,))
                continue
            size = shape[at]
            at += 1
            if token == "1":
                out.append(())
            elif token == ".":
                name = f"!{private}"
                private += 1
                sizes[name], kinds[name] = size, "whole"
                out.append((name,))
            elif token.startswith("("):
                raise AssertionError("compound dims need explicit sizes: use reshape_rule")
            elif size == 1 and sizes.get(token, 1) == 1:
                sizes.setdefault(token, 1)
                out.append((token,))
            elif size == 1:
                out.append(())  # broadcast
            else:
                sizes[token] = size
                out.append((token,))
        assert at == len(shape), f"rule {text!r}: {term} does not cover {shape}"
        return tuple(out)

    bound_left = tuple(bind(t, s) for t, s in zip(left, operands, strict=True))
    bound_right = tuple(bind(t, s) for t, s in zip(right, results, strict=True))
    return finish(bound_left, bound_right, sizes, kinds)


def finish(
    operands: Sequence[Sequence[DimFactors]],
    results: Sequence[Sequence[DimFactors]],
    sizes: dict[Factor, int],
    kinds: dict[Factor, FactorKind],
    near: Rows | None = None,
    halos: Sequence[Halo] = (),
) -> Rule:
    """Drop factors of size 1 (never split) and build the rule."""
    keep = lambda dims: tuple(tuple(f for f in d if sizes[f] != 1) for d in dims)  # noqa: E731
    used = {f for side in (*operands, *results) for d in side for f in d if sizes[f] != 1}
    return Rule(
        tuple(keep(d) for d in operands),
        tuple(keep(d) for d in results),
        tuple(sorted((f, s) for f, s in sizes.items() if f in used)),
        tuple(sorted((f, k) for f, k in kinds.items() if f in used and k != "pass")),
        near,
        tuple(halos),
    )


def elementwise(operands: Sequence[Shape], results: Sequence[Shape], attrs: object = None) -> Rule:
    """Every dim passes through, size-1 dims of operands broadcast."""
    return rule(",".join(["..."] * len(operands)) + "->" + ",".join(["..."] * len(results)), operands, results)


def reshape_rule(source: Shape, target: Shape) -> Rule:
    """Walk both shapes and match equal products; a group ``(ab) -> ab`` shares its factors, the rest must be whole."""
    sizes: dict[Factor, int] = {}
    kinds: dict[Factor, FactorKind] = {}
    left: list[DimFactors] = [() for _ in source]
    right: list[DimFactors] = [() for _ in target]
    if 0 in source or 0 in target:
        for side, shape, tag in ((left, source, "s"), (right, target, "t")):
            for d, size in enumerate(shape):
                side[d] = (f"{tag}{d}",)
                sizes[f"{tag}{d}"], kinds[f"{tag}{d}"] = size, "whole"
        return finish([left], [right], sizes, kinds)
    i = j = number = 0
    while i < len(source) or j < len(target):
        a, b = i + 1, j + 1
        left_size = source[i] if i < len(source) else 1
        right_size = target[j] if j < len(target) else 1
        while left_size != right_size:
            if left_size < right_size:
                left_size, a = left_size * source[a], a + 1
            else:
                right_size, b = right_size * target[b], b + 1
        group_left, group_right = range(i, min(a, len(source))), range(j, min(b, len(target)))
        _match(source, target, group_left, group_right, left, right, sizes, kinds, number)
        number += len(source) + len(target)
        i, j = a, b
    return finish([left], [right], sizes, kinds)


def _match(
    source: Shape, target: Shape, gl: range, gr: range, left: list[DimFactors], right: list[DimFactors],
    sizes: dict[Factor, int], kinds: dict[Factor, FactorKind], number: int,
) -> None:  # fmt: skip
    """Factorise one group of equal product by walking both sides from the major end."""
    li, ri = [d for d in gl if source[d] != 1], [d for d in gr if target[d] != 1]
    lrest = [source[d] for d in li]
    rrest = [target[d] for d in ri]
    a = b = 0
    while a < len(li) and b < len(ri):
        x, y = lrest[a], rrest[b]
        size = math.gcd(x, y)
        if size == 1:  # no common major factor: what is left on both sides must be whole
            break
        name = f"r{number}"
        number += 1
        sizes[name] = size
        left[li[a]] += (name,)
        right[ri[b]] += (name,)
        lrest[a] //= size
        rrest[b] //= size
        a += lrest[a] == 1
        b += rrest[b] == 1
    for dims, rest, side, at in ((li, lrest, left, a), (ri, rrest, right, b)):
        for k in range(at, len(dims)):
            if rest[k] != 1:
                name = f"w{number}"
                number += 1
                sizes[name], kinds[name] = rest[k], "whole"
                side[dims[k]] += (name,)

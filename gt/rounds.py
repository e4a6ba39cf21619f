"""A loop of the user's in what a flush runs: its rounds are alike, so they become runs of one small graph, which is planned once.

A loop of ten thousand ops is otherwise a graph of ten thousand nodes. Steps with a gradient in them stay whole: what is planned together
is also fused, placed and freed together. Owns: ``cut`` (finding rounds, and what each part takes and gives). Must not know: graphs,
sessions. Next: ``flush`` (what makes graphs of parts and runs them).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gt.ir.types import TensorType
from gt.rule import RULES
from gt.trace import MAX_PENDING

MIN_ENTRIES = 512  # of rounds side by side that are worth runs of their own
MIN_ROUNDS = 4
MAX_ROUND = 512  # entries of a round
PART = 128  # entries of the largest parts, unless a round is longer: a run of them costs little beside them, planning one much
NEAR = 16  # values back to which operands count when rounds are compared; what is read from further back may be the same in each
TRIED = 8  # distances to the next places that look like a round's begin

Entries = Sequence[tuple[int, tuple[int, ...]]]
Stretch = tuple[int, int, int]  # so many parts side by side: where they start, entries of each, how many


@dataclass(frozen=True)
class Part:
    """Entries ``start`` to ``stop`` of a trace as a run of their own. Everything else is by value id; ``first`` is that of its first result.

    ``types``: of the outputs. ``donated``: indices of inputs that only the part before made and nothing after reads. ``frees``: all
    that nothing after reads. ``key`` is equal for parts that are equal but for value ids.
    """

    start: int
    stop: int
    first: int
    inputs: tuple[int, ...]
    scalars: tuple[int, ...]
    outputs: tuple[int, ...]
    types: tuple[TensorType, ...]
    donated: tuple[int, ...]
    frees: tuple[int, ...]
    key: tuple[object, ...]


def cut(code: Entries, outputs: Sequence[int]) -> list[Part]:
    """Give the parts of a trace whose rounds are alike, to be run in order; none if it has no such rounds."""
    if len(code) < MIN_ENTRIES:
        return []
    table = _Table(code, outputs)
    if not table.fits:
        return []
    parts: list[Part] = []
    for start, size, count in table.stretches(0, len(code)):
        parts += table.parts(start, size, count, parts[-1].first if parts else 0)
    planned = sum(part.stop - part.start for part in {part.key: part for part in parts}.values())
    return [part for part in parts if part.outputs] if 2 * planned <= len(code) else []


class _Table:
    """A trace as arrays: by entry, by operand, by value."""

    def __init__(self, code: Entries, outputs: Sequence[int]) -> None:
        count = len(code)
        ids, taken = zip(*code, strict=True)
        self.ids = np.array(ids, np.int64)
        kinds, which = np.unique(self.ids, return_inverse=True)
        rules = [RULES[id >> 1] for id in kinds.tolist()]
        leaf = np.array([rule.op is None for rule in rules])[which]
        scalar = np.array([rule.op is None and rule.attrs[0][0] == "scalar" for rule in rules])[which]
        made = np.array([rule.count for rule in rules])[which]
        widths = np.fromiter(map(len, taken), np.int64, count)
        self.first = np.concatenate(([0], np.cumsum(made)))  # an entry's first result
        self.at = np.concatenate(([0], np.cumsum(widths)))  # where an entry's operands are
        self.operands = np.fromiter(itertools.chain.from_iterable(taken), np.int64, int(self.at[-1]))
        self.leaf, self.scalar = np.repeat(leaf, made), np.repeat(scalar, made)
        readers = np.repeat(np.arange(count), widths)
        self.last = np.full(len(self.leaf), -1)  # the entry that reads a value last
        self.last[self.operands] = readers
        self.last[list(outputs)] = count
        whole = any(rule.op is not None and (rule.op.effect or rule.op.refuses) for rule in rules)  # what fails together is kept together
        self.fits = not whole and not self.leaf[list(outputs)].any()
        back = np.minimum(self.first[readers] - self.operands, NEAR)
        place = np.arange(len(readers)) - self.at[readers]
        self.labels = self.ids.copy()  # equal where entries are alike, rarely elsewhere
        np.add.at(self.labels, readers, (back + 1) * (place + 1) * 1_000_003)
        if count <= MAX_PENDING:  # a round takes no new input, as a layer does; a backward that long takes what was saved for it
            self.labels[leaf & ~scalar] = -1 - np.flatnonzero(leaf & ~scalar)

    # -- where to cut

    def stretches(self, low: int, high: int) -> list[Stretch]:
        """Give all that is between two entries as parts."""
        found = self.rounds(low, high) if high - low >= MIN_ENTRIES else None
        if found is None:
            return [(low, high - low, 1)] if low < high else []
        start, size, count = found
        at = start + size  # the first round may take what the others do not
        most = max(1, PART // size)
        few = max(1, most // 4)
        many, rest = divmod(count - 1, most)
        out = self.stretches(low, at)
        for rounds, times in ((most, many), (few, rest // few)):
            if times:
                out.append((at, rounds * size, times))
                at += rounds * size * times
        return out + self.stretches(at, high)

    def rounds(self, low: int, high: int) -> Stretch | None:
        """Give where equal rounds start between two entries, their size and how many there are, if there are some."""
        labels = self.labels
        for quarter in (2, 1, 3):
            middle = low + (high - low) * quarter // 4
            near = labels[middle : min(high, middle + MAX_ROUND + NEAR)]
            if len(near) <= NEAR:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(near, NEAR)
            for size in (np.flatnonzero((windows[1:] == windows[0]).all(1))[:TRIED] + 1).tolist():
                other = np.flatnonzero(labels[low + size : high] != labels[low : high - size])
                here = int(np.searchsorted(other, middle - low))
                start = low + (int(other[here - 1]) + 1 if here else 0)
                stop = size + (low + int(other[here]) if here < len(other) else high - size)
                if stop - start >= MIN_ENTRIES and stop - start >= (MIN_ROUNDS + 1) * size:
                    turned = min(range(size), key=lambda at: labels[start + at : start + at + size].tolist())
                    return start + turned, size, (stop - start - turned) // size
        return None

    # -- what parts take and give

    def parts(self, start: int, size: int, count: int, before: int) -> list[Part]:
        """Give parts side by side. ``before``: the first value of the part before them."""
        out = [self.part(start, start + size, before)]
        if count > 1:
            out.append(self.part(start + size, start + 2 * size, out[0].first))
        like, alike, moved = out[-1], np.array([]), np.array([])
        if count > 2:
            alike, moved = self.alike(like, count - 1)
        for i in range(1, count - 1):
            at = like.start + i * size
            out.append(self.moved(like, at, moved) if alike[i] else self.part(at, at + size, out[-1].first))
        return out

    def part(self, start: int, stop: int, before: int) -> Part:
        """Give one part."""
        low, high = int(self.first[start]), int(self.first[stop])
        operands = self.operands[self.at[start] : self.at[stop]]
        outside = (operands < low) | self.leaf[operands]
        values, at = np.unique(operands[outside], return_index=True)
        values = values[np.argsort(at)]  # in the order of their first use
        scalars, inputs = values[self.scalar[values]], values[~self.scalar[values]]
        number = np.concatenate((np.arange(len(inputs)), (1 << 32) + np.arange(len(scalars))))
        names = np.concatenate((inputs, scalars))
        order = np.argsort(names)
        body = operands - low
        body[outside] = -1 - number[order][np.searchsorted(names[order], operands[outside])]
        outputs = low + np.flatnonzero((self.last[low:high] >= stop) & ~self.leaf[low:high])
        dies = (self.last[inputs] < stop) & ~self.leaf[inputs]
        donated = tuple(np.flatnonzero(dies & (inputs >= before)).tolist())
        key = self.ids[start:stop].tobytes(), body.tobytes(), (outputs - low).tobytes(), donated
        makers = np.searchsorted(self.first, outputs, "right") - 1
        types = [RULES[id >> 1].outputs[i] for id, i in zip(self.ids[makers].tolist(), (outputs - self.first[makers]).tolist(), strict=True)]
        return Part(
            start, stop, low, tuple(inputs.tolist()), tuple(scalars.tolist()), tuple(outputs.tolist()), tuple(types), donated,
            tuple(inputs[dies].tolist()), key,
        )  # fmt: skip

    def alike(self, like: Part, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Say which of so many parts, beginning with one that is known, are equal to it, and which of its inputs move along."""
        size, low = like.stop - like.start, like.first
        stop = like.start + size * count
        none = np.zeros(count, bool), np.zeros(len(like.inputs), bool)
        ids = self.ids[like.start : stop].reshape(count, size)
        if (ids != ids[0]).any():
            return none
        steps = np.arange(count)[:, None]
        step = int(self.first[like.stop]) - low
        operands = self.operands[self.at[like.start] : self.at[stop]].reshape(count, -1)
        carried = operands[1] - operands[0] == step
        fixed = operands[0][~carried]
        if (fixed >= low).any() or np.isin(fixed, operands[0][carried]).any():
            return none
        moved = np.isin(like.inputs, operands[0][carried])
        inputs = np.array(like.inputs, np.int64) + steps * step * moved
        stops = like.stop + steps * size
        found = np.ones(count, bool)
        for each in (
            operands - steps * step * carried,
            self.leaf[operands],
            self.last[low : low + step * count].reshape(count, step) >= stops,
            (self.last[inputs] < stops) & ~self.leaf[inputs],
        ):
            found &= (each == each[0]).all(1)
        return found & (np.diff(np.sort(inputs, 1), axis=1) != 0).all(1), moved

    def moved(self, like: Part, start: int, moved: np.ndarray) -> Part:
        """Give the part equal to one that is known, further on."""
        first = int(self.first[start])
        by = first - like.first
        ids = (np.array(like.inputs, np.int64) + by * moved, *(np.array(ids, np.int64) + by for ids in (like.scalars, like.outputs, like.frees)))
        inputs, scalars, outputs, frees = [tuple(each.tolist()) for each in ids]
        return replace(
            like, start=start, stop=start + like.stop - like.start, first=first, inputs=inputs, scalars=scalars, outputs=outputs, frees=frees
        )

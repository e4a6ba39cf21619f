"""``gt.pipeline``: a model in stages on workers of their own, which work on different microbatches at the same time.

A step is ordinary recorded work: each stage's forward and backward of each microbatch under a signal that names its workers, in the
order of the schedule. What a stage needs from its neighbours becomes a transfer, and each worker's program is what is left for it.
Owns: ``Pipeline``, ``pipeline``, which workers a stage gets. Must not know: programs. Next: ``pipeline_schedule`` (the order),
``gt.passes.lower_programs`` (who sends when).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from gt import session as sessions
from gt.autograd import backward, no_grad
from gt.config import get_config
from gt.functions.shape import cat, narrow
from gt.ir.ops import OPS
from gt.ir.signals import ShardConfig, SignalConfig, SignalFault, worker_numbers
from gt.ir.types import got
from gt.ir.wording import amount
from gt.nn.containers import ModuleList, Sequential
from gt.nn.module import Module
from gt.pipeline_loss import Loss, whole_loss
from gt.pipeline_schedule import SCHEDULES, Schedule, bubble, in_time
from gt.recording import record
from gt.signal import Named, resolve, within
from gt.tensor import Tensor

COPY = OPS["copy"]
Rows = range  # of the batch: one microbatch


@dataclass(frozen=True)
class Stage:
    """One stage: what it computes, and the signals of its work and of the microbatches that it is given."""

    run: Callable[..., Any]
    signal: Named
    rows: Named
    workers: tuple[int, ...]

    def scope(self) -> AbstractContextManager[None]:
        return within(self.signal)

    def take(self, given: Any, rows: Rows | None = None) -> Any:
        """Give a tensor's value, or some rows of it, on this stage's workers, the rows split over them."""
        if not isinstance(given, Tensor):
            return given
        if rows is not None:
            with self.scope():
                given = narrow(given, 0, rows.start, len(rows))
        fits = given._type.ndim and given._type.shape[0] >= len(self.workers)
        with within(self.rows if fits else self.signal):
            return record(COPY, (given,))


class Pipeline(Module):
    """Stages that work on different microbatches at the same time. Made by ``gt.pipeline``."""

    def __init__(
        self,
        stages: Sequence[Callable[..., Any]],
        microbatches: int,
        loss_fn: Loss | None,
        placed: Sequence[Stage],
        schedule: Schedule,
        reduction: str | None = None,
    ) -> None:
        super().__init__()
        self.stages = ModuleList(stage for stage in stages if isinstance(stage, Module))
        self.microbatches, self.loss_fn, self.schedule, self.reduction = microbatches, loss_fn, schedule, reduction
        self._placed = tuple(placed)
        self._settle()

    @property
    def workers(self) -> tuple[tuple[int, ...], ...]:
        """Give each stage's workers."""
        return tuple(stage.workers for stage in self._placed)

    @property
    def bubble(self) -> float:
        """Give the share of a step's time in which workers wait, if all stages take equally long. Stages that share one take turns.

        ``gt plan`` predicts it from what the stages really do.
        """
        return bubble(len(self._placed), self.microbatches, self.schedule, self.workers)

    def _settle(self) -> None:
        """Bring parameters and buffers to the workers of the first stage that has them."""
        seen: set[int] = set()
        for stage in self._placed:
            if isinstance(stage.run, Module):
                with no_grad(), stage.scope():
                    for t in (*stage.run.parameters(), *stage.run.buffers()):
                        if id(t) not in seen:
                            seen.add(id(t))
                            t._assign(record(COPY, (t,)))

    def forward(self, *args: Any) -> Any:
        """Give what the last stage makes of the batch, microbatch by microbatch. Errors: TypeError if that has no rows."""
        found = []
        for rows in self._microbatches(args):
            given: Iterable[Any] = [self._placed[0].take(t, rows) for t in args]
            for stage in self._placed:
                given = _run(stage, given if stage is self._placed[0] else [stage.take(t) for t in given])
            wrong = next((t for t in given if not isinstance(t, Tensor) or not t._type.ndim), self)
            if wrong is not self:
                one = f"{got(wrong)}{' of no dims' if isinstance(wrong, Tensor) else ''}"
                raise TypeError(f"gt.pipeline: the last stage gives tensors with the rows of a microbatch along dim 0, got {one}")
            found.append(given)
        with self._placed[-1].scope():
            joined = tuple(cat(list(parts), 0) for parts in zip(*found, strict=True))
        return joined[0] if len(joined) == 1 else joined

    def step(self, *args: Any, target: Any = None, losses: list[Tensor] | None = None) -> Tensor:
        """Run forward and backward of one batch; give its loss. Gradients are added to ``.grad``, as by ``loss.backward()``.

        ``args`` go to the first stage and ``target`` to the loss, cut into microbatches along dim 0; what is no tensor goes whole.
        The loss is that of the whole batch: of means over rows the mean, of sums the sum (``reduction`` of ``gt.pipeline``), and of
        ``cross_entropy`` and ``nll_loss`` the mean over the targets that count. ``losses`` gets what each microbatch adds to it,
        or, where it is a mean over rows, the microbatches' own. A batch of fewer rows than microbatches, as an epoch's last may be, is cut
        into as many as it has rows. Errors: ValueError for a batch of no rows.
        """
        if self.loss_fn is None:
            raise ValueError("Pipeline.step() needs a loss: gt.pipeline(stages, microbatches=..., loss_fn=...)")
        rows = self._microbatches((*args, target))
        work = _Step(self, args, target, rows)
        for timed in in_time(len(self._placed), len(rows), self.schedule):
            action = timed.action
            (work.backward if action.backward else work.forward)(action.stage, action.microbatch)
        work.enter()
        if losses is not None:
            losses[:] = work.losses
        return work.loss()

    def _microbatches(self, args: Sequence[Any]) -> list[Rows]:
        """Cut dim 0 of tensors, the first few parts one row longer where it must be."""
        rows = {t._type.shape[0] if t._type.ndim else 0 for t in args if isinstance(t, Tensor)}
        if len(rows) > 1:
            raise ValueError(f"a pipeline cuts its inputs along dim 0, got different sizes there: {sorted(rows)}")
        size = rows.pop() if rows else self.microbatches
        if size < 1:
            raise ValueError("a batch of no rows cannot be cut into microbatches")
        m = min(self.microbatches, size)
        ends = [size // m * i + min(size % m, i) for i in range(m + 1)]
        return [range(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    def extra_repr(self) -> str:
        return f"workers={self.workers}, microbatches={self.microbatches}, schedule={self.schedule!r}, bubble={self.bubble:.0%}"


class _Step:
    """What a step has under way: for each stage and microbatch what it was given and what it made."""

    def __init__(self, pipe: Pipeline, inputs: tuple[Any, ...], target: Any, rows: list[Rows]) -> None:
        assert pipe.loss_fn is not None
        self.stages, self.whole = pipe._placed, whole_loss(pipe.loss_fn, pipe.reduction)
        self.outside = [t for t in (*inputs, target) if isinstance(t, Tensor) and t._rg and not t._leaf]
        self.leaves = [t.detach().requires_grad_() for t in self.outside]  # the microbatches' in their place
        inside = {id(t): leaf for t, leaf in zip(self.outside, self.leaves, strict=True)}
        self.inputs, self.target, self.rows = tuple(inside.get(id(t), t) for t in inputs), inside.get(id(target), target), rows
        self.given: dict[tuple[int, int], list[Any]] = {}
        self.made: dict[tuple[int, int], tuple[Any, ...]] = {}
        self.gradients: dict[tuple[int, int], list[Any]] = {}
        self.losses: list[Tensor] = []
        self.weights: list[Any] = [1.0 if self.whole.reduction == "sum" else len(own) / rows[-1].stop for own in rows]
        if (counted := self.whole.counts(target)):
            with self.stages[-1].scope(), no_grad():
                self.count = self.whole.count(self.stages[-1].take(target))
            self.weights = [1.0] * len(rows)
        self.loss_fn = self.whole.run if counted or not self.whole.counted else pipe.loss_fn
        self.counted = counted

    def forward(self, s: int, i: int) -> None:
        stage = self.stages[s]
        if s == 0:
            given = [stage.take(t, self.rows[i]) for t in self.inputs]
        else:
            given = [_cut_off(stage, t) for t in self.made[s - 1, i]]
        self.given[s, i] = given
        self.made[s, i] = _run(stage, given)

    def backward(self, s: int, i: int) -> None:
        """Go back through one stage, from the loss or from the gradients that the next stage has sent."""
        stage, made = self.stages[s], self.made.pop((s, i))
        if s == len(self.stages) - 1:
            target = stage.take(self.target, self.rows[i])
            with stage.scope():
                result: Any = made[0] if len(made) == 1 else made
                loss = self.loss_fn(result, target)
                if self.counted:
                    loss = loss / self.count
                elif not self.losses and self.whole.is_sum(loss):
                    get_config().cannot_follow(
                        "gt.pipeline: the loss ends in a sum, and is taken as a mean over rows: say reduction='sum' or reduction='mean'"
                    )
                self.losses.append(loss.detach())
                (loss * self.weights[i]).backward()
        else:
            pairs = [(t, g) for t, g in zip(made, self.gradients.pop((s, i)), strict=True) if g is not None]
            with stage.scope():
                for left, (t, g) in zip(range(len(pairs) - 1, -1, -1), pairs, strict=True):
                    t.backward(stage.take(g), retain_graph=left > 0)
        given = self.given.pop((s, i))
        if s:
            self.gradients[s - 1, i] = [t.grad if isinstance(t, Tensor) else None for t in given]

    def enter(self) -> None:
        """Go back through what was computed before the step: once, with the gradients of all microbatches."""
        entered = [(t, leaf.grad) for t, leaf in zip(self.outside, self.leaves, strict=True) if leaf.grad is not None]
        if entered:
            backward([t for t, _ in entered], [g for _, g in entered])

    def loss(self) -> Tensor:
        with self.stages[-1].scope(), no_grad():
            total = self.losses[0] * self.weights[0]
            for loss, weight in zip(self.losses[1:], self.weights[1:], strict=True):
                total = total + loss * weight
        return total


def _run(stage: Stage, given: Iterable[Any]) -> tuple[Any, ...]:
    with stage.scope():
        out = stage.run(*given)
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def _cut_off(stage: Stage, t: Any) -> Any:
    """Give a stage what the one before made as a leaf of its own, so that each goes back for itself."""
    if not isinstance(t, Tensor):
        return t
    with no_grad():
        taken = stage.take(t.detach())
    return taken.requires_grad_() if t._rg else taken


# -- which workers


def pipeline(
    stages: Sequence[Callable[..., Any]] | Sequential,
    microbatches: int,
    loss_fn: Loss | None = None,
    *,
    parts: int | None = None,
    workers: Sequence[Sequence[int]] | None = None,
    signals: Sequence[str] | None = None,
    schedule: Schedule = "1f1b",
    reduction: str | None = None,
) -> Pipeline:
    """Put the stages of a model on workers of their own and train it microbatch by microbatch.

    ``stages``: modules or functions, each fed what the one before gives; or a Sequential, which is cut into ``parts`` of about equal
    numbers of parameters. ``workers``: each stage's; or ``signals``: names of signals that say so, and how values are split there.
    By default the workers there are are cut into equal sets. A stage of several workers splits each microbatch over them.
    ``schedule``: "1f1b" or "gpipe", which takes as long and holds more activations.

    ``reduction``: "mean" or "sum" over rows, which losses of gt's own, modules and partials of them tell by themselves.

    ``pipe.step(x, target=y)`` runs forward and backward, ``pipe(x)`` forward alone. Random numbers, as dropout draws, are those of
    microbatches. Errors: ValueError for a worker in two stages, or a reduction that is not the loss's own. With fewer workers than
    stages, stages share workers: one warning, an error in strict mode. Source: torch.distributed.pipelining.
    """
    if isinstance(stages, Sequential):
        stages = _in_parts(stages, parts if parts is not None else len(stages))
    elif parts is not None:
        raise ValueError("gt.pipeline: parts= cuts a Sequential; a list of stages is cut already")
    stages = list(stages)
    if not stages or not all(callable(stage) for stage in stages):
        raise TypeError(f"gt.pipeline: stages are modules or functions, got {[type(s).__name__ for s in stages]}")
    if not isinstance(microbatches, int) or isinstance(microbatches, bool) or microbatches < 1:
        raise ValueError(f"gt.pipeline: microbatches must be a number from 1 up, got {microbatches!r}")
    if schedule not in SCHEDULES:
        raise ValueError(f"gt.pipeline: schedule is one of {', '.join(map(repr, SCHEDULES))}, got {schedule!r}")
    if reduction not in (None, "mean", "sum"):
        raise ValueError(f"gt.pipeline: reduction is 'mean' or 'sum', got {reduction!r}")
    if loss_fn is not None:
        whole_loss(loss_fn, reduction)  # so that a contradiction is told here
    get_config().placed_by_hand()
    placed = [Stage(run, *own) for run, own in zip(stages, _places(len(stages), workers, signals), strict=True)]
    return Pipeline(stages, microbatches, loss_fn, placed, schedule, reduction)


def _in_parts(model: Sequential, parts: int) -> list[Callable[..., Any]]:
    """Cut at the children where so many parts have about equal numbers of parameters."""
    if not 1 <= parts <= len(model):
        raise ValueError(f"gt.pipeline: a Sequential of {len(model)} modules cannot be cut into {parts} parts")
    sizes = [1 + sum(p._type.numel for p in child.parameters()) for child in model]
    ends, reached = [0], 0
    for i, size in enumerate(sizes):
        part, left = len(ends), len(sizes) - i
        if i > ends[-1] and part < parts and (reached + size / 2 > sum(sizes) * part / parts or left == parts - part):
            ends.append(i)
        reached += size
    return [model[a:b] for a, b in zip(ends, [*ends[1:], len(sizes)], strict=True)]


def _places(
    count: int, workers: Sequence[Sequence[int]] | None, signals: Sequence[str] | None
) -> list[tuple[Named, Named, tuple[int, ...]]]:
    """Give each stage's signal, the signal of its microbatches, and its workers."""
    if workers is not None and signals is not None:
        raise ValueError("gt.pipeline: workers= and signals= both say where stages are: give one of them")
    named = [resolve(name) for name in signals or ()]
    asked = [_given_workers(i, own) for i, own in enumerate(workers or ())] + [_named_workers(*signal) for signal in named]
    if asked and len(asked) != count:
        given = "signals" if named else "workers"
        raise ValueError(f"gt.pipeline: {count} stages, but {given} for {len(asked)}: give each stage its own")
    _check_apart(asked, [get_config().said_at(name) for name in signals or [""] * len(asked)])
    there = sessions.current().workers()
    if not there:
        raise RuntimeError("gt.pipeline: no worker is there yet to put stages on: start workers first")
    sets = [tuple(w for w in own if w in there) for own in asked]
    if not (sets and all(sets)):
        sets, fault = _shared_out(there, count)
        if any(asked):
            fault = f"the workers {[list(own) for own in asked]} are not there for every stage"
        if fault:
            get_config().cannot_follow(f"gt.pipeline: {fault}: stages use {[list(own) for own in sets]}")
        named = []
    elif sets != asked and not named:
        missing = sorted({w for own in asked for w in own} - set(there))
        get_config().cannot_follow(f"gt.pipeline: workers {missing} are not present: stages use {[list(own) for own in sets]}")
    named = named or [(_name(i, own), SignalConfig(shard=ShardConfig(axis=None, workers=own))) for i, own in enumerate(sets)]
    return [(own, _rows(own), at) for own, at in zip(named, sets, strict=True)]


def _name(stage: int, workers: tuple[int, ...]) -> str:
    """Name a stage's signal; those of two pipelines on different workers may meet in one flush."""
    first, last = workers[0], workers[-1]
    run = len(workers) > 1 and workers == tuple(range(first, last + 1))
    return f"stage {stage} on {f'{first}-{last}' if run else ','.join(map(str, workers))}"


def _given_workers(stage: int, own: Sequence[int]) -> tuple[int, ...]:
    try:
        return worker_numbers(own)
    except SignalFault as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"gt.pipeline: stage {stage}: {error}") from None


def _named_workers(name: str, found: SignalConfig) -> tuple[int, ...]:
    """Give a signal's workers; none of one that no configuration names, which is ignored."""
    if not get_config().has_signal(name):
        return ()
    if found.shard is None or found.shard.workers is None:
        place = get_config().said_at(name)
        raise ValueError(f"gt.pipeline: signal {name!r} names no workers: give it 'shard: {{workers: [...]}}'{place}")
    return found.shard.workers


def _shared_out(there: tuple[int, ...], count: int) -> tuple[list[tuple[int, ...]], str]:
    """Give each stage as many workers, or as many stages each worker, as it comes to; and what is wrong, if anything."""
    each = len(there) // count
    if each:
        return [there[i * each : (i + 1) * each] for i in range(count)], ""
    return [(there[i * len(there) // count],) for i in range(count)], f"{amount(count, 'stage')}, {amount(len(there), 'worker')}"


def _rows(named: Named) -> Named:
    """Give the signal of a stage's microbatches: the stage's own if it says how values are split, else by rows."""
    name, found = named
    if found.shard is None or not found.shard.only_workers or len(found.shard.workers or ()) == 1:
        return named
    return f"rows of {name}", SignalConfig(shard=ShardConfig(workers=found.shard.workers))


def _check_apart(sets: Sequence[tuple[int, ...]], places: Sequence[str]) -> None:
    for i, own in enumerate(sets):
        for j in range(i):
            if both := sorted(set(own) & set(sets[j])):
                raise ValueError(
                    f"gt.pipeline: worker {both[0]} is in stages {j} and {i}: a worker runs one stage of a pipeline. "
                    f"Stage {j}{places[j]} has workers {list(sets[j])}, stage {i}{places[i]} {list(own)}: take {both[0]} out of one of them"
                )


__all__ = ["Pipeline", "pipeline"]

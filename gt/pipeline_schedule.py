"""In which order the stages of a pipeline work on microbatches, and how long they wait.

Owns: ``Action``, ``actions_of`` (one stage's order), ``in_time`` (all stages' in one order), ``bubble``. Must not know: tensors.
Next: ``pipelining``, which records in this order.

Source: 1F1B as in PipeDream-Flush (Narayanan et al. 2021), GPipe (Huang et al. 2019).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Schedule = Literal["1f1b", "gpipe"]
SCHEDULES = get_args(Schedule)
SECONDS = {False: 1, True: 2}  # a backward takes about twice a forward


@dataclass(frozen=True)
class Action:
    """One stage's forward or backward of one microbatch."""

    stage: int
    microbatch: int
    backward: bool

    def __str__(self) -> str:
        return f"{'B' if self.backward else 'F'}{self.microbatch}"


def actions_of(stage: int, stages: int, microbatches: int, schedule: Schedule) -> tuple[Action, ...]:
    """Give what a stage does, in order.

    1f1b: as many forwards as there are stages after it, then a forward and a backward by turns, then the backwards left: a stage
    holds the activations of at most ``stages - stage`` microbatches. gpipe: all forwards, then all backwards.
    """
    first = min(stages - 1 - stage, microbatches) if schedule == "1f1b" else microbatches
    forwards = [Action(stage, i, False) for i in range(microbatches)]
    backwards = [Action(stage, i, True) for i in range(microbatches)]
    turns = [action for pair in zip(forwards[first:], backwards, strict=False) for action in pair]
    return (*forwards[:first], *turns, *backwards[microbatches - first :])


@dataclass(frozen=True)
class Timed:
    """An action and when it is done, the forward of one microbatch on one stage taking 1."""

    action: Action
    start: int
    end: int


def in_time(stages: int, microbatches: int, schedule: Schedule) -> tuple[Timed, ...]:
    """Give all stages' actions in the order they can begin, none before what it needs from its neighbours."""
    return tuple(sorted(_timed(stages, microbatches, schedule), key=lambda t: (t.start, t.action.stage)))


def _timed(stages: int, microbatches: int, schedule: Schedule) -> Iterator[Timed]:
    todo = [list(actions_of(s, stages, microbatches, schedule)) for s in range(stages)]
    end: dict[Action, int] = {}
    free = [0] * stages
    while any(todo):
        before = len(end)
        for s in range(stages):
            while todo[s] and all(a in end for a in _needs(todo[s][0], stages)):
                action = todo[s].pop(0)
                start = max([free[s], *(end[a] for a in _needs(action, stages))])
                end[action] = free[s] = start + SECONDS[action.backward]
                yield Timed(action, start, end[action])
        assert len(end) > before, f"the stages wait for each other: {todo}"


def _needs(action: Action, stages: int) -> tuple[Action, ...]:
    """Give what must have been done elsewhere."""
    s, i = action.stage, action.microbatch
    if not action.backward:
        return (Action(s - 1, i, False),) if s else ()
    return (Action(s + 1, i, True),) if s + 1 < stages else ()


def bubble(stages: int, microbatches: int, schedule: Schedule, places: Sequence[Hashable] | None = None) -> float:
    """Give the share of the time that workers wait, if all stages take equally long: (stages - 1) / (microbatches + stages - 1).

    ``places``: where each stage is, if some are at the same place; what is there takes turns, in the order of ``in_time``.
    """
    places = range(stages) if places is None else places
    free, end, busy = dict.fromkeys(places, 0), dict[Action, int](), 0
    for action in (timed.action for timed in in_time(stages, microbatches, schedule)):
        place, takes = places[action.stage], SECONDS[action.backward]
        end[action] = free[place] = max([free[place], *(end[a] for a in _needs(action, stages))]) + takes
        busy += takes
    return 1 - busy / (len(free) * max(free.values()))


__all__ = ["SCHEDULES", "Action", "Schedule", "Timed", "actions_of", "bubble", "in_time"]

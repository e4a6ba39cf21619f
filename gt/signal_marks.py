"""Marks of a trace: from which entry on work is under which signal; and what the signals' names mean in its graph.

Owns: ``told_apart``, ``named_signals``. Must not know: how a signal places work. Next: ``signal`` (the scopes that set marks), ``capture``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from msgspec.structs import replace

from gt.config import get_config
from gt.ir.signals import SignalConfig, work_of

Named: TypeAlias = tuple[str, SignalConfig]
Mark: TypeAlias = tuple[int, Named | None]


def told_apart(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """Give each meaning that a name has had a name of its own: one may be registered anew while work under it is pending."""
    if not _ambiguous(marks):
        return tuple(marks)
    said = {id(signal): signal for _, signal in marks if signal is not None}
    meanings: dict[str, list[tuple[SignalConfig, SignalConfig | None]]] = {}  # what work follows, and all that a scope asks for

    def own_name(name: str, work: SignalConfig, scope: SignalConfig | None) -> str:
        known = meanings.setdefault(name, [])
        i = next((i for i, (w, s) in enumerate(known) if w == work and (scope is None or s is None or s == scope)), len(known))
        before = known[i][1] if i < len(known) else None
        known[i : i + 1] = [(work, before if scope is None else scope)]
        return f"{name}#{i + 1}" if i else name

    def own(name: str, found: SignalConfig) -> Named:
        name, behind, asked = own_name(name, work_of(found), found), found.backward_signal, found.backward_config
        return name, found if behind is None or asked is None else replace(found, backward_signal=own_name(behind, asked, None))

    owned = {key: own(*signal) for key, signal in said.items()}
    return tuple([(at, None if signal is None else owned[id(signal)]) for at, signal in marks])


def _ambiguous(marks: Iterable[Mark]) -> bool:
    """Say whether a name has two meanings. Runs at each flush."""
    scopes: dict[str, SignalConfig] = {}
    behinds: dict[str | None, SignalConfig] = {}
    for _, signal in marks:
        if signal is None or scopes.get(signal[0]) is signal[1]:
            continue
        name, found = signal
        asked = found.backward_config
        if scopes.setdefault(name, found) != found or (asked is not None and behinds.setdefault(found.backward_signal, asked) != asked):
            return True
    return any(name in scopes and work_of(scopes[name]) != asked for name, asked in behinds.items())


def named_signals(marks: Iterable[Mark], base: Named | None) -> tuple[Named, ...]:
    """Give what every signal means that work or its gradients follow: the gradients' signals have no scope of their own.

    ``base``: what holds for work that no scope marks.
    """
    if not marks and base is None:
        return ()
    signals: dict[str, SignalConfig] = dict([base] if base is not None else [])
    todo = [signal for _, signal in marks if signal is not None]
    config = get_config()
    while todo:
        name, found = todo.pop()
        signals[name] = found
        behind = config.behind(found)
        if behind is not None and behind[0] not in signals:
            todo.append(behind)
    return tuple(sorted(signals.items()))

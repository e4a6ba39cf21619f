"""Signals: scopes that say how the work recorded inside them should be placed. A signal never changes a value.

Owns: the stack of scopes of each thread. ``windows`` is torch.signal's namespace of window functions, which has its home here, too.
Next: ``config`` (what names mean), ``gt.ir.signals``, ``gt.passes.propagate_sharding``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ContextDecorator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gt import config
from gt.following import check_tensor, check_workers
from gt.functions import windows as windows
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.signals import SignalConfig, backward_of
from gt.recording import record
from gt.trace import state

if TYPE_CHECKING:
    from gt.tensor import Tensor

Named = tuple[str, SignalConfig]


class _Entered(tuple[str, SignalConfig]):
    """What ``enter`` puts on the stack: no block of its own ends it."""

    __slots__ = ()


def resolve(name: str, backward: str | None = None) -> Named:
    """Give a signal's name and what it asks for; nothing, with one warning, if no configuration names it."""
    if not isinstance(name, str):
        raise TypeError(f"a signal is named by a string, got {type(name).__name__}")
    found = _look_up(name)
    shown = name
    if backward is not None and backward != found.backward_signal:
        found = msgspec.structs.replace(found, backward_signal=backward, backward_config=None)
        shown = f"{name}>{backward}"
    if found.backward_signal is not None:
        asked = _look_up(found.backward_signal)  # whatever is wrong with it is said here, not at the flush
        if found.backward_config is None:
            asked = msgspec.structs.replace(asked, backward_signal=None, backward_config=None)
            found = msgspec.structs.replace(found, backward_config=asked)
    return shown, found


def _look_up(name: str) -> SignalConfig:
    found = config.get_config().resolve(name) or SignalConfig()
    check_workers(name, found)
    return found


def for_backward(signal: Named | None) -> Named | None:
    """Give the signal that the gradients of work recorded under ``signal`` follow."""
    if signal is None:
        return None
    return config.get_config().behind(signal[1]) or backward_of(*signal)


def enter(name: str, backward: str | None = None) -> None:
    """Begin a scope; ``exit(name)`` ends it. Scopes nest, the innermost counts."""
    state.signals.append(_Entered(resolve(name, backward)))
    state.trace.mark(state.signals[-1])


def exit(name: str) -> None:
    """End the innermost scope. Errors: RuntimeError if it has another name, or there is none."""
    if not state.signals:
        raise RuntimeError(f"gt.signal.exit({name!r}): no signal is active")
    current = current_signal()
    if current != name:
        raise RuntimeError(f"gt.signal.exit({name!r}): the innermost active signal is {current!r}")
    state.signals.pop()
    state.trace.mark(state.signals[-1] if state.signals else None)


class _Block(ContextDecorator):
    """A ``with`` block under a signal. It may be entered again, also inside itself; blocks of one thread may end in any order."""

    def __init__(self, find: Callable[[], Named]) -> None:
        self._find = find
        self._open: list[tuple[list[Named], Named]] = []  # the stacks it is on, each of a thread, and what it is there

    def __enter__(self) -> None:
        named = self._find()
        state.signals.append(named)
        state.trace.mark(named)
        self._open.append((state.signals, named))

    def __exit__(self, *_: object) -> None:
        stack = state.signals
        here = [at for at, (other, _) in enumerate(self._open) if other is stack]
        if not here:
            raise RuntimeError("the block of a signal ended in another thread than it began in: end it where it began")
        named = self._open.pop(here[-1])[1]
        own = next((at for at in reversed(range(len(stack))) if stack[at] is named), None)
        if own is not None:  # else ``exit`` has ended it
            after = (at for at in range(own + 1, len(stack)) if not isinstance(stack[at], _Entered))
            del stack[own : next(after, len(stack))]  # and what ``enter`` began in it; another block stays
            state.trace.mark(stack[-1] if stack else None)


def context(name: str, backward: str | None = None) -> _Block:
    """Run the block's work under signal ``name``; gradients follow ``backward`` if given."""
    return _Block(partial(resolve, name, backward))


def within(named: Named) -> _Block:
    """Run the block's work under a signal that is given with what it asks for."""
    return _Block(lambda: named)


signal = context


def tensor(t: Tensor, name: str, backward: str | None = None, *, backward_name: str | None = None) -> Tensor:
    """Give the same values in a tensor of their own, placed as signal ``name`` says; gradients pass.

    ``backward_name``: an older name of ``backward``.
    """
    backward = backward if backward_name is None else backward_name
    if not isinstance(t, Handle):
        raise TypeError(f"gt.signal.tensor: expected a gt.Tensor, got {type(t).__name__}")
    with context(name, backward):
        check_tensor(*state.signals[-1], t._type)
        return record(OPS["copy"], (t,))


def current_signal() -> str | None:
    """Give the name of the innermost active signal."""
    return config.get_config().entered_as(*state.signals[-1]) if state.signals else None


def current_backward_signal() -> str | None:
    """Give the signal that gradients of work recorded now will follow."""
    return state.signals[-1][1].backward_signal if state.signals else None


class SignalScope(NamedTuple):
    """A signal's name, and that of its backward."""

    name: str
    backward_name: str | None = None


class SignalStack(list[str]):
    """The names of this thread's active signals, outermost first, as they were when asked for; methods act on the scopes themselves."""

    def __init__(self) -> None:
        super().__init__(config.get_config().entered_as(*named) for named in state.signals)

    def push(self, scope: SignalScope) -> None:
        """As ``enter``."""
        enter(*scope)

    def pop(self, *_: Any) -> SignalScope | None:  # type: ignore[override]
        """End the innermost scope, as ``exit``; give it, None if there is none."""
        found = self.current()
        if found is not None:
            exit(found.name)
        return found

    def current(self) -> SignalScope | None:
        """Give the innermost scope."""
        name = current_signal()
        return None if name is None else SignalScope(name, current_backward_signal())

    def current_name(self) -> str | None:
        return current_signal()

    def current_backward_name(self) -> str | None:
        return current_backward_signal()


def get_signal_stack() -> SignalStack:
    """Give the names of the active signals, outermost first."""
    return SignalStack()

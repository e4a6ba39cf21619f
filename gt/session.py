"""Which session this process records for: embedded by default, local workers or a server when asked.

Owns: choosing and ending the session. Must not know: traces. Next: ``gt.starting``, which is imported with the first session:
``import gt`` needs no runtime.
"""

from __future__ import annotations

import atexit
import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from gt.ir.blame import warn_user
from gt.ir.graph import Graph
from gt.ir.signals import weight
from gt.runtime import env
from gt.runtime.env import ADDRESS, CHECK, without_effect
from gt.runtime.interrupt import SHIELD
from gt.runtime.session import Session

if TYPE_CHECKING:
    from gt.runtime.launch import LocalCluster

on_define: list[Callable[[int, Graph], None]] = []  # called with every graph whose key is new
on_start: list[Callable[[Session], None]] = []  # called with every session once it is in use
wrappers: list[Callable[[Session], Session]] = []  # each gives what stands before a session that is about to be used
on_end: list[Callable[[Session], None]] = []  # called with every session once it is closed

CONNECT_S = 5.0

_lock = threading.RLock()
_session: Session | None = None
_cluster: LocalCluster | None = None
_pinned = False
_keys: WeakKeyDictionary[Session, dict[Any, Any]] = WeakKeyDictionary()


def current() -> Session:
    """Give the session. If none was asked for: the server that GT_ADDR names, else one of this process's own."""
    global _cluster
    if _session is None:
        with _lock:
            if _session is None:
                address = ADDRESS.get()
                if address:
                    _use(_starting().remote(address, CONNECT_S))
                else:
                    session, _cluster = _starting().default()
                    _use(session)
    assert _session is not None
    return _session


def _starting() -> ModuleType:
    """Load what sessions are made of, which takes longer than all of ``import gt``. Errors: ValueError for a variable that cannot be."""
    env.check()
    with SHIELD:  # Python's import takes a TimeoutError, as of a time limit, for a file that is not there, and goes on
        return importlib.import_module("gt.starting")


def running() -> Session | None:
    """Give the session if there is one already."""
    return _session


def _use(session: Session) -> None:
    global _session
    if CHECK.get():
        session = importlib.import_module("gt.checking").CheckingSession(session, nan=CHECK.get() == "nan")
    for wrap in wrappers:
        session = wrap(session)
    _session = session
    for text in without_effect():
        warn_user(text)
    for hook in on_start:
        hook(session)


@contextmanager
def pinned(session: Session) -> Iterator[None]:
    """Use ``session`` throughout: connect, gpu_workers and disconnect do nothing meanwhile. It is closed at the end."""
    global _pinned
    with _lock:
        _refuse_second("gt.session.pinned")
        _pinned = True
        _use(session)
    try:
        yield
    finally:
        _pinned = False
        disconnect()


def known(session: Session) -> dict[Any, Any]:
    """Give the keys of what ``session`` has been told of: graphs, by number, and loops, as ``flush`` runs them."""
    found = _keys.get(session)
    if found is None:
        found = _keys.setdefault(session, {})
    return found


def connect(
    address: str, timeout_s: float = CONNECT_S, *, key: str | os.PathLike[str] | None = None, priority: float | None = None
) -> None:
    """Use the server at ``"host:port"`` from here on.

    ``key``: the key file that a server with keys asks for; by default the one that the environment variable GT_KEY_FILE names.
    ``priority`` (default: GT_PRIORITY, else 1): while several clients wait for the same workers, each gets device time in proportion to
    its priority. Less than 1 is always allowed, more only up to the server's ``--max-priority``.
    After a ``DispatcherLost``, with the same address: wait for the server to be started again, and go on with the tensors there are.
    Errors: ConnectionError within ``timeout_s`` if there is none, or, sooner, if it does not take the key or the priority; ValueError if
    the key file cannot be used, TypeError or ValueError if the priority is no number over 0; RuntimeError if a session is in use already.
    """
    if priority is not None:
        priority = weight(priority, "priority")
    if _pinned:
        return
    with _lock:
        if _session is not None and getattr(_session, "address", None) == address and _session.wait_for_return(timeout_s):  # type: ignore[attr-defined]
            return
        _refuse_second("gt.connect")
        _use(_starting().remote(address, timeout_s, key=key, priority=priority))


def gpu_workers(n: int) -> None:
    """Start ``n`` local worker processes, one for each GPU while there are any, and use them from here on.

    Call it before the first op. In a script that ``gt run`` or ``gt launch`` started, these are the workers started with it.
    Errors: TypeError; ValueError if ``n`` < 1, or not the number of those; RuntimeError if a session is in use already.
    """
    global _cluster
    if not isinstance(n, int):
        raise TypeError(f"gt.gpu_workers: expected a number of workers (an int), got {type(n).__name__}")
    if n < 1:
        raise ValueError(f"gpu_workers needs at least one worker, got {n}")
    if _pinned:
        return
    with _lock:
        _refuse_second("gt.gpu_workers")
        own = _starting().of_job(n)
        if own is not None:
            _use(own)
            return
        _cluster = _starting().cluster(n)
        try:
            _use(_starting().remote(_cluster.address, _starting().START_S))
        except BaseException:
            disconnect()
            raise


def _refuse_second(name: str) -> None:
    if _session is not None:
        raise RuntimeError(
            f"{name} must come before the first op: this process already uses a session. Call gt.disconnect() first; "
            "tensors of the old session are lost with it"
        )


def disconnect() -> None:
    """End the session and everything it started. Idempotent. Tensors not read by then are lost."""
    global _session, _cluster
    if _pinned:
        return
    with _lock:
        session, cluster, _session, _cluster = _session, _cluster, None, None
        if session is not None:
            session.close()
        if cluster is not None:
            cluster.stop()
        if session is not None:
            for hook in on_end:
                hook(session)


def cluster() -> LocalCluster | None:
    """Give the worker processes that this process has started, if any."""
    return _cluster


def num_workers() -> int:
    """Give the number of workers of the session."""
    return current().num_workers()


atexit.register(disconnect)

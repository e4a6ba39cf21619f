"""Calls of a session, and what finalizers do meanwhile."""

import gc
import threading

import pytest

import gt
from gt import session as sessions
from gt.runtime.session import CallLock, own_threads


class Dropped:
    """Part of a cycle: what it does at its end, it does wherever the collector of cycles runs."""

    def __init__(self, act):
        self.act, self.me = act, self

    def __del__(self):
        self.act()


def test_the_collector_waits_for_a_call_and_for_one_within_it():
    lock, before = CallLock(), gc.isenabled()
    gc.enable()
    try:
        with lock:
            assert not gc.isenabled()
        assert gc.isenabled()
        with lock, lock:
            assert not gc.isenabled()
        gc.disable()
        with lock:
            pass
        assert not gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()


def test_finalizers_that_read_during_calls_do_not_wait_for_themselves():
    before, seen = gc.get_threshold(), []
    x = gt.ones(3)
    x.tolist()
    gc.collect()
    gc.freeze()
    try:
        for every in range(1, 20):
            gc.set_threshold(every)
            for _ in range(5):
                Dropped(lambda: seen.append((x * 2).tolist()))
                (gt.tensor([1.0]) + gt.from_numpy((x + 1).numpy())).tolist()
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    gc.collect()
    assert len(seen) == 5 * 19
    assert all(values == [2.0] * 3 for values in seen)


def test_a_read_on_the_thread_that_computes_is_refused():
    """As by a finalizer that runs there."""
    x, pending = gt.ones(3), gt.ones(3) * 2
    x.tolist()
    done = []

    def read():
        own_threads.add(threading.get_ident())
        try:
            for value in (x, pending):
                with pytest.raises(RuntimeError, match="one of gt's own threads"):
                    value.tolist()
                done.append(value)
        finally:
            own_threads.discard(threading.get_ident())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert len(done) == 2 and pending.tolist() == [2.0] * 3
    assert sessions.current()._thread.ident in own_threads

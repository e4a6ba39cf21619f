"""Calls of a session, and what finalizers do meanwhile."""

import gc
import sys
import threading
import time

import numpy as np
import pytest

import gt
from gt import flush
from gt import session as sessions
from gt.buffers import LARGE, named_buffers
from gt.runtime import embedded
from gt.runtime.numpy_engine import NumpyEngine
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
        with lock:
            with lock:
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled()
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


def test_a_read_on_the_thread_that_computes_is_refused(monkeypatch):
    """As by a finalizer that runs there, in a session of this process."""
    monkeypatch.setenv("GT_EMBEDDED", "1")
    gt.disconnect()
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


def test_a_session_that_ends_while_its_engine_loads_lets_it_load(monkeypatch):
    """An import of torch that is broken off leaves half of it, which no later session of the process can use."""
    monkeypatch.setattr(embedded, "LEAVE_S", 0.05)
    begun, done = threading.Event(), []

    def load():
        begun.set()
        for _ in range(50):
            time.sleep(0.01)
        done.append(True)
        return NumpyEngine()

    session = embedded.EmbeddedSession("numpy", make=load)
    assert begun.wait(10)
    session.close()
    assert done == [True] and not session._thread.is_alive()


def test_reads_of_two_threads_are_told_apart():
    a, b = gt.ones(3), gt.zeros(3)
    session, first, second = sessions.current(), a._materialise().id, b._materialise().id
    others = []

    def between(frame, event, _):
        """At each line of a read, let another thread begin one."""
        if event == "line":
            thread = threading.Thread(target=lambda: others.append(session.fetch(second)))
            thread.start()
            thread.join(10)
        return between

    def trace(frame, event, _):
        return between if frame.f_code is type(session).fetch.__code__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        own = session.fetch(first)
    finally:
        sys.settrace(before)
    assert own.result(10).tolist() == [1.0] * 3
    assert others and all(other.result(10).tolist() == [0.0] * 3 for other in others)


class Holder:
    """Part of a cycle that holds a tensor which exists, is younger than it or older."""

    def __init__(self, tensor, act):
        self.tensor, self.act, self.me = tensor, act, self

    def __del__(self):
        self.act(self.tensor)


def _holder(act, older):
    x = gt.ones(3) + 1
    assert x.tolist() == [2.0] * 3
    holder = Holder(x if older else None, act)
    if not older:
        y = gt.ones(3) + 1
        assert y.tolist() == [2.0] * 3
        holder.tensor = y


@pytest.mark.parametrize("older", [True, False])
@pytest.mark.parametrize("native", [True, False])
def test_what_a_finalizer_reads_of_its_own_cycle_is_there_until_all_of_it_is_gone(older, native, monkeypatch):
    monkeypatch.setenv("GT_EMBEDDED", "1")
    gt.disconnect()
    if not native:
        monkeypatch.setattr(flush, "new_buffers", named_buffers)
    seen, kept = [], []

    def read(t):
        seen.append([(gt.ones(2) + n).tolist() and (t + n).tolist() for n in range(3)])

    _holder(read, older)
    gc.collect()
    assert seen == [[[2.0] * 3, [3.0] * 3, [4.0] * 3]]

    _holder(kept.append, older)
    gc.collect()
    assert (gt.ones(2) * 2).tolist() == [2.0, 2.0]  # a run, which takes along what has died
    assert kept[0].tolist() == [2.0] * 3
    y = kept.pop() * 3  # it goes with the run that reads it, and its result has a number of its own
    assert y.tolist() == [6.0] * 3 and (y + 1).tolist() == [7.0] * 3
    (client,) = sessions.current()._state.clients.values()
    held = len(client.buffers)
    for _ in range(5):
        _holder(kept.append, older)
        gc.collect()
        assert kept.pop().tolist() == [2.0] * 3
        gt.ones(2).tolist()
    assert len(client.buffers) <= held + 1


def test_what_uploads_replace_is_let_go_of_by_its_bytes_before_a_run_comes(monkeypatch):
    monkeypatch.setenv("GT_EMBEDDED", "1")
    gt.disconnect()
    x = gt.ones(1)
    x.tolist()
    (client,) = sessions.current()._state.clients.values()
    array, most = np.ones(LARGE // 8, np.float32), 0  # half of it
    for _ in range(20):
        x = gt.from_numpy(array)
        most = max(most, client.held)
    assert x.sum().item() == array.size and most <= 3 * array.nbytes
    small = np.ones(LARGE // 40, np.float32)
    for _ in range(40):
        x = gt.from_numpy(small)
        most = max(most, client.held)
    assert x.sum().item() == small.size and most <= 3 * array.nbytes


@pytest.mark.parametrize("between", ["an upload", "a thread's run"])
@pytest.mark.parametrize("write", ["copy_", "zero_", "data"])
def test_what_a_failed_write_was_to_replace_is_there_though_others_call_meanwhile(between, write, monkeypatch):
    monkeypatch.setenv("GT_EMBEDDED", "1")
    gt.disconnect()
    table, x = gt.arange(12.0), gt.ones(3)
    assert table.tolist() == [float(n) for n in range(12)] and x.tolist() == [1.0] * 3
    (client,) = sessions.current()._state.clients.values()
    wrong = table[gt.tensor([0, 1, 50])]
    if write == "copy_":
        x.copy_(wrong)
    elif write == "zero_":
        x.zero_()
        x.add_(wrong)
    else:
        x.data = wrong
    if between == "an upload":
        gt.from_numpy(np.ones(LARGE, np.float32))
    else:
        thread = threading.Thread(target=lambda: gt.ones(5).tolist())
        thread.start()
        thread.join()
    with pytest.raises(IndexError):
        x.tolist()
    assert x.tolist() == [1.0] * 3
    before = len(client.buffers)
    x.copy_(gt.ones(3) * 2)
    assert x.tolist() == [2.0] * 3
    assert len(client.buffers) <= before  # what it replaces goes with the run that makes it

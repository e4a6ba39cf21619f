"""A worker's values, the rendezvous store, the environment and the instruction log."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from gt.runtime import env
from gt.runtime.log import InstructionLog
from gt.runtime.rendezvous import KeyStore
from gt.runtime.store import ValueStore
from gt.runtime.wire import StoreOp


def test_values_are_counted():
    store = ValueStore()
    store.put((1, 2), (np.zeros(10, np.float32), np.zeros(5, np.float64)))
    assert (store.nbytes, len(store)) == (80, 2)
    assert [value.nbytes for value in store.get((2, 1))] == [40, 40]
    assert [value.dtype for value in store.take((1,))] == [np.float32]
    store.drop((1, 2, 2, 3))
    assert (store.nbytes, store.peak_nbytes, len(store)) == (0, 80, 0)


def test_a_wait_is_answered_when_the_last_key_comes_or_refused_when_the_group_goes():
    store = KeyStore()
    store.begin("g1")
    assert store.apply(b"a", StoreOp(1, "wait", ("g1/x", "g1/y"))) == []
    assert [p for p, _ in store.apply(b"b", StoreOp(2, "set", ("g1/x",), b"1"))] == [b"b"]
    assert [p for p, _ in store.apply(b"b", StoreOp(3, "set", ("g1/y",), b"2"))] == [b"b", b"a"]
    assert store.apply(b"a", StoreOp(4, "get", ("g1/z",))) == []
    assert [(p, r.ok) for p, r in store.forget("g1")] == [(b"a", False)]
    assert store == KeyStore()
    assert [r.ok for _, r in store.apply(b"b", StoreOp(5, "get", ("g1/z",)))] == [False]  # it was on its way


def test_of_a_group_that_is_over_nothing_is_kept():
    store = KeyStore()
    for i in range(3):
        store.begin(f"g{i}")
        store.apply(b"a", StoreOp(1, "set", (f"g{i}/x",), b"1"))
        store.forget(f"g{i}")
        for kind in ("set", "add", "compare_set"):  # of a thread that was left alone
            ((_, reply),) = store.apply(b"a", StoreOp(2, kind, (f"g{i}/x",), b"1", amount=1))
            assert reply.ok
        assert store == KeyStore()


def test_store_operations():
    store = KeyStore()
    store.begin("g")

    def do(kind: str, *keys: str, **fields: object):
        ((_, reply),) = store.apply(b"a", StoreOp(1, kind, keys, **fields))
        return reply

    assert do("add", "g/n", amount=3).number == 3
    assert do("add", "g/n", amount=-1).number == 2
    assert do("check", "g/n", "g/m").number == 0
    assert do("compare_set", "g/m", expected=b"", value=b"v").value == b"v"
    assert do("compare_set", "g/m", expected=b"w", value=b"u").value == b"v"
    assert do("delete", "g/m").number == 1
    assert not do("format_disk", "g/m").ok


def test_a_variable_is_read_once_and_named_when_it_is_wrong(monkeypatch):
    monkeypatch.setattr(env, "VARIABLES", {**env.VARIABLES})  # where the next one enters itself
    variable = env.Variable("GT_TEST_ONLY", env.flag, False, "A test.")
    monkeypatch.setenv("GT_TEST_ONLY", "yes")
    assert variable.get() is True
    monkeypatch.setenv("GT_TEST_ONLY", "0")
    assert variable.get() is True
    variable.forget()
    assert variable.get() is False
    variable.forget()
    monkeypatch.setenv("GT_TEST_ONLY", "perhaps")
    with pytest.raises(ValueError, match="GT_TEST_ONLY='perhaps': expected 1, true, yes or on, or 0, false, no or off"):
        variable.get()
    assert "| `GT_TEST_ONLY` |" in env.table()


def test_two_processes_share_an_instruction_log(tmp_path):
    path = str(tmp_path / "log")
    first, second = InstructionLog(path, "client0"), InstructionLog(path, "worker1")
    first.write("call", "Run", 10, "key=1")
    second.write("run", "step", 0, "two\nlines")
    head, *lines = (tmp_path / "log").read_text().splitlines()
    assert head.startswith("# gt instruction log") and second.start == first.start
    assert [line.split()[1:5] for line in lines] == [["1", "call", "client0", "Run"], ["1", "run", "worker1", "step"]]
    assert all(float(line.split()[0]) >= 0 for line in lines)
    first.close()
    second.close()


def test_threads_of_a_process_write_lines_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    class Clock:
        """Lets other threads run whenever a line's time is asked for, and logs from a signal handler, as it were."""

        def __init__(self) -> None:
            self.asked = 0

        def time(self) -> float:
            self.asked += 1
            if self.asked == 7:
                log.write("recv", "Signal")
            time.sleep(0)
            return time.time()

    log = InstructionLog(str(tmp_path / "log"), "client0")
    monkeypatch.setattr("gt.runtime.log.time", Clock())
    threads = [threading.Thread(target=lambda: [log.write("call", "Run") for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()[1:]]
    assert [int(line[1]) for line in lines] == list(range(1, 802))
    assert [float(line[0]) for line in lines] == sorted(float(line[0]) for line in lines)
    log.close()

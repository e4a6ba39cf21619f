"""Handlers of signals wait for a change that is under way, whatever signal and whatever they raise; none is forgotten."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import FrameType

import pytest

from gt.progress import awaited
from gt.runtime.interrupt import SHIELD, Window, await_done
from tests.integration.programs import wait_for

RAISES = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGINT)


class Told(BaseException):
    """What a handler raises: no Exception, as KeyboardInterrupt is none."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[int]]:
    """All of RAISES raise ``Told`` with their number; SIGHUP is only noted, in what this gives."""
    noted: list[int] = []

    def tell(number: int, frame: FrameType | None) -> None:
        raise Told(number)

    before = {number: signal.getsignal(number) for number in (*RAISES, signal.SIGHUP)}
    for number in RAISES:
        signal.signal(number, tell)
    signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))
    yield noted
    for number, handler in before.items():
        signal.signal(number, handler)


def now() -> dict[int, object]:
    return {number: signal.getsignal(number) for number in signal.valid_signals()}


@pytest.mark.parametrize("number", RAISES)
def test_what_is_under_way_ends_first(number: int, handlers: list[int]) -> None:
    before, done = now(), []
    with pytest.raises(Told) as caught:
        with SHIELD, SHIELD:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), signal.SIGHUP)
            done.append(list(handlers))
        done.append("not reached")
    assert caught.value.args == (number,) and done == [[]] and handlers == [signal.SIGHUP] and now() == before


def test_each_of_several_is_told_whatever_another_raises(handlers: list[int]) -> None:
    found, before = [], now()
    with pytest.raises(Told) as caught, SHIELD:
        for number in (*RAISES, signal.SIGHUP):
            os.kill(os.getpid(), number)
    error: BaseException | None = caught.value
    while error is not None:
        found.append(error.args[0])
        error = error.__context__
    assert sorted(found) == sorted(RAISES) and handlers == [signal.SIGHUP] and now() == before


def test_a_wait_is_left_at_the_first_and_what_comes_then_waits(handlers: list[int]) -> None:
    before, done = now(), []
    with pytest.raises(Told) as caught, SHIELD:
        os.kill(os.getpid(), signal.SIGHUP)
        assert handlers == []
        try:
            with SHIELD.lifted():
                assert handlers == [signal.SIGHUP]
                os.kill(os.getpid(), signal.SIGINT)
                done.append("not reached")
        except Told as error:
            os.kill(os.getpid(), signal.SIGINT)  # impatient
            os.kill(os.getpid(), signal.SIGALRM)
            done.append(error is SHIELD.interruption)
    assert done == [True] and {caught.value.args[0], caught.value.__context__.args[0]} == {signal.SIGINT, signal.SIGALRM}  # type: ignore[union-attr]
    assert SHIELD.interruption is None and now() == before


def test_a_handler_that_raises_nothing_ends_no_wait_and_may_choose_another(handlers: list[int]) -> None:
    def choose(number: int, frame: FrameType | None) -> None:
        handlers.append(number)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        with SHIELD:  # it may use values, too
            os.kill(os.getpid(), signal.SIGHUP)
            assert handlers == [signal.SIGUSR1]

    signal.signal(signal.SIGUSR1, choose)
    future: Future[int] = Future()

    def interrupt() -> None:
        time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR1)
        assert wait_for(lambda: len(handlers) == 2)
        future.set_result(3)

    threading.Thread(target=interrupt).start()
    assert awaited(future, None) == 3
    assert handlers == [signal.SIGUSR1, signal.SIGHUP] and signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_a_handler_that_gives_way_to_another_in_a_wait_can_be_put_back(handlers: list[int]) -> None:
    before: list[object] = []

    def second(number: int, frame: FrameType | None) -> None:
        handlers.append(-number)

    def first(number: int, frame: FrameType | None) -> None:
        handlers.append(number)
        before.append(signal.signal(number, second))

    signal.signal(signal.SIGUSR1, first)
    with SHIELD, SHIELD.lifted():
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)
    assert handlers == [signal.SIGUSR1, -signal.SIGUSR1] and signal.getsignal(signal.SIGUSR1) is second
    signal.signal(signal.SIGUSR1, before[0])  # type: ignore[arg-type]
    os.kill(os.getpid(), signal.SIGUSR1)
    with SHIELD:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert handlers[2:] == [signal.SIGUSR1]
        signal.signal(signal.SIGUSR1, first)
    assert handlers[2:] == [signal.SIGUSR1] * 2


def test_a_time_limit_reaches_who_reads_a_value_and_not_the_wait() -> None:
    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("the user's")

    signal.signal(signal.SIGALRM, late)
    future: Future[int] = Future()
    with pytest.raises(TimeoutError, match="the user's"):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        awaited(future, None)
    future.set_result(3)
    assert awaited(future, None) == 3 and not await_done(Future(), 0.01)


def test_signals_at_any_moment_lose_nothing() -> None:
    """A place in the window that is taken is used or given back; the shield is whole after each."""
    window, taken, served, told = Window(4), 0, 0, 0
    over = threading.Event()

    def turn() -> None:
        nonlocal taken
        with SHIELD:
            while not window.take():
                window.wait()
            taken += 1

    def tell(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code is not turn.__code__:  # the test's own steps are not shielded
            frame = frame.f_back
        if frame is not None:
            raise Told(number)

    def annoy() -> None:
        while not over.is_set():
            os.kill(os.getpid(), RAISES[int(time.monotonic() * 1e6) % 4])
            time.sleep(0.0003)

    def serve() -> None:
        nonlocal served
        while not over.is_set():
            if taken > served:
                served += 1
                window.give()
            time.sleep(0.0001)

    for number in RAISES:
        signal.signal(number, tell)
    before, threads = now(), [threading.Thread(target=t) for t in (annoy, serve)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    while (passed := time.monotonic() - began) < 1.0 or (told <= 50 and passed < 30.0):  # longer where others have the machine
        try:
            turn()
        except Told:
            told += 1
    over.set()
    for thread in threads:
        thread.join(5)
    with SHIELD:
        pass
    assert told > 50 and now() == before and SHIELD._depth == 0 and not SHIELD._noted
    window.give(taken - served)
    assert [window.take() for _ in range(5)] == [True] * 4 + [False]


def test_a_child_forked_meanwhile_has_its_own_handlers_and_holds_nothing_back(handlers: list[int]) -> None:
    """As a loader in a thread forks its workers while the script flushes."""
    before, codes = now(), []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            same = now() == before
            signal.raise_signal(signal.SIGHUP)
            with SHIELD:
                signal.raise_signal(signal.SIGHUP)
            os._exit(0 if same and handlers == [signal.SIGHUP] * 2 and now() == before else 1)
        codes.append(os.waitpid(child, 0)[1])

    with SHIELD:
        os.kill(os.getpid(), signal.SIGHUP)  # noted: the parent's own
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join(20)
        assert handlers == []
    assert codes == [0] and handlers == [signal.SIGHUP]


def test_a_window_wakes_all_that_wait() -> None:
    window, got = Window(0), []

    def ask() -> None:
        while not window.take():
            window.wait()
        got.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    threads.append(threading.Thread(target=window.await_one))  # which takes none
    for thread in threads:
        thread.start()
    window.give(3)
    window.give(2)
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)
    assert len(got) == 4 and window.take() and not window.take()


def test_more_runs_may_be_in_flight_while_they_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    window = Window(32)

    def taken() -> int:
        count = 0
        while window.take():
            count += 1
        return count

    def over(count: int, seconds: float) -> None:
        now[0] += seconds
        window.give(count)

    assert taken() == 8 and not window.any()  # nothing is known yet
    over(8, 0.5)
    assert taken() == 8
    for _ in range(20):
        over(4, 0.001)
        taken()
    assert not window.any()
    over(32, 0.002)
    assert window.none_flying() and taken() == 32
    over(1, 0.0005)
    assert window.any()
    now[0] += 0.1  # one that takes long is under way
    assert not window.any() and taken() == 0
    over(31, 0.05)
    assert taken() == 8
    over(8, 0.08)
    assert taken() == 8


def test_a_window_of_few_is_never_wider() -> None:
    window = Window(2)
    for _ in range(50):
        while window.take():
            pass
        window.give(2)
    assert window.take() and window.take() and not window.take()

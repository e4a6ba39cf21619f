"""Who asks for more than a value waits as a read does: with what is waited for shown, and told what did not come."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import gt
from gt import progress, session
from gt.checkpoint import saving
from gt.checkpoint.placing import places
from gt.runtime.embedded import EmbeddedSession
from gt.runtime.session_wrapper import SessionWrapper
from gt.trace import Trace, settle

pytestmark = pytest.mark.usefixtures("alone")


class Slow(SessionWrapper):
    """Answers once it is told to."""

    def __init__(self, inner: EmbeddedSession) -> None:
        super().__init__(inner)
        self.kept: list[tuple[Future[Any], Any]] = []

    def explain(self, buffer: int) -> Future[Any]:
        return self.late(self.inner.explain(buffer).result())

    def rebalance(self, *asked: object) -> Future[int]:
        return self.late(3)

    def late(self, answer: Any) -> Future[Any]:
        self.kept.append((Future(), answer))
        return self.kept[-1][0]

    def answer(self) -> None:
        future, answer = self.kept.pop()
        future.set_result(answer)


def test_explaining_and_rebalancing_are_waited_for_as_reads_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    slow = Slow(EmbeddedSession("numpy"))
    monkeypatch.setattr(progress, "AFTER_S", 0.0)
    monkeypatch.setattr(progress, "shown", lambda wait, what: (told.append(what()), slow.answer(), wait(None)))
    with session.pinned(slow):
        assert "on worker 0" in str(gt.explain(gt.ones(3) + 1)) and gt.rebalance() == 3
    assert told == ["a value, the workers are busy"] * 2


def test_what_is_asked_for_a_checkpoint_and_does_not_come_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "READ_S", 0.01)
    with session.pinned(Slow(EmbeddedSession("numpy"))):
        x = gt.ones(3) + 1
        x.sum().item()
        with pytest.raises(TimeoutError, match="'weight' was not read within 0.01 s"):
            places({"weight": x})


@pytest.mark.parametrize("asks", [gt.Tensor.item, gt.Tensor.tolist, lambda w: str(gt.explain(w)) and w.item()])
def test_who_reads_what_another_thread_writes_to_meanwhile_gets_a_value(
    asks: Callable[[gt.Tensor], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that thread would, each settling is followed by a write, which leaves the tensor pending anew, three times."""
    w, left, real = gt.zeros(()), [3], settle

    def settled(pending: Trace, reason: str, reads: int = -1) -> Future[Any] | None:
        future = real(pending, reason, reads)
        if left[0]:
            left[0] -= 1
            w.add_(1)
        return future

    monkeypatch.setattr("gt.handle.settle", settled)
    monkeypatch.setattr("gt.explaining.settle", settled)
    assert asks(w) == 3.0 and left == [0]

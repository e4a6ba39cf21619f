"""Programs in which some ops refuse their values: what does not depend on them is computed, what was written with them is not."""

from __future__ import annotations

from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import gt
from gt import session as sessions
from gt.runtime.embedded import EmbeddedSession
from tests.property.budget import examples


@pytest.fixture(scope="module", params=["numpy", "torch"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    gt.disconnect()
    session = EmbeddedSession(request.param)
    with sessions.pinned(session):
        yield request.param
    session.close()


class Model:
    """What each tensor holds in NumPy, None where what it was made of was refused; and what it held when all were read last."""

    def __init__(self, tensors: list[gt.Tensor]) -> None:
        self.tensors = tensors
        self.now: list[np.ndarray | None] = [t.numpy() for t in tensors]
        self.before = list(self.now)

    def add(self, tensor: gt.Tensor, value: np.ndarray | None) -> None:
        self.tensors.append(tensor)
        self.now.append(value)
        self.before.append(None)

    def read(self, i: int) -> None:
        """Read a tensor. If it depends on a refusal, that is told, here or by an earlier read; then a new tensor has no value, and one
        that was to be written has the value it had.
        """
        new, old = self.now[i], self.before[i]
        try:
            got = self.tensors[i].numpy()
        except IndexError as error:
            assert new is None and "recorded at" in str(error) and "test_value_errors" in str(error)
            if old is None:
                return
            got = self.tensors[i].numpy()
        want = old if new is None else new
        assert want is not None and np.array_equal(got, want)
        self.now[i] = self.before[i] = want


@given(st.data())
@examples(60)
def test_what_does_not_depend_on_a_refusal_is_right_and_what_does_is_as_before(backend: str, data: st.DataObject) -> None:
    numbers = st.integers(0, 3)
    model = Model([gt.tensor(np.arange(4.0) + i) for i in range(3)])
    for _ in range(data.draw(st.integers(1, 4), label="rounds")):
        for _ in range(data.draw(st.integers(1, 8), label="ops")):
            a, b = (data.draw(st.sampled_from(range(len(model.tensors)))) for _ in range(2))
            (x, y), (p, q) = (model.tensors[a], model.tensors[b]), (model.now[a], model.now[b])
            both = p is not None and q is not None
            match data.draw(st.sampled_from(["add", "pick", "refuse", "write", "copy", "part", "zero"])):
                case "add":
                    model.add(x + y, p + q if both else None)
                case "pick":
                    model.add(x[gt.tensor([3, 2, 1, 0])], None if p is None else p[::-1])
                case "refuse":
                    model.add(x[gt.tensor([0, 9, 1, 2])], None)
                case "write":
                    x.mul_(0.5).add_(y)
                    model.now[a] = (p * 0.5 + (q if a != b else p * 0.5)) if both else None
                case "copy" if p is not None:
                    x.copy_(y + x)
                    model.now[a] = q + p if both else None
                case "part":
                    i = data.draw(numbers)
                    x[i] = y[3 - i]
                    model.now[a] = None if not both else np.where(np.arange(4) == i, q[3 - i], p)
                case "zero":
                    x.zero_()
                    model.now[a] = np.zeros(4)
        for i in data.draw(st.permutations(range(len(model.tensors)))):
            model.read(i)


def test_every_refusal_of_a_run_is_one_error(backend: str) -> None:
    w, v = gt.ones(3), gt.ones(3)
    assert (w + v).sum().item() == 6
    w.add_(gt.arange(3.0)[gt.tensor([0, 1, 7])])
    v.add_(gt.arange(3.0)[gt.tensor([0, 1, 8])])
    with pytest.raises(IndexError):
        w.tolist()
    assert w.tolist() == v.tolist() == [1, 1, 1]

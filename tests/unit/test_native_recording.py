"""gt/_recording.c records what gt/recording.py says: the same programs, traced by both, entry for entry."""

import gc
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gt
from gt import flush
from gt.handle import COPY
from gt.ir.ops import OPS
from gt.nn import functional as F
from gt.recording import native, record, record_into
from gt.rule import RULES
from gt.trace import Trace, settle, state

ROOT = Path(__file__).resolve().parents[2]
needs_native = pytest.mark.skipif(importlib.util.find_spec("gt._recording") is None, reason="built without a C compiler")
in_use = pytest.mark.skipif(native is None, reason="not built, or switched off")

PROGRAMS = """
import threading
import gt
from gt import nn
from gt.nn import functional as F
from gt.recording import native
from gt.rule import RULES
from gt.trace import state

print_to = []

def show(title):
    trace = state.trace
    rules = [(RULES[id >> 1].op.name if RULES[id >> 1].op else "leaf", RULES[id >> 1].attrs, RULES[id >> 1].outputs, id & 1, ids)
             for id, ids in trace.code]
    where = [w and (w[0].co_name, w[1]) for w in trace.where]
    leaves = {k: (ref() is not None, version) for k, (ref, version) in trace.leaves.items()}
    print_to.append((title, rules, where, leaves, trace.links.keys(), trace.names, trace.size, len(trace.handles), trace.scalars,
                     trace.scalar_ids, list(trace.input_ids.values()), trace.overwritten, trace.weighed, trace.busy, trace.stop))

def fresh():
    gt.ones(1).sum().item()

gt.manual_seed(0)
x = gt.tensor([[1.0, 2.0], [3.0, 4.0]])
model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.GELU(), nn.Linear(3, 2))
model[0].weight._name = "0.weight"
optimizer = gt.optim.AdamW(model.parameters(), lr=0.1)
for step in range(3):
    loss = F.cross_entropy(model(x * 2 + 1), gt.tensor([0, 1]))
    loss.backward()
    show("forward and backward")
    optimizer.step()
    show("step")
    optimizer.zero_grad()
    fresh()

with gt.no_grad():
    y = x + x.t() - 3
show("no grad")
fresh()
a = gt.zeros(4, 4)
row, column = a[1], a[:, 2]
row += 1
show("a write through a view")
b = column * 2 + a.view(16)[::4]
show("stale views")
top, where = (x * x).topk(1)
values = x.sort(dim=0)
q, r = gt.linalg.qr(x)
show("several results")
w = gt.ones(2, 2, requires_grad=True)
view = w.view(4)
c = (view * view.detach()).sum() + w.mul(2).sum()
c.backward(retain_graph=True)
fresh()
d = c * 2 + w.sum()
show("an earlier tape")
d.backward()
fresh()
with gt.autocast("cpu", dtype=gt.bfloat16):
    e = x @ x + (x @ w).relu()
show("autocast")
try:
    x + gt.zeros(3)
except RuntimeError as error:
    print_to.append(str(error))
show("a refused op")
fresh()
f = []
thread = threading.Thread(target=lambda: f.append(x * 7))
thread.start(); thread.join()
g = f[0] + 1
show("a value of another thread")
for _ in range(3):
    gt.nn.init.normal_(w)
    h = gt.where(x > 2, x, 0.5).clamp(min=1).sum(0)
show("numbers")
fresh()
for step in range(9):  # a program comes again after another, and then with another op, number of operands or order
    h = x * 2 if step != 5 else x / 2
    if step == 6:
        h = gt.cat([h, x, x])[:2]
    i = h + x if step != 7 else x + h
    show(f"repeated, step {step}")
    i.sum().item()
    j = (x - 1).relu()
    show(f"the other, step {step}")
    fresh()
    del h, i, j
print(native is not None)
for entry in print_to:
    print(entry)
"""


def traces(native: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAMS], env={**os.environ, "GT_NATIVE": native, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_native
def test_both_record_the_same_traces():
    python, compiled = traces("0"), traces("1")
    assert (python[0], compiled[0]) == ("False", "True")
    assert len(python) > 15
    for mine, theirs in zip(compiled[1:], python[1:], strict=True):
        assert mine == theirs


@in_use
def test_what_repeats_is_expected_and_shares_its_entries():
    x = gt.ones(3, 5)

    def steps(n: int) -> None:
        for _ in range(n):
            y, z = (x + 1).exp(), gt.cat([x] * 9)
            (y.sum() + z.sum()).item()
            (x * 3).sum().item()

    x.sum().item()
    steps(3)
    y, z = (x + 1).exp(), gt.cat([x] * 9)
    expected = state.trace.expected
    assert expected is not None and expected.entries[: len(state.trace.code)] == state.trace.code
    assert all(a is b for a, b in zip(expected.entries, state.trace.code, strict=False))
    other = x - y
    assert expected.entries[: len(state.trace.code)] != state.trace.code  # what comes otherwise is recorded as it is
    np.testing.assert_allclose(other.numpy(), 1 - np.exp(2) * np.ones((3, 5)), rtol=1e-6)
    np.testing.assert_array_equal(z.numpy(), np.ones((27, 5)))


@in_use
def test_what_outputs_replace_is_told_alike(monkeypatch):
    found = []
    monkeypatch.setattr(flush, "replaced", lambda *given: found.append((flush._replaced(*given), native.replaced(*given))) or found[-1][1])
    a, b, c = gt.ones(3), gt.ones(3), gt.ones(3)
    settle(state.trace, "a test")
    ids = [t._buffer.id for t in (a, b, c)]
    new = a + b
    c.add_(1).mul_(2)
    a.copy_(new * 2)
    settle(state.trace, "a test")
    assert sorted(found[-1][0]) == sorted([-1, ids[0], ids[2]])
    y = a * 3
    a._adopt(y)  # two tensors come to share a value: which one should have the old one again?
    settle(state.trace, "a test")
    assert found[-1][0] == (-1,) and all(x == y for x, y in found)
    d = gt.ones(3)
    settle(state.trace, "a test")
    assert found[-1] == ((), ()) and d is not None


@in_use
def test_no_reference_is_kept_or_lost():
    assert native is not None
    x, y = gt.ones(3, 5), gt.ones(3, 5, requires_grad=True)
    attrs = (("dims", (1, 0)),)
    watched = [x._type, OPS["add"], OPS["permute"], attrs, state.modes, test_no_reference_is_kept_or_lost.__code__, None, True, False]

    def records() -> list[int]:
        for _ in range(300):
            record(OPS["add"], (x, y))
            record(OPS["permute"], (x,), attrs, 1, True)
            gt.topk(x, 2)
            (x * 2).t()
            with pytest.raises(AttributeError):
                record(COPY, (None,))
        settle(state.trace, "a test")
        x.sum().item()
        gc.collect()
        return [sys.getrefcount(o) for o in watched]

    records()
    before = records()
    after = records()
    assert all(abs(a - b) < 100 for a, b in zip(after, before, strict=True)), (before, after)


@pytest.mark.parametrize("given", [np.True_, 1])
def test_whatever_says_that_a_gradient_is_wanted_is_a_bool(given, settled):
    w = gt.ones(3).requires_grad_(given)
    assert w.requires_grad is True
    y = w * w
    assert state.trace.code[-1][0] & 1, "it is on the tape"
    y.sum().backward()
    assert w.grad.tolist() == [2.0, 2.0, 2.0]
    assert w.requires_grad_(given - 1).requires_grad is False


def test_operands_of_an_op_not_seen_before_are_cast_once():
    x, w = gt.ones(1, 3, 7, 11), gt.ones(3, 5, 3, 2)
    casts = []
    with gt.autocast("cpu", dtype=gt.bfloat16):
        for _ in range(2):
            settle(state.trace, "a test")
            y = F.conv_transpose2d(x, w)
            casts.append(sum(RULES[id >> 1].op is OPS["cast"] for id, _ in state.trace.code))
    assert casts == [2, 2] and y.dtype is gt.bfloat16


@in_use
def test_an_update_of_what_another_thread_changes_meanwhile_is_refused(monkeypatch):
    t, rate = gt.ones(3), gt.ones(3)
    settle(state.trace, "a test")
    record_into(OPS["add"], (t, rate), (), (t,))  # from now on its rule is known
    settle(state.trace, "a test")
    buffer, entered = t._buffer, Trace.enter

    def enter(trace, tensor):
        index = entered(trace, tensor)
        t._trace, t._buffer = Trace(state.modes), None  # as if an op of that thread were what it names
        return index

    with monkeypatch.context() as patched:
        patched.setattr(Trace, "enter", enter)
        with pytest.raises(RuntimeError, match="changed by another thread"):
            record_into(OPS["add"], (rate, rate), (), (t,))
    t._trace, t._buffer = None, buffer
    assert not state.trace.busy and (t + rate).tolist() == [3.0, 3.0, 3.0]


@in_use
def test_an_interrupt_while_a_half_recorded_op_is_forgotten_is_raised(monkeypatch):
    x = gt.ones(3)
    y = x + x
    settle(state.trace, "a test")

    def fail(trace, tensor):
        raise ValueError("no input")

    def interrupt(trace):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trace, "enter", fail)
        with pytest.raises(ValueError, match="no input"):
            x + x
        patched.setattr(Trace, "mend", interrupt)
        with pytest.raises(KeyboardInterrupt):
            x + x
    assert not state.trace.busy and (x + y).tolist() == [3.0, 3.0, 3.0]

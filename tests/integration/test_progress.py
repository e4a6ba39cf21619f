"""What a person sees while something takes long, at a terminal; and that nobody else sees anything."""

from __future__ import annotations

import contextlib
import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from gt import progress
from gt.runtime.remote import RemoteSession
from gt.runtime.usage import ProgramState
from tests.integration.cluster import Desk, rows
from tests.integration.programs import run, server, wait_for
from tests.integration.terminal import Terminal

pytestmark = pytest.mark.timeout(90)

SLOW = """
import time
import numpy as np
import gt
from gt import progress
from gt.ir.opdef import OPS
progress.AFTER_S = 0.3
meaning = OPS["tanh"].numpy
object.__setattr__(OPS["tanh"], "numpy", lambda x: (time.sleep(2.5), meaning(x))[1])
print("the value is", gt.from_numpy(np.zeros(3, np.float32)).tanh().sum().item())
"""


def test_a_terminal_shows_what_is_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "slow.py"
    script.write_text(SLOW)
    with contextlib.closing(Terminal(script)) as terminal:
        terminal.shows(lambda _: "the value is 0.0" in terminal.output, 60)
        assert re.search(r"gt: [12] s for a value, 1 run on worker 0", terminal.output)
        assert terminal.process.wait(60) == 0


def test_nobody_else_sees_anything(tmp_path: Path) -> None:
    done = run(SLOW, tmp_path)
    assert (done.code, done.out, done.err) == (0, "the value is 0.0\n", "")


WAITS = """
import sys
import time
import numpy as np
import gt
from gt import progress
from gt.ir.opdef import OPS
progress.AFTER_S = 0.1
meaning = OPS["tanh"].numpy
object.__setattr__(OPS["tanh"], "numpy", lambda x: (time.sleep(0.2), meaning(x))[1])
w = gt.nn.Parameter(gt.zeros(3))
opt = gt.optim.SGD([w], lr=0.1)
for _ in range(11):  # none of it is read, and 8 may be in flight
    opt.zero_grad()
    (w.tanh() + w).sum().backward()
    opt.step()
    if sys.argv[1:] == ["broken"]:
        sys.stderr = type("Broken", (), {"isatty": lambda self: True, "flush": lambda self: None})()
    if sys.argv[1:] == ["closed"]:
        sys.stderr.close()
print("the value is", round(w.sum().item(), 4))
"""


def test_a_run_that_waits_for_those_before_it_is_shown(tmp_path: Path) -> None:
    script = tmp_path / "waits.py"
    script.write_text(WAITS)
    values = []
    for words in ((), ("broken",), ("closed",)):
        with contextlib.closing(Terminal(script, *words)) as terminal:
            terminal.shows(lambda _, t=terminal: re.search(r"the value is \S+\s", t.output), 60)
            values += re.findall(r"the value is \S+", terminal.output)
            said = re.search(r"gt: \d+ s for the runs before this one, \d+ runs on worker 0", terminal.output)
            assert bool(said) == (not words) and "Traceback" not in terminal.output
            assert terminal.process.wait(60) == 0
    done = run(WAITS, tmp_path)
    assert (done.code, done.err) == (0, "") and [done.out.strip()] * 3 == values


def test_a_future_keeps_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "AFTER_S", 0.01)
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("of its own"))
    with pytest.raises(TimeoutError, match="of its own"):
        progress.awaited(failed, None)
    good: Future[int] = Future()
    good.set_result(3)
    assert progress.awaited(good, None) == 3


class Recovering:
    recovering = True


def test_what_it_is_busy_with() -> None:
    session = Recovering()
    assert progress.busy_with(session) == "recovering from the loss of a worker"
    session.replayed = 30, 120
    assert progress.busy_with(session) == "recovering from the loss of a worker, 25 %"
    programs = (ProgramState(1, "flush1", "eager", 4, 0, (), 1, 4), ProgramState(2, "flush2", "eager", 9, 0))
    worker = SimpleNamespace(joined=True, programs=programs)
    found = SimpleNamespace(plans_made=0, in_flight=(), num_in_flight=0, workers=(worker, worker), clients=())
    assert progress.busy_with(SimpleNamespace(status=lambda: found)) == "compiling 8 pieces, 25 %"
    assert progress.busy_with(object()) == "the workers are busy"


def test_uploads_and_reads_are_seen_to_go_on() -> None:
    array = np.ones((1 << 16, 4), np.float32)
    with (
        server(2, "tests.integration.patient_server") as there,
        contextlib.closing(RemoteSession(there.address, timeout=60)) as session,
    ):
        desk = Desk(session)
        slow = psutil.Process(there.workers[1].pid)
        slow.suspend()  # which others would call the loss of a worker after 4 s
        held = [desk.put(array, rows()) for _ in range(8)]
        assert wait_for(lambda: session.status().clients[0].uploading_nbytes == 8 * array.nbytes)
        assert "uploading, 0 %" in progress.busy_with(session)
        slow.resume()
        assert all(np.array_equal(desk.get(buffer), array) for buffer in held)
        assert wait_for(lambda: session.status().clients[0].uploading_nbytes == 0) and progress.busy_with(session) == "it is on its way"
        slow.suspend()
        future = session.fetch(held[0])
        assert wait_for(lambda: session.reading() == (1, 2))
        assert "reading, 50 %" in progress.busy_with(session)
        slow.resume()
        assert np.array_equal(future.result(60), array)


def test_percentages() -> None:
    assert [progress.percent(*of) for of in ((0, 0), (0, 7), (1, 3), (999, 1000), (7, 7), (9, 7))] == [
        "", ", 0 %", ", 33 %", ", 99 %", ", 100 %", ", 100 %",
    ]  # fmt: skip


SAVES = """
import threading
import gt
from gt.checkpoint import saving
saving.AFTER_S = 0.1
begun = threading.Event()
received = saving.received
asked = []
def slow(name, future):
    asked.append(name)
    if len(asked) == 2:
        begun.wait(2.5)
    return received(name, future)
saving.received = slow
print("it is at", gt.checkpoint.save("FOLDER", gt.nn.Linear(2, 2), step=7).wait().name)
"""


def test_a_checkpoint_that_is_waited_for_is_shown(tmp_path: Path) -> None:
    script = tmp_path / "saves.py"
    script.write_text(SAVES.replace("FOLDER", str(tmp_path / "kept")))
    with contextlib.closing(Terminal(script)) as terminal:
        terminal.shows(lambda _: "it is at" in terminal.output, 60)
        shown = re.sub(r"\s+", " ", terminal.output)
        assert f"s for the checkpoint of step 7 in {tmp_path / 'kept'}, " in shown
        assert "66 %" in shown, shown  # of the 16 bytes of the weight and the 8 of the bias
        assert terminal.process.wait(60) == 0

"""What gt says when asked: GT_INSTRUCTION_LOG and GT_DEBUG, embedded and with processes."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gt.ir.types import TensorType, float32
from gt.runtime import remote, wire
from gt.runtime.embedded import EmbeddedSession
from gt.runtime.launch import start_local
from gt.runtime.log_lines import read_log
from gt.runtime.remote import RemoteSession
from tests.integration.programs import ROOT, log_lines, run

pytestmark = pytest.mark.timeout(120)

STEP = """
import sys
import numpy as np
import gt
if int(sys.argv[1]):
    gt.gpu_workers(int(sys.argv[1]))
x = gt.from_numpy(np.ones((30, 1000), np.float32))
for step in range(3):
    (x * step).sum(dim=1).numpy()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_the_instruction_log_has_a_line_for_every_event(workers: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = run(STEP, tmp_path, workers, GT_INSTRUCTION_LOG=str(log))
    assert (done.code, done.err) == (0, "")
    header = log.read_text().splitlines()[0]
    assert header.startswith("# gt instruction log: elapsed_s sequence event who operation nbytes details; start=")
    lines = log_lines(log)
    last: dict[str, tuple[float, int]] = {}
    for elapsed, sequence, _, who, _, nbytes, *_ in lines:
        before = last.get(who, (-1.0, 0))
        assert float(elapsed) >= before[0] and int(sequence) == before[1] + 1 and int(nbytes) >= 0
        last[who] = (float(elapsed), int(sequence))
    assert set(last) == {"client0", "dispatcher", *(f"worker{i}" for i in range(max(workers, 1)))}
    count = [line[2:5] for line in lines].count
    assert count(["call", "client0", "Run"]) == 3 and count(["recv", "dispatcher", "Run"]) == 3
    assert count(["call", "client0", "Put"]) == 1 and count(["part", "client0", "fetch"]) == 3
    runs = [line for line in lines if line[2:4] == ["run", "worker0"]]
    assert len(runs) == 3 and {line[5] for line in runs} == {"120"}  # 30 floats each
    assert not {"Beat", "Ping"} & {line[4] for line in lines}
    assert not {"Fetch", "Ship"} & {line[4] for line in lines}  # a small value comes with the word that its run is over
    # The order of one run: called, received, run.
    first = {key: next(float(line[0]) for line in lines if line[2:5] == key.split()) for key in
             ("call client0 Run", "recv dispatcher Run", "recv worker0 Execute")}  # fmt: skip
    assert list(first.values()) == sorted(first.values())


def test_scripts_that_write_one_instruction_log_are_told_apart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for workers in (0, 1, 0):
        assert run(STEP, tmp_path, workers, GT_INSTRUCTION_LOG=str(log)).code == 0
    found = read_log(log)
    runs = Counter(line.who for line in found.lines if line.event == "run")
    assert runs["worker0"] == 3 and sorted(runs.values()) == [3, 3, 3]
    assert {line.kind for line in found.lines} == {"client0", "dispatcher", "worker0"} and len({line.tag for line in found.lines}) == 3


API = """
import threading, types
INVALID, here = types.SimpleNamespace(text="", add_event=lambda name, attributes: None), threading.local()
StatusCode = types.SimpleNamespace(ERROR="error")
def get_current_span():
    return getattr(here, "span", INVALID)
class Span:
    def end(self, end_time): pass
    def set_status(self, *_): pass
class Tracer:
    def start_span(self, name, context, attributes, start_time):
        with open(__file__ + ".told", "a") as file:
            file.write(f"{name} {attributes['gt.who']} {attributes.get('gt.fault')} {context}\\n")
        return Span()
def get_tracer(name):
    return Tracer()
"""
FORM = """
from opentelemetry.trace import get_current_span
class TraceContextTextMapPropagator:
    def inject(self, carrier):
        if get_current_span().text:
            carrier["traceparent"] = get_current_span().text
    def extract(self, carrier):
        return carrier["traceparent"]
"""
SPANS = """
from opentelemetry import trace
import types
for step in range(4):
    parent = "" if step == 3 else f"00-{step // 2}"
    trace.here.span = types.SimpleNamespace(text=parent, add_event=lambda name, attributes: None)
    x.sum(dim=1).numpy()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_what_workers_do_is_under_the_scripts_span(workers: int, tmp_path: Path) -> None:
    propagation = tmp_path / "api" / "opentelemetry" / "trace" / "propagation"
    propagation.mkdir(parents=True)
    (propagation.parent / "__init__.py").write_text(API)
    (propagation / "tracecontext.py").write_text(FORM)
    log, path = tmp_path / "log", f"{ROOT}:{tmp_path / 'api'}"
    done = run(STEP + SPANS, tmp_path, workers, GT_OPENTELEMETRY="1", GT_INSTRUCTION_LOG=str(log), PYTHONPATH=path)
    assert (done.code, done.err) == (0, "")
    told = [line.split() for line in (propagation.parent / "__init__.py.told").read_text().splitlines()]
    for who in (f"worker{i}" for i in range(workers or 1)):
        parents = [words[3] for words in told if words[:2] == ["gt.run", who]]
        assert parents == ["None"] * 3 + ["00-0", "00-0", "00-1", "None"]
        assert {words[2] for words in told} == {"None"}  # nothing failed
    assert {words[3] for words in told if words[0] == "gt.ship"} == {"None", "00-0", "00-1"}
    assert sum(line[2:5] == ["call", "client0", "Parent"] for line in log_lines(log)) == 3  # where it changes


@pytest.mark.parametrize(("level", "workers"), [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (3, 1)])
def test_debug_levels(level: int, workers: int, tmp_path: Path) -> None:
    done = run(STEP, tmp_path, workers, GT_DEBUG=str(level))
    assert done.code == 0, done.err
    said = {
        2: ["flush (a value was read): new graph 0", "flush (a value was read): graph 0", "plan 1 (flush0)"],
        3: ["call client0 Run", "recv dispatcher Run", "run worker0 flush0"],
        4: ["graph @flush0 global {", "sum("],
    }
    for at, words in said.items():
        for word in words:
            assert (word in done.err) == (level >= at), (word, done.err)
    if level < 2:
        assert done.err == ""


class Yielding:
    """A session's lock that lets another thread call whenever it has been let go of for the first time."""

    def __init__(self, lock: Any, meanwhile: Callable[[], None]) -> None:
        self.lock, self.meanwhile, self.first = lock, meanwhile, threading.get_ident()

    def __enter__(self) -> None:
        self.lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self.lock.__exit__(*error)
        if threading.get_ident() == self.first:
            self.first = 0
            other = threading.Thread(target=self.meanwhile)
            other.start()
            other.join(20)
            assert not other.is_alive()


class Parents:
    """Spans of which each thread is in its own."""

    def parent(self) -> str:
        return f"00-{threading.get_ident()}"

    def under(self, parent: str) -> None:
        """Whose children they are is looked at where it is said."""

    def tell(self, *_: object) -> None:
        """Nothing is looked at."""


@pytest.mark.parametrize("where", ["embedded", "server"])
def test_what_two_threads_call_at_once_is_under_the_span_of_each(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[wire.Message] = []
    with contextlib.ExitStack() as stack:
        if where == "server":
            cluster = start_local(1, backend="numpy")
            stack.callback(cluster.stop)
            session: Any = RemoteSession(cluster.address)
            send = remote.send
            monkeypatch.setattr(remote, "send", lambda socket, message, data=None: (said.append(message), send(socket, message, data)))
        else:
            session = EmbeddedSession("numpy")
            handle = session._state.handle
            monkeypatch.setattr(session._state, "handle", lambda event: (said.append(getattr(event, "message", event)), handle(event))[1])
        stack.callback(session.close)
        for buffer in (1, 2):
            session.put(buffer, TensorType((1,), float32), np.full(1, buffer, np.float32), None)
        session._log.spans, session._log.on = Parents(), True
        read: dict[int, tuple[str, Any]] = {}

        def fetch(buffer: int) -> None:
            read[buffer] = Parents().parent(), session.fetch(buffer)

        session._lock = Yielding(session._lock, lambda: fetch(2))
        fetch(1)
        assert [float(read[buffer][1].result(20)[0]) for buffer in (1, 2)] == [1.0, 2.0]
        under, parents = "", {}
        for message in said:
            if isinstance(message, wire.Parent):
                under = message.traceparent
            elif isinstance(message, wire.Fetch):
                parents[message.buffer] = under
        assert parents == {buffer: parent for buffer, (parent, _) in read.items()}

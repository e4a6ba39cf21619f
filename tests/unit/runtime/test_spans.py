"""Spans, told to a tracer of the API's shape, and to OpenTelemetry's own where it is installed."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from typing import Any

import pytest

from gt.runtime import env
from gt.runtime.log import InstructionLog, open_log
from gt.runtime.spans import Spans, open_spans, tell_missing


class Form:
    """A propagator: contexts are their texts. ``current``: of the span that the caller is in."""

    current = ""

    def inject(self, carrier: dict[str, str]) -> None:
        carrier |= {"traceparent": self.current} if self.current else {}

    def extract(self, carrier: dict[str, str]) -> str:
        return carrier["traceparent"]


Told = list[tuple[str, int, int, dict[str, Any], str]]  # name, start, end, attributes, what it failed of


def stand_in() -> tuple[Any, Any]:
    """Give a module of the API's shape that keeps spans, and what reads them."""
    told: Told = []
    contexts: list[Any] = []

    class Span:
        def __init__(self, name: str, attributes: dict[str, Any], start_time: int) -> None:
            self.said, self.failed = (name, attributes, start_time), ""

        def set_status(self, status: str, description: str) -> None:
            assert status == "ERROR"
            self.failed = description

        def end(self, end_time: int) -> None:
            name, attributes, start = self.said
            told.append((name, start, end_time, attributes, self.failed))

        def add_event(self, name: str, attributes: dict[str, Any]) -> None:
            told.append((name, 0, 0, attributes, ""))

    def start_span(name: str, *, context: Any, attributes: dict[str, Any], start_time: int) -> Span:
        contexts.append(context)
        return Span(name, attributes, start_time)

    tracer = types.SimpleNamespace(start_span=start_span, contexts=contexts)
    api = types.ModuleType("opentelemetry.trace")
    api.get_tracer = lambda name: tracer  # type: ignore[attr-defined]
    api.get_current_span = lambda: Span("", {}, 0)  # type: ignore[attr-defined]
    api.StatusCode = types.SimpleNamespace(ERROR="ERROR")  # type: ignore[attr-defined]
    return api, lambda within: (within(), told)[1]


def the_real_one() -> tuple[Any, Any]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    api = types.SimpleNamespace(
        get_tracer=provider.get_tracer, get_current_span=trace.get_current_span, StatusCode=trace.StatusCode
    )

    def read(within: Any) -> Told:
        with provider.get_tracer("script").start_as_current_span("step"):
            within()
        (outer,) = [s for s in kept.get_finished_spans() if s.name == "step"]
        assert all(s.parent.span_id == outer.context.span_id for s in kept.get_finished_spans() if s is not outer)
        found = [
            (s.name, s.start_time, s.end_time, dict(s.attributes), s.status.description or "")
            for s in kept.get_finished_spans()
            if s is not outer
        ]
        return found + [(e.name, 0, 0, dict(e.attributes), "") for e in outer.events]

    return api, read


PROPAGATION = "opentelemetry.trace.propagation"
KINDS = [
    stand_in,
    *([the_real_one] if importlib.util.find_spec("opentelemetry") and importlib.util.find_spec("opentelemetry.sdk") else []),
]


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_time_is_a_span_and_a_flush_an_event_of_the_scripts(kind: Any) -> None:
    api, read = kind()
    log = InstructionLog("", "worker1", spans=Spans(api, "worker1", Form(), lambda: 5_000_000_000))
    assert log.on

    def work() -> None:
        log.write("run", "flush1", 4000, "epoch=9 plan=2 seconds=0.250000 tier=eager fault=-")
        log.write("run", "flush2", 0, "epoch=10 plan=3 seconds=0.5 tier=eager fault=index")
        log.write("recv", "Run", 20, "epoch=10")
        log.write("flush", "graph", 0, "graph=0 at=step.py:13 reason=a value was read")

    about = {"gt.who": "worker1", "gt.operation": "flush1", "gt.nbytes": 4000}
    failed = {
        **about,
        "gt.operation": "flush2",
        "gt.nbytes": 0,
        "gt.epoch": 10,
        "gt.plan": 3,
        "gt.tier": "eager",
        "gt.fault": "index",
    }
    flush = {
        "gt.who": "worker1",
        "gt.operation": "graph",
        "gt.nbytes": 0,
        "gt.graph": 0,
        "gt.at": "step.py:13",
        "gt.reason": "a value was read",
    }
    assert read(work) == [
        ("gt.run", 4_750_000_000, 5_000_000_000, {**about, "gt.epoch": 9, "gt.plan": 2, "gt.tier": "eager"}, ""),
        ("gt.run", 4_500_000_000, 5_000_000_000, failed, "index"),
        ("gt.flush", 0, 0, flush, ""),
    ]


def test_spans_are_children_of_the_span_that_is_told() -> None:
    api, _ = stand_in()
    form = Form()
    spans = Spans(api, "worker0", form)
    log = InstructionLog("", "worker0", spans=spans)
    for parent in ("", "00-a-b-01", ""):
        spans.under(parent)
        log.write("run", "flush1", 0, "seconds=0.1")
    assert spans.tracer.contexts == [None, "00-a-b-01", None]
    assert spans.parent() == ""
    form.current = "00-a-c-01"
    assert spans.parent() == "00-a-c-01"


@pytest.mark.skipif(len(KINDS) == 1, reason="needs opentelemetry-sdk")
def test_the_real_form_is_w3cs() -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    tracer = TracerProvider().get_tracer("script")
    script, worker = (Spans(trace, who, TraceContextTextMapPropagator()) for who in ("client0", "worker0"))
    assert script.parent() == ""
    with tracer.start_as_current_span("step") as step:
        parent = script.parent()
    assert len(parent) == 55
    worker.under(parent)
    child = tracer.start_span("run", context=worker.context)
    assert child.parent.span_id == step.get_span_context().span_id  # type: ignore[attr-defined]


def test_a_trace_leaves_spans_on() -> None:
    api, read = stand_in()
    log = InstructionLog("", "worker0", spans=Spans(api, "worker0", Form()))
    log.trace(10)
    assert len(log.traced().lines) == 0 and log.on
    log.close()
    assert log.on and read(lambda: log.write("load", "p", 0, "plan=1 seconds=0.1"))[0][0] == "gt.load"


def test_it_is_asked_for_by_a_variable_and_told_where_it_cannot_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(env.OPENTELEMETRY, "_read", [False])
    assert open_spans("client0") is None
    monkeypatch.setattr(env.OPENTELEMETRY, "_read", [True])
    api, read = stand_in()
    form = types.ModuleType("tracecontext")
    form.TraceContextTextMapPropagator = Form  # type: ignore[attr-defined]
    names = ("opentelemetry", "opentelemetry.trace", "opentelemetry.trace.propagation", f"{PROPAGATION}.tracecontext")
    for name, module in zip(names, (types.ModuleType("opentelemetry"), api, types.ModuleType("propagation"), form), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    log = open_log("client0")
    assert [name for name, *_ in read(lambda: log.write("collective", "all_reduce", 8, "seconds=0.1"))] == ["gt.collective"]
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    tell_missing.cache_clear()
    with caplog.at_level(logging.ERROR, "gt.log"):
        assert open_spans("client0") is None and open_spans("worker0") is None
    assert (
        caplog.text.count("GT_OPENTELEMETRY is set and no spans are made") == 1 and "pip install opentelemetry-api" in caplog.text
    )

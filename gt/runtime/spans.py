"""What gt does as OpenTelemetry spans (``GT_OPENTELEMETRY``): as libraries do, by the API alone, to whatever provider the process has.

An event that took time is a span; a flush is an event of the span that the script is in, and what a worker does for the script a child of
it: ``wire.Parent`` carries it to other threads and processes, in W3C's form. Owns: ``Spans``, ``open_spans``. Must not know:
exporters, sockets. Next: ``log`` (where events come from), ``log_lines`` (what they say).
"""

from __future__ import annotations

import functools
import importlib
import logging
import time
from collections.abc import Callable
from typing import Any

from gt.runtime import env
from gt.runtime.log_lines import fields_of

log = logging.getLogger("gt.log")


class Spans:
    """Tells a tracer what ``who`` does. ``api``: the module ``opentelemetry.trace``. ``form``: reads and writes a ``traceparent``, as
    OpenTelemetry's propagators do. ``now_ns``: nanoseconds since 1970.
    """

    def __init__(self, api: Any, who: str, form: Any, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.api, self.who, self.form, self.now_ns = api, who, form, now_ns
        self.tracer = api.get_tracer("gt")
        self.context: Any = None  # of the parent, if it is somewhere else

    def parent(self) -> str:
        """Give the ``traceparent`` of the span that the calling thread is in, "" if it is in none."""
        carrier: dict[str, str] = {}
        self.form.inject(carrier)
        return carrier.get("traceparent", "")

    def under(self, parent: str) -> None:
        """Hear of whose children the spans are from here on; "": of nobody's."""
        self.context = self.form.extract({"traceparent": parent}) if parent else None

    def tell(self, event: str, operation: str, nbytes: int, details: str) -> None:
        """Hear of an event of the instruction log that ends now; with ``seconds`` in its details it is a span."""
        said = fields_of(details)
        seconds = said.pop("seconds", None)
        if seconds is None and event != "flush":
            return
        if said.get("fault") == "-":
            del said["fault"]
        attributes: dict[str, str | int] = {"gt.who": self.who, "gt.operation": operation, "gt.nbytes": nbytes}
        attributes |= {f"gt.{name}": int(text) if text.isdecimal() else text for name, text in said.items()}
        if seconds is None:
            self.api.get_current_span().add_event("gt.flush", attributes)
            return
        ended = self.now_ns()
        span = self.tracer.start_span(
            f"gt.{event}", context=self.context, attributes=attributes, start_time=ended - round(float(seconds) * 1e9)
        )
        if "fault" in said:
            span.set_status(self.api.StatusCode.ERROR, said["fault"])
        span.end(end_time=ended)


def open_spans(who: str) -> Spans | None:
    """Give who hears of spans; None unless ``GT_OPENTELEMETRY`` asks for them and the package is there."""
    if not env.OPENTELEMETRY.get():
        return None
    try:
        form = importlib.import_module("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
        return Spans(importlib.import_module("opentelemetry.trace"), who, form)
    except ImportError as e:
        tell_missing(str(e))
        return None


@functools.cache
def tell_missing(why: str) -> None:
    """Say it once in a process, which may have a client, a dispatcher and a worker."""
    log.error("GT_OPENTELEMETRY is set and no spans are made: %s. Install it: pip install opentelemetry-api", why)


__all__ = ["Spans", "open_spans", "tell_missing"]

"""A dispatcher's web page and metrics: read-only HTTP on a thread of its own, fed by the dispatcher's loop.

The loop alone reads its state: a request says that a fresh picture is wanted, the loop's next tick hands one over, a request that waits
too long gets the last. Without a token it serves this machine alone, and by a name of this machine alone, so that no web page elsewhere
can have a browser read it.
Owns: ``Web``, what is served at which path, who may read. Must not know: how decisions are made. Next: ``metrics``, ``dispatcher``.
"""

from __future__ import annotations

import hmac
import json
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from gt.ir.text import print_program
from gt.runtime.metrics import CONTENT_TYPE, metrics_text
from gt.runtime.status import ServerStatus, status_of
from gt.runtime.transport import LOOPBACK
from gt.runtime.usage import SeenRun

if TYPE_CHECKING:
    from gt.runtime.dispatcher_state import DispatcherState

PAGE = Path(__file__).with_name("dashboard.html")
SAMPLE_S = 1.0
MAX_SAMPLES = 900
MAX_PLANS = 50
MAX_RUNS = 2000
RUNS_S = 10.0  # of runs the latest are shown, as far back as MAX_RUNS go
MAX_TEXT = 50_000  # characters of a program
FRESH_S = 1.0  # a request waits so long for a new picture
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
}  # fmt: skip


@dataclass(frozen=True)
class Picture:
    """What is served: a status, the latest plans with the program of their first worker, and the latest runs."""

    status: ServerStatus
    plans: tuple[dict[str, Any], ...]
    runs: tuple[tuple[int, int, int, float, float], ...] = ()  # worker, plan, client, begin and end in seconds before now
    runs_s: float = RUNS_S  # how far back they go: before that is not known, which is not to be shown as idle


class Web:
    """Serves at ``host``:``port`` (0: any free one) until closed. ``token``: who gives it may read; "": whoever is on this machine.

    Errors: ValueError for a host beyond this machine without a token; OSError where the port is taken.
    """

    def __init__(self, host: str, port: int, token: str = "") -> None:
        if host not in LOOPBACK and not token:
            raise ValueError(f"{host} is reachable from other machines: the page there needs a token")
        self.token, self.host = token, host
        self.samples: deque[tuple[float, list[tuple[int, int, int, float, float]]]] = deque(maxlen=MAX_SAMPLES)
        self.runs: deque[SeenRun] = deque(maxlen=MAX_RUNS)  # only the dispatcher's thread looks at them
        self._picture: Picture | None = None
        self._wanted, self._fresh = threading.Event(), threading.Condition()
        self._count, self._sampled = 0, 0.0
        web = self

        class Handler(_Handler):
            owner = web

        self._server = _Server((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.2}, name="gt-web", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Give the address for a browser."""
        return f"http://{self.host}:{self.port}/" + (f"?token={quote(self.token, safe='')}" if self.token else "")

    # -- the dispatcher's thread

    def tick(self, state: DispatcherState) -> None:
        """Hand over a picture if one is wanted; take a sample now and then."""
        due = state.now - self._sampled >= SAMPLE_S
        if not due and not self._wanted.is_set():
            return
        status = status_of(state)
        if due:
            self._sampled = state.now
            uses = [(w.id, w.usage, round(status.uptime_s - w.usage_s, 2)) for w in status.workers]
            busy = [
                (i, u.values_nbytes, u.device_nbytes or u.process_nbytes, u.run_s + u.collective_s + u.load_s, said) for i, u, said in uses
            ]
            self.samples.append((round(status.uptime_s, 2), busy))
        if self._wanted.is_set():
            self._wanted.clear()
            plans = tuple(_plan(plan) for plan in list(state.plans)[-MAX_PLANS:])
            runs = tuple(
                (r.worker, r.plan, r.client, round(state.now - r.ended + r.seconds, 6), round(state.now - r.ended, 6))
                for r in self.runs
                if state.now - r.ended < RUNS_S
            )
            full = len(self.runs) == MAX_RUNS
            runs_s = min(RUNS_S, round(state.now - self.runs[0].ended, 6)) if full else RUNS_S
            with self._fresh:
                self._picture, self._count = Picture(status, plans, runs, runs_s), self._count + 1
                self._fresh.notify_all()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(2.0)

    # -- the threads that serve

    def picture(self) -> Picture | None:
        """Give a fresh picture, after ``FRESH_S`` the last there is."""
        with self._fresh:
            before = self._count
            self._wanted.set()
            self._fresh.wait_for(lambda: self._count > before, FRESH_S)
            return self._picture

    def allows(self, host: str, given: str) -> bool:
        """Say whether who asked for ``host`` and gave a token may read."""
        if self.token:
            return hmac.compare_digest(given.encode(), self.token.encode())
        return host.rpartition(":")[0].strip("[]") in LOOPBACK or host in LOOPBACK


def _plan(plan: Any) -> dict[str, Any]:
    first = next(iter(plan.programs.items()), None)
    return {
        "id": plan.id, "name": plan.reasons.graph or (first[1].name if first else ""), "ready": plan.ready,
        "fault": plan.fault.message if plan.fault else "", "seconds": plan.seconds, "nbytes": plan.nbytes, "where": plan.where,
        "workers": sorted(plan.programs), "sent": [msgspec.to_builtins(s) for s in plan.reasons.sent], "notes": plan.reasons.notes,
        "program": first[1] if first else None,
    }  # fmt: skip


def plans_json(plans: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    """Give plans in a form for JSON, programs as text."""
    return [{**plan, "program": print_program(plan["program"])[:MAX_TEXT] if plan["program"] is not None else ""} for plan in plans]


class _Server(ThreadingHTTPServer):
    """Says nothing of who leaves before the answer is there: every browser does, and strangers may."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One request. Anything but reading is refused."""

    owner: Web
    server_version, sys_version = "gt", ""
    timeout = 10

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        try:
            at = urlsplit(self.path)
        except ValueError:  # as http://[
            self._answer(HTTPStatus.BAD_REQUEST, "text/plain", "that is no address\n")
            return
        scheme, _, bearer = self.headers.get("Authorization", "").strip().partition(" ")  # RFC 9110: a scheme in any case, spaces
        given = parse_qs(at.query).get("token", [bearer.strip() if scheme.lower() == "bearer" else ""])[0]
        if not self.owner.allows(self.headers.get("Host", ""), given):
            self._answer(
                HTTPStatus.FORBIDDEN, "text/plain", "the address has a token that this one lacks: see what the server printed\n"
            )
            return
        found = PATHS.get(at.path)
        if found is None:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"there is {', '.join(PATHS)}\n")
            return
        kind, make = found
        picture = self.owner.picture() if at.path != "/" else None
        if picture is None and at.path != "/":
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", "the server is busy: ask again\n")
            return
        self._answer(HTTPStatus.OK, kind, make(self.owner, picture))

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, code: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing."""


def _status_json(web: Web, picture: Any) -> str:
    return json.dumps(
        {**msgspec.to_builtins(picture.status), "samples": list(web.samples), "runs": picture.runs, "runs_s": picture.runs_s}
    )


PATHS: dict[str, tuple[str, Callable[[Web, Any], str]]] = {
    "/": ("text/html; charset=utf-8", lambda web, picture: PAGE.read_text(encoding="utf-8")),
    "/status.json": ("application/json", _status_json),
    "/plans.json": ("application/json", lambda web, picture: json.dumps(plans_json(picture.plans))),
    "/metrics": (CONTENT_TYPE, lambda web, picture: metrics_text(picture.status)),
}

__all__ = ["Web", "plans_json"]

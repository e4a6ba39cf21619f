"""``gt server --dashboard``: what is served, to whom, and that it can only be read."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

from gt.commands.server_address import servers_here
from gt.runtime.dispatcher_state import DispatcherState
from gt.runtime.metrics import metrics_text
from gt.runtime.remote import RemoteSession
from gt.runtime.status import status_of
from gt.runtime.usage import SeenRun
from gt.runtime.web import MAX_RUNS, RUNS_S, Web
from tests.integration.cluster import Desk
from tests.integration.programs import held_port, server, wait_for

pytestmark = pytest.mark.timeout(60)


def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Give code, content type and text."""
    asked = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=10) as got:
            return got.status, got.headers["Content-Type"], got.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers["Content-Type"], e.read().decode()


def samples(text: str) -> dict[str, float]:
    """Read Prometheus's form, strictly: each sample follows the HELP and TYPE of its name."""
    found, name, kind = {}, "", ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
        elif line.startswith("# TYPE "):
            assert line.split()[2] == name and (kind := line.split()[3]) in ("gauge", "counter")
            assert (kind == "counter") == name.endswith("_total")
        else:
            matched = re.fullmatch(r'(\w+)(\{\w+="(?:[^"\\\n]|\\.)*"(?:,\w+="(?:[^"\\\n]|\\.)*")*\})? (\S+)', line)
            assert matched and matched[1] == name and line not in found
            found[matched[1] + (matched[2] or "")] = float(matched[3])
    return found


@contextlib.contextmanager
def page(host: str = "127.0.0.1", token: str = "", ticks: bool = True) -> Iterator[Web]:
    """A page over a dispatcher of its own, whose loop ticks on a thread."""
    web, over = Web(host, 0, token), threading.Event()
    state = DispatcherState(lambda: bytes(16))

    def loop() -> None:
        while not over.wait(0.02):
            state.roster.now += 0.02
            web.tick(state)

    thread = threading.Thread(target=loop)
    if ticks:
        thread.start()
        assert wait_for(web.picture)
    try:
        yield web
    finally:
        over.set()
        if ticks:
            thread.join()
        web.close()


def test_a_server_shows_itself() -> None:
    with (
        held_port() as port,
        server(1, "gt", "server", "--dashboard", str(port)) as there,
        contextlib.closing(RemoteSession(there.address, timeout=60)) as session,
    ):
        desk = Desk(session)
        x = desk.put(np.ones((20, 20)))
        for _ in range(3):
            desk.get(desk.run("matmul", (x, (20, 20)), (x, (20, 20))))
        found = [one.address for one in servers_here() if one.pid == there.process.pid]
        assert found == [f"127.0.0.1:{there.port}"]  # and not its page's port
        root = f"http://127.0.0.1:{port}"
        code, kind, text = get(root + "/")
        assert code == 200 and kind.startswith("text/html") and "<title>gt server</title>" in text
        assert not re.search(r"(?:src|href)=|https?:", text)

        def told() -> bool:
            code, _, text = get(root + "/status.json")
            return code == 200 and bool(json.loads(text)["workers"][0]["usage"]["kinds_s"])

        assert wait_for(told), "a worker tells of itself once a second"
        status = json.loads(get(root + "/status.json")[2])
        used = status["workers"][0]["usage"]
        assert [w["pid"] for w in status["workers"]] == [there.workers[0].pid] and status["clients"][-1]["runs"] == 3
        assert 0 < used["kinds_s"]["matmul"] <= used["run_s"] + 1e-6 and set(used["kinds_s"]) == {"matmul"}
        assert [run[:3] for run in status["runs"]] == [[0, 1, status["clients"][-1]["id"]]] * 3
        assert all(status["runs_s"] > begin > end >= 0 for _, _, _, begin, end in status["runs"])
        (plan,) = json.loads(get(root + "/plans.json")[2])
        assert plan["ready"] and plan["name"] == "matmul" and "matmul" in plan["program"] and plan["where"] == "train.py:12"
        code, kind, text = get(root + "/metrics")
        found = samples(text)
        assert code == 200 and kind.startswith("text/plain; version=0.0.4")
        assert found['gt_worker_op_seconds_total{worker="0",kind="matmul"}'] >= used["kinds_s"]["matmul"]
        assert found["gt_workers"] == 1 and found['gt_plans{state="ready"}'] == 1 and found["gt_epochs_total"] == 3
        assert {f'gt_client_runs_total{{client="{status["clients"][-1]["id"]}"}}'} <= found.keys()
        assert found['gt_worker_memory_bytes{worker="0",of="process"}'] > 1e7


@pytest.mark.parametrize(("runs", "shown_s"), [(MAX_RUNS - 1, RUNS_S), (MAX_RUNS, 2.0), (3 * MAX_RUNS, 2.0)])
def test_the_timeline_goes_back_as_far_as_runs_are_known(runs: int, shown_s: float) -> None:
    """Where there are more than are kept, what came before them is not shown as idle."""
    with page(ticks=False) as web:
        state = DispatcherState(lambda: bytes(16))
        each = 2.0 / MAX_RUNS
        for n in range(runs):
            web.runs.append(SeenRun(0, 1, 0, 100.0 + n * each, each / 2))
        state.roster.now = 100.0 + runs * each
        web._wanted.set()
        web.tick(state)
        picture = web._picture
        assert picture is not None and picture.runs_s == pytest.approx(shown_s)
        assert max(ended for *_, ended in picture.runs) == pytest.approx(2.0, rel=1e-3)


def test_it_is_read_only_and_told_what_there_is() -> None:
    with page() as web:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert get(web.address, method)[0] == 501
        assert get(web.address, "HEAD")[::2] == (200, "")
        code, _, text = get(web.address + "../../etc/passwd")
        assert code == 404 and text == "there is /, /status.json, /plans.json, /metrics\n"


def asked(web: Web, *lines: bytes) -> bytes:
    """Send the lines of a request as they are; give all that comes back."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as link:
        link.sendall(b"".join(line + b"\r\n" for line in (*lines, b"")))
        return b"".join(iter(lambda: link.recv(1 << 16), b""))


def test_what_strangers_send_is_answered_and_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    with page(token="geheim ü&#+") as web:
        for line, code in (
            (b"GET http://[ HTTP/1.1", b"400"), (b"GET /?token=%C3%A9 HTTP/1.1", b"403"), (b"GET /?token=\xff HTTP/1.1", b"403"),
            (b"GET /" + b"a" * 70_000 + b" HTTP/1.1", b"414"), (b"GET /?token=geheim%20%C3%BC%26%23%2B HTTP/1.1", b"200"),
        ):  # fmt: skip
            assert asked(web, line, b"Host: localhost").split()[1] == code, line[:40]
        assert asked(web, b"GET / HTTP/1.1", b"Host: localhost", b"Authorization: Bearer \xfc").split()[1] == b"403"
        for _ in range(20):  # who leaves before the answer has come
            with socket.create_connection(("127.0.0.1", web.port), timeout=10) as link:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                link.sendall(b"GET /status.json?token=geheim%20%C3%BC%26%23%2B HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert asked(web, b"GET /metrics?token=geheim%20%C3%BC%26%23%2B HTTP/1.1", b"Host: localhost").split()[1] == b"200"
        assert get(web.address)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_beyond_this_host_a_token_is_needed() -> None:
    with pytest.raises(ValueError, match=r"0\.0\.0\.0 is reachable from other machines: the page there needs a token"):
        Web("0.0.0.0", 0)
    with page("0.0.0.0", "secret") as web:
        root = f"http://127.0.0.1:{web.port}"
        assert [get(root + at)[0] for at in ("/", "/metrics", "/?token=other", "/status.json?token=")] == [403] * 4
        assert [get(root + at)[0] for at in ("/?token=secret", "/metrics?token=secret")] == [200, 200]
        for said, code in (("Bearer secret", 200), ("bearer secret", 200), ("BEARER  secret ", 200), ("Basic secret", 403), ("secret", 403)):
            assert get(root + "/status.json", Authorization=said)[0] == code, said
        assert web.address.endswith("/?token=secret")


@pytest.mark.parametrize(
    ("host", "code"), [("evil.example:80", 403), ("127.0.0.1.evil.example", 403), ("localhost:9", 200), ("", 403)]
)
def test_a_page_elsewhere_cannot_have_a_browser_read_it(host: str, code: int) -> None:
    with page() as web:
        assert get(web.address + "status.json", Host=host)[0] == code


def test_a_busy_server_says_so_and_gives_its_last_picture_later() -> None:
    with page(ticks=False) as web:
        assert get(web.address + "metrics")[::2] == (503, "the server is busy: ask again\n")
        state = DispatcherState(lambda: bytes(16))
        web.tick(state)
        assert get(web.address + "metrics")[0] == 200


def test_nothing_is_made_that_nobody_asked_for() -> None:
    with page(ticks=False) as web:
        state = DispatcherState(lambda: bytes(16))
        state.roster.now = 10.0
        web.tick(state)
        web.tick(state)
        assert len(web.samples) == 1 and web._picture is None
        state.roster.now += 1.0
        web.tick(state)
        assert len(web.samples) == 2


def test_a_server_without_anybody_has_metrics() -> None:
    found = samples(metrics_text(status_of(DispatcherState(lambda: bytes(16)))))
    assert found["gt_clients"] == 0 and found["gt_uptime_seconds"] == 0 and 'gt_plans{state="failed"}' in found

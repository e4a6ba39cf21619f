"""Options of the server and of workers: what cannot be is told before anything listens or joins."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

import gt
from gt import worker
from gt.runtime.exit_codes import ExitCode
from gt.server import main


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--client-memory", "lots"), ("'lots'", "20GiB")),
        (("--client-memory", "-5"), ("'-5'", "number of bytes")),
        (("--max-priority", "0"), ("--max-priority 0.0", "over 0")),
        (("--max-priority", "nan"), ("--max-priority nan", "over 0")),
        (("--client-runs", "0"), ("--client-runs",)),
        (("-p", "9000", "--dashboard", "9000"), ("9000 is the server's own port",)),
        (("-p", "9000", "--dashboard", "127.0.0.1:9000"), ("9000 is the server's own port",)),
    ],
)
def test_an_option_that_cannot_be_is_told(option: tuple[str, ...], words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(main, ["-p", "0", *option])
    assert done.exit_code == 2
    for word in words:
        assert word in done.output, done.output


@pytest.mark.parametrize("device", ["foo", "cuda:x", "cuda:", ""])
def test_a_device_that_is_none_is_told(device: str) -> None:
    done = CliRunner().invoke(worker.main, ["-p", "9000", "--device", device])
    assert done.exit_code == 2 and f"expected cpu, cuda or cuda:N, got {device!r}" in done.output


@pytest.mark.parametrize("fault", [OSError(101, "Network is unreachable"), socket.gaierror(-2, "Name or service not known")])
def test_a_worker_that_no_network_leads_to_its_server_says_so_after_a_while(fault: OSError, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def nowhere(*_: object) -> None:
        tried.append(fault)
        raise fault

    monkeypatch.setattr(socket.socket, "connect", nowhere)
    for name in ("DISPATCHER_TIMEOUT_S", "BEAT_S", "ANSWER_S"):
        monkeypatch.setattr(f"gt.runtime.worker.{name}", 0.1)
    with socket.socket() as held:  # nobody listens there
        held.bind(("127.0.0.2", 0))
        port = held.getsockname()[1]
        done = CliRunner().invoke(worker.main, ["--host", "127.0.0.2", "-p", str(port), "--insecure", "--backend", "numpy"])
    assert done.exit_code == ExitCode.SERVER_LOST and len(tried) > 1, done.output
    assert f"no network of this machine leads to 127.0.0.2: {fault.strerror}" in done.output, done.output


def test_a_number_of_workers_is_one() -> None:
    with pytest.raises(TypeError, match="gt.gpu_workers: expected a number of workers .an int., got str"):
        gt.gpu_workers("2")  # type: ignore[arg-type]

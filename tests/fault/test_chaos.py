"""The chaos command, briefly: two workers that meet in collectives, a message lost and one repeated, and both killed at once; a server that
is killed, once with a worker of it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integration.programs import ROOT, environment

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    "options", [["--backend", "torch", "--seed", "131"], ["--server", "--seed", "1913"]], ids=["workers", "server"]
)
def test_training_on_killed_processes_and_a_bad_network_ends_as_if_nothing_had_been(options: list[str]) -> None:
    command = [sys.executable, "-m", "tests.fault.chaos", "--faults", "3", "--workers", "2", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment(GT_COMPILE_AFTER="0"), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("'kill server and worker': 1" in done.stdout) is ("--server" in options)
    assert "3 faults" in done.stdout and "equal to the last bit" in done.stdout

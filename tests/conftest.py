"""What every test runs under: thread counts, hypothesis settings, the golden-file switch and the leak check.

Next: ``pyproject.toml`` (timeouts and warnings).
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before anything imports NumPy or torch; child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("GT_COMPILE_AFTER", "0")  # compiling what is hot takes longer than any test here: those of it say so
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")  # else each cold cache compiles four programs to ask for vector instructions

import hypothesis
import hypothesis.core
import psutil
import pytest

import gt

# Tests start hundreds of processes: without bytecode each of them compiles all of gt, which takes twice what it then does.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts this in the background has it ignore Ctrl-C, and so would every script that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "gt",
    deadline=None,
    print_blob=True,
    derandomize=False,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("gt"))  # see tests/property/budget.py
hypothesis.settings.load_profile("gt")

ROOT = Path(__file__).resolve().parent.parent
LEAK_WAIT_S = 30.0
SPAWNING = {"integration", "fault"}  # folders whose tests start processes: checked one by one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the passes give now")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and os.environ.get("CI"):
        raise pytest.UsageError("--update-golden is refused in CI: golden files change only with a person looking")
    if config.getoption("--hypothesis-seed") is None:
        given = getattr(config, "workerinput", {})  # from the process that hands tests out, if this is not it
        hypothesis.core.global_force_seed = given.get("hypothesis_seed", random.SystemRandom().getrandbits(32))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["hypothesis_seed"] = hypothesis.core.global_force_seed


def pytest_collection_finish() -> None:
    """What is imported and collected stays: millions of objects that no collection of garbage need walk."""
    gc.freeze()


def pytest_report_header() -> str:
    return f"hypothesis seed: {hypothesis.core.global_force_seed} (repeat with --hypothesis-seed=...)"


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Say whether golden files are to be rewritten rather than compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def clean() -> Iterator[None]:
    """No signal is configured before the test, nor after it."""
    gt.get_config().clear()
    yield
    gt.get_config().clear()


@pytest.fixture
def alone(clean: None) -> None:
    """Besides, no session is left from a test before: what is pinned then is the only one."""
    gt.disconnect()


@pytest.fixture
def settled() -> None:
    """Nothing that a test before has recorded is pending: with it, what the test records could be handed over in the middle."""
    gt.ones(1).sum().item()


def _held() -> set[str]:
    """Name what a test may leave behind: child processes, gt's threads, listening sockets."""
    me = psutil.Process()
    held = set()
    for child in me.children(recursive=True):
        try:
            if child.status() != psutil.STATUS_ZOMBIE and not _python_helper(child):
                held.add(f"process {child.pid}: {' '.join(child.cmdline())[:120]}")
        except psutil.Error:
            continue
    held |= {f"thread {t.name}" for t in threading.enumerate() if t.name.startswith("gt-")}
    held |= {f"socket {c.laddr}" for c in me.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return held


def _python_helper(child: psutil.Process) -> bool:
    """Tell the interpreter's and Inductor's own long-lived helpers, which end with this process."""
    line = " ".join(child.cmdline())
    return "resource_tracker" in line or "torch/_inductor" in line or "compile_worker" in line


def _left(before: set[str]) -> set[str]:
    """Give what is held beyond ``before``, once it has had time to go."""
    until = time.monotonic() + LEAK_WAIT_S
    while (left := _held() - before) and time.monotonic() < until:
        time.sleep(0.05)
    return left


def _close_default_session() -> None:
    session = sys.modules.get("gt.session")
    if session is not None:
        session.disconnect()


@pytest.fixture(autouse=True, scope="module")
def _session_ends_with_its_module() -> Iterator[None]:
    """What a module's tests are run by is not what the next module's are, nor in the way of one that it pins."""
    yield
    _close_default_session()


@pytest.fixture(autouse=True)
def _leaves_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a process-starting test that leaves a process, a gt thread or a listening socket behind."""
    folder = request.path.relative_to(ROOT / "tests").parts[0] if request.path.is_relative_to(ROOT / "tests") else ""
    if folder not in SPAWNING:
        yield
        return
    _close_default_session()
    before = _held()
    yield
    _close_default_session()
    left = _left(before)
    assert not left, f"left behind: {sorted(left)}"


@pytest.fixture(autouse=True, scope="session")
def _session_leaves_nothing() -> Iterator[None]:
    before = _held()
    yield
    _close_default_session()
    left = _left(before)
    assert not left, f"the test session left behind: {sorted(left)}"

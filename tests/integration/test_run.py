"""``gt run``: a script on workers of its own, its exit code, and nothing left however it or the command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.integration.programs import ROOT, command, descendants, environment, gone, lived, wait_for

pytestmark = pytest.mark.timeout(120)

SCRIPT = """
import os, signal, sys, time
import gt
a = gt.ones(64, 64)
print((a @ a).sum().item(), flush=True)
how = sys.argv[1]
if how == "SIGKILL":
    os.kill(os.getpid(), signal.SIGKILL)
def save(*_):
    print((a + 1).sum().item(), flush=True)
    sys.exit(6)
if how == "save":
    signal.signal(signal.SIGTERM, save)
    print("saving", flush=True)
if how == "refuse":
    signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
    print("refusing", flush=True)
while how in ("wait", "refuse", "save"):
    time.sleep(0.01)
while how == "work":
    a = (a @ a) / 64
    a.sum().item()
"""


@contextmanager
def gt_run(folder: Path, *words: object, code: str = SCRIPT) -> Iterator[subprocess.Popen[str]]:
    """Run the command on a script ``script.py``, in a session of its own."""
    (folder / "script.py").write_text(textwrap.dedent(code))
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    with command(folder, environment(TMPDIR=str(temporary)), "run", *words) as process:
        yield process


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def family(process: subprocess.Popen[str]) -> dict[str, list[psutil.Process]]:
    """Give the descendants by what they are: the script, dispatcher, worker, planner."""
    found: dict[str, list[psutil.Process]] = {}
    for child in descendants(process):
        try:
            line = " ".join(child.cmdline())
        except psutil.NoSuchProcess:  # it has just ended
            continue
        name = next((n for n in ("script", "dispatcher", "worker", "planner") if n in line), line)
        found.setdefault(name, []).append(child)
    return found


def nothing_left(children: dict[str, list[psutil.Process]], folder: Path) -> bool:
    return all(map(gone, children.values())) and not list((folder / "tmp").iterdir())


@pytest.mark.parametrize(("how", "code"), [("SIGKILL", 137), ("wait", 130)])
def test_the_exit_code_is_the_scripts_and_nothing_is_left(how: str, code: int, tmp_path: Path) -> None:
    with gt_run(tmp_path, "script.py", "-n", 1, how) as process:
        assert line_of(process) == "262144.0"
        children = {}
        if how == "wait":
            children = family(process)
            assert {name: len(group) for name, group in children.items()} == {
                "script": 1,
                "dispatcher": 1,
                "worker": 1,
                "planner": 1,
            }
            os.killpg(process.pid, signal.SIGINT)  # as a terminal sends Ctrl-C to all that run in front
        with lived() as seconds:
            _, err = process.communicate(timeout=60)
            assert seconds() < 5
        assert process.returncode == code, err
        assert err.count("Traceback") == err.count("KeyboardInterrupt") == (how == "wait"), err  # the script's own, once
        assert wait_for(lambda: nothing_left(children, tmp_path)), children


def test_when_the_command_itself_is_killed_all_goes_with_it(tmp_path: Path) -> None:
    with gt_run(tmp_path, "-n", 1, "script.py", "wait") as process:
        line_of(process)
        children = family(process)
        process.kill()
        assert wait_for(lambda: nothing_left(children, tmp_path)), children


def test_what_all_processes_get_is_for_the_script_alone(tmp_path: Path) -> None:
    """Slurm sends SIGTERM to every process of a job when its time is nearly over."""
    with gt_run(tmp_path, "-n", 1, "script.py", "save") as process:
        assert [line_of(process), line_of(process)] == ["262144.0", "saving"]
        children = family(process)
        for child in [*children["dispatcher"], *children["worker"], psutil.Process(process.pid)]:
            child.send_signal(signal.SIGTERM)
        assert line_of(process) == "8192.0"
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (6, "")
        assert wait_for(lambda: nothing_left(children, tmp_path)), children


def test_asked_to_end_while_workers_start_it_does(tmp_path: Path) -> None:
    with gt_run(tmp_path, "-n", 2, "script.py", "wait") as process:
        assert wait_for(lambda: len(family(process).get("worker", [])) == 2)
        children = family(process)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (143, "")
        assert wait_for(lambda: nothing_left(children, tmp_path)), children


def test_a_second_ctrl_c_ends_a_script_that_refuses(tmp_path: Path) -> None:
    with gt_run(tmp_path, "-n", 1, "script.py", "refuse") as process:
        assert [line_of(process), line_of(process)] == ["262144.0", "refusing"]
        process.send_signal(signal.SIGINT)
        assert line_of(process) == "no"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 137


@pytest.mark.parametrize(
    ("victim", "code", "said"),
    [("worker", 4, "gt run: a worker (pid {pid}) ended by SIGKILL"), ("dispatcher", 3, "DispatcherLost")],
)
def test_what_is_lost_under_a_script_is_its_exit_code(victim: str, code: int, said: str, tmp_path: Path) -> None:
    with gt_run(tmp_path, "-n", 1, "script.py", "work") as process:
        line_of(process)
        children = family(process)
        children[victim][0].kill()
        _, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        assert said.format(pid=children[victim][0].pid) in err and err.count("Traceback") == 1, err
        assert wait_for(lambda: nothing_left(children, tmp_path))


RECOVERS = """
import os, sys, time
import gt
gt.recover()
x = gt.ones(64, 64)
y = x @ x
print(y.sum().item(), flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
until = time.monotonic() + 60
while not gt.recoveries() and time.monotonic() < until:  # the loss is noticed while it works
    y = (y @ x) / 64
    y.sum().item()
print(y.sum().item(), gt.num_workers(), [r.workers for r in gt.recoveries()], flush=True)
"""


def test_a_worker_that_dies_under_a_script_that_recovers_is_replaced(tmp_path: Path) -> None:
    with gt_run(tmp_path, "script.py", "-n", 2, code=RECOVERS) as process:
        assert line_of(process) == "262144.0"
        family(process)["worker"][0].kill()
        (tmp_path / "go").touch()
        out, err = process.communicate(timeout=90)
        assert out == "262144.0 2 [2]\n" and process.returncode == 0, (out, err)
        assert "gt run: a worker (pid" in err and "SIGKILL" in err


def test_a_module_its_arguments_and_workers_that_it_asks_for_itself(tmp_path: Path) -> None:
    code = """
        import sys
        import gt
        gt.gpu_workers(2)
        print(sys.argv[1:], gt.num_workers(), __name__)
        gt.disconnect()
        try:
            gt.gpu_workers(3)
        except ValueError as e:
            print(e)
        sys.exit(7)
    """
    with gt_run(tmp_path, "-m", "script", "-n", 2, "--lr", "0.1", code=code) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    first, second = out.splitlines()
    assert first == "['--lr', '0.1'] 2 __main__", err
    assert second == "gt.gpu_workers(3): this script was started with 2 workers: leave the call out, or start 3"


def test_workers_that_cannot_start_are_told(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    broken = "import sys\nif 'gt.runtime.worker' in sys.orig_argv:\n    raise SystemExit('the cause')\n"
    (site / "sitecustomize.py").write_text(broken)
    (tmp_path / "script.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "gt", "run", "-n", "1", "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        env=environment(PYTHONPATH=f"{ROOT}:{site}"),
    )  # fmt: skip
    assert done.returncode == 5 and "the worker0 process ended with code 1 at start" in done.stderr and "the cause" in done.stderr


@pytest.mark.parametrize("words", [["nothing.py"], ["-n", "0", "x.py"], []], ids=["no file", "no workers", "no script"])
def test_a_wrong_line_is_code_2(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gt", "run", *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, env=environment()
    )
    assert done.returncode == 2 and "Usage: " in done.stderr

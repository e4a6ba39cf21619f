"""Starting and stopping: whatever way a program ends, no process, socket or file of it stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from gt.server import main as server_main
from tests.integration.programs import (
    ROOT,
    Server,
    command,
    descendants,
    environment,
    gone,
    held_port,
    lived,
    log_lines,
    output,
    run,
    server,
    start,
    wait_for,
)
from tests.integration.start_together import start_pairs

pytestmark = pytest.mark.timeout(120)


WORKS = """
import sys
import gt
if int(sys.argv[1]):
    gt.gpu_workers(int(sys.argv[1]))
a = gt.randn(200, 200)
a.tolist()
if sys.argv[2] in ("flush", "wait"):
    (a @ a).sum().item()  # with a group of workers, which imports torch
print("ready", flush=True)
if sys.argv[2] == "raise":
    (a + a).tolist()
    raise ValueError("the user's own")
if sys.argv[2] == "exit":
    a = a + a  # pending when the program ends
    sys.exit(7)
while sys.argv[2] == "flush":
    for _ in range(8):
        a = (a @ a) / 20
        a.sum()
    a.sum().item()
if sys.argv[2] == "wait":
    sys.stdin.readline()
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("how", "stop", "code"),
    [
        ("return", None, 0),
        ("raise", None, 1),
        ("exit", None, 7),
        ("flush", signal.SIGINT, -signal.SIGINT),
        ("flush", signal.SIGTERM, -signal.SIGTERM),
        ("wait", signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["return", "raise", "exit", "SIGINT", "SIGTERM", "SIGKILL"],
)
def test_nothing_stays_however_a_program_ends(
    workers: int, how: str, stop: signal.Signals | None, code: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.mktemp("log") / "log"
    with start(WORKS, tmp_path, workers, how, TMPDIR=str(tmp_path), GT_INSTRUCTION_LOG=str(log)) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        children = []
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
            children = descendants(process)
        if stop is not None:
            assert len(children) == (4 if workers else 0)  # dispatcher, planner, two workers
            assert how == "wait" or wait_for(lambda: sum(words[2] == "run" for words in log_lines(log)) > 5)
            process.send_signal(stop)
        with lived() as seconds:
            _, err = process.communicate(timeout=60)
            assert seconds() < 8
    assert process.returncode == code, err
    assert err.count("Traceback") == (1 if how == "raise" or stop is signal.SIGINT else 0), err
    if stop is signal.SIGINT:
        assert err.rstrip().endswith("KeyboardInterrupt")
    assert wait_for(lambda: gone(children)), children
    assert wait_for(lambda: sorted(p.name for p in tmp_path.iterdir()) == ["script.py"]), list(tmp_path.iterdir())


@pytest.mark.parametrize(("stop", "code"), [(signal.SIGINT, -signal.SIGINT), (None, 0)], ids=["SIGINT", "return"])
def test_a_run_that_would_take_minutes_is_broken_off_as_the_program_ends(stop: signal.Signals | None, code: int, tmp_path: Path) -> None:
    """Python aborts if it ends while a thread of it is in torch."""
    script = """
        import sys
        import gt
        w = gt.zeros(2, requires_grad=True)
        optimizer = gt.optim.SGD([w], lr=0.1)
        x = gt.eye(1000)
        for _ in range(3000):
            x = x @ x
        w.sum().backward()
        optimizer.step()
        optimizer.zero_grad()  # sends all of it as one run
        print("ready", flush=True)
        x.sum().item() if int(sys.argv[1]) else sys.stdin.readline()
    """
    log = tmp_path / "log"
    with start(script, tmp_path, int(stop is not None), GT_BACKEND="torch", GT_INSTRUCTION_LOG=str(log)) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert wait_for(lambda: any(words[2] == "load" for words in log_lines(log)))
        if stop is not None:
            process.send_signal(stop)
        with lived() as seconds:
            _, err = process.communicate("\n" if stop is None else None, timeout=100)
            assert seconds() < 10
    assert process.returncode == code and "terminate" not in err, err


def test_an_op_that_ends_while_python_does_leaves_the_exit_code_as_it_is(tmp_path: Path) -> None:
    """Of an op that nobody waits for any longer: Python unwinds a thread that comes back from one, at which C++ aborts."""
    script = """
        import sys
        import time
        import gt
        from gt.runtime import embedded
        class Slow:
            def __del__(self, sleep=time.sleep):
                sleep(5)
        embedded.LEAVE_S, embedded.OP_S = 0.1, 0.0
        slow = Slow()  # goes as Python ends, after what is called at exit
        w = gt.zeros(2, requires_grad=True)
        optimizer = gt.optim.SGD([w], lr=0.1)
        x = gt.ones(3000, 3000)
        x.sum().item()
        y = x @ x
        w.sum().backward()
        optimizer.step()
        optimizer.zero_grad()  # sends all of it
        print("ready", flush=True)
        sys.stdin.readline()
        sys.exit(5)
    """
    log = tmp_path / "log"
    with start(script, tmp_path, GT_BACKEND="torch", GT_INSTRUCTION_LOG=str(log), OMP_NUM_THREADS="1") as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert wait_for(lambda: sum(words[3:5] == ["worker0", "Execute"] for words in log_lines(log)) == 2)
        _, err = process.communicate("\n", timeout=60)
    assert process.returncode == 5 and "terminate" not in err, err
    assert [words[2] for words in log_lines(log) if words[3] == "worker0"][-1] != "run"  # Python ended first


@pytest.mark.parametrize("started", [1, 4], ids=["the dispatcher has started", "all have started"])
def test_ctrl_c_while_workers_start(started: int, tmp_path: Path) -> None:
    code = "import gt\nprint('ready', flush=True)\ngt.gpu_workers(2)\nimport time\ntime.sleep(60)"
    with start(code, tmp_path, TMPDIR=str(tmp_path)) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert wait_for(lambda: len(descendants(process)) >= started)
        children = descendants(process)
        process.send_signal(signal.SIGINT)
        with lived() as seconds:
            _, err = process.communicate(timeout=60)
            assert seconds() < 5
    assert process.returncode == -signal.SIGINT and err.rstrip().endswith("KeyboardInterrupt"), err
    assert wait_for(lambda: gone(children))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["script.py"]


def test_after_ctrl_c_the_session_goes_on(tmp_path: Path) -> None:
    """In a notebook Ctrl-C ends a cell, not the session: values made before and after are right."""
    code = """
        import sys, _thread, threading
        import gt
        if int(sys.argv[1]):
            gt.gpu_workers(int(sys.argv[1]))
        x = gt.arange(1000.0)
        total, turns, interrupted = x.clone(), 1, 0
        while interrupted < 25:
            timer = threading.Timer(0.003 * (1 + interrupted % 7), _thread.interrupt_main)
            try:
                timer.start()
                while True:
                    y = (x * 2 + turns).sum() - x.sum()
                    assert y.item() == x.sum().item() + 1000 * turns, turns
            except KeyboardInterrupt:
                interrupted += 1
            timer.join()
            turns += 1
        assert (x * 3).sum().item() == 3 * 499500 and total.sum().item() == 499500
        print("interrupted", interrupted)
    """
    for workers in (0, 1):
        assert output(code, tmp_path, workers) == "interrupted 25\n"


SIGNALLED = """
    import os, signal, sys, threading, time
    import gt
    if int(sys.argv[1]):
        gt.gpu_workers(int(sys.argv[1]))

    class Told(BaseException):
        pass

    def late(number, frame):
        raise TimeoutError("a limit of the script's")

    def told(number, frame):
        raise Told(number)

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGUSR1, told)
    RAISED = (TimeoutError, Told, KeyboardInterrupt)
    SENT = ([signal.SIGALRM], [signal.SIGUSR1], [signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGALRM, signal.SIGUSR1])

    @gt.jit
    def step(w, x):
        return w + x * 2

    def send(ready, signals, after_s):
        ready.wait()
        time.sleep(after_s)
        for number in signals:
            os.kill(os.getpid(), number)

    x, raised = gt.arange(1000.0), {}
    for turn in range(30):
        w, y, count, seen = gt.zeros(1000), (x * 2).sum() - x.sum(), 0, []
        ready = threading.Event()
        thread = threading.Thread(target=send, args=(ready, SENT[turn % 5], 0.002 * (1 + turn % 9)))
        thread.start()
        try:
            try:
                ready.set()
                while True:
                    count += 1
                    y = (x * 2 + count).sum() - x.sum()
                    w = step(w, x)
                    for _ in range(12):  # more than may be in flight
                        w = step(w, x)
                    assert y.item() == 499500 + 1000 * count, count
            except RAISED as error:
                seen.append(error)
                thread.join()
            thread.join()
        except RAISED as error:  # the second of two
            seen.append(error)
        thread.join()
        for error in seen:
            raised[type(error).__name__] = raised.get(type(error).__name__, 0) + 1
        steps = w[5].item() / 10
        assert 13 * count - 13 <= steps <= 13 * count and steps == int(steps) and w[7].item() == 14 * steps, (steps, count)
        assert y.item() in (499500 + 1000 * count, 499500 + 1000 * count - 1000), (y.item(), count)
    assert (x * 3).sum().item() == 3 * 499500
    print(sorted(raised))
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_what_handlers_of_signals_raise_reaches_the_script_and_nothing_else(workers: int, tmp_path: Path) -> None:
    """A time limit, a signal of the user's, Ctrl-C twice: in reads, in flushes that wait, in replays, and while the session starts."""
    assert output(SIGNALLED, tmp_path, workers) == "['KeyboardInterrupt', 'TimeoutError', 'Told']\n"


BROKEN = """
import os, sys
if os.environ.get("BREAK") in sys.orig_argv[2:4]:
    raise SystemExit("this machine cannot start it: the cause")
"""


@pytest.mark.parametrize("process", ["gt.runtime.worker", "gt.runtime.dispatcher"])
def test_a_process_that_dies_at_start_is_told_with_its_stderr(process: str, tmp_path: Path) -> None:
    """sitecustomize runs first in every process: an import that fails there is a worker that cannot start."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BROKEN)
    code = """
        import os, time
        import gt
        os.environ["BREAK"] = os.environ["VICTIM"]
        start = time.monotonic()
        try:
            gt.gpu_workers(2)
        finally:
            print(f"{time.monotonic() - start:.2f}", flush=True)
    """
    variables = {"PYTHONPATH": f"{ROOT}:{site}", "VICTIM": process, "TMPDIR": str(tmp_path)}
    done = run(code, tmp_path, **variables)
    name = "worker[01]" if process == "gt.runtime.worker" else "dispatcher"  # of the workers, whichever ends first
    assert done.code == 1
    assert re.search(rf"LaunchError: the {name} process ended with code 1 at start\. Its stderr ends:", done.err), done.err
    assert "this machine cannot start it: the cause" in done.err
    assert float(done.out) < 8
    assert sorted(p.name for p in tmp_path.iterdir()) == ["script.py", "site"]


def test_a_server_says_of_its_own_workers_that_they_die_and_why(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif 'gt.runtime.worker' in sys.orig_argv:\n    os.write(2, b'the cause\\n')\n    os._exit(3)\n"
    )
    variables = environment(PYTHONPATH=f"{ROOT}:{tmp_path}")
    with command(tmp_path, variables, "server", "-p", 0, "--spawn_gpu_workers", 1) as process:
        assert process.stderr is not None
        told = [process.stderr.readline() for _ in range(6)]
    ended = r"gt server: a worker \(pid \d+\) ended by code 3\. Its stderr ends:\n"
    once = ended + r"the cause\nAnother is started in its place\.\n"
    assert re.fullmatch(once + once, "".join(told)), told  # the second's, too, has nothing of the first's


def test_files_in_the_users_folder_are_none_of_gts_modules(tmp_path: Path) -> None:
    """Python puts the folder where it was started before its own modules, unless told not to."""
    for name in ("click", "msgspec", "numpy", "yaml"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not meant for gt')")
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "script.py").write_text("import gt\ngt.gpu_workers(1)\nprint((gt.ones(2) + 1).tolist())\n")
    done = subprocess.run(
        [sys.executable, "scripts/script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.returncode) == ("[2.0, 2.0]\n", 0), done.stderr


@pytest.mark.parametrize("words", [("server", "-p", "0"), ("worker", "-p", "1"), ("run", "script.py", "-n", "1"), ("plan", "script.py")])
@pytest.mark.parametrize(("variable", "value"), [("GT_DEBUG", "loud"), ("GT_COMPILE_AFTER", "often"), ("GT_GROUP_TIMEOUT", "soon")])
def test_a_command_says_of_a_wrong_variable_one_line(words: tuple[str, ...], variable: str, value: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('begun')\n")
    with command(tmp_path, environment(**{variable: value}), *words) as process:
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"gt {words[0]}: {variable}='{value}': expected "), err


@pytest.mark.parametrize(("words", "name"), [(("--log-file", "missing/log"), "--log-file"), ((), "GT_INSTRUCTION_LOG")])
def test_a_server_whose_log_cannot_be_written_says_so(words: tuple[str, ...], name: str, tmp_path: Path) -> None:
    variables = {} if words else {"GT_INSTRUCTION_LOG": "missing/log"}
    with command(tmp_path, environment(**variables), "server", "-p", 0, *words) as process:
        _, err = process.communicate(timeout=30)
    said = f"gt server: {name}: the file cannot be opened: No such file or directory: missing/log\n"
    assert (process.returncode, err) == (2, said)


@pytest.mark.parametrize("words", [("run", "script.py", "-n", "1"), ("launch", "script.py")])
@pytest.mark.parametrize(("log", "why"), [
    ("missing/log", "the file cannot be opened: No such file or directory"), ("/dev/full", "the file cannot be written: No space left on device"),
])  # fmt: skip
def test_a_launcher_whose_log_cannot_be_written_says_so(words: tuple[str, ...], log: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('begun')\n")
    with command(tmp_path, environment(GT_INSTRUCTION_LOG=log), *words) as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, ""), err
    assert err.endswith(f"Its stderr ends:\nGT_INSTRUCTION_LOG: {why}: {log}\n"), err


@pytest.mark.parametrize(("option", "value"), [("--client-memory", "4XB"), ("--max-priority", "-1")])
def test_a_limit_that_is_none_is_told_by_its_option(option: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gt.server.serve", lambda *_: None)
    done = CliRunner().invoke(server_main, ["-p", "0", option, value])
    assert done.exit_code == 2 and done.output.startswith(f"gt server: {option} {value}"), done.output


def test_after_a_failed_start_the_program_may_go_on(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BROKEN)
    code = """
        import os
        import gt
        os.environ["BREAK"] = "gt.runtime.worker"
        try:
            gt.gpu_workers(1)
        except gt.GtError as e:
            print("the cause" in str(e))
        os.environ["GT_GROUP_TIMEOUT"] = "soon"
        try:
            gt.gpu_workers(1)
        except ValueError as e:
            print(e)
        del os.environ["BREAK"], os.environ["GT_GROUP_TIMEOUT"]
        print((gt.ones(2) + 1).tolist())
    """
    wrong = "GT_GROUP_TIMEOUT='soon': expected a number over 0. Seconds a collective may wait for another worker."
    assert output(code, tmp_path, PYTHONPATH=f"{ROOT}:{site}") == f"True\n{wrong}\n[2.0, 2.0]\n"


@pytest.mark.parametrize("variable", ["GT_COMPILE", "GT_COMPILE_AFTER", "GT_WORKER_MEMORY", "GT_EPOCH_TIMEOUT", "GT_OPENTELEMETRY"])
def test_a_wrong_variable_is_told_before_anything_starts_whoever_reads_it(variable: str, tmp_path: Path) -> None:
    """Read by a worker alone, it would be what ails the worker, or the run, and not the script's own ValueError."""
    done = run("import gt\nprint(gt.ones(2).tolist())", tmp_path, **{variable: "perhaps"})
    assert (done.code, done.out) == (1, "") and f"\nValueError: {variable}='perhaps': expected " in done.err, done.err


def test_a_worker_command_without_a_server_says_so(tmp_path: Path) -> None:
    with held_port() as port, lived() as seconds:
        done = subprocess.run(
            [sys.executable, "-m", "gt.worker", "-p", str(port)], env=environment(), capture_output=True, text=True, timeout=60
        )
        assert seconds() < 30  # 10 s of waiting, and the start
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert f"gt worker: no gt server answers at tcp://127.0.0.1:{port}" in done.stderr


def test_an_address_of_another_machine_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gt.server", "-p", "9000", "--host", "192.0.2.1", "--insecure"],
        env=environment(), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 2 and "192.0.2.1 is not an address of this machine" in done.stderr, done.stderr


@pytest.mark.parametrize("words", [["gt.server"], ["gt", "server"]], ids=["module", "command"])
def test_a_port_in_use(words: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", *words, "-p", str(port)], env=environment(), capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 2
    owner = f" by {psutil.Process().name()}, pid {os.getpid()}"
    assert done.stderr == f"gt server: port {port} on 127.0.0.1 is in use{owner}: choose another with -p, or stop what uses it.\n"


@pytest.mark.parametrize(("lease", "waited"), [(0, ""), (1, ", and none has come in its place within 1 s")])
def test_a_worker_whose_server_is_killed_ends_after_its_lease_with_a_code_that_says_so(port: int, lease: int, waited: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gt.server", "-p", str(port)], env=environment(), stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    Server(process, port).await_port()
    worker = subprocess.Popen(
        [sys.executable, "-m", "gt.worker", "-p", str(port), "--lease", str(lease)],
        env=environment(),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "workers 1\n"
    killed = time.monotonic()
    process.kill()
    with lived() as seconds:
        process.communicate()
        _, err = worker.communicate(timeout=60)
        assert lease <= time.monotonic() - killed and seconds() < lease + 5
    assert (worker.returncode, err) == (3, f"gt worker: the gt server at tcp://127.0.0.1:{port} is lost{waited}\n")


@pytest.mark.parametrize("lease", [0, 60])
def test_who_hears_late_that_the_server_has_stopped_was_told_so_all_the_same(port: int, lease: int, tmp_path: Path) -> None:
    """The word to stop and the end of the connection are found together by a process that was not running meanwhile."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gt.server", "-p", str(port)], env=environment(), stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    Server(process, port).await_port()
    words = [sys.executable, "-m", "gt.worker", "-p", str(port), "--lease", str(lease)]
    worker = subprocess.Popen(words, env=environment(), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    code = (
        "import gt, sys\ngt.connect(sys.argv[1])\nprint(gt.ones(2).tolist(), flush=True)\nsys.stdin.readline()\ngt.ones(2).tolist()"
    )
    with start(code, tmp_path, f"localhost:{port}") as client:
        assert client.stdout is not None and client.stdout.readline() == "[1.0, 1.0]\n"
        for late in (worker, client):
            late.send_signal(signal.SIGSTOP)
        process.terminate()
        process.communicate(timeout=30)
        for late in (worker, client):
            late.send_signal(signal.SIGCONT)
        _, err = worker.communicate(timeout=30)
        assert (process.returncode, worker.returncode, err) == (0, 0, "")
        _, err = client.communicate("\n", timeout=30)
        assert client.returncode == 1 and "DispatcherLost" in err and "the server has stopped" in err, err


def test_ctrl_c_at_a_server_in_a_terminal_stops_it_quietly(port: int, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to the whole foreground group: the server, and the planner it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gt.server", "-p", str(port)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    Server(process, port).await_port()
    worker = subprocess.Popen(
        [sys.executable, "-m", "gt.worker", "-p", str(port)], env=environment(), stderr=subprocess.PIPE, text=True
    )
    code = (
        "import gt, sys\ngt.connect(sys.argv[1])\nprint(gt.ones(2).tolist(), flush=True)\nsys.stdin.readline()\ngt.ones(2).tolist()"
    )
    with start(code, tmp_path, f"localhost:{port}") as client:
        assert client.stdout is not None and client.stdout.readline() == "[1.0, 1.0]\n"
        children = descendants(process)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, "")
        _, err = worker.communicate(timeout=60)
        assert (worker.returncode, err) == (0, "")
        assert gone(children)
        _, err = client.communicate("\n", timeout=60)
        assert client.returncode == 1 and "DispatcherLost" in err and "the server has stopped" in err, err


def test_two_programs_that_start_workers_at_the_same_moment() -> None:
    assert start_pairs(2, "numpy") == []


def test_the_server_stops_its_workers(tmp_path: Path) -> None:
    with server(2) as there:
        assert output("import gt, sys\ngt.connect(sys.argv[1])\nprint(gt.ones(2).tolist())", tmp_path, there.address)
        processes = [*map(psutil.Process, (there.process.pid, *(w.pid for w in there.workers))), *descendants(there.process)]
    assert wait_for(lambda: gone(processes))

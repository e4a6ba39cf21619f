"""The codes that schedulers act on: one table, in the docs as it is in the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gt.runtime import errors
from gt.runtime.exit_codes import MEANINGS, ExitCode, code_of_error, code_of_process, name_of, table

ROOT = Path(__file__).resolve().parents[3]


def test_the_docs_table_is_the_codes_own() -> None:
    """To renew it: python -c "from gt.runtime.exit_codes import table; print(table())"."""
    assert table() in (ROOT / "docs" / "cluster.md").read_text()
    assert {code for code, *_ in MEANINGS} == set(ExitCode)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.WorkerLost, 4), (errors.DispatcherLost, 3), (errors.ConnectionFailed, 3), (errors.NoWorkers, 5), (errors.LaunchError, 5),
        (errors.RunError, None), (ValueError, None), (KeyboardInterrupt, None),
    ],
)  # fmt: skip
def test_errors_have_codes(error: type[BaseException], code: int | None) -> None:
    assert code_of_error(error) == code


def test_what_ended_a_process() -> None:
    assert [code_of_process(c) for c in (0, 7, -9, -2)] == [0, 7, 137, 130]
    assert [name_of(c) for c in (7, -9, -200)] == ["code 7", "SIGKILL", "signal 200"]


UNCAUGHT = """
import atexit, sys
from gt.runtime import errors
from gt.runtime.exit_codes import let_errors_be_codes
sys.excepthook = lambda *a: (print("told first", file=sys.stderr), sys.__excepthook__(*a))
let_errors_be_codes()
let_errors_be_codes()
atexit.register(lambda: print("ended in order"))
raise getattr(errors, sys.argv[1])("the cause")
"""


@pytest.mark.parametrize(("name", "code"), [("WorkerLost", 4), ("RunError", 1)])
def test_an_uncaught_error_is_told_and_becomes_a_code(name: str, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", UNCAUGHT, name], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == code and done.stdout == "ended in order\n"
    assert done.stderr.startswith("told first\nTraceback") and done.stderr.count("the cause") == 1

"""What commands say where a file cannot be written: one line that names it."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gt.commands.files import said_of
from tests.integration.programs import environment

LOG = """# gt instruction log: elapsed_s sequence event who operation nbytes details; start=1000.0
1.000000 3 run worker0 flush0 64 epoch=2 plan=1 seconds=0.900000 tier=eager fault=-
"""


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["visualize", "ops.log", "-o", "out.html"], "out.html"),
        (["visualize", "ops.log", "-o", "out.json"], "out.json"),
        (["compile", "script.py", "-o", "out"], "out"),
        (["keygen", "-o", "keys"], "keys"),
    ],
)
def test_a_disk_without_room_is_told_in_one_line_with_the_file(words: list[str], named: str, tmp_path: Path) -> None:
    """The system's error names no file once one is open: here none may be longer than nothing."""
    (tmp_path / "ops.log").write_text(LOG)
    (tmp_path / "script.py").write_text("import gt\ngt.ones(2).sum().item()\n")
    done = subprocess.run(
        [sys.executable, "-m", "gt", *words], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"Error: {named} cannot be written: File too large\n")
    assert not (tmp_path / named).is_file()  # no half of it


def test_the_file_that_the_error_names_comes_first() -> None:
    error = FileNotFoundError(2, "No such file or directory", "/missing/a")
    assert said_of(error, "read", Path("b")) == "/missing/a cannot be read: there is no folder /missing"
    assert said_of(OSError(28, "No space left on device"), file=Path("b")) == "b cannot be written: No space left on device"

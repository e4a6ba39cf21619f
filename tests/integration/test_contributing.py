"""The contributors' pages are followed word for word, on a copy of gt."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.integration.programs import ROOT, environment

PAGES = sorted((ROOT / "docs" / "contributing").glob("*.md"))
STEP = re.compile(r"^ *<!-- (append to|in|run) ?(\S*?)(?: for \"(.*?)\")? -->\n *```\w+\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def test_there_are_pages() -> None:
    assert [p.stem for p in PAGES] == ["add_a_pass", "add_an_op"]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_the_page_leads_where_it_says(page: Path, tmp_path: Path) -> None:
    for part in ("gt", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    kinds = []
    for kind, name, there, block in STEP.findall(page.read_text()):
        text, path = textwrap.dedent(block), tmp_path / name
        kinds.append(kind)
        if kind == "append to":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text((path.read_text() + "\n\n" if path.exists() else "") + text)
        elif kind == "in":
            there = there.replace("\\n", "\n")
            assert path.read_text().count(there) == 1, (name, there)
            path.write_text(path.read_text().replace(there, textwrap.indent(text, "    ") if there.startswith(" ") else text.rstrip("\n")))
        else:
            done = subprocess.run(
                [sys.executable, "-c", text], cwd=tmp_path, env=environment(PYTHONPATH=str(tmp_path)), capture_output=True, text=True,
                timeout=100,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
    assert kinds.count("run") == 1 and kinds[-1] == "run" and len(kinds) >= 4
    told = re.findall(r"`pytest (tests/[^`]*)`", page.read_text())
    assert told
    for words in (["ruff", "check", "gt"], *(["pytest", "-q", "-n", "0", *line.split()] for line in told)):
        done = subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path, env=environment(PYTHONPATH=str(tmp_path)), capture_output=True, text=True
        )  # fmt: skip
        assert done.returncode == 0, done.stdout

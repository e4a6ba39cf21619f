"""The documentation is true: every Python snippet of README.md and docs/ runs, and CI runs README's test command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gt.runtime import env
from tests.integration.programs import Forks, forks, held_port

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]


def snippets() -> list[tuple[str, str]]:
    """Give each snippet with where it is; of a page that is one script all of them as one."""
    out = []
    for page in PAGES:
        text = page.read_text()
        if text.startswith("<!-- one script"):
            chosen = "import os\nos.environ['GT_BACKEND'] = 'numpy'\n" if "GT_BACKEND=numpy -->" in text else ""
            out.append(
                (
                    str(page.relative_to(ROOT)),
                    chosen + "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)),
                )
            )
            continue
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            out.append((f"{page.relative_to(ROOT)}:{line}", match.group(1)))
    return out


SNIPPETS = snippets()


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    with forks() as made:
        yield made


def test_readme_has_snippets() -> None:
    assert sum(name.startswith("README.md") for name, _ in SNIPPETS) >= 5


@pytest.mark.parametrize(("name", "code"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_snippet_runs(name: str, code: str, forked: Forks, tmp_path: Path) -> None:
    strict = "import warnings\nwarnings.simplefilter('error', DeprecationWarning)\n"
    variables = {k: v for k, v in os.environ.items() if k != "GT_CONFIG"}
    done = forked.run(strict + code, "-c", folder=tmp_path, variables={**variables, "PYTHONPATH": str(ROOT)})
    assert done.code == 0, f"{name}\n{done.out}\n{done.err}"


def test_local_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def commands() -> list[str]:
    """Give README's commands but those that install, which CI runs."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if "pip install" not in line]


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found


@pytest.mark.timeout(240)
def test_every_command_of_the_readme_works(port: int, tmp_path: Path) -> None:
    """In order, as a person types them; a server and its worker stay while the others run."""
    for name, words in {"gt": "-m gt", "python": ""}.items():
        (tmp_path / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (tmp_path / name).chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "GT_BACKEND": "numpy"}
    ran, staying = [], []
    try:
        for line in commands():
            line = line.replace("12345", str(port))
            if "gt.server" in line or "gt.worker" in line:
                staying.append(subprocess.Popen(["bash", "-c", f"exec {line}"], cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True))
                if "gt.server" in line:
                    assert staying[-1].stdout is not None and str(port) in staying[-1].stdout.readline()
                continue
            done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=variables, capture_output=True, text=True, timeout=100)
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
            ran.append(line.split()[1])
    finally:
        for process in reversed(staying):
            process.terminate()
            process.communicate(timeout=60)
    assert ran == ["run", "launch", "doctor", "status", "python", "compile"] and len(staying) == 2


def test_ci_reads_its_test_command_from_the_readme() -> None:
    command = re.search(r"<!-- test command -->\n```sh\n(.*?)\n```", (ROOT / "README.md").read_text())
    assert command is not None
    assert command[1].endswith("&& .venv/bin/pytest")
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


def test_every_variable_of_the_table_is_read_somewhere() -> None:
    sources = [p.read_text() for p in (ROOT / "gt").rglob("*.py") if p.name != "env.py"]
    names = {name for name, value in vars(env).items() if isinstance(value, env.Variable)}
    assert len(names) == len(env.VARIABLES)
    assert {name for name in names if not any(re.search(rf"\b{name}\.get\(\)", source) for source in sources)} == set()

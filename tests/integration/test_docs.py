"""The pages of docs/reference are what the code says, and the site's pages are all found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import error_notes, generate
from gt.ir.advice import ADVICE
from tests.integration.test_readme import SNIPPETS

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_the_codes_own() -> None:
    """To renew it: python -m docs.generate. In a process of its own, as what other tests have imported would be in it."""
    done = subprocess.run([sys.executable, "-m", "docs.generate", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_exception_class_has_an_anchor_and_says_what_to_do() -> None:
    kinds = generate.exceptions()
    assert {k.__name__ for k in kinds} == set(error_notes.NAMES) and not set(error_notes.DO) & set(ADVICE)
    assert set(error_notes.DO) | set(ADVICE) == set(error_notes.NAMES) and len({k.__name__ for k in kinds}) == len(kinds) > 40
    text = (generate.FOLDER / "errors.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    assert list(sections) == [k.__name__ for k in kinds]
    for kind in kinds:
        assert kind.__doc__ and "- Its text names" in sections[kind.__name__] and "- What to do: " in sections[kind.__name__]


def test_the_notebook_is_the_first_hour_which_is_run_as_a_script() -> None:
    cells = json.loads((ROOT / "examples" / "first_hour.ipynb").read_text())["cells"]
    code = "\n".join("".join(c["source"]) + "\n" for c in cells if c["cell_type"] == "code")
    assert dict(SNIPPETS)["docs/first_hour.md"] == code and len(cells) > 10


def test_every_page_is_on_the_site() -> None:
    listed = set(re.findall(r"^[\w/]+$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE))
    there = {p.relative_to(ROOT / "docs").with_suffix("").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    assert listed == there - {"index"}


def anchors(page: Path) -> set[str]:
    """Give the anchors that GitHub and MyST make of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def test_links_lead_to_headings_that_are_there() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    links = [(p, *m) for p in pages for m in re.findall(r"\]\(([\w./]*\.md|)#([\w-]+)\)", p.read_text())]
    assert len(links) >= 5
    for page, target, anchor in links:
        assert anchor in anchors((page.parent / target).resolve() if target else page), f"{page.name}: {target}#{anchor}"


@pytest.mark.parametrize("command", ["run", "launch", "status", "doctor", "server", "worker", "compile", "plan", "keygen", "manifest"])
def test_every_command_is_in_the_reference(command: str) -> None:
    assert f"\n## gt {command}\n" in (generate.FOLDER / "commands.md").read_text()


def test_no_table_of_the_site_hides_its_last_column() -> None:
    """At a width of 1280 the operations' table was wider than its page: names did not break."""
    conf = (ROOT / "docs" / "conf.py").read_text()
    assert 'html_css_files = ["tables.css"]' in conf and 'html_static_path = ["static"]' in conf
    assert re.search(r"td code\.literal \{[^}]*overflow-wrap: anywhere;", (ROOT / "docs" / "static" / "tables.css").read_text())

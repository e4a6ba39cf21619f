"""The pages of docs/reference are what the code says, and the site's pages are all found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import error_notes, generate

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_the_codes_own() -> None:
    """To renew it: python -m docs.generate."""
    assert generate.stale() == []


def test_every_exception_class_has_an_anchor_and_says_what_to_do() -> None:
    kinds = generate.exceptions()
    assert {k.__name__ for k in kinds} == set(error_notes.NOTES) and len({k.__name__ for k in kinds}) == len(kinds) > 40
    text = (generate.FOLDER / "errors.md").read_text()
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    assert list(sections) == [k.__name__ for k in kinds]
    for kind in kinds:
        assert kind.__doc__ and "- Its text names" in sections[kind.__name__] and "- What to do: " in sections[kind.__name__]


@pytest.mark.parametrize("command", ["run", "launch", "status", "doctor", "server", "worker", "compile", "plan", "keygen", "manifest"])
def test_every_command_is_in_the_reference(command: str) -> None:
    assert f"\n## gt {command}\n" in (generate.FOLDER / "commands.md").read_text()

"""Write the pages of docs/reference from the code, or (--check) say which of them are stale.

python -m docs.generate
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import gt
from docs import error_notes
from gt import cli, server, worker
from gt.ir.advice import ADVICE, Advised
from gt.ir.ops import OPS
from gt.ir.ops.table import markdown
from gt.runtime import env, exit_codes

FOLDER = Path(__file__).parent / "reference"
WIDTH: Any = {"terminal_width": 100, "max_content_width": 100}
PACKAGE = Path(gt.__file__).parent
MADE = "<!-- Made by `python -m docs.generate`. -->\n\n"


def environment() -> str:
    return f"# Environment variables\n\n{MADE}Each is read once, at first use.\n\n{env.table()}\n"


def commands() -> str:
    """Give the help of every command."""
    out = [f"# Commands\n\n{MADE}`python -m gt` is `gt`. Exit codes:\n\n{exit_codes.table()}\n"]
    for name, command in _commands("gt", cli.main):
        with click.Context(command, info_name=name, **{**cli.CONTEXT, **command.context_settings, **WIDTH}) as context:
            out.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
    return "\n".join(out)


def _commands(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    command = {"gt server": server.main, "gt worker": worker.main}.get(name, command)
    yield name, command
    if isinstance(command, click.Group):
        for word in sorted(command.commands):
            yield from _commands(f"{name} {word}", command.commands[word])


def operations() -> str:
    """Give the op table."""
    return f"""# Operations

{MADE}What graphs consist of, as `gt compile SCRIPT --dump-ir` prints them: {len(OPS)} ops. Functions of gt and methods of tensors record them.
Sharding rules are in einsum's form: a letter of the result may be split, one that only operands have leaves a pending sum; what follows
a bar must be whole. Without a rule operands are whole on every worker.

{markdown()}"""


def how_it_works() -> str:
    """Give the page with its dumps made anew."""
    done = subprocess.run([sys.executable, "-m", "docs.dumps"], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    dumps = json.loads(done.stdout)

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}{dumps[match[2]].rstrip()}\n```"

    return re.sub(
        r"(<!-- dump: (\w+) -->\n```text\n).*?```", fill, (FOLDER.parent / "how_it_works.md").read_text(), flags=re.DOTALL
    )


def notebook() -> str:
    """Give the first hour as a notebook."""
    cells: list[dict[str, Any]] = []
    text = (FOLDER.parent / "first_hour.md").read_text().partition("-->\n")[2]
    for part in re.split(r"(^```python\n.*?^```$)", text, flags=re.DOTALL | re.MULTILINE):
        code = part.startswith("```python\n")
        lines = part.strip().splitlines(keepends=True)
        source = "".join(lines[1:-1] if code else lines).rstrip("\n")
        if not code:
            source = re.sub(r"\]\((?=\w+\.md)", "](../docs/", source)
        if source:
            own = {"cell_type": "code", "execution_count": None, "outputs": []} if code else {"cell_type": "markdown"}
            cells.append({**own, "id": f"cell{len(cells)}", "metadata": {}, "source": source.splitlines(keepends=True)})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1) + "\n"


def exceptions() -> list[type[BaseException]]:
    """Give every exception class of gt's but the mixin that only adds what this page says."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if not name.endswith("__main__"):
            things = vars(importlib.import_module(name)).values()
            found |= {t for t in things if isinstance(t, type) and issubclass(t, BaseException) and t.__module__.startswith("gt.")}
    return sorted(found - {Advised}, key=lambda c: (c.__name__.lower(), c.__module__))


def errors() -> str:
    """Give a section for every exception class."""
    out = [f"# Errors\n\n{MADE}Each says what was expected, what was there, where (the line of the script), and what to do.\n"]
    for kind in exceptions():
        name = kind.__name__
        says, then = error_notes.NAMES[name], error_notes.DO.get(name) or ADVICE[name]
        public = f"`gt.{name}`" if getattr(gt, name, None) is kind else f"`{kind.__module__}.{name}`"
        first, *others = [base.__name__ for base in kind.__mro__[1:-1] if base not in (Advised, BaseException)] or ["BaseException"]
        bases = ", ".join([f"{'an' if first[0] in 'AEIO' else 'a'} `{first}`", *(f"`{base}`" for base in others)])
        doc = " ".join((inspect.getdoc(kind) or "").replace("``", "`").split())
        out.append(f"## {name}\n\n{public}, {bases}. {doc}\n\n- Its text names {says}.\n- What to do: {then}\n")
    return "\n".join(out)


PAGES = {
    "environment.md": environment,
    "commands.md": commands,
    "operations.md": operations,
    "errors.md": errors,
    "../how_it_works.md": how_it_works,
    "../../examples/first_hour.ipynb": notebook,
}


def stale() -> list[str]:
    """Give the pages that are not what the code says."""
    return [name for name, page in PAGES.items() if not (FOLDER / name).exists() or (FOLDER / name).read_text() != page()]


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        sys.exit("stale, run python -m docs.generate: " + ", ".join(stale()) if stale() else 0)
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())

"""``python -m gt.scripts visualize|top|trace``, or the name of an instruction log, which is drawn. Next: ``gt.commands``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gt.commands.top import top
from gt.commands.trace import trace
from gt.commands.visualize import visualize

COMMANDS: dict[str, click.Command] = {"top": top, "trace": trace, "visualize": visualize}


def main() -> None:
    """Run the tool that is named first."""
    words = sys.argv[1:]
    if words and words[0] not in COMMANDS and Path(words[0]).exists():
        words = ["visualize", *words]
    text = "Tools that look at what gt does. Each is the command of gt by that name."
    group = click.Group(commands=COMMANDS, help=text, context_settings={"help_option_names": ["-h", "--help"]})
    group.main(words, prog_name="python -m gt.scripts")


if __name__ == "__main__":
    main()

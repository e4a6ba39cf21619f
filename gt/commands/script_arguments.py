"""Command lines that end in somebody else's: gt's options, a script, the script's own arguments.

Owns: ``ScriptCommand`` and ``script_of``. Next: ``run``, ``launch``, ``manifest`` (whose lines are such).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click


class ScriptCommand(click.Command):
    """Takes its options before the script and right behind it; the first word that is none of them begins the script's arguments.

    So ``gt run train.py -n 4 --lr 0.1`` passes ``--lr 0.1`` on, and ``--`` passes on what would be an option of gt's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, rest = self._split(ctx, args)
        return super().parse_args(ctx, [*own, "--", *rest])

    def _split(self, ctx: click.Context, args: Sequence[str]) -> tuple[list[str], list[str]]:
        """Give gt's options, and the script with what follows."""
        options = {name: p for p in self.get_params(ctx) if isinstance(p, click.Option) for name in p.opts}
        leading = sum(isinstance(p, click.Argument) and p.nargs == 1 for p in self.params)  # the script, and what else comes first
        own: list[str] = []
        rest: list[str] = []
        at = 0
        while at < len(args):
            word = args[at]
            if word == "--":
                at += 1
                break
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            option = options.get(name)
            if option is None or ("--help" in option.opts and len(rest) == leading):
                if word.startswith("-") and len(word) > 1 and len(rest) < leading:
                    own.append(word)  # click says what is wrong with it
                elif len(rest) < leading:
                    rest.append(word)
                else:
                    break
                at += 1
                continue
            takes = not option.is_flag and word == name
            if takes and at + 1 == len(args):
                raise click.BadOptionUsage(name, f"Option {name!r} requires an argument.")
            own += args[at : at + 1 + takes]
            at += 1 + takes
            if option.name == "module":
                leading = len(rest)  # it stands for the script
        return own, [*rest, *args[at:]]


def script_of(source: str | None, module: str | None, arguments: Sequence[str]) -> list[str]:
    """Give what follows ``python``. Errors: click.UsageError for no script, or one that is not there."""
    if module is not None:
        return ["-m", module, *([source] if source is not None else []), *arguments]
    if source is None:
        raise click.UsageError("give a script, or a module with -m")
    if not Path(source).is_file():
        raise click.UsageError(f"there is no script {source}")
    return [source, *arguments]


__all__ = ["ScriptCommand", "script_of"]

"""Commands that Ctrl-C ends with the code that shells give it, in place of click's 1, which says that a script failed.

Owns: ``Command``, ``Group``. Next: ``gt.runtime.exit_codes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gt.runtime.exit_codes import INTERRUPTED

if TYPE_CHECKING:
    Base = click.Command
else:
    Base = object


class Interruptible(Base):
    """Ends with ``INTERRUPTED`` at Ctrl-C."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(err=True)  # below the ^C that the terminal shows
            ctx.exit(INTERRUPTED)


class Command(Interruptible, click.Command):
    """One command."""


class Group(Interruptible, click.Group):
    """A command of commands."""


__all__ = ["Command", "Group"]

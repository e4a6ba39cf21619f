"""``python -m gt.scripts.trace -s SECONDS``: as ``gt trace``. Next: ``gt.commands.trace``."""

from __future__ import annotations

from gt.commands.trace import trace

if __name__ == "__main__":
    trace(prog_name="python -m gt.scripts.trace")

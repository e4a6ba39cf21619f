"""``python -m gt.scripts.top``: as ``gt top``. Next: ``gt.commands.top``."""

from __future__ import annotations

from gt.commands.top import top

if __name__ == "__main__":
    top(prog_name="python -m gt.scripts.top")

"""``python -m gt.scripts.visualize FILE... --output timeline.png``: as ``gt visualize``. Next: ``gt.commands.visualize``."""

from __future__ import annotations

from gt.commands.visualize import visualize

if __name__ == "__main__":
    visualize(prog_name="python -m gt.scripts.visualize")

"""The commands of ``gt`` that start and look after clusters, a file each.

Beside ``gt.cli``, which would otherwise grow with every command: it adds them to its group. Each module is its options and what they
lead to; what is done has its home in ``gt.runtime``, and is loaded when the command runs. Next: ``gt.cli``.
"""

from __future__ import annotations

from gt.commands.doctor import doctor
from gt.commands.launch import launch
from gt.commands.manifest import manifest
from gt.commands.run import run
from gt.commands.status import status

__all__ = ["COMMANDS", "doctor", "launch", "manifest", "run", "status"]

COMMANDS = (run, launch, status, doctor, manifest)

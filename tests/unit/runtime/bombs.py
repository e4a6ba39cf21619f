"""What a pickle does that is more than data: unpickled, it makes a folder."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = str(target)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.target,)


def bomb(target: Path) -> bytes:
    return pickle.dumps(Bomb(target))

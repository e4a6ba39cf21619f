"""Lines of ``expressions.txt``, each evaluated on torch and on gt: equal values as printed, or the same error.

A line is Python with ``m`` for the module. Values are compared by their ``repr``, torch's name and gt's taken out of it, so shape,
dtype, gradient function's presence and printing all count. Errors: gt's class is torch's or a kind of it, and torch's first line
stands in gt's text.
"""

from __future__ import annotations

import copy
import math
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gt

LINES = [line for line in (Path(__file__).parent / "expressions.txt").read_text().splitlines() if line and not line.startswith("#")]
NAMES = {"np": np, "copy": copy, "math": math, "pickle": pickle}
KINDS = {"_LinAlgError": RuntimeError, "NotImplementedError": RuntimeError}  # torch's class -> what gt's must be at least


def shown(value: Any) -> str:
    if isinstance(value, tuple | list | dict) and not hasattr(value, "numel"):
        items = value.items() if isinstance(value, dict) else value
        kind = "tuple" if isinstance(value, tuple) else type(value).__name__
        return f"{kind}({', '.join(map(shown, items))})"
    return re.sub(r"\b(torch|gt)\.", "", repr(value))


def outcome(line: str, module: Any) -> tuple[str, BaseException | None]:
    try:
        return shown(eval(f"(lambda m: {line})", dict(NAMES))(module)), None
    except Exception as error:
        return re.sub(r"\b(torch|gt)\.", "", (str(error).splitlines() or [""])[0]), error


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def differs(line: str) -> str:
    (want, theirs), (got, ours) = outcome(line, torch), outcome(line, gt)
    if theirs is None:
        return "" if ours is None and got == want else f"torch {want}\ngt    {got}"
    kind = KINDS.get(type(theirs).__name__, type(theirs))
    same = isinstance(ours, kind) and want.rstrip(".") in got
    return "" if same else f"torch {type(theirs).__name__}: {want}\ngt    {type(ours).__name__}: {got}"


def test_every_line() -> None:
    wrong = {line: text for line in LINES if (text := differs(line))}
    assert not wrong, "\n".join(f"{line}\n{text}" for line, text in wrong.items())
    assert len(LINES) == len(set(LINES)) > 600

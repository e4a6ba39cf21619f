"""One argument of a valid sample is spoilt: where torch refuses, gt never answers with a Python error from its inside."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest")

import gt  # noqa: E402 - after expecttest is known to be there
from tests.peer import opinfo  # noqa: E402

INSIDE = re.compile(
    r"(tuple|list) index out of range|object has no attribute|not subscriptable|values to unpack|unsupported operand|not iterable|not supported between|"
    r"invalid literal|could not convert|not callable|by zero|cannot be interpreted|broadcast together|no len\(\)"
)
CLASSES = (AttributeError, KeyError, UnboundLocalError, ZeroDivisionError)
SHARDS = 4
ENTRIES = [
    o
    for o in opinfo.entries(None)
    if callable(opinfo.look_up(o.name)) and opinfo.offered(o) is not None and torch.float32 in o.dtypes and o.name not in opinfo.RANDOM
]


def spoilt(value: Any) -> Iterator[Any]:
    yield "a"
    if isinstance(value, torch.Tensor):
        yield torch.tensor(1.5)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield -100


def cases(op: Any) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
    """Give (which argument, arguments, keyword arguments) of an entry's first sample, spoilt."""
    sample = next(iter(op.sample_inputs("cpu", torch.float32)), None)
    if sample is None:
        return
    arguments = [sample.input, *sample.args]
    for at, value in [*enumerate(arguments), *sample.kwargs.items()]:
        for bad in spoilt(value):
            args, kwargs = list(arguments), dict(sample.kwargs)
            (args if isinstance(at, int) else kwargs)[at] = bad
            yield at, args, kwargs


def told_from_inside(op: Any, args: list[Any], kwargs: dict[str, Any]) -> str | None:
    try:
        op.op(*args, **kwargs)
    except (AttributeError, ZeroDivisionError):
        return None  # the entry is written in Python, and so is what it says
    except Exception as e:
        theirs = str(e)
    else:
        return None
    try:
        mine = [opinfo.crossed(a) for a in args]
        for leaf in opinfo.gt_leaves(opinfo.offered(op)(*mine, **{k: opinfo.crossed(v) for k, v in kwargs.items()})):
            if isinstance(leaf, gt.Tensor):
                leaf._read()
    except Exception as e:
        text = str(e).partition("\n")[0]
        inside = isinstance(e, CLASSES) or (INSIDE.search(text) and "received an invalid combination" not in text)
        return f"{type(e).__name__}: {text}" if inside and not INSIDE.search(theirs) else None
    return None


@pytest.mark.parametrize("shard", range(SHARDS))
def test_bad_arguments_are_named(shard: int) -> None:
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ENTRIES[shard::SHARDS]:
            for at, args, kwargs in cases(op):
                said = None if at == 0 and op.name in opinfo.METHODS else told_from_inside(op, args, kwargs)
                told += [f"{opinfo.full_name(op)}, argument {at}: {said}"] if said else []
    assert not told, "\n".join(told)

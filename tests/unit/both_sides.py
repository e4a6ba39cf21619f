"""One call through gt and through torch: the same dtype, shape and values, or the same error with the same text."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gt

Call = Callable[[Any], Any]


def outcome(m: Any, call: Call) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = call(m)
            return [(str(t.dtype).split(".")[1], tuple(t.shape), t.tolist()) for t in (made if isinstance(made, list | tuple) else [made])]
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError) as error:
            return error


def alike(call: Call, what: str, rtol: float = 0.0, text: bool = True) -> None:
    """Compare. ``text``: the text of an error begins as torch's does; gt may go on with what to do."""
    mine, theirs = outcome(gt, call), outcome(torch, call)
    if isinstance(theirs, Exception):
        assert isinstance(mine, type(theirs)), (what, mine, theirs)
        assert not text or str(mine).replace("gt.", "torch.").startswith(str(theirs)), (what, str(mine), str(theirs))
        return
    assert not isinstance(mine, Exception), (what, mine)
    assert [m[:2] for m in mine] == [t[:2] for t in theirs], what
    for (_, _, got), (_, _, want) in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(np.array(got), np.array(want), rtol=rtol, atol=rtol, equal_nan=True, err_msg=what)

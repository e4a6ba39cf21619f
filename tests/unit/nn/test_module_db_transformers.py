"""Every sample of torch's module database for attention and transformer layers. Next: ``module_db`` (how)."""

from __future__ import annotations

import pytest

from tests.unit.nn.module_db import ENTRIES, TRANSFORMERS, check_samples, one_path


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_samples(name, training):
    if not training and not ENTRIES[name].train_and_eval_differ:
        pytest.skip("torch says that training and evaluation do not differ")
    with one_path():
        check_samples(name, training)

"""Every sample of torch's own module database through gt and torch: values, gradients, buffers, text, errors.

Next: ``module_db`` (how), ``test_module_db_transformers`` (the families with most samples).
"""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

import gt
from gt.runtime.errors import RunError
from tests.unit.nn.module_db import ENTRIES, TRANSFORMERS, UNSUPPORTED, check_samples, one_path
from tests.unit.nn.torch_twin import leaves, to_gt


@pytest.mark.parametrize("name", [n for n in ENTRIES if n not in TRANSFORMERS])
def test_samples(name):
    with one_path():
        check_samples(name, training=True)
        if ENTRIES[name].train_and_eval_differ:
            check_samples(name, training=False)


@pytest.mark.parametrize("name", [n for n, e in ENTRIES.items() if e.module_error_inputs_func is not None])
def test_errors(name):
    entry, cls = ENTRIES[name], getattr(gt.nn, name)
    for case in entry.module_error_inputs_func(entry, device="cpu", dtype=torch.float32, requires_grad=False, training=True):
        made, call = case.module_error_input.constructor_input, case.module_error_input.forward_input
        if case.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(case.error_type, match=case.error_regex):
                cls(*to_gt(made.args), **to_gt(made.kwargs))
        else:
            module = cls(*to_gt(made.args), **to_gt(made.kwargs))
            with pytest.raises((case.error_type, RunError), match=case.error_regex):
                for t in leaves(module(*to_gt(call.args), **to_gt(call.kwargs))):
                    t.detach().numpy()  # bad data is found when the work is run


def test_unsupported_modules_are_absent():
    """The table above is exact: what it names gt.nn does not offer, and everything else it does."""
    assert {e.module_cls.__name__ for e in module_db if not hasattr(gt.nn, e.module_cls.__name__)} == set(UNSUPPORTED)

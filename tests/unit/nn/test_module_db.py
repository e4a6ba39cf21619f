"""Every sample of torch's own module database through gt and torch: values, gradients, buffers, text, errors."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import ModuleErrorEnum, module_db

import gt
from tests.unit.nn.torch_twin import backward_both, close, fresh, leaves, to_gt, twin

UNSUPPORTED = {
    "AdaptiveAvgPool3d": "pooling is over one or two dims",
    "AdaptiveMaxPool3d": "pooling is over one or two dims",
    "AvgPool3d": "pooling is over one or two dims",
    "CTCLoss": "no op yet: its recursion over time steps needs one of its own",
    "FractionalMaxPool2d": "draws its windows at random",
    "FractionalMaxPool3d": "draws its windows at random",
    "LPPool3d": "pooling is over one or two dims",
    "LazyConv1d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConv2d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConv3d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConvTranspose1d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConvTranspose2d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConvTranspose3d": "a lazy layer takes its shape from the first call: give in_channels",
    "LinearCrossEntropyLoss": "cross_entropy(linear(x)) is compiled as one program anyway",
    "MaxPool3d": "pooling is over one or two dims",
    "MultiLabelMarginLoss": "the number of its terms depends on data",
}
ENTRIES = [entry for entry in module_db if entry.module_cls.__name__ not in UNSUPPORTED]


@pytest.fixture(autouse=True)
def _one_path():
    """Torch's fast path of transformer layers gives zeros at padded places; the layers themselves do not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.backends.mha.set_fastpath_enabled(before)


@functools.cache
def samples(index: int, training: bool) -> list[Any]:
    torch.manual_seed(0)
    entry = ENTRIES[index]
    return list(entry.module_inputs_func(entry, device="cpu", dtype=torch.float32, requires_grad=True, training=training))


def compare(module: Any, sample: Any) -> None:
    args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
    ours = twin(module, args, kwargs)
    assert repr(ours) == repr(module)
    assert list(ours.state_dict()) == list(module.state_dict())
    theirs_in = fresh((sample.forward_input.args, sample.forward_input.kwargs))
    ours_in = to_gt(theirs_in)
    want = leaves(module(*theirs_in[0], **theirs_in[1]))
    got = leaves(ours(*ours_in[0], **ours_in[1]))
    assert len(got) == len(want)
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        close(g, w, f"result {i}")
    backward_both(got, want)
    for i, (g, w) in enumerate(zip(leaves(ours_in), leaves(theirs_in), strict=True)):
        if w.grad is not None:
            close(g.grad, w.grad, f"gradient of input {i}")
    for (name, g), (_, w) in zip(ours.named_parameters(), module.named_parameters(), strict=True):
        if w.grad is not None:
            close(g.grad, w.grad, f"gradient of {name}", rtol=2e-4, atol=2e-5)
    for (name, g), (_, w) in zip(ours.named_buffers(), module.named_buffers(), strict=True):
        close(g, w, f"buffer {name}")


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("index", range(len(ENTRIES)), ids=[e.name.removeprefix("nn.") for e in ENTRIES])
def test_samples(index, training):
    if not training and not ENTRIES[index].train_and_eval_differ:
        pytest.skip("torch says that training and evaluation do not differ")
    cls = ENTRIES[index].module_cls
    for i, sample in enumerate(samples(index, training)):
        if sample.forward_input is None:
            continue
        torch.manual_seed(0)
        args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
        module = cls(*args, **kwargs).train(training)
        try:
            compare(module, sample)
        except Exception as e:
            e.add_note(f"sample {i} {sample.desc}: {cls.__name__}{args}{kwargs}")
            raise


WITH_ERRORS = [e for e in ENTRIES if e.module_error_inputs_func is not None]


@pytest.mark.parametrize("entry", WITH_ERRORS, ids=[e.name.removeprefix("nn.") for e in WITH_ERRORS])
def test_errors(entry):
    cls = getattr(gt.nn, entry.module_cls.__name__)
    for case in entry.module_error_inputs_func(entry, device="cpu", dtype=torch.float32, requires_grad=False, training=True):
        made, call = case.module_error_input.constructor_input, case.module_error_input.forward_input
        if case.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(case.error_type, match=case.error_regex):
                cls(*to_gt(made.args), **to_gt(made.kwargs))
        else:
            module = cls(*to_gt(made.args), **to_gt(made.kwargs))
            with pytest.raises(case.error_type, match=case.error_regex):
                for t in leaves(module(*to_gt(call.args), **to_gt(call.kwargs))):
                    t.detach().numpy()  # bad data is found when the work is run


def test_unsupported_modules_are_absent():
    """The table above is exact: what it names gt.nn does not offer, and everything else it does."""
    assert {e.module_cls.__name__ for e in module_db if not hasattr(gt.nn, e.module_cls.__name__)} == set(UNSUPPORTED)

"""torch's own module database as tests: what runs each sample through gt and torch. Used by the ``test_module_db`` files.

Next: ``torch_twin``.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.testing._internal.common_modules import module_db

from tests.unit.nn.torch_twin import backward_both, close, fresh, leaves, to_gt, twin

UNSUPPORTED = {
    "CTCLoss": "no op yet: its recursion over time steps needs one of its own",
    "FractionalMaxPool2d": "draws its windows at random",
    "FractionalMaxPool3d": "draws its windows at random",
    "LazyConv1d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConv2d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConv3d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConvTranspose1d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConvTranspose2d": "a lazy layer takes its shape from the first call: give in_channels",
    "LazyConvTranspose3d": "a lazy layer takes its shape from the first call: give in_channels",
}
ENTRIES = {e.module_cls.__name__: e for e in module_db if e.module_cls.__name__ not in UNSUPPORTED}
TRANSFORMERS = [n for n in ENTRIES if "Transformer" in n or n == "MultiheadAttention"]


@contextmanager
def one_path() -> Iterator[None]:
    """Torch's fast path of transformer layers gives zeros at padded places; the layers themselves do not."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.backends.mha.set_fastpath_enabled(before)


@functools.cache
def samples(name: str, training: bool) -> list[Any]:
    torch.manual_seed(0)
    entry = ENTRIES[name]
    made = entry.module_inputs_func(entry, device="cpu", dtype=torch.float32, requires_grad=True, training=training)
    return [s for s in made if s.forward_input is not None]


def check_samples(name: str, training: bool) -> None:
    """Compare every sample of a module."""
    cls = ENTRIES[name].module_cls
    for i, sample in enumerate(samples(name, training)):
        torch.manual_seed(0)
        args, kwargs = sample.constructor_input.args, sample.constructor_input.kwargs
        module = cls(*args, **kwargs).train(training)
        try:
            compare(module, sample)
        except Exception as e:
            e.add_note(f"sample {i} {sample.desc}: {name}{args}{kwargs}")
            raise


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
            close(g.grad, w.grad, f"gradient of {name}")
    for (name, g), (_, w) in zip(ours.named_buffers(), module.named_buffers(), strict=True):
        close(g, w, f"buffer {name}")

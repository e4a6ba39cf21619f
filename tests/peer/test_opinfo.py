"""A slice of torch's operator database: the first samples of every entry that gt offers. The whole: ``python -m tests.peer.opinfo``."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

pytest.importorskip("expecttest")

import gt  # noqa: E402
from tests.peer import opinfo  # noqa: E402 - needs expecttest

SAMPLES = 2  # of each entry and dtype
SHARDS = 12
CHANGE_SHAPES = {"resize_", "resize_as_", "squeeze_", "unsqueeze_", "t_", "transpose_", "as_strided_", "swapaxes_", "swapdims_"}
ENTRIES = [o for o in opinfo.entries(None) if opinfo.offered(o) is not None]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_first_samples(shard: int) -> None:
    failed = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ENTRIES[shard::SHARDS]:
            failed += [f"{opinfo.full_name(op)} {f}" for f in opinfo.run_op(op, limit=SAMPLES).failures]
    assert not failed, "\n".join(failed)


def test_most_names_are_offered() -> None:
    assert len({o.name for o in ENTRIES}) >= 500


def test_every_skip_names_an_entry() -> None:
    names = {o.name for o in opinfo.entries(None)} | {opinfo.full_name(o) for o in opinfo.entries(None)} | {"*"}
    from tests.peer import skips

    used = {*skips.SKIP_OPS, *(n for n, _, _ in skips.SKIP_SAMPLES), *(n for n, _, _ in skips.SKIP_ERRORS)}
    assert used <= names, used - names


def test_in_place_methods() -> None:
    """Every in-place method that an entry names overwrites its tensor with torch's values, and gives the tensor itself."""
    run, failed = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in opinfo.entries(None):
            name = getattr(op.inplace_variant, "__name__", "")
            method = getattr(gt.Tensor, name, None)
            if method is None or torch.float32 not in op.dtypes or op.name in opinfo.RANDOM or name in CHANGE_SHAPES:
                continue
            for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), SAMPLES):
                try:
                    want = op.inplace_variant(sample.input.clone(), *sample.args, **sample.kwargs)
                except RuntimeError:
                    continue  # the result does not fit the tensor
                if want.shape != sample.input.shape:
                    continue  # torch resized it
                mine, arguments = opinfo.to_gt(sample.input), opinfo.crossed(tuple(sample.args))
                got = method(mine, *arguments, **opinfo.crossed(sample.kwargs))
                said = "another tensor" if got is not mine else opinfo.difference(mine, want, None)
                failed += [f"{name}: {said}"] if said else []
                run += 1
    assert not failed, "\n".join(failed)
    assert run > 200

"""A slice of torch's operator database: the first samples of every entry that gt offers. The whole: ``python -m tests.peer.opinfo``."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("expecttest")

from tests.peer import opinfo  # noqa: E402 - needs expecttest

SAMPLES = 2  # of each entry and dtype
SHARDS = 12
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

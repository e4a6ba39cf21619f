"""A slice of the differential of changes in place: the first sample of every third entry. The whole: ``python -m tests.peer.versions``."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("expecttest")

from tests.peer import skips, versions  # noqa: E402 - needs expecttest

SHARDS = 3
ENTRIES = versions.entries(None)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_first_samples(shard: int) -> None:
    compared, failed = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op in ENTRIES[::3][shard::SHARDS]:
            number, found = versions.differences(op, 1, hows=("itself", "base"), values=False)
            compared += number
            failed += [f"{line} ({', '.join(hows)})" for line, hows in found.items()]
    assert not failed, "\n".join(failed)
    assert compared > 200


def test_every_skip_names_an_entry() -> None:
    names = {o.name for o in ENTRIES} | {versions.opinfo.full_name(o) for o in ENTRIES} | {"*"}
    assert {name for name, _, _ in skips.SKIP_VERSIONS} <= names

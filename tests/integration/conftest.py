"""Clusters that several files of tests start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gt.runtime.launch import LocalCluster, start_local
from tests.integration.programs import held_port


@pytest.fixture(scope="module")
def pair() -> Iterator[LocalCluster]:
    """Two workers, for the tests of a file."""
    started = start_local(2, backend="numpy")
    yield started
    started.stop()


@pytest.fixture
def port() -> Iterator[int]:
    with held_port() as found:
        yield found

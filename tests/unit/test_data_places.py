"""A loader's place within an epoch: another loader goes on there, with the batches and random numbers that the first one had left."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.utils import data


class Rows(data.Dataset[Any]):
    """Remembers what it was asked for."""

    def __init__(self, noisy: bool = False) -> None:
        self.noisy, self.asked = noisy, []

    def __len__(self) -> int:
        return 23

    def __getitem__(self, i: int) -> Any:
        self.asked.append(int(i))
        return np.float32(i) + (gt.rand(()).item() if self.noisy else 0)


class Stream(data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from np.random.default_rng(5).random(23, np.float32)


def plain(**options: Any) -> Callable[[], data.DataLoader]:
    return lambda: data.DataLoader(Rows(), 4, **options)


def noisy(**options: Any) -> Callable[[], data.DataLoader]:
    return lambda: data.DataLoader(Rows(noisy=True), 4, **options)


LOADERS: dict[str, Callable[[], data.DataLoader]] = {
    "in order": plain(),
    "shuffled": plain(shuffle=True),
    "shuffled, prefetched": plain(shuffle=True, prefetch=2),
    "shuffled by a generator": lambda: data.DataLoader(Rows(), 4, shuffle=True, generator=gt.Generator().manual_seed(5)),
    "shuffled by torch's": lambda: data.DataLoader(Rows(), 4, shuffle=True, generator=torch.Generator().manual_seed(5)),
    "drawn again and again": lambda: data.DataLoader(Rows(), 4, sampler=data.RandomSampler(Rows(), replacement=True, num_samples=99)),
    "lazily by torch's": lambda: data.DataLoader(
        Rows(), 4, sampler=torch.utils.data.RandomSampler(Rows(), replacement=True, num_samples=99, generator=torch.Generator().manual_seed(5)),
    ),  # fmt: skip
    "a sampler's own generator": lambda: data.DataLoader(
        Rows(), 4, sampler=data.SubsetRandomSampler(range(3, 20), generator=gt.Generator().manual_seed(6))
    ),
    "a batch sampler": lambda: data.DataLoader(
        Rows(), batch_sampler=data.BatchSampler(data.WeightedRandomSampler([0.1, 0.4, 0.5] * 7, 21), 3, drop_last=True)
    ),
    "without batches": lambda: data.DataLoader(Rows(), None, shuffle=True),
    "noisy": noisy(shuffle=True),
    "noisy, prefetched": noisy(sampler=data.RandomSampler(Rows()), prefetch=2),
    "a stream": lambda: data.DataLoader(Stream(), 4),
    "a stream, prefetched": lambda: data.DataLoader(Stream(), 4, prefetch=1),
    "a process": plain(shuffle=True, num_workers=1),
    "a process without prefetch": plain(sampler=data.RandomSampler(Rows()), num_workers=1, prefetch=0),
}  # fmt: skip


def taken(batches: Any, count: int) -> list[Any]:
    """Give values of the next batches, drawing a number between them as a step would."""
    found = []
    for _, batch in zip(range(count), batches, strict=False):
        found.append((np.asarray(batch).tolist(), gt.rand(()).item()))
    return found


AT_ONCE = ("shuffled", "shuffled, prefetched", "lazily by torch's", "noisy, prefetched", "a process without prefetch")


@pytest.mark.parametrize(("name", "before"), [*((name, 3) for name in LOADERS), *((name, 0) for name in AT_ONCE)])
def test_another_loader_goes_on_where_one_was(name: str, before: int) -> None:
    gt.manual_seed(1)
    loader = LOADERS[name]()
    taken(loader, 99)  # an epoch before
    batches = iter(loader)
    taken(batches, before)
    saved, drawn = json.loads(json.dumps(loader.state_dict())), gt.get_rng_state()
    rest = taken(batches, 99) + taken(loader, 99)
    gt.manual_seed(2)
    other = LOADERS[name]()
    other.load_state_dict(saved)
    assert other.state_dict()["epoch"] == saved["epoch"]
    gt.set_rng_state(drawn)
    again = taken(other, 99)
    assert again + taken(other, 99) == rest


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_was_given_is_not_made_again(prefetch: int) -> None:
    loader = data.DataLoader(Rows(), 4, prefetch=prefetch)
    batches = iter(loader)
    taken(batches, 3)
    rows = Rows()
    other = data.DataLoader(rows, 4, prefetch=prefetch)
    other.load_state_dict(loader.state_dict())
    assert len(other) == 6 and len(taken(other, 99)) == 3
    assert rows.asked == list(range(12, 23))


def test_between_epochs_there_is_no_place() -> None:
    loader = data.DataLoader(Rows(), 4)
    assert loader.state_dict() == {"epoch": None, "generators": {}}
    for _ in loader:
        break
    assert loader.state_dict()["epoch"] is None, "a loop that was left is not gone on with"
    for i, _ in enumerate(loader, 1):
        assert loader.state_dict()["epoch"]["given"] == i
    assert loader.state_dict()["epoch"] is None


def test_behind_the_last_batch_the_loop_ends() -> None:
    loader = data.DataLoader(Rows(), 4)
    batches = iter(loader)
    taken(batches, 6)
    other = data.DataLoader(Rows(), 4)
    other.load_state_dict(loader.state_dict())
    assert taken(other, 99) == [] and len(taken(other, 99)) == 6


def test_other_generators_are_refused() -> None:
    saved = data.DataLoader(Rows(), generator=gt.Generator()).state_dict()
    with pytest.raises(ValueError, match=r"generators for \['loader'\], this one has them for nothing"):
        data.DataLoader(Rows()).load_state_dict(saved)


def test_a_loader_can_be_copied_and_pickled_within_an_epoch() -> None:
    loader = data.DataLoader(Rows(), 4)
    batches = iter(loader)
    taken(batches, 2)
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):  # noqa: S301 - the test's own
        assert len(taken(other, 99)) == 6

"""``gt.utils.data``: batches are torch's, in order, made ahead by a thread that ends with who asks."""

from __future__ import annotations

import collections
import pickle
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data as theirs

import gt
import gt.utils.data as ours
from gt import session as sessions
from gt.utils.data.prefetching import mapped

Point = collections.namedtuple("Point", "x y")


class Squares(theirs.Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> Any:
        return np.float32(i) ** 2, {"i": i, "rows": torch.full((2, 3), float(i)), "name": f"n{i}"}, Point(i, np.arange(3) + i)


class Stream(theirs.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(np.arange(7, dtype=np.float32))


def plain(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {k: plain(v) for k, v in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(*map(plain, batch)) if hasattr(batch, "_fields") else type(batch)(map(plain, batch))
    return (str(batch.dtype).split(".")[1], batch.tolist()) if isinstance(batch, gt.Tensor | torch.Tensor) else batch


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "gt-prefetch"]


def ends() -> bool:
    until = time.monotonic() + 60
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    return not threads()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert ends()


OPTIONS: list[dict[str, Any]] = [
    {}, {"batch_size": 4}, {"batch_size": 4, "drop_last": True}, {"batch_size": None}, {"batch_size": 3, "sampler": [5, 1, 9, 9]},
    {"batch_sampler": [[1, 2], [3]]}, {"batch_size": 4, "collate_fn": lambda items: [i[1]["rows"] for i in items]},
]  # fmt: skip


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
@pytest.mark.parametrize("options", OPTIONS, ids="-".join)
def test_batches_are_torchs(options: dict[str, Any], prefetch: int) -> None:
    expected, got = theirs.DataLoader(Squares(), **options), ours.DataLoader(Squares(), **options, prefetch=prefetch)
    assert len(got) == len(expected) and isinstance(got, theirs.DataLoader)
    for _ in range(2):
        batches = list(got)
        assert plain(batches) == plain(list(expected))
    assert "torch" not in repr(type(batches[0][0])) and "Tensor" in repr(type(batches[0][0]))


@pytest.mark.parametrize("options", [{"persistent_workers": True}, {}], ids=["kept", "new"])
def test_processes_load_samples(options: dict[str, Any]) -> None:
    loader = ours.DataLoader(Squares(), 3, num_workers=2, **options)
    expected = plain(list(theirs.DataLoader(Squares(), 3)))
    assert plain(list(loader)) == expected
    for batch in loader:
        assert plain(batch) == expected[0]
        break
    assert plain(list(loader)) == expected
    rows = gt.arange(20).reshape(10, 2)
    assert [b[0].tolist() for b in ours.DataLoader(ours.TensorDataset(rows), 4, num_workers=1)] == [
        rows[at : at + 4].tolist() for at in (0, 4, 8)
    ]


ARGUMENTS: list[dict[str, Any]] = [
    {"batch_size": 0}, {"batch_size": -1}, {"batch_size": 1.5}, {"batch_size": None, "drop_last": True}, {"prefetch_factor": 2},
    {"persistent_workers": True}, {"num_workers": -1}, {"timeout": -1}, {"timeout": 3}, {"worker_init_fn": len}, {"in_order": False},
    {"sampler": [1], "shuffle": True}, {"sampler": [1], "shuffle": False}, {"batch_sampler": [[1]], "batch_size": 2},
    {"batch_sampler": [[1]], "shuffle": True}, {"batch_sampler": [[1]], "drop_last": True}, {"batch_sampler": [[1]], "sampler": [1]},
    {"multiprocessing_context": "spawn"}, {"unknown": 1}, {"num_workers": 1, "prefetch_factor": -1}, {"num_workers": 1, "timeout": 30},
    {"num_workers": 1, "prefetch_factor": 3}, {"num_workers": 1, "multiprocessing_context": "none"},
]  # fmt: skip


@pytest.mark.parametrize("options", ARGUMENTS, ids=str)
def test_arguments_are_taken_or_refused_as_by_torch(options: dict[str, Any]) -> None:
    found = []
    for lib in (theirs, ours):
        try:
            loader = lib.DataLoader(Squares(), **options)
            names = ("batch_size", "num_workers", "drop_last", "timeout", "prefetch_factor", "persistent_workers", "in_order")
            found.append([plain(list(loader)), len(loader), *(getattr(loader, name) for name in names)])
        except (ValueError, TypeError, AssertionError) as error:
            found.append([type(error), str(error)])
    assert found[0] == found[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torchs_generators_decide_as_in_torch(num_workers: int) -> None:
    def order(lib: Any, **options: Any) -> list[Any]:
        loader = lib.DataLoader(range(20), 3, num_workers=num_workers, generator=seeded(5), **options)
        return [[b.tolist() for b in loader] for _ in range(3)]

    def seeded(seed: int) -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    assert order(ours, shuffle=True) == order(theirs, shuffle=True)
    assert order(ours, sampler=ours.RandomSampler(range(20), True, 50, seeded(3))) == order(
        theirs, sampler=theirs.RandomSampler(range(20), True, 50, seeded(3))
    )
    for name, given in (("SubsetRandomSampler", ([4, 5, 6, 9],)), ("WeightedRandomSampler", ([0.1, 0.2, 1.0], 9))):
        samplers = [getattr(lib, name)(*given, generator=seeded(1)) for lib in (ours, theirs)]
        assert order(ours, sampler=samplers[0]) == order(theirs, sampler=samplers[1])
        samplers = [lib.BatchSampler(getattr(lib, name)(*given, generator=seeded(1)), 2, True) for lib in (ours, theirs)]
        batches = [[b.tolist() for b in lib.DataLoader(range(20), batch_sampler=s)] for lib, s in zip((ours, theirs), samplers, strict=True)]
        assert batches[0] == batches[1]
    with pytest.raises(TypeError, match="as generator, but got int"):
        ours.DataLoader(range(20), shuffle=True, generator=3)


class Noisy(theirs.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> float:
        return i + float(np.random.rand())  # noqa: NPY002 - the stream that the loop draws from too


def test_a_loop_and_its_data_set_draw_from_one_stream_in_torchs_order() -> None:
    def drawn(lib: Any) -> list[Any]:
        np.random.seed(0)  # noqa: NPY002
        return [[batch.tolist(), np.random.rand()] for batch in lib.DataLoader(Noisy(), 2)]  # noqa: NPY002

    assert drawn(ours) == drawn(theirs) == drawn(ours)
    assert ours.DataLoader(Noisy()).prefetch == 0 and ours.DataLoader(Noisy(), num_workers=1).prefetch == 2


@pytest.mark.parametrize("make", [gt.tensor, torch.tensor, np.array])
def test_the_next_batch_sees_what_a_loop_writes(make: Any) -> None:
    x, seen = make([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), []
    for (batch,) in ours.DataLoader(ours.Subset(ours.TensorDataset(x), range(6)), 2):
        seen.append(batch.tolist())
        x += 10
    assert seen == [[1.0, 2.0], [13.0, 14.0], [25.0, 26.0]]


def test_other_data_sets_come_too() -> None:
    assert plain(list(ours.DataLoader(Stream(), 3))) == plain(list(theirs.DataLoader(Stream(), 3)))
    x, y = gt.arange(12).reshape(6, 2).float(), gt.arange(6)
    data = ours.ConcatDataset([ours.TensorDataset(x, y), ours.Subset(ours.TensorDataset(x * 2, y), [1, 2])])
    (batch,) = ours.DataLoader(data, 8)
    assert batch[0].tolist() == [*x.tolist(), [4.0, 6.0], [8.0, 10.0]] and batch[1].tolist() == [*range(6), 1, 2]
    assert all(isinstance(v, gt.Tensor) for v in data[7]) and set(ours.__all__) <= set(dir(ours))
    with pytest.raises(AttributeError, match="no attribute 'Loader'"):
        ours.Loader  # noqa: B018
    with pytest.raises(AssertionError, match="Size mismatch"):
        ours.TensorDataset(x, gt.ones(5))
    for wrong in (-1, 1.5, True):
        with pytest.raises(ValueError, match="prefetch is the number"):
            ours.DataLoader(data, prefetch=wrong)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_tensors_keep_their_dtype_and_changes_are_seen(dtype: str) -> None:
    x = gt.arange(8).reshape(4, 2).to(getattr(gt, dtype))
    data = ours.TensorDataset(x, x.numpy() if dtype != "bfloat16" else torch.ones(4))
    loader = ours.DataLoader(data, 4)
    (first,) = loader
    assert first[0].dtype == x.dtype and first[0].tolist() == x.tolist()
    x[0] = 1
    assert next(iter(loader))[0].tolist() == x.tolist()
    again = pickle.loads(pickle.dumps(data))
    assert isinstance(again[1][0], torch.Tensor) and again[1][0].tolist() == x[1].tolist()


def test_a_collation_of_ones_own_gets_gts_tensors() -> None:
    data = ours.TensorDataset(gt.arange(6).float(), gt.arange(6))
    loader = ours.DataLoader(data, 3, collate_fn=lambda items: gt.stack([x * 2 + y for x, y in items]))
    assert [b.tolist() for b in loader] == [[0.0, 3.0, 6.0], [9.0, 12.0, 15.0]]
    assert ours.default_collate([(gt.ones(2), 1), (gt.zeros(2), 2)])[0].tolist() == [[1.0, 1.0], [0.0, 0.0]]


def twice(items: Any) -> Any:
    return mapped(ours.default_collate(items), lambda x: x * 2)


def test_collations_give_gts_tensors() -> None:
    samples = [{"x": np.ones(2, np.float32), "y": (1, 2.0, "a")}, {"x": np.zeros(2, np.float32), "y": (3, 4.0, "b")}]
    for name, data in (("default_collate", samples), ("default_convert", samples[0]), ("default_convert", [np.arange(3), "a", 1])):
        mine, wanted = (getattr(m, name)(data) for m in (ours, theirs))
        assert mapped(mine, lambda x: isinstance(x, gt.Tensor)) == mapped(wanted, lambda x: isinstance(x, torch.Tensor))
        assert plain(mine) == plain(wanted)
    (row, *_) = ours.DataLoader([np.arange(3.0)], batch_size=None)
    assert isinstance(row, gt.Tensor)
    data = ours.TensorDataset(gt.arange(4.0))
    assert isinstance(ours.default_collate(data.__getitems__([1, 2]))[0], gt.Tensor)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collation_that_calls_the_default_one(num_workers: int) -> None:
    data = ours.TensorDataset(gt.arange(4.0), gt.arange(4))
    (batch,) = ours.DataLoader(data, 4, collate_fn=twice, num_workers=num_workers)
    assert all(isinstance(x, gt.Tensor) for x in batch)
    assert [x.tolist() for x in batch] == [[0.0, 2.0, 4.0, 6.0], [0, 2, 4, 6]]


# -- random numbers


def order(**options: Any) -> list[list[int]]:
    return [b[0].tolist() for b in ours.DataLoader(ours.TensorDataset(gt.arange(50)), 25, **options)]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_gts_seed_decides_the_order(prefetch: int) -> None:
    gt.manual_seed(3)
    first = [order(shuffle=True, prefetch=prefetch) for _ in range(2)]
    gt.manual_seed(3)
    assert [order(shuffle=True, prefetch=prefetch) for _ in range(2)] == first
    assert first[0] != first[1] and sorted(sum(first[0], [])) == list(range(50))
    for make in (gt.Generator, torch.Generator):
        got = [order(shuffle=True, generator=make().manual_seed(5)) for _ in range(2)]
        assert got[0] == got[1] != first[0]


def samplers() -> list[list[int]]:
    some = gt.Generator().manual_seed(2)
    return [
        list(ours.RandomSampler(range(30))), list(ours.RandomSampler(range(30), True, 9, some)), list(ours.SubsetRandomSampler([3, 4, 5])),
        list(ours.WeightedRandomSampler(gt.tensor([0.0, 1.0, 1.0]), 20)), *map(list, ours.random_split(range(9), [4, 5])),
        list(ours.random_split(range(9), [0.5, 0.5], generator=some)[0]),
    ]  # fmt: skip


def test_samplers_and_splits_follow_gts_seed() -> None:
    gt.manual_seed(1)
    first = samplers()
    gt.manual_seed(1)
    assert samplers() == first != samplers()
    assert set(first[3]) == {1, 2} and sorted(first[4] + first[5]) == list(range(9))
    given = torch.Generator().manual_seed(0)
    assert list(ours.RandomSampler(range(9), generator=given)) == list(
        theirs.RandomSampler(range(9), generator=torch.Generator().manual_seed(0))
    )


def test_what_a_thread_draws_follows_from_gts_seed() -> None:
    def draws() -> list[float]:
        gt.manual_seed(7)
        return [t.item() for t in ours.prefetch(gt.rand(()) for _ in range(3))]

    assert draws() == draws() and len(set(draws())) == 3


# -- the thread


@pytest.mark.parametrize("depth", [1, 3])
def test_a_thread_makes_so_many_ahead_and_no_more(depth: int) -> None:
    made, here = [], threading.get_ident()

    def source() -> Iterator[int]:
        for i in range(20):
            made.append(i)
            assert threading.get_ident() != here
            yield i

    batches = iter(ours.prefetch(source(), depth))
    for i in range(10):
        assert next(batches) == i
        until = time.monotonic() + 60
        while len(made) < i + 1 + depth and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.005)
        assert len(made) == i + 1 + depth
    assert list(batches) == list(range(10, 20)) and list(batches) == []


def test_arrays_are_as_they_were_when_they_came() -> None:
    def source() -> Iterator[Any]:
        array = np.empty((300, 300), np.float32)
        for i in range(20):
            array[...] = i
            yield {"x": [array, (array[0], "name", None, np.float64(i))]}

    for i, item in enumerate(ours.prefetch(source(), 3)):
        x, (row, name, nothing, number) = item["x"]
        assert x.min().item() == x.max().item() == row.max().item() == number == i and (name, nothing) == ("name", None)
    again = ours.prefetch([np.ones(2)] * 3)
    assert len(again) == 3 and len(list(again)) == len(list(again)) == 3


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_at_the_line_that_asks_and_names_the_one_that_failed(depth: int) -> None:
    class Fails(Squares):
        def __getitem__(self, i: int) -> Any:
            if i == 3:
                raise KeyError("no such file")  # the data set's line
            return i

    seen = []
    with pytest.raises(KeyError, match="no such file") as caught:
        for batch in ours.DataLoader(Fails(), prefetch=depth):  # the user's line
            seen += batch.tolist()
    text = "".join(traceback.format_exception(caught.value))
    assert seen == [0, 1, 2] and "# the data set's line" in text and "# the user's line" in text
    batches = iter(ours.prefetch(iter([1]), 1))
    assert list(batches) == [1] and next(batches, None) is None


def endless() -> Iterator[np.ndarray]:
    while True:
        yield np.ones(3)


def test_nothing_goes_on_after_a_break_or_an_exception() -> None:
    for _ in ours.prefetch(endless()):
        break
    assert ends()
    with pytest.raises(ZeroDivisionError):
        for _ in ours.prefetch(endless()):
            1 / 0  # noqa: B018
    assert ends()
    loader = ours.DataLoader(Squares(), 2)
    pairs = [(a[0].tolist(), b[0].tolist()) for a, b in zip(loader, loader, strict=True)]
    assert len(pairs) == 5 and all(a == b for a, b in pairs)
    for _ in range(20):
        assert next(iter(loader))[0].tolist() == [0.0, 1.0]


def test_batches_follow_the_signal_under_which_they_are_asked_for(monkeypatch: pytest.MonkeyPatch, clean: None) -> None:
    session, seen = sessions.current(), []
    put = session.put
    monkeypatch.setattr(session, "put", lambda b, t, d, signal: (seen.append(signal), put(b, t, d, signal)))
    gt.register_config("batch", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    with gt.signal.context("batch"):
        batches = iter(ours.prefetch([np.ones(2)] * 3))
    assert len(list(batches)) == 3 and [s.shard.axis for s in seen] == [0, 0, 0]


def test_a_step_under_jit_is_replayed_on_batches_from_the_thread() -> None:
    data = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)

    def losses(prefetch: int) -> list[float]:
        gt.manual_seed(0)
        model = gt.nn.Linear(4, 1)
        optimizer = gt.optim.SGD(model.parameters(), lr=0.1)

        @gt.jit
        def step(x: gt.Tensor) -> gt.Tensor:
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss

        loader = ours.DataLoader(ours.TensorDataset(data), 8, shuffle=True, generator=gt.Generator(), prefetch=prefetch)
        return [step(x).item() for _ in range(3) for (x,) in loader]

    assert losses(2) == losses(0) and losses(2)[-1] < losses(2)[0]

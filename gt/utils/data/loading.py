"""torch's data sets, samplers and loader, where they meet gt: its tensors in and out, and its random streams.

Owns: the classes that differ from torch's; the others are torch's own. Only ``gt.utils.data`` imports this, when a name is used.
Next: ``prefetching``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data
from torch.utils.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SequentialSampler,
    StackDataset,
    Subset,
    get_worker_info,
)  # fmt: skip
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from gt.functions.create import tensor
from gt.functions.shape import stack
from gt.ir.types import class_name
from gt.random import Generator, draw
from gt.tensor import Tensor
from gt.trace import check_fork
from gt.utils.data.places import DEFAULT, Epoch, Given, Order, put_back, states_of
from gt.utils.data.prefetching import DEPTH, Batches, Line, batches, check_depth, is_torch, mapped

# -- random numbers


def torch_generator(generator: Generator | torch.Generator | None) -> torch.Generator:
    """Give torch's generator for a generator, gt's default one if None: what it draws follows from gt's seed."""
    given = checked(generator)
    return given if isinstance(given, torch.Generator) else torch.Generator().manual_seed(_seed(given))


def checked(generator: Any) -> Any:
    """Refuse what is no generator. Errors: TypeError."""
    if not isinstance(generator, Generator | torch.Generator | None):
        raise TypeError(f"expected a gt.Generator, a torch.Generator or None as generator, but got {class_name(generator)}")
    return generator


def _seed(generator: Generator | None) -> int:
    seed, stream = draw(generator)
    return int(np.random.SeedSequence([seed % 2**64, stream]).generate_state(1, np.uint64)[0] >> 1)


def random_split(dataset: Any, lengths: Sequence[int | float], generator: Generator | torch.Generator | None = None) -> list[Any]:
    """Split a data set into parts without overlap, by lengths or fractions. ``gt.manual_seed`` decides how."""
    return torch_data.random_split(dataset, lengths, torch_generator(generator))


class _Drawing:
    """A sampler of torch's that draws from gt's default generator, or the one it is given."""

    generator: torch.Generator | None

    def __init__(self, *args: Any, **options: Any) -> None:
        given = next((a for a in (*args, *options.values()) if isinstance(a, Generator)), None)
        args = tuple(None if a is given and given is not None else a for a in args)
        super().__init__(*args, **{k: None if v is given and given is not None else v for k, v in options.items()})
        self._own: Generator | None = given

    def __iter__(self) -> Iterator[Any]:
        if self.generator is not None:  # torch's
            yield from super().__iter__()  # type: ignore[misc]
            return
        drawing = copy.copy(self)  # another thread may look at this one meanwhile
        drawing.generator = torch_generator(self._own)
        yield from list(super(_Drawing, drawing).__iter__())  # type: ignore[misc]


class RandomSampler(_Drawing, torch_data.RandomSampler):
    """torch's, drawing from gt's generators."""


class SubsetRandomSampler(_Drawing, torch_data.SubsetRandomSampler):
    """torch's, drawing from gt's generators."""


class WeightedRandomSampler(_Drawing, torch_data.WeightedRandomSampler):
    """torch's, drawing from gt's generators. Weights may be a tensor of gt's."""

    def __init__(self, weights: Any, *args: Any, **options: Any) -> None:
        super().__init__(weights.tolist() if isinstance(weights, Tensor) else weights, *args, **options)


# -- data sets


class Rows(Sequence[Any]):
    """Several items of a data set of tensors, picked at once where the default collation wants them."""

    def __init__(self, dataset: TensorDataset, indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, i: Any) -> Any:
        return Rows(self.dataset, self.indices[i]) if isinstance(i, slice) else self.dataset[self.indices[i]]

    def together(self) -> list[torch.Tensor]:
        at = torch.as_tensor(self.indices, dtype=torch.int64)
        return [values[at] for values in self.dataset.host()]


class TensorDataset(Dataset[Any]):
    """Tensors of one first size; an item is a tuple of their rows.

    A loader picks the rows of a batch from a copy on this host; in its worker processes items are torch's tensors.
    """

    def __init__(self, *tensors: Any) -> None:
        if any(t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise AssertionError("Size mismatch between tensors")
        self.tensors = tensors
        self._host: list[tuple[Any, torch.Tensor]] = []  # with what was read

    def __len__(self) -> int:
        return int(self.tensors[0].shape[0])

    def __getitem__(self, index: Any) -> tuple[Any, ...]:
        return tuple(t[index] for t in (self.tensors if get_worker_info() is None else self.host()))

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        return Rows(self, indices)

    def read(self) -> None:
        """Read the tensors if they have changed since."""
        held = dict((id(buffer), values) for buffer, values in self._host)
        buffers = [t._materialise() if isinstance(t, Tensor) else t for t in self.tensors]
        self._host = [
            (b, held[id(b)] if id(b) in held and b is not t else as_torch(t)) for b, t in zip(buffers, self.tensors, strict=True)
        ]

    def host(self) -> list[torch.Tensor]:
        """Give the tensors as torch's, as they were read."""
        if not self._host:
            self.read()
        return [values for _, values in self._host]

    def __getstate__(self) -> dict[str, Any]:
        self.read()
        return {**self.__dict__, "tensors": tuple(self.host()), "_host": []}


def as_torch(t: Any) -> torch.Tensor:
    """Give a tensor or an array as torch's, on this host."""
    if not isinstance(t, Tensor):
        return torch.as_tensor(t)
    plain = t.detach()
    return torch.from_numpy(plain.float().numpy()).bfloat16() if t.dtype.name == "bfloat16" else torch.from_numpy(plain.numpy())


def _read(dataset: Any) -> None:
    """Read the tensors that a data set is made of, in the thread that asks: those that load cannot, or not as cheaply."""
    if isinstance(dataset, TensorDataset):
        dataset.read()
    for inner in [getattr(dataset, "dataset", None), *_listed(getattr(dataset, "datasets", None))]:
        if isinstance(inner, Dataset):
            _read(inner)


def _reading(dataset: Any, source: Iterator[Any]) -> Iterator[Any]:
    """Give batches of what the data set's tensors hold when each is asked for."""
    for batch in source:
        yield batch
        _read(dataset)


def _listed(datasets: Any) -> list[Any]:
    if isinstance(datasets, dict):
        return list(datasets.values())
    return list(datasets) if isinstance(datasets, list | tuple) else []


# -- loading


def _stacked(batch: Sequence[Tensor], *, collate_fn_map: Any = None) -> Tensor:
    return stack(list(batch))


def default_collate(batch: Any) -> Any:
    """Make one batch of samples, as torch's function of this name does. Samples may hold gt's tensors.

    In a loader's worker process the batch is of torch's tensors, which the loader uploads; so for ``default_convert``.
    """
    if isinstance(batch, Rows):
        return _uploaded_here(batch.together())
    return _uploaded_here(collate(batch, collate_fn_map={Tensor: _stacked, **default_collate_fn_map}))


def default_convert(data: Any) -> Any:
    """Give data with its arrays as tensors, as torch's function of this name does."""
    return _uploaded_here(torch_data.default_convert(data))


def _uploaded_here(batch: Any) -> Any:
    return _uploaded(batch) if get_worker_info() is None else batch


def _uploaded(batch: Any) -> Any:
    return mapped(batch, lambda leaf: tensor(leaf) if is_torch(leaf) else leaf)


class DataLoader(torch_data.DataLoader[Any]):
    """torch's loader, whose batches are gt's tensors: ``prefetch`` of them are made and uploaded ahead, by a thread.

    ``prefetch=None`` is 2 with ``num_workers``, and 0 without, where each is made when it is asked for, as by torch's loader: the
    next batch sees what the loop writes to the data set, and random numbers that both draw come in one order. Batches made ahead
    have the values from before, and what a data set of one's own draws comes when its thread is there. All else is torch's;
    ``gt.manual_seed`` decides the order of ``shuffle=True``, ``pin_memory`` changes nothing. In processes gt's functions cannot be
    used: use NumPy's or torch's there.
    """

    def __init__(
        self, dataset: Any, batch_size: int | None = 1, shuffle: bool | None = None, sampler: Any = None, batch_sampler: Any = None,
        num_workers: int = 0, collate_fn: Callable[[Any], Any] | None = None, pin_memory: bool = False, drop_last: bool = False,
        timeout: float = 0, worker_init_fn: Callable[[int], None] | None = None, multiprocessing_context: Any = None,
        generator: Generator | torch.Generator | None = None, *, prefetch: int | None = None, pin_memory_device: str = "", **options: Any,
    ) -> None:  # fmt: skip
        self.prefetch = check_depth((DEPTH if num_workers else 0) if prefetch is None else prefetch)
        self._given = checked(generator)
        self._drawn = generator if isinstance(generator, torch.Generator) else torch.Generator()
        self._line: Line | None = None
        self._begun: Epoch | None = None  # while torch's iterator is made
        self._epoch: Epoch | None = None  # the latest
        self._resumed: dict[str, Any] | None = None  # an epoch to go on with
        if collate_fn is None and (batch_size is not None or batch_sampler is not None):
            collate_fn = default_collate
        super().__init__(
            dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, False, drop_last, timeout, worker_init_fn,
            multiprocessing_context, self._drawn, **options,
        )  # fmt: skip

    @property
    def _index_sampler(self) -> Any:
        order = super()._index_sampler
        return order if self._is_iterable else Order(self, order)

    @property
    def _is_iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    def __iter__(self) -> Any:
        check_fork()
        if self._line is not None and self._line.closed:  # its thread may be making a batch still
            self._line.join()
        generators, before, resumed = self._generators(), None, self._resumed
        if resumed is not None:
            self._resumed, before = None, states_of(generators)
            put_back(generators, resumed["begin"])
        ahead = bool(self.prefetch or self.num_workers)
        epoch = self._begun = Epoch(generators, ahead, bool(self.num_workers), resumed)
        if not isinstance(self._given, torch.Generator):
            self._drawn.manual_seed(_seed(self._given))
        _read(self.dataset)
        source: Iterator[Any] = super().__iter__()
        self._begun = None
        if self._is_iterable:
            source = epoch.behind(source)
        if not ahead:
            source = _reading(self.dataset, source)
        made = batches(epoch.marked(source, bool(self.prefetch)), self.prefetch, _uploaded)
        if before is not None:  # what the epoch's beginning drew was drawn then
            put_back(generators, {DEFAULT: before[DEFAULT]} if ahead else before)
        self._line = made.line if isinstance(made, Batches) else None
        self._epoch = epoch
        return Given(made, epoch)

    def _generators(self) -> dict[str, Any]:
        """Give the generators of its own and of its samplers, by names."""
        found = {"loader": self._given}
        for i, sampler in enumerate((self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))):
            own = getattr(sampler, "_own", None) or getattr(sampler, "generator", None)
            if own is not self._drawn:
                found[f"sampler {i}"] = own
        return {name: own for name, own in found.items() if isinstance(own, Generator | torch.Generator)}

    def state_dict(self) -> dict[str, Any]:
        """Give where it is, as plain values: how many batches of an epoch under way were given, and its generators' states.

        What one loop has is an epoch under way until its last batch has come; a loop that was left early has none.
        """
        epoch = self._epoch if self._epoch is not None and not self._epoch.over else None
        now = {name: state for name, state in states_of(self._generators()).items() if name != DEFAULT}
        return {"epoch": epoch.state() if epoch is not None else self._resumed, "generators": now}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back what ``state_dict`` gave, in another process for one: the next loop goes on behind the last batch given.

        Batches given before are not made again, except by an ``IterableDataset``, which is read from its beginning. Random numbers that
        a data set draws go on with gt's default generator (``gt.checkpoint.resume``); with ``num_workers`` those of its processes begin
        anew. Errors: ValueError for a loader with other generators.
        """
        own, given = self._generators(), state_dict["generators"]
        if own.keys() != given.keys():
            raise ValueError(
                f"the state is of a DataLoader with generators for {sorted(given) or 'nothing'}, this one has them for {sorted(own) or 'nothing'}"
            )
        put_back(own, given)
        self._resumed, self._epoch = state_dict["epoch"], None


__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler", "IterableDataset",
    "RandomSampler", "Sampler", "SequentialSampler", "StackDataset", "Subset", "SubsetRandomSampler", "TensorDataset",
    "WeightedRandomSampler", "default_collate", "default_convert", "get_worker_info", "random_split",
]  # fmt: skip

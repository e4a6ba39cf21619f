"""``gt.utils.data``: torch's data sets, samplers and loaders, which give gt's tensors, uploaded while the step before runs.

torch itself is imported when the first of its names is used. Next: ``loading`` (what is torch's), ``prefetching`` (the thread).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gt.utils.data.prefetching import prefetch

if TYPE_CHECKING:
    from gt.utils.data.loading import (
        BatchSampler,
        ChainDataset,
        ConcatDataset,
        DataLoader,
        Dataset,
        DistributedSampler,
        IterableDataset,
        RandomSampler,
        Sampler,
        SequentialSampler,
        StackDataset,
        Subset,
        SubsetRandomSampler,
        TensorDataset,
        WeightedRandomSampler,
        default_collate,
        default_convert,
        get_worker_info,
        random_split,
    )  # fmt: skip

__all__ = [
    "BatchSampler", "ChainDataset", "ConcatDataset", "DataLoader", "Dataset", "DistributedSampler", "IterableDataset",
    "RandomSampler", "Sampler", "SequentialSampler", "StackDataset", "Subset", "SubsetRandomSampler", "TensorDataset",
    "WeightedRandomSampler", "default_collate", "default_convert", "get_worker_info", "prefetch", "random_split",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gt.utils.data' has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module("gt.utils.data.loading"), name)
    return found


def __dir__() -> list[str]:
    return __all__

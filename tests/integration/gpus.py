"""Several GPU workers with NCCL among them: one a GPU, or, where there is one GPU, all on that.

NCCL wants a GPU for each member of a group unless they are on different hosts, which it is told here; they meet by sockets then, at a
fraction of the speed and with the same results. A worker's GPU is named by its index or as much of its UUID as is given, so that each of
several workers on it has another name.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping

import pytest
import torch

from gt.runtime import launch

GPUS = torch.cuda.device_count()
COUNTS = [GPUS] if GPUS > 1 else [2, 4]  # workers to run on
needs_gpu = pytest.mark.skipif(not GPUS, reason="needs a GPU")


def share(workers: int, patch: pytest.MonkeyPatch) -> None:
    """Have that many workers that this process starts use GPUs, and NCCL."""
    if workers <= GPUS:
        return
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader", "-i", launch.visible_gpus()[0]]
    uuid = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    patch.setenv("CUDA_VISIBLE_DEVICES", ",".join(uuid[: len(uuid) - i] for i in range(workers)))
    patch.setenv("NCCL_IB_DISABLE", "1")
    environment = launch.child_environment

    def apart(variables: Mapping[str, str]) -> dict[str, str]:
        return {**environment(variables), "NCCL_HOSTID": variables.get("CUDA_VISIBLE_DEVICES", "")}

    patch.setattr(launch, "child_environment", apart)


__all__ = ["COUNTS", "GPUS", "needs_gpu", "share"]

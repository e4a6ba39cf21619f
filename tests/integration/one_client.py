"""One client process among many: ``python -m tests.integration.one_client ADDRESS SEED FETCHES KIND``.

Every value carries the client's seed, so that a value of another client is seen at once. Prints "ready", waits for a
line, works, and prints what was wrong as JSON. Kinds: "good", and "faulty", which makes a mistake at every turn.
Next: ``test_clients``.
"""

from __future__ import annotations

import json
import sys

import numpy as np

import gt


def good(seed: int, fetches: int) -> list[str]:
    wrong = []
    base = np.arange(12, dtype=np.float32).reshape(4, 3) + 1000 * seed
    with gt.signal.context("rows"):
        split = gt.from_numpy(base)
    whole = gt.from_numpy(np.full((4, 3), seed, np.float32))
    for i in range(fetches):
        try:
            if i % 4 == 0:
                got, want = (split + i).numpy(), base + i
            elif i % 4 == 1:
                got, want = (split * 2).sum(dim=1).numpy(), (base * 2).sum(1)
            elif i % 4 == 2:
                got, want = (whole + i).numpy(), np.full((4, 3), seed + i, np.float32)
            else:
                got, want = gt.from_numpy(base[:, :1] * i).numpy(), base[:, :1] * i
            if not np.array_equal(got, want):
                wrong.append(f"client {seed} fetch {i}: {got.tolist()} instead of {want.tolist()}")
        except Exception as e:
            wrong.append(f"client {seed} fetch {i}: {type(e).__name__}: {e}")
    return wrong


def faulty(seed: int, fetches: int) -> list[str]:
    """Make mistakes, each of which must be an error here, and after each compute something right."""
    wrong = []
    table = gt.from_numpy(np.full((5, 2), seed, np.float32))
    for i in range(fetches):
        try:
            if i % 2:
                gt.zeros(2, 3) @ gt.zeros(2, 3)
            else:
                table[gt.tensor([1, 77 + i % 3])].numpy()
            wrong.append(f"client {seed} turn {i}: a mistake went unnoticed")
        except (gt.RunError, ValueError, RuntimeError, IndexError):
            pass
        if (total := table.sum().item()) != 10 * seed:
            wrong.append(f"client {seed} turn {i}: {total}")
    return wrong


def main(address: str, seed: str, fetches: str, kind: str) -> None:
    gt.connect(address, 60)
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"good": good, "faulty": faulty}[kind](int(seed), int(fetches))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

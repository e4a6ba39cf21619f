"""Prefetching in scripts of their own: no torch without need, and an end whatever is under way."""

from __future__ import annotations

import time
from pathlib import Path

from tests.integration.programs import output, run


def test_prefetching_arrays_needs_no_torch(tmp_path: Path) -> None:
    code = """
        import sys
        import gt
        import numpy as np
        from gt.utils.data import prefetch
        print([x.sum().item() for x in prefetch(np.full(3, i, np.float32) for i in range(4))], "torch" in sys.modules)
    """
    assert output(code, tmp_path) == "[0.0, 3.0, 6.0, 9.0] False\n"


def test_a_script_ends_while_batches_are_made(tmp_path: Path) -> None:
    code = """
        import itertools, sys, time
        import numpy as np
        import gt
        from gt.utils.data import DataLoader, IterableDataset, prefetch
        if __name__ == "__main__":
            gt.gpu_workers(1)
            class Endless(IterableDataset):
                def __iter__(self):
                    return itertools.repeat(np.ones((200, 200), np.float32))
            held = [iter(DataLoader(Endless(), 4, num_workers=n)) for n in (0, 1)]
            held.append(iter(prefetch(itertools.repeat(np.ones(9)), 100)))
            print([next(h).sum().item() for h in held])
            if sys.argv[1] == "fail":
                raise ValueError("the user's own")
    """
    for how in ("return", "fail"):
        before = time.monotonic()
        done = run(code, tmp_path, how)
        assert (done.out, done.code) == ("[160000.0, 160000.0, 9.0]\n", how == "fail"), done.err
        assert done.err.rstrip().endswith("ValueError: the user's own" if how == "fail" else "") and "gt-prefetch" not in done.err
        assert time.monotonic() - before < 30


def test_a_forked_child_is_told_and_the_parent_goes_on(tmp_path: Path) -> None:
    code = """
        import os
        import numpy as np
        import gt
        from gt.utils.data import prefetch
        batches = iter(prefetch(np.full((300, 300), i, np.float32) for i in range(50)))
        print(next(batches).max().item(), flush=True)
        for i in range(5):
            child = os.fork()
            if child == 0:
                try:
                    next(batches)
                except RuntimeError as e:
                    del batches
                    os._exit(7 if "forked child" in str(e) else 8)
                os._exit(9)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print([int(b.max().item()) for b in batches] == list(range(1, 50)))
    """
    assert output(code, tmp_path) == "0.0\nTrue\n"


def test_batches_reach_workers_as_they_were_made(tmp_path: Path) -> None:
    code = """
        import numpy as np
        import gt
        from gt.utils.data import DataLoader, TensorDataset, prefetch
        if __name__ == "__main__":
            gt.gpu_workers(2)
            def source():
                array = np.empty((256, 256), np.float32)
                for i in range(60):
                    array[...] = i
                    yield array, np.arange(4) + i
            gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
            total = gt.zeros(256, 256)
            with gt.signal.context("rows"):
                for i, (x, y) in enumerate(prefetch(source(), 4)):
                    total = total + x
                    assert y.tolist() == [i, i + 1, i + 2, i + 3]
            print(total.min().item() == total.max().item() == sum(range(60)))
            data = TensorDataset(gt.arange(80_000).reshape(400, 200))
            print(sum(b.sum().item() for (b,) in DataLoader(data, 100, shuffle=True)) == sum(range(80_000)))
    """
    assert output(code, tmp_path) == "True\nTrue\n"

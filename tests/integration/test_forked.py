"""A child forked after the start: its tensors raise, its finalizers and its end take nothing from the parent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.programs import output

CODE = """
import gc, os, sys
import gt
if int(sys.argv[1]):
    gt.gpu_workers(1)
x = gt.arange(200.0)
held = [x * i for i in range(20)]
print(held[3].sum().item())
pending = x + 1

def forked(end):
    child = os.fork()
    if child == 0:
        told = 0
        for use in (lambda: held[1].tolist(), lambda: pending.sum().item(), lambda: (x @ x).item(), lambda: gt.ones(3).tolist()):
            try:
                use()
            except RuntimeError as e:
                told += "forked child" in str(e)
        for names in (held, ):
            names.clear()
        globals().update(x=None, pending=None)
        gc.collect()
        if end == "disconnect":
            gt.disconnect()
        sys.exit(10 + told)  # what is registered for the end of the parent runs here, too
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

print([forked(end) for end in ("exit", "disconnect", "exit")])
print([h.sum().item() for h in held] == [19900.0 * i for i in range(20)], pending.sum().item(), gt.num_workers())
"""


@pytest.mark.parametrize("workers", [0, 1], ids=["embedded", "a worker process"])
def test_a_forked_child_raises_and_takes_nothing_with_it(workers: int, tmp_path: Path) -> None:
    assert output(CODE, tmp_path, workers) == "59700.0\n[14, 14, 14]\nTrue 20100.0 1\n"

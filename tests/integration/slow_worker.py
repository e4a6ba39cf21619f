"""A worker whose device time is certain: NumPy, and a millisecond of sleep for each op. ``python -m tests.integration.slow_worker``.

As on a GPU, the processor is free meanwhile. Runs are timed by a clock of the device that goes on by a millisecond for each op, so what
is measured does not depend on who else uses the processor. Next: ``test_sharing``.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

from gt.ir.evaluate import evaluate_node
from gt.runtime import numpy_engine, runner
from gt.worker import main

OP_S = 1e-3
ops = 0


def slowly(*arguments):  # type: ignore[no-untyped-def]
    global ops
    time.sleep(OP_S)
    ops += 1
    return evaluate_node(*arguments)


if __name__ == "__main__":
    numpy_engine.evaluate_node = slowly
    runner.time = SimpleNamespace(perf_counter=lambda: ops * OP_S)  # type: ignore[assignment]
    main()

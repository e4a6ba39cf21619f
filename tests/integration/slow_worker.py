"""A worker whose device time is certain: NumPy, and a millisecond of sleep for each op. ``python -m tests.integration.slow_worker``.

As on a GPU, the processor is free meanwhile, so what is measured does not depend on who else uses it. Next: ``test_sharing``.
"""

from __future__ import annotations

import time

from gt.ir.evaluate import evaluate_node
from gt.runtime import numpy_engine
from gt.worker import main

OP_S = 1e-3


def slowly(*arguments):  # type: ignore[no-untyped-def]
    time.sleep(OP_S)
    return evaluate_node(*arguments)


if __name__ == "__main__":
    numpy_engine.evaluate_node = slowly
    main()

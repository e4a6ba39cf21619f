"""A worker that runs out of memory at whatever makes a value of ``N`` elements, zeros to send in its place included.
``python -m tests.integration.poor_worker``. Next: ``test_memory``.
"""

from __future__ import annotations

import numpy as np

from gt.ir.evaluate import evaluate_node
from gt.runtime import numpy_engine
from gt.worker import main

N = 31 * 4


def poorly(op, operands, attrs, types):  # type: ignore[no-untyped-def]
    if any(t.numel == N for t in types):
        raise MemoryError("there is no room for this")
    return evaluate_node(op, operands, attrs, types)


class PoorEngine(numpy_engine.NumpyEngine):
    def from_host(self, array, dtype):  # type: ignore[no-untyped-def]
        if array.size == N and not array.any():
            raise MemoryError("nor for zeros")
        return super().from_host(np.asarray(array), dtype)


if __name__ == "__main__":
    numpy_engine.evaluate_node = poorly
    numpy_engine.NumpyEngine = PoorEngine  # type: ignore[misc]
    main()

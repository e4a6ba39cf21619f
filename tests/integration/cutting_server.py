"""A server that cuts every plan into many parts, whoever waits: a grain is 20 us, less than any of them takes.
``python -m tests.integration.cutting_server``. Next: ``test_parts``.
"""

from __future__ import annotations

from gt.runtime import fair_queue
from gt.server import main

if __name__ == "__main__":
    limits = fair_queue.Limits
    names = list(limits.__dataclass_fields__)
    defaults = dict(zip(names, limits.__init__.__defaults__, strict=True)) | {"grain_s": 2e-5, "alone_s": 2e-5}
    limits.__init__.__defaults__ = tuple(defaults.values())
    main()

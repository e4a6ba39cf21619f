"""A server that waits for workers that do not answer for longer than any test suspends one. ``python -m tests.integration.patient_server``.
Next: ``test_progress``.
"""

from __future__ import annotations

from gt.runtime.roster import Options
from gt.server import main

if __name__ == "__main__":
    names = [name for name in Options.__dataclass_fields__ if name != "sharing"]
    defaults = dict(zip(Options.__dataclass_fields__, Options.__init__.__defaults__, strict=True)) | {"worker_timeout_s": 60.0}
    Options.__init__.__defaults__ = tuple(defaults.values())
    main()

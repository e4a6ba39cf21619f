"""A process of gt's own collects garbage when it has nothing to do, in a process of the test's own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from gt.runtime import garbage

full = []
gc.callbacks.append(lambda phase, info: full.append(phase) if info["generation"] == 2 and phase == "start" else None)
garbage.postpone()
assert gc.get_freeze_count() > 1000
kept = [[i] for i in range(500_000)]  # as many programs make
assert full == [], "work is not interrupted"
garbage.collect_if_due()
assert len(full) == 1
garbage.collect_if_due()
assert len(full) == 1, "nothing was allocated since"
loop = [[]]
loop[0].append(loop)
kept += [[i] for i in range(500_000)]
garbage.collect_if_due()
assert len(full) == 2
"""


def test_full_collections_wait_until_there_is_nothing_to_do():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_end_of_such_a_process_walks_nothing() -> None:
    code = """
import atexit, gc
from gt.runtime import garbage
atexit.register(lambda: print(gc.get_freeze_count() - before > 4000))  # after what is registered later
garbage.postpone()
before = gc.get_freeze_count()
held = [[] for _ in range(5000)]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr

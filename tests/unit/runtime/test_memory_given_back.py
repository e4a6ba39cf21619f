"""What a worker process lets go of goes back to the system, whichever of its threads had it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys, threading
import numpy as np
from gt.runtime.store import give_memory_back, share_one_arena

def own():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

def blocks(count, size):
    held = [np.ones(size, np.uint8) for _ in range(count)]
    del held

share_one_arena()
threads = [threading.Thread(target=blocks, args=(1, 16 << 20)), threading.Thread(target=blocks, args=(2, 16 << 20))]
before = own()
for thread in threads:
    thread.start()
    thread.join()
give_memory_back()
print(own() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's memory is meant")
def test_what_another_thread_had_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4 << 10  # KiB; 16 or 32 MiB without the arena in common

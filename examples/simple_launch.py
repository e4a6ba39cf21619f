"""A server, its workers and a script, each a process, started as by hand in three terminals:

    python examples/simple_launch.py               # all of it from this script, on a free port
    gt server -p 12345                             # by hand: one terminal,
    gt worker --host localhost -p 12345            # others for workers,
    GT_ADDR=localhost:12345 python examples/demo.py    # and scripts, which need nothing but the address

For one script alone `gt run script.py -n 2` does the same, for the nodes of a job `gt launch script.py` (docs/cluster.md).
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import gt


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--workers", type=int, default=2)
    args = options.parse_args()

    command = [sys.executable, "-m", "gt.server", "-p", "0", "--spawn_gpu_workers", str(args.workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1].removeprefix("tcp://")  # port 0: one that is free
        print("server at", address.rpartition(":")[0])
        for line in server.stdout:  # "workers 1", "workers 2", ...
            if line.split() == ["workers", str(args.workers)]:
                break
        gt.connect(address)
        print("workers:", gt.num_workers())
        x = gt.randn(64, 64)
        print("sum of a product:", "finite" if (x @ x.T).sum().isfinite().item() else "not finite")
        gt.disconnect()
        server.terminate()
    print("server ended with code", server.returncode)


if __name__ == "__main__":
    main()

"""Several clients on one server at once: each gets its own values, and an equal share of the workers.

    python examples/multi_client.py                            # two workers and three clients, all started from here
    python examples/multi_client.py --clients 8
    python examples/multi_client.py --connect localhost:12345  # one client of a server that is there

Priorities, limits on memory and what a crash of one means for others: docs/sharing.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

import gt


def client(number: int, steps: int) -> None:
    """Train a small model of one's own; say what came out."""
    gt.manual_seed(number)
    weight = gt.zeros(16, 1, requires_grad=True)
    truth = gt.full((16, 1), float(number))
    optimizer = gt.optim.SGD([weight], lr=0.1)
    for _ in range(steps):
        x = gt.randn(64, 16)
        loss = ((x @ weight - x @ truth) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"client {number}: learned {weight.mean().item():.2f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clients", type=int, default=3)
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--steps", type=int, default=60)
    options.add_argument("--connect", metavar="HOST:PORT")
    options.add_argument("--number", type=int, default=1, help="of the client that --connect makes")
    args = options.parse_args()
    if args.connect:
        gt.connect(args.connect)
        client(args.number, args.steps)
        return

    command = [sys.executable, "-m", "gt.server", "-p", "0", "--spawn_gpu_workers", str(args.workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1].removeprefix("tcp://")
        for line in server.stdout:
            if line.split() == ["workers", str(args.workers)]:
                break
        again = [sys.executable, __file__, "--connect", address, "--steps", str(args.steps), "--number"]
        clients = [subprocess.Popen([*again, str(i + 1)]) for i in range(args.clients)]
        codes = [process.wait() for process in clients]
        server.terminate()
    sys.exit(max(codes, default=0))


if __name__ == "__main__":
    main()

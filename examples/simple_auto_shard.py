"""Without any configuration, tensors that are created are split by rows over the workers there are.

    python examples/simple_auto_shard.py                            # in this process: nothing is split
    python examples/simple_auto_shard.py --distributed              # on four local workers
    GT_AUTO_SHARD=0 python examples/simple_auto_shard.py --distributed    # whole on each of them

`gt.auto_shard()` in place of this rule looks for the fastest placement of everything (extra `solver`).
"""

from __future__ import annotations

import argparse

import gt


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--distributed", action="store_true", help="use local worker processes")
    options.add_argument("--workers", type=int, default=4)
    options.add_argument("--size", type=int, default=512)
    args = options.parse_args()
    if args.distributed:
        gt.gpu_workers(args.workers)

    gt.manual_seed(0)
    a, b = gt.randn(args.size, args.size), gt.randn(args.size, args.size)
    c = (a @ b).relu()
    mean = c.mean()
    print(f"mean {mean.item():.6f}, workers: {gt.num_workers()}")
    where = gt.explain(c)
    print(where)
    print(f"c is {'split: ' + str(where.local_shape) + ' on each of them' if where.is_split else 'whole'}")


if __name__ == "__main__":
    main()

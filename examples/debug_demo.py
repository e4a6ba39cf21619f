"""Finding out what a script does: what is recorded, why it ran, where a value is and why, and errors that name their line.

    python examples/debug_demo.py
    GT_DEBUG=2 python examples/debug_demo.py                   # each flush and why; 4 shows each new graph
    GT_INSTRUCTION_LOG=ops.log python examples/debug_demo.py   # one line per event of client, dispatcher and worker
    gt compile examples/debug_demo.py --dump-ir                # the graphs, pass by pass
"""

from __future__ import annotations

import gt


def main() -> None:
    # What is recorded and has not run.
    x = gt.ones(4, 3).requires_grad_()
    loss = ((x * 2).exp() - 1).sum()
    gt.debug.print_tape(loss)

    # Why work ran, and how often.
    loss.backward()
    print("gradient", x.grad[0].tolist())
    gt.debug.print_stats()

    # Where a value is, what made it and why it is there.
    print(gt.explain(loss))

    # A read that was not meant: an error at its line.
    try:
        with gt.flush_guard("disallow"):
            print(float(gt.ones(3).sum()))
    except gt.ReadRefused as error:
        print(f"ReadRefused: {error}")

    # Shapes that do not fit: at the op. Values that cannot be: at the read, which names the op's line.
    try:
        gt.ones(2, 3) @ gt.ones(2, 3)
    except RuntimeError as error:
        print(f"{type(error).__name__}: {error}")
    picked = gt.arange(4)[gt.tensor([9])]
    try:
        picked.tolist()
    except IndexError as error:
        print(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()

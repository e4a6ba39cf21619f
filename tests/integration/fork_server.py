"""A process that has loaded torch, and what examples learn from and draw with, but nothing of gt: it becomes each script by a fork.

    python -m tests.integration.fork_server < JSON LINES

Loading these takes longer than what most scripts do. A line is [code, argv, folder, environment, [stdin, stdout, stderr], seconds], what
comes back the exit code. Next: ``programs`` (who asks).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import types
from importlib.util import find_spec
from pathlib import Path

LOADED = ("numpy", "torch", "torch.distributed", "matplotlib.pyplot", "sklearn.datasets", "sklearn.model_selection")


def serve() -> None:
    for name in LOADED:
        if find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)
    assert "gt" not in sys.modules, "a script loads gt itself"
    gc.freeze()  # what forks would else copy, as they walk it
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(*json.loads(line))
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def become(code: str, argv: list[str], folder: str, variables: dict[str, str], streams: list[str], limit_s: int) -> None:
    """Be the process of a script. It is killed by SIGALRM after so many seconds."""
    signal.alarm(limit_s)
    for number, file in enumerate(streams):
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - it stays
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = argv
    name = "<string>" if argv[0] == "-c" else argv[0]
    sys.path[0] = "" if argv[0] == "-c" else str(Path(name).parent)
    main = types.ModuleType("__main__")
    main.__file__ = name
    sys.modules["__main__"] = main
    exec(compile(code, name, "exec"), main.__dict__)


if __name__ == "__main__":
    serve()

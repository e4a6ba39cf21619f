"""What a person does about an error of gt's: said with the error, in its notes, and on the page of errors.

Owns: ``ADVICE``, by class, ``Advised``, the mixin of errors that bring it, and ``nearest``, the word that may be meant.
Must not know: what went wrong. Next: ``blame`` (where).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Self

PAGE = "docs/reference/errors.md"
FAULT_IN_GT = "Report it with the text: it is a fault in gt, not in the script."


class Advised(Exception):
    """Adds the note "what to do: ...", with the page and the anchor that say more."""

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        made = super().__new__(cls, *arguments, **named)
        kind = next((kind.__name__ for kind in cls.__mro__ if kind.__name__ in ADVICE), "")
        if kind:
            made.add_note(f"what to do: {ADVICE[kind]} ({PAGE}#{kind.lower()})")
        return made


def nearest_word(word: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Give the known word that is most like this one, ``alike`` (0 to 1) or more, "" if none is."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=alike)
    return near[0] if near else next((name for name in names if name.lower() == word.lower()), "")


def nearest(word: str, known: Iterable[str]) -> str:
    """Give ``"; did you mean 'x'?"`` for the nearest known word, nothing if none is near."""
    near = nearest_word(word, known)
    return f"; did you mean {near!r}?" if near else ""


ADVICE: dict[str, str] = {
    "CallError": "Change the argument that it names.",
    "CheckFailed": "Look at that op; if each agrees, report it: it is how they run together.",
    "ConfigError": "Correct the file, or the call, at that place. Nothing of a wrong file is used.",
    "ConnectionFailed": "Start `gt server -p PORT` there, or correct the address; `gt doctor HOST:PORT` looks.",
    "ConnectionRefused": "Do what the reason says, and connect again: a server answers there.",
    "DamagedError": "Resume from an older checkpoint's own folder, and remove the damaged one.",
    "DimError": "Use a dim within that range.",
    "DispatcherLost": "Start the server again at that address, and `gt.connect` to it: what its workers hold is there again. Else start both anew from a checkpoint.",
    "EmptyError": "Reduce over a dim that has elements, or give the value for none.",
    "ExecutionError": "Correct the op at that line.",
    "GradcheckError": "Correct the backward of the function that was checked, or its tolerances.",
    "JitError": "Move what it names out of the function, or leave out `gt.jit`.",
    "JitMismatch": "Call the function anew after what it depends on has changed, or pass that as an argument.",
    "KeyFileError": "Make keys with `gt keygen`, or `chmod 600` the file it names.",
    "KindError": "Cast with `.to(dtype)` first.",
    "LauncherError": "Give `--nnodes`, `--node-rank` and `--head`, or `--launcher none`.",
    "LaunchError": "Do what that stderr says; `gt doctor` checks the machine.",
    "LinAlgError": "Check the matrix: add to its diagonal, or use `lstsq` or `pinv`.",
    "LogError": "Give a file that GT_INSTRUCTION_LOG or gt trace wrote.",
    "NodeRefused": "Start the same line, with the same keys and gt, on every node.",
    "NanMade": "Keep that op's operands where it has a value, as by a clamp or an epsilon, or find what made them so.",
    "NoGradient": "Detach what goes through it, or write a `gt.autograd.Function`.",
    "NotPrivate": "`chmod go-rwx` it, or name another.",
    "NoWorkers": "Start workers: `gt worker --host HOST -p PORT`.",
    "OutOfMemoryError": "Free or split the values it names, take smaller batches, or set `gt.memory_limit`. All values are what they were.",
    "ParseError": "Correct the text at that place.",
    "PassError": FAULT_IN_GT,
    "PipelineError": "Correct the text given to `--pipeline`.",
    "PlanRefused": "Mark the value with a signal that places it so, or raise the budget; a search needs `pip install 'gt-tensor[solver]'`.",
    "ProtocolError": "Use one version of gt everywhere; else report it with the text: it is a fault in gt, not in the script.",
    "QuotaExceeded": "Drop tensors (`del`), or ask for a greater `--client-memory` of the server.",
    "ReadRefused": "Move the read out of the block.",
    "RenderError": FAULT_IN_GT,
    "RunError": "Correct the op at that line. What does not depend on it has values.",
    "RunIndexError": "Correct the indices.",
    "SaveError": "Make room or correct the path, and save again: older checkpoints are whole.",
    "SessionClosed": "Read before `gt.disconnect()` and before the script ends.",
    "ShapeError": "Reshape or broadcast so that the shapes fit.",
    "SolverMissing": "`pip install 'gt-tensor[solver]'`.",
    "TooLarge": "Select with `--pass`, `--stage` or `--worker`.",
    "TypeMismatch": "Change the argument that it names.",
    "UnknownSignal": "Configure the signal, or leave strict mode.",
    "Unwanted": "Start a worker of the server's version of gt and torch, with a key that it knows.",
    "VerifyError": FAULT_IN_GT,
    "VersionMismatch": "Install one version of gt for server, workers and clients.",
    "WireError": "Use one version of gt everywhere.",
    "WorkerLost": "Start again, resume from a checkpoint, or use `gt.recover()`.",
    "WrongType": "Correct the field or argument that it names.",
    "WrongValue": "Correct the field or argument that it names.",
}  # fmt: skip

__all__ = ["ADVICE", "FAULT_IN_GT", "PAGE", "Advised", "nearest", "nearest_word"]

"""What the error reference says of each exception class beyond its docstring: what its text names, and what to do.

Read by ``docs/generate.py``; a test holds it to the classes there are.
"""

RUN_LINE = "the op, the shapes and dtypes it was given, the worker, and the line that recorded it"
CALL_LINE = "the function, what it expected, what it got; it is raised at the line that called it"
FAULT_IN_GT = "Report it with the text: it is a fault in gt, not in the script."

NOTES: dict[str, tuple[str, str]] = {
    "CallError": (CALL_LINE, "Change the argument that it names."),
    "CaptureDone": ("nothing: it ends a script that `gt compile` or `gt plan` has seen enough of", "Let it pass: catch Exception, not BaseException."),
    "CheckFailed": ("the first op that differs, its line, and both values; or that each op by itself agrees",
                    "Look at that op; if each agrees, report it: it is how they run together."),
    "CollectiveFailed": ("the collective, its members, and the one who is gone or refused", "As for WorkerLost: start again, or use `gt.recover()`."),
    "CollectiveMismatch": ("the workers and the collectives that they are at", FAULT_IN_GT),
    "CompileError": ("the piece of a program that Inductor could not compile, with its words",
                     "Nothing: the piece goes on uncompiled. `GT_COMPILE_AFTER=0` stops trying."),
    "ConfigError": ("file, line, column and key; what is allowed there, what is there, and the nearest known word",
                    "Correct the file at that place. Nothing of the file was used."),
    "ConnectionFailed": ("the address, and how long was waited", "Start `gt server -p PORT` there, or correct the address; `gt doctor HOST:PORT` looks."),
    "DamagedError": (
        "the file of the checkpoint, and what is wrong with it",
        "Resume from an older checkpoint's own folder, and remove the damaged one.",
    ),
    "Deadlock": ("the workers and what each waits for", FAULT_IN_GT),
    "DimError": (CALL_LINE + ", with the range of dims there are", "Use a dim within that range."),
    "DispatcherLost": ("the address, what the connection last heard, and the line that waited", "Start the server again at that address, and `gt.connect` to it: values that its workers hold are there again. Else start both anew from a checkpoint."),
    "EmptyError": (CALL_LINE, "Reduce over a dim that has elements, or give the value for none."),
    "ExecutionError": (RUN_LINE, "Correct the op at that line."),
    "Failure": (
        "what another node did not do in time, and its address",
        "Do what its text says; the exit code says whether a retry can help.",
    ),
    "GradcheckError": (
        "the output and the input, the derivative measured and the one computed",
        "Correct the backward of the function that was checked, or its tolerances.",
    ),
    "GtError": ("what its kin say", "Catch it to catch all errors of gt's running side."),
    "Interrupted": (
        "nothing: it ends a command of gt's that was told to stop by a signal",
        "Let it pass: catch Exception, not BaseException.",
    ),
    "JitError": (
        "the function under `gt.jit`, and the argument or the line that cannot be replayed, and why",
        "Move what it names out of the function, or leave out `gt.jit`.",
    ),
    "JitMismatch": ("the op that was recorded, the one that came instead, and both lines",
                    "Call the function anew after what it depends on has changed, or pass that as an argument."),
    "KeyFileError": ("the file, and whether it is missing, damaged or open to others", "Make keys with `gt keygen`, or `chmod 600` the file it names."),
    "KindError": (CALL_LINE + ", with the dtypes that the op takes", "Cast with `.to(dtype)` first."),
    "LaunchError": ("the process, its exit code, and the end of its stderr", "Do what that stderr says; `gt doctor` checks the machine."),
    "LauncherError": ("the variables of the launcher that contradict each other or are missing", "Give `--nnodes`, `--node-rank` and `--head`, or `--launcher none`."),
    "LinAlgError": (RUN_LINE, "Check the matrix: add to its diagonal, or use `lstsq` or `pinv`."),
    "Located": ("the op and the user's line", "See its kin, which say more."),
    "MessagesLost": (
        "how many messages of a connection did not arrive; what ends with it says whose",
        "See DispatcherLost and WorkerLost, which come of it; `gt.recover()` goes on after it.",
    ),
    "LogError": ("the file and the line that is not of an instruction log", "Give a file that GT_INSTRUCTION_LOG or gt trace wrote."),
    "NoGradient": ("the op, and the line that recorded it", "Detach what goes through it, or write a `gt.autograd.Function`."),
    "NoWorkers": ("the server's address, and how long was waited", "Start workers: `gt worker --host HOST -p PORT`."),
    "NodeRefused": (
        "the server's address, and its reason",
        "Start the same line, with the same keys and gt, on every node.",
    ),
    "OutOfMemoryError": (
        "the worker, its limit, what the run or value needs, the largest values held there and the largest of the run, with their lines",
        "Free or split the values it names, take smaller batches, or set `gt.memory_limit`. All values are what they were.",
    ),
    "NotChunked": ("nothing: it ends an attempt to compute logits in chunks, and the note of `gt.explain` says why", "Nothing: values are the same."),
    "NotSoMany": ("nothing: another number of chunks is tried", "Nothing."),
    "NotPrivate": ("the file or folder, and whom it is open to", "`chmod go-rwx` it, or name another."),
    "NotRecovered": (
        "why a recovery came to nothing; the script gets the loss that it was about",
        "Start again from a checkpoint.",
    ),
    "ParseError": ("the line and column of the .gtir text, what is expected there and what is there", "Correct the text at that place."),
    "PassError": ("the pass, the node, the user's line, and the file that repeats it", FAULT_IN_GT),
    "PeerUnreachable": ("nothing: a message to somebody who has left is dropped", "Nothing."),
    "PipelineError": ("the pass or option, and those there are", "Correct the text given to `--pipeline`."),
    "PlanRefused": (
        "what would be sent or moved, how much is allowed, why the value is where it is, and the line",
        "Mark the value with a signal that places it so, or raise the budget; a search needs `pip install 'gt-tensor[solver]'`.",
    ),
    "ProtocolError": ("the message, and what is wrong with it", "Use one version of gt everywhere; else " + FAULT_IN_GT[0].lower() + FAULT_IN_GT[1:]),
    "QuotaExceeded": ("what the client holds, what it asked for, and the limit", "Drop tensors (`del`), or ask for a greater `--client-memory` of the server."),
    "ReadRefused": ("the line that read a value under `gt.flush_guard('disallow')`", "Move the read out of the block."),
    "RenderError": ("the op and the attribute that its torch form cannot say", FAULT_IN_GT),
    "ReplicaMismatch": ("the value and the workers whose copies differ", FAULT_IN_GT),
    "RunError": (RUN_LINE, "Correct the op at that line. What does not depend on it has values."),
    "RunIndexError": (RUN_LINE + ", with the index and the size", "Correct the indices."),
    "SaveError": ("the folder, and what the system said", "Make room or correct the path, and save again: older checkpoints are whole."),
    "SessionClosed": ("the value that was read too late", "Read before `gt.disconnect()` and before the script ends."),
    "ShapeError": (CALL_LINE + ", with all shapes", "Reshape or broadcast so that the shapes fit."),
    "SignalFault": ("what a signal or mesh may be, and what was given", "See its kin."),
    "SignalWarning": ("the signal, what of it is not followed and why, at the user's line", "Correct the name or the workers, or leave it: values are the same."),
    "SolverMissing": (
        "the package, and how to install it",
        "`pip install 'gt-tensor[solver]'`.",
    ),
    "TooLarge": ("the number of nodes and the limit for drawings", "Select with `--pass`, `--stage` or `--worker`."),
    "TracerWarning": ("nothing: torch's class, so that `warnings.filterwarnings` of it works", "Nothing."),
    "TypeMismatch": (CALL_LINE, "Change the argument that it names."),
    "UnknownSignal": ("the name and the nearest known one, at the line that used it", "Configure the signal, or leave strict mode."),
    "VerifyError": ("the pass, the node and the rule that it breaks", FAULT_IN_GT),
    "Unwanted": ("the server's address, and its reason for refusing this worker", "Start a worker of the server's version of gt and torch, with a key that it knows."),
    "VersionMismatch": ("both versions", "Install one version of gt for server, workers and clients."),
    "WireError": ("the field of a program that cannot be read", "Use one version of gt everywhere."),
    "WorkerLost": ("the worker, its last run and the line that needed its values", "Start again, resume from a checkpoint, or use `gt.recover()`."),
    "WrongType": ("what a signal's field may be, and what was given", "Correct the field."),
    "WrongValue": ("what a signal's field may be, and what was given", "Correct the field."),
    "_Stale": ("nothing: it ends the use of an old plan of a backward, which is made again", "Nothing."),
}  # fmt: skip

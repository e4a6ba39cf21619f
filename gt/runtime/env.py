"""The only module that reads the environment.

Owns: the table of gt's environment variables, from which the docs page is made. Each is read once, at first use.
Choices that change results are arguments, never variables here. Next: ``log`` (what GT_DEBUG and GT_INSTRUCTION_LOG
do).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gt.ir.advice import nearest_word
from gt.ir.signals import byte_limit

T = TypeVar("T")
VARIABLES: dict[str, Variable[Any]] = {}


@dataclass(eq=False)
class Variable(Generic[T]):
    """One variable: its name, how its text is parsed, the default and one line of documentation."""

    name: str
    parse: Callable[[str], T]
    default: T
    doc: str
    _read: list[T] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        VARIABLES[self.name] = self

    def get(self) -> T:
        """Give the value, read from the environment at the first call. Errors: ValueError naming the variable."""
        if not self._read:
            self._read.append(self.read())
        return self._read[0]

    def read(self) -> T:
        """Give what the environment says now. Errors: ValueError naming the variable."""
        name, text = self.name, os.environ.get(self.name)
        if not text:
            name, text = _by_older_names(self)
        try:
            return self.default if not text else self.parse(text)
        except ValueError as e:
            raise ValueError(f"{name}={os.environ.get(name)!r}: {e}. {self.doc}") from None

    def set(self, value: T) -> None:
        """Use ``value`` from here on, whatever the environment says."""
        self._read[:] = [value]

    def forget(self) -> None:
        """Read the environment again at the next ``get``."""
        self._read.clear()


YES, NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def flag(text: str) -> bool:
    """Parse 1/0, true/false, yes/no, on/off."""
    low = text.strip().lower()
    if low in YES:
        return True
    if low in NO:
        return False
    raise ValueError(f"expected {_choice(YES)}, or {_choice(NO)}")


def _choice(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}"


def one_of(*choices: str) -> Callable[[str], str]:
    """Parse a word out of ``choices``."""

    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


def at_least(low: int) -> Callable[[str], int]:
    """Parse an integer not below ``low``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise ValueError(f"expected an integer >= {low}")
        return value

    return parse


def server_address(text: str) -> str:
    """Parse host:port, or an endpoint such as ipc:///run/d."""
    scheme, _, rest = text.rpartition("://")
    host, _, port = rest.rpartition(":")
    known = rest if scheme in ("ipc", "inproc") else scheme in ("", "tcp") and host and port.isdigit() and 0 < int(port) < 65536
    if not known:
        raise ValueError(f"expected an address like 'localhost:12345', got {text!r}")
    return text


def backend(text: str) -> str:
    """Parse the name of an engine; pytorch is an older name of torch."""
    return one_of("torch", "numpy")("torch" if text == "pytorch" else text)


BACKEND = Variable("GT_BACKEND", backend, "torch", "Engine that runs programs: torch or numpy.")
EMBEDDED = Variable("GT_EMBEDDED", flag, False, "Run in this process on a GPU too, rather than in a worker process.")
CONFIG = Variable("GT_CONFIG", str, "", "YAML file of signals, loaded when they are first needed.")
ADDRESS = Variable("GT_ADDR", server_address, "", "host:port of a gt server that a script joins instead of starting its own.")
JOB = Variable(
    "GT_JOB", flag, False,
    "Set by gt run and gt launch for their script: the workers at GT_ADDR are its alone, and errors of gt that end it are exit codes.",
)  # fmt: skip
KEY_FILE = Variable("GT_KEY_FILE", str, "", "Key file of this client, worker or server, as `gt keygen` makes them: who it is.")
DEBUG = Variable("GT_DEBUG", at_least(0), 0, "Log level: 1 warnings, 2 plans and flushes, 3 every message, 4 all.")
INSTRUCTION_LOG = Variable("GT_INSTRUCTION_LOG", str, "", "File that gets one line per event of clients, dispatcher and workers.")
DASHBOARD_TOKEN = Variable(
    "GT_DASHBOARD_TOKEN", str, "", "What opens a server's web page and metrics. Unset: drawn anew where the page needs one."
)
OPENTELEMETRY = Variable(
    "GT_OPENTELEMETRY", flag, False, "Tell what runs and takes time as OpenTelemetry spans, to the provider that the process has."
)
DUMP = Variable("GT_DUMP", str, "", "Folder that gets every new graph as a .gtir file, which `gt compile` reads.")
CHECK = Variable(
    "GT_CHECK",
    one_of("numpy", "nan"),
    "",
    "numpy: run every flush on NumPy too, in the client, and name the first op that differs; nan: so, and the first that makes NaN. Slow.",
)
AUTO_SHARD = Variable("GT_AUTO_SHARD", flag, True, "Split created tensors by rows over the workers where nothing is configured.")
COMPILE_AFTER = Variable(
    "GT_COMPILE_AFTER", at_least(0), 200,
    "Runs of a program before it is compiled, once they took 2 s in all (on a GPU at most 10 runs, 0.5 s); 0: never, nor captured as a CUDA graph.",
)  # fmt: skip
STRICT = Variable("GT_STRICT", flag, False, "Make signals that cannot be followed errors instead of warnings.")
RECOVER = Variable("GT_RECOVER", flag, False, "Go on after the loss of a worker, as after gt.recover().")
WINDOW = Variable(
    "GT_WINDOW", at_least(1), 32,
    "Runs a client may have in flight before a flush waits; of runs over 1 ms, 8. A server's own counts for its clients.",
)  # fmt: skip


def nbytes(text: str) -> int | None:
    """Parse a number of bytes, as 4000000, "300kB" or "4GiB"; 0 for no limit."""
    return byte_limit(text, least=0) or None


def number(text: str) -> float:
    """Parse a number, nan where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def over_zero(text: str) -> float:
    """Parse a number over 0."""
    value = number(text)
    if not 0 < value < math.inf:
        raise ValueError("expected a number over 0")
    return value


def at_least_zero(text: str) -> float:
    """Parse a number from 0 up."""
    value = number(text)
    if not 0 <= value < math.inf:
        raise ValueError("expected a number from 0 up")
    return value


INSTRUCTION_LOG_SIZE: Variable[int | None] = Variable(
    "GT_INSTRUCTION_LOG_SIZE", nbytes, 64 << 20,
    'Bytes, such as "64MiB", at which the instruction log goes on in a fresh file; FILE.1 keeps the one before. 0: no limit.',
)  # fmt: skip
CLIENT_MEMORY = Variable(
    "GT_CLIENT_MEMORY", nbytes, None,
    'Bytes of values that each client of a server may hold on all workers together, such as "40GiB"; 0: no limit.',
)  # fmt: skip
WORKER_MEMORY = Variable(
    "GT_WORKER_MEMORY", nbytes, None,
    'Bytes that a worker may use for values and runs, such as "70GiB"; what would take more is refused before it begins. 0: no limit.',
)  # fmt: skip
PRIORITY = Variable(
    "GT_PRIORITY", over_zero, 1.0, "Weight of this script among the clients of a server, within what the server allows."
)
MAX_PRIORITY = Variable("GT_MAX_PRIORITY", over_zero, 1.0, "The most that a client of this server may ask for as its priority.")
NATIVE = Variable("GT_NATIVE", flag, True, "Record ops by the compiled module, where it has been built; 0: in Python.")
SHARED_MEMORY = Variable(
    "GT_SHARED_MEMORY", flag, True, "Move large arrays between processes of one host through shared memory; 0: through sockets."
)
EPOCH_TIMEOUT_S = Variable(
    "GT_EPOCH_TIMEOUT", over_zero, 1800.0, "Seconds a worker may be busy with one run before a server counts it as stuck."
)
WORKER_LEASE_S = Variable(
    "GT_WORKER_LEASE", at_least_zero, 60.0,
    "Seconds that a gt worker whose server is gone keeps its values and waits for it to be started again; 0: it ends.",
)  # fmt: skip
GROUP_TIMEOUT_S = Variable("GT_GROUP_TIMEOUT", over_zero, 60.0, "Seconds a collective may wait for another worker.")


@dataclass(frozen=True)
class OlderName:
    """A variable of gt before it was rewritten: what it stands for, if ``stands_for`` is not given itself; with none it warns.

    ``texts``: what its values mean there; a value that is not among them means itself. Where "1" is among them it was a flag: words
    for yes and no mean 1 and 0.
    """

    name: str
    stands_for: Variable[Any] | None
    doc: str
    texts: Mapping[str, str] = field(default_factory=dict)

    def meaning(self, text: str) -> str:
        """Give what one of its values is there. Errors: ValueError naming it, for what is no flag and no number where it was a flag."""
        if "1" in self.texts and not text.isdigit():
            try:
                text = "1" if flag(text) else "0"
            except ValueError as e:
                raise ValueError(f"{self.name}={text!r}: {e}. {self.doc}") from None
        return self.texts.get(text, text)


OFF = {"0": ""}
OLDER_NAMES = (
    OlderName("GT_COMPILE", COMPILE_AFTER, "1: as `GT_COMPILE_AFTER=1`; 0: as `GT_COMPILE_AFTER=0`.", {"1": "1"}),
    OlderName("GT_AUTO_COMPILE", COMPILE_AFTER, "0: as `GT_COMPILE_AFTER=0`; 1: as without it, what is run often is compiled.", {"1": ""}),
    OlderName("GT_HOTPATH_THRESHOLD", COMPILE_AFTER, "As `GT_COMPILE_AFTER`."),
    OlderName("GT_VERBOSE", DEBUG, "1: as `GT_DEBUG=2`.", {**OFF, "1": "2"}),
    OlderName("GT_DEBUG_CLIENT", DEBUG, "1: as `GT_DEBUG=3`, which tells of every message.", {**OFF, "1": "3"}),
    OlderName("GT_DEBUG_DISPATCHER", DEBUG, "1: as `GT_DEBUG=3`.", {**OFF, "1": "3"}),
    OlderName("GT_DEBUG_WORKER", DEBUG, "1: as `GT_DEBUG=3`.", {**OFF, "1": "3"}),
    OlderName("GT_DEBUG_COMPILE", DEBUG, "1: as `GT_DEBUG=4`, which shows each new graph.", {**OFF, "1": "4"}),
    OlderName("GT_WORKER_BATCH_SIZE", None, "a flush is one message, however many ops it has; `GT_WINDOW` says how many may be in flight"),
    OlderName("GT_HOTPATH_WINDOW", None, "graphs are compiled whole; `GT_COMPILE_AFTER` says when"),
    OlderName("GT_HOTPATH_MIN_SEQ", None, "graphs are compiled whole; `GT_COMPILE_AFTER` says when"),
    OlderName("GT_HOTPATH_MAX_EXPAND", None, "graphs are compiled whole; `GT_COMPILE_AFTER` says when"),
    OlderName("GT_SAVE_COMPILED_CODE", None, "`gt compile SCRIPT --dump-ir` shows what a script becomes"),
)  # fmt: skip


def _by_older_names(variable: Variable[Any]) -> tuple[str, str | None]:
    """Give the older name that says something of a variable, and what it says; of several the greatest number counts."""
    said = [(older, os.environ.get(older.name, "").strip()) for older in OLDER_NAMES if older.stands_for is variable]
    texts = [(older.meaning(text), older.name) for older, text in said if text]
    text, name = max((t for t in texts if t[0]), key=lambda t: (t[0].isdigit() and int(t[0]), t), default=(None, variable.name))
    return name, text


def check() -> None:
    """Look at all variables that are given, before anything is started with one of them. Errors: ValueError naming the variable."""
    for variable in VARIABLES.values():
        if not variable._read:
            variable.read()


def without_effect() -> list[str]:
    """Say of each variable that is given and has no effect any more, or is nearly one's name, what to use instead."""
    known = {older.name: older for older in OLDER_NAMES}
    found = []
    for name in sorted(n for n in os.environ if n.startswith("GT_") and os.environ[n] and n not in VARIABLES):
        if name in known:
            found += [] if known[name].stands_for else [f"{name} has no effect: {known[name].doc}"]
        elif near := nearest_word(name, VARIABLES, 0.8):
            found.append(f"{name} has no effect: did you mean {near}?")
    return found


def text_of(name: str) -> str:
    """Give what the environment says of a variable that is the user's own, "" if nothing."""
    return os.environ.get(name, "")


def table() -> str:
    """Give the variables as a Markdown table, for the docs; older names last."""
    rows = [f"| `{v.name}` | `{v.default!r}` | {v.doc} |" for v in VARIABLES.values()]
    for older in OLDER_NAMES:
        rows.append(
            f"| `{older.name}` | older name | {older.doc if older.stands_for else f'No effect, and a warning: {older.doc}.'} |"
        )
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows])

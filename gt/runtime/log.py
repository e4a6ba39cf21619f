"""What gt says while it runs: the instruction log and the debug levels.

Owns: ``InstructionLog`` (``GT_INSTRUCTION_LOG``: one line per event), ``setup_logging`` (``GT_DEBUG`` through stdlib
logging) and ``open_log``, which sends each event to whichever of the two is asked for, to whoever traces, and to ``spans``. Must not know: states,
sockets. Next: ``log_lines`` (the form of a line, and who reads it), ``env`` (the variables).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import itertools
import logging
import os
import stat
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any, NamedTuple

from gt.runtime import env
from gt.runtime.log_lines import HEADER, named, parse_log, start_of
from gt.runtime.spans import Spans, open_spans

LEVELS = {0: logging.ERROR, 1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG, 4: 5}
SIGNS_OF_LIFE = frozenset(("Beat", "Ping", "Used"))  # told at GT_DEBUG=4 only: they would fill the file of an idle server
MAX_LINE = 4000
LOOKS = 64  # how often in a file of full size each process looks whether it is full
LOOK_S = 1.0  # between two looks whether the file of the path is still the one that is written: others may have begun a fresh one
MAX_TRACED = 16 << 20  # bytes of traced lines
SHOWN = ("key", "buffer", "request", "epoch", "plan", "uid", "worker", "runs", "inline", "kind", "device", "backend")


_SHOWN: dict[type, tuple[str, ...]] = {}  # by kind of message
_ended: set[str] = set()  # files that this process has said of that they cannot be written: client, dispatcher and worker may be one


class TracedLines(NamedTuple):
    """The latest lines of a trace, ``left_out`` before them. ``start``: the wall clock's seconds at which elapsed time is 0."""

    start: float
    lines: tuple[str, ...]
    left_out: int


class InstructionLog:
    """Appends ``elapsed sequence event who operation nbytes details`` lines to a file that several processes share.

    Each line is one O_APPEND write, so lines of different processes never mix and a crash loses none already logged. A process's threads
    write one after another: lines have their sequence numbers, and their times, in order.
    Elapsed seconds count from the file's first line, on the machine's wall clock. A file of ``limit`` bytes becomes ``PATH.1``, in place
    of the one before, and a fresh one goes on. With a ``logger``, each event is a debug line too; without a ``path``, it is only that.
    ``spans`` hears of each, too. ``tag``: which dispatcher ``who`` belongs to. The first of a file names it in the file's first line; in lines of
    the others it follows ``who``, so that scripts that write one file are told apart.
    ``on``: whether anybody wants lines; callers look at it first.
    """

    def __init__(
        self,
        path: str,
        who: str,
        logger: logging.Logger | None = None,
        signs_of_life: bool = False,
        limit: int | None = None,
        spans: Spans | None = None,
        tag: str = "",
    ) -> None:
        self.tag = self.owner = tag
        self.who, self.sequence, self.logger, self.signs_of_life = who, 0, logger, signs_of_life
        self.path, self.limit, self.spans = path, limit, spans
        self.file, self.start = -1, time.time()
        self.lock, self.waiting = threading.RLock(), deque[str]()
        self.writing = False
        self.written, self.looked = 0, self.start  # bytes since the file's size was looked at; when its path was
        self._kept: deque[tuple[int, float, str, str, int, str, Any]] | None = None
        self._numbers = itertools.count(1)
        if path:
            self._open()
        self.on = self._is_wanted

    @property
    def _is_wanted(self) -> bool:
        return self.file >= 0 or self.logger is not None or self.spans is not None or self._kept is not None

    def _open(self) -> None:
        """Write to the file of the path from here on, and no more to the one before. Errors: OSError; then nothing has changed."""
        while True:
            try:
                file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            except OSError as e:
                raise self._cannot("opened", e.errno, e.strerror) from None
            fcntl.flock(file, fcntl.LOCK_EX)
            if self._is_current(file):
                break
            os.close(file)  # another process has just begun a fresh one
        try:
            self._begin(file)
        except BaseException:
            os.close(file)
            raise
        fcntl.flock(file, fcntl.LOCK_UN)
        before, self.file = self.file, file
        if before >= 0:
            os.close(before)

    def _begin(self, file: int) -> None:
        """Take over since when a file's times count, and whose names are plain; write it where there is none. Errors: OSError."""
        try:
            head = os.pread(file, 3 * MAX_LINE, 0).decode(errors="replace")
            if head.startswith(HEADER):
                self.start, self.owner = start_of(head.partition("\n")[0])
            else:
                if head and stat.S_ISREG(os.fstat(file).st_mode):
                    parse_log(head.split("\n"))  # one whose beginning was cut off
                os.write(file, header(self.start, self.owner).encode())
        except OSError as e:  # no room on the disk, for one
            raise self._cannot("written", e.errno, "it is no plain file" if e.errno == errno.ESPIPE else e.strerror) from None
        except ValueError:
            raise self._cannot("written", errno.EEXIST, "it has something else in it") from None

    def _cannot(self, what: str, number: int | None, why: str | None) -> OSError:
        return OSError(number, f"{env.INSTRUCTION_LOG.name}: the file cannot be {what}: {why}", self.path)

    def _is_current(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _rotate(self) -> None:
        """Go on in a fresh file, made by the first of the processes that finds this one full."""
        fcntl.flock(self.file, fcntl.LOCK_EX)
        if self._is_current(self.file):
            fresh, older = f"{self.path}.{os.getpid()}.new", f"{self.path}.{os.getpid()}.old"
            try:
                with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                    file.write(header(self.start, self.owner))
                os.link(self.path, older)  # there is a file of the path at every moment
                os.rename(older, f"{self.path}.1")
                os.rename(fresh, self.path)
            except OSError:
                for part in (fresh, older):
                    with suppress(OSError):
                        os.unlink(part)
                raise
        self._open()

    def write(self, event: str, operation: str = "-", nbytes: int = 0, details: str = "", message: Any = None) -> None:
        """Append one line. Of a ``message`` the details have the small fields, too. A line that is traced is made when it is asked for."""
        if operation in SIGNS_OF_LIFE and not self.signs_of_life:
            return
        kept = self._kept
        if kept is not None:
            kept.append((next(self._numbers), time.time(), event, operation, nbytes, details, message))
        if self.file < 0 and self.logger is None and self.spans is None:
            return
        details = _details(details, message)
        if self.spans is not None:
            self.spans.tell(event, operation, nbytes, details)
        if self.logger is not None:
            self.logger.debug("%s %s %s %d %s", event, self.who, operation, nbytes, details)
        if self.file < 0:
            return
        who = self.who if self.tag == self.owner else named(self.who, self.tag)
        self.waiting.append(f"{event} {who} {operation or '-'} {nbytes} {details}".rstrip())
        with self.lock:
            if self.writing:
                return  # a signal handler or finalizer within a write of this thread, which writes this line next
            self.writing = True
            try:
                while self.waiting and self.file >= 0:
                    now = time.time()
                    if abs(now - self.looked) >= LOOK_S:
                        self._follow(now)
                    self.sequence += 1
                    self._put(f"{now - self.start:.6f} {self.sequence} {self.waiting.popleft()}"[:MAX_LINE])
            except OSError as e:  # no room on the disk, for one: the program itself goes on
                if self.path not in _ended:
                    _ended.add(self.path)
                    logging.getLogger("gt.log").error("the instruction log %s ends here, it cannot be written: %s", self.path, e)
                self._close_file()
            finally:
                self.writing = False

    def goes_on(self, who: str, tag: str) -> None:
        """Be ``who`` of the dispatcher ``tag``, and say so if it was started in the place of the one before."""
        before, self.who, self.tag = self.tag, who, tag
        if self.on and before != tag:
            self.write("restart", "-", 0, f"after={before}")

    def _follow(self, now: float) -> None:
        """Go on in the file that the path names, if it is another one by now."""
        self.looked = now
        if not self._is_current(self.file):
            self._open()

    def _put(self, line: str) -> None:
        self.written += os.write(self.file, (line + "\n").encode(errors="backslashreplace"))
        if self.limit is not None and self.written * LOOKS > self.limit:  # others write, too
            self.written = 0
            if os.lseek(self.file, 0, os.SEEK_CUR) > self.limit:
                self._rotate()

    # -- tracing

    def trace(self, num_lines: int) -> None:
        """Keep the latest ``num_lines`` lines from here on in memory."""
        self._numbers = itertools.count(1)
        self._kept = deque(maxlen=num_lines)
        self.on = True

    def traced(self) -> TracedLines:
        """Give what was traced, MAX_TRACED bytes of it at most, and end it."""
        kept, self._kept = self._kept, None
        self.on = self._is_wanted
        events = sorted(kept or (), key=lambda event: event[0])
        lines, nbytes, latest = [], 0, float("inf")
        for number, now, event, operation, size, details, message in reversed(events):
            latest = min(now, latest)  # another thread's may have been a moment late
            text = f"{event} {self.who} {operation or '-'} {size} {_details(details, message)}".rstrip()
            lines.append(f"{latest - self.start:.6f} {number} {text}"[:MAX_LINE])
            nbytes += len(lines[-1])
            if nbytes > MAX_TRACED:
                break
        seen = events[-1][0] if events else 0
        return TracedLines(self.start, tuple(reversed(lines)), seen - len(lines))

    def _close_file(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1
        self.on = self._is_wanted

    def close(self) -> None:
        with self.lock:
            self._close_file()


def header(start: float, owner: str = "") -> str:
    """Give the first line of a file whose elapsed times count from ``start``, in seconds since 1970. ``owner``: the tag of plain names."""
    whose = f" of={owner}" if owner else ""
    return f"{HEADER}: elapsed_s sequence event who operation nbytes details; start={start!r}{whose}\n"


def _details(details: str, message: Any) -> str:
    if message is not None:
        details = f"{details} {brief(message)}" if details else brief(message)
    return details.replace("\n", "\\n") if "\n" in details else details


def brief(message: Any) -> str:
    """Give the small fields of a message as details."""
    kind = type(message)
    names = _SHOWN.get(kind)
    if names is None:
        fields = getattr(kind, "__struct_fields__", ())
        names = _SHOWN[kind] = tuple(name for name in SHOWN if name in fields)
    words = [f"{name}={getattr(message, name)}" for name in names]
    made = getattr(message, "outputs", None)
    if made:
        words.append(f"made={made[0]}")
    reads = getattr(message, "reads", None)
    if reads is not None:
        words.append(f"request={getattr(reads[1], 'request', reads[1])}")
    earlier = getattr(message, "earlier", None)
    if earlier:
        words.append(f"earlier={','.join(str(epoch) for epoch, _ in earlier)}")
    return " ".join(words)


@functools.cache
def own_tag(pid: int) -> str:
    """Give what tells the dispatchers of this process, whose id is ``pid``, and who works with them, from others in one file."""
    return os.urandom(3).hex()


def open_log(who: str, tag: str = "") -> InstructionLog:
    """Give a log that writes to the file GT_INSTRUCTION_LOG names, to the logger from GT_DEBUG=3 on, and to spans; it may be off."""
    path, level = env.INSTRUCTION_LOG.get(), env.DEBUG.get()
    logger = setup_logging(who) if level >= 3 else None
    return InstructionLog(path, who, logger, level >= 4, env.INSTRUCTION_LOG_SIZE.get(), open_spans(who), tag)


def open_client_log(client: int, tag: str) -> InstructionLog:
    """Give the log of a session of this process, which ``client_log`` names from here on."""
    global client_log
    _ended.clear()
    client_log = open_log(f"client{client}", tag)
    return client_log


client_log: InstructionLog = InstructionLog("", "client")  # of the latest session


def setup_logging(who: str) -> logging.Logger:
    """Give the logger ``gt.<who>`` with the level that GT_DEBUG asks for; lines go to stderr."""
    root = logging.getLogger("gt")
    level = env.DEBUG.get()
    if not level and root.level == logging.NOTSET:
        root.setLevel(LEVELS[0])
    if level and not root.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(LEVELS[min(level, 4)])
    return logging.getLogger(f"gt.{who}")

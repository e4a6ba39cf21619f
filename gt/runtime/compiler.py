"""The compiled tier: pieces compiled by Inductor in another process, to artefacts without guards, kept on disk.

Compiling in this process would take the interpreter lock from the runs. Children compile and save; threads here load
what they saved. Artefacts hold pickles, so their folder is this user's alone. Their names carry no rank, device index
or process. Owns: ``Compiler``, artefact keys and their folder. Must not know: programs, when to compile.
Next: ``compile_process`` (the child), ``executor`` (who asks).
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import os
import platform
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from gt.runtime.compile_process import InputSpec, Reply, Request, receive, send, use_inductor_cache
from gt.runtime.kernel_loading import load_without_lock, tune_in_little_memory
from gt.runtime.layout import Piece
from gt.runtime.private import check_file, check_folder, private_folder

DEADLINE_S = 1800.0  # a compile that takes longer is given up and its process killed
DEFAULT_FOLDER = Path("~/.cache/gt/compiled")
_CLOSED = "the engine is closed"
MAX_CHILDREN = 8  # on a GPU, where distinct regions compile side by side
_CHILD = "import sys; sys.path[:] = sys.argv[1:]; from gt.runtime.compile_process import serve; serve()"


class CompileError(RuntimeError):
    """A piece could not be compiled; it stays eager."""


def spec_of(t: torch.Tensor) -> InputSpec:
    return InputSpec(tuple(t.shape), t.stride(), str(t.dtype).removeprefix("torch."))


@dataclass(frozen=True)
class Compiled:
    """A loaded artefact. ``function`` takes the inputs and the packed scalars, and gives the outputs that are new.

    ``kept[i]`` is the input that output ``i`` is after the call, -1 if it is new. ``seconds``: what compiling took.
    """

    function: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
    kept: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    seconds: float


# -- keys and folder


@functools.cache
def _code_version() -> bytes:
    """Hash what decides the source of a piece: the op table, its kernels and the renderer."""
    root = Path(__file__).resolve().parent
    files = [*(root.parent / "ir" / "ops").glob("*.py"), *root.glob("*kernels*.py")]
    files += [root / "layout.py", root / "render.py", root / "compile_process.py", root / "last_sums.py"]
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.read_bytes())
    return digest.digest()


@functools.cache
def _hardware(device: str) -> str:
    """Name the kind of device, without its index."""
    if device.startswith("cuda"):
        return f"{torch.cuda.get_device_name(device)} {torch.cuda.get_device_capability(device)} {torch.version.cuda}"
    return f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}"


def artefact_key(piece: Piece, specs: Sequence[InputSpec], device: str, threads: int) -> str:
    """Give the name of an artefact: equal for equal pieces, layouts, code, torch, precision and kinds of device."""
    kind = _hardware(device) + (f" {threads} threads" if device == "cpu" else torch.get_float32_matmul_precision())
    text = f"{torch.__version__} {sys.version_info[:2]} {kind}".encode()
    digest = hashlib.sha256(_code_version() + text)
    digest.update(msgspec.msgpack.encode((piece, tuple(specs))))
    return digest.hexdigest()[:40]


def cache_folder(folder: Path) -> Path:
    """Make a folder only this user can enter. Errors: CompileError if it exists and others can."""
    try:
        return private_folder(folder)
    except OSError as e:
        raise CompileError(f"no folder for compiled code: {e}") from None


# -- this side


class Compiler:
    """Gives compiled pieces as futures. Threads ask a child each, and load; both start at the first need."""

    def __init__(self, device: torch.device, folder: Path | None = None) -> None:
        self.device = str(device)
        self.threads = torch.get_num_threads()
        self.folder = cache_folder(folder or DEFAULT_FOLDER)
        many = max(1, min(MAX_CHILDREN, (os.cpu_count() or 1) // 2))
        self.children = [_Child(self.folder) for _ in range(1 if device.type == "cpu" else many)]
        self._known: dict[str, Future[Compiled]] = {}
        self._todo: queue.SimpleQueue[tuple[Request, Future[Compiled]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._loading = threading.Lock()
        self._closed = self._registered = False

    def path(self, piece: Piece, specs: Sequence[InputSpec]) -> Path:
        return self.folder / f"{artefact_key(piece, specs, self.device, self.threads)}.bin"

    def is_cached(self, piece: Piece, specs: Sequence[InputSpec]) -> bool:
        """Tell whether an artefact is on disk, so that loading it needs no compile."""
        return self.path(piece, specs).exists()

    def warm(self) -> None:
        """Start the children, whose first seconds go into imports, before anything is asked of them."""
        self._end_at_exit()
        for child in self.children:
            child.start()

    def submit(self, piece: Piece, specs: Sequence[InputSpec]) -> Future[Compiled]:
        """Compile or load in the background. The future raises CompileError."""
        path = self.path(piece, specs)
        found = self._known.get(path.name)
        if found is not None:
            return found
        future: Future[Compiled] = Future()
        self._known[path.name] = future
        if self._closed:
            future.set_exception(CompileError(_CLOSED))
            return future
        self._end_at_exit()
        if len(self._threads) < len(self.children):
            child = self.children[len(self._threads)]
            self._threads.append(threading.Thread(target=self._work, args=(child,), name="gt-compiler", daemon=True))
            self._threads[-1].start()
        precision = torch.get_float32_matmul_precision()
        self._todo.put((Request(piece, tuple(specs), self.device, self.threads, precision, str(path)), future))
        return future

    def close(self) -> None:
        """Kill the children and end the threads. Idempotent."""
        self._closed = True
        self._kill()
        for _ in self._threads:
            self._todo.put(None)
        for thread in self._threads:
            thread.join(timeout=30)  # a load under way cannot be broken off
        self._threads.clear()
        atexit.unregister(self.close)
        for child in self.children:
            child.close()

    def _end_at_exit(self) -> None:
        if not self._registered:
            self._registered = True
            atexit.register(self.close)  # later than torch's, so earlier: a load that its exit breaks off tells of it on stderr

    def _kill(self) -> None:
        for child in self.children:
            child.end()

    def _work(self, child: _Child) -> None:
        torch.set_grad_enabled(False)
        while (job := self._todo.get()) is not None:
            request, future = job
            try:
                if self._closed:
                    raise CompileError(_CLOSED)
                future.set_result(self._obtain(request, child))
            except CompileError as e:
                future.set_exception(e)
            except Exception as e:
                future.set_exception(CompileError(f"{type(e).__name__}: {e}"))

    def _obtain(self, request: Request, child: _Child) -> Compiled:
        seconds = 0.0
        if not Path(request.path).exists():
            seconds = child.ask(request)
        kept = request.piece.kept()
        with self._loading:
            function = _load(request.path, self.folder)
        return Compiled(function, kept, tuple(s.stride for s in request.specs), seconds)


class _Child:
    """One compiling process, started again after it died. Asked by one thread; ended by any."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.chatter = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self.lock = threading.Lock()
        self.closed = False

    def ask(self, request: Request) -> float:
        """Compile; give the seconds. Errors: CompileError with the child's report."""
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, msgspec.msgpack.encode(request))
            importlib.import_module("torch._inductor")  # needed for loading; meanwhile the child compiles
            ready, _, _ = select.select([process.stdout], [], [], DEADLINE_S)
            body = receive(process.stdout) if ready else None
        except (OSError, ValueError):  # the child died, or close() took the pipes away
            body = None
        if body is None:
            closed = self.closed
            self._stop()
            raise CompileError(_CLOSED if closed else f"the compiling process ended: {self._last_words()}")
        reply = msgspec.msgpack.decode(body, type=Reply)
        if reply.error:
            raise CompileError(reply.error)
        return reply.seconds

    def start(self) -> subprocess.Popen[bytes]:
        """Give the running process. Errors: CompileError once it was ended."""
        with self.lock:
            if self.closed:
                raise CompileError(_CLOSED)
            if self.process is None or self.process.poll() is not None:
                path = [entry for entry in sys.path if entry]
                self.chatter.truncate(0)
                self.process = subprocess.Popen(
                    [sys.executable, "-c", _CHILD, *path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=self.chatter, start_new_session=True, cwd=self.folder,
                )  # fmt: skip
            return self.process

    def end(self) -> None:
        """Kill the process for good."""
        self.closed = True
        self._stop()

    def close(self) -> None:
        self.end()
        self.chatter.close()

    def _stop(self) -> None:
        with self.lock:
            process, self.process = self.process, None
        if process is None:
            return
        _kill_group(process.pid)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _last_words(self) -> str:
        """Give the last line that the process wrote to stderr."""
        size = os.fstat(self.chatter.fileno()).st_size
        lines = os.pread(self.chatter.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _load(path: str, folder: Path) -> Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]:
    """Load an artefact, which runs what is in it: nobody else may have written it. Errors: CompileError."""
    try:
        check_folder(folder)
        check_file(Path(path), others=0o022)
        use_inductor_cache(folder)
    except OSError as e:
        raise CompileError(f"compiled code that others may have written is not used: {e}") from None
    inductor = importlib.import_module("torch._inductor")  # seconds, so only once something is compiled
    load_without_lock()
    tune_in_little_memory()
    artefact = inductor.CompiledArtifact.load(path=path, format="binary")

    def call(args: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        out = artefact(*args)
        return (out,) if isinstance(out, torch.Tensor) else out

    return call


__all__ = ["CompileError", "Compiled", "Compiler", "InputSpec", "artefact_key", "cache_folder", "spec_of"]

"""The process that compiles pieces: asked over a pipe, it saves artefacts and ends with its parent.

It renders a piece's source from the op table, traces it on fake tensors of the given layouts, and has Inductor compile
it without guards. Owns: what passes over the pipe, ``serve``. Must not know: programs, when to compile.
Next: ``compiler`` (the asking side).
"""

from __future__ import annotations

import fcntl
import importlib
import os
import queue
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import torch

from gt.runtime import kernels
from gt.runtime.last_sums import use_sum_rows
from gt.runtime.layout import Piece
from gt.runtime.private import check_folder
from gt.runtime.render import build, render_piece, vector_sizes


class InputSpec(msgspec.Struct, frozen=True, array_like=True):
    """The layout an artefact is made for."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


class Request(msgspec.Struct, frozen=True):
    """What the child is asked: compile ``piece`` for inputs of these layouts and save it at ``path``."""

    piece: Piece
    specs: tuple[InputSpec, ...]
    device: str
    threads: int
    precision: str  # of float32 matrix products, in torch's words
    path: str


class Reply(msgspec.Struct, frozen=True):
    """Empty ``error``: the artefact is at the request's path."""

    error: str
    seconds: float


# -- the pipe


def send(pipe: BinaryIO | Any, body: bytes) -> None:
    pipe.write(len(body).to_bytes(8, "little") + body)
    pipe.flush()


def receive(pipe: BinaryIO | Any) -> bytes | None:
    """Read one message; None at the end."""
    head = _read_exactly(pipe, 8)
    return None if head is None else _read_exactly(pipe, int.from_bytes(head, "little"))


def _read_exactly(pipe: BinaryIO | Any, size: int) -> bytes | None:
    body = bytearray()
    while len(body) < size:
        part = pipe.read(size - len(body))
        if not part:
            return None
        body += part
    return bytes(body)


# -- compiling


def use_inductor_cache(folder: Path) -> None:
    """Keep Inductor's own files, which an artefact refers to on CPU, beside the artefacts. They are run as they are read.

    Errors: OSError if others may write to the folder that TORCHINDUCTOR_CACHE_DIR names.
    """
    own = folder / "inductor"
    own.mkdir(mode=0o700, exist_ok=True)
    own.chmod(0o700)
    named = Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(own)))
    named.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_folder(named, others=0o022)


def serve() -> None:
    """Compile what comes on stdin until it ends, or the parent does; then end at once with everything started here."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a compiler's chatter must not mix with replies
    os.nice(10)
    os.umask(0o077)  # what is saved is run when it is read: nobody else may write to it
    importlib.import_module("torch._inductor")  # seconds, which pass before the first request if started early
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read_requests, args=(requests, os.getppid()), daemon=True).start()
    torch.set_grad_enabled(False)
    while True:
        request = msgspec.msgpack.decode(requests.get(), type=Request)
        start, error = time.perf_counter(), ""
        try:
            compile_piece(request)
        except Exception as e:
            last = traceback.extract_tb(e.__traceback__)[-1]
            error = f"{type(e).__name__}: {str(e)[:2000]} ({Path(last.filename).name}:{last.lineno})"
        send(replies, msgspec.msgpack.encode(Reply(error, time.perf_counter() - start)))


def _read_requests(requests: queue.SimpleQueue[bytes], parent: int) -> None:
    pipe = os.fdopen(0, "rb", buffering=0, closefd=False)  # unbuffered: select must see what is left
    while os.getppid() == parent:  # a fork of the parent may hold the pipe open after the parent's end
        if select.select([pipe], [], [], 1.0)[0]:
            body = receive(pipe)
            if body is None:
                break
            requests.put(body)
    os.killpg(os.getpgrp(), signal.SIGKILL)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time compile an artefact: workers of one host share the folder."""
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compile_piece(request: Request) -> None:
    """Compile one piece and save it, unless another process has meanwhile."""
    path = Path(request.path)
    use_inductor_cache(path.parent)
    inductor = importlib.import_module("torch._inductor")
    proxy = importlib.import_module("torch.fx.experimental.proxy_tensor")
    symbolic = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    fake, guards = importlib.import_module("torch._subclasses.fake_tensor"), importlib.import_module("torch._guards")
    torch.set_num_threads(request.threads)
    torch.set_float32_matmul_precision(request.precision)
    config: Any = importlib.import_module("torch._inductor.config")
    # on CPU a pool costs seconds to start; on a GPU several of these processes compile at once
    config.compile_threads = 1 if request.device == "cpu" else max(1, (os.cpu_count() or 1) // 4)
    config.deterministic = True  # what is timed when a kernel first runs decides no sum's order: the same bits in every process
    config.reorder_for_locality = False  # it has sums computed before the products that write down what they sum
    if torch.device(request.device).type == "cuda":
        use_sum_rows()
    with _locked(path):
        if path.exists():
            return
        device = torch.device(request.device)
        function = build(render_piece(request.piece, "compiled"), torch=torch, kernels=kernels, device=device)
        mode = fake.FakeTensorMode(shape_env=symbolic.ShapeEnv())
        with mode, _compiling():  # fake also while tracing: what the piece creates itself must be too
            examples = _examples(request, device)
            graph = proxy.make_fx(flat(function, request.piece))(*examples)
        with guards.tracing(guards.TracingContext(mode)):
            artefact = inductor.standalone_compile(graph, examples, dynamic_shapes="from_tracing_context")
        artefact.save(path=str(path), format="binary")


@contextmanager
def _compiling() -> Iterator[None]:
    """Make ``torch.compiler.is_compiling()`` true, by which kernels keep from reading a value of a traced tensor."""
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def _examples(request: Request, device: torch.device) -> list[torch.Tensor]:
    out = [
        torch.empty_strided(s.shape, s.stride, dtype=getattr(torch, s.dtype), device=device) for s in request.specs
    ]
    floats, ints = vector_sizes(request.piece.scalars)
    out += [torch.empty(floats, dtype=torch.float64, device=device)] if floats else []
    out += [torch.empty(ints, dtype=torch.int64, device=device)] if ints else []
    return out


def flat(function: Callable[..., list[torch.Tensor]], piece: Piece) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Take inputs and scalar vectors as one list of arguments."""
    floats, _ = vector_sizes(piece.scalars)

    def call(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(args[piece.inputs :])
        vectors = (next(rest) if floats else None), next(rest, None)
        return tuple(function(list(args[: piece.inputs]), *vectors))

    return call


__all__ = ["InputSpec", "Reply", "Request", "compile_piece", "flat", "receive", "send", "serve", "use_inductor_cache"]

"""Starting sessions of each kind: in this process, on local worker processes, at a server.

Owns: what each is made with. Next: ``gt.runtime.embedded``, ``gt.runtime.launch``, ``gt.runtime.remote``.
"""

from __future__ import annotations

from gt.runtime.embedded import EmbeddedSession
from gt.runtime.env import BACKEND, EMBEDDED, WINDOW
from gt.runtime.launch import LocalCluster, start_local, visible_gpus
from gt.runtime.recovering import RecoveringSession
from gt.runtime.remote import RemoteSession
from gt.runtime.session import Session

START_S = 60.0  # in which a dispatcher of this machine answers


def default() -> tuple[Session, LocalCluster | None]:
    """Run in this process, or, if there is a GPU, in one worker process.

    A GPU's steps are short: in this process recording them and starting their kernels would wait for each other.
    """
    backend = BACKEND.get()
    on_gpu = backend == "torch" and visible_gpus()
    if not on_gpu or EMBEDDED.get():
        return EmbeddedSession(backend, "cuda:0" if on_gpu else "cpu", WINDOW.get()), None
    own = cluster(1)
    try:
        return remote(own.address, START_S), own
    except BaseException:
        own.stop()
        raise


def remote(address: str, timeout_s: float) -> Session:
    """Use a server. Errors: ConnectionError within ``timeout_s`` if there is none."""
    return RecoveringSession(lambda keeper: RemoteSession(address, timeout_s, keeper))


def cluster(n: int) -> LocalCluster:
    """Start a dispatcher and ``n`` workers as processes of this machine."""
    return start_local(n, backend=BACKEND.get())

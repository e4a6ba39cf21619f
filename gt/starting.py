"""Starting sessions of each kind: in this process, on local worker processes, at a server.

Owns: what each is made with. Next: ``gt.runtime.embedded``, ``gt.runtime.launch``, ``gt.runtime.remote``.
"""

from __future__ import annotations

from gt.runtime.embedded import EmbeddedSession
from gt.runtime.env import BACKEND, WINDOW
from gt.runtime.launch import LocalCluster, start_local, visible_gpus
from gt.runtime.remote import RemoteSession
from gt.runtime.session import Session


def embedded() -> Session:
    """Run in this process, on the first GPU if there is one."""
    backend = BACKEND.get()
    on_gpu = backend == "torch" and visible_gpus()
    return EmbeddedSession(backend, "cuda:0" if on_gpu else "cpu", WINDOW.get())


def remote(address: str, timeout_s: float) -> Session:
    """Use a server. Errors: ConnectionError within ``timeout_s`` if there is none."""
    return RemoteSession(address, timeout=timeout_s)


def cluster(n: int) -> LocalCluster:
    """Start a dispatcher and ``n`` workers as processes of this machine."""
    return start_local(n, backend=BACKEND.get())

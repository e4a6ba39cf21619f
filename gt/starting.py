"""Starting sessions of each kind: in this process, on local worker processes, at a server.

Owns: what each is made with. Next: ``gt.runtime.embedded``, ``gt.runtime.launch``, ``gt.runtime.remote``.
"""

from __future__ import annotations

import os

from gt.runtime.embedded import EmbeddedSession
from gt.runtime.env import ADDRESS, BACKEND, EMBEDDED, JOB, PRIORITY, WINDOW
from gt.runtime.exit_codes import let_errors_be_codes
from gt.runtime.keys import chosen_keys
from gt.runtime.launch import LocalCluster, start_local, visible_gpus
from gt.runtime.recovering import RecoveringSession
from gt.runtime.remote import Keeper, RemoteSession
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


def remote(
    address: str, timeout_s: float, *, key: str | os.PathLike[str] | None = None, priority: float | None = None
) -> Session:
    """Use a server, as the owner of the key file ``key`` or of the one that GT_KEY_FILE names, with ``priority`` or that of GT_PRIORITY.

    Errors: ConnectionError within ``timeout_s`` if there is none, or it refuses; ValueError for a key file that is none.
    """
    if JOB.get():
        let_errors_be_codes()
    keys = None if address.startswith("ipc://") else chosen_keys(key, "client")
    asked = PRIORITY.get() if priority is None else priority

    def link(*, keeper: Keeper, secret: bytes, timeout: float = timeout_s) -> RemoteSession:
        return RemoteSession(address, timeout, keeper, keys, asked, secret)

    return RecoveringSession(link)


def of_job(n: int) -> Session | None:
    """Use the workers that ``gt run`` or ``gt launch`` started for this script, None if neither did.

    Errors: ValueError if they are not ``n``; ConnectionError.
    """
    if not JOB.get() or not ADDRESS.get():
        return None
    session = remote(ADDRESS.get(), START_S)
    if session.num_workers() != n:
        found = session.num_workers()
        session.close()
        raise ValueError(f"gt.gpu_workers({n}): this script was started with {found} workers: leave the call out, or start {n}")
    return session


def cluster(n: int) -> LocalCluster:
    """Start a dispatcher and ``n`` workers as processes of this machine."""
    return start_local(n, backend=BACKEND.get())

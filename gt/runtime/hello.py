"""Whether two ends fit together: which versions of gt and torch may work with each other. Pure.

gt's versions that differ in the last number only have the same ops and protocol. Workers share collectives and compiled code, so their
torch must be one minor version too. Next: ``dispatcher_state`` (who asks), ``wire`` (the protocol's own version, a byte in front of
every message).
"""

from __future__ import annotations

from gt.ir.version import __version__
from gt.runtime.wire import VERSION, ClientHello, WorkerHello

UNKNOWN = "this peer is not known here: it was lost or never joined"  # also what a dispatcher says that was started in place of another
WAS_LOST = "this worker was lost here, and what it held is given up: start a new one"


def torch_version() -> str:
    """Give the version of the torch that is installed, without loading it; "" if there is none."""
    from importlib import metadata  # takes long to load

    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def hello_fault(hello: ClientHello | WorkerHello, present: str) -> str:
    """Give why a peer cannot be served by this version, with both and what to do; nothing if it can.

    ``present``: the torch of the workers that are here, "" if there are none.
    """
    who = "client" if isinstance(hello, ClientHello) else "worker"
    if _minor(hello.gt) != _minor(__version__):
        return f"the {who} has gt {hello.gt[:40]}, the server gt {__version__}: install the same on both, as in `pip install gt-tensor=={__version__}`"
    if isinstance(hello, WorkerHello) and present and _minor(hello.torch) != _minor(present):
        return (
            f"the worker has torch {hello.torch[:40] or '(none)'}, the workers here torch {present}: install the same on all, as in "
            f"`pip install torch=={present.partition('+')[0]}`"
        )
    return ""


def protocol_fault(theirs: int) -> str:
    """Say that a message came in another version of the protocol."""
    return (
        f"this gt server has gt {__version__}, which speaks protocol version {VERSION}, the message came in version {theirs}: "
        f"install the same gt on both, as in `pip install gt-tensor=={__version__}`"
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


__all__ = ["UNKNOWN", "WAS_LOST", "hello_fault", "protocol_fault", "torch_version"]

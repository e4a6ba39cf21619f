"""Who listens on a port of this machine, where the system lets that be seen.

Next: ``dispatcher`` and ``gt.server``, which tell it when they cannot listen there.
"""

from __future__ import annotations

import psutil


def port_owner(port: int) -> str:
    """Give " by NAME, pid PID" for who listens on a TCP port, "" if that cannot be seen."""
    try:
        listening = (c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN)
        found = next((c for c in listening if c.laddr and c.laddr.port == port), None)
        if found is None or found.pid is None:
            return ""
        return f" by {psutil.Process(found.pid).name()}, pid {found.pid}"
    except (psutil.Error, OSError):
        return ""


__all__ = ["port_owner"]

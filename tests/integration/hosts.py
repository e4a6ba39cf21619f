"""Machines of a test's own: network namespaces joined by a cable, where the system allows them, else addresses of this one.

Next: ``test_launch``.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SETUP = """
set -e
unshare -n sleep 600 & one=$!
unshare -n sleep 600 & two=$!
trap 'kill $one $two' EXIT
for i in $(seq 1500); do
  [ "$(readlink /proc/$one/ns/net)" != "$(readlink /proc/$$/ns/net)" ] && [ "$(readlink /proc/$two/ns/net)" != "$(readlink /proc/$$/ns/net)" ] && break
  sleep 0.02
done
ip link add cable1 type veth peer name cable2
ip link set cable1 netns $one
ip link set cable2 netns $two
nsenter -t $one -n sh -ec 'ip link set lo up; ip addr add 10.77.0.1/24 dev cable1; ip link set cable1 up'
nsenter -t $two -n sh -ec 'ip link set lo up; ip addr add 10.77.0.2/24 dev cable2; ip link set cable2 up'
echo $one $two
read -r _ || true
"""


@dataclass(frozen=True)
class Host:
    """Where a command runs if ``prefix`` stands before it, and how others reach it."""

    address: str
    prefix: tuple[str, ...] = ()


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """Give two machines that reach each other."""
    tools = all(shutil.which(t) for t in ("unshare", "nsenter", "ip"))
    if not tools or subprocess.run(["unshare", "-r", "-n", "unshare", "-n", "true"], stderr=subprocess.DEVNULL).returncode:
        yield Host("127.0.0.2"), Host("127.0.0.3")
        return
    with subprocess.Popen(
        ["unshare", "-r", "-n", "bash", "-c", SETUP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout is not None and holder.stdin is not None
            first, second = (
                ("nsenter", "-t", pid, "-U", "-n", "--preserve-credentials") for pid in holder.stdout.readline().split()
            )
            yield Host("10.77.0.1", first), Host("10.77.0.2", second)
        finally:
            holder.communicate("\n", timeout=60)

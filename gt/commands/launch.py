"""``gt launch script.py``: the same line on every node of a job; node 0 runs the dispatcher and the script, all run workers.

Owns: the command, what node 0 does (``lead``) and what the others do (``follow``). Every wait has a deadline.
Next: ``gt.runtime.launchers`` (which node this is), ``gt.runtime.node_link`` (how nodes hear of each other), ``run`` (one node).
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gt.commands.float_range import FloatRange
from gt.commands.run import default_workers, job_variables, run_here
from gt.commands.script_arguments import ScriptCommand, script_of
from gt.ir.wording import amount
from gt.runtime.launchers import LAUNCHERS, Asked, LauncherError, Place, detect

if TYPE_CHECKING:
    from gt.runtime.keys import Keys
    from gt.runtime.launch import LocalCluster
    from gt.runtime.node_link import NodeLink
    from gt.runtime.script import Supervisor
    from gt.runtime.status import ServerStatus

PORT = 29600
WAIT_S = 300.0
TELL_S = 10.0  # between two lines that say what is waited for
LISTEN_S = 30.0
NEWS_S, LOOK_S = 1.5, 0.05  # in which it is known what has become of the worker that a script has lost
GRACE_S = 20.0  # in which the job must be over once a node was asked to end


class Failure(Exception):
    """Ends the command with a line and a code."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@click.command(cls=ScriptCommand)
@click.argument("source", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does, in place of a script.")
@click.option("--nnodes", "num_nodes", type=click.IntRange(1), help="Nodes of the job, where the launcher does not say.")
@click.option("--node-rank", "node", type=click.IntRange(0), help="This node, from 0, where no launcher says.")
@click.option("--head", metavar="HOST", help="Name or address of node 0, where the launcher does not say.")
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True, help="Port that node 0 listens on.")
@click.option("-n", "--workers", type=click.IntRange(1), help="Workers of this node. [default: one for each GPU, else 1]")
@click.option(
    "--launcher", type=click.Choice(["none", *LAUNCHERS]), help="The only launcher to look for. [default: whichever is here]"
)
@click.option("--wait", "wait_s", type=FloatRange(0, min_open=True), default=WAIT_S, show_default=True,
              help="Seconds in which all nodes and workers must be there.")  # fmt: skip
@click.option(
    "--keys",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of key files that gt keygen made, the same on all nodes.",
)
@click.option("--insecure", is_flag=True, help="Listen beyond this host without keys: whoever reaches the port may use it.")
def launch(
    source: str | None, arguments: tuple[str, ...], module: str | None, num_nodes: int | None, node: int | None, head: str | None,
    port: int, workers: int | None, launcher: str | None, wait_s: float, keys: Path | None, insecure: bool,
) -> None:  # fmt: skip
    """Run SOURCE, a script, on the workers of all nodes of a job. Give the same line on every node, or let srun, torchrun, mpirun,
    SkyPilot or a Kubernetes indexed job do it.

    Node 0 runs the script; the others work for it, and end with its exit code. Options may follow the script; the first word that is none
    of them begins the script's own ARGUMENTS.
    """
    command = script_of(source, module, arguments)
    try:
        full = "JOB_COMPLETION_INDEX" in os.environ  # elsewhere nothing is read from it, and it may take a look-up
        host = socket.getfqdn() if full else socket.gethostname()
        place = detect(os.environ, Asked(num_nodes, node, head, None, launcher), host)
    except LauncherError as e:
        raise click.UsageError(str(e)) from e
    if place.num_nodes == 1:
        _say(f"{place}")
        sys.exit(run_here("gt launch", command, workers))
    job = Job(place, command, workers or default_workers(), port, keys, insecure, time.monotonic() + wait_s, wait_s)
    from gt.runtime.script import Interrupted, Supervisor

    with Supervisor() as supervisor:
        try:
            _say(f"{place}")
            code = job.lead(supervisor) if place.node == 0 else job.follow(supervisor)
        except Interrupted as e:
            code = e.code
        except Failure as e:
            _say(str(e))
            code = e.code
    sys.exit(code)


class Job:
    """What one node does for a job of several. Errors: Failure."""

    def __init__(
        self,
        place: Place,
        command: Sequence[str],
        workers: int,
        port: int,
        keys: Path | None,
        insecure: bool,
        deadline: float,
        wait_s: float,
    ) -> None:
        from gt.runtime import env

        self.place, self.command, self.workers, self.port = place, command, workers, port
        self.insecure, self.deadline, self.wait_s = insecure, deadline, wait_s
        self.folder = None if keys is None else keys.expanduser().absolute()
        self.key: Keys | None = None
        self.backend = env.BACKEND.get()

    def lead(self, supervisor: Supervisor) -> int:
        """Be node 0: listen, wait for all, run the script, tell the others how it ended."""
        from gt.runtime.errors import GtError
        from gt.runtime.exit_codes import ExitCode
        from gt.runtime.launch import LocalCluster
        from gt.runtime.script import Interrupted

        endpoint, code = self._endpoint(), None
        told: list[str] = []
        cluster = LocalCluster(endpoint, None, self.folder)
        try:
            self._listen(cluster)
            with self._link(endpoint) as link:
                cluster.start_workers(self.workers, self.backend)
                self._gather(cluster, link)
                cluster.watch()

                def look() -> None:
                    with suppress(GtError):  # the script hears of it too, and decides
                        link.step(0)
                        link.supervise(cluster)
                    news, link.news = link.news, []
                    for text in (*news, *cluster.ended(" of this node")):
                        told.append(text)
                        _say(text)

                code = supervisor.run(self.command, job_variables(endpoint, self.folder), look)
                until = time.monotonic() + NEWS_S
                while code == ExitCode.WORKER_LOST and not told and time.monotonic() < until:
                    time.sleep(LOOK_S)
                    look()
        except (Interrupted, Failure) as e:
            code = e.code
            raise
        finally:
            supervisor.over = True
            cluster.stop(code)
        return code

    def follow(self, supervisor: Supervisor) -> int:
        """Be another node: wait for node 0, run workers until the job is over, and end as it did."""
        from gt.runtime.exit_codes import ExitCode
        from gt.runtime.launch import LocalCluster

        endpoint, code = self._endpoint(), None
        asked: list[tuple[float, int]] = []  # when this node was asked to end, by which signal
        supervisor.on_signal = lambda number: asked.append((time.monotonic(), number))
        cluster, waiting = LocalCluster(endpoint, None, self.folder), Waiting(f"waiting for node 0 at {endpoint}")
        try:
            with self._link(endpoint) as link:
                while code is None:
                    code = self._step(link, 0.1)
                    link.supervise(cluster)
                    if link.welcome and not cluster.workers:
                        cluster.start_workers(self.workers, self.backend)
                        cluster.watch()
                    for text in cluster.ended(" of this node") if code is None else ():
                        _say(text)
                        if not cluster.restarts_left:
                            link.fail(text)
                    if not link.welcome:
                        waiting.tell()
                        if time.monotonic() > self.deadline:
                            raise Failure(
                                f"node 0 does not answer at {endpoint} within {self.wait_s:g} s: check that it was started, that "
                                f"{self.place.head} is its address, and that port {self.port} is open", ExitCode.SERVER_LOST,
                            )  # fmt: skip
                    if asked and (not link.welcome or len(asked) > 1 or time.monotonic() - asked[0][0] > GRACE_S):
                        code = 128 + asked[0][1]
        finally:
            supervisor.over = True
            cluster.stop()
        return code

    # -- parts of both

    def _endpoint(self) -> str:
        """Give where node 0 listens, once its name is known here."""
        from gt.runtime.exit_codes import ExitCode
        from gt.runtime.transport import is_loopback

        head, waiting = self.place.head, Waiting(f"waiting for the name {self.place.head} to be known")
        while True:
            try:
                address = str(socket.getaddrinfo(head, self.port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
                break
            except OSError as e:
                waiting.tell()
                if time.monotonic() > self.deadline:
                    text = f"{head}, where node 0 should be, cannot be found by name ({e}): give its address with --head"
                    raise Failure(text, ExitCode.SERVER_LOST) from e
                time.sleep(0.5)
        if address.startswith("127.") and head not in (address, "localhost"):  # as /etc/hosts of Debian says of the host itself
            outer = outer_address() if self.place.node == 0 else ""
            if not outer:
                raise Failure(
                    f"{head} is {address} here, which other machines cannot reach: give an address of node 0 with --head",
                    ExitCode.USAGE,
                )
            _say(f"{head} is {address} here, where others cannot reach it: listening on {outer}, as which they must know it")
            address = outer
        endpoint = f"tcp://{address}:{self.port}"
        self.key = self._read_keys()
        if not is_loopback(endpoint) and self.key is None and not self.insecure:
            raise Failure(
                f"{address} is reachable from other machines, as this node's workers would be, and there are no keys: anyone there could "
                "run programs. Name a folder that gt keygen made with --keys. Say --insecure if whoever reaches them may", ExitCode.USAGE,
            )  # fmt: skip
        if not is_loopback(endpoint) and self.key is None:
            _say("WARNING: INSECURE: listening without keys. Whoever reaches the ports of this node can run programs here")
        return endpoint

    def _read_keys(self) -> Keys | None:
        """Give this node's own key; see that those of its processes are there, too."""
        from gt.runtime.errors import KeyFileError
        from gt.runtime.exit_codes import ExitCode
        from gt.runtime.keys import read_keys

        if self.folder is None:
            return None
        try:
            for name in ("server", "client") if self.place.node == 0 else ():
                read_keys(self.folder / f"{name}.key", name)
            return read_keys(self.folder / "worker.key", "worker")
        except KeyFileError as e:
            raise Failure(str(e), ExitCode.USAGE) from e

    def _listen(self, cluster: LocalCluster) -> None:
        """Start the dispatcher and wait until it listens."""
        from gt.runtime.exit_codes import ExitCode

        report_read, report_write = os.pipe()
        try:
            names = ["--job", self.place.job, "--num-nodes", str(self.place.num_nodes)]
            try:
                cluster.start_dispatcher([*names, *(["--trust-network"] if self.key is None else [])], report_write)
            finally:
                os.close(report_write)
            ready, _, _ = select.select([report_read], [], [], LISTEN_S)
            if ready and os.read(report_read, 256).startswith(b"address"):
                return
            dispatcher = cluster.dispatcher
            code = None
            with suppress(subprocess.TimeoutExpired):
                code = dispatcher.wait(5) if dispatcher is not None and ready else None
            usage = code == ExitCode.USAGE
            raise Failure(
                f"node 0 cannot listen.{cluster.tail('dispatcher')}"
                if ready
                else f"the dispatcher did not start within {LISTEN_S:g} s",
                ExitCode.USAGE if usage else ExitCode.SERVER_LOST,
            )
        finally:
            os.close(report_read)

    @contextmanager
    def _link(self, endpoint: str) -> Iterator[NodeLink]:
        from gt.runtime import wire
        from gt.runtime.node_link import NodeLink

        place = self.place
        hello = wire.NodeHello(place.job, place.num_nodes, place.node, socket.gethostname(), os.getpid(), self.workers)
        link = NodeLink(endpoint, hello, self.key)
        try:
            yield link
        finally:
            link.close()

    def _step(self, link: NodeLink, wait_s: float) -> int | None:
        from gt.runtime.errors import ConnectionFailed, DispatcherLost
        from gt.runtime.exit_codes import ExitCode
        from gt.runtime.node_link import NodeRefused

        try:
            return link.step(wait_s)
        except NodeRefused as e:
            raise Failure(str(e), ExitCode.USAGE) from e
        except (DispatcherLost, ConnectionFailed) as e:
            raise Failure(str(e), ExitCode.SERVER_LOST) from e

    def _gather(self, cluster: LocalCluster, link: NodeLink) -> None:
        """Wait until every node is there and all its workers have joined."""
        from gt.runtime.errors import ConnectionFailed
        from gt.runtime.exit_codes import ExitCode
        from gt.runtime.status_request import StatusLink

        asking, waiting = StatusLink(cluster.address, self.key), Waiting("")
        try:
            while True:
                self._step(link, 0.1)
                dead = cluster.dead()
                if dead is not None:
                    text = f"the {dead[0]} process ended with code {dead[1]} at start.{cluster.tail(dead[0])}"
                    raise Failure(text, ExitCode.NO_WORKERS)
                try:
                    status = asking.ask()
                except ConnectionFailed as e:
                    if time.monotonic() < self.deadline:  # it runs, so what is slow is this machine
                        continue
                    raise Failure(str(e), ExitCode.SERVER_LOST) from e
                failed = next((n for n in status.nodes if n.failed), None)
                if failed is not None:
                    raise Failure(f"node {failed.node} ({failed.host}): {failed.failed}", ExitCode.NO_WORKERS)
                text = missing(status)
                if not text:
                    return
                if time.monotonic() > self.deadline:
                    raise Failure(f"{text} after {self.wait_s:g} s: check those nodes' own output", ExitCode.NO_WORKERS)
                waiting.tell(f"waiting: {text}")
        finally:
            asking.close()


def outer_address() -> str:
    """Give this machine's address towards others, "" if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for examples; nothing is sent
            found = str(probe.getsockname()[0])
        except OSError:
            return ""
    return "" if found.startswith("127.") else found


def missing(status: ServerStatus) -> str:
    """Say which nodes and how many workers a job still lacks; nothing if it is complete."""
    here = {n.node for n in status.nodes}
    lacking = [i for i in range(status.num_nodes) if i not in here]
    joined, expected = sum(w.joined for w in status.workers), sum(n.workers for n in status.nodes)
    if lacking:
        shown = ", ".join(map(str, lacking[:8])) + (", ..." if len(lacking) > 8 else "")
        return f"node{'s' if len(lacking) > 1 else ''} {shown} of {status.num_nodes} missing, {amount(joined, 'worker')} joined"
    return f"{joined} of {amount(expected, 'worker')} joined" if joined < expected else ""


class Waiting:
    """Says what is waited for, every ten seconds."""

    def __init__(self, text: str) -> None:
        self.text, self.last = text, time.monotonic()

    def tell(self, text: str = "") -> None:
        now = time.monotonic()
        if now - self.last >= TELL_S:
            self.last = now
            _say(text or self.text)


def _say(text: str) -> None:
    click.echo(f"gt launch: {text}", err=True)


__all__ = ["Failure", "Job", "launch", "missing"]

"""The dispatcher process: one socket, one loop, around ``DispatcherState``.

Owns: the ROUTER socket, the clock, the planner processes, dropping of malformed frames. Must not know: how decisions
are made. Next: ``dispatcher_state`` (decisions), ``planner`` (plans), ``launch`` (who starts this).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
import msgspec
import zmq

from gt.ir.wording import amount
from gt.runtime import env, garbage, wire
from gt.runtime.awake_clock import AwakeClock
from gt.runtime.busy_process import is_busy
from gt.runtime.dispatcher_events import (
    Command,
    Event,
    Expelled,
    Kill,
    LinkBroken,
    MakePlan,
    PeerGone,
    Planned,
    Received,
    Send,
    Tick,
)
from gt.runtime.dispatcher_state import DispatcherState, Options
from gt.runtime.door import Door
from gt.runtime.errors import KeyFileError, ProtocolError, VersionMismatch
from gt.runtime.exit_codes import ExitCode
from gt.runtime.fair_queue import Limits
from gt.runtime.gate import Seldom
from gt.runtime.hello import protocol_fault
from gt.runtime.interrupt import on_end_signals
from gt.runtime.keys import Keys, chosen_keys
from gt.runtime.log import open_log, own_tag, setup_logging
from gt.runtime.numbering import MessagesLost
from gt.runtime.planner import Planners, PlanReply, outputs_of, request_of
from gt.runtime.port_owner import port_owner
from gt.runtime.schedule import Client
from gt.runtime.tracer import boot_id
from gt.runtime.transport import (
    Context,
    PeerUnreachable,
    endpoint_of,
    is_loopback,
    make_socket,
    receive,
    receive_known,
    send,
)
from gt.runtime.wire import FROM_PEERS, Message

if TYPE_CHECKING:
    from gt.runtime.web import Web

TICK_S = 0.1
CANNOT_LISTEN = {
    zmq.EADDRINUSE: "the port is in use{}: choose another with --port, or stop what uses it",
    zmq.EADDRNOTAVAIL: "this is not an address of this machine: node 0 must run where --head says",
    errno.ENODEV: "this is not an address of this machine: node 0 must run where --head says",
}
BURST = 256  # messages between two looks at the clock
HELD = 8  # messages of which the effects are sent together: each peer, and ZMQ's own thread, is woken once for them


class Dispatcher:
    """Runs the loop until told to stop."""

    def __init__(
        self, endpoint: str, options: Options, parent_fd: int | None = None, report_fd: int | None = None, keys: Keys | None = None
    ) -> None:
        self.logger = setup_logging("dispatcher")
        pid = os.getpid()
        options = replace(options, tag=options.tag or own_tag(pid), busy=is_busy, host=socket.gethostname(), pid=pid)
        self.log = open_log("dispatcher", options.tag)
        self.context: Context = zmq.Context()
        self.router = make_socket(self.context, zmq.ROUTER)
        try:
            self.door = None if keys is None else Door(self.context, self.router, keys, self.logger)
            self.router.bind(endpoint)
        except BaseException:
            self.context.destroy(0)  # else whoever lets go of it waits for its sockets
            raise
        self.endpoint = self.router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.state = DispatcherState(lambda: os.urandom(16), options)
        self.planners = Planners()
        self._now = AwakeClock(2 * TICK_S)  # who was silent while this process did not run was not heard
        self.parent_fd, self.report_fd = parent_fd, report_fd
        self.web: Web | None = None
        self.state.started, self.state.wall_clock = self._now(), time.time
        tracing = self.state.tracing
        tracing.own, tracing.wall_clock, tracing.boot = self.log, time.time, boot_id()
        self.malformed = Seldom(self.logger)
        self.stopping, self.code = False, ExitCode.SERVER_LOST.value  # of the job, if there is one, for its nodes
        self.last_tick = self.busy_at = 0.0
        self.busy_epoch = 0
        self.num_workers = 0
        self._encoded: tuple[Message | None, bytes] = (None, b"")
        self._outgoing: list[Send] = []
        self._progress: dict[bytes, wire.Progress] = {}  # that clients hear of once what has come is dealt with

    def run(self) -> None:
        """Serve until ``stopping``."""
        garbage.postpone()
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        for source in self.door.gate.sources if self.door is not None else ():
            poller.register(source, zmq.POLLIN)
        if self.parent_fd is not None:
            poller.register(self.parent_fd, zmq.POLLIN)
        planner_fds: list[int] = []
        self._report(f"address {self.endpoint}")
        while not self.stopping:
            if planner_fds != (now := self.planners.filenos()):
                for fd in planner_fds:
                    poller.unregister(fd)
                for fd in now:
                    poller.register(fd, zmq.POLLIN)
                planner_fds = now
            ready = dict(poller.poll(5 if self.planners.has_unsent else int(TICK_S * 1000)))
            if self.parent_fd in ready:
                self.code = code_from(self.parent_fd, self.code)
                break  # the parent is gone, or is through
            if self.door is not None:
                self._look_after_door(self.door)
            if self.router in ready:
                self._drain()
            if any([fd in ready for fd in planner_fds]):
                for reply in self.planners.read():
                    self._handle(planned(self._now(), reply))
            self.planners.flush()
            if (now_s := self._now()) - self.last_tick >= TICK_S:
                self.last_tick = now_s
                self.planners.look(self.last_tick)
                self._handle(Tick(self.last_tick))
                if self.web is not None:
                    self.web.tick(self.state)
                self._report_workers()
                self._tidy()
            self._tell_progress()
        self.close()

    def close(self) -> None:
        """Tell nodes and clients, stop the workers, let everything go."""
        self._transmit_all()
        for node in self.state.nodes.peers:
            self._send(Send(node, wire.JobEnded(self.code)), [])
        for worker in self.state.workers.values():
            for peer in (worker.work, worker.link):
                if peer is not None:
                    self._send(Send(peer, wire.Stop()), [])
        for client in self.state.clients.values():
            self._send(Send(client.down, wire.Refused("the server has stopped")), [])
        self.planners.close()
        if self.web is not None:
            self.web.close()
        if self.door is not None:
            self.door.gate.close()
        self.router.close(300)
        self.context.term()
        self.log.close()

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.stopping = True

    def _tidy(self) -> None:
        if self.state.epochs.epoch != self.busy_epoch:
            self.busy_epoch, self.busy_at = self.state.epochs.epoch, self.last_tick
        elif not self.state.flights.by_epoch and self.last_tick - self.busy_at >= garbage.IDLE_S:
            garbage.collect_if_due()

    def _tell_progress(self) -> None:
        """Tell clients how many of their runs are over: once, where several ended together."""
        self._transmit_all()
        while self._progress:
            told, self._progress = self._progress, {}
            events: list[Event] = []
            for peer, progress in told.items():
                self._transmit(Send(peer, progress), events)
            for event in events:
                self._handle(event)
            self._transmit_all()

    def _transmit_all(self) -> None:
        """Send what has to be sent since the last time, in order."""
        while self._outgoing:
            outgoing, self._outgoing = self._outgoing, []
            events: list[Event] = []  # sending may find peers gone
            for command in outgoing:
                self._send(command, events)
            for event in events:
                self._handle(event)

    def _drain(self) -> None:
        for count in range(BURST):
            if count % HELD == HELD - 1:
                self._transmit_all()
            try:
                got = self._receive() if self.door is None else self._receive_known(self.door)
            except ProtocolError as e:
                self._drop(e)
                continue
            except MessagesLost as e:
                self.logger.warning("%s: %s", self._name(e.peer), e)
                self._handle(LinkBroken(self._now(), e.peer, str(e)))
                continue
            if got is None:
                break
            peer, message, data, user = got
            if self.log.on:
                self.log.write(
                    "recv",
                    type(message).__name__,
                    0 if data is None else data.nbytes,
                    f"from={self._name(peer)}",
                    message,
                )
            self._handle(Received(self._now(), peer, message, data, user))
        self._transmit_all()

    def _receive(self) -> tuple[bytes, Any, Any, str] | None:
        got = receive(self.router, FROM_PEERS, routed=True)
        return None if got is None else (*got, "")

    def _drop(self, fault: ProtocolError) -> None:
        """Count a message that is none. Who sent it in another version of the protocol is told, as he cannot know."""
        self.malformed.drop(fault, self._now(), logging.WARNING)
        self.state.malformed = self.malformed.count
        if self.log.on:
            self.log.write("drop", "malformed", 0, str(fault))
        if isinstance(fault, VersionMismatch):
            refused = wire.encode_refused(protocol_fault(fault.theirs), fault.theirs)
            with contextlib.suppress(PeerUnreachable):
                send(self.router, wire.Refused(""), None, fault.peer, refused)  # type: ignore[attr-defined]

    def _receive_known(self, door: Door) -> tuple[bytes, Any, Any, str] | None:
        """Give the next message whose sender's key allows it. Who sends another is shown out."""
        while (got := receive_known(self.router, FROM_PEERS)) is not None:
            peer, user, message, data = got
            owner = self.state.roster.owner_of(message.token) if isinstance(message, wire.Attach) else None
            first = None if owner is None else owner.down if isinstance(owner, Client) else owner.work
            why = door.guard.refusal(peer, user, message, first)
            if not why:
                return peer, message, data, user
            door.gate.refused.tell(f"refused a {type(message).__name__} of {self._name(peer)}: {why}", self._now())
            self._handle(Expelled(self._now(), peer, why))
        return None

    def _look_after_door(self, door: Door) -> None:
        """Answer handshakes; tell the workers when the list of keys has changed."""
        if door.tend(self._now(), self.state.peers.__contains__):
            for worker in self.state.workers.values():
                if worker.link is not None:
                    self._outgoing.append(Send(worker.link, wire.Admit(door.allowed.of("client"))))

    def _handle(self, event: Event) -> None:
        if isinstance(event, Planned):
            self._tell_plan(event)
        commands = self._decide(event)
        if self.door is not None and isinstance(event, Received) and isinstance(event.message, wire.Attach):
            commands = [*self.door.admit(self.state.peers.get(event.peer), event.peer), *commands]
        for command in commands:
            match command:
                case Send():
                    self._outgoing.append(command)
                case MakePlan(plan, graph, inputs, workers, scalars):
                    if self.log.on:
                        self.log.write("ask", "plan", 0, f"plan={plan}")
                    self.planners.ask(request_of(plan, graph, inputs, workers, scalars))
                case Kill(pid):
                    self.logger.warning("killing worker process %d, which stopped answering", pid)
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
        if self.report_fd is not None and isinstance(event, Received) and isinstance(event.message, wire.Attach):
            self._report_workers()

    def _decide(self, event: Event) -> list[Command]:
        """Step the state. A message that it fails on costs its sender the session, and nobody else."""
        try:
            return self.state.handle(event)
        except Exception as e:
            if not isinstance(event, Received):
                raise
            self.logger.exception("a fault in gt, at a message of %s: %r", self._name(event.peer), event.message)
            reason = f"the server failed on a {type(event.message).__name__}: {type(e).__name__}: {e}"
            return self.state.handle(Expelled(event.now, event.peer, reason))

    def _send(self, command: Send, events: list[Event]) -> None:
        if isinstance(command.message, wire.Progress):
            self._progress[command.peer] = command.message
            return
        if self._progress and (progress := self._progress.pop(command.peer, None)) is not None:
            if isinstance(command.message, wire.Answer):
                command = Send(command.peer, msgspec.structs.replace(command.message, runs=progress.runs))
            else:
                self._transmit(Send(command.peer, progress), events)
        self._transmit(command, events)

    def _transmit(self, command: Send, events: list[Event]) -> None:
        message, last = command.message, self._encoded
        try:
            header = last[1] if last[0] is message else wire.encode(message)
            self._encoded = (message, header)
            if self.log.on:  # before it leaves: no receiver's line may come first
                nbytes = len(header) + (0 if command.data is None else memoryview(command.data).nbytes)
                self.log.write("send", type(message).__name__, nbytes, f"to={self._name(command.peer)}", message)
            send(self.router, message, command.data, command.peer, header)
        except PeerUnreachable:
            if not any(isinstance(e, PeerGone) and e.peer == command.peer for e in events):
                events.append(PeerGone(self._now(), command.peer))
            return
        except ProtocolError as e:
            self.logger.error("could not send %s: %s", type(message).__name__, e)

    def _tell_plan(self, event: Planned) -> None:
        name = next((p.name for p in event.programs.values()), "-")
        outcome = f"failed: {event.fault.message}" if event.fault else f"for {amount(len(event.programs), 'worker')}"
        self.logger.info("plan %d (%s) %s", event.plan, name, outcome)
        if self.log.on:
            self.log.write("plan", name, 0, f"plan={event.plan} {outcome}")

    def _name(self, peer: bytes) -> str:
        owner = self.state.peers.get(peer)
        return f"{type(owner).__name__.lower()}{owner.id}" if owner is not None else "stranger"

    def _report(self, line: str) -> None:
        if self.report_fd is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self.report_fd, (line + "\n").encode())

    def _report_workers(self) -> None:
        count = len(self.state.roster.worker_ids)
        if count != self.num_workers:
            self.num_workers = count
            self.logger.info("%d workers", count)
            self._report(f"workers {count}")


def code_from(parent_fd: int | None, otherwise: int) -> int:
    """Give the exit code that the parent leaves in its pipe as it ends in order."""
    text = b"" if parent_fd is None else os.read(parent_fd, 16).strip()
    return int(text) if text.isdigit() else otherwise


def planned(now: float, reply: PlanReply) -> Planned:
    """Give the event of a planner's reply."""
    return Planned(now, reply.plan, reply.programs, outputs_of(reply), reply.fault, reply.reasons, reply.seconds)


def serve(
    endpoint: str, options: Options, parent_fd: int | None = None, report_fd: int | None = None, keys: Keys | None = None,
    listening: Callable[[str], None] = lambda endpoint: None, web: Web | None = None,
) -> None:  # fmt: skip
    """Run a dispatcher in this process until it is told to stop. With ``keys`` it lets in whom the list beside their file names.
    ``listening`` is called with the endpoint once it is bound. ``web``: shows what it does.

    Errors: ZMQError when the address is in use; KeyFileError for a list that cannot be read.
    """
    dispatcher = Dispatcher(endpoint, options, parent_fd, report_fd, keys)
    dispatcher.web = web
    if web is not None:
        dispatcher.state.epochs.seen = web.runs
    on_end_signals(dispatcher.stop, parent_fd)
    listening(dispatcher.endpoint)
    dispatcher.run()
    if endpoint.startswith("ipc://") and options.owns_workers:  # the parent may have been killed: leave nothing behind
        shutil.rmtree(Path(endpoint.removeprefix("ipc://")).parent, ignore_errors=True)


@click.command()
@click.option("--bind", required=True)
@click.option("--parent-fd", type=int)
@click.option("--report-fd", type=int)
@click.option("--owns-workers", is_flag=True)
@click.option("--trust-network", is_flag=True)
@click.option("--job", default="")
@click.option("--num-nodes", default=0)
def main(
    bind: str, parent_fd: int | None, report_fd: int | None, owns_workers: bool, trust_network: bool, job: str, num_nodes: int
) -> None:
    """Run a dispatcher for a local cluster, or for the nodes of a job."""
    endpoint = endpoint_of(bind)
    keys = None if endpoint.startswith("ipc://") or trust_network else chosen_keys(None, "server")
    assert is_loopback(endpoint) or trust_network or keys is not None, f"{endpoint} is not local"
    options = Options(
        env.WINDOW.get(), owns_workers=owns_workers, epoch_timeout_s=env.EPOCH_TIMEOUT_S.get(), job=job, num_nodes=num_nodes,
        sharing=Limits(alone_s=math.inf),  # the workers are one script's
    )
    try:
        serve(endpoint, options, parent_fd, report_fd, keys)
    except KeyFileError as e:
        click.echo(str(e), err=True)
        raise SystemExit(int(ExitCode.USAGE)) from None
    except OSError as e:
        if e.filename != env.INSTRUCTION_LOG.get():
            raise
        click.echo(f"{e.strerror}: {e.filename}", err=True)
        raise SystemExit(int(ExitCode.USAGE)) from None
    except zmq.ZMQError as e:
        if e.errno not in CANNOT_LISTEN:
            raise
        owner = port_owner(int(endpoint.rpartition(":")[2])) if e.errno == zmq.EADDRINUSE else ""
        click.echo(f"{endpoint}: {CANNOT_LISTEN[e.errno].format(owner)}", err=True)
        raise SystemExit(int(ExitCode.USAGE)) from None


if __name__ == "__main__":
    main()

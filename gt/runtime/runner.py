"""Performs a worker's commands on an engine: the thin shell between ``WorkerState`` and tensors.

Owns: ``Runner`` (one thread's work) and ``make_engine``. Serves a worker process and the embedded session alike; how
messages come and go is theirs. Must not know: sockets. Next: ``worker_state`` (what to do), ``collective`` (groups).
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np

from gt.ir.program import Program
from gt.ir.types import DType
from gt.runtime import env, wire
from gt.runtime.collective import CollectiveFailed, Groups
from gt.runtime.engine import Engine, Joint, Loaded
from gt.runtime.errors import Fault, GtError, fault_of
from gt.runtime.launched import LaunchedRuns
from gt.runtime.log import InstructionLog
from gt.runtime.store import LARGE, ValueStore, give_memory_back
from gt.runtime.usage import PlanSpent, Usage
from gt.runtime.wire import Message
from gt.runtime.wire_arrays import array_of, padded, rows, wire_dtype
from gt.runtime.worker_state import (
    Arrived,
    DropGraph,
    DropValues,
    FormGroup,
    Got,
    Grouped,
    KeepValue,
    LoadProgram,
    Quit,
    Ran,
    Rejoined,
    Reply,
    ReplyWith,
    RunProgram,
    ShipFault,
    ShipValue,
    SkipProgram,
    SwapPieces,
    TakeParent,
    Unkept,
    UnloadPrograms,
    WorkerState,
)  # fmt: skip

log = logging.getLogger("gt.worker")
SHORT_S = 0.0003

HostArray: TypeAlias = tuple[np.ndarray | MemoryError, str, Callable[[], None] | None]


class Outlet(Protocol):
    """Where a runner's results go."""

    def reply(self, message: Message) -> None:
        """Send to the dispatcher."""
        ...

    def room(self, token: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray | None:
        """Give an array to be filled and shipped to a client, in memory shared with it; None if there is none."""
        ...

    def ship(self, token: bytes, message: wire.Part | wire.PartFailed, array: np.ndarray | None) -> None:
        """Send to a client."""
        ...


def make_engine(backend: str, device: str = "cpu") -> Engine:
    """Give the engine of a backend. Imports torch only if it is the one asked for."""
    if backend == "numpy":
        engine: Engine = importlib.import_module("gt.runtime.numpy_engine").NumpyEngine()
        return engine
    assert backend == "torch", backend
    if device.startswith("cuda") and not importlib.import_module("torch").cuda.is_available():
        log.warning("there is a GPU, but this torch cannot use it: running on the CPU")
        device = "cpu"
    made: Engine = importlib.import_module("gt.runtime.executor").TorchEngine(device, compile_after=env.COMPILE_AFTER.get())
    return made


class Runner:
    """One worker's values and programs. ``uploads``: host arrays that came on the data socket, by uid, with their dtype and, if
    their memory is the sender's, what says that they have been read. ``timed``: clients share the worker, so what runs take on the
    device counts.
    """

    def __init__(
        self,
        worker: int,
        engine: Engine,
        outlet: Outlet,
        groups: Groups | None = None,
        uploads: MutableMapping[int, HostArray] | None = None,
        log: InstructionLog | None = None,
        timed: bool = False,
    ) -> None:
        self.state = WorkerState(worker)
        self.engine, self.outlet, self.groups = engine, outlet, groups
        self.log = InstructionLog("", f"worker{worker}") if log is None else log
        self.uploads = {} if uploads is None else uploads
        self.values = ValueStore()
        self.held = 0, 0  # values and their bytes when the run under way began: what it may reuse is not among them now
        self.dropped = 0  # bytes, since there was last nothing to do
        self.loaded: dict[int, Loaded] = {}
        self.unloadable: dict[int, Fault] = {}
        self.epoch = -1
        self.began = 0.0  # when the message under way came: all that it takes counts for its client
        engine.start_thread()
        self.clock = engine.clock if timed else None
        self.launched = None if groups is None or engine.clock is None else LaunchedRuns(engine.clock.event)
        if groups is not None and self.launched is not None:
            groups.aborting = self.launched.abort
        self.runs, self.run_s, self.load_s, self.ship_s = 0, 0.0, 0.0, 0.0  # so far
        self.spent: dict[int, PlanSpent] = {}  # by plan
        self.tiers: dict[int, str] = {}  # by plan, those of its last run, as the dispatcher knows
        self.told: set[int] = set()  # plans of which it knows what may
        self.usage = Usage(self)

    def handle(self, message: Message, data: Any = None) -> bool:
        """Do what a message asks; give False when the worker should end."""
        self.began = time.perf_counter()
        if self.log.on:
            self.log.write("recv", type(message).__name__, getattr(data, "nbytes", 0), "", message)
        if self.uploads:
            self._take_uploads()
        self._learn_broken()
        return self._do(self.state.handle(Got(message, data)), message)

    def is_short(self, message: Message) -> bool:
        """Say whether a message takes hardly longer than to tell of what was before it, and waits for nobody: not for a device either."""
        if self.engine.clock is not None or not isinstance(message, wire.Execute):
            return isinstance(message, wire.Free)
        spent = self.spent.get(message.plan)
        return spent is not None and spent.last_s < SHORT_S and message.graph != "capture" and not spent.groups

    def past(self, lives: tuple[tuple[int, int], ...]) -> wire.Past:
        """Say what is here, once all that the lost dispatcher has sent is done; ``lives`` as in ``Past``. Programs and graphs go."""
        self._take_uploads()
        if self.launched is not None:
            self.launched.wait()
        self._learn_broken()
        for loaded in self.loaded.values():
            if loaded.joint is not None:  # a graph of collectives goes before their groups do
                loaded.joint.drop()
        self._do([UnloadPrograms(tuple(self.loaded))])
        return self.state.past(lives)

    def rejoined(self, worker: int) -> None:
        """Forget what another dispatcher cannot know."""
        self._do([*self.state.handle(Rejoined(worker)), TakeParent("")])

    def _do(self, work: list[Any], message: Message | None = None) -> bool:
        """Perform commands that a message has caused; give False when the worker should end."""
        while work:
            more: list[Any] = []
            for command in work:
                match command:
                    case RunProgram():
                        more += self.state.handle(self._run(command))
                    case Reply(reply):
                        self.outlet.reply(reply)
                    case ReplyWith(done, ship):
                        self._reply_with(done, ship)
                    case DropValues(uids):
                        before = self.values.nbytes
                        self.values.drop(uids)
                        self.dropped += before - self.values.nbytes
                        if isinstance(message, wire.Free) and before - self.values.nbytes >= LARGE:
                            self._give_back()
                    case ShipValue(ship):
                        self._ship(ship)
                    case ShipFault(token, failed):
                        self.outlet.ship(token, failed, None)
                    case KeepValue(uid, store, array):
                        self._keep(uid, store, array)
                    case LoadProgram(plan, program, together):
                        self._load(plan, program, together)
                    case SwapPieces(plan, pieces):
                        if plan in self.loaded:
                            self.loaded[plan].swap(pieces)
                    case UnloadPrograms(plans):
                        for plan in plans:
                            self.loaded.pop(plan, None)
                            self.tiers.pop(plan, None)
                            self.told.discard(plan)
                            self.usage.forget(plan)
                            if self.clock is not None:
                                self.clock.forget(plan)
                            self.unloadable.pop(plan, None)
                    case DropGraph(plan, refused):
                        if plan in self.loaded and self.loaded[plan].joint is not None:
                            self._joint(plan).drop(refused)
                    case TakeParent(traceparent):
                        if self.log.spans is not None:
                            self.log.spans.under(traceparent)
                    case SkipProgram():
                        more += self.state.handle(self._skip(command))
                    case FormGroup(make):
                        more += self.state.handle(self._form(make))
                    case Quit():
                        return False
            work = more
        if isinstance(message, wire.Ship) and message.job >= 0:
            self.outlet.reply(wire.Shipped(message.job, time.perf_counter() - self.began))
        return True

    def _learn_broken(self) -> None:
        """Let go of what is not right, as a collective was aborted on the device that it hangs on."""
        if self.launched is None or not self.launched.broken:
            return
        for uid, fault in self.launched.take().items():
            if uid in self.state.values:
                self.state.handle(Unkept(uid, fault))
                self.values.drop((uid,))

    def close(self) -> None:
        """Let go of all values and of the engine."""
        self.values = ValueStore()
        self.loaded.clear()
        if self.groups is not None:
            self.groups.close()
        self.engine.close()

    # -- values

    def _take_uploads(self) -> None:
        for uid in list(self.uploads):
            array, name, done = self.uploads.pop(uid)
            dtype = DType.by_name[name]
            try:
                if isinstance(array, MemoryError):
                    raise array
                value = self.engine.from_host(array, dtype) if done is None else self.engine.from_shared(array, dtype)
            except Exception as e:
                self.state.handle(Unkept(uid, self._no_room(e)))
            else:
                self.values.put((uid,), (value,))
                self.state.handle(Arrived(uid))
            if done is not None:
                done()

    def _keep(self, uid: int, store: wire.Store, data: Any) -> None:
        """Keep an array: embedded it comes as it is and is owned; from the wire it is copied out of the frame."""
        try:
            if isinstance(data, np.ndarray):
                array = data
            else:
                whole = array_of(store.type, data)
                array = padded(whole[rows(store.bounds)], store.local)
                array = array.copy() if array.base is not None or not array.flags.writeable else array
            self.values.put((uid,), (self.engine.from_host(array, DType.by_name[store.type.dtype]),))
        except Exception as e:
            self.state.handle(Unkept(uid, self._no_room(e)))

    def _no_room(self, error: Exception) -> Fault:
        log.error("a value that was sent cannot be kept: %s", error)
        return self._own_fault(error)

    def _own_fault(self, error: BaseException, epoch: int = -1, where: str = "") -> Fault:
        """Describe an error of this worker, which its text names where there may be others."""
        fault = fault_of(error, "run", self.state.worker, epoch, where)
        return fault if self.groups is None else msgspec.structs.replace(fault, message=f"{fault.message} on worker {fault.worker}")

    def _ship(self, ship: wire.Ship) -> None:
        try:
            array = self._read(ship)
        except Exception as e:  # what was submitted earlier may fail only now
            fault = self.state.poison.get(ship.uid) or self._own_fault(e, self.epoch)
            self.outlet.ship(ship.token, wire.PartFailed(ship.request, fault), None)
            return
        part = wire.Part(ship.request, ship.type, ship.bounds, ship.tiles, ship.final)
        self.outlet.ship(ship.token, part, array)

    def _reply_with(self, done: wire.Done, ship: wire.Ship) -> None:
        try:
            value = self._read(ship).tobytes()
        except Exception:
            self.outlet.reply(done)
            self._ship(ship)  # which says why
            return
        self.outlet.reply(msgspec.structs.replace(done, value=value))

    def _read(self, ship: wire.Ship) -> np.ndarray:
        """Give this worker's part of a value, in memory shared with the client where that can be."""
        true, dtype = tuple([b - a for a, b in ship.bounds]), DType.by_name[ship.type.dtype]
        start = time.perf_counter()
        value = self.values[ship.uid]
        whole = tuple(value.shape) == true
        if self.launched is not None:
            self.launched.wait()
        room = self.outlet.room(ship.token, true, wire_dtype(dtype))
        array = self.engine.to_host(value, dtype, room if whole else None)
        self._learn_broken()
        if ship.uid in self.state.poison:
            raise self.state.poison[ship.uid].exception()
        if not whole:
            inner = array[tuple(slice(0, n) for n in true)]
            array = np.empty(true, array.dtype) if room is None else room
            np.copyto(array, inner)
        seconds = time.perf_counter() - start
        self.ship_s += seconds
        if self.log.on:
            self.log.write("ship", "fetch", array.nbytes, f"uid={ship.uid} request={ship.request} seconds={seconds:.6f}")
        return array

    # -- programs

    def _load(self, plan: int, program: Program, together: bool) -> None:
        start = time.perf_counter()
        try:
            self.loaded[plan] = self.engine.load(program)
            self.loaded[plan].stats.together = together
        except Exception as e:  # runs of it fail with this cause
            self.unloadable[plan] = self._own_fault(e)
        seconds = time.perf_counter() - start
        self.load_s += seconds
        self.outlet.reply(wire.Used(None, self.usage.loaded(plan)))  # whoever asks why a run is as it is finds its program
        if self.log.on:
            self.log.write("load", program.name, 0, f"plan={plan} seconds={seconds:.6f}")

    def _run(self, command: RunProgram) -> Ran:
        start = self.began
        self.held = len(self.values), self.values.nbytes
        self.epoch = command.epoch
        collective_s = 0.0
        if self.groups is not None:
            self.groups.issued, collective_s = 0, self.groups.seconds
        fault = self.unloadable.get(command.plan)
        if command.poisoned:
            return self._run_without(command, fault)
        values, ran, left = self.values, None, False
        stage: wire.GraphStage = ""
        held: Sequence[Any] = ()
        inputs = values.get(command.inputs)
        for i in command.copies:
            inputs[i] = _copy(inputs[i])
        values.take(command.takes)
        spent = self.spent.get(command.plan)
        if spent is None and fault is None:
            spent = self.spent[command.plan] = PlanSpent(
                self.state.programs[command.plan], [(tuple(v.shape), str(v.dtype)) for v in inputs]
            )
        if fault is None:
            try:
                loaded = self.loaded[command.plan]
                held = list(inputs) if loaded.undoes else ()
                scalars = [wire.unpack_scalar(s) for s in command.scalars]
                if self.clock is not None:
                    self.clock.begin(command.plan)
                if self.launched is not None and spent is not None:
                    self.launched.begin(command.epoch, command.inputs, spent.groups, spent.program.line(0))
                if command.graph == "replay":
                    outputs = self._joint(command.plan).replay(inputs, scalars)
                    self._met_all(command.plan)
                else:
                    if command.graph == "capture":
                        stage = self._capture(command.plan, inputs, scalars)
                    outputs = loaded.run(inputs, scalars, self.groups, command.tiers)
                    stage = stage or (loaded.joint.stage if loaded.joint is not None else "")
                if self.clock is not None:
                    self.clock.end(command.plan)
                if self.groups is not None and self.groups.sending:
                    self.groups.finish()
                if self.launched is not None:
                    fault = self.launched.end(command.outputs)
                if fault is None:
                    values.put(command.outputs, outputs)
            except Exception as e:
                fault = self._fault(e, command.epoch)
                if not self.state.programs[command.plan].collectives:
                    ran = self._salvage(command, e, held)
        if ran is not None:
            fault = ran.fault
        elif fault is not None:
            inputs.clear()
            fault, left = self._finish_collectives(command.plan, fault, command.graph)
        self.epoch = -1
        seconds = time.perf_counter() - start
        over = fault is not None or not self.state.programs[command.plan].goes_on  # a run that goes in parts counts once
        self.runs += over
        self.run_s += seconds
        if spent is not None:
            spent.runs += over
            spent.last_s = seconds
            spent.seconds += seconds
            spent.own_s += seconds if self.groups is None else seconds - (self.groups.seconds - collective_s)
        if self.log.on:
            self._tell_run(command, seconds, fault)
        if self.clock is not None:
            seconds = self.clock.seconds(command.plan) or seconds
        return ran or Ran(command.epoch, seconds, fault, graph=stage, left=left, **self._news_of(command.plan))

    def _news_of(self, plan: int) -> dict[str, Any]:
        """Give at which tiers a program's pieces ran, and which may run compiled code, where that is not what was told last."""
        loaded, news = self.loaded.get(plan), dict[str, Any]()
        if loaded is not None and loaded.tiers != self.tiers.get(plan, ""):
            news["tiers"] = self.tiers[plan] = loaded.tiers
        if loaded is not None and loaded.stats.together and plan not in self.told and (ready := loaded.swappable) is not None:
            self.told.add(plan)
            news["ready"] = ready
        return news

    def _tell_run(self, command: RunProgram, seconds: float, fault: Fault | None) -> None:
        made = sum([self.values.sizes.get(uid, 0) for uid in command.outputs])
        loaded = self.loaded.get(command.plan)
        details = f"epoch={command.epoch} plan={command.plan} seconds={seconds:.6f} tier={loaded.tier if loaded else '-'}"
        self.log.write("run", self.state.programs[command.plan].name, made, f"{details} fault={fault.kind if fault else '-'}")

    def _joint(self, plan: int) -> Joint:
        joint = self.loaded[plan].joint
        assert joint is not None, "a worker says before that a program is ready to be captured"
        return joint

    def _capture(self, plan: int, inputs: Sequence[Any], scalars: Sequence[Any]) -> wire.GraphStage:
        """Have a graph made of the run that is about to be, its collectives included; none of it runs."""
        assert self.groups is not None
        stage = self._joint(plan).capture(inputs, scalars, self.groups)
        self.groups.forget()
        self.groups.issued = 0
        return stage

    def _met_all(self, plan: int) -> None:
        """A graph that was launched takes part in all collectives of its program."""
        if self.groups is not None:
            self.groups.issued = len(self.state.programs[plan].collectives)

    def tidy(self) -> None:
        """With nothing to do, give back what was dropped in pieces too small to do it for each, or while something still held it."""
        if self.dropped >= LARGE:
            self.dropped = 0
            self._give_back()

    def _give_back(self) -> None:
        self._tell_idle()
        give_memory_back()

    def _tell_idle(self) -> None:
        """Say which graphs keep memory for values that are gone."""
        for plan, loaded in self.loaded.items():
            if loaded.joint is not None and loaded.joint.idle_nbytes >= LARGE:
                self.outlet.reply(wire.GraphIdle(plan))

    def _run_without(self, command: RunProgram, fault: Fault | None) -> Ran:
        """Run what does not depend on inputs that are not there. ``fault``: why nothing of the program can run."""
        missing = dict(command.poisoned)
        inputs = [None if i in missing else self.values[uid] for i, uid in enumerate(command.inputs)]
        self.values.take(command.takes)
        if self.launched is not None:
            self.launched.begin(command.epoch, command.inputs, ())
        ran = self._salvage(command, None, inputs) if fault is None else None
        self.epoch = -1
        return ran or Ran(command.epoch, 0.0, fault or command.poisoned[0][1])

    def _salvage(self, command: RunProgram, error: Exception | None, inputs: Sequence[Any]) -> Ran | None:
        """Keep what does not depend on the op that failed, or on inputs that are not there."""
        start = time.perf_counter()
        scalars = [wire.unpack_scalar(s) for s in command.scalars]
        try:
            found = self.loaded[command.plan].salvage(error, inputs, scalars, dict(command.poisoned))
        except Exception:  # such as a device that runs nothing more
            log.exception("nothing could be kept of a run that failed")
            return None
        if found is None or (self.launched is not None and self.launched.end(command.outputs) is not None):
            return None
        causes = {i: c if isinstance(c, Fault) else self._fault(c, command.epoch) for i, c in found.causes.items()}
        whole = [i for i in range(len(command.outputs)) if i not in causes]
        self.values.put([command.outputs[i] for i in whole], [found.outputs[i] for i in whole])
        if not causes:  # what failed went well the second time, or nothing depends on it
            return Ran(command.epoch, time.perf_counter() - start)
        kept = {command.inputs[i]: value for i, value in found.kept.items() if command.inputs[i] in command.takes}
        self.values.put(kept, list(kept.values()))
        failed = tuple((command.outputs[i], fault) for i, fault in causes.items())
        return Ran(command.epoch, time.perf_counter() - start, failed[0][1], failed, tuple(kept))

    def _fault(self, error: BaseException, epoch: int) -> Fault:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, GtError):
            cause = cause.__cause__
        location = getattr(error, "location", None)
        if cause is not None and getattr(cause, "is_collective", False):
            return fault_of(cause, "collective", self.state.worker, epoch, str(location or ""))
        return self._own_fault(error, epoch, str(location or ""))

    def _skip(self, command: SkipProgram) -> Ran:
        start = time.perf_counter()
        self.epoch = command.epoch
        if self.groups is not None:
            self.groups.issued = 0
        fault, left = self._finish_collectives(command.plan, command.fault, command.graph, begun=False)
        self.epoch = -1
        return Ran(command.epoch, time.perf_counter() - start, fault if left or fault is not command.fault else None, left=left)

    def _finish_collectives(self, plan: int, fault: Fault, graph: wire.GraphUse, begun: bool = True) -> tuple[Fault, bool]:
        """Take part, with zeros, in the collectives that a failed run leaves undone: the others wait for them. Those with a lost worker
        are passed over. ``begun``: the run itself failed, not what it reads.

        Gives why the run failed, and whether the others must be told to wait no more, as there is no room for zeros either, or a
        collective broke though all its workers are there.
        """
        if self.groups is None:
            return fault, False
        groups, steps, left = self.groups, self.state.programs[plan].collectives, False
        broke = begun and fault.kind == "collective"
        if self.launched is not None:
            self.launched.begin(self.epoch, (), self.state.programs[plan].groups)
        try:
            if graph == "replay" and not groups.issued:
                if not broke:
                    self._joint(plan).replay_junk()
                self._met_all(plan)
            elif broke and groups.issued and not groups.await_loss(steps[groups.issued - 1].group):
                raise CollectiveFailed(fault.message)
            for step in steps[groups.issued :]:
                if not groups.lost.isdisjoint(step.group):
                    groups.issued += 1
                    continue
                try:
                    groups.run(step, self._junk(step))
                except CollectiveFailed as e:
                    if not groups.await_loss(step.group):
                        raise
                    fault = self._fault(e, self.epoch)
            groups.sending = {members: None for members in groups.sending if groups.lost.isdisjoint(members)}
            groups.finish()
            if self.launched is not None:
                self.launched.end(())
        except Exception as e:
            other, left = self._fault(e, self.epoch), True
            fault = other if other.kind == "collective" and not broke else fault
            groups.leave(self.epoch, self.state.programs[plan].groups, fault.message)
        groups.forget()
        return fault, left

    def _junk(self, step: Any) -> Any:
        assert self.groups is not None
        shape = self.groups.input_shape(step)
        if shape is None:
            return None
        dtype = DType.by_name[step.type.dtype]
        return self.engine.from_host(np.zeros(shape, wire_dtype(dtype)), dtype)

    def _form(self, make: wire.MakeGroup) -> Grouped:
        start = time.perf_counter()
        assert self.groups is not None, "the embedded session has one worker"
        self.epoch = make.epoch
        fault = None
        for loaded in self.loaded.values():
            if loaded.joint is not None:
                loaded.joint.forget_group(make.members)
        try:
            self.groups.form(make.name, make.members, make.backend, make.epoch)
        except Exception as e:
            fault = fault_of(e, "collective", self.state.worker, make.epoch)
        self.epoch = -1
        seconds = time.perf_counter() - start
        self.load_s += seconds
        if self.log.on:
            self.log.write(
                "group", make.backend, 0, f"epoch={make.epoch} group={','.join(map(str, make.members))} seconds={seconds:.6f}"
            )
        return Grouped(make.epoch, seconds, make.members, fault)


def _copy(value: Any) -> Any:
    """Copy an input that the program overwrites but somebody still holds."""
    return value.copy() if isinstance(value, np.ndarray) else value.clone()


__all__ = ["HostArray", "Outlet", "Runner", "make_engine"]

"""Every message between processes, typed, versioned and bounded. There is no pickle here or behind it.

Owns: the message structs, ``encode``/``decode`` and the size limits. A message is one header frame (a version byte and
MessagePack) and at most one raw data frame. ``decode`` raises ProtocolError for anything else; receivers count it and
go on. Must not know: sockets, states. Next: ``wire_arrays`` (data frames), ``transport`` (sockets),
``dispatcher_state`` (who answers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

from gt.ir.program import Program, WireSharding, WireType
from gt.ir.signals import SignalConfig
from gt.ir.types import Scalar
from gt.ir.version import __version__
from gt.runtime.buffer_reasons import BufferReasons
from gt.runtime.errors import Fault, ProtocolError, VersionMismatch
from gt.runtime.numbering import without_number
from gt.runtime.shared import Region, check_region
from gt.runtime.status import ServerStatus
from gt.runtime.usage import ProgramState, WorkerUsage
from gt.runtime.wire_arrays import Bounds, check_bounds, check_nbytes, check_type

VERSION = 10
MAX_HEADER = 64 << 20
INLINE = 64 << 10  # uploads up to here ride in the control message
SMALL = 4 << 10  # bytes of a value that comes back with the word that its run is over

Buffers: TypeAlias = tuple[int, ...]
WireScalar: TypeAlias = bool | int | float | tuple[float, float]  # a pair is a complex number
Frames: TypeAlias = Sequence[Any]
Small: TypeAlias = Annotated[bytes, msgspec.Meta(max_length=SMALL)]  # a whole value
GraphUse: TypeAlias = Literal["", "capture", "replay"]  # what workers that meet in collectives do together in a run
GraphStage: TypeAlias = Literal["", "ready", "captured", "refused"]  # what one of them says of it at the run's end
Tiers: TypeAlias = tuple[tuple[int, str], ...]  # by worker, the letter of each piece's tier (``tiers.py``); "" for all eager


class Message(msgspec.Struct, frozen=True, array_like=True, tag_field="message", tag=True, forbid_unknown_fields=True):
    """Base of all messages: an array whose first element names the type."""


# -- client to dispatcher


class ClientHello(Message, frozen=True):
    """Open a session. ``gt``: the version of gt that records its graphs. ``priority``: the client's weight among those that compete for
    the workers. ``secret``: 16 bytes by which it alone can have its values back from the next dispatcher; none: it never will.
    """

    pid: int = 0
    gt: str = __version__
    priority: float = 1.0
    secret: bytes = b""


class Resume(Message, frozen=True):
    """Ask for values of a dispatcher that is gone, whose ``generation`` and ``workers`` are named: those in ``buffers`` and no others."""

    generation: int
    buffers: Buffers
    workers: tuple[int, ...]


class Attach(Message, frozen=True):
    """Say that this connection belongs to the peer that owns ``token``. Roles: up (client), link, store (worker)."""

    token: bytes
    role: str


class Define(Message, frozen=True):
    """Name a graph. The data frame is the encoded graph."""

    key: int


class Run(Message, frozen=True):
    """Run graph ``key``; ``frees`` go after it. ``replaces``: by output, which buffer was the value of the tensor that it becomes the
    value of, -1 if none was; nothing if so for all. ``tiers``: of a run that is made again, those at which it ran at first. ``reads``: which
    output is read back, and by which request: a Fetch that comes with it.
    """

    key: int
    inputs: Buffers
    outputs: Buffers
    scalars: tuple[WireScalar, ...]
    frees: Buffers
    replaces: Buffers = ()
    tiers: Tiers | None = None
    reads: tuple[int, int] | None = None


class Parent(Message, frozen=True):
    """What follows on this connection is done under this span of OpenTelemetry's, a W3C ``traceparent``; "": under none. Only said where
    it changes. Also dispatcher to worker.
    """

    traceparent: Annotated[str, msgspec.Meta(max_length=55)]


class Put(Message, frozen=True):
    """Make a buffer of host data: with the data frame if it is small (``inline``), else ask where to send it.

    It goes where ``placed`` says, if that can be, else where ``signal`` asks. ``where``: the user's line.
    """

    buffer: int
    type: WireType
    signal: SignalConfig | None
    inline: bool
    placed: WireSharding | None = None
    where: str = ""


class Fail(Message, frozen=True):
    """Make a buffer that failed: whatever reads it fails with this cause. It is how a failed value outlives its workers."""

    buffer: int
    fault: Fault


class Fetch(Message, frozen=True):
    """Read a buffer back. ``placed``: say where it is, too."""

    buffer: int
    request: int
    placed: bool = False


class Explain(Message, frozen=True):
    """Ask why a buffer is where it is."""

    buffer: int
    request: int


class Free(Message, frozen=True):
    """Drop buffers, after everything sent before. Also dispatcher to worker, by uid."""

    buffers: Buffers


class Recover(Message, frozen=True):
    """The client knows that a buffer failed. What failed with it becomes what it replaced, as far as that is still there."""

    buffer: int


class Beat(Message, frozen=True):
    """A sign of life. A worker says which epoch it is running, -1 for none, and how many collectives of it have begun."""

    epoch: int = -1
    collectives: int = 0


class Rebalance(Message, frozen=True):
    """Move the client's values to ``workers`` (all there are if empty), which alone serve it from here on.

    ``named``: lists of workers that its signals name, whose values stay; ``meshes``: the meshes that it declares.
    """

    request: int
    workers: tuple[int, ...] = ()
    named: tuple[tuple[int, ...], ...] = ()
    meshes: tuple[tuple[tuple[str, int], ...], ...] = ()


class Supervise(Message, frozen=True):
    """Let the launchers of a job's nodes replace workers that die, so many times each; 0: no more. Also dispatcher to node."""

    restarts: int


class Bye(Message, frozen=True):
    """Leave; what this peer held is given back at once. ``why``: of a worker, in the middle of a sentence that it begins."""

    why: str = "left"


# -- dispatcher to client


class ClientWelcome(Message, frozen=True):
    """The client's id, its token (also its routing id on data sockets), and how many runs it may have in flight.

    ``lease_s``: if this dispatcher is lost, how long its workers keep values for the next one; 0: not at all. ``tag``: what tells it from
    other dispatchers in an instruction log. ``host``, ``pid``: its process.
    """

    client: int
    token: bytes
    window: int
    generation: int = 0
    lease_s: float = 0.0
    tag: str = ""
    host: str = ""
    pid: int = 0


class Returned(Message, frozen=True):
    """Answer to a Resume: which of its buffers are not there any more, and its workers that are here again, by the old number and
    the new one.
    """

    missing: Buffers
    workers: tuple[tuple[int, int], ...]


class Workers(Message, frozen=True):
    """The workers present: id, address for uploads, address for results, public key of both ("": none). ``why`` one that was there
    before is not any more.
    """

    workers: tuple[tuple[int, str, str, str], ...]
    why: str = ""


class Attached(Message, frozen=True):
    """The connection is known now."""


class Tile(msgspec.Struct, frozen=True, array_like=True):
    """One worker's part of an upload: send rows ``bounds`` with this ticket."""

    worker: int
    ticket: bytes
    bounds: Bounds


class Placed(Message, frozen=True):
    """Where to send an upload."""

    buffer: int
    tiles: tuple[Tile, ...]


class Failed(Message, frozen=True):
    """A fetch failed."""

    request: int
    fault: Fault


class Located(Message, frozen=True):
    """Where the buffer of a fetch is."""

    request: int
    placed: WireSharding


class Settled(Message, frozen=True):
    """All workers confirm that the run behind a fetch went well."""

    request: int


class Explained(Message, frozen=True):
    """Answer to an Explain."""

    request: int
    explanation: BufferReasons


class Rebalanced(Message, frozen=True):
    """Answer to a Rebalance: how many values have moved."""

    request: int
    values: int


class Progress(Message, frozen=True):
    """How many of this client's runs are over, in all."""

    runs: int


class Answer(Message, frozen=True):
    """A small value that a run reads; all workers confirm that it went well. ``runs``: as in Progress, -1: that is told otherwise."""

    request: int
    type: WireType
    data: Small
    runs: int = -1


class RanAt(Message, frozen=True):
    """The run that made ``buffer``, of graph ``key``, and those of that graph after it, ran at these tiers, on other
    workers eagerly; others did before."""

    buffer: int
    key: int
    tiers: Tiers


class Ping(Message, frozen=True):
    """The dispatcher is alive."""


class Refused(Message, frozen=True):
    """The dispatcher will not serve this peer. In every version of the protocol it has this form, so that each can tell the other."""

    reason: str


class Broken(Message, frozen=True):
    """Messages of this peer's were lost on their way: its session is over. It may open another. To whoever it is; a worker says it too."""

    reason: str


# -- whoever asks, and the nodes of a job


class AskStatus(Message, frozen=True):
    """Ask a server who is there and what is under way. From a connection of its own, without a hello."""


class Status(Message, frozen=True):
    """Answer to an AskStatus."""

    status: ServerStatus


class NodeHello(Message, frozen=True):
    """A node of a job is here and will start so many workers. It hears when the job is over."""

    job: str
    num_nodes: int
    node: int
    host: str
    pid: int
    workers: int


class NodeFailed(Message, frozen=True):
    """A node cannot start its workers."""

    reason: str


class NodeNews(Message, frozen=True):
    """What has become of another node of the job, for node 0 to say."""

    node: int
    host: str
    text: str


class NodeWelcome(Message, frozen=True):
    """The node is known: it may start its workers."""


class JobEnded(Message, frozen=True):
    """The job is over, with the exit code of its script."""

    code: int


class AskTrace(Message, frozen=True):
    """Take a trace of so long, with at most so many lines of each process. From a connection of its own, without a hello."""

    seconds: float
    num_lines: int


class Traced(Message, frozen=True):
    """One process's part of a trace; ``left`` more come. ``start``: when, by the dispatcher's clock, its lines' elapsed time is 0, and
    ``within_s`` how well that is known. ``left_out``: lines before these. ``missing``: why there are none, if so. ``tag``: the dispatcher's.
    """

    who: str
    start: float
    within_s: float
    lines: tuple[str, ...]
    left_out: int
    missing: str
    left: int
    tag: str = ""


# -- dispatcher to worker


class WorkerWelcome(Message, frozen=True):
    """The worker's id and its token. ``tag``: as a client's."""

    worker: int
    token: bytes
    generation: int = 0
    tag: str = ""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """What a value is and where: on workers as the dispatcher of that ``generation`` numbered them."""

    type: WireType
    placed: WireSharding
    generation: int


class Places(msgspec.Struct, frozen=True, array_like=True):
    """The places of a plan's outputs: of each its type, and which of the ``placements`` it has."""

    generation: int
    placements: tuple[WireSharding, ...]
    outputs: tuple[tuple[WireType, int], ...]

    def __post_init__(self) -> None:
        if not all(0 <= placement < len(self.placements) for _, placement in self.outputs):
            raise ValueError("an output's place is none of the placements")

    def __getitem__(self, output: int) -> Place:
        type_, placement = self.outputs[output]
        return Place(type_, self.placements[placement], self.generation)


class Label(msgspec.Struct, frozen=True, array_like=True):
    """Whose a value is, by which of its numbers, and which epoch made it, -1 for an upload. With it a value outlives its dispatcher."""

    owner: bytes
    numbers: Buffers
    place: Place
    epoch: int = -1


class Load(Message, frozen=True):
    """Keep a program under a plan id. ``places``: of its outputs, for labels. ``together``: it runs compiled code once a ``Swap`` says so."""

    plan: int
    program: Program
    places: Places | None = None
    together: bool = False


class Swap(Message, frozen=True):
    """Run compiled code for these pieces of a plan's program from its next run on, as its other workers do; none for others that wait."""

    plan: int
    pieces: Buffers


class Unload(Message, frozen=True):
    """Forget programs."""

    plans: tuple[int, ...]


class Execute(Message, frozen=True):
    """Run a loaded program. Ids are in the order of the flush's lists; ``frees`` go after it. ``graph``: what is done with a CUDA graph
    of it that all its workers capture together. ``owner``, ``numbers``: for labels of the first outputs, none if nobody could have
    them back; those that an earlier part of the run has made get theirs too. ``tiers``: those of a run that is made again.
    ``reads``: which worker sends an output, and how, if it does not with the word that the run is over.
    """

    epoch: int
    plan: int
    inputs: Buffers
    outputs: Buffers
    scalars: tuple[WireScalar, ...]
    frees: Buffers
    graph: GraphUse = ""
    owner: bytes = b""
    numbers: Buffers = ()
    tiers: Tiers | None = None
    reads: tuple[int, Ship] | None = None


class DropGraph(Message, frozen=True):
    """Let go of the CUDA graph that a plan's workers captured together. ``refused``: why there will be none again, if so."""

    plan: int
    refused: str = ""


class MakeGroup(Message, frozen=True):
    """Create the process group of ``members``, as an epoch of its own. ``name`` scopes its store keys."""

    epoch: int
    name: str
    members: tuple[int, ...]
    backend: str


class Store(Message, frozen=True):
    """Keep rows ``bounds`` of the array in the data frame, padded to ``local``."""

    uid: int
    type: WireType
    bounds: Bounds
    local: tuple[int, ...]
    label: Label | None = None


class Name(Message, frozen=True):
    """Label a value that is here or will come."""

    uid: int
    label: Label


class Expect(Message, frozen=True):
    """An upload with this ticket will come: ``type`` is what is sent, ``local`` the padded shape kept."""

    uid: int
    ticket: bytes
    type: WireType
    local: tuple[int, ...]


class Ship(Message, frozen=True):
    """Send rows of a buffer to the client that owns ``token``: this worker's part is ``bounds`` of ``type``. ``job``: by which the dispatcher
    hears that it is over, -1: it does not want to.
    """

    uid: int
    token: bytes
    request: int
    type: WireType
    bounds: Bounds
    tiles: int
    final: bool
    job: int = -1


class Gone(Message, frozen=True):
    """The client that owned ``token`` is gone: what was kept for it alone can go."""

    token: bytes


class Admit(Message, frozen=True):
    """The public keys of those who may connect to a worker's data sockets, from now on."""

    keys: tuple[str, ...]


class Abort(Message, frozen=True):
    """A worker is lost: end whatever waits for it."""

    worker: int


class Leave(Message, frozen=True):
    """A member of these groups has left an epoch: end whatever waits for it in groups made before that. ``why``, for people."""

    epoch: int
    groups: tuple[tuple[int, ...], ...]
    why: str


class StoreReply(Message, frozen=True):
    """Answer to a StoreOp; ``ok`` false: the key's group lost a member."""

    request: int
    ok: bool
    value: bytes = b""
    number: int = 0


class Stop(Message, frozen=True):
    """End the process."""


class SetTrace(Message, frozen=True):
    """Keep the latest ``num_lines`` lines of the instruction log for trace ``number``; 0: hand them over. To clients, too."""

    number: int
    num_lines: int


# -- worker to dispatcher


class Held(msgspec.Struct, frozen=True, array_like=True):
    """One value that a worker has kept; as its label says, with the ``place`` by position."""

    uid: int
    owner: bytes
    numbers: Buffers
    place: int
    epoch: int


class Past(msgspec.Struct, frozen=True, array_like=True):
    """What a worker brings along from dispatchers that are gone: the generation of each and its number there, last the latest; the last
    epoch that it has done of that; values; and which others it was to make, and could not.
    """

    lives: tuple[tuple[int, int], ...]
    places: tuple[Place, ...] = ()
    values: tuple[Held, ...] = ()
    edge: int = -1
    failed: Buffers = ()


class WorkerHello(Message, frozen=True):
    """Join: where clients reach this worker's data sockets, what it runs on, the public key of these sockets ("": none), the
    versions of gt and torch, and the bytes of memory that it may use (0: no limit).
    """

    upload: str
    results: str
    host: str
    pid: int
    device: str
    backend: str
    key: str = ""
    gt: str = __version__
    torch: str = ""
    memory: int = 0
    past: Past | None = None


class Done(Message, frozen=True):
    """An epoch is over on this worker. With a fault: ``failed`` are the outputs that are not there and why, by uid, all if None;
    ``kept`` what was to be freed and is still here. ``graph``: how far the worker is with a graph that all workers capture together.
    ``left``: it takes no part in the epoch's collectives any more, so nobody may wait. ``earlier``: epochs that went well just before,
    with their seconds: those of short programs are told of together. ``tiers``: a letter for each piece, where those of the run before were
    others. ``ready``: which pieces may run compiled code, where all that can be compiled has been, once. ``value``: what the
    run reads.
    """

    epoch: int
    seconds: float
    fault: Fault | None = None
    failed: tuple[tuple[int, Fault], ...] | None = None
    kept: Buffers = ()
    graph: GraphStage = ""
    left: bool = False
    earlier: tuple[tuple[int, float], ...] = ()
    tiers: str | None = None
    ready: Buffers | None = None
    value: Small | None = None


class GraphIdle(Message, frozen=True):
    """The values are gone that a plan's graph, captured by all its workers together, was made for; their memory is kept for it."""

    plan: int


class Unshipped(Message, frozen=True):
    """A client's fetch is answered by the dispatcher, which knows more of the cause than this worker does."""

    uid: int
    token: bytes
    request: int
    fault: Fault


class TraceReply(Message, frozen=True):
    """A process takes part in a trace from now on, or, if ``over``, what it has: lines whose elapsed time counts from ``start``. ``now``: the sender's clock,
    which it shares with all processes of equal ``boot``. From clients, too. ``preparing``: another follows once what it is to see is seen.
    """

    number: int
    now: float
    boot: str
    over: bool = False
    start: float = 0.0
    lines: tuple[str, ...] = ()
    left_out: int = 0
    preparing: bool = False


class Used(Message, frozen=True):
    """What a worker's time and memory went to so far, None as a program is loaded; and those of its programs of which something is new."""

    usage: WorkerUsage | None
    programs: tuple[ProgramState, ...]


class Uploaded(Message, frozen=True):
    """An expected upload is here."""

    uid: int


class Shipped(Message, frozen=True):
    """A read is over on this worker, and took so long."""

    job: int
    seconds: float


class Unsent(Message, frozen=True):
    """The client that owns ``token`` could not be reached with its part of a fetch."""

    token: bytes
    request: int


class StoreOp(Message, frozen=True):
    """One operation on the rendezvous store. kind: set, get, add, wait, check, delete, compare_set."""

    request: int
    kind: str
    keys: tuple[str, ...]
    value: bytes = b""
    expected: bytes = b""
    amount: int = 0


# -- data sockets


class Upload(Message, frozen=True):
    """Client to worker: the rows asked for by a ticket, in the data frame or in shared memory."""

    ticket: bytes
    type: WireType
    region: Region | None = None


class Share(Message, frozen=True):
    """Offer shared memory: the receiver tries to open ``probe``. ``opened``: whether the sender could open the receiver's.

    A client says who it is by its ``token``; a worker answers on the same connection.
    """

    token: bytes
    probe: Region | None
    opened: bool


class Unread(Message, frozen=True):
    """Worker to client: an upload's shared memory could not be opened after all. Send it in a frame."""

    upload: Upload


class Part(Message, frozen=True):
    """Worker to client: one of ``tiles`` parts of a result of ``type``, in the data frame or in shared memory."""

    request: int
    type: WireType
    bounds: Bounds
    tiles: int
    final: bool
    region: Region | None = None


class PartFailed(Message, frozen=True):
    """Worker to client: the value is poisoned."""

    request: int
    fault: Fault


FromClient: TypeAlias = (
    ClientHello | Resume | Define | Run | Parent | Put | Fail | Fetch | Explain | Free | Recover | Rebalance | Supervise
)  # fmt: skip
FromWorker: TypeAlias = WorkerHello | Done | GraphIdle | Unshipped | Uploaded | Shipped | Unsent | StoreOp
Incoming: TypeAlias = (
    ClientHello | Resume | Define | Run | Parent | Put | Fail | Fetch | Explain | Free | Recover | WorkerHello | Done | GraphIdle
    | Unshipped | Uploaded | Shipped | Unsent | StoreOp | Rebalance | Supervise | Attach | Beat | Bye | AskStatus | NodeHello | NodeFailed
    | AskTrace | TraceReply | Used
)  # fmt: skip
ToClient: TypeAlias = (
    ClientWelcome | Returned | Workers | Attached | Placed | Failed | Located | Settled | Explained | Rebalanced | Progress | Answer | RanAt
    | Ping | Refused | Broken | Part | PartFailed | Share | Unread | SetTrace
)
ToWorker: TypeAlias = (
    WorkerWelcome | Attached | Load | Swap | Unload | Parent | Execute | DropGraph | MakeGroup | Store | Name | Expect | Ship | Free | Gone | Abort
    | Leave | StoreReply | Admit | Ping | Stop | Refused | Broken | SetTrace
)  # fmt: skip
ToNode: TypeAlias = NodeWelcome | NodeNews | Supervise | JobEnded | Ping | Refused | Broken
ToAsker: TypeAlias = Status | Ping | Refused | Broken | Traced

T = TypeVar("T")
_ENCODER = msgspec.msgpack.Encoder()
_VERSION_BYTE = bytes([VERSION])
WITH_DATA = (Define, Put, Store, Upload, Part)
CHECKED = frozenset((*WITH_DATA, Ship, Expect))


class Codec(Generic[T]):
    """Decodes the messages one kind of receiver accepts."""

    def __init__(self, accepts: Any) -> None:
        self._decoder = msgspec.msgpack.Decoder(accepts)

    def decode(self, frames: Frames) -> tuple[T, memoryview | None]:
        """Give the message and its data frame. Errors: ProtocolError for whatever is not exactly a valid message."""
        if not 1 <= len(frames) <= 2:
            raise ProtocolError(f"expected a header frame and at most one data frame, got {len(frames)} frames")
        header = without_number(memoryview(frames[0]))
        if not 1 <= len(header) <= MAX_HEADER:
            raise ProtocolError(f"expected a header of 1 to {MAX_HEADER} bytes, got {len(header)}")
        if header[0] != VERSION:
            raise VersionMismatch(f"expected protocol version {VERSION}, got {header[0]}: {_other_version(header)}", header[0])
        try:
            message = self._decoder.decode(header[1:])
        except (msgspec.MsgspecError, RecursionError, ValueError) as e:
            raise ProtocolError(f"malformed message: {e}") from None
        data = memoryview(frames[1]) if len(frames) == 2 else None
        if data is None and type(message) not in CHECKED:
            return message, None
        wants = isinstance(message, WITH_DATA) and not (isinstance(message, Put) and not message.inline)
        region = message.region if isinstance(message, Upload | Part) else None
        wants = wants and region is None
        if wants != (data is not None):
            raise ProtocolError(f"{type(message).__name__} {'needs a' if wants else 'takes no'} data frame")
        if isinstance(message, Put | Store | Upload):
            check_type(message.type)
            if data is not None:
                check_nbytes(message.type, data.nbytes)
        if isinstance(message, Store | Ship | Expect):
            _check_rows(message)
        if isinstance(message, Part):
            check_bounds(message.bounds, message.type)
            part = WireType(tuple(b - a for a, b in message.bounds), message.type.dtype)
            if data is not None:
                check_nbytes(part, data.nbytes)
            if region is not None:
                check_region(region, part)
        if isinstance(message, Upload) and region is not None:
            check_region(region, message.type)
        return message, data


def _check_rows(message: Store | Ship | Expect) -> None:
    """Check that the rows of a value are rows of its type, and have room where they are to be kept."""
    rows = message.type.shape
    if isinstance(message, Expect):
        check_type(message.type)
    else:
        check_bounds(message.bounds, message.type)
        rows = tuple(b - a for a, b in message.bounds)
    if not isinstance(message, Ship):
        check_type(WireType(message.local, message.type.dtype))
        if len(message.local) != len(rows) or any(n < m for n, m in zip(message.local, rows, strict=True)):
            raise ProtocolError(f"rows of {list(rows)} have no room in {list(message.local)}")


def _other_version(header: memoryview) -> str:
    """Give what another version says of itself: a Refused has one form in all."""
    try:
        said = msgspec.msgpack.decode(header[1:], type=Refused)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return f"use equal versions of gt, here it is {__version__}"
    return said.reason[:500]


def encode_refused(reason: str, version: int) -> bytes:
    """Give a Refused that a peer of another version of the protocol reads."""
    return bytes([version]) + _ENCODER.encode(Refused(reason))


FROM_PEERS: Codec[Incoming] = Codec(Incoming)
TO_CLIENT: Codec[ToClient] = Codec(ToClient)
TO_WORKER: Codec[ToWorker] = Codec(ToWorker)
TO_NODE: Codec[ToNode] = Codec(ToNode)
TO_ASKER: Codec[ToAsker] = Codec(ToAsker)
UPLOADS: Codec[Upload | Share | Beat] = Codec(Upload | Share | Beat)


def encode(message: Message) -> bytes:
    """Give the header frame. Errors: ProtocolError above the limit, since the receiver would drop it unseen."""
    try:
        header = _VERSION_BYTE + _ENCODER.encode(message)
    except OverflowError:
        raise ProtocolError(f"{type(message).__name__} holds an integer beyond 64 bits") from None
    if len(header) > MAX_HEADER:
        raise ProtocolError(f"{type(message).__name__} of {len(header)} bytes is over the limit of {MAX_HEADER} bytes")
    return header


def pack_scalar(value: Scalar) -> WireScalar:
    return (value.real, value.imag) if isinstance(value, complex) else value


def unpack_scalar(value: WireScalar) -> Scalar:
    return complex(*value) if isinstance(value, tuple) else value

"""What is said of signals that cannot be followed: one warning for each place, at the user's line; an error in strict mode.

Workers and axes are checked when a name is first used in a session, tensors marked one by one when they are marked, and
what a scope marks with its graph. A scope is told of if it places nothing: sums and means inside it lose dims, as they should.
Owns: ``check_workers``, ``check_tensor``. Must not know: scopes. Next: ``signal``, ``gt.passes.signal_placement``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from gt import session as sessions
from gt.config import get_config
from gt.ir.blame import users_place
from gt.ir.graph import Graph, Node
from gt.ir.mesh import Mesh
from gt.ir.signals import SignalConfig
from gt.ir.types import TensorType
from gt.passes.signal_placement import ParamPlacement, cut, signal_mesh
from gt.runtime.session import Session

Place = tuple[str, int]  # file and line

_early_names: dict[str, SignalConfig] = {}  # used before there was a session
_early_tensors: dict[tuple[str, SignalConfig, TensorType, Place], None] = {}
_checked: dict[str, SignalConfig] = {}  # compared with the workers of the session in use
_told: set[tuple[str, Place | None, int]] = set()  # in the session in use, with the version of the configuration


def check_workers(name: str, found: SignalConfig) -> None:
    """Say that a signal asks for workers or axes that are not there. Without any workers yet, runs wait for them."""
    if not found.places or _checked.get(name) is found:
        return
    session = sessions.running()
    if session is None:
        _early_names[name] = found
    elif present := session.workers():
        problem = signal_mesh(found, Mesh.line(present))[1]
        if problem:
            get_config().cannot_follow(f"signal {name!r}: {problem}{get_config().said_at(name)}")
        _checked[name] = found


def check_tensor(name: str, found: SignalConfig, type_: TensorType) -> None:
    """Say that a tensor marked here cannot be split as its signal asks."""
    session = sessions.running()
    if found.shard is None:
        return
    if session is None:
        _early_tensors[name, found, type_, users_place()] = None
    elif problem := _problem(found, type_, session.workers()):
        _tell(f"signal {name.partition('>')[0]!r}", problem, users_place())


@lru_cache(maxsize=4096)
def _problem(found: SignalConfig, type_: TensorType, workers: tuple[int, ...]) -> str:
    """Give why a tensor is not split as asked; nothing if it is, or if the signal is ignored as a whole."""
    mesh = signal_mesh(found, Mesh.line(workers))[0] if workers else None
    return cut(found.shard, mesh, type_)[1] if mesh is not None and found.shard is not None else ""


def _tell(who: str, problem: str, place: Place | None) -> None:
    mark = who, place, get_config().version
    if mark not in _told:
        get_config().cannot_follow(f"{who}: {problem}", place)
        _told.add(mark)


# -- whole graphs


def _check_graph(number: int, graph: Graph) -> None:
    """Say of each signal in a new graph that splits none of what it marks why that is, at the first line it marks."""
    session = sessions.running()
    if session is None or not graph.signals or not (workers := session.workers()):
        return
    try:
        for who, problem, place in _unfollowed(graph, workers):
            _tell(who, problem, place)
    except Exception:  # strict: the next attempt must fail, too
        known = sessions.known(session)
        for structure in [s for s, n in known.items() if n == number]:
            del known[structure]
        raise


def _unfollowed(graph: Graph, workers: tuple[int, ...]) -> Iterator[tuple[str, str, Place | None]]:
    """Give who is not followed anywhere, why, and where first."""
    configs = dict(graph.signals)
    differentiated = any(node.op.effect == "grad" for node in graph.nodes)
    first: dict[str, tuple[str, Place | None] | None] = {}  # None: it is followed somewhere
    for node in graph.nodes:
        for name, config, types in _asked(node, configs, differentiated):
            for type_ in types:
                problem = _problem(config, type_, workers)
                if not problem:
                    first[name] = None
                first.setdefault(name, (problem, (node.loc.file, node.loc.line) if node.loc is not None else None))
    rules = ParamPlacement.of(configs.values(), Mesh.line(workers))
    for value in (*graph.inputs, *graph.outputs) if rules.rules else ():
        if (placed := rules.find(value.hint, value.type)) is not None:
            first[placed[1]] = None if not placed[2] else first.get(placed[1], (placed[2], None))
    where = get_config().said_at("")
    if (unused := _rules_problem(configs, workers)) is not None:
        yield "parameters", unused + where, None
    for name, unfollowed in first.items():
        if unfollowed is not None and unfollowed[1]:
            yield f"signal {name!r}", *unfollowed
        elif unfollowed is not None:
            yield f"parameters {name!r}", unfollowed[0] + where, None


def _rules_problem(configs: dict[str, SignalConfig], workers: tuple[int, ...]) -> str | None:
    """Give what is wrong with the mesh of the rules for parameters, which no scope names; signals say it of their own."""
    problems = {name: signal_mesh(config, Mesh.line(workers))[1] for name, config in configs.items()}
    found = problems.pop("", None)
    return found if found and found not in problems.values() else None


def _asked(node: Node, configs: dict[str, SignalConfig], differentiated: bool) -> Iterator[tuple[str, SignalConfig, list[TensorType]]]:
    """Give the signals that a node's results and the gradients of its operands are to follow, and their types.

    Views, numbers and what has lost a dim are left out: a scope over a layer is not meant for them.
    """
    config = configs.get(node.signal) if node.signal else None
    if config is None or node.signal is None or node.op.view:
        return
    ndim = max((v.type.ndim for v in node.inputs), default=0)
    if config.shard is not None:
        yield get_config().entered_as(node.signal, config), config, [v.type for v in node.outputs if v.type.ndim >= max(ndim, 1)]
    back = config.backward_config
    if differentiated and node.taped and back is not None and back.shard is not None and config.backward_signal:
        yield config.backward_signal, back, [v.type for v in node.inputs if v.type.ndim and v.type.dtype.is_differentiable]


def _session_started(session: Session) -> None:
    _checked.clear()
    _told.clear()
    names, tensors = dict(_early_names), list(_early_tensors)
    _early_names.clear()
    _early_tensors.clear()
    for name, found in names.items():
        check_workers(name, found)
    for name, found, type_, place in tensors:
        if problem := _problem(found, type_, session.workers()):
            _tell(f"signal {name.partition('>')[0]!r}", problem, place)


sessions.on_start.append(_session_started)
sessions.on_define.append(_check_graph)

__all__ = ["check_tensor", "check_workers"]

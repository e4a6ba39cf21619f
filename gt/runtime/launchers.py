"""Which node of which job this process is, read from what a launcher puts in the environment.

Owns: ``detect`` and the launchers it knows: torchrun, Open MPI, SkyPilot, Kubernetes indexed jobs and Slurm. Pure: the variables and
the host's name are handed in. Must not know: sockets, processes. Next: ``gt.commands.launch``, which acts on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gt.ir.advice import Advised

MAX_JOB = 256
MAX_HOSTS = 100_000


class LauncherError(Advised, ValueError):
    """The variables of a launcher, or they and the flags, do not say which node this is. The text says what to do."""


@dataclass(frozen=True)
class Place:
    """This node among ``num_nodes``: ``node`` counts from 0, which runs the script. ``head``: the name or address of node 0."""

    launcher: str
    num_nodes: int
    node: int
    head: str
    job: str

    def __str__(self) -> str:
        at = f", node 0 is {self.head}" if self.num_nodes > 1 else ""
        return f"node {self.node} of {self.num_nodes} (by {self.launcher}{at})"


@dataclass(frozen=True)
class Asked:
    """What the flags say; None where they say nothing. ``launcher``: the only one to look for, ``none`` for no launcher."""

    num_nodes: int | None = None
    node: int | None = None
    head: str | None = None
    job: str | None = None
    launcher: str | None = None


@dataclass(frozen=True)
class Found:
    """What a launcher's variables say, None where they say nothing. ``tasks``: processes that it starts on this node."""

    num_nodes: int | None
    node: int
    head: str | None
    job: str
    tasks: int = 1
    named: str = ""  # the variable that says num_nodes


Variables = Mapping[str, str]


def _number(variables: Variables, name: str, launcher: str) -> int:
    text = variables.get(name)
    if text is None:
        raise LauncherError(
            f"{launcher} is here but {name} is not set: start gt launch by {launcher} itself, or say --launcher none"
        )
    if not re.fullmatch(r"\d{1,9}", text.strip()):
        raise LauncherError(f"{name}={text!r} is not a number: it is {launcher}'s, say --launcher none to leave it out")
    return int(text)


def _first(variables: Variables, *names: str) -> str | None:
    return next((n for n in names if n in variables), None)


def _torchrun(variables: Variables, host: str) -> Found | None:
    if "TORCHELASTIC_RUN_ID" not in variables:
        return None
    nodes = _number(variables, "GROUP_WORLD_SIZE", "torchrun")
    tasks = _number(variables, "LOCAL_WORLD_SIZE", "torchrun")
    world = _number(variables, "WORLD_SIZE", "torchrun")
    if world != nodes * tasks:
        raise LauncherError(
            f"WORLD_SIZE={world} is not GROUP_WORLD_SIZE={nodes} times LOCAL_WORLD_SIZE={tasks}: "
            "torchrun must start one process on every node (--nproc-per-node=1)"
        )
    return Found(
        nodes, _number(variables, "GROUP_RANK", "torchrun"), variables.get("MASTER_ADDR"),
        f"torchrun {variables['TORCHELASTIC_RUN_ID']}", tasks, "GROUP_WORLD_SIZE",
    )  # fmt: skip


def _open_mpi(variables: Variables, host: str) -> Found | None:
    if "OMPI_COMM_WORLD_SIZE" not in variables:
        return None
    size = _number(variables, "OMPI_COMM_WORLD_SIZE", "Open MPI")
    rank = _number(variables, "OMPI_COMM_WORLD_RANK", "Open MPI")
    tasks = _number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI") if "OMPI_COMM_WORLD_LOCAL_SIZE" in variables else 1
    uri = variables.get("OMPI_MCA_orte_hnp_uri", "")  # of mpirun itself, which starts rank 0 where it runs
    at = re.search(r"tcp://(\d+\.\d+\.\d+\.\d+)[,:]", uri)
    head = variables.get("MASTER_ADDR") or (at[1] if at else None)
    job = variables.get("PMIX_NAMESPACE") or variables.get("OMPI_MCA_ess_base_jobid") or ""
    return Found(size, rank, head, f"mpirun {job}".strip(), tasks, "OMPI_COMM_WORLD_SIZE")


def _skypilot(variables: Variables, host: str) -> Found | None:
    if "SKYPILOT_NODE_RANK" not in variables:
        return None
    addresses = variables.get("SKYPILOT_NODE_IPS", "").split()
    if not addresses:
        raise LauncherError(
            "SKYPILOT_NODE_RANK is set but SKYPILOT_NODE_IPS names no node: start gt launch in the task's run section"
        )
    count = _number(variables, "SKYPILOT_NUM_NODES", "SkyPilot") if "SKYPILOT_NUM_NODES" in variables else len(addresses)
    if count != len(addresses):
        raise LauncherError(f"SKYPILOT_NUM_NODES={count}, but SKYPILOT_NODE_IPS names {len(addresses)} nodes")
    job = f"skypilot {variables.get('SKYPILOT_TASK_ID', '')}".strip()
    return Found(count, _number(variables, "SKYPILOT_NODE_RANK", "SkyPilot"), addresses[0], job, 1, "SKYPILOT_NUM_NODES")


def _kubernetes(variables: Variables, host: str) -> Found | None:
    """An indexed job names its pods' hosts ``<job>-<index>``; how many there are it says nowhere."""
    if "JOB_COMPLETION_INDEX" not in variables:
        return None
    index = _number(variables, "JOB_COMPLETION_INDEX", "Kubernetes")
    name, _, domain = host.partition(".")
    job, dash, last = name.rpartition("-")
    named = bool(dash) and last == str(index)
    head = f"{job}-0{'.' + domain if domain else ''}" if named else None
    return Found(None, index, head, f"kubernetes {job if named else ''}".strip())


def _slurm(variables: Variables, host: str) -> Found | None:
    if "SLURM_JOB_ID" not in variables:
        return None
    count_name = _first(variables, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    list_name = _first(variables, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    count = _number(variables, count_name or "SLURM_NNODES", "Slurm")
    if "SLURM_STEP_ID" not in variables:
        if count > 1:
            raise LauncherError(
                f"this is inside job {variables['SLURM_JOB_ID']} of Slurm, but on its first node only: "
                "start it on all with `srun --ntasks-per-node=1 gt launch ...`"
            )
        return Found(1, 0, None, f"slurm {variables['SLURM_JOB_ID']}", 1, count_name or "")
    if list_name is None:
        raise LauncherError("Slurm is here but SLURM_STEP_NODELIST is not set: start gt launch by srun, or say --launcher none")
    hosts = hosts_of(variables[list_name])
    if len(hosts) != count:
        raise LauncherError(f"{count_name}={count}, but {list_name}={variables[list_name]!r} names {len(hosts)} nodes")
    tasks = _number(variables, "SLURM_STEP_NUM_TASKS", "Slurm") if "SLURM_STEP_NUM_TASKS" in variables else count
    job = f"slurm {variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}"
    return Found(count, _number(variables, "SLURM_NODEID", "Slurm"), hosts[0], job, -(-tasks // count), count_name or "")


LAUNCHERS: dict[str, Callable[[Variables, str], Found | None]] = {  # the innermost first: torchrun may run inside Slurm
    "torchrun": _torchrun,
    "openmpi": _open_mpi,
    "skypilot": _skypilot,
    "kubernetes": _kubernetes,
    "slurm": _slurm,
}
ONE_TASK = {
    "torchrun": "--nproc-per-node=1",
    "openmpi": "--map-by ppr:1:node",
    "slurm": "--ntasks-per-node=1",
}


def detect(variables: Variables, asked: Asked, host: str) -> Place:
    """Say which node this is. ``host``: this machine's full name.

    Flags fill in what a launcher leaves open; without a launcher they must say everything. Errors: LauncherError.
    """
    if asked.launcher not in (None, "none", *LAUNCHERS):
        raise LauncherError(f"--launcher {asked.launcher}: expected one of none, {', '.join(LAUNCHERS)}")
    tried = [name for name in LAUNCHERS if asked.launcher in (None, name)] if asked.launcher != "none" else []
    name, found = next(((n, f) for n in tried if (f := LAUNCHERS[n](variables, host)) is not None), ("", None))
    if found is None and asked.launcher not in (None, "none"):
        raise LauncherError(f"--launcher {asked.launcher}: none of its variables is set here")
    if found is None:
        return _by_flags(asked)
    if found.tasks > 1:
        raise LauncherError(
            f"{name} starts {found.tasks} processes on a node; gt launch must be one on each, it starts a worker for every GPU "
            f"itself: use {ONE_TASK.get(name, 'one process on each node')}"
        )
    if found.num_nodes is None and asked.num_nodes is None:
        raise LauncherError(f"{name} does not say how many nodes there are: give --nnodes")
    for flag, said, got, variable in (
        ("--nnodes", asked.num_nodes, found.num_nodes, found.named or name),
        ("--node-rank", asked.node, found.node, name),
    ):
        if said is not None and got is not None and said != got:
            raise LauncherError(
                f"{flag} {said} contradicts {variable}, which says {got}: leave the flag out, or say --launcher none"
            )
    num_nodes = found.num_nodes if found.num_nodes is not None else asked.num_nodes
    assert num_nodes is not None
    head = asked.head or found.head or ("" if num_nodes == 1 else None)
    if head is None:
        raise LauncherError(f"{name} does not say where node 0 is: give --head HOST, the same on every node")
    return _checked(Place(name, num_nodes, found.node, head, (asked.job or found.job)[:MAX_JOB]))


def _by_flags(asked: Asked) -> Place:
    num_nodes = 1 if asked.num_nodes is None else asked.num_nodes
    if num_nodes == 1:
        if asked.node:
            raise LauncherError(f"--node-rank {asked.node} of one node: give --nnodes too")
        return Place("flags", 1, 0, asked.head or "", asked.job or "")
    missing = [flag for flag, value in (("--node-rank", asked.node), ("--head", asked.head)) if value is None]
    if missing:
        raise LauncherError(
            f"no launcher is found here ({', '.join(LAUNCHERS)}), so --nnodes {num_nodes} needs {' and '.join(missing)}: "
            "start it on every node with its own --node-rank, or by a launcher"
        )
    assert asked.node is not None and asked.head is not None
    return _checked(Place("flags", num_nodes, asked.node, asked.head, (asked.job or "")[:MAX_JOB]))


def _checked(place: Place) -> Place:
    if place.num_nodes < 1 or not 0 <= place.node < place.num_nodes:
        raise LauncherError(f"{place.launcher} says node {place.node} of {place.num_nodes}: nodes count from 0")
    return place


def hosts_of(text: str) -> list[str]:
    """Give the hosts of a Slurm node list, as ``gpu[01-03,7],login2``. Errors: LauncherError if it is not one."""
    hosts: list[str] = []
    rest = text.strip()
    while rest:
        match = re.match(r"((?:[A-Za-z0-9._-]|\[[0-9,-]+\])+)(?:,|$)", rest)
        if match is None or not match[1]:
            raise LauncherError(f"{text!r} is not a list of nodes such as gpu[01-03,7],login2")
        hosts += _expanded(match[1], text)
        if len(hosts) > MAX_HOSTS:
            raise LauncherError(f"{text[:80]!r} names more than {MAX_HOSTS} nodes")
        rest = rest[match.end() :]
    return hosts


def _expanded(pattern: str, text: str) -> list[str]:
    before, bracket, rest = pattern.partition("[")
    if not bracket:
        return [pattern]
    inside, _, after = rest.partition("]")
    numbers: list[str] = []
    for item in inside.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", item)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or high < low or high - low > MAX_HOSTS:
            raise LauncherError(f"{text[:80]!r} is not a list of nodes such as gpu[01-03,7],login2")
        numbers += [str(n).zfill(len(match[1])) for n in range(low, high + 1)]
    tails = _expanded(after, text) if after else [""]
    return [before + number + tail for number in numbers for tail in tails]


__all__ = ["LAUNCHERS", "Asked", "LauncherError", "Place", "detect", "hosts_of"]

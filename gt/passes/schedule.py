"""The order in which a LOCAL graph's nodes run: compute that waits for nothing first, collectives late and together, and then
those that take long as soon as what they send is there, so that they travel while others compute: what they do not wait for.

Values that are only gathered, such as split parameters, are the exception: each is joined when it is first needed, so
that all of them are never whole at once. Where memory is limited, a sum that each worker keeps a part of is made as soon as
its terms are, so that gradients are never whole at once either.

Work that is spread over meshes with transfers between them keeps the order it was recorded in, which is that of a pipeline: what
is sent is sent as soon as it is made. Owns: ``schedule``, ``overlap``, ``ranks``, ``launches``. Next:
``bucket_collectives``, ``fuse_hot_path``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set

from gt.ir.graph import Graph, Node, Value
from gt.ir.ops import OPS, collective
from gt.passes.cost import compute_s
from gt.passes.work import is_heavy, node_work

MOVES = (
    collective.all_gather, collective.all_reduce, collective.all_to_all, collective.pad_end, collective.partial_from_part,
    collective.partial_from_whole, collective.reduce_scatter, collective.shard_slice, collective.unpad,
)  # fmt: skip
SMALL, LITTLE, FEW = 1 << 10, 1 << 20, 16  # bytes of a sum, and of what it is made of; nodes
EXCHANGES = (collective.all_to_all, collective.pad_end, collective.shard_slice, collective.unpad)


def schedule(graph: Graph) -> list[Node]:
    """Give the nodes in the order to run them; without collectives, as they are."""
    if not graph.communicates:
        return list(graph.nodes)
    if any(node.op is collective.transfer for node in graph.nodes):
        return _sent_soon(graph)
    rank, soon = ranks(graph), scatters_soon(graph)
    place = {node: float(i) for i, node in enumerate(graph.nodes)}
    early = joins_early(graph)
    for node in graph.nodes:
        padded = node.op is collective.pad_end and any(user in soon for user, _ in graph.uses.get(node.output, ()))
        sent = node.op.effect == "comm" and node not in early  # in the order in which there is something to send
        if (sent or padded) and (maker := graph.producer.get(node.inputs[0])) is not None:
            place[node] = place[maker] + 1 / 8  # before whatever follows what it reads
    for launch in launches(graph):
        place.update(dict.fromkeys(launch, max(map(place.__getitem__, launch))))
    return sorted(graph.nodes, key=lambda node: (rank[node], place[node]))


def overlap(graph: Graph, order: Sequence[Node], longer: Callable[[Node], bool], fill: Callable[[Node], float] | None = None) -> list[Node]:
    """Give the order with collectives that take long moved forward: behind what they send; a gather of what is there anyway to
    where the gather before it is first needed. Where memory is limited, gathers stay. ``fill``: how long one takes; what such a
    collective does not wait for is computed after what it does.
    """
    if not graph.communicates:
        return list(order)
    early = joins_early(graph)
    moved = {node for node in order if node.op.effect == "comm" and node.op is not collective.transfer and longer(node)}
    if fill is not None:
        order = _awaited_first(graph, order, moved - early, fill)
    gathers = [node for node in order if node in moved and node in early]
    moved -= set(gathers[:1] if graph.options.memory_limit is None else gathers)
    if not moved:
        return list(order)
    serves: dict[Node, Node] = {node: node for node in gathers}
    place = {node: i for i, node in enumerate(order)}
    for node in reversed(order):  # what is done to values only to send them goes along
        readers = [user for out in node.outputs for user, _ in graph.uses.get(out, ())]
        mere = node.op.view or node.op in (collective.pad_end, collective.shard_slice, OPS["cat"], OPS["cast"])
        if mere and readers and moved.issuperset(readers) and not any(out in graph.outputs for out in node.outputs):
            moved.add(node)
            if all(user in serves for user in readers):  # the first of them waits for this node
                serves[node] = min((serves[user] for user in readers), key=place.__getitem__)
    behind: dict[Node, Node] = {}  # the last node that stays before where a gather is first needed
    last: Node | None = None
    for node in order:
        if node in serves and serves[node] is node and last is not None:
            behind[node] = last
        last = node if node not in moved else last
    before = dict(zip(gathers[1:], gathers[:-1], strict=True))
    anchors = {node: behind[before[g]] for node, g in serves.items() if g in before and before[g] in behind}
    anchors |= {node: gathers[0] for node, g in serves.items() if before.get(g) is gathers[0]}
    return _forward(graph, order, moved, anchors)


def _awaited_first(graph: Graph, order: Sequence[Node], moved: Set[Node], seconds: Callable[[Node], float]) -> list[Node]:
    """Give the order with heavy compute last in its rank that no collective of the next one waits for, as much as those moved take.

    What is made of it follows; the rest stays with what it is fused with, and nothing large is kept for it. What is made of inputs alone,
    such as a parameter in another dtype, may be made as late as in the rank before its reader's.
    """
    if any(node.op is collective.transfer for node in order):
        return list(order)  # a pipeline's, as recorded
    rank = ranks(graph)
    hidden: dict[int, float] = {}  # by rank of compute, how long those that do not wait for all of it take
    for node in order:
        if node in moved:
            hidden[rank[node] - 1] = hidden.get(rank[node] - 1, 0.0) + seconds(node)
    of_inputs, awaited = _of_inputs(graph), set[Node]()
    for node in reversed(order):
        readers = _readers(graph, node)
        soonest = min((rank[user] for user in readers), default=0) // 2 * 2
        if soonest > 0 and soonest - 2 in hidden and node in of_inputs:
            rank[node] = soonest - 2
        if node.op.effect == "comm" or any(user in awaited and rank[user] <= rank[node] + 1 for user in readers):
            awaited.add(node)
    heavy: set[Node] = set()  # and what is made of it
    for node in order:
        behind = any(graph.producer[v] in heavy and rank[graph.producer[v]] == rank[node] for v in node.inputs if v in graph.producer)
        if rank[node] in hidden and node not in awaited and (behind or is_heavy(node)):
            heavy.add(node)
    late: set[Node] = set()
    for node in reversed(sorted(order, key=rank.__getitem__)):
        at = rank[node]
        if at in hidden and node not in awaited and all(user in late or rank[user] != at for user in _readers(graph, node)):
            viewed = node.op.view and any(user in late for user in _readers(graph, node))
            if viewed or node in of_inputs or (node in heavy and hidden[at] > 0):
                late.add(node)
                hidden[at] -= compute_s(node_work(node), 0)
    return sorted(order, key=lambda node: (rank[node], node in late))


def _readers(graph: Graph, node: Node) -> list[Node]:
    return [user for out in node.outputs for user, _ in graph.uses.get(out, ())]


def _of_inputs(graph: Graph) -> set[Node]:
    """Give the compute that inputs suffice for."""
    found: set[Node] = set()
    for node in graph.nodes:
        made = (graph.producer[v] for v in node.inputs if v in graph.producer)
        if node.op.effect != "comm" and found.issuperset(made):
            found.add(node)
    return found


def _forward(graph: Graph, order: Sequence[Node], moved: Set[Node], anchors: Mapping[Node, Node]) -> list[Node]:
    """Give the order with nodes moved right behind what they read, and not before their anchors."""
    lacks: dict[Node, int] = {}
    waiting: dict[Node, list[Node]] = {}
    together = {node: launch for launch in launches(graph) for node in launch}
    for node in order:
        if node in moved:
            sources = {graph.producer[v] for n in together.get(node, (node,)) for v in n.inputs if v in graph.producer}
            sources |= {anchors[node]} if node in anchors else set()
            lacks[node] = len(sources)
            for source in sources:
                waiting.setdefault(source, []).append(node)
    made: list[Node] = []

    def put(node: Node) -> None:
        made.append(node)
        for other in waiting.get(node, ()):
            lacks[other] -= 1
            if not lacks[other]:
                put(other)

    for node in [node for node in order if node in moved and not lacks[node]]:  # it reads what is there from the start
        put(node)
    for node in order:
        if node not in moved:
            put(node)
    return made


def launches(graph: Graph) -> list[tuple[Node, ...]]:
    """Give the sums that start together, where that is more than one: they are of the same workers and stand side by side."""
    found: list[tuple[Node, ...]] = []
    launch: tuple[Node, ...] = ()
    for node in graph.nodes:
        if launch and _meets(node) != _meets(launch[-1]):
            launch = ()
        if node.op.effect == "comm":
            launch = (*launch, node)
        if len(launch) > 1 and not launch[-1].attr.get("with_next"):
            found.append(launch)
        if node.op.effect != "comm" or not node.attr.get("with_next"):
            launch = ()
    return found


def _meets(node: Node) -> object:
    """Give what collectives of one launch have in common."""
    placed = node.inputs[0].type.sharding if node.inputs else None
    return node.op, placed and placed.mesh, node.attr.get("axes")


def _sent_soon(graph: Graph) -> list[Node]:
    """Give the nodes as they are, but transfers right behind what they send, and other collectives where they are needed."""
    leads = _leads(graph)
    behind: dict[Value, list[Node]] = {}
    for node in leads:
        if node.inputs[0] in graph.producer:
            behind.setdefault(node.inputs[0], []).append(node)
    order: list[Node] = []
    late: dict[Value, Node] = {}
    together = {node: launch for launch in launches(graph) for node in launch}

    place = {node: i for i, node in enumerate(graph.nodes)}
    ready = lambda v: place.get(graph.producer[late[v].inputs[0]], -1) if late[v].inputs[0] in graph.producer else -1  # noqa: E731

    def put(node: Node) -> None:
        for value in sorted({v: None for v in node.inputs if v in late}, key=ready):
            if value in late:
                send(late[value])
        order.append(node)
        for out in node.outputs:
            for lead in behind.get(out, ()):
                put(lead)

    def send(node: Node) -> None:
        for other in together.get(node, (node,)):
            if other.output in late:
                put(late.pop(other.output))

    for node in graph.nodes:
        if node in leads and node.inputs[0] in graph.producer:
            continue
        if node.op.effect == "comm" and node not in leads and node.output not in behind:
            late[node.output] = node
        else:
            put(node)
    while late:
        send(next(iter(late.values())))
    return order


def _leads(graph: Graph) -> dict[Node, None]:
    """Give the transfers, and what is done to values only to send them, in order."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        readers = graph.uses.get(node.outputs[0], ()) if node.op in MOVES and node.output not in graph.outputs else ()
        if node.op is collective.transfer or (readers and all(user in found for user, _ in readers)):
            found.add(node)
    return dict.fromkeys(node for node in graph.nodes if node in found)


def ranks(graph: Graph) -> dict[Node, int]:
    """Give when each node runs: compute of rank 2n waits for n collectives, a collective of rank 2n + 1 for n others.

    Small sums that are there from the start, but for a collective, are of rank -1 where else much would be parted by waiting for them.
    """
    rank = _ranks(graph, set())
    first = _sums_of_inputs(graph)
    if not first:
        return rank
    apart = (v for v in graph.producer if any(rank[user] // 2 > rank[graph.producer[v]] // 2 for user, _ in graph.uses.get(v, ())))
    return _ranks(graph, first) if sum(v.type.nbytes for v in apart) > LITTLE else rank


def _ranks(graph: Graph, first: Set[Node]) -> dict[Node, int]:
    """``first``: what runs before everything else."""
    depth: dict[Value, int] = {}  # how many collectives deep a value is
    rank: dict[Node, int] = {}
    late = {node for node in joins_early(graph) if graph.uses.get(node.output)}
    soon = scatters_soon(graph)
    for node in graph.nodes:
        if node in first:
            rank[node] = -1 if node.op.effect == "comm" else -2
            continue
        below = max((depth.get(v, 0) for v in node.inputs), default=0)
        comm = node.op.effect == "comm" and node not in late and node not in soon
        rank[node] = 2 * below + comm
        depth.update(dict.fromkeys(node.outputs, below + comm))
    for node in reversed(graph.nodes):
        readers = [rank[user] for out in node.outputs for user, _ in graph.uses.get(out, ())]
        if readers and (not node.inputs or node in late):  # made in the region that reads it
            rank[node] = min(readers) // 2 * 2
    return rank


def _sums_of_inputs(graph: Graph) -> set[Node]:
    """Give small sums of little work on inputs, with that work, where other collectives wait for them: made first, they part nothing.

    Such as how many targets of a loss count: in their place they would stand between its forward and its backward.
    """
    behind: set[Value] = set()  # what is made of anything that a collective gives
    awaited: set[Value] = set()  # what a collective is made of
    for node in reversed(graph.nodes):
        if node.op.effect == "comm" or any(out in awaited for out in node.outputs):
            awaited.update(node.inputs)
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op is collective.all_reduce and node.output in awaited and node.inputs[0] not in behind and node.output.type.nbytes <= SMALL:
            work = _made_of(graph, node)
            if len(work) <= FEW and all(out.type.nbytes <= LITTLE for made in work for out in made.outputs):
                found |= {node, *work}
        if node.op.effect == "comm" or any(v in behind for v in node.inputs):
            behind.update(node.outputs)
    return found


def _made_of(graph: Graph, node: Node) -> list[Node]:
    """Give the nodes that what a node reads is made by, a few more than ``FEW`` at most."""
    found: dict[Node, None] = {}
    stack = [node]
    while stack and len(found) <= FEW:
        for value in stack.pop().inputs:
            producer = graph.producer.get(value)
            if producer is not None and producer not in found:
                found[producer] = None
                stack.append(producer)
    return list(found)


def scatters_soon(graph: Graph) -> set[Node]:
    """Give the sums of which each worker keeps a part, where memory is limited."""
    if graph.options.memory_limit is None or not graph.communicates:
        return set()
    return {node for node in graph.nodes if node.op is collective.reduce_scatter}


def joins_early(graph: Graph) -> set[Node]:
    """Give the gathers that wait for no other collective, but for those that bring inputs to where later runs have them."""
    moved = moved_inputs(graph)
    waits: set[Value] = set()
    found: set[Node] = set()
    for node in graph.nodes:
        waiting = any(v in waits for v in node.inputs)
        if node.op is collective.all_gather and not waiting:
            found.add(node)
        if waiting or (node.op.effect == "comm" and node.output not in moved):
            waits.update(node.outputs)
    return found


def moved_inputs(graph: Graph) -> dict[Value, Value]:
    """Give what is nothing but an input elsewhere, exchanged but not joined, with that input: it is there from the start, too."""
    found: dict[Value, Value] = {}
    inputs, cat = set(graph.inputs), OPS["cat"]
    for node in graph.nodes:
        if not (node.op.view or node.op is cat or node.op in EXCHANGES):
            continue
        sources = [found.get(v, v) for v in node.inputs]
        if sources and all(v in inputs for v in sources):
            found |= dict.fromkeys(node.outputs, sources[0])
    return found


__all__ = ["joins_early", "launches", "moved_inputs", "overlap", "ranks", "scatters_soon", "schedule"]

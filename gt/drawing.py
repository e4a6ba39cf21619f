"""Pictures of graphs and of where tensors lie, as SVG or PNG.

Owns: both drawings. Needs matplotlib (``pip install 'gt-tensor[viz]'``). Must not know: passes. Next: ``gt.compiling`` (what is drawn).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gt.ir.advice import Advised
from gt.ir.graph import Graph, Value
from gt.ir.text import value_names
from gt.ir.types import TensorType

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NODES = 500
MAX_LAYOUTS = 24
COLUMN, ROW = 2.6, 0.62  # inches between nodes
COLORS = ("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5")


class TooLarge(Advised, ValueError):
    """A graph of more nodes than a picture shows."""


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("drawings need matplotlib: pip install 'gt-tensor[viz]'") from error
    return Figure(figsize=(width, height))


def _save(figure: Figure, path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(path, dpi=100)


def draw_graph(graph: Graph, path: Path) -> None:
    """Draw a graph from its inputs down: red is communication, grey are inputs, bold outputs. The suffix says the format.

    Errors: TooLarge beyond 500 nodes, ImportError without matplotlib.
    """
    if len(graph.nodes) > MAX_NODES:
        raise TooLarge(f"{graph.name} has {len(graph.nodes)} nodes, more than the {MAX_NODES} that a picture shows: use --format dot")
    names = value_names(graph)
    places = _places(graph)
    width = max((x for x, _ in places.values()), default=0) + 1
    height = max((y for _, y in places.values()), default=0) + 1
    figure = _figure(COLUMN * width, ROW * height + 0.4)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.7))
    axes.axis("off")
    axes.text(-0.45, -0.55, f"{graph.name}: {graph.stage.value}", fontsize=9, fontweight="bold", va="center")
    source: dict[Value, tuple[float, float]] = {v: places[v] for v in (*graph.inputs, *graph.scalars)}
    outputs = set(graph.outputs)
    for value in (*graph.inputs, *graph.scalars):
        _box(axes, *places[value], f"{names[value]}\n{value.type!r}", "#dddddd", value in outputs)
    for node in graph.nodes:
        x, y = places[node.outputs[0]]
        source.update(dict.fromkeys(node.outputs, (x, y)))
        for v in dict.fromkeys(node.inputs):
            axes.annotate("", (x, y - 0.2), (source[v][0], source[v][1] + 0.2), arrowprops={"arrowstyle": "->", "lw": 0.5, "color": "#777777"})
        color = "#ffb0a0" if node.op.effect == "comm" else "white"
        _box(axes, x, y, f"{node.op.name}\n{node.outputs[0].type!r}", color, not outputs.isdisjoint(node.outputs))
    _save(figure, path)


def _box(axes: Axes, x: float, y: float, text: str, color: str, bold: bool) -> None:
    frame = {"boxstyle": "round,pad=0.25", "facecolor": color, "edgecolor": "black", "linewidth": 1.6 if bold else 0.6}
    axes.text(x, y, text, ha="center", va="center", fontsize=5.5, family="monospace", bbox=frame)


def _places(graph: Graph) -> dict[Value, tuple[float, float]]:
    """Give column and row of each node by its first result: below what it reads, near the middle of it."""
    row: dict[Value, int] = {}
    reads: dict[Value, tuple[Value, ...]] = {}
    for node in graph.nodes:
        depth = 1 + max((row.get(v, 0) for v in node.inputs), default=0)
        row.update(dict.fromkeys(node.outputs, depth))
        reads[node.outputs[0]] = node.inputs
    leaves = (*graph.inputs, *graph.scalars)
    rows: dict[int, list[Value]] = defaultdict(list)
    for value in (*leaves, *reads):
        rows[row.get(value, 0)].append(value)
    column: dict[Value, float] = {}
    for depth in sorted(rows):
        wish = {v: sum(column.get(r, 0.0) for r in reads[v]) / len(reads[v]) if reads.get(v) else 0.0 for v in rows[depth]}
        ordered = sorted(rows[depth], key=lambda v: wish[v]) if depth else rows[depth]
        at = 0.0
        for value in ordered:
            column[value] = at = max(at, wish[value])
            at += 1
        for node_outputs in (n.outputs for n in graph.nodes if n.outputs[0] in wish):
            column.update(dict.fromkeys(node_outputs, column[node_outputs[0]]))
    return {v: (column[v], row.get(v, 0)) for v in (*leaves, *reads)}


def draw_layouts(values: Sequence[tuple[str, TensorType]], path: Path) -> None:
    """Draw where the parts of named, placed tensors lie: one frame for each, its blocks labelled with their workers.

    Two dims are drawn: those that are split, else the last two. Errors: ImportError without matplotlib.
    """
    shown = values[:MAX_LAYOUTS]
    columns = min(4, max(1, len(shown)))
    rows = -(-max(1, len(shown)) // columns)
    figure = _figure(3.0 * columns, 2.6 * rows + 0.3)
    for i, (name, type) in enumerate(shown):
        _layout(figure.add_subplot(rows, columns, i + 1), name, type)
    left = len(values) - len(shown)
    figure.suptitle(f"{left} more are not drawn" if left > 0 else "", fontsize=7)
    figure.tight_layout()
    _save(figure, path)


def _layout(axes: Axes, name: str, type: TensorType) -> None:
    from matplotlib.patches import Rectangle

    sharding = type.sharding
    split = [d for d in range(type.ndim) if sharding is not None and sharding.dims[d]]
    dims = sorted({*split[:2], *([d for d in reversed(range(type.ndim)) if d not in split][: 2 - len(split[:2])])})
    down, across = (dims[0], dims[1]) if len(dims) == 2 else (None, dims[0] if dims else None)
    size = lambda d: max(type.shape[d], 1) if d is not None else 1  # noqa: E731
    blocks: dict[tuple[tuple[int, int], tuple[int, int]], list[int]] = defaultdict(list)
    for worker in sharding.mesh.workers if sharding is not None else (0,):
        bounds = sharding.bounds(type.shape, worker) if sharding is not None else tuple((0, n) for n in type.shape)
        blocks[bounds[down] if down is not None else (0, 1), bounds[across] if across is not None else (0, 1)].append(worker)
    for i, (((top, bottom), (left, right)), workers) in enumerate(sorted(blocks.items())):
        axes.add_patch(Rectangle((left, top), right - left, bottom - top, facecolor=COLORS[i % len(COLORS)], edgecolor="black"))
        label = " ".join(map(str, workers)) if len(workers) <= 8 else f"{workers[0]} ... {workers[-1]}"
        axes.text((left + right) / 2, (top + bottom) / 2, label, ha="center", va="center", fontsize=7)
    axes.set(xlim=(0, size(across)), ylim=(size(down), 0))
    axes.set_xticks([0, size(across)] if across is not None else [])
    axes.set_yticks([0, size(down)] if down is not None else [])
    axes.tick_params(labelsize=6)
    axes.set_title(f"{name}\n{type!r}", fontsize=6.5, family="monospace")
    axes.set_xlabel(f"dim {across}" if across is not None else "", fontsize=6)
    axes.set_ylabel(f"dim {down}" if down is not None else "", fontsize=6)


__all__ = ["TooLarge", "draw_graph", "draw_layouts"]

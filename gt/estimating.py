"""How ``gt compile --estimate``, ``--diff`` and ``gt plan`` show what a plan costs and how two plans differ.

Owns: the texts. Must not know: how anything is estimated. Next: ``gt.passes.estimate``, ``compiling``.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence

from gt.compiling import Lowered
from gt.config import did_you_mean
from gt.ir.signals import param_rules
from gt.ir.text import print_graph, readable_names
from gt.ir.wording import amount
from gt.passes.estimate import Estimate
from gt.passes.search_graph import GRADIENT

LINES = 8  # shown of a table
Rows = Sequence[Sequence[str]]


def estimate_text(lowered: Sequence[Lowered]) -> str:
    """Give for each graph what one worker does in a run, what it sends and why, and what fills its memory; and rules that no parameter follows."""
    unmatched = "".join(_unmatched(lowered))
    return "\n".join([*(_one(one) for one in lowered), *([unmatched] if unmatched else [])])


def _unmatched(lowered: Sequence[Lowered]) -> list[str]:
    graphs = [one.steps[0].graph for one in lowered]
    names = {v.hint.removeprefix(GRADIENT) for graph in graphs for v in (*graph.inputs, *graph.outputs)} - {""}
    patterns = dict.fromkeys(
        pattern for graph in graphs for _, config in graph.signals for pattern, _ in param_rules(config.params)
    )
    return [
        f"note: parameters {pattern!r}: no parameter has such a name{did_you_mean(pattern, names)}\n"
        for pattern in patterns
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names)
    ]


def _one(one: Lowered) -> str:
    e = one.estimate
    waits = f", {e.bubble:.1%} of it waiting for each other (bubble)" if e.run_s is not None else ""
    head = [
        f"{one.name}: predicted {seconds(e.seconds)} a run on each of {amount(one.num_workers, 'worker')}{waits}",
        f"  compute      {seconds(e.compute_s):>10}   {quantity(e.flops, 'flop')}, {quantity(e.nbytes, 'B')} of memory traffic",
        f"  communicate  {seconds(e.comm_s):>10}   {quantity(e.comm_nbytes, 'B')} sent",
        f"  peak memory  {quantity(e.peak_nbytes, 'B'):>10}",
    ]
    head += [f"  {note}" for note in one.notes]
    tables = ""
    rows: list[Sequence[str]]
    if e.collectives:
        rows = [("collective", "count", "sent", "time", "cause", "line")]
        rows += [
            (c.kind, str(c.count), quantity(c.nbytes, "B"), seconds(c.seconds), _short(c.why), str(c.loc or ""))
            for c in e.collectives[:LINES]
        ]
        tables += _table(rows) + _left(len(e.collectives))
    if e.memory:
        rows = [("at the peak", "line", "values")]
        names = readable_names(one.steps[-1].graph.inputs, one.steps[-1].graph.nodes)
        for m in e.memory[:LINES]:
            shown = ", ".join(dict.fromkeys(f"{names.get(v, 'a value').lstrip('%')} {v.type.placed(None)!r}" for v in m.values[:3]))
            more = f", {len(m.values) - 3} more" if len(m.values) > 3 else ""
            rows.append((quantity(m.nbytes, "B"), str(m.loc or "inputs"), shown + more))
        if (under_way := e.peak_nbytes - sum(m.nbytes for m in e.memory)) > 0:
            rows.append((quantity(under_way, "B"), "", "copies that collectives under way hold"))
        tables += _table(rows) + _left(len(e.memory))
    return "\n".join(head) + "\n" + tables


def _short(why: str) -> str:
    return why if len(why) <= 60 else f"{why[:57]}..."


def _left(count: int) -> str:
    return f"    and {count - LINES} more\n" if count > LINES else ""


def _table(rows: Rows) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join("    " + "  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() + "\n" for r in rows)


def placement_text(lowered: Sequence[Lowered]) -> str:
    """Give where each graph's outputs are, and why, from their own reason back to what was said."""
    lines = []
    for one in lowered:
        lines.append(f"{one.name}:")
        for reasons in one.reasons:
            lines += [f"  {reasons[0]}", *(f"    because {reason}" for reason in reasons[1:])]
    return "\n".join(lines) + "\n"


# -- differences


def step_diff(lowered: Sequence[Lowered], before: str, after: str) -> str:
    """Give what changed in each graph between two passes, as a unified diff. Errors: ValueError naming the passes."""
    out: list[str] = []
    for one in lowered:
        out += difflib.unified_diff(
            _step(one, before).splitlines(), _step(one, after).splitlines(), f"{one.name} after {before}",
            f"{one.name} after {after}", lineterm="", n=1,
        )  # fmt: skip
    return "\n".join(out) + "\n"


def _step(one: Lowered, name: str) -> str:
    """Give the graph after a pass: the last step up to it, as passes that change nothing leave none."""
    if name not in one.order:
        raise ValueError(f"no pass {name!r}: one of {', '.join(one.order)}")
    upto = one.order[: one.order.index(name) + 1]
    return print_graph([s for s in one.steps if s.name in upto][-1].graph)


def config_diff(before: Sequence[Lowered], after: Sequence[Lowered], names: tuple[str, str]) -> str:
    """Give what two configurations make of the same graphs, in order: costs side by side, then collectives that differ."""
    out = []
    for a, b in zip(before, after, strict=False):
        rows: list[tuple[str, str, str]] = [(a.name, *names)]
        rows += [(label, show(a.estimate), show(b.estimate)) for label, show in _FIGURES.items()]
        out.append(_table(rows))
        changes = difflib.unified_diff(_sent(a.estimate), _sent(b.estimate), *names, lineterm="", n=0)
        out += [f"    {line}\n" for line in list(changes)[2:] if not line.startswith("@@")]
    if len(before) != len(after):
        out.append(f"{names[0]} makes {len(before)} graphs, {names[1]} {len(after)}: the others are not compared\n")
    return "".join(out)


def _sent(e: Estimate) -> list[str]:
    return [f"{c.count} {c.kind} {quantity(c.nbytes, 'B')} {c.why} {c.loc or ''}".rstrip() for c in e.collectives]


_FIGURES = {
    "predicted": lambda e: seconds(e.seconds),
    "compute": lambda e: seconds(e.compute_s),
    "communicate": lambda e: seconds(e.comm_s),
    "sent": lambda e: quantity(e.comm_nbytes, "B"),
    "collectives": lambda e: str(sum(c.count for c in e.collectives)),
    "peak memory": lambda e: quantity(e.peak_nbytes, "B"),
    "bubble": lambda e: f"{e.bubble:.1%}",
}


def seconds(value: float) -> str:
    """Give a duration in the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us" if value else "0 s"


def quantity(value: int, unit: str) -> str:
    """Give a number with the decimal prefix that suits it."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value} {unit}"


__all__ = ["config_diff", "estimate_text", "placement_text", "quantity", "seconds", "step_diff"]

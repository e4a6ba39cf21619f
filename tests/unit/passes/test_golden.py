"""One file per case: pipeline, input and expected graph (or programs), under ``tests/golden/<pass>/``.

``pytest --update-golden`` rewrites the expected part from what the passes give now.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gt.ir.text import parse_graph, print_graph, print_program
from gt.passes.context import Context
from gt.passes.pipeline import PASSES, Pipeline
from gt.passes.plan import Cluster

FOLDER = Path(__file__).resolve().parents[2] / "golden"
CASES = sorted(FOLDER.glob("*/*.gtir"))
EXPECTED = "; expected\n"


def run(text: str) -> str:
    """Give what the pipeline named in the head of a case makes of its graph."""
    head = re.match(r"; pipeline: (.*)\n; workers: (\d+)\n", text)
    assert head is not None, "a case starts with '; pipeline: ...' and '; workers: N'"
    pipeline = Pipeline.parse(head[1])
    assert str(pipeline) == head[1]
    context = Context(Cluster(tuple(range(int(head[2])))).mesh)
    graph = pipeline.run(parse_graph(text), context, verify="each")
    if context.programs is None:
        printed = print_graph(graph, locations=True)
        assert parse_graph(printed) == graph
        return printed
    return "".join(print_program(context.programs[w]) for w in context.mesh.workers)


@pytest.mark.parametrize("path", CASES, ids=[f"{p.parent.name}/{p.stem}" for p in CASES])
def test_golden(path: Path, update_golden: bool) -> None:
    given, _, expected = path.read_text().partition(EXPECTED)
    got = run(given)
    if update_golden:
        path.write_text(f"{given}{EXPECTED}{got}")
    else:
        assert got == expected, f"{path} differs; look, then pytest --update-golden"


def test_every_pass_has_a_case() -> None:
    assert set(PASSES) <= {p.parent.name for p in CASES}

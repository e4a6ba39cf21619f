"""Print what docs/matmul.py becomes on two workers, as JSON: the dumps of how_it_works.md by name."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gt.compiling import lower
from gt.ir.text import print_graph, print_program
from gt.passes.pipeline import DEFAULT
from gt.passes.plan import Cluster
from gt.runtime.render import render_program
from gt.scripted import Limits, record_script

if __name__ == "__main__":
    os.chdir(Path(__file__).parent)
    cluster = Cluster((0, 1))
    made = record_script("matmul.py", (), cluster, Limits(20, 60.0))
    assert made.error is None and len(made.graphs) == 1
    lowered = lower(made.graphs[0].graph, cluster, DEFAULT, made.graphs[0].runs)
    dumps = {step.name: print_graph(step.graph, locations=True) for step in lowered.steps}
    dumps["script"] = Path("matmul.py").read_text().partition('"""\n\n')[2]
    dumps["program"] = print_program(lowered.programs[1])
    dumps["source"] = render_program(lowered.programs[1])
    print(json.dumps(dumps))

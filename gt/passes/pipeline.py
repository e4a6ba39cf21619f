"""The passes in order, and the one runner that verifies, times and dumps them.

A pipeline is a string that round-trips: ``autodiff,decompose,fuse_hot_path{min_repeats=2}``. A pass is a frozen
dataclass whose fields are its options. Owns: ``Pipeline``, ``PassError``, the table of passes. Must not know: what any
pass does.
Next: ``context`` (what passes share), then the passes, in the order of ``DEFAULT``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, cast

from gt.ir.advice import Advised
from gt.ir.graph import Graph
from gt.ir.text import attr_text, print_graph
from gt.ir.verify import VerifyError, verify
from gt.passes.autodiff import Autodiff
from gt.passes.bucket_collectives import BucketCollectives
from gt.passes.chunk_rows import ChunkRows
from gt.passes.context import Context, MemoryPlan, Pass, PlanRefused, Region
from gt.passes.cse import Cse
from gt.passes.dce import Dce
from gt.passes.decompose import Decompose
from gt.passes.fit_memory import FitMemory
from gt.passes.fuse_hot_path import FuseHotPath
from gt.passes.fuse_loss import FuseLoss
from gt.passes.gather_again import GatherAgain
from gt.passes.insert_collectives import InsertCollectives
from gt.passes.keep_narrow import KeepNarrow
from gt.passes.localize import Localize
from gt.passes.lower_programs import LowerPrograms
from gt.passes.plan_memory import PlanMemory
from gt.passes.propagate_sharding import PropagateSharding
from gt.passes.simplify import Simplify

_CLASSES: tuple[type[Any], ...] = (
    Autodiff, Decompose, Simplify, Cse, Dce, KeepNarrow, PropagateSharding, InsertCollectives, GatherAgain, Localize,
    ChunkRows, FuseLoss, BucketCollectives, FuseHotPath, FitMemory, PlanMemory, LowerPrograms,
)  # fmt: skip
PASSES: dict[str, Callable[..., Pass]] = {cls.name: cast("Callable[..., Pass]", cls) for cls in _CLASSES}
Verify: TypeAlias = Literal["each", "ends", "off"]
OnPass: TypeAlias = Callable[[str, Graph, Graph, float], None]
_OPTION_WORDS = {"true": True, "false": False, "none": None}


class PassError(Advised, RuntimeError):
    """A pass failed or broke the graph: gt's own fault. ``gtir`` is the graph before it, ``rest`` the passes to run.

    ``gt compile`` on a file of that text with that pipeline reproduces it.
    """

    def __init__(self, pass_name: str, gtir: str, rest: str, why: str) -> None:
        super().__init__(f"pass {pass_name}: {why}")
        self.pass_name, self.gtir, self.rest = pass_name, gtir, rest


class PipelineError(Advised, ValueError):
    """A pipeline string names a pass or an option that is not there."""


@dataclass(frozen=True)
class Pipeline:
    """Passes to run in order. ``str`` and ``parse`` are inverse."""

    passes: tuple[Pass, ...]

    @classmethod
    def parse(cls, text: str) -> Pipeline:
        """Read ``name,name{option=value,option=value}``. Errors: PipelineError naming what is known."""
        return cls(tuple(_parse_pass(item) for item in _split(text)))

    def __str__(self) -> str:
        return ",".join(_print_pass(p) for p in self.passes)

    def run(self, graph: Graph, context: Context, verify: Verify = "ends", on_pass: OnPass | None = None) -> Graph:
        """Run the passes. ``verify``: after each, or at both ends only, or not. Errors: PassError naming the pass."""
        if verify != "off":
            _verified(graph, "input", graph, self)
        for i, step in enumerate(self.passes):
            start = time.perf_counter()
            rest = Pipeline(self.passes[i:])
            try:
                after = step.run(graph, context)
            except PlanRefused:
                raise  # as the client asked: no fault of the pass
            except Exception as error:
                raise _failed(step.name, graph, rest, f"{type(error).__name__}: {error}") from error
            seconds = time.perf_counter() - start
            last = i == len(self.passes) - 1
            if (verify == "each" and after is not graph) or (verify == "ends" and last):
                _verified(after, step.name, graph, rest)
            if on_pass is not None:
                on_pass(step.name, graph, after, seconds)
            graph = after
        return graph


def _verified(graph: Graph, name: str, before: Graph, rest: Pipeline) -> None:
    try:
        verify(graph)
    except VerifyError as error:
        raise _failed(name, before, rest, str(error)) from error


def _failed(name: str, before: Graph, rest: Pipeline, why: str) -> PassError:
    try:
        text = print_graph(before, locations=True)
    except Exception as error:  # a graph too broken to print must not hide the fault itself
        text = f"; the graph cannot be printed: {error}\n"
    return PassError(name, text, str(rest), why)


def _split(text: str) -> Iterator[str]:
    """Cut at commas outside braces."""
    depth, item = 0, ""
    for char in text:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield item.strip()
            item = ""
        else:
            item += char
    if item.strip():
        yield item.strip()


def _parse_pass(item: str) -> Pass:
    match = re.fullmatch(r"(\w+)(?:\{(.*)\})?", item)
    if match is None:
        raise PipelineError(f"expected name or name{{option=value}}, got {item!r}")
    name, options = match[1], match[2]
    if name not in PASSES:
        raise PipelineError(f"unknown pass {name!r}: one of {', '.join(PASSES)}")
    given: dict[str, Any] = {}
    for option in _split(options or ""):
        key, eq, value = option.partition("=")
        if not eq:
            raise PipelineError(f"{name}: expected option=value, got {option!r}")
        given[key.strip()] = _option(name, value.strip())
    try:
        return PASSES[name](**given)
    except TypeError as error:
        raise PipelineError(f"{name}: {error}") from None


def _option(name: str, text: str) -> Any:
    if text in _OPTION_WORDS:
        return _OPTION_WORDS[text]
    try:
        return json.loads(text)
    except ValueError:
        raise PipelineError(f"{name}: {text!r} is no number, string, true, false or none") from None


def _print_pass(step: Pass) -> str:
    options = {f.name: getattr(step, f.name) for f in fields(step) if getattr(step, f.name) != f.default}  # type: ignore[arg-type]
    inner = ",".join(f"{name}={attr_text(value)}" for name, value in options.items())
    return f"{step.name}{{{inner}}}" if inner else step.name


DEFAULT = Pipeline.parse(",".join(PASSES))

__all__ = [
    "DEFAULT", "PASSES", "Context", "MemoryPlan", "Pass", "PassError", "Pipeline", "PipelineError", "PlanRefused",
    "Region", "Verify",
]  # fmt: skip

"""Which writes in place make a backward raise: gt beside torch, for every differentiable entry of torch's operator database.

``python -m tests.peer.versions [--ops a,b] [--samples 2]`` runs each sample, writes to one of its operands or results in one of four
ways, and goes backward: both raise, or both give the same gradients. Next: ``opinfo`` (how samples cross over), ``skips``.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

import gt
from gt.handle import Handle
from tests.peer import opinfo, skips

HOWS = ("itself", "detached", "view", "base")  # what is written to: the tensor, ``x.detach()``, ``x[...]``, what the tensor is a view of
RAISES = "modified by an inplace operation"
SEED = 3


@dataclass(frozen=True)
class Case:
    """One write. ``wanting``: which tensors of the sample require a gradient. ``target``: an operand, or a result from -1 down."""

    wanting: tuple[int, ...]
    target: int
    how: str
    read: bool = False  # the result is read before the write


@dataclass
class Said:
    """What came of it: an error, where, or gradients."""

    error: str = ""
    stage: str = ""
    gradients: list[Any] | None = None

    @property
    def raises(self) -> bool:
        return self.stage == "backward" and RAISES in self.error


def run(lib: Any, function: Callable[..., Any], process: Callable[..., Any], tree: Any, case: Case, values: bool = True) -> Said:
    """``tree``: the sample's arguments, of torch's tensors. ``lib``: torch or gt. ``values``: gradients are read, not only recorded."""
    torches = lib is torch
    tensors: list[Any] = []
    leaves: list[Any] = []
    bases: dict[int, Any] = {}

    def make(spec: Any) -> Any:
        if not isinstance(spec, torch.Tensor):
            return spec
        at = len(tensors)
        based = case.how == "base" and at == case.target
        value = torch.cat([spec.detach().reshape(-1), torch.ones(1, dtype=spec.dtype)]) if based else spec.detach().clone()
        t = value if torches else opinfo.to_gt(value)
        if at in case.wanting:
            t.requires_grad_()
            leaves.append(t)
            t = t.clone()  # not a leaf: writes in place are free
        if based:
            bases[at] = t
            t = t[:-1].reshape(tuple(spec.shape)) if spec.dim() else t[:1].reshape(())
        tensors.append(t)
        return t

    stage = "forward"
    try:
        args, kwargs = tree_map(make, tree)
        if not torches:
            args, kwargs = opinfo.crossed(args), {k: opinfo.crossed(v) for k, v in kwargs.items()}
        out = function(*args, **kwargs)
        outs = [t for t in (opinfo.leaves(out) if torches else opinfo.gt_leaves(out)) if isinstance(t, torch.Tensor if torches else Handle)]
        processed = process(out)
        roots = opinfo.leaves(processed) if torches else opinfo.gt_leaves(processed)
        roots = [t for t in roots if isinstance(t, torch.Tensor if torches else Handle) and t.requires_grad and t.numel()]
        if not roots or not leaves:
            return Said("no gradient", "forward")
        total = [(t * lib.tensor(_weights(t), dtype=t.dtype)).sum() for t in roots]
        if case.read and not torches:
            [t.detach().numpy() if t.dtype is not gt.bfloat16 else t.detach().float().numpy() for t in total]
        stage = "write"
        target = tensors[case.target] if case.target >= 0 else outs[-1 - case.target]
        written = bases.get(case.target, target) if case.how == "base" else target
        with lib.no_grad():
            if case.how == "detached":
                written = written.detach()
            elif case.how == "view":
                written = written[...]
            if written.dtype is lib.bool:
                written.logical_not_()
            elif written.dtype.is_floating_point or written.dtype.is_complex:
                written.mul_(1.5)
            else:
                written.mul_(0)
        stage = "backward"
        got = lib.autograd.grad(total, leaves, [lib.ones_like(t) for t in total], allow_unused=True)
        if not torches:
            got = [None if g is None or not values else g._read() for g in got]
        else:
            got = [None if g is None else opinfo.to_numpy(g) for g in got]
        return Said(gradients=list(got))
    except Exception as e:
        return Said(f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}", stage)


def _weights(t: Any) -> Any:
    return np.linspace(0.5, 1.5, max(t.numel(), 1))[: t.numel()].reshape(tuple(t.shape)).tolist()


def cases_of(wanting: tuple[int, ...], tensors: list[torch.Tensor], num_outs: int, every: bool) -> Iterator[Case]:
    wants = [wanting] + ([(i,) for i in wanting] if len(wanting) > 1 else [])
    for want in wants:
        for target in (*range(len(tensors)), *range(-1, -1 - num_outs, -1)):
            if target >= 0 and not tensors[target].numel():
                continue
            for how in HOWS:
                if how == "base" and target < 0:
                    continue
                yield Case(want, target, how)
                if every:
                    yield Case(want, target, how, read=True)


def differences(op: Any, limit: int, every: bool = False, hows: tuple[str, ...] = HOWS, values: bool = True) -> tuple[int, dict[str, list[str]]]:
    """Give how many writes were compared and what differs."""
    name = opinfo.full_name(op)
    function = opinfo.offered(op)
    compared = 0
    found: dict[str, list[str]] = {}  # by what differs: the ways of writing that show it
    reasons = [pattern for entry, pattern, _ in skips.SKIP_VERSIONS if entry in ("*", op.name, name)]
    torch.manual_seed(0)
    try:
        samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    except Exception:
        return 0, {}
    for index, sample in enumerate(_spread(samples, limit)):
        tree = ((sample.input, *sample.args), dict(sample.kwargs))
        tensors = [t for t in opinfo.leaves(tree) if isinstance(t, torch.Tensor)]
        wanting = tuple(i for i, t in enumerate(tensors) if t.requires_grad)
        if not wanting or len(tensors) > 8:
            continue
        process = sample.output_process_fn_grad
        mine = lambda out, p=process: opinfo._processed(p, out)  # noqa: E731
        try:
            torch.manual_seed(SEED)
            out = op.op(*tree[0], **tree[1])
        except Exception:
            continue
        num_outs = len([t for t in opinfo.leaves(out) if isinstance(t, torch.Tensor)])
        for case in cases_of(wanting, tensors, min(num_outs, 4), every):
            if case.how not in hows:
                continue
            torch.manual_seed(SEED)
            want = run(torch, op.op, process, tree, case)
            if want.stage in ("forward", "write") or (want.error and not want.raises):
                continue
            gt.manual_seed(SEED)
            got = run(gt, function, mine, tree, case, values)
            compared += 1
            said = _compare(got, want, not values or op.name in opinfo.RANDOM)
            if said and not any(re.search(pattern, said) for pattern in reasons):
                what = f"operand {case.target}" if case.target >= 0 else f"result {-1 - case.target}"
                key = f"{name} [{index}] grads of {case.wanting}, {what}: {said}  | {opinfo._summary(sample)[:110]}"
                found.setdefault(key, []).append(case.how + (" after a read" if case.read else ""))
    return compared, found


def _spread(samples: list[Any], limit: int) -> list[Any]:
    samples = [s for s in samples if all(t.numel() for t in opinfo.leaves((s.input, s.args)) if isinstance(t, torch.Tensor))]
    return samples if len(samples) <= limit else [samples[i * len(samples) // limit] for i in range(limit)]


def _compare(got: Said, want: Said, only_errors: bool) -> str | None:
    if got.raises or want.raises:
        if got.raises and want.raises:
            return None
        if got.error and not got.raises:
            return f"gt {got.stage}: {got.error}"
        return "torch raises, gt does not" if want.raises else f"gt raises, torch does not ({got.error[-70:]})"
    if got.error:
        return f"gt {got.stage}: {got.error}"
    if only_errors:
        return None
    for i, (a, b) in enumerate(zip(got.gradients or (), want.gradients or (), strict=True)):
        if (a is None) is not (b is None):
            if np.any(b if a is None else a):
                return f"gradient {i} is {'missing' if a is None else 'extra'}"
            continue
        if a is not None and not np.allclose(a, b, *opinfo.GRADIENT_TOLERANCE, equal_nan=True):
            return f"gradient {i}: {np.ravel(a)[:3]}, want {np.ravel(b)[:3]}"
    return None


def entries(names: set[str] | None) -> list[Any]:
    return [
        o for o in op_db
        if (names is None or o.name in names or opinfo.full_name(o) in names) and o.supports_autograd and torch.float32 in o.dtypes
        and o.name not in skips.SKIP_OPS and opinfo.full_name(o) not in skips.SKIP_OPS and opinfo.offered(o) is not None
    ]  # fmt: skip


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default=None)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--every", action="store_true", help="with a read before the write too")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the number of the first entry")
    parser.add_argument("--hows", default=",".join(HOWS))
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    total, failures, started = 0, 0, time.monotonic()
    for number, op in enumerate(entries(set(options.ops.split(",")) if options.ops else None)):
        if number < options.first:
            continue
        compared, found = differences(op, options.samples, options.every, tuple(options.hows.split(",")))
        total, failures = total + compared, failures + sum(map(len, found.values()))
        for line, hows in found.items():
            print(line, "written:", ", ".join(hows), f"(entry {number})", flush=True)
    print(f"{failures} of {total} writes differ; {time.monotonic() - started:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""torch's own operator database through gt: one adapter, a ledger, reasons for what is left out.

``python -m tests.peer.opinfo [--ops a,b] [--write]`` runs every sample of every entry of
``torch.testing._internal.common_methods_invocations.op_db`` that gt offers under torch's name and compares value, dtype, shape
and gradient with torch eager, and exception type and text for error inputs. An entry written in Python (a lambda over torch) is
run again with ``torch`` read as gt: what a user's changed import does.
Next: ``skips`` (the table of reasons), ``test_opinfo`` (the slice that CI runs).
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("GT_COMPILE_AFTER", "0")

import numpy as np
import torch
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_flatten, tree_map

import gt
from gt.handle import Handle
from gt.ir.types import DType
from tests.peer.skips import (
    DTYPE_SAMPLES,
    FEWER_WITH_GRADIENT,
    GRADIENT_ONLY,
    METHODS,
    RANDOM,
    SKIP_ERRORS,
    SKIP_OPS,
    SKIP_SAMPLES,
)

# For each list of samples torch looks through the sources of all callers for a unittest: most of a short run's time.
common_utils.extract_test_fn = core.extract_test_fn = lambda: None

LEDGER = Path(__file__).resolve().parents[2] / "docs" / "opinfo.md"
VALUE_TOLERANCE = {torch.float32: (2e-4, 2e-5), torch.complex64: (2e-4, 2e-5), torch.float64: (1e-7, 1e-7)}
COARSE = {torch.float16: (4e-3, 4e-3), torch.bfloat16: (3e-2, 3e-2)}
GRADIENT_TOLERANCE = (2e-3, 2e-4)
MISSING = object()


class NotOffered(Exception):
    """gt has no function of this name, or a sample needs something gt does not have (a dtype, a layout)."""


@dataclass
class Result:
    """What running one entry gave."""

    name: str
    offered: bool = True
    samples: int = 0
    passed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  # reason -> samples
    failures: list[str] = field(default_factory=list)
    errors: int = 0
    errors_same: int = 0
    errors_other: list[str] = field(default_factory=list)
    seconds: float = 0.0


# -- finding gt's function


def full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def rebind(function: Any) -> Callable[..., Any]:
    """Give a Python function of the database with ``torch`` read as gt."""
    scope = dict(function.__globals__) | {"torch": gt, "wrapper_set_seed": lambda f, *a, **k: f(*a, **k)}
    new = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def look_up(name: str) -> Any:
    """Walk a dotted name from gt; MISSING if a part is not there."""
    at: Any = gt
    for part in name.split("."):
        try:
            at = getattr(at, part)
        except AttributeError:
            return MISSING
    return at


def offered(op: Any) -> Callable[..., Any] | None:
    """Give gt's counterpart of an entry, or None."""
    if op.name in METHODS:
        return getattr(gt.Tensor, op.name, None)
    function = op.op
    module = getattr(function, "__module__", "") or ""
    if isinstance(function, types.FunctionType) and module.startswith("torch.testing"):
        bare = op.name.removesuffix("_")
        if look_up(op.name) is MISSING and not hasattr(gt.Tensor, op.name) and not hasattr(gt.Tensor, bare + "_"):
            return None
        return rebind(function)
    found = look_up(op.name)
    if found is MISSING and "." not in op.name:
        found = getattr(gt.Tensor, op.name, MISSING)
    return found if callable(found) else None


# -- crossing over


def to_gt(value: Any) -> Any:
    """Give gt's counterpart of an argument. Errors: NotOffered for dtypes and layouts gt has not."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise NotOffered("sparse layouts")
        out = gt.tensor(to_numpy(value), dtype=to_gt(value.dtype))
        return out.requires_grad_() if value.requires_grad and value.is_leaf else out
    if isinstance(value, torch.dtype):
        if str(value)[6:] not in DType.by_name:
            raise NotOffered(f"dtype {str(value)[6:]}")
        return DType.by_name[str(value)[6:]]
    if isinstance(value, torch.memory_format):
        if value not in (torch.contiguous_format, torch.preserve_format):
            raise NotOffered("memory formats")
        return None if value is torch.preserve_format else gt.contiguous_format
    if isinstance(value, torch.layout):
        if value is not torch.strided:
            raise NotOffered("sparse layouts")
        return gt.strided
    if isinstance(value, torch.Generator):
        return gt.Generator().manual_seed(value.initial_seed())
    if isinstance(value, torch.device):
        return gt.device(str(value))
    if isinstance(value, torch.Size):
        return tuple(value)
    if isinstance(value, torch.nn.Module):
        return look_up(f"nn.{type(value).__name__}")()
    return value


def to_numpy(t: torch.Tensor) -> np.ndarray:
    t = t.detach().resolve_conj().resolve_neg()
    if str(t.dtype)[6:] not in DType.by_name:
        raise NotOffered(f"dtype {str(t.dtype)[6:]}")
    if t.device.type != "cpu":
        raise NotOffered(f"{t.device.type} tensors")
    if t.ndim > 64:
        raise NotOffered("more than 64 dims")
    return np.array((t.float() if t.dtype is torch.bfloat16 else t).numpy(force=True))


def crossed(tree: Any) -> Any:
    if isinstance(tree, torch.Size):
        return tuple(tree)
    if isinstance(tree, slice):
        return slice(*(crossed(v) for v in (tree.start, tree.stop, tree.step)))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return tuple(crossed(v) for v in tree)
    if isinstance(tree, list | tuple):
        return type(tree)(crossed(v) for v in tree)
    if isinstance(tree, dict):
        return {k: crossed(v) for k, v in tree.items()}
    if isinstance(tree, types.FunctionType | types.BuiltinFunctionType):
        same = look_up(f"{tree.__module__}.{tree.__name__}".removeprefix("torch."))
        return rebind(tree) if same is MISSING else same
    return to_gt(tree)


# -- comparing


def leaves(tree: Any) -> list[Any]:
    return [v for v in tree_flatten(tree_map(lambda v: tuple(v) if isinstance(v, torch.Size) else v, tree))[0]]


def gt_leaves(tree: Any) -> list[Any]:
    if isinstance(tree, list | tuple):
        return [leaf for v in tree for leaf in gt_leaves(v)]
    if isinstance(tree, dict):
        return [leaf for k in sorted(tree) for leaf in gt_leaves(tree[k])]
    return [tree]


def difference(got: Any, want: Any, tolerance: tuple[float, float] | None, values: bool = True) -> str | None:
    """Say how two results differ, or None."""
    if not isinstance(want, torch.Tensor):
        if isinstance(want, torch.dtype):
            want = to_gt(want)
        same = got == want or (isinstance(want, float) and np.allclose(got, want, 1e-4, 1e-5, equal_nan=True))
        return None if same else f"got {got!r}, want {want!r}"
    if not isinstance(got, Handle):
        return f"got {type(got).__name__}, want a tensor"
    if tuple(got.shape) != tuple(want.shape):
        return f"shape {tuple(got.shape)}, want {tuple(want.shape)}"
    if got.dtype.name != str(want.dtype)[6:]:
        return f"dtype {got.dtype.name}, want {str(want.dtype)[6:]}"
    if not values:
        got._read()
        return None
    rtol, atol = tolerance or COARSE.get(want.dtype) or VALUE_TOLERANCE.get(want.dtype, (0.0, 0.0))
    a, b = got._read(), to_numpy(want)
    with np.errstate(all="ignore"):
        if np.allclose(a, b, rtol, atol, equal_nan=True):
            return None
    with np.errstate(all="ignore"):
        off = np.nanmax(np.abs(a.astype(complex) - b.astype(complex))) if a.size else 0
    return f"values differ by {off:.3g}: got {np.ravel(a)[:4]}, want {np.ravel(b)[:4]}"


# -- one sample


def run_sample(op: Any, function: Callable[..., Any], sample: Any, gradient: bool) -> str | None:
    """Compare one sample; give what differs or None. Errors: NotOffered."""
    name = full_name(op)
    arguments = (sample.input, *sample.args)
    mine = tuple(crossed(a) for a in arguments)
    kwargs = {
        k: crossed(v) for k, v in sample.kwargs.items() if not (k == "memory_format" and v is torch.preserve_format)
    }
    theirs = arguments
    want = op.op(*theirs, **sample.kwargs)
    got = function(*mine, **kwargs)
    process = sample.output_process_fn_grad
    ungauged = name in GRADIENT_ONLY
    if ungauged:
        want, got = process(want), rebind(process)(got) if process.__code__.co_name else got
    a, b = gt_leaves(got), leaves(want)
    b = [v for v in b if v is not None]
    a = [v for v in a if v is not None]
    if len(a) != len(b):
        return f"{len(a)} results, want {len(b)}"
    gradients = (
        _gradients(
            arguments,
            sample.kwargs,
            mine,
            kwargs,
            want if ungauged else process(want),
            got if ungauged else _processed(process, got),
        )
        if gradient
        else []
    )
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        said = difference(x, y, None, values=op.name not in RANDOM)
        if said:
            return f"result {i}: {said}"
    if op.name in RANDOM:
        return None
    for i, (x, y) in enumerate(gradients):
        if x is None or y is None:
            other = y if x is None else x
            if other is not None and np.any(other._read() if isinstance(other, Handle) else to_numpy(other)):
                return f"gradient {i}: got {'none' if x is None else 'one'}, want {'none' if y is None else 'one'}"
            continue
        said = difference(x, y, COARSE.get(y.dtype, GRADIENT_TOLERANCE))
        if said:
            return f"gradient {i}: {said}"
    return None


def _processed(process: Any, got: Any) -> Any:
    return rebind(process)(got) if isinstance(process, types.FunctionType) else process(got)


def _gradients(args: Any, kwargs: Any, mine: Any, my_kwargs: Any, want: Any, got: Any) -> list[tuple[Any, Any]]:
    """Give pairs of gradients (gt's, torch's) of a weighted sum of the results with respect to what requires one."""
    ins = [t for t in leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    my_ins = [
        t for t in (*gt_leaves(list(mine)), *gt_leaves([my_kwargs[k] for k in my_kwargs])) if isinstance(t, Handle)
    ]
    wanting = [i for i, t in enumerate(ins) if t.requires_grad]
    outs = [t for t in leaves(want) if isinstance(t, torch.Tensor) and t.requires_grad and t.numel()]
    my_outs = [t for t in gt_leaves(got) if isinstance(t, Handle) and t.requires_grad and t.numel()]
    if not wanting or not outs or len(ins) != len(my_ins):
        return []
    seeds = [torch.linspace(0.5, 1.5, max(t.numel(), 1))[: t.numel()].reshape(t.shape).to(t.dtype) for t in outs]
    theirs = torch.autograd.grad(outs, [ins[i] for i in wanting], seeds, allow_unused=True)
    if len(my_outs) != len(outs):
        return [(None, g) for g in theirs]
    ours = gt.autograd.grad(my_outs, [my_ins[i] for i in wanting], [to_gt(s) for s in seeds], allow_unused=True)
    return list(zip(ours, theirs, strict=True))


# -- one entry


def samples_of(op: Any, limit: int | None) -> Iterator[tuple[Any, bool, str]]:
    """Give (sample, whether gradients are compared, dtype name): float32 in full, other dtypes a few."""
    if torch.float32 in op.dtypes:
        for i, sample in enumerate(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)):
            if limit is not None and i >= limit:
                break
            yield sample, op.supports_autograd, "float32"
        if op.name in FEWER_WITH_GRADIENT:
            for sample in itertools.islice(op.sample_inputs("cpu", torch.float32), limit):
                yield sample, False, "float32"
    for dtype in (torch.int64, torch.bool, torch.complex64):
        if dtype in op.dtypes:
            count = DTYPE_SAMPLES if limit is None else min(DTYPE_SAMPLES, limit)
            for i, sample in enumerate(op.sample_inputs("cpu", dtype)):
                if i >= count:
                    break
                yield sample, False, str(dtype)[6:]


def run_op(op: Any, limit: int | None = None, errors: bool = True) -> Result:
    """Run an entry's samples and error inputs."""
    name = full_name(op)
    result = Result(name)
    torch.manual_seed(0)
    gt.manual_seed(0)
    started = time.monotonic()
    reason = SKIP_OPS.get(name) or SKIP_OPS.get(op.name)
    function = offered(op) if reason is None else None
    if function is None:
        result.offered = False
        return result
    rules = [(re.compile(p), why) for key, p, why in SKIP_SAMPLES if key in (name, op.name, "*")]
    for i, (sample, gradient, dtype) in enumerate(samples_of(op, limit)):
        result.samples += 1
        try:
            said = run_sample(op, function, sample, gradient)
        except NotOffered as e:
            said = f"{e} not offered"
        except Exception as e:  # a sample that raises is a failure with its text, never passed over
            said = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"
        if said is None:
            result.passed += 1
            continue
        text, plain = f"[{i} {dtype}] {said}", [v for v in sample.args if not isinstance(v, torch.Tensor)]
        why = next((why for pattern, why in rules if pattern.search(f"{text} {plain} {sample.kwargs}")), None)
        if why is None and said.endswith("not offered"):
            why = said
        if why is not None:
            result.skipped[why] = result.skipped.get(why, 0) + 1
        else:
            result.failures.append(f"{text}  {_summary(sample)}")
    if errors and op.error_inputs_func is not None:
        run_errors(op, function, result, limit)
    result.seconds = time.monotonic() - started
    return result


def _summary(sample: Any) -> str:
    text = re.sub(r'device="cpu", |dtype=|SampleInput|broadcasts_input=\w+, name=.*|torch\.', "", sample.summary())
    return text[:220]


def run_errors(op: Any, function: Callable[..., Any], result: Result, limit: int | None) -> None:
    """An error input must raise; its type and text are compared. Computing something instead is a failure."""
    name = full_name(op)
    for i, case in enumerate(op.error_inputs("cpu")):
        if limit is not None and i >= limit:
            break
        sample = case.sample_input
        try:
            mine = tuple(crossed(a) for a in (sample.input, *sample.args))
            kwargs = {k: crossed(v) for k, v in sample.kwargs.items()}
        except NotOffered:
            continue
        result.errors += 1
        want = f"{case.error_type.__name__}: {case.error_regex}"
        try:
            op.op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # torch refuses, as the entry says
            pass
        else:  # this torch computes it: there is nothing to compare
            result.errors -= 1
            continue
        try:
            for leaf in gt_leaves(function(*mine, **kwargs)):
                if isinstance(leaf, Handle):
                    leaf._read()
        except Exception as e:
            if isinstance(e, case.error_type) and re.search(case.error_regex, str(e).replace("gt.", "torch.")):
                result.errors_same += 1
            else:
                result.errors_other.append(f"[error {i}] {type(e).__name__}: {str(e)[:160]}  want {want[:200]}")
            continue
        why = next((w for key, p, w in SKIP_ERRORS if key in (name, op.name) and re.search(p, want)), None)
        if why is None:
            result.failures.append(f"[error {i}] computed, want {want[:200]}  {_summary(sample)}")
        else:
            result.skipped[why] = result.skipped.get(why, 0) + 1


# -- the whole database


def entries(names: set[str] | None) -> list[Any]:
    return [o for o in op_db if names is None or o.name in names or full_name(o) in names]


def ledger(results: list[Result]) -> str:
    """Give the page: one line for each op name, with reasons."""
    by_name: dict[str, list[Result]] = {}
    for op, r in zip(entries(None), results, strict=True):
        by_name.setdefault(op.name, []).append(r)
    done = [n for n, rs in by_name.items() if all(r.offered and not r.failures and r.passed for r in rs)]
    part = [
        n for n, rs in by_name.items() if n not in done and any(r.offered and not r.failures and r.passed for r in rs)
    ]
    failed = [n for n, rs in by_name.items() if any(r.failures for r in rs)]
    run = [r for r in results if r.offered]
    lines = [
        "# torch's operator database",
        "",
        f"Made by `python -m tests.peer.opinfo --write` with torch {torch.__version__}. An op is supported when every sample of "
        "every variant gives torch's value, dtype, shape and gradient, but for the samples a reason is given for.",
        "",
        f"- supported: **{len(done)} / {len(by_name)}** names; some variants only: {len(part)}; failing: {len(failed)}",
        f"- samples: {sum(r.passed for r in run)} equal, {sum(sum(r.skipped.values()) for r in run)} left out with a reason, "
        f"{sum(len(r.failures) for r in run)} failures",
        f"- error inputs: {sum(r.errors for r in run)} run, {sum(r.errors_same for r in run)} with torch's type and text, "
        f"{sum(len(r.errors_other) for r in run)} refused with another type or text",
        "",
        "| entry | samples | equal | error inputs (same text) | left out |",
        "|---|---|---|---|---|",
    ]
    for r in results:
        if r.offered:
            why = "; ".join(f"{n}: {reason}" for reason, n in r.skipped.items())
            mark = f" **{len(r.failures)} failures**" if r.failures else ""
            lines.append(f"| `{r.name}` | {r.samples} | {r.passed} | {r.errors} ({r.errors_same}) | {why}{mark} |")
    lines += ["", "## Not offered", ""]
    for op, r in zip(entries(None), results, strict=True):
        if not r.offered:
            lines.append(f"- `{r.name}`: {SKIP_OPS.get(r.name) or SKIP_OPS.get(op.name) or 'no such function in gt'}")
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peer.opinfo", description=__doc__)
    parser.add_argument("--ops", help="comma-separated names; default: all")
    parser.add_argument("--limit", type=int, help="samples of each entry")
    parser.add_argument("--write", action="store_true", help=f"write {LEDGER.name}")
    parser.add_argument("--missing", action="store_true", help="only list what gt does not offer, by number of samples")
    parser.add_argument("--verbose", action="store_true", help="show every failure, and error inputs of other text")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    chosen = entries(set(options.ops.split(",")) if options.ops else None)
    if options.missing:
        gone = [full_name(o) for o in chosen if offered(o) is None]
        print(" ".join(gone))
        print(len(gone), "of", len(chosen))
        return 0
    results = []
    for op in chosen:
        r = run_op(op, options.limit)
        results.append(r)
        if r.failures or (options.verbose and r.errors_other):
            print(f"{r.name}: {len(r.failures)} failures of {r.samples} ({r.seconds:.1f} s)", flush=True)
            for line in r.failures if options.verbose else r.failures[:2]:
                print("   ", line[:400], flush=True)
            if options.verbose:
                for line in r.errors_other:
                    print("   ", line[:400], flush=True)
    names = {o.name: [] for o in chosen}
    for o, r in zip(chosen, results, strict=True):
        names[o.name].append(r)
    good = [n for n, rs in names.items() if all(r.offered and not r.failures and r.passed for r in rs)]
    print(
        f"{len(good)} of {len(names)} names supported; {sum(len(r.failures) for r in results)} failures in "
        f"{sum(bool(r.failures) for r in results)} entries; {sum(r.passed for r in results)} samples equal; "
        f"errors {sum(r.errors_same for r in results)}/{sum(r.errors for r in results)} same; "
        f"{sum(r.seconds for r in results):.0f} s"
    )
    if options.write:
        LEDGER.write_text(ledger(results))
    return 1 if any(r.failures for r in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

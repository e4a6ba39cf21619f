"""Train small and real models with gt, torch and JAX on one GPU, in one run, and print the ratios.

    python benchmarks/gpu.py                    # every case
    python benchmarks/gpu.py --case gpt2-124m   # one, under four minutes
    python benchmarks/gpu.py --join a.json b.json

Each side runs in a process of its own, so that its start and its memory are its own. Losses of the first 20 steps are
compared before anything is timed. bf16 autocast, AdamW (fused in torch), batches on the device, no wait per step.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gpu_models import CASES, GPTS

WARM_S = {"mlp": 40.0, "gpt-tiny": 60.0, "gpt2-124m": 90.0, "resnet18": 90.0}
REACH = {"mlp": 6.0, "gpt-tiny": 9.0, "gpt2-124m": 1.30, "resnet18": 1.3}
RTOL = 2e-2  # of a loss after up to 20 steps in bfloat16


def side(name: str, case: str, device: str, warm_s: float, profiles: str) -> dict[str, Any]:
    """Run one side; give its results, or the error it ended with."""
    here = Path(__file__).resolve().parent
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "GT_EMBEDDED": str(int(name == "embedded"))}
    env["PYTHONPATH"] = os.pathsep.join([str(here.parent), *env.get("PYTHONPATH", "").split(os.pathsep)])
    command = [sys.executable, str(here / "gpu_sides.py"), name, case, device, str(warm_s), profiles]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"error": done.stderr[-3000:]}
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


def run(case: str, device: str, sides: list[str], warm_s: float | None, profiles: str) -> dict[str, Any]:
    out: dict[str, Any] = {"case": case, "date": datetime.date.today().isoformat(), "card": card(device)}
    for name in sides:
        if name != "jax" or (case in GPTS and importlib.util.find_spec("jax") and device == "cuda"):
            found = side(name, case, device, WARM_S[case] if warm_s is None else warm_s, profiles)
            out.update({k: v for k, v in found.items() if isinstance(v, dict)})
            library = {"gt": "gt", "embedded": "gt", "jax": "jax"}.get(name, "torch")
            out[f"{library} version"] = found.get("version", "")
            if "error" in found:
                print(f"{case}: {name} failed\n{found['error']}", flush=True)
    out["agrees"] = {name: agreement(out, name) for name in out if name != "eager" and "losses" in _dict(out[name])}
    return out


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def agreement(out: dict[str, Any], name: str) -> float:
    """Give the largest relative difference of a side's loss curve from torch eager's."""
    if "eager" not in out:
        return float("nan")
    mine, theirs = np.array(out[name]["losses"]), np.array(out["eager"]["losses"])
    return float(np.max(np.abs(mine - theirs) / np.abs(theirs)))


def card(device: str) -> str:
    if device != "cuda":
        return "CPU"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True).stdout.splitlines()[0]


def show(results: list[dict[str, Any]]) -> None:
    for r in results:
        versions = ", ".join(f"{k.removesuffix(' version')} {v}" for k, v in r.items() if k.endswith(" version") and v)
        print(f"\n{r['case']}   {r['card']}, {r['date']}, {versions}")
        ours = _dict(r.get("gt")).get("ms")
        for name in ("compile", "eager", "reduce-overhead", "jax", "gt", "gt.jit", "embedded"):
            s = _dict(r.get(name))
            if not s:
                continue
            ratio = f"{s['ms'] / ours:6.2f}x" if ours else "      "
            off = r["agrees"].get(name)
            same = "" if off is None else f"losses within {off:.1e}" + ("" if off <= RTOL else " DIFFER")
            extra = f"first step {s['first_s']:.1f} s"
            if "full_s" in s:
                extra += f", uncompiled {s['early_ms']:.3f} ms, full speed after {s['full_s']:.1f} s"
            if "recording_ms" in s:
                extra += f", CPU {s['recording_ms']:.3f} ms to record, {s['process_ms']:.3f} in all"
            if "peak_gib" in s:
                extra += f", peak {s['peak_gib']:.2f} GiB, held {s['reserved_gib']:.2f} GiB"
            print(f"  {ratio}  {s['ms']:9.3f} ms  {name:<16} {same:<28} {extra}")
        e = _dict(r.get("embedded"))
        if e:
            print(f"  embedded: {e['tier']} tier, {e['compiled_pieces']} of {e['pieces']} pieces compiled in {e['compile_s']:.0f} s")
            for note in e["notes"]:
                print(f"  note: {note}")
        c = _dict(r.get("compile")).get("ms")
        if ours and c:
            met = "reached" if c / ours >= REACH[r["case"]] else "NOT reached"
            print(f"  against torch.compile {c / ours:.2f}x, asked {REACH[r['case']]}x: {met}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train models with gt, torch and JAX on one GPU.")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--sides", default="gt,embedded,eager+compile,jax", help="comma-separated; eager+compile run together")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--warm", type=float, help="seconds gt may take to full speed")
    parser.add_argument("--json", type=Path, default=Path("gpu_results.json"))
    parser.add_argument("--profile", default="", help="folder for tables of where the device's time goes")
    parser.add_argument("--join", type=Path, nargs="+", help="show results saved earlier")
    args = parser.parse_args()
    if args.join:
        show([r for path in args.join for r in json.loads(path.read_text())])
        return
    results = []
    for case in args.case or CASES:
        results.append(run(case, args.device, args.sides.split(","), args.warm, args.profile))
        args.json.write_text(json.dumps(results))
        show(results[-1:])


if __name__ == "__main__":
    main()

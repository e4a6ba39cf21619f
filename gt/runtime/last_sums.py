"""Adds up, in one kernel, what Inductor's kernels of a norm's backward leave: for each parameter the partial sums of some rows.

Inductor asks torch to, a parameter at a time: a kernel that clears counters first, and is made for larger sums. Of a norm that is 20 us in
place of 4. Owns: ``sum_rows``, ``use_sum_rows``. Must not know: pieces. Next: ``compile_process`` (where Inductor is told).
"""

import functools
import hashlib
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROWS, COLUMNS, WARPS = 128, 16, 8  # the fastest on an H200, of 1,024 rows of 768
LINE = re.compile(r"(\w+) = (\w+)\[(\d+) \* (.+) : .+\]\.view\((\d+), (\d+)\)\.sum\(dim=0\)(.*)")


def sum_rows(partial: Tensor, count: int, rows: int, columns: int) -> list[Tensor]:
    """Give the sums over rows of ``count`` matrices that lie one behind the other, float32, each in memory of its own."""
    launch = _kernel()
    out = [torch.empty(columns, dtype=torch.float32, device=partial.device) for _ in range(count)]
    for i in range(0, count, 2):
        launch(partial[i * rows * columns :], out[i : i + 2], rows, columns)
    return out


@functools.cache
def _kernel() -> Callable[[Tensor, list[Tensor], int, int], None]:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator]
    def gt_sum_rows(partial, first, second, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, N803
        which = tl.program_id(1)
        lanes = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, rows, ROWS):
            row = start + tl.arange(0, ROWS)
            at = (which * rows + row)[:, None] * columns + lanes[None, :]
            total += tl.load(partial + at, mask=(row < rows)[:, None] & (lanes < columns)[None, :], other=0.0)
        sums = tl.sum(total, 0)
        tl.store(first + lanes, sums, mask=(lanes < columns) & (which == 0))
        tl.store(second + lanes, sums, mask=(lanes < columns) & (which == 1))

    def launch(partial: Tensor, out: list[Tensor], rows: int, columns: int) -> None:
        grid = (triton.cdiv(columns, COLUMNS), len(out))
        gt_sum_rows[grid](partial, out[0], out[-1], rows, columns, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS)

    return launch


def use_sum_rows() -> None:
    """Have Inductor call ``sum_rows`` in this process; one of another release, that writes something else, goes on as it did."""
    scheduling = importlib.import_module("torch._inductor.codegen.simd").SIMDScheduling
    generate = getattr(scheduling, "_codegen_mix_order_reduction", None)
    if generate is None or hasattr(generate, "__wrapped__"):
        return

    @functools.wraps(generate)
    def with_one_sum(self: Any, *args: Any) -> None:
        wrapper = importlib.import_module("torch._inductor.virtualized").V.graph.wrapper_code
        lines = _Joined(wrapper.writeline)
        wrapper.writeline = lines.write
        try:
            generate(self, *args)
            lines.flush()
        finally:
            del wrapper.writeline
        if lines.joined:
            wrapper.add_import_once(f"from {__name__} import sum_rows")

    scheduling._codegen_mix_order_reduction = with_one_sum
    config: Any = importlib.import_module("torch.compiler.config")  # Inductor's cache is to keep apart what was written otherwise
    config.cache_key_tag += hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


class _Joined:
    """Passes lines on, with sums over the rows of one buffer that follow each other as one call."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        self.pass_on, self.sums, self.joined = write, list[re.Match[str]](), False

    def write(self, line: Any) -> None:
        found = LINE.fullmatch(line) if isinstance(line, str) else None
        if found is None:
            self.flush()
            self.pass_on(line)
            return
        if self.sums and (found.group(2, 4, 5, 6) != self.sums[0].group(2, 4, 5, 6) or int(found[3]) != len(self.sums)):
            self.flush()
        self.sums.append(found)

    def flush(self) -> None:
        sums, self.sums = self.sums, []
        if not sums:
            return
        if int(sums[0][3]):
            for found in sums:
                self.pass_on(found[0])
            return
        self.joined = True
        self.pass_on(f"{', '.join(found[1] for found in sums)}, = sum_rows({sums[0][2]}, {len(sums)}, {sums[0][5]}, {sums[0][6]})")
        for found in sums:
            if found[7]:
                self.pass_on(f"{found[1]} = {found[1]}{found[7]}")


__all__ = ["sum_rows", "use_sum_rows"]

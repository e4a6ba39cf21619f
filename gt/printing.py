"""How tensors print: torch's layout and number formats.

Owns: print options and formatting. Printing reads the value (a flush); of a large tensor only the elements that are shown.
``html`` never reads. Source: the behaviour of torch/_tensor_str.py.
"""

from __future__ import annotations

import html as escaping
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.functions.promote import default_complex, get_default_dtype
from gt.grad_mode import no_grad
from gt.ir.ops import OPS
from gt.ir.types import bool_, int64
from gt.recording import record

if TYPE_CHECKING:
    from gt.tensor import Tensor


@dataclass
class PrintOptions:
    """precision: digits; threshold: elements above which the middle is left out; edgeitems: kept at each end."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


options = PrintOptions()


def set_printoptions(
    precision: int | None = None, threshold: float | None = None, edgeitems: int | None = None, linewidth: int | None = None,
    profile: str | None = None, sci_mode: bool | None = None,
) -> None:  # fmt: skip
    """Set how tensors print. ``profile``: "default", "short" or "full"."""
    presets: dict[str, tuple[int, float, int]] = {
        "default": (4, 1000, 3),
        "short": (2, 1000, 2),
        "full": (4, math.inf, 3),
    }
    if profile is not None:
        options.precision, options.threshold, options.edgeitems = presets[profile]
        options.linewidth = 80
    if precision is not None:
        options.precision = precision
    if threshold is not None:
        options.threshold = threshold
    if edgeitems is not None:
        options.edgeitems = edgeitems
    if linewidth is not None:
        options.linewidth = linewidth
    options.sci_mode = sci_mode


@contextmanager
def printoptions(**given: Any) -> Iterator[None]:
    """Set print options for a block."""
    before = asdict(options)
    set_printoptions(**given)
    try:
        yield
    finally:
        set_printoptions(**before)


class _Format:
    """Formats real numbers to the width of the widest finite one."""

    def __init__(self, values: np.ndarray) -> None:
        self.width, self.floating, self.sci, self.integral = 1, values.dtype.kind == "f", False, True
        if not self.floating:
            self.width = max((len(str(v)) for v in values.tolist()), default=1)
            return
        finite = values[np.isfinite(values) & (values != 0)]
        if not finite.size:
            return
        size = np.abs(finite).astype(np.float64)
        low, high = float(size.min()), float(size.max())
        self.integral = bool((finite == np.ceil(finite)).all())
        self.sci = (
            options.sci_mode if options.sci_mode is not None else high / low > 1000.0 or high > 1.0e8 or low < 1.0e-4
        )
        self.width = max(len(self.plain(v)) for v in finite.tolist())

    def plain(self, value: Any) -> str:
        if not self.floating:
            return str(value)
        if self.sci:
            return f"{value:.{options.precision}e}"
        if not self.integral:
            return f"{value:.{options.precision}f}"
        return f"{value:.0f}." if math.isfinite(value) else f"{value:.0f}"

    def __call__(self, value: Any) -> str:
        return self.plain(value).rjust(self.width)


class _ComplexFormat:
    def __init__(self, values: np.ndarray) -> None:
        self.real, self.imag = _Format(values.real), _Format(values.imag)
        self.width = self.real.width + self.imag.width + 1

    def __call__(self, value: complex) -> str:
        imag = self.imag(value.imag).lstrip()
        return f"{self.real(value.real)}{imag if imag[0] in '+-' else '+' + imag}j"


def _shown(tensor: Tensor) -> np.ndarray:
    """Read the elements that print."""
    with no_grad():
        for dim, size in enumerate(tensor._type.shape):
            if size > 2 * options.edgeitems:
                ends = [_cut(tensor, dim, 0, options.edgeitems), _cut(tensor, dim, size - options.edgeitems, size)]
                tensor = record(OPS["cat"], tuple(ends), (("dim", dim),))
    return tensor._read()


def _cut(tensor: Tensor, dim: int, start: int, stop: int) -> Tensor:
    shape = tensor._type.shape
    attrs = (
        ("starts", tuple(start if d == dim else 0 for d in range(len(shape)))),
        ("stops", tuple(stop if d == dim else n for d, n in enumerate(shape))),
        ("steps", (1,) * len(shape)),
    )
    return record(OPS["slice"], (tensor,), attrs)


def _vector(array: np.ndarray, show: Any, indent: int, cut: bool) -> str:
    per_line = max(1, (options.linewidth - indent) // (show.width + 2))
    words = [show(v) for v in array.tolist()]
    if cut:
        words[options.edgeitems : options.edgeitems] = [" ..."]
    lines = [", ".join(words[i : i + per_line]) for i in range(0, len(words), per_line)]
    return "[" + (",\n" + " " * (indent + 1)).join(lines) + "]"


def _nested(array: np.ndarray, show: Any, indent: int, cut: tuple[bool, ...]) -> str:
    """Format what is shown; ``cut`` says for each dim whether its middle was left out."""
    if array.ndim == 0:
        return show(array.item())
    if array.ndim == 1:
        return _vector(array, show, indent, cut[0])
    parts = [_nested(a, show, indent + 1, cut[1:]) for a in array]
    if cut[0]:
        parts[options.edgeitems : options.edgeitems] = ["..."]
    return "[" + ("," + "\n" * (array.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def _with_notes(text: str, notes: list[str], indent: int) -> str:
    width = len(text) - text.rfind("\n") + 1
    for note in notes:
        length = len(note.replace("dtype=gt.", "dtype=torch."))  # lines break where torch's do
        if width + length + 2 > options.linewidth:
            text += ",\n" + " " * indent + note
            width = indent + length
        else:
            text += ", " + note
            width += length + 2
    return text + ")"


def format_tensor(tensor: Tensor, prefix: str = "tensor(") -> str:
    """Give ``tensor([...], dtype=..., requires_grad=True)`` as torch would."""
    shape = tensor._type.shape
    notes = []
    plain = tensor.dtype in (get_default_dtype(), default_complex(), int64, bool_)
    if tensor.numel() == 0:
        body = "[]"
        if len(shape) != 1:
            notes.append(f"size={tuple(shape)}")
        plain = tensor.dtype is get_default_dtype()
    else:
        large = tensor.numel() > options.threshold
        array = _shown(tensor) if large else tensor._read()
        flat = array.reshape(-1)
        show = _ComplexFormat(flat) if array.dtype.kind == "c" else _Format(flat)
        body = _nested(array, show, len(prefix), tuple(large and n > 2 * options.edgeitems for n in shape))
    if not plain:
        notes.append(f"dtype={tensor.dtype!r}")
    if tensor.requires_grad:
        made = tensor.grad_fn
        notes.append("requires_grad=True" if made is None else f"grad_fn=<{made.name()}>")
    return _with_notes(prefix + body, notes, len(prefix))


def describe(tensor: Tensor) -> str:
    """Say shape, dtype and state in one line. Never reads the value."""
    state = "view" if tensor._base is not None else "pending" if tensor._trace is not None else "computed"
    grad = ", requires_grad=True" if tensor.requires_grad else ""
    return f"gt.Tensor {list(tensor._type.shape)} {tensor.dtype.name}, {state}{grad}"


def html(tensor: Tensor) -> str:
    """Give the line that notebooks show. Never reads the value."""
    name = escaping.escape(tensor._name) if tensor._name else ""
    return f"<code>{name + ' ' if name else ''}{escaping.escape(describe(tensor))}</code>"

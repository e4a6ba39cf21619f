"""Recording: how every op comes into its thread's trace, and which tensors name its results.

Owns: ``record`` (the hot path), ``record_pair``, ``record_into``; which of Python and gt/_recording.c does it. Must not know: what ops
mean, how tensors are used. Next: ``trace`` (what is appended to), ``handle`` (what names a value).
"""

from __future__ import annotations

import operator
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from gt.buffers import Buffer, Mark, ids, named_buffers
from gt.ir.blame import ours, users_frame
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef
from gt.ir.types import TensorType
from gt.operand import Number, Operand, Storage
from gt.rule import Rule, input_entries, number_entries, rule_of, rules_by_key
from gt.runtime.env import NATIVE
from gt.trace import Code, Modes, Stale, Trace, current, holding, settle, state

if TYPE_CHECKING:
    from gt.runtime.session import Session
    from gt.tensor import Tensor

_new, _getframe = object.__new__, sys._getframe  # looked up once: recording is the hot path
_tensor_class: type[Tensor]  # set by gt.tensor, which imports this module
_autocast: Callable[..., tuple[Any, ...]]  # set by gt.autocasting


def install_autocast(function: Callable[..., tuple[Any, ...]]) -> None:
    global _autocast
    _autocast = function


def install_tensor(make: type[Tensor]) -> None:
    global _tensor_class
    _tensor_class = make
    if native is not None:
        native.set_tensor(make)


def handle_of(trace: Trace, index: int, type: TensorType) -> Any:
    """Give a tensor that names a value of a trace."""
    return _tensor_class(trace, index, type)


def tensor_of(buffer: Buffer) -> Any:
    """Give a tensor on an existing buffer."""
    out = _tensor_class(None, -1, buffer.type)
    out._buffer = buffer
    return out


def _occupy(trace: Trace, size: int) -> bool:
    """Begin to append to a trace of which ``size`` values were known when the operands were looked at.

    Says no where another thread needed one of its values since, or a finalizer has recorded or read: the operands are to be looked
    at again. Errors: RuntimeError in the middle of another op.
    """
    if trace.busy:
        raise RuntimeError("a finalizer or a signal handler used a tensor while an op was being recorded")
    trace.busy = True
    if (trace.closing and (not trace.held or trace.sealed)) or trace.size != size:
        trace.busy = False
        return False
    return True


def _plain(value: Any) -> Any:
    """Give attributes with NumPy's numbers, and tensors of no dims, which are read, as Python's; themselves where there are none."""
    if isinstance(value, tuple):
        out = tuple(map(_plain, value))
        return value if all(map(operator.is_, out, value)) else out
    return value.item() if isinstance(value, np.generic | Operand) else value  # type: ignore[union-attr]


def _record(
    op: OpDef, inputs: tuple[Any, ...], attrs: Attrs = (), depth: int = 1, view: bool = False, first: bool = False
) -> Any:  # fmt: skip
    """Append ``op`` to this thread's trace and give its result, or a tuple of results. ``depth``: callers known to be gt's.

    ``view``: the result shares memory with the only operand. ``first``: of several results the first is wanted. Errors: TypeMismatch
    kin when shapes or dtypes do not fit, at the caller's line.
    """
    trace = state.trace
    if trace.size >= trace.stop:
        trace = current()
    modes = trace.modes
    if modes.autocast is not None and op.autocast:
        inputs = _autocast(*inputs)
        trace = current()
    size, taped = trace.size, False
    for t in inputs:
        if (t._trace is not trace and t._trace is not None) or (t._base is not None and t._seen != t._root._version):
            return _record_elsewhere(op, inputs, attrs, depth, view, first)
        taped = taped or t._rg
    key = (op, attrs, *[t._type for t in inputs])
    rule = rules_by_key.get(key)
    if rule is None:
        plain = _plain(attrs)
        if plain is not attrs:
            return _record(op, inputs, plain, depth + 1, view, first)
        rule = rule_of(op, attrs, key[2:])
    taped = taped and modes.grad and rule.differentiable
    frame = users_frame(_getframe(depth))
    if not _occupy(trace, size):
        time.sleep(0)
        return _record(op, inputs, attrs, depth + 1, view, first)
    try:
        ids = tuple([t._index if t._trace is trace else trace.enter(t) for t in inputs])
        trace.where.append((frame.f_code, frame.f_lasti))
        outs = []
        for index, type in enumerate(rule.outputs[:1] if first else rule.outputs, trace.size):
            out = _new(_tensor_class)
            Operand.__init__(out, trace, index, type, taped and type.differentiable)
            outs.append(out)
        if view:
            out._base, out._view = inputs[0], (op, attrs)
            out._root = root = inputs[0] if inputs[0]._base is None else inputs[0]._root
            if root._storage is None:
                root._storage = Storage()
            out._seen, out._storage = root._version, root._storage
        trace.handles.extend(outs)
        trace.code.append((rule.id + taped, ids))
        trace.size += rule.count
        return out if first or rule.single is not None else tuple(outs)
    except BaseException as e:
        trace.mend()
        if not isinstance(e, Stale):
            raise
    finally:
        trace.busy = False
    time.sleep(0)
    return _record(op, inputs, attrs, depth + 1, view, first)


def _record_pair(op: OpDef, a: Any, b: Any) -> Any:
    """Do what ``record(op, (a, b))`` does, for a method of a tensor that hands its operands on: most ops of a program are this one."""
    return _record(op, (a, b), (), 3)


def _record_elsewhere(op: OpDef, inputs: tuple[Any, ...], attrs: Attrs, depth: int, view: bool, first: bool) -> Any:
    """Record after flushing what operands of other threads need, and taking stale views again from their bases."""
    for t in inputs:
        if t._trace is not None and t._trace is not state.trace:
            settle(t._trace, "a value crossed threads")
    with holding():  # until the op is recorded: a flush before would make views stale again
        _refresh(inputs)
        return _record(op, inputs, attrs, depth + 2, view, first)


def _record_into(op: OpDef, inputs: tuple[Any, ...], attrs: Attrs, targets: Sequence[Any]) -> None:
    """Append ``op`` and let ``targets``, tensors with memory of their own, name its results in place of what they named.

    For updates of many tensors at once, off the tape: what ``record`` and assigning each result do, without the results' handles.
    """
    trace = state.trace
    if trace.size >= trace.stop:
        trace = current()
    for t in inputs:
        if t._base is not None and t._seen != t._root._version:
            with holding():
                _refresh(inputs)
                return _record_into(op, inputs, attrs, targets)
        if t._trace is not trace and t._trace is not None:
            settle(t._trace, "a value crossed threads")
            trace = current()
    size, types = trace.size, tuple([t._type for t in inputs])
    rule = rules_by_key.get((op, attrs, *types)) or rule_of(op, attrs, types)
    frame = users_frame(_getframe(1))
    if not _occupy(trace, size):
        time.sleep(0)
        return _record_into(op, inputs, attrs, targets)
    try:
        ids = tuple([t._index if t._trace is trace else trace.enter(t) for t in inputs])
        trace.where.append((frame.f_code, frame.f_lasti))
        trace.code.append((rule.id, ids))
        index = trace.size
        trace.size = index + len(rule.outputs)
        for t, type in zip(targets, rule.outputs, strict=True):
            assert type is t._type and t._base is None, f"{type!r} assigned to {t!r}"
            t._version += 1
            if t._trace is trace:
                trace.overwritten[t._index] = len(trace.code)
            else:
                t._buffer.replaced()
                held = trace.input_ids.get(t._buffer.id)
                if held is not None:
                    trace.overwritten[held] = len(trace.code)
                trace.handles.append(t)
            t._trace, t._index, t._buffer, t._tape = trace, index, None, None
            if t._rg and t._leaf:
                trace.leaves[index] = (weakref.ref(t), t._version)
            index += 1
        return
    except BaseException as e:
        trace.mend()
        if not isinstance(e, Stale):
            raise
    finally:
        trace.busy = False
    time.sleep(0)
    return _record_into(op, inputs, attrs, targets)


def _refresh(inputs: tuple[Any, ...]) -> None:
    """Take stale views again from their bases. The caller holds this thread's trace."""
    for t in inputs:
        if t._base is not None and t._seen != t._root._version:
            t._refresh()


def _load_native() -> Any:
    """Give gt/_recording.c, which has the ordinary case of the three functions above, or None where it has not been built."""
    if not NATIVE.get():
        return None
    try:
        module = import_module("gt._recording")
    except ImportError:
        return None
    module.set_up({
        "Operand": Operand, "Number": Number, "Storage": Storage, "Trace": Trace, "Modes": Modes, "Code": Code, "Rule": Rule,
        "Buffer": Buffer, "Mark": Mark, "TensorType": TensorType, "state": state, "_rules": rules_by_key,
        "_input_entries": input_entries, "_number_entries": number_entries, "_ids": ids, "_ours": ours, "_Stale": Stale,
        "_record": _record, "_record_pair": _record_pair, "_record_into": _record_into,
    })  # fmt: skip
    return module


native = _load_native()
_chosen = (_record, _record_pair, _record_into) if native is None else (native.record, native.record_pair, native.record_into)
record: Callable[..., Any] = _chosen[0]
record_pair: Callable[[OpDef, Any, Any], Any] = _chosen[1]
record_into: Callable[[OpDef, tuple[Any, ...], Attrs, Sequence[Any]], None] = _chosen[2]
new_buffers: Callable[[list[TensorType], Session, list[Buffer]], list[Buffer]] = named_buffers if native is None else native.new_buffers

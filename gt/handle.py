"""``Handle``: what a tensor is before it has arithmetic: a value that is pending, materialised, or a view of a base.

Owns: the handle's state and what changes it (assignment in place, views, reading back). Must not know: functions, how
flushes run. Next: ``tensor`` (the user's class), ``functions`` (what its methods are), ``recording`` (which names it).

A tensor's value is one of: pending (``_trace``, ``_index``), a buffer (``_buffer``), or, for a view whose base has changed
or was flushed, whatever its view op gives on the base now. Writes replace the value; writes through a view also write the
base, and ``_version`` of the root tells the other views to look again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gt.buffers import Buffer
from gt.grad_fn import GradFn, grad_fn_of
from gt.grad_mode import enable_grad, no_grad, set_grad_enabled
from gt.ir.blame import warn_user
from gt.ir.evaluate import from_wire
from gt.ir.graph import Attrs
from gt.ir.opdef import OpDef
from gt.ir.ops import OPS
from gt.ir.types import DType, TensorType, bool_, got
from gt.operand import Operand, Storage
from gt.progress import awaited
from gt.recording import record
from gt.runtime.interrupt import SHIELD
from gt.runtime.session import check_thread
from gt.shape import Size
from gt.trace import Trace, check_read, holding, settle, state
from gt.views import VIEWS, place_in_overlap, refuse_overlap, view_strides

if TYPE_CHECKING:
    from concurrent.futures import Future

    from gt.autograd import Hook
    from gt.runtime.session import Session

COPY, ALIAS, GRAFT = OPS["copy"], OPS["alias"], OPS["graft"]


class Handle(Operand):
    """A multi-dimensional array, lazily computed. Made by ``gt.tensor``, ``gt.randn`` and other functions, not directly."""

    _base: Handle | None
    _root: Handle
    _grad: Handle | None = None
    _retains: bool = False
    _history: Handle | None = None  # of a detached tensor: the value last written to it from which gradients pass
    _hooks: dict[int, Hook] | None = None
    _after: dict[int, Hook] | None = None  # called with the tensor once its gradient is accumulated

    __array_ufunc__ = None  # NumPy hands operators over to us instead of looping over elements
    __array_priority__ = 1000

    def __init__(self, trace: Trace | None = None, index: int = -1, type: TensorType | None = None) -> None:
        if type is None:
            raise TypeError("gt.Tensor is not made directly: use gt.tensor(data), gt.empty(shape) or another function")
        Operand.__init__(self, trace, index, type)

    # -- what it is: never flushes

    @property
    def shape(self) -> Size:
        return Size(self._type.shape)

    def size(self, dim: int | None = None) -> Any:
        """Give the shape, or the size of one dim."""
        return self.shape if dim is None else self.shape[_dim(dim, self.ndim)]

    @property
    def ndim(self) -> int:
        return len(self._type.shape)

    def dim(self) -> int:
        return len(self._type.shape)

    @property
    def dtype(self) -> DType:
        return self._type.dtype

    def numel(self) -> int:
        return self._type.numel

    nelement = numel

    def element_size(self) -> int:
        return self._type.dtype.itemsize

    @property
    def itemsize(self) -> int:
        return self._type.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self._type.nbytes

    def is_floating_point(self) -> bool:
        return self._type.dtype.kind == "f"

    def is_complex(self) -> bool:
        return self._type.dtype.kind == "c"

    def stride(self, dim: int | None = None) -> Any:
        """Give the strides, in elements, that torch would have."""
        strides = view_strides(self)
        return strides if dim is None else strides[_dim(dim, self.ndim)]

    def is_contiguous(self, *, memory_format: Any = None) -> bool:
        """Say whether elements lie in row-major order without gaps, as they do here in every ``memory_format``."""
        expected = 1
        for size, stride in zip(reversed(self._type.shape), reversed(view_strides(self)), strict=True):
            if size != 1 and stride != expected and self.numel():
                return False
            expected *= max(size, 1)
        return True

    # -- gradients

    @property
    def requires_grad(self) -> bool:
        if self._base is not None and self._seen != self._root._version:
            self._refresh()
        return self._rg

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say whether ``backward()`` accumulates a gradient here."""
        if not self._leaf and not requires_grad:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. If you want to use a computed variable in a "
                "subgraph that doesn't require differentiation use var_no_grad = var.detach()."
            )
        if requires_grad and not self._type.dtype.is_differentiable:
            raise RuntimeError("only Tensors of floating point and complex dtype can require gradients")
        if bool(requires_grad) is not self._rg:
            with holding():
                self._rg = False  # while it gets an id of its own
                self._become_leaf() if requires_grad else self._freeze()
                self._rg = bool(requires_grad)  # recording compares it with True
        return self

    def _become_leaf(self) -> None:
        """Give the value an id of its own, so that uses before this call do not pass gradients."""
        if self._trace is not None and self._trace is state.trace:
            trace = self._trace
            if self._index != trace.size - 1:
                self._adopt(self._renamed())
            trace.tracked = None
            trace.leaves[self._index] = (weakref.ref(self), self._version)
        elif self._buffer is not None and self._buffer.id in state.trace.input_ids:
            self._adopt(self._renamed())
            state.trace.leaves[self._index] = (weakref.ref(self), self._version)

    def _freeze(self) -> None:
        """Give the value an id of its own if the trace has it as a leaf, so that uses after this call do not pass gradients."""
        trace = state.trace
        index = self._index if self._trace is trace else trace.input_ids.get(self._buffer.id, -1) if self._buffer is not None else -1
        if index in trace.leaves:
            self._adopt(self._renamed())

    @property
    def is_leaf(self) -> bool:
        return self._leaf

    @property
    def grad(self) -> Self | None:
        if state.recorder is not None:
            state.recorder.grad_of(self)
        if self._grad is None and not self._leaf and not self._retains:
            warn_user(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad attribute won't be populated during "
                "autograd.backward(). If you indeed want the .grad field to be populated for a non-leaf Tensor, use .retain_grad() on the "
                "non-leaf Tensor. If you access the non-leaf Tensor by mistake, make sure you access the leaf Tensor instead."
            )
        return self._grad

    @grad.setter
    def grad(self, value: Handle | None) -> None:
        if value is not None:
            if not isinstance(value, Handle):
                raise TypeError(
                    f"assigned grad expected to be a Tensor or None but got grad of type {got(value)}"
                )
            if value._type.shape != self._type.shape:
                raise RuntimeError(
                    f"attempting to assign a gradient of size '{list(value._type.shape)}' to a tensor of size '{list(self._type.shape)}'. "
                    "Please ensure that the gradient and the tensor are the same size"
                )
            if value._type is not self._type:
                raise RuntimeError(
                    f"attempting to assign a gradient with dtype '{value._type.dtype!r}' to a tensor with dtype '{self._type.dtype!r}'"
                )
        if state.recorder is not None:
            state.recorder.grad_of(self)
        self._grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def grad_fn(self) -> GradFn | None:
        """Give the op that made a tensor that needs a gradient, to look at, or None for a leaf."""
        if not self.requires_grad or self._leaf:
            return None
        made = (self._trace, self._index) if self._trace is not None else self._tape
        return grad_fn_of(*made) if made is not None else None

    @property
    def data(self) -> Self:
        """Give the same values without gradient history; writes to it do not count as changes of this tensor."""
        return self.detach()

    @data.setter
    def data(self, value: Handle) -> None:
        """Take other values, of any shape and dtype, and stay the same tensor; gradients of earlier uses are unaffected.

        What was computed and needs a gradient keeps its history, and so its shape.
        """
        if not isinstance(value, Handle):
            raise TypeError(f"Variable data has to be a tensor, but got {got(value)}")
        if self._rg and value._type.dtype.kind not in "fc":
            raise RuntimeError("data set to a tensor that requires gradients must be floating point or complex dtype")
        if self._base is not None:
            raise RuntimeError("cannot assign .data of a view: assign to its base, or write view[...] = values")
        computed = self._rg and not self._leaf
        if computed and value._type.shape != self._type.shape:
            raise RuntimeError(
                f"cannot assign .data of shape {list(value._type.shape)} to a tensor of shape {list(self._type.shape)} that was computed "
                "and needs a gradient: take detach()"
            )
        with holding():
            with enable_grad() if self._rg else no_grad():
                if self._storage is not None:  # its views keep the values and the history it had
                    self._storage.moved = self._renamed(COPY if self._rg else ALIAS)
                    self._storage = None
                    self._version += 1
                if computed:
                    if value._type is self._type:
                        new = graft(self, value)
                    else:
                        new = record(GRAFT, (record(OPS["cast"], (self,), (("dtype", value._type.dtype),)), value))
                else:
                    new = record(ALIAS, (value,))
                state.trace.moved[new._index] = None
            self._adopt(new)
            self._type = value._type
            if self._rg and (self._leaf or self._retains) and self._trace is not None:
                self._trace.leaves[self._index] = (weakref.ref(self), self._version)

    def detach(self) -> Self:
        """Give a view of the same values that passes no gradient."""
        out = take_view(self, ALIAS, ())
        out._rg, out._leaf = False, True
        return out

    def detach_(self) -> Self:
        """Begin without gradient history from now on. Errors: RuntimeError for a view."""
        if self._base is not None and self._view[0] is not ALIAS:
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        with holding():
            self._adopt(self._renamed())
            self._rg, self._leaf, self._history = False, True, None
        return self

    # -- changing in place

    def _renamed(self, op: OpDef = ALIAS) -> Any:
        """Give the value another id, whose changes in place are changes of what this one was and of its views.

        ``op``: COPY if gradients are to pass.
        """
        fresh = record(op, (self,))
        trace = state.trace
        trace.moved[fresh._index], trace.moved[trace.code[-1][1][0]] = None, fresh._index
        return fresh

    def _take(self, other: Handle, since: int | None = None) -> None:
        """Adopt another tensor's value in place of the own, which no entry before ``since`` may have saved for its backward.

        ``since``: the first entry of the change itself, which may read what it replaces; the newest entry if not given.
        """
        self._overwrite(len(state.trace.code) - 1 if since is None else since)
        self._adopt(other)

    def _overwrite(self, since: int) -> None:
        """Note that entries before ``since`` that saved the value can have no backward."""
        if self._trace is not None:
            self._trace.overwritten.setdefault(self._index, since)
        elif self._buffer is not None:
            self._buffer.replaced()
            if self._buffer.id in state.trace.input_ids:
                state.trace.overwritten.setdefault(state.trace.input_ids[self._buffer.id], since)

    def _adopt(self, other: Handle) -> None:
        """Name the value that ``other`` names. The caller holds this thread's trace."""
        for flushing in (other._trace, self._trace):
            if flushing is not None:
                flushing.wait()
        trace = other._trace
        if trace is not None and trace is not self._trace:
            trace.handles.append(self)  # type: ignore[arg-type]
        if trace is None:
            if hasattr(self, "_before"):
                del self._before
        elif self._buffer is not None:
            self._before = self._buffer.id if self._buffer.id in trace.input_ids else self._buffer
        self._trace, self._index, self._buffer, self._tape = trace, other._index, other._buffer, other._tape

    def _renew(self, value: Handle) -> None:
        """Take values that a function keeps up beside its result, as running statistics: torch does not count that as a change."""
        with holding() as trace:
            if self._base is not None:
                self._assign(value)
                return
            before = self._index if self._trace is trace else trace.input_ids.get(self._buffer.id) if self._buffer else None
            self._version += 1
            self._adopt(value)
            if before is not None:
                trace.moved[before] = self._index

    def _assign(
        self, value: Handle, since: tuple[Trace, int] | None = None, repeats: bool = False, given: bool = False, anew: bool = False
    ) -> Self:
        """Replace the values, and those of everything that shares memory with this tensor.

        ``value`` has this tensor's type. ``since``: where ``value`` began to be computed (``here()``), as far as that is part of the
        change; its last op if not given. ``repeats``: all values are one. ``given``: somebody else has ``value`` too, and keeps it.
        ``anew``: ``value`` was made without what it replaces.
        Errors: RuntimeError for a leaf that needs a gradient, and, unless it ``repeats``, for a view two of whose elements are one,
        as torch.
        """
        if state.grad:
            root: Handle = self
            while root._base is not None and root._view[0] is not ALIAS:  # a detached tensor's history is its own
                root = root._base
            if self._rg and self._leaf:
                raise RuntimeError(
                    "a leaf Variable that requires grad is being used in an in-place operation. Change it within gt.no_grad(), or by an "
                    "optimizer."
                )
            if root is not self and self._rg and root._rg and root._leaf:
                raise RuntimeError(
                    "a view of a leaf Variable that requires grad is being used in an in-place operation."
                )
        assert value._type is self._type, f"{value._type!r} assigned to {self._type!r}"
        if value is self:
            return self
        if anew:
            self._leave_hooks()
        with holding() as trace:
            if since is None:
                since = trace, len(trace.code) - (value._trace is trace and value._index == trace.size - 1)
            root = self if self._base is None else self._root
            if anew and state.grad and value._rg and self._rg and not self._leaf and self._type.numel == root._type.numel:
                value, given = self._onto(value), False
            self._write(value, True, since[1] if since[0] is trace else 0, repeats, given)
            if self._base is not None and self._seen != -1:
                self._seen = self._root._version
        return self

    def _write(self, value: Handle, tracked: bool, since: int, repeats: bool = False, given: bool = False) -> None:
        """``tracked``: gradients are to follow the new value, as in grad mode; else they follow the history there is."""
        tracked = tracked and state.grad
        keeps = self._rg and not self._leaf and not (tracked and value._rg)  # the history that it has
        detached = self._base is not None and self._view[0] is ALIAS
        if keeps and tracked and (self._base is None or detached):
            value, keeps, given = self._onto(value), False, False
        own = self._base is None or detached or (self._leaf and self._rg)
        if value._base is not None or (value._leaf and value._rg) or (given and own):
            value = record(COPY, (value,))  # a value of its own: a view's may be out of date, a leaf's is the leaf's
            given = False
        whole = True
        if self._base is not None:
            whole = self._write_base(value, tracked, since, repeats, given)
            if given or keeps:
                self._seen = -1  # taken again from the base, whose history it has
                return
        else:
            self._version += 1
            if keeps:
                with enable_grad():
                    value = graft(self, value)
        leaf = self._leaf and self._rg and not value._rg
        self._take(value, since)
        if not leaf:
            self._rg, self._leaf = value._rg, value._leaf if value._rg else True
        if detached:
            self._history = value if value._rg else None
        if self._base is not None:
            by_base = self._rg and not leaf and not detached  # what reads it is taken of the base, whose history it has
            self._seen = self._root._version if whole and not by_base else -1
            if by_base:
                return
        if (leaf or self._retains and self._rg) and self._trace is not None:
            self._trace.leaves[self._index] = (weakref.ref(self), self._version)

    def _onto(self, value: Handle) -> Handle:
        """Give ``value``, from which gradients pass as zeros to the history that this tensor has."""
        never = record(OPS["full"], (), (("shape", ()), ("value", 0.0), ("dtype", bool_)))
        return record(OPS["where"], (never, self, value))

    def _write_base(self, value: Handle, tracked: bool, since: int, repeats: bool, given: bool) -> bool:
        """Write ``value``, given to a view, where its elements are. Say whether the view has it now: not where elements overlap."""
        t: Handle | None = self
        while t is not None and t._base is not None:
            if t._storage is not None and t._storage.moved is not None:
                t._rebase()
            t = t._base
        assert self._view is not None and self._base is not None
        (op, attrs), base, place = self._view, self._base, place_in_overlap(self)
        through = tracked and op is not ALIAS
        if place is not None:
            if place.overlaps and not repeats:
                raise refuse_overlap()
            while base is not place.of:  # a view between: it is out of date from now on
                base._overwrite(since)
                assert base._base is not None
                base = base._base
            op, attrs, through = OPS["as_strided"], place.attrs, tracked and place.through
        if through:
            base._leave_hooks()
        if base._base is not None and base._seen != base._root._version:
            base._refresh()
        trace = state.trace
        with set_grad_enabled(through):
            new = VIEWS[op.name].write(base, value, dict(attrs))
            if new is not value:
                trace.moved[new._index] = None
            base._write(new, through, since, given=given and new is value)
        if not given and value._trace is trace is base._trace and base._index != value._index:
            trace.moved[value._index] = base._index
        return place is None or not place.overlaps

    def _leave_hooks(self) -> None:
        """Take a view that is about to be written again if it or a view between has hooks: they get no gradient of what is written."""
        if self._base is None or not state.grad or self._leaf:
            return
        t, passed = self, []
        hooked = 0
        while t._base is not None and t._view is not None and t._view[0] is not ALIAS:
            passed.append(t)
            if t._hooks:
                hooked = len(passed)
            t = t._base
        for t in passed[:hooked]:
            t._seen = -1
        if hooked:
            self._refresh()

    def _refresh(self) -> None:
        """Take a view again from its base, which has changed or was flushed."""
        assert self._base is not None and self._view is not None
        op, attrs = self._view
        same = self._seen == -2 - self._root._version  # flushed, and the values are still those
        was = self._tape if same else None
        if self._storage is not None and self._storage.moved is not None:
            self._rebase()
        with holding():
            base = self._base
            if base._base is not None and base._seen != base._root._version:
                base._refresh()
            fixed = self._root._rg and self._root._leaf  # no write gives it a history
            if base._rg and op is not ALIAS and not (self._rg or same or fixed):  # the base has been given a history meanwhile
                self._rg, self._leaf = True, False
            leaf = self._rg and self._leaf
            with enable_grad() if self._rg and not leaf and was is None else no_grad():
                fresh = record(op, (base,), attrs)  # alike in the code: a view of the base
                if self._history is not None and was is None:
                    fresh = graft(self._history, fresh)
            if fresh._trace is not self._trace:
                if (flushing := self._trace) is not None:  # asked once: another thread may change it
                    flushing.wait()
                fresh._trace.handles.append(self)
            self._trace, self._index, self._buffer, self._tape = fresh._trace, fresh._index, None, None
            self._seen = self._root._version
            if was is not None:  # gradients of it then and now are one
                fresh._trace.links[self._index] = was
            elif leaf or (self._retains and self._rg):
                fresh._trace.leaves[self._index] = (weakref.ref(self), self._version)

    def _rebase(self) -> None:
        """Be a view of the tensor that has the shared values now."""
        assert self._storage is not None and self._storage.moved is not None
        if self._base is self._root:
            self._base = self._storage.moved
        self._root = self._storage.moved
        self._seen = -1
        if self._root._storage is None:
            self._root._storage = Storage()
        self._storage = self._root._storage

    # -- reading: flushes

    def _materialise(self) -> Buffer:
        """Flush if pending, and give the buffer."""
        check_read()
        return self._flushed(reads=False)[0]

    def _flushed(self, reads: bool) -> tuple[Buffer, Future[np.ndarray] | None]:
        """Flush if pending; give the buffer, and what it holds if that is read and has been asked for with the run."""
        source, future = self, None
        if self._base is not None:
            with no_grad():
                source = record(COPY, (self,))
        while (buffer := source._buffer) is None:  # again where another thread writes to it meanwhile
            if (trace := source._trace) is not None:
                future = settle(trace, "a value was read", source._index if reads else -1)
            assert source._buffer is not None or source._trace is not trace
        return buffer, future

    def _asked(self) -> tuple[Future[np.ndarray], Session]:
        buffer, future = self._flushed(reads=True)
        return buffer.session.fetch(buffer.id) if future is None else future, buffer.session

    def _read(self) -> np.ndarray:
        """Give the values as a new array; bfloat16 as float32."""
        check_thread()
        check_read()
        with SHIELD:  # once, not for each step of it: waiting lifts it
            wire = awaited(*self._asked())
        return from_wire(wire, self._type.shape, self._type.dtype)

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """Give the values as a new, writable array. Flushes. Errors: RuntimeError if it needs a gradient, unless ``force``."""
        if self._rg and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        if self._type.dtype.name == "bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16: NumPy has no bfloat16; use .float() first")
        return self._read()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a gt tensor cannot be turned into an array without a copy")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def tolist(self) -> Any:
        """Give the values as (nested lists of) Python numbers. Flushes once."""
        return self._read().tolist()

    def item(self) -> Any:
        """Give the only element as a Python number. Flushes."""
        if self._type.numel != 1:
            raise RuntimeError(f"a Tensor with {self._type.numel} elements cannot be converted to Scalar")
        return self._read().reshape(()).item()

    def __bool__(self) -> bool:
        if self._type.numel > 1:
            raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
        if self._type.numel == 0:
            raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
        return bool(self.item())

    def _number(self, real: str = "") -> Any:
        """Read the only element. ``real``: torch's name of the real type that it is to become."""
        if self._type.numel != 1:
            raise ValueError(f"only one element tensors can be converted to Python scalars, got {self._type.numel} elements")
        value = self.item()
        if not real or not isinstance(value, complex):
            return value
        if value.imag:
            raise RuntimeError(f"value cannot be converted to type {real} without overflow: it is complex, take .real")
        return value.real

    def __int__(self) -> int:
        return int(self._number("int64_t"))

    def __float__(self) -> float:
        return float(self._number("double"))

    def __complex__(self) -> complex:
        return complex(self._number())

    def __index__(self) -> int:
        if self._type.dtype.kind not in "bui" or self._type.numel != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self._type.shape:
            raise TypeError("len() of a 0-d tensor")
        return self._type.shape[0]

    __hash__ = object.__hash__


def root_of(t: Handle) -> Handle:
    """Give the tensor that has what a tensor is a view of, itself if it is none."""
    if t._base is None:
        return t
    if t._storage is not None and t._storage.moved is not None:
        t._rebase()
    return t._root


def here() -> tuple[Trace, int]:
    """Give where this thread's next op will be recorded."""
    return state.trace, len(state.trace.code)


def _dim(dim: int, ndim: int) -> int:
    from_end = dim + ndim if dim < 0 else dim
    if not 0 <= from_end < ndim:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})")
    return from_end


def graft(history: Handle, value: Handle) -> Any:
    """Give ``value`` with the history of another tensor, whose gradient is this one's."""
    out = record(GRAFT, (history, value))
    trace = state.trace
    trace.grafts[out._index] = trace.code[-1][1][0]
    return out


def take_view(base: Handle, op: OpDef, attrs: Attrs) -> Any:
    """Record a view op; the result shares memory with ``base``."""
    return record(op, (base,), attrs, 2, True)

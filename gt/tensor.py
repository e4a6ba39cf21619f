"""``Tensor``: the user's class, with torch's methods and operators.

Owns: the list of methods; each is a function of ``gt.functions``. Next: ``handle`` (state), ``functions`` (what methods do),
``printing`` (repr).
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, Self

from gt import legacy
from gt.absent import METHODS
from gt.arguments import guard_methods
from gt.autocasting import CPU, CUDA, autocasting
from gt.autograd.gradients import backward, register_hook, register_post_accumulate_grad_hook, retain_grad
from gt.copying import Copies
from gt.devices import check_memory_format, check_options, device, dtype_among
from gt.devices import strided as dense
from gt.functions import (
    arrange,
    counting,
    create,
    draw,
    factorization,
    gathering,
    index,
    linalg,
    matrices,
    norms,
    numeric,
    pointwise,
    promote,
    reduce,
    running,
    shape,
    solving,
    special,
    spectrogram,
    statistics,
    strided,
)  # fmt: skip
from gt.grad_mode import no_grad
from gt.handle import ALIAS, Handle
from gt.in_place import in_place
from gt.ir.advice import nearest_word
from gt.ir.blame import warn_user
from gt.ir.types import (
    DTYPES,
    TensorType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    dtype_of,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    scalar_type,
    uint8,
)  # fmt: skip
from gt.naming import named
from gt.printing import format_tensor, html
from gt.recording import install_tensor, record
from gt.trace import holding
from gt.views import offset_of


def _never(name: str) -> Callable[..., builtins.bool]:
    """Give a method that says that no tensor here is such a one."""

    def method(self: Tensor) -> builtins.bool:
        return False

    return named(method, name, "Say no: no tensor here is.")


_HERE = device("cpu")
PLAIN = ("Tensor", "Parameter")  # classes that print as torch prints its own


class Tensor(Copies):
    """A multi-dimensional array, lazily computed, with torch's methods. Made by ``gt.tensor``, ``gt.randn`` and others."""

    def __init__(self, *args: Any, **options: Any) -> None:
        if len(args) == 3 and args[2].__class__ is TensorType:  # gt's own: where the value was recorded, and its type
            super().__init__(*args)
            return
        value = legacy.tensor_of(args, options)
        super().__init__(None, -1, value._type)
        if value._trace is None and value._base is None:
            self._buffer = value._buffer
        else:
            with no_grad(), holding():
                self._adopt(record(ALIAS, (value,)))

    # -- arithmetic
    add, sub, subtract, mul, multiply, div, divide = (
        pointwise.add, pointwise.sub, pointwise.sub, pointwise.mul, pointwise.mul, pointwise.div, pointwise.div,
    )  # fmt: skip
    true_divide, floor_divide, remainder, fmod, pow = (
        pointwise.div, pointwise.floor_divide, pointwise.remainder, pointwise.fmod, pointwise.pow,
    )  # fmt: skip
    maximum, minimum, atan2, clamp, clip = (
        pointwise.maximum,
        pointwise.minimum,
        pointwise.atan2,
        pointwise.clamp,
        pointwise.clamp,
    )
    clamp_min, clamp_max = pointwise.clamp_min, pointwise.clamp_max

    def where(self, condition: Tensor, other: Any) -> Tensor:
        """Keep these values where ``condition`` holds, else take ``other``."""
        return pointwise.where(condition, self, other)

    eq, ne, lt, le, gt, ge = pointwise.eq, pointwise.ne, pointwise.lt, pointwise.le, pointwise.gt, pointwise.ge
    logical_and, logical_or, logical_xor = pointwise.logical_and, pointwise.logical_or, pointwise.logical_xor
    bitwise_and, bitwise_or, bitwise_xor = pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor
    logical_not, bitwise_not, neg, negative = pointwise.logical_not, pointwise.bitwise_not, pointwise.neg, pointwise.neg
    exp, expm1, log, log1p, log2, log10 = (
        pointwise.exp, pointwise.expm1, pointwise.log, pointwise.log1p, pointwise.log2, pointwise.log10,
    )  # fmt: skip
    sqrt, rsqrt, reciprocal, sigmoid, tanh, relu = (
        pointwise.sqrt, pointwise.rsqrt, pointwise.reciprocal, pointwise.sigmoid, pointwise.tanh, pointwise.relu,
    )  # fmt: skip
    sin, cos, tan, asin, acos, atan = (
        pointwise.sin, pointwise.cos, pointwise.tan, pointwise.asin, pointwise.acos, pointwise.atan,
    )  # fmt: skip
    sinh, cosh, asinh, acosh, atanh = pointwise.sinh, pointwise.cosh, pointwise.asinh, pointwise.acosh, pointwise.atanh
    erf, erfc, abs, absolute, sign, square = (
        pointwise.erf, pointwise.erfc, pointwise.abs, pointwise.abs, pointwise.sign, pointwise.square,
    )  # fmt: skip
    floor, ceil, round, trunc = pointwise.floor, pointwise.ceil, pointwise.round, pointwise.trunc
    isnan, isinf, isfinite = pointwise.isnan, pointwise.isinf, pointwise.isfinite
    # -- reductions
    sum, mean, prod, amax, amin, max, min = (
        reduce.sum, reduce.mean, reduce.prod, reduce.amax, reduce.amin, reduce.max, reduce.min,
    )  # fmt: skip
    argmax, argmin, any, all, var, std = reduce.argmax, reduce.argmin, reduce.any, reduce.all, reduce.var, reduce.std
    logsumexp, cumsum, cumprod, count_nonzero = reduce.logsumexp, reduce.cumsum, reduce.cumprod, reduce.count_nonzero
    softmax, log_softmax, sort, argsort, topk = (
        reduce.softmax, reduce.log_softmax, reduce.sort, reduce.argsort, reduce.topk,
    )  # fmt: skip
    # -- shapes
    reshape, view, view_as, reshape_as, flatten, ravel, unflatten = (
        shape.reshape, shape.view, shape.view_as, shape.reshape_as, shape.flatten, shape.ravel, shape.unflatten,
    )  # fmt: skip
    permute, transpose, swapaxes, swapdims, t, movedim = (
        shape.permute, shape.transpose, shape.swapaxes, shape.transpose, shape.t, shape.movedim,
    )  # fmt: skip
    squeeze, unsqueeze, expand, expand_as, broadcast_to = (
        shape.squeeze, shape.unsqueeze, shape.expand, shape.expand_as, shape.broadcast_to,
    )  # fmt: skip
    repeat, tile, repeat_interleave, narrow, select, chunk, unbind = (
        shape.repeat, shape.tile, arrange.repeat_interleave, shape.narrow, shape.select, shape.chunk, shape.unbind,
    )  # fmt: skip
    moveaxis, ndimension, narrow_copy, cross = shape.moveaxis, Handle.dim, strided.narrow_copy, matrices.old_cross
    stft, istft, ormqr = spectrogram.stft, spectrogram.istft, factorization.ormqr
    flip, roll, clone, contiguous = shape.flip, shape.roll, shape.clone, shape.contiguous
    # -- indexing
    gather, index_select, scatter, scatter_add, masked_fill, masked_select, nonzero, tril, triu, take_along_dim = (
        gathering.gather, gathering.index_select, gathering.scatter, gathering.scatter_add, index.masked_fill, index.masked_select,
        index.nonzero, index.tril, index.triu, gathering.take_along_dim,
    )  # fmt: skip
    # -- products
    matmul, mm, bmm, dot, outer, addmm = linalg.matmul, linalg.mm, linalg.bmm, linalg.dot, linalg.outer, linalg.addmm
    # -- the rest of torch's elementwise functions
    fmax, fmin, hypot, copysign, nextafter, logaddexp = (
        numeric.fmax, numeric.fmin, numeric.hypot, numeric.copysign, numeric.nextafter, numeric.logaddexp,
    )  # fmt: skip
    logaddexp2, gcd, lcm, heaviside, float_power, ldexp = (
        numeric.logaddexp2, numeric.gcd, numeric.lcm, numeric.heaviside, numeric.float_power, numeric.ldexp,
    )  # fmt: skip
    frexp, bitwise_left_shift, bitwise_right_shift, lerp = (
        numeric.frexp, numeric.bitwise_left_shift, numeric.bitwise_right_shift, numeric.lerp,
    )  # fmt: skip
    addcmul, addcdiv, frac, deg2rad, rad2deg, positive = (
        numeric.addcmul, numeric.addcdiv, numeric.frac, numeric.deg2rad, numeric.rad2deg, numeric.positive,
    )  # fmt: skip
    sgn, signbit, nan_to_num, isposinf, isneginf, isreal = (
        numeric.sgn, numeric.signbit, numeric.nan_to_num, numeric.isposinf, numeric.isneginf, numeric.isreal,
    )  # fmt: skip
    conj, conj_physical, is_conj, is_neg, resolve_conj, resolve_neg, angle = (
        numeric.conj, numeric.conj_physical, numeric.is_conj, numeric.is_neg, numeric.resolve_conj, numeric.resolve_neg, numeric.angle,
    )  # fmt: skip
    isclose, allclose, equal = numeric.isclose, numeric.allclose, numeric.equal
    exp2, sinc, erfinv, lgamma, digamma, i0 = (
        special.exp2, special.sinc, special.erfinv, special.lgamma, special.digamma, special.i0,
    )  # fmt: skip
    logit, xlogy, mvlgamma, igamma, igammac = (
        special.logit, special.xlogy, special.mvlgamma, special.igamma, special.igammac,
    )  # fmt: skip
    arccos, arccosh, arcsin, arcsinh, arctan = (
        pointwise.arccos, pointwise.arccosh, pointwise.arcsin, pointwise.arcsinh, pointwise.arctan,
    )  # fmt: skip
    arctanh, arctan2, greater, greater_equal, less = (
        pointwise.arctanh, pointwise.arctan2, pointwise.greater, pointwise.greater_equal, pointwise.less,
    )  # fmt: skip
    less_equal, not_equal, fix = pointwise.less_equal, pointwise.not_equal, pointwise.fix
    # -- statistics, arrangement, indexing, algebra
    aminmax, kthvalue, median, nanmedian, mode = (
        statistics.aminmax, statistics.kthvalue, statistics.median, statistics.nanmedian, statistics.mode,
    )  # fmt: skip
    msort, quantile, nanquantile, nansum, nanmean = (
        statistics.msort, statistics.quantile, statistics.nanquantile, statistics.nansum, statistics.nanmean,
    )  # fmt: skip
    cummax, cummin, logcumsumexp, diff, cov = (
        running.cummax, running.cummin, running.logcumsumexp, running.diff, statistics.cov,
    )  # fmt: skip
    corrcoef, bincount, histc, histogram, unique = (
        statistics.corrcoef, counting.bincount, counting.histc, counting.histogram, counting.unique,
    )  # fmt: skip
    unique_consecutive, dist, renorm = counting.unique_consecutive, norms.dist, norms.renorm
    tensor_split, hsplit, vsplit, dsplit, split_with_sizes = (
        arrange.tensor_split, arrange.hsplit, arrange.vsplit, arrange.dsplit, arrange.split_with_sizes,
    )  # fmt: skip
    unsafe_split, unsafe_chunk, fliplr, flipud, rot90 = (
        arrange.unsafe_split, arrange.unsafe_chunk, arrange.fliplr, arrange.flipud, arrange.rot90,
    )  # fmt: skip
    as_strided, as_strided_scatter, diagonal, diagonal_scatter = (
        strided.as_strided, strided.as_strided_scatter, strided.diagonal, strided.diagonal_scatter,
    )  # fmt: skip
    diag, diag_embed, diagflat, trace, unfold = (
        strided.diag, strided.diag_embed, strided.diagflat, strided.trace, strided.unfold,
    )  # fmt: skip
    select_scatter, slice_scatter, kron, sum_to_size = (
        strided.select_scatter, strided.slice_scatter, arrange.kron, arrange.sum_to_size,
    )  # fmt: skip
    scatter_reduce, index_add, index_copy, index_fill, index_reduce = (
        gathering.scatter_reduce, gathering.index_add, gathering.index_copy, gathering.index_fill, gathering.index_reduce,
    )  # fmt: skip
    index_put, take, put, masked_scatter, argwhere, nonzero_static = (
        index.index_put, gathering.take, gathering.put, index.masked_scatter, index.argwhere, index.nonzero_static,
    )  # fmt: skip
    mv, vdot, inner, ger, addmv, addr, baddbmm = (
        linalg.mv, linalg.vdot, linalg.inner, linalg.ger, linalg.addmv, linalg.addr, linalg.baddbmm,
    )  # fmt: skip
    addbmm = linalg.addbmm
    det, slogdet, logdet, inverse, pinverse, matrix_exp, matrix_power, adjoint = (
        matrices.det, matrices.old_slogdet, matrices.logdet, solving.inv, solving.pinv, matrices.matrix_exp, matrices.matrix_power,
        factorization.adjoint,
    )  # fmt: skip
    cholesky_inverse, cholesky_solve, triangular_solve, norm, svd, qr = (
        solving.cholesky_inverse, solving.cholesky_solve, solving.triangular_solve, norms.old_norm, factorization.svd_, factorization.qr_,
    )  # fmt: skip
    multinomial = draw.multinomial

    def split(self, split_size: Any, dim: builtins.int = 0) -> tuple[Tensor, ...]:
        """Cut into pieces of one size (the last may be smaller) or of the given sizes. Views."""
        return shape.split(self, split_size, dim)

    def lu(self, pivot: bool = True, get_infos: bool = False) -> Any:
        """Give L and U in one matrix, and pivots: torch's old form."""
        return factorization.old_lu(self, pivot, get_infos)

    def lu_solve(self, LU_data: Tensor, LU_pivots: Tensor) -> Tensor:  # noqa: N803
        """Solve A X = self from LU factors."""
        return solving.lu_solve(LU_data, LU_pivots, self)

    def cholesky(self, upper: bool = False) -> Tensor:
        """Give the Cholesky factor."""
        return factorization.cholesky(self, upper=upper)

    def polygamma(self, n: int) -> Tensor:
        """Give the n-th derivative of digamma."""
        return special.polygamma(n, self)

    polygamma_ = in_place(polygamma)

    # -- gradients
    backward, register_hook, retain_grad = backward, register_hook, retain_grad
    register_post_accumulate_grad_hook = register_post_accumulate_grad_hook
    bernoulli = draw.bernoulli

    # -- operators
    __add__, __mul__ = promote.operator(pointwise.ADD, pointwise.add), promote.operator(pointwise.MUL, pointwise.times)
    __sub__ = promote.operator(pointwise.SUB, pointwise.sub, "uifc")  # bools are refused
    __truediv__ = promote.operator(pointwise.DIV, pointwise.div, "fc")
    __radd__, __rmul__ = pointwise.add, pointwise.times
    __floordiv__, __mod__, __pow__, __matmul__, __neg__, __abs__, __invert__ = (
        pointwise.floor_divide, pointwise.remainder, pointwise.pow, linalg.matmul, pointwise.neg, pointwise.abs, pointwise.bitwise_not,
    )  # fmt: skip
    __and__, __or__, __xor__ = pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor
    __rand__, __ror__, __rxor__ = pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor
    __lt__, __le__, __gt__, __ge__ = pointwise.lt, pointwise.le, pointwise.gt, pointwise.ge
    __getitem__, __setitem__, __hash__ = index.getitem, index.setitem, Handle.__hash__

    def __delitem__(self, index: Any) -> None:
        raise TypeError("Tensor does not support deleting items")


    def __eq__(self, other: object) -> Any:
        return pointwise.eq(self, other) if promote.is_compared("eq", other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return pointwise.ne(self, other) if promote.is_compared("ne", other) else NotImplemented

    def __lshift__(self, other: Any) -> Tensor:
        return numeric.bitwise_left_shift(self, other)

    def __rshift__(self, other: Any) -> Tensor:
        return numeric.bitwise_right_shift(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return numeric.bitwise_left_shift(other, self)

    def __rrshift__(self, other: Any) -> Tensor:
        return numeric.bitwise_right_shift(other, self)

    def __pos__(self) -> Tensor:
        return numeric.positive(self)

    def __rmatmul__(self, other: Any) -> Tensor:
        return linalg.matmul(other, self)

    def __rsub__(self, other: Any) -> Tensor:
        return pointwise.sub(other, self)

    def __rtruediv__(self, other: Any) -> Tensor:
        return pointwise.div(other, self)

    __rdiv__ = __rtruediv__

    def __rfloordiv__(self, other: Any) -> Tensor:
        return pointwise.floor_divide(other, self)

    def __rmod__(self, other: Any) -> Tensor:
        return pointwise.remainder(other, self)

    def __rpow__(self, other: Any) -> Tensor:
        return pointwise.pow(other, self)

    def copy_(self, other: Any, non_blocking: bool = False) -> Self:
        """Overwrite with ``other``, which broadcasts and is converted to this dtype."""
        source = gathering.fit_copied(other, self)
        return self._assign(source, given=source is other, anew=True)

    def fill_(self, value: Any) -> Self:
        """Overwrite every element with one value."""
        if isinstance(value, Handle) and value.ndim:
            raise RuntimeError(f"fill_ only supports 0-dimension value tensor but got tensor with {value.ndim} dimensions.")
        source = gathering.fit(value, self)
        return self._assign(source, repeats=True, given=source is value, anew=True)

    def zero_(self) -> Self:
        """Overwrite with zeros."""
        return self.fill_(0)

    # -- overwritten by draws
    uniform_, normal_, exponential_, geometric_ = draw.uniform_, draw.normal_, draw.exponential_, draw.geometric_
    cauchy_, log_normal_, random_, bernoulli_ = draw.cauchy_, draw.log_normal_, draw.random_, draw.bernoulli_

    def fill_diagonal_(self, fill_value: Any, wrap: bool = False) -> Self:
        """Overwrite the main diagonal; ``wrap``: it begins again below a row left out, in a matrix of more rows than columns."""
        if self.ndim < 2:
            raise RuntimeError("dimensions must larger than 1")
        if self.ndim > 2 and len(set(self.shape)) > 1:
            raise RuntimeError("all dimensions of input must be of equal length")
        if wrap and self.ndim == 2:
            rows, columns = self.shape
            at = create.arange(rows) % (columns + 1)
            return self.masked_fill_(at.unsqueeze(1) == create.arange(columns), fill_value)
        diagonal: Tensor = self
        while diagonal.ndim > 1:
            diagonal = diagonal.diagonal()
        diagonal.fill_(fill_value)
        return self

    # -- conversions

    def to(
        self,
        *args: Any,
        dtype: Any = None,
        device: Any = None,
        copy: bool = False,
        non_blocking: bool = False,
        memory_format: Any = None,
        other: Any = None,
    ) -> Tensor:
        """Convert the dtype, to that of ``other`` if given. A device is accepted and ignored: placement is the signals' matter."""
        flags = [a for a in args if isinstance(a, builtins.bool)]
        dtype = dtype_among("to", args if other is None else (*args, other)) or dtype
        check_memory_format(memory_format, self.ndim)
        out = promote.cast(self, dtype_of(dtype)) if dtype is not None else self
        copy = copy or flags[1:2] == [True]
        return out.clone() if copy and out is self else out

    @property
    def device(self) -> device:
        return _HERE

    is_cuda, is_sparse, is_quantized, is_meta, is_cpu = False, False, False, False, True
    layout = dense

    def to_device(self, device: Any, /, *, stream: Any = None) -> Tensor:
        """Give the tensor itself: placement is the signals' matter."""
        check_options("to_device", device)
        return self

    def get_device(self) -> builtins.int:
        """Give -1, as a CPU tensor does."""
        return -1

    def storage_offset(self) -> builtins.int:
        """Give where a view's first element stands in its storage, in elements."""
        return offset_of(self)

    def data_ptr(self) -> builtins.int:
        raise RuntimeError("a gt tensor has no address here: its values live with the workers")

    def is_signed(self) -> builtins.bool:
        """Say whether the dtype has negative numbers."""
        return self.dtype.is_signed

    is_inference, is_shared, is_pinned = map(_never, ("is_inference", "is_shared", "is_pinned"))

    def share_memory_(self) -> Tensor:
        """Give the tensor itself: its values live with the workers."""
        return self

    def is_nonzero(self) -> builtins.bool:
        """Say whether the only element is not zero. Flushes."""
        return numeric.is_nonzero(self)

    def is_same_size(self, other: Tensor) -> builtins.bool:
        """Say whether another tensor has this shape."""
        return self._type.shape == other._type.shape

    @property
    def retains_grad(self) -> builtins.bool:
        """Whether ``retain_grad`` was called on this tensor, which is no leaf."""
        return self._retains

    def type(self, dtype: Any = None, non_blocking: builtins.bool = False) -> Any:
        """Convert the dtype; without one, give torch's name of the tensor's type, as ``'torch.FloatTensor'``."""
        if dtype is None:
            return f"torch.{scalar_type(self._type.dtype)}Tensor"
        if isinstance(dtype, legacy.TensorType):
            return promote.cast(self, dtype.dtype)
        if dtype is Tensor:
            return promote.cast(self, promote.get_default_dtype())
        theirs = f"{dtype.__module__}.{dtype.__name__}" if isinstance(dtype, builtins.type) else dtype  # torch's classes
        named = next((d for d in DTYPES if theirs == f"torch.{scalar_type(d)}Tensor"), None)
        return promote.cast(self, named if named is not None else dtype_of(dtype))

    def type_as(self, other: Tensor) -> Tensor:
        return promote.cast(self, other.dtype)

    def astype(self, dtype: Any) -> Tensor:
        return promote.cast(self, dtype_of(dtype))

    def float(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, float32)

    def double(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, float64)

    def half(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, float16)

    def bfloat16(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, bfloat16)

    def long(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, int64)

    def int(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, int32)

    def short(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, int16)

    def char(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, int8)

    def byte(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, uint8)

    def bool(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, bool_)

    def cfloat(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, complex64)

    def cdouble(self, memory_format: Any = None) -> Tensor:
        return promote.cast(self, complex128)

    def cpu(self, memory_format: Any = None) -> Tensor:
        """Give the tensor itself: placement is the signals' matter."""
        return self

    def cuda(self, device: Any = None, non_blocking: builtins.bool = False, memory_format: Any = None) -> Tensor:
        """Give the tensor itself: placement is the signals' matter."""
        return self

    def pin_memory(self) -> Tensor:
        """Give the tensor itself."""
        return self

    # -- the rest of a tensor's habits

    @property
    def T(self) -> Tensor:  # noqa: N802 - torch's name
        if not self.ndim:
            warn_user("Tensor.T is deprecated on 0-D tensors. This function is the identity in these cases.")
        elif self.ndim != 2:
            warn_user(
                "The use of `x.T` on tensors of dimension other than 2 to reverse their shape is deprecated and it will throw an error in a "
                "future release. Consider `x.mT` to transpose batches of matrices or `x.permute(*gt.arange(x.ndim - 1, -1, -1))` to reverse "
                "the dimensions of a tensor."
            )
        return shape.permute(self, tuple(reversed(range(self.ndim)))) if self.ndim else self

    @property
    def mT(self) -> Tensor:  # noqa: N802 - torch's name
        if self.ndim == 1:
            raise RuntimeError(f"tensor.mT is only supported on matrices or batches of matrices. Got {self.ndim}-D tensor.")
        if not self.ndim:
            warn_user("Tensor.mT is deprecated on 0-D tensors. This function is the identity in these cases.")
        return shape.transpose(self, -2, -1) if self.ndim else self

    @property
    def H(self) -> Tensor:  # noqa: N802 - torch's name
        if self.ndim not in (0, 2):
            raise RuntimeError(
                f"tensor.H is only supported on matrices (2-D tensors). Got {self.ndim}-D tensor."
                + (" For batches of matrices, consider using tensor.mH" if self.ndim > 2 else "")
            )
        if not self.ndim:
            warn_user("Tensor.H is deprecated on 0-D tensors. Consider using x.conj().")
        return numeric.conj(shape.permute(self, (1, 0))) if self.ndim else numeric.conj(self)

    @property
    def mH(self) -> Tensor:  # noqa: N802 - torch's name
        return factorization.adjoint_of(self, "mH")

    @property
    def real(self) -> Tensor:
        return numeric.real(self)

    @real.setter
    def real(self, value: Any) -> None:
        numeric.real(self)[...] = value

    @property
    def imag(self) -> Tensor:
        return numeric.imag(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        numeric.imag(self)[...] = value

    def new(self, *args: Any, **options: Any) -> Tensor:
        """Make what torch's old constructor of this dtype makes: zeros of sizes, or a tensor of data."""
        return legacy.make(args, options, self.dtype)

    def apply_(self, callable: Callable[[Any], Any]) -> Self:
        """Overwrite each element with a Python function of it. Reads the values; slow. Errors: RuntimeError if it needs a gradient."""
        if self.requires_grad:
            raise RuntimeError("Can't call apply_() on Variable that requires grad. Use var.detach().apply_() instead.")
        values = [callable(v) for v in self.reshape(-1).tolist()]
        return self.copy_(create.tensor(values, dtype=self.dtype).reshape(self.shape))

    def map_(self, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Self:
        """Overwrite each element with a Python function of it and of another tensor's. Reads the values of both; slow."""
        if self.requires_grad or tensor.requires_grad:
            raise RuntimeError("Can't call map_() on Variable that requires grad. Use var.detach().map_() instead.")
        others = shape.broadcast_to(tensor, tuple(self.shape)).reshape(-1).tolist()
        values = [callable(a, b) for a, b in zip(self.reshape(-1).tolist(), others, strict=True)]
        return self.copy_(create.tensor(values, dtype=self.dtype).reshape(self.shape))

    def set_(self, *args: Any, **kwargs: Any) -> Tensor:
        """Refuse: memory is the workers'. ``x.data = y`` lets ``x`` have the values of ``y``."""
        raise NotImplementedError("set_ shares memory, which gt does not offer: write x.data = y to give x the values of y")

    def new_zeros(self, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
        """Make zeros of this dtype."""
        return create.zeros(*size, dtype=dtype or self.dtype, **options)

    def new_ones(self, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
        """Make ones of this dtype."""
        return create.ones(*size, dtype=dtype or self.dtype, **options)

    def new_empty(self, *size: Any, dtype: Any = None, **options: Any) -> Tensor:
        """Make a tensor of this dtype whose values are not promised."""
        return create.zeros(*size, dtype=dtype or self.dtype, **options)

    def new_empty_strided(self, size: Any, stride: Any, dtype: Any = None, **options: Any) -> Tensor:
        """Make a tensor of this dtype whose values are not promised."""
        return create.empty_strided(size, stride, dtype=dtype or self.dtype, **options)

    def new_full(self, size: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Tensor:
        """Make a tensor of this dtype filled with one value."""
        return create.full(size, fill_value, dtype=dtype or self.dtype, **options)

    def new_tensor(self, data: Any, dtype: Any = None, **options: Any) -> Tensor:
        """Make a tensor of this dtype from data."""
        if isinstance(data, Handle):
            warn_user(create.COPIED.format("tensor.new_tensor"))
            return create.copied(data, dtype or self.dtype).requires_grad_(options.get("requires_grad", False))
        return create.tensor(data, dtype=dtype or self.dtype, **options)

    def __iter__(self) -> Iterator[Tensor]:
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return iter(shape.unbind(self))

    def __reversed__(self) -> Tensor:
        """Give the rows in the other order; a tensor of no dims itself."""
        return shape.flip(self, 0) if self.ndim else self

    def __contains__(self, value: object) -> Any:
        if not isinstance(value, Handle) and not promote.is_number(value):
            raise RuntimeError(f"Tensor.__contains__ only supports Tensor or scalar, but you passed in a {type(value)}.")
        return bool(reduce.any(pointwise.eq(self, value)))

    def __getattr__(self, name: str) -> Any:
        """Refuse an unknown name, with the nearest known one or what to use instead."""
        if name == "id":  # of gt before it was rewritten
            warn_user("x.id is id(x) now; x._version counts changes in place")
            return (self if self._root is None else self._root)._version << 64 | id(self)
        hint = f": {METHODS[name]}" if name in METHODS else did_you_mean(name, dir(type(self)))
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")

    def __dlpack__(
        self, *, stream: Any = None, max_version: tuple[builtins.int, builtins.int] | None = None, dl_device: Any = None,
        copy: builtins.bool | None = None,
    ) -> Any:  # fmt: skip
        """Hand the values, copied to this process, to another library. The copy is its own, whatever ``copy`` says."""
        if self._rg:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        if self.dtype is bfloat16:  # NumPy has no such arrays; whoever reads one has torch
            torch = importlib.import_module("torch")
            return torch.from_numpy(self.detach().float().numpy().copy()).bfloat16().__dlpack__()
        return self.numpy().__dlpack__(max_version=max_version, dl_device=dl_device)

    def __dlpack_device__(self) -> tuple[builtins.int, builtins.int]:
        return (1, 0)  # the CPU's memory

    def __array_namespace__(self, /, *, api_version: str | None = None) -> ModuleType:
        """Give ``gt.array_api``. Errors: ValueError for a version of the standard other than its own or an earlier one."""
        namespace = importlib.import_module("gt.array_api")
        if api_version is not None and api_version not in namespace.VERSIONS:
            raise ValueError(f"array API version {api_version!r} is not offered: use one of {', '.join(namespace.VERSIONS)}")
        return namespace

    def __repr__(self) -> str:
        return format_tensor(self, "tensor(" if type(self).__name__ in PLAIN else f"{type(self).__name__}(")

    def _repr_html_(self) -> str:
        return html(self)

    def __format__(self, spec: str) -> str:
        if not self.ndim:
            return format(self.item(), spec)
        return object.__format__(self, spec) if spec else repr(self)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give ". Did you mean: 'x'?" for a known name that is nearly this one, or has its letters in another order."""
    if name.startswith("_"):
        return ""
    words = [k for k in known if not k.startswith("_")]
    near = nearest_word(name, words, 0.8) or next((k for k in words if sorted(k) == sorted(name)), "")
    return f". Did you mean: '{near}'?" if near else ""


for _name in {**CPU, **CUDA}:
    if _name in vars(Tensor):
        setattr(Tensor, _name, autocasting(vars(Tensor)[_name], _name))

guard_methods(Tensor)
install_tensor(Tensor)

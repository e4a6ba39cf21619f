"""The in-place forms of tensors' methods: compute, check shape and dtype as torch, assign.

Owns: ``in_place``, and ``InPlace`` with one form for each function that has one. Next: ``tensor`` (which inherits them), ``handle``
(``_assign``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gt.arguments import guarded, takes_other_names, takes_tensors
from gt.functions import gathering, index, linalg, norms, numeric, pointwise, promote, reduce, special
from gt.handle import Handle, here
from gt.ir.types import ShapeError, scalar_type
from gt.naming import named
from gt.views import check_separate

if TYPE_CHECKING:
    from gt.tensor import Tensor


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give the in-place form of a function: compute, check shape and dtype as torch, assign."""

    name = f"{function.__name__}_"
    if takes_tensors(function) or takes_other_names(function):
        function = guarded(function, function.__module__, name, 1)

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self._base is not None:
            check_separate(self)
            self._leave_hooks()
        start = here()
        result = function(self, *args, **kwargs)
        if result._type is not self._type:
            result = _as_written(self, result)
        return self._assign(result, start)

    return named(method, name, f"Do ``{name[:-1]}`` in place.")


def _forms(*functions: Callable[..., Any]) -> list[Callable[..., Any]]:
    return [in_place(f) for f in functions]


def _as_written(target: Tensor, result: Tensor) -> Tensor:
    if result._type.shape != target._type.shape:
        raise ShapeError(
            f"output with shape {list(target._type.shape)} doesn't match the broadcast shape {list(result._type.shape)}"
        )
    a, b = result._type.dtype, target._type.dtype
    rank = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    if rank[a.kind] > rank[b.kind]:
        raise RuntimeError(f"result type {scalar_type(a)} can't be cast to the desired output type {scalar_type(b)}")
    return promote.cast(result, b)


def _real_abs(input: Tensor) -> Tensor:
    if input.dtype.kind == "c":
        raise RuntimeError("In-place abs is not supported for complex tensors.")
    return pointwise.abs(input)


_real_abs.__name__ = "abs"


def _refused(name: str) -> Callable[..., Any]:
    """Give a method that says that shapes do not change in place."""
    plain = "reshape or a new tensor" if name.startswith("resize") else name[:-1]

    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        raise NotImplementedError(f"{name} changes a shape in place, which gt does not offer: use {plain}")

    return named(method, name, f"Refuse: use {plain}.")


class InPlace(Handle):
    """A value with the in-place forms of its functions."""

    add_, sub_, mul_, div_, pow_ = _forms(pointwise.add, pointwise.sub, pointwise.mul, pointwise.div, pointwise.pow)
    remainder_, floor_divide_, clamp_ = _forms(pointwise.remainder, pointwise.floor_divide, pointwise.clamp)
    clamp_min_, clamp_max_, exp_, log_ = _forms(pointwise.clamp_min, pointwise.clamp_max, pointwise.exp, pointwise.log)
    sqrt_, rsqrt_, neg_, abs_, relu_ = _forms(pointwise.sqrt, pointwise.rsqrt, pointwise.neg, _real_abs, pointwise.relu)
    sigmoid_, tanh_, square_, reciprocal_ = _forms(pointwise.sigmoid, pointwise.tanh, pointwise.square, pointwise.reciprocal)
    floor_, ceil_, round_, trunc_ = _forms(pointwise.floor, pointwise.ceil, pointwise.round, pointwise.trunc)
    bitwise_and_, bitwise_or_, bitwise_xor_ = _forms(pointwise.bitwise_and, pointwise.bitwise_or, pointwise.bitwise_xor)
    sin_, cos_, tan_, asin_, acos_ = _forms(pointwise.sin, pointwise.cos, pointwise.tan, pointwise.asin, pointwise.acos)
    atan_, sinh_, cosh_, asinh_, acosh_ = _forms(pointwise.atan, pointwise.sinh, pointwise.cosh, pointwise.asinh, pointwise.acosh)
    atanh_, expm1_, log1p_, log2_, log10_ = _forms(
        pointwise.atanh, pointwise.expm1, pointwise.log1p, pointwise.log2, pointwise.log10
    )
    erf_, erfc_, sign_, eq_, ne_ = _forms(pointwise.erf, pointwise.erfc, pointwise.sign, pointwise.eq, pointwise.ne)
    lt_, le_, gt_, ge_, fmod_ = _forms(pointwise.lt, pointwise.le, pointwise.gt, pointwise.ge, pointwise.fmod)
    atan2_, logical_and_, logical_or_ = _forms(pointwise.atan2, pointwise.logical_and, pointwise.logical_or)
    logical_xor_, logical_not_, bitwise_not_ = _forms(pointwise.logical_xor, pointwise.logical_not, pointwise.bitwise_not)
    arccos_, arccosh_, arcsin_, arcsinh_ = _forms(pointwise.arccos, pointwise.arccosh, pointwise.arcsin, pointwise.arcsinh)
    arctan_, arctanh_, arctan2_, greater_ = _forms(pointwise.arctan, pointwise.arctanh, pointwise.arctan2, pointwise.greater)
    greater_equal_, less_, less_equal_ = _forms(pointwise.greater_equal, pointwise.less, pointwise.less_equal)
    not_equal_, fix_, negative_, absolute_ = _forms(pointwise.not_equal, pointwise.fix, pointwise.negative, _real_abs)
    subtract_, multiply_, divide_, true_divide_ = _forms(pointwise.sub, pointwise.mul, pointwise.div, pointwise.div)
    clip_ = in_place(pointwise.clip)
    masked_fill_, tril_, triu_, index_put_ = _forms(index.masked_fill, index.tril, index.triu, index.index_put)
    masked_scatter_ = in_place(index.masked_scatter)
    scatter_, scatter_add_, scatter_reduce_ = _forms(gathering.scatter, gathering.scatter_add, gathering.scatter_reduce)
    index_add_, index_copy_, index_fill_ = _forms(gathering.index_add, gathering.index_copy, gathering.index_fill)
    index_reduce_, put_ = _forms(gathering.index_reduce, gathering.put)
    hypot_, copysign_, nextafter_, gcd_, lcm_ = _forms(numeric.hypot, numeric.copysign, numeric.nextafter, numeric.gcd, numeric.lcm)
    heaviside_, float_power_, ldexp_ = _forms(numeric.heaviside, numeric.float_power, numeric.ldexp)
    bitwise_left_shift_, bitwise_right_shift_, lerp_ = _forms(numeric.bitwise_left_shift, numeric.bitwise_right_shift, numeric.lerp)
    addcmul_, addcdiv_, frac_, deg2rad_ = _forms(numeric.addcmul, numeric.addcdiv, numeric.frac, numeric.deg2rad)
    rad2deg_, sgn_, nan_to_num_, conj_physical_ = _forms(numeric.rad2deg, numeric.sgn, numeric.nan_to_num, numeric.conj_physical)
    exp2_, sinc_, erfinv_, lgamma_, digamma_ = _forms(special.exp2, special.sinc, special.erfinv, special.lgamma, special.digamma)
    i0_, logit_, xlogy_, mvlgamma_, igamma_ = _forms(special.i0, special.logit, special.xlogy, special.mvlgamma, special.igamma)
    igammac_ = in_place(special.igammac)
    addmm_, addmv_, addr_, baddbmm_, addbmm_ = _forms(linalg.addmm, linalg.addmv, linalg.addr, linalg.baddbmm, linalg.addbmm)
    cumsum_, cumprod_ = _forms(reduce.cumsum, reduce.cumprod)
    renorm_ = in_place(norms.renorm)
    __iadd__, __isub__, __imul__, __itruediv__ = add_, sub_, mul_, div_
    __ipow__, __imod__, __ifloordiv__ = pow_, remainder_, floor_divide_
    __iand__, __ior__, __ixor__ = bitwise_and_, bitwise_or_, bitwise_xor_
    __ilshift__, __irshift__ = bitwise_left_shift_, bitwise_right_shift_

    squeeze_, unsqueeze_, t_, transpose_ = map(_refused, ("squeeze_", "unsqueeze_", "t_", "transpose_"))
    swapaxes_, swapdims_, as_strided_ = map(_refused, ("swapaxes_", "swapdims_", "as_strided_"))
    resize_, resize_as_ = map(_refused, ("resize_", "resize_as_"))


__all__ = ["InPlace", "in_place"]

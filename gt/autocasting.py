"""What mixed precision makes of each function: torch's lists of ops, which differ between the CPU and CUDA.

Owns: the lists, by public names, and the wrapper that follows them. A function on a list gets its operands cast and runs with mixed
precision off, so what it is made of does not matter; all other functions run as they are, and in them products of matrices take the
low precision (``OpDef.autocast``). Next: ``amp`` (the context), ``arguments`` (which wraps public functions).

Source: torch's "Autocast Op Reference", and ``ATen/autocast_mode.h`` and ``.cpp`` of torch 2.13.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import DType, bfloat16, float16, float32, float64, promote_types
from gt.recording import install_autocast, native, record
from gt.thread_state import ThreadState
from gt.trace import state

CAST = OPS["cast"]
Policy = Literal["low", "float32", "widest", "same"]
LOW = (float16, bfloat16, float32)


def _policies(**names: str) -> dict[str, Policy]:
    return {name: policy for policy, text in names.items() for name in text.split()}  # type: ignore[misc]


# Products of matrices and convolutions are low by their op, so only functions that add something to one are named as low.
# "same": not on torch's list, though gt makes it of a product of matrices.
CPU = _policies(
    low="prelu addmm addbmm baddbmm linalg.vecdot scaled_dot_product_attention",
    same="mv addmv addr dot vdot bilinear interpolate upsample upsample_bilinear adaptive_avg_pool1d adaptive_avg_pool2d lu_unpack "
    "full_contraction",
    float32="avg_pool3d adaptive_avg_pool3d adaptive_max_pool3d max_pool3d binary_cross_entropy_with_logits cdist cholesky "
    "cholesky_inverse cholesky_solve cosine_embedding_loss cross_entropy hinge_embedding_loss huber_loss inverse kl_div l1_loss "
    "lu_solve margin_ranking_loss max_unpool2d max_unpool3d mse_loss multi_margin_loss multilabel_margin_loss nanquantile nll_loss ormqr "
    "pinverse poisson_nll_loss polar prod qr quantile smooth_l1_loss soft_margin_loss stft svd trace triangular_solve "
    "triplet_margin_loss lu max_unpool1d view_as_complex reflection_pad replication_pad linalg.cholesky linalg.cholesky_ex linalg.cond linalg.eig "
    "linalg.eigh linalg.eigvals linalg.eigvalsh linalg.householder_product linalg.inv linalg.inv_ex linalg.lstsq linalg.lu_solve "
    "linalg.matrix_rank linalg.qr linalg.solve linalg.svd linalg.svdvals linalg.tensorinv linalg.tensorsolve fft.fft "
    "fft.fft2 fft.fftn fft.hfft fft.ifft fft.ifft2 fft.ifftn fft.ihfft fft.irfft fft.irfft2 fft.irfftn fft.rfft fft.rfft2 fft.rfftn",
    widest="cat concat concatenate stack index_copy",
)
CUDA = _policies(
    low="prelu addmm addmv addr addbmm baddbmm linalg.vecdot scaled_dot_product_attention",
    same="adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d cholesky_inverse cholesky_solve lu_unpack lu_solve ormqr trace pinverse "
    "linalg.lstsq linalg.lu_solve linalg.pinv linalg.householder_product",
    float32="acos arccos asin arcsin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ "
    "__rtruediv__ softplus layer_norm rms_norm group_norm norm linalg.norm linalg.vector_norm linalg.matrix_norm cosine_similarity "
    "normalize poisson_nll_loss cosine_embedding_loss nll_loss cross_entropy gaussian_nll_loss hinge_embedding_loss kl_div l1_loss "
    "smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss multilabel_soft_margin_loss "
    "triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp interpolate upsample "
    "upsample_nearest upsample_bilinear prod softmax log_softmax softmin cumprod cumsum sum pairwise_distance local_response_norm",
    widest="addcdiv addcmul atan2 arctan2 bilinear cross linalg.cross dot vdot index_put tensordot inner scatter_add",
)
SAFE_ON_CUDA = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Many models use a sigmoid layer right before "
    "the binary cross entropy layer. In this case, combine the two layers using binary_cross_entropy_with_logits or BCEWithLogitsLoss: "
    "they are safe to autocast."
)


class _Lists(ThreadState):
    """The lists of the mixed precision that this thread is in, and the low precision of each device type."""

    policies: dict[str, Policy] = CUDA

    def begin(self) -> None:
        self.dtypes: dict[str, DType] = {"cuda": float16}


lists = _Lists()


CAST_TO = {dtype: (("dtype", dtype),) for dtype in LOW}


def _tensors(value: Any) -> tuple[Any, ...]:
    """Give the tensors of an argument."""
    if value.__class__ in (list, tuple):
        return tuple([v for v in value if isinstance(v, Handle)])
    return (value,) if isinstance(value, Handle) else ()


def _cast(value: Any, dtype: DType) -> Any:
    """Cast a tensor, or those in a list or tuple, of a dtype that mixed precision takes."""
    if isinstance(value, Handle):
        own = value._type.dtype
        return value if own is dtype or own not in LOW else record(CAST, (value,), CAST_TO[dtype])
    return value.__class__([_cast(v, dtype) for v in value]) if _tensors(value) else value


def _low(*tensors: Any) -> tuple[Any, ...]:
    """Cast the operands of a matrix product while autocast is on; for functions that check dtypes before recording."""
    want = state.modes.autocast
    if want is None:
        return tensors
    return tuple([
        t if t is None or (own := t._type.dtype) is want or own not in LOW else record(CAST, (t,), CAST_TO[want]) for t in tensors
    ])  # fmt: skip


def _cast_all(args: tuple[Any, ...], dtype: DType) -> tuple[Any, ...]:
    """Cast the tensors among the arguments of a function."""
    return tuple([_cast(a, dtype) for a in args])


_chosen: tuple[Callable[..., tuple[Any, ...]], ...] = (_low, _cast_all)
if native is not None:
    native.set_casts(CAST, CAST_TO, _low, _cast)
    _chosen = native.low, native.cast_all
low, cast_all = _chosen
install_autocast(low)


def _widest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> DType | None:
    found = [t._type.dtype for value in (*args, *kwargs.values()) for t in _tensors(value)]
    floats = [d for d in found if d in LOW]
    return None if float64 in found or not floats else functools.reduce(promote_types, floats)


def _run(policy: Policy, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    modes = state.modes
    before = modes.autocast
    want = before if policy == "low" else float32 if policy == "float32" else _widest(args, kwargs) if policy == "widest" else None
    if want is not None and kwargs.get("dtype") is None:  # who names a dtype gets it
        args = cast_all(args, want)
        kwargs = {k: _cast(v, want) for k, v in kwargs.items()} if kwargs else kwargs
    modes.autocast = None
    try:
        return function(*args, **kwargs)
    finally:
        modes.autocast = before


def autocasting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Give a function that follows the lists under one of their names; the function itself if it is on neither."""
    if name == "binary_cross_entropy":
        return _refusing(function, name)
    if name not in CPU and name not in CUDA:
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if state.modes.autocast is None:
            return function(*args, **kwargs)
        policy = lists.policies.get(name)
        return function(*args, **kwargs) if policy is None else _run(policy, function, args, kwargs)

    return call


def _refusing(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Give ``binary_cross_entropy``, which torch refuses in CUDA's mixed precision."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if state.modes.autocast is None:
            return function(*args, **kwargs)
        if lists.policies is CUDA:
            raise RuntimeError(SAFE_ON_CUDA)
        return _run("float32", function, args, kwargs)

    return call

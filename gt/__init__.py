"""gt: eager-looking tensors that run as compiled, distributed programs.

Ops only record; reading a value runs everything pending as one graph, placed on workers as signals say. The names follow
torch. See README.md, and docs/architecture.md for how it is built.
"""

from __future__ import annotations

from importlib import import_module
from math import e, inf, nan, pi
from typing import TYPE_CHECKING

from gt import tensor as _tensor  # noqa: I001 - installs the tensor class
from gt import (
    accelerator, amp, autograd, backends, compiler, cuda, debug, fft, func, linalg, masked, nn, optim, random, return_types, scripting, signal,
    special, testing, types, utils,
)  # fmt: skip
from gt.absent import ABSENT
from gt.amp import autocast, get_autocast_dtype, is_autocast_enabled, set_autocast_dtype, set_autocast_enabled
from gt.arguments import guard
from gt.autograd import (
    enable_grad, inference_mode, is_anomaly_enabled, is_grad_enabled, is_inference_mode_enabled, no_grad, set_grad_enabled,
)  # fmt: skip
from gt.budget import comm_budget, memory_limit
from gt.compiler import compile
from gt.config import (
    Config, ConfigError, SignalWarning, UnknownSignal, auto_shard, get_config, get_signal_config, load_config, register_config,
    register_mesh, register_params,
)  # fmt: skip
from gt.devices import (
    channels_last, channels_last_3d, contiguous_format, device, get_default_device, layout, memory_format, preserve_format,
    set_default_device, strided,
)  # fmt: skip
from gt.explaining import explain
from gt.telling import stats
from gt.finfo import finfo, iinfo
from gt.replay import JitError, JitMismatch, jit
from gt.func import vmap
from gt.grad_scaler import GradScaler
from gt.functions.arrange import (
    atleast_1d, atleast_2d, atleast_3d, block_diag, broadcast_shapes, cartesian_prod, column_stack, combinations, dsplit, dstack,
    fliplr, flipud, hsplit, hstack, kron, meshgrid, repeat_interleave, rot90, row_stack, split_with_sizes, tensor_split,
    tril_indices, triu_indices, unravel_index, unsafe_chunk, unsafe_split, vsplit, vstack,
)  # fmt: skip
from gt.functions.counting import (
    bincount, bucketize, histc, histogram, histogramdd, isin, searchsorted, segment_reduce, unique, unique_consecutive,
)  # fmt: skip
from gt.functions.create import (
    arange, as_tensor, asarray, empty, empty_like, empty_permuted, empty_strided, eye, fill, from_dlpack, from_numpy, frombuffer, full,
    full_like, linspace, logspace, ones, ones_like, scalar_tensor, tensor, zeros, zeros_like,
)  # fmt: skip
from gt.functions.create import inclusive_range as range
from gt.functions.draw import (
    bernoulli, multinomial, normal, rand, rand_like, randint, randint_like, randn, randn_like, randperm,
)  # fmt: skip
from gt.functions.factorization import adjoint, lu_unpack, ormqr
from gt.functions.factorization import householder_product as orgqr
from gt.functions.factorization import old_cholesky as cholesky
from gt.functions.factorization import old_lu as lu
from gt.functions.factorization import qr_ as qr
from gt.functions.factorization import svd_ as svd
from gt.functions.gathering import (
    gather, index_add, index_copy, index_fill, index_reduce, index_select, put, scatter, scatter_add, scatter_reduce, take,
    take_along_dim,
)  # fmt: skip
from gt.functions.index import (
    argwhere, index_put, masked_fill, masked_scatter, masked_select, nonzero, nonzero_static, tril, triu,
)  # fmt: skip
from gt.functions.linalg import (
    addbmm, addmm, addmv, addr, baddbmm, bmm, dot, einsum, ger, inner, matmul, mm, mv, outer, tensordot, vdot,
)  # fmt: skip
from gt.functions.matrices import chain_matmul, det, logdet, matrix_exp, matrix_power
from gt.functions.matrices import old_cross as cross
from gt.functions.matrices import old_slogdet as slogdet
from gt.functions.matrices import old_vander as vander
from gt.functions.norms import cdist, dist, renorm
from gt.functions.norms import old_norm as norm
from gt.functions.numeric import (
    addcdiv, addcmul, allclose, angle, bitwise_left_shift, bitwise_right_shift, broadcast_tensors, complex, conj, conj_physical,
    copysign, deg2rad, equal, float_power, fmax, fmin, frac, frexp, gcd, heaviside, hypot, imag, is_complex, is_floating_point,
    is_nonzero, is_tensor, isclose, isneginf, isposinf, isreal, lcm, ldexp, lerp, logaddexp, logaddexp2, nan_to_num, nextafter,
    numel, polar, positive, rad2deg, real, resolve_conj, resolve_neg, rsub, sgn, signbit, view_as_complex, view_as_real,
)  # fmt: skip
from gt.functions.pointwise import (
    abs, absolute, acos, acosh, add, arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, asin, asinh, atan, atan2, atanh,
    bitwise_and, bitwise_not, bitwise_or, bitwise_xor, ceil, clamp, clamp_max, clamp_min, clip, cos, cosh, div, eq, erf, erfc, exp,
    expm1, fix, floor, floor_divide, fmod, ge, greater, greater_equal, gt, isfinite, isinf, isnan, le, less, less_equal, log, log10,
    log1p, log2, logical_and, logical_not, logical_or, logical_xor, lt, maximum, minimum, mul, ne, neg, negative, not_equal, pow,
    reciprocal, relu, remainder, round, rsqrt, sigmoid, sign, sin, sinh, sqrt, square, sub, tan, tanh, trunc, where,
)  # fmt: skip
from gt.functions.promote import can_cast, get_default_dtype, result_type, set_default_dtype
from gt.functions.reduce import (
    all, amax, amin, any, argmax, argmin, argsort, count_nonzero, cumprod, cumsum, log_softmax, logsumexp, max, mean, min, prod,
    softmax, sort, std, sum, topk, var,
)  # fmt: skip
from gt.functions.running import cummax, cummin, cumulative_trapezoid, diff, gradient, logcumsumexp, trapezoid, trapz
from gt.functions.shape import (
    broadcast_to, cat, chunk, clone, concat, concatenate, flatten, flip, moveaxis, movedim, narrow, permute, ravel, reshape, roll,
    select, split, squeeze, stack, swapaxes, swapdims, t, tile, transpose, unbind, unflatten, unsqueeze,
)  # fmt: skip
from gt.functions.solving import cholesky_inverse, cholesky_solve, triangular_solve
from gt.functions.solving import inv as inverse
from gt.functions.solving import pinv as pinverse
from gt.functions.special import digamma, erfinv, exp2, i0, igamma, igammac, lgamma, logit, mvlgamma, polygamma, sinc, xlogy
from gt.functions.spectrogram import istft, stft
from gt.functions.statistics import (
    aminmax, corrcoef, cov, kthvalue, median, mode, msort, nanmean, nanmedian, nanquantile, nansum, quantile, std_mean, var_mean,
)  # fmt: skip
from gt.functions.strided import (
    alias, alias_copy, as_strided, as_strided_copy, as_strided_scatter, diag, diag_embed, diagflat, diagonal, diagonal_copy,
    diagonal_scatter, expand_copy, narrow_copy, permute_copy, select_scatter, slice_scatter, split_with_sizes_copy, squeeze_copy,
    t_copy, trace, transpose_copy, unbind_copy, unfold_copy, unsqueeze_copy, view_copy,
)  # fmt: skip
from gt.functions.windows import bartlett_window, blackman_window, hamming_window, hann_window, kaiser_window
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import (
    DType, bfloat16, complex64, complex128, float16, float32, float64, int8, int16, int32, int64, promote_types, uint8,
)  # fmt: skip
from gt.ir.types import bool_ as bool
from gt.legacy import (
    BFloat16Tensor, BoolTensor, ByteTensor, CharTensor, DoubleTensor, FloatTensor, HalfTensor, IntTensor, LongTensor, ShortTensor,
    set_default_tensor_type, typename,
)  # fmt: skip
from gt.nn.functional import (
    adaptive_avg_pool1d, alpha_dropout, avg_pool1d, bilinear, celu,
    channel_shuffle, conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d, cosine_similarity, dropout,
    feature_alpha_dropout, hardshrink, max_pool1d, max_pool2d, max_pool3d, pairwise_distance, pdist,
    pixel_shuffle, pixel_unshuffle, prelu, rms_norm, rrelu, selu, threshold,
)  # fmt: skip
from gt.nn.functional.padding import constant_pad_nd
from gt.nn.native import (
    adaptive_max_pool1d, batch_norm, binary_cross_entropy_with_logits, embedding, group_norm, gru_cell, instance_norm, kl_div, layer_norm,
    lstm_cell, rnn_relu_cell, rnn_tanh_cell,
)  # fmt: skip
from gt.pipelining import pipeline
from gt.precision import get_float32_matmul_precision, set_float32_matmul_precision
from gt.printing import printoptions, set_printoptions
from gt.random import Generator, get_rng_state, initial_seed, manual_seed, seed, set_rng_state
from gt.read_guard import ReadRefused, flush_guard
from gt.rebalancing import rebalance
from gt.recovery import recover, recoveries
from gt.runtime.errors import DispatcherLost, GtError, NoWorkers, OutOfMemoryError, QuotaExceeded, RunError, WorkerLost
from gt.scripting import _assert as _assert
from gt.serialization import load, save
from gt.session import connect, disconnect, gpu_workers, num_workers
from gt.shape import Size
from gt.switches import (
    are_deterministic_algorithms_enabled, get_num_interop_threads, get_num_threads, is_deterministic_algorithms_warn_only_enabled,
    set_flush_denormal, set_num_interop_threads, set_num_threads, use_deterministic_algorithms,
)  # fmt: skip
from gt.tensor import Tensor, did_you_mean
from gt.utils.dlpack import to_dlpack
from gt.version import __version__

if TYPE_CHECKING:
    from gt import array_api, checkpoint, client, debug, distributions, signals

LOADED_WHEN_NAMED = ("array_api", "checkpoint", "client", "debug", "distributions", "signals")
dtype = DType
float, double, half, long, int, short = float32, float64, float16, int64, int32, int16
cfloat, cdouble = complex64, complex128
newaxis = None
default_generator = random.default_generator()  # of the thread that imports gt; each other thread has its own
mps = xpu = accelerator
subtract, multiply, divide, true_divide = sub, mul, div, div
zero_, lu_solve, detach, is_same_size = Tensor.zero_, Tensor.lu_solve, Tensor.detach, Tensor.is_same_size
is_conj, is_neg, is_inference, is_signed = Tensor.is_conj, Tensor.is_neg, Tensor.is_inference, Tensor.is_signed

guard(globals())
scripting.install(jit)


def __getattr__(name: str) -> object:
    if name in LOADED_WHEN_NAMED:
        return import_module(f"gt.{name}")
    if name in ABSENT:
        raise AttributeError(f"gt.{name} is not offered: {ABSENT[name]}")
    raise AttributeError(f"module 'gt' has no attribute '{name}'{did_you_mean(name, globals())}")

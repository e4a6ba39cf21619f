"""gt: eager-looking tensors that run as compiled, distributed programs.

Ops only record; reading a value runs everything pending as one graph, placed on workers as signals say. The names follow
torch. See README.md, and docs/architecture.md for how it is built.
"""

from __future__ import annotations

from gt import tensor as _tensor  # noqa: I001 - installs the tensor class
from gt import amp, autograd, nn, optim, signal, utils
from gt.amp import autocast, is_autocast_enabled
from gt.autograd import enable_grad, inference_mode, is_grad_enabled, no_grad, set_grad_enabled
from gt.config import (
    ConfigError, SignalWarning, UnknownSignal, get_config, get_signal_config, load_config, register_config,
)  # fmt: skip
from gt.functions.create import (
    arange, as_tensor, asarray, bernoulli, empty, empty_like, eye, from_numpy, full, full_like, linspace, normal, ones, ones_like,
    rand, rand_like, randint, randn, randn_like, randperm, tensor, zeros, zeros_like,
)  # fmt: skip
from gt.functions.index import (
    gather, index_select, masked_fill, masked_select, nonzero, scatter, scatter_add, take_along_dim, tril, triu,
)  # fmt: skip
from gt.functions.linalg import addmm, bmm, dot, matmul, mm, outer
from gt.functions.pointwise import (
    abs, absolute, acos, acosh, add, asin, asinh, atan, atan2, atanh, bitwise_and, bitwise_not, bitwise_or, bitwise_xor, ceil,
    clamp, clip, cos, cosh, div, eq, erf, erfc, exp, expm1, floor, floor_divide, fmod, ge, greater, gt, isfinite, isinf, isnan, le,
    less, log, log1p, log2, log10, logical_and, logical_not, logical_or, logical_xor, lt, maximum, minimum, mul, ne, neg, negative,
    pow, reciprocal, relu, remainder, round, rsqrt, sigmoid, sign, sin, sinh, sqrt, square, sub, tan, tanh, trunc, where,
)  # fmt: skip
from gt.functions.reduce import (
    all, amax, amin, any, argmax, argmin, argsort, count_nonzero, cumprod, cumsum, log_softmax, logsumexp, max, mean, min, prod,
    softmax, sort, std, sum, topk, var,
)  # fmt: skip
from gt.functions.shape import (
    broadcast_to, cat, chunk, clone, concat, flatten, flip, movedim, narrow, permute, ravel, repeat_interleave, reshape, roll,
    select, split, squeeze, stack, swapaxes, t, tile, transpose, unbind, unsqueeze,
)  # fmt: skip
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import (
    DType, bfloat16, complex64, float16, float32, float64, int8, int16, int32, int64, promote_types, uint8,
)  # fmt: skip
from gt.ir.types import bool_ as bool
from gt.printing import set_printoptions
from gt.random import Generator, get_rng_state, initial_seed, manual_seed, set_rng_state
from gt.runtime.errors import DispatcherLost, GtError, NoWorkers, RunError, WorkerLost
from gt.serialization import load, save
from gt.session import connect, disconnect, gpu_workers, num_workers
from gt.shape import Size
from gt.tensor import Tensor

__version__ = "0.1.0"
dtype = DType
float, double, half, long, int, short = float32, float64, float16, int64, int32, int16
subtract, multiply, divide, true_divide = sub, mul, div, div

"""Why entries and samples of torch's operator database are left out: the only place for reasons.

Owns: names that are looked up as methods, names whose values are random, and the tables of reasons. Next: ``opinfo``.
"""

from __future__ import annotations

DTYPE_SAMPLES = 6  # samples of int64, bool and complex64 for each entry; float32 runs in full

# names that gt uses for a dtype, and operators: the method is meant
METHODS = frozenset(
    {"float", "double", "half", "int", "long", "short", "bool", "byte", "char", "bfloat16", "cfloat", "cdouble", "chalf", "__getitem__",
     "__radd__", "__rand__", "__rdiv__", "__rmatmul__", "__rmod__", "__rmul__", "__ror__", "__rpow__", "__rsub__", "__rxor__"}
)  # fmt: skip

# only shape and dtype are compared: gt's random bits are a function of seed, stream and index, not torch's
RANDOM = frozenset(
    {"rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial", "normal", "uniform", "cauchy",
     "exponential", "geometric", "log_normal", "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d",
     "nn.functional.alpha_dropout", "nn.functional.feature_alpha_dropout", "nn.functional.rrelu", "empty", "empty_like", "new_empty",
     "empty_permuted", "empty_strided", "new_empty_strided"}
)  # fmt: skip

# results are defined up to a sign, phase or order: compared after the entry's own output function
GRADIENT_ONLY = frozenset({"linalg.svd", "svd", "linalg.eigh", "linalg.eig"})

SKIP_OPS: dict[str, str] = {}

# (entry or "*", pattern over "[index dtype] what differs", reason)
SKIP_SAMPLES: tuple[tuple[str, str, str], ...] = ()

# (entry, pattern over "type: text", reason): error inputs that gt computes
SKIP_ERRORS: tuple[tuple[str, str, str], ...] = ()

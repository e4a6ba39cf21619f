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

# entries that draw fewer samples when gradients are wanted: all are run without, too
FEWER_WITH_GRADIENT = frozenset({"nn.functional.multi_head_attention_forward"})

SKIP_OPS: dict[str, str] = {
    "resize_": "changes a shape in place",
    "resize_as_": "changes a shape in place",
    "jiterator_unary": "runs CUDA source text",
    "jiterator_binary": "runs CUDA source text",
    "jiterator_binary_return_by_ref": "runs CUDA source text",
    "jiterator_2inputs_2outputs": "runs CUDA source text",
    "jiterator_4inputs_with_extra_args": "runs CUDA source text",
    "to_sparse": "sparse layouts",
    "sparse.mm.reduce": "sparse layouts",
    "sparse.sampled_addmm": "sparse layouts",
    "chalf": "complex32",
    "torch._scaled_mm": "float8",
    "torch._scaled_mm_v2": "float8",
    "torch.ops.aten._safe_softmax.default": "an internal of torch",
    "torch.ops.aten._flash_attention_forward": "an internal of torch",
    "torch.ops.aten._efficient_attention_forward": "an internal of torch",
    "_batch_norm_with_update": "an internal of torch",
    "_chunk_cat": "an internal of torch",
    "_native_batch_norm_legit": "an internal of torch",
    "_segment_reduce": "an internal of torch",
    "_softmax_backward_data": "an internal of torch",
    "_unsafe_masked_index": "an internal of torch",
    "_unsafe_masked_index_put_accumulate": "an internal of torch",
    "_upsample_bilinear2d_aa": "an internal of torch",
    "max_pool2d_with_indices_backward": "an internal of torch",
    "native_batch_norm": "an internal of torch",
    "native_dropout_backward": "an internal of torch",
    "native_group_norm": "an internal of torch",
    "native_layer_norm": "an internal of torch",
    "hash_tensor": "a hash of the bits in memory",
}

NO_COMPLEX = "complex64 is not offered by this function"
NO_INTEGERS = "integers are not offered by this function"
EQUALS = "which of equal elements is unspecified in torch"

# (entry or "*", pattern over "[index dtype] what differs, plain arguments, keyword arguments", reason)
SKIP_SAMPLES: tuple[tuple[str, str, str], ...] = (
    ("*", r"complex64\] .*(got c64|complex tensors|complex128|not implemented for ('Complex|complex))", NO_COMPLEX),
    ("*", r"(int64|bool)\] .*(convolution|pooling|hardtanh)", NO_INTEGERS),
    ("masked.var", r"complex64\]", NO_COMPLEX),
    ("masked.std", r"complex64\]", NO_COMPLEX),
    ("nn.functional.pairwise_distance", r"complex64\]", NO_COMPLEX),
    ("topk", r"(int64|bool)\] result 1", EQUALS),
    ("kthvalue", r"(int64|bool)\] result 1", EQUALS),
    ("mode", r"result 1", EQUALS),
    ("median", r"int64\] result 1", EQUALS),
    ("nanmedian", r"int64\] result 1", EQUALS),
    ("sort", r"bool\] result 1", EQUALS),
    ("argsort", r"bool\] result 0", EQUALS),
    ("as_strided.partial_views", "result 0|setStorage", "the sample views a larger storage, which does not cross over"),
    ("nn.functional.scaled_dot_product_attention", "'dropout_p': 0.[1-9]", "random: dropout"),
    ("nn.functional.multi_head_attention_forward", r"values.* 0\.5\]", "random: dropout"),
    ("nn.functional.pad.replicate_negative", "exceeds dimension size|start|size 0", "a negative pad that takes a whole dim away is not offered"),
    ("nn.functional.batch_norm", "expected at least 2 dimensions", "an empty input of one dim is refused"),
    ("cholesky_solve", "gradient 1", "torch gives a gradient to the triangle it does not read"),
    ("as_strided_scatter", "gradient 0", "torch gives a gradient to elements that are overwritten"),
)

# (entry or "*", pattern over what differs, reason): changes in place that a backward meets otherwise than in torch; see ``versions``
COPIES = "torch multiplies copies of some operands of batches"
SKIP_VERSIONS: tuple[tuple[str, str, str], ...] = (
    ("*", "gt forward: no gradient", "torch's result requires a gradient, which is 0"),
    ("*", "gt forward: NotOffered", "not offered"),
    ("*", "more than one element of the written-to tensor", "a write to elements that are one is refused"),
    ("matmul", "gt raises", COPIES),
    ("__rmatmul__", "gt raises", COPIES),
    ("tensordot", "gt raises", COPIES),
    ("kron", "gt raises", "torch's gradient is of the new values"),
    ("nn.functional.linear_cross_entropy.chunked", "raises", "gt does not cut the work"),
    ("nn.functional.linear_cross_entropy.chunked_none", "raises", "gt does not cut the work"),
    ("nn.functional.pad.replicate_negative", "", "a negative pad that takes a whole dim away is not offered"),
    ("as_strided_scatter", "gradient 0", "torch gives a gradient to elements that are overwritten"),
    ("__rdiv__", "gt raises", "an operator's method called by hand with a tensor that has its own"),
)

# (entry, pattern over "type: text", reason): error inputs that gt computes
SKIP_ERRORS: tuple[tuple[str, str, str], ...] = (
    ("multinomial", "probability|invalid multinomial distribution", "depends on values, which are not read when recording"),
) + tuple(
    (f"__{name}__", "", "an operator's method called by hand with a number as self") for name in (
        "radd", "rmul", "rdiv", "rsub", "rmod", "rpow", "rand", "ror", "rxor", "rmatmul")
)  # fmt: skip

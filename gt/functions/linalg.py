"""Products of matrices and tensors with torch's rank rules; einsum.

Next: ``gt.ir.ops.matmul`` (meaning).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gt.autocasting import autocasting, low
from gt.functions.numeric import conj
from gt.functions.pointwise import add, isfinite, mul, where
from gt.functions.promote import c_name, real_number
from gt.functions.reduce import sum
from gt.functions.shape import permute, reshape, squeeze, unsqueeze
from gt.functions.strided import diagonal
from gt.handle import Handle
from gt.ir.ops import OPS
from gt.ir.types import CallError, KindError, Shape, ShapeError, TensorType, class_name, is_int, normalize_dim, scalar_type
from gt.recording import record
from gt.trace import state

if TYPE_CHECKING:
    from gt.tensor import Tensor

MATMUL, RESHAPE = OPS["matmul"], OPS["reshape"]


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Multiply matrices: [..., m, k] x [..., k, n] -> [..., m, n]; a 1-d operand is a row (left) or column (right)."""
    if not isinstance(input, Handle) or not isinstance(other, Handle):
        raise TypeError(f"matmul(): expected two tensors, got {class_name(input)} and {class_name(other)}")
    if state.autocast is not None:
        input, other = low(input, other)
    a, b = input._type, other._type
    if a.dtype is not b.dtype:
        raise _mixed(a, b)
    na, nb = len(a.shape), len(b.shape)
    if na >= 2 and nb >= 2:
        if na == nb == 3 and a.shape[2] != b.shape[1] and a.shape[0] == b.shape[0]:
            raise ShapeError(_batch_text(a.shape, b.shape))
        return record(MATMUL, (input, other))
    if not na or not nb:
        raise CallError(f"both arguments to matmul need to be at least 1D, but they are {na}D and {nb}D")
    if na == 1 and nb == 1:
        if a.shape != b.shape:
            raise ShapeError(
                f"inconsistent tensor size, expected tensor [{a.shape[0]}] and src [{b.shape[0]}] to have the same "
                f"number of elements, but got {a.shape[0]} and {b.shape[0]} elements respectively"
            )
        return reshape(record(MATMUL, (unsqueeze(input, 0), unsqueeze(other, 1))), ())
    if nb == 1:
        if a.shape[-1] != b.shape[0]:
            raise ShapeError(
                f"size mismatch, got input ({a.shape[-2]}), mat ({a.shape[-2]}x{a.shape[-1]}), vec ({b.shape[0]})"
            )
        return squeeze(record(MATMUL, (input, unsqueeze(other, 1))), -1)
    return squeeze(record(MATMUL, (unsqueeze(input, 0), other)), -2)


def _mixed(a: TensorType, b: TensorType, batched: str = "bmm") -> CallError | KindError:
    """Give the error for operands of two dtypes: that of torch's function for these ranks."""
    one, other, rank = scalar_type(a.dtype), scalar_type(b.dtype), len(b.shape)
    if rank == 1 and len(a.shape) == 1:
        return CallError(f"dot : expected both vectors to have same dtype, but found {one} and {other}")
    if rank == 1:
        return CallError(f"addmv input tensors must have the same dtype, but got {other}, {one}, and {other}")
    if rank == 2:
        return CallError(f"expected m1 and m2 to have the same dtype, but got: {c_name(a.dtype)} != {c_name(b.dtype)}")
    if a.dtype.kind == "b":
        return KindError(f"\"{batched}\" not implemented for 'Bool'")
    return CallError(f"expected scalar type {one} but found {other}")


def mm(input: Tensor, mat2: Tensor) -> Tensor:
    """Multiply two matrices."""
    if input.ndim != 2 or mat2.ndim != 2:
        raise CallError("self must be a matrix" if input.ndim != 2 else "mat2 must be a matrix")
    return matmul(input, mat2)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Multiply two batches of matrices."""
    if input.ndim != 3 or mat2.ndim != 3:
        raise CallError("batch1 must be a 3D tensor" if input.ndim != 3 else "batch2 must be a 3D tensor")
    if input._type.shape[0] != mat2._type.shape[0] or input._type.shape[2] != mat2._type.shape[1]:
        raise ShapeError(_batch_text(input._type.shape, mat2._type.shape))
    return matmul(input, mat2)


def _batch_text(a: Shape, b: Shape) -> str:
    return f"Expected size for first two dimensions of batch2 tensor to be: [{a[0]}, {a[2]}] but got: {list(b[:2])}."


def mv(input: Tensor, vec: Tensor) -> Tensor:
    """Multiply a matrix and a vector."""
    if input.ndim != 2 or vec.ndim != 1:
        raise CallError(f"vector + matrix @ vector expected, got {vec.ndim}, {input.ndim}, {vec.ndim}")
    return matmul(input, vec)


def dot(input: Tensor, tensor: Tensor) -> Tensor:
    """Multiply two vectors elementwise and add up."""
    _vectors(input, tensor)
    return matmul(input, tensor)


def vdot(input: Tensor, other: Tensor) -> Tensor:
    """Multiply the conjugate of a vector with another and add up."""
    _vectors(input, other)
    return matmul(conj(input), other)


def _vectors(a: Tensor, b: Tensor) -> None:
    if a.ndim != 1 or b.ndim != 1:
        raise CallError(f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors")
    if a.dtype is not b.dtype:
        raise CallError(f"dot : expected both vectors to have same dtype, but found {scalar_type(a.dtype)} and {scalar_type(b.dtype)}")
    if a.numel() != b.numel():
        raise CallError(
            f"inconsistent tensor size, expected tensor [{a.numel()}] and src [{b.numel()}] to have the same number of elements, "
            f"but got {a.numel()} and {b.numel()} elements respectively"
        )


def inner(input: Tensor, other: Tensor) -> Tensor:
    """Multiply along the last dims and add up."""
    if not input.ndim or not other.ndim:
        return mul(input, other)
    if input._type.shape[-1] != other._type.shape[-1]:
        raise CallError(
            f"inner() the last dimension must match on both input tensors but got shapes {list(input._type.shape)} and {list(other._type.shape)}"
        )
    return tensordot(input, other, ([-1], [-1]))


def outer(input: Tensor, vec2: Tensor) -> Tensor:
    """Give the products of every pair of elements."""
    for argument, t in (("self", input), ("vec2", vec2)):
        if t.ndim != 1:
            raise CallError(f"outer: Expected 1-D argument {argument}, but got {t.ndim}-D")
    return mul(unsqueeze(input, 1), unsqueeze(vec2, 0))


ger = outer


def _plus(name: str, input: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * input + alpha * product; a beta of 0 ignores what is not finite in the input."""
    beta, alpha = real_number(beta, product.dtype), real_number(alpha, product.dtype)
    if input.dtype.kind == "b":
        beta, alpha = bool(beta), bool(alpha)
    if input.dtype.kind in "ui" and name != "addr":
        beta, alpha = int(beta), int(alpha)
    if input.dtype.kind in "bui" and not (_whole(beta) and _whole(alpha)):
        bad = "beta" if not _whole(beta) else "alpha"
        raise CallError(f"For integral input tensors, argument {bad} must not be a floating point number.")
    check_expands(input._type.shape, product._type.shape)
    product = product if alpha == 1 or alpha is True else mul(product, alpha)
    if beta == 0:
        return add(product, mul(where(isfinite(input), input, 0) if input.dtype.kind in "fc" else input, beta))
    return add(input if beta == 1 else mul(input, beta), product)


def _check_self(own: Tensor, mat2: Tensor) -> None:
    if own.dtype is not mat2.dtype:
        raise CallError(f"self and mat2 must have the same dtype, but got {scalar_type(own.dtype)} and {scalar_type(mat2.dtype)}")


def _check_mats(mat1: Tensor, mat2: Tensor) -> None:
    if mat1.dtype is not mat2.dtype:
        raise CallError(f"mat1 and mat2 must have the same dtype, but got {scalar_type(mat1.dtype)} and {scalar_type(mat2.dtype)}")


def check_expands(own: Shape, target: Shape) -> None:
    """Refuse a shape that does not broadcast to another."""
    lead = len(target) - len(own)
    for d, (n, size) in reversed(list(enumerate(zip(own, target[lead:], strict=True), lead)) if lead >= 0 else []):
        if n not in (1, size):
            raise ShapeError(
                f"The expanded size of the tensor ({size}) must match the existing size ({n}) at non-singleton dimension {d}.  "
                f"Target sizes: {list(target)}.  Tensor sizes: {list(own)}"
            )
    if lead < 0:
        raise ShapeError(
            f"expand(size={list(target)}): the number of sizes provided ({len(target)}) must be greater or equal to the number of "
            f"dimensions in the tensor ({len(own)})"
        )


def _whole(value: Any) -> bool:
    return not isinstance(value, float)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Give ``beta * input + alpha * (mat1 @ mat2)``."""
    _check_self(input, mat2)
    _check_mats(mat1, mat2)
    return _plus("addmm", input, mm(mat1, mat2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Give ``beta * input + alpha * (mat @ vec)``."""
    kinds = [scalar_type(t.dtype) for t in (input, mat, vec)]
    if len(set(kinds)) > 1:
        raise CallError(f"addmv input tensors must have the same dtype, but got {kinds[0]}, {kinds[1]}, and {kinds[2]}")
    return _plus("addmv", input, mv(mat, vec), beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Give ``beta * input + alpha * outer(vec1, vec2)``."""
    return _plus("addr", input, outer(vec1, vec2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Give ``beta * input + alpha * (batch1 @ batch2)``."""
    if input.dtype is not batch1.dtype:
        names = [c_name(t.dtype) for t in (input, batch1, batch2)]
        raise CallError(f"Input dtypes must be the same, got: input {names[0]}, batch1: {names[1]}, batch2: {names[2]}")
    if batch1.dtype is not batch2.dtype:
        raise _mixed(batch1._type, batch2._type, "baddbmm")
    return _plus("baddbmm", input, bmm(batch1, batch2), beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Give ``beta * input + alpha * sum of batch1 @ batch2 over the batch``."""
    _check_self(input, batch2)
    _check_mats(batch1, batch2)
    return _plus("addbmm", input, sum(bmm(batch1, batch2), 0, dtype=batch1.dtype), beta, alpha)


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Multiply along dims of both and add up: the last n and first n, or two lists."""
    if a.dtype is not b.dtype and state.autocast is None:
        raise CallError("both inputs should have same dtype")
    if isinstance(dims, Handle):
        dims = dims.tolist()
    counted = is_int(dims)
    if is_int(dims):
        if dims < 0:
            raise CallError(f"tensordot expects dims >= 0, but got dims={dims}")
        if dims > min(a.ndim, b.ndim):
            raise CallError(f"tensordot expects dims < ndim_a or ndim_b, but got dims={dims}")
        left, right = list(range(a.ndim - dims, a.ndim)), list(range(dims))
    else:
        if not isinstance(dims, list | tuple) or len(dims) != 2:
            raise CallError(
                "tensordot expects dims to be int or tuple[list[int], list[int]] or list[list[int]] containing two lists, but got "
                f"dims={dims}"
            )
        left, right = ([d] if is_int(d) else list(d) for d in dims)
    if len(left) != len(right):
        raise CallError("both dimension lists should have same length")
    left, right = [normalize_dim(d, a.ndim) for d in left], [normalize_dim(d, b.ndim) for d in right]
    for x, y in zip(left, right, strict=True):
        if a._type.shape[x] != b._type.shape[y] and 1 not in (a._type.shape[x], b._type.shape[y]):
            where = x - a.ndim if counted else x
            raise CallError(
                f"contracted dimensions need to match, but first has size {a._type.shape[x]} in dim {where} and second has size "
                f"{b._type.shape[y]} in dim {y}"
            )
    names_a, names_b = list(range(a.ndim)), list(range(100, 100 + b.ndim))
    for x, y in zip(left, right, strict=True):
        names_b[y] = names_a[x]
    out = [n for n in names_a if n not in {names_a[d] for d in left}] + [
        n for d, n in enumerate(names_b) if d not in right
    ]
    return (contract if out else _contract_all)([a, b], [names_a, names_b], out)


# -- einsum


def einsum(equation: Any, *operands: Any) -> Tensor:
    """Sum products over named dims: ``einsum("bij,bjk->bik", a, b)``; ``...`` names the rest.

    Names may be numbers, too: ``einsum(a, [0, 1, 2], b, [0, 2, 3], [0, 1, 3])``.
    """
    if isinstance(equation, Handle):
        return _by_lists(equation, *operands)
    given = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
    if not given:
        raise CallError("einsum(): must provide at least one operand")
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(given):
        which = "fewer" if len(terms) > len(given) else "more"
        raise CallError(f"einsum(): {which} operands were provided than specified in the equation")
    rest = max(
        (t.ndim - len(term.replace("...", "")) for t, term in zip(given, terms, strict=True) if "..." in term),
        default=0,
    )
    dots = [f".{i}" for i in range(rest)]
    names = [_names(i, t, term, dots) for i, (t, term) in enumerate(zip(given, terms, strict=True))]
    if arrow:
        out = _output(right, dots)
        missing = [n for n in out if n not in {x for term in names for x in term} and n not in dots]
        if missing:
            raise CallError(
                f"einsum(): output subscript {missing[0]} does not appear in the equation for any input operand"
            )
        twice = [n for n in out if out.count(n) > 1]
        if twice:
            raise CallError(f"einsum(): output subscript {twice[0]} appears more than once in the output")
    else:
        flat = [n for term in names for n in term]
        out = dots + sorted({n for n in flat if flat.count(n) == 1 and n not in dots})
    return contract(given, names, out)


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def _by_lists(*given: Any) -> Tensor:
    """Read tensors and lists of numbers (or ``...``) in turn, and a last list for the result if there is one."""
    tensors, lists = list(given[0 : len(given) // 2 * 2 : 2]), [*given[1::2], *(given[-1:] if len(given) % 2 else ())]
    for names in lists:
        for n in names:
            if n is not Ellipsis and not 0 <= n < len(LETTERS):
                raise CallError(f"einsum(): invalid subscript given as number {n}, subscripts must be in the range [0, 52)")
    terms = ["".join("..." if n is Ellipsis else LETTERS[n] for n in names) for names in lists]
    equation = ",".join(terms[: len(tensors)])
    return einsum(f"{equation}->{terms[-1]}" if len(given) % 2 else equation, *tensors)


def _names(at: int, t: Tensor, term: str, dots: list[str]) -> list[str]:
    head, ellipsis, tail = term.partition("...")
    if any(not c.isalpha() for c in head + tail):
        bad = next(c for c in head + tail if not c.isalpha())
        raise CallError(
            f"einsum(): invalid subscript given at index {term.index(bad)} in the equation string, subscripts must be in [a-zA-Z]"
        )
    middle = dots[len(dots) - (t.ndim - len(head) - len(tail)) :] if ellipsis and t.ndim > len(head) + len(tail) else []
    out = [*head, *middle, *tail]
    if len(out) != t.ndim:
        raise CallError(
            f"einsum(): the number of subscripts in the equation ({len(head + tail)}) does not match the number of dimensions "
            f"({t.ndim}) for operand {at} and no ellipsis was given"
        )
    return out


def _output(term: str, dots: list[str]) -> list[str]:
    head, ellipsis, tail = term.partition("...")
    return [*head, *(dots if ellipsis else []), *tail]


def contract(tensors: Sequence[Tensor], names: Sequence[list[Any]], out: list[Any]) -> Tensor:
    """Multiply tensors whose dims have names and add up over names that are not in ``out``, two at a time."""
    sizes: dict[Any, int] = {}
    for i, (t, term) in enumerate(zip(tensors, names, strict=True)):
        own: dict[Any, int] = {}
        for n, size in zip(term, t._type.shape, strict=True):
            if own.setdefault(n, size) != size:
                raise CallError(
                    f"einsum(): subscript {n} is repeated for operand {i} but the sizes don't match, {size} != {own[n]}"
                )
            if sizes.get(n, 1) != 1 and size not in (1, sizes[n]):
                raise CallError(
                    f"einsum(): subscript {n} has size {size} for operand {i} which does not broadcast with previously seen size {sizes[n]}"
                )
            sizes[n] = max(sizes.get(n, 1), size) if size else 0
    work = [_diagonals(t, list(term)) for t, term in zip(tensors, names, strict=True)]
    while len(work) > 1:
        (a, x), (b, y) = work[0], work[1]
        later = {n for _, term in work[2:] for n in term} | set(out)
        work[:2] = [_pair(a, x, b, y, later)]
    t, term = work[0]
    gone = tuple(d for d, n in enumerate(term) if n not in out)
    if gone:
        t, term = sum(t, gone, dtype=t.dtype), [n for n in term if n in out]
    for n in out:  # a name of size 1 may have vanished
        if n not in term:
            t, term = unsqueeze(t, t.ndim), [*term, n]
    order = tuple(term.index(n) for n in out)
    t = permute(t, order) if order != tuple(range(len(order))) else t
    want = tuple(sizes.get(n, 1) for n in out)
    return t if t._type.shape == want else t.expand(want)


_contract_all = autocasting(contract, "full_contraction")  # a product of vectors, which mixed precision leaves alone


def _diagonals(t: Tensor, term: list[Any]) -> tuple[Tensor, list[Any]]:
    """Take the diagonal of a name that stands twice."""
    while len(set(term)) != len(term):
        n = next(n for n in term if term.count(n) > 1)
        i = term.index(n)
        j = term.index(n, i + 1)
        t = diagonal(t, 0, i, j)
        term = [m for d, m in enumerate(term) if d not in (i, j)] + [n]
    return t, term


def _pair(a: Tensor, x: list[Any], b: Tensor, y: list[Any], later: set[Any]) -> tuple[Tensor, list[Any]]:
    """Contract two: names of both that are not needed later are summed by one batched product."""
    both = [n for n in x if n in y]
    one = {n for n in both if 1 in (a._type.shape[x.index(n)], b._type.shape[y.index(n)])}
    summed = [n for n in both if n not in later and n not in one]
    if not summed:
        names = x + [n for n in y if n not in x]
        wide = [_spread(t, term, names) for t, term in ((a, x), (b, y))]
        out = mul(*wide)
        gone = tuple(d for d, n in enumerate(names) if n not in later)
        return (sum(out, gone, dtype=out.dtype), [n for n in names if n in later]) if gone else (out, names)
    for t, term, other in ((a, x, y), (b, y, x)):
        alone = tuple(d for d, n in enumerate(term) if n not in later and n not in other)
        if alone:
            t, term = sum(t, alone, dtype=t.dtype), [n for d, n in enumerate(term) if d not in alone]
        if other is y:
            a, x = t, term
        else:
            b, y = t, term
    batch = [n for n in both if n not in summed]
    left, right = [n for n in x if n not in both], [n for n in y if n not in both]
    size = lambda t, term, ns: math.prod(t._type.shape[term.index(n)] for n in ns)  # noqa: E731
    k = size(a, x, summed)
    pa = permute(a, tuple(x.index(n) for n in [*batch, *left, *summed]))
    pb = permute(b, tuple(y.index(n) for n in [*batch, *summed, *right]))
    lead_a, lead_b = pa._type.shape[: len(batch)], pb._type.shape[: len(batch)]
    shapes = (*lead_a, size(a, x, left), k), (*lead_b, k, size(b, y, right))
    ma, mb = (record(RESHAPE, (p,), (("shape", s),)) for p, s in zip((pa, pb), shapes, strict=True))  # to torch mostly views
    out = matmul(ma, mb)
    shape = (
        *out._type.shape[: len(batch)],
        *(a._type.shape[x.index(n)] for n in left),
        *(b._type.shape[y.index(n)] for n in right),
    )
    return reshape(out, shape), [*batch, *left, *right]


def _spread(t: Tensor, term: list[Any], names: list[Any]) -> Tensor:
    order = [n for n in names if n in term]
    moved = permute(t, tuple(term.index(n) for n in order))
    return reshape(moved, tuple(t._type.shape[term.index(n)] if n in term else 1 for n in names))

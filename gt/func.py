"""``gt.func``: functions made of functions. Source: torch.func.

Owns: gradients, products, Jacobians and ``vmap`` as transforms, which nest, and modules called with other parameters. A transform
differentiates what its function records; ``vmap`` calls its function once for each example. Next: ``autograd.functional``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gt.autograd import enable_grad, several
from gt.functions import create
from gt.functions.promote import need_tensor
from gt.functions.shape import movedim, reshape, select, stack
from gt.handle import Handle
from gt.nn.functional_call import functional_call, stack_module_state
from gt.random import get_rng_state, set_rng_state
from gt.tape import key_of, walk
from gt.trees import flatten, map_tree, same_structure, unflatten

Function = Callable[..., Any]
VJP, JVP = "vjp(f, *primals)", "jvp(f, primals, tangents)"
CALLS = {"vjp": VJP, "jacrev": VJP, "jvp": JVP, "jacfwd": JVP, "grad_and_value": "grad_and_value(f)(*args)"}  # as texts name them


class _Depth(threading.local):
    """How many transforms this thread is inside."""

    value = 0


_depth = _Depth()


@contextmanager
def _inside() -> Iterator[bool]:
    """Record for gradients; say whether this is the outermost transform."""
    _depth.value += 1
    try:
        with enable_grad():
            yield _depth.value == 1
    finally:
        _depth.value -= 1


def _own(tree: Any) -> Any:
    """Give an argument whose tensors can be differentiated by, with the history that they have."""
    for t in flatten(tree)[0]:
        if not isinstance(t, Handle):
            raise ValueError(f"Thing passed to transform API must be Tensor, got {type(t)}")
        if not _differentiable(t):
            raise RuntimeError("only Tensors of floating point dtype can require gradients")
    return map_tree(lambda t: t.view_as(t) if t._rg else t.detach().requires_grad_(), tree, _differentiable)


def _check_primals(tree: Any) -> None:
    """Refuse what has no derivative along itself."""
    for t in flatten(tree)[0]:
        if isinstance(t, Handle) and not _differentiable(t):
            raise ValueError(f"Expected primal to be floating point or complex, but got: {t.dtype}")


def _check_tangents(primals: Any, tangents: Any) -> None:
    """Refuse tangents that are not one for each primal, of its size."""
    (leaves, form), (along, own) = flatten(primals), flatten(tangents)
    if form != own:
        raise RuntimeError(
            f"{JVP}: Expected primals and tangents to have the same python structure. For example, if primals is a tuple of 3 tensors, "
            "tangents also must be."
        )
    if not leaves:
        raise RuntimeError(f"{JVP}: Expected primals to contain at least one Tensor.")
    for name, values in (("primals", leaves), ("tangents", along)):
        for value in values:
            if not isinstance(value, Handle):
                raise RuntimeError(f"{JVP}: Expected {name} to only contain Tensors, got {type(value)}")
    for primal, tangent in zip(leaves, along, strict=True):
        if primal._type.shape != tangent._type.shape:
            raise RuntimeError(
                "Trying to set a forward gradient that has a different size than that of the original Tensor, this is not supported. Tensor is "
                f"of size {list(primal._type.shape)} while the given forward gradient is of size {list(tangent._type.shape)}."
            )


def _check_real(name: str, leaves: Sequence[Any], what: str) -> None:
    for i, t in enumerate(leaves):
        if isinstance(t, Handle) and t.is_complex():
            raise RuntimeError(f"{name}: Expected all {what} to be real but received complex tensor at flattened input idx: {i}")


def _check_outputs(outputs: Sequence[Any]) -> None:
    for o in outputs:
        if isinstance(o, Handle) and not _differentiable(o):
            raise RuntimeError(
                f"vjp(f, ...): All outputs of f must be floating-point or complex Tensors, got Tensor with dtype {o.dtype}"
            )


def _differentiable(value: Any) -> bool:
    return isinstance(value, Handle) and value._type.dtype.is_differentiable


def _split(args: tuple[Any, ...], argnums: int | tuple[int, ...]) -> tuple[list[Any], tuple[int, ...]]:
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    for n in numbers:
        if not -len(args) <= n < len(args):
            raise RuntimeError(f"Got argnum={n}, but only {len(args)} positional inputs")
    numbers = tuple(n % len(args) for n in numbers)
    return [_own(a) if i in numbers else a for i, a in enumerate(args)], numbers


def _kept(outputs: Sequence[Any], own: Sequence[Any], given: Any, outermost: bool) -> bool:
    """Say whether results keep their history: if an input has one, another transform is around, or parameters were closed over."""
    if not outermost or any(isinstance(t, Handle) and t._rg for t in flatten(given)[0]):
        return True
    ids = {id(t) for t in own}
    keys = [k for k in (key_of(o) for o in outputs if o._rg) if k is not None]
    return any(id(t) not in ids for _, t in walk(keys).leaves) if keys else False


def _finish(tree: Any, keep: bool) -> Any:
    return tree if keep else map_tree(lambda t: t.detach(), tree, lambda v: isinstance(v, Handle))


def _outputs(out: Any, name: str) -> tuple[list[Any], Any]:
    """Give the tensors of what a function gave, and its form."""
    outputs, form = flatten(out)
    if not outputs or outputs == [None]:
        raise RuntimeError(f"{CALLS[name]}: Expected f to be a function that has non-empty output (got output = {outputs})")
    for o in outputs:
        if not isinstance(o, Handle):
            raise RuntimeError(f"{CALLS[name]}: expected f(*primals) to return only tensors, got unsupported type {type(o)}")
    return outputs, form


def _gradients(outputs: Sequence[Any], inputs: Sequence[Any], seeds: Sequence[Any] | None) -> list[Any]:
    """Give gradients by each input, zeros where it was not used."""
    needed = [i for i, o in enumerate(outputs) if o._rg]
    found: Sequence[Any] = [None] * len(inputs)
    if needed and inputs:
        given = None if seeds is None else [seeds[i] for i in needed]
        found = several.grad([outputs[i] for i in needed], inputs, given, True, True, allow_unused=True)
    return [create.zeros_like(t) if g is None else g for g, t in zip(found, inputs, strict=True)]


def _with_aux(out: Any, has_aux: bool, name: str) -> tuple[Any, Any]:
    if not has_aux:
        return out, None
    if not isinstance(out, tuple) or len(out) != 2:
        raise RuntimeError(f"{CALLS[name]}: output of function f should be a tuple: (output, aux) if has_aux is True")
    for value in flatten(out[1])[0]:
        if not isinstance(value, Handle):
            raise RuntimeError(f"Expected tensors, got unsupported type {type(value)}")
    return out


def grad_and_value(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """Give a function that returns (gradient, value) of ``func``, whose result is one number; (gradient, (value, aux)) with aux."""

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _inside() as outermost:
            given, numbers = _split(args, argnums)
            out, aux = _with_aux(func(*given, **kwargs), has_aux, "grad_and_value")
            if not isinstance(out, Handle):
                raise RuntimeError(f"grad_and_value(f)(*args): Expected f(*args) to return a Tensor, got {type(out)}")
            if out._type.shape:
                raise RuntimeError(
                    f"grad_and_value(f)(*args): Expected f(*args) to return a scalar tensor, got tensor with {out.ndim} dims. Maybe you "
                    "wanted to use the vjp or jacrev APIs instead?"
                )
            chosen = [given[n] for n in numbers]
            leaves, form = flatten(chosen)
            found = unflatten(_gradients([out], leaves, None), form)
            result = found[0] if isinstance(argnums, int) else tuple(found)
            keep = _kept([out], leaves, [args, kwargs], outermost)
        value = _finish(out, keep)
        return _finish(result, keep), ((value, _finish(aux, keep)) if has_aux else value)

    return wrapped


def grad(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False) -> Function:
    """Give a function that returns the gradient of ``func`` by its arguments ``argnums``; (gradient, aux) with ``has_aux``.

    An argument may be a dict, list or tuple of tensors. Errors: RuntimeError if the result is not one number.
    """
    both = grad_and_value(func, argnums, has_aux)

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        found, value = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return wrapped


def vjp(func: Function, *primals: Any, has_aux: bool = False) -> Any:
    """Give (output, function of cotangents that gives a tuple of gradients, one by each primal), and aux third with ``has_aux``."""
    with _inside() as outermost:
        given, _ = _split(primals, tuple(range(len(primals))))
        out, aux = _with_aux(func(*given), has_aux, "vjp")
        outputs, form = _outputs(out, "vjp")
        _check_outputs(outputs)
        leaves, in_form = flatten(given)
        keep = _kept(outputs, leaves, list(primals), outermost)

    def backwards(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        seeds, seed_form = flatten(cotangents)
        if not same_structure(form, seed_form):
            raise RuntimeError(
                "Expected pytree structure of cotangents to be the same as pytree structure of outputs to the function."
            )
        with _inside():
            found = unflatten(_gradients(outputs, leaves, seeds), in_form)
        inherits = keep or any(isinstance(s, Handle) and s._rg for s in seeds)
        return _finish(tuple(found), inherits)

    return (_finish(out, keep), backwards, _finish(aux, keep)) if has_aux else (_finish(out, keep), backwards)


def jvp(func: Function, primals: tuple[Any, ...], tangents: tuple[Any, ...], *, strict: bool = False, has_aux: bool = False) -> Any:
    """Give (output, its derivative along ``tangents``), and aux third with ``has_aux``: two backwards."""
    if not isinstance(primals, tuple):
        raise RuntimeError(
            f"jvp(f, primals, tangents): Expected primals to be a tuple. E.g. it should be valid to call f(*primals). Got {type(primals)}"
        )
    _check_tangents(primals, tangents)
    _check_primals(primals)
    with _inside() as outermost:
        given, _ = _split(primals, tuple(range(len(primals))))
        out, aux = _with_aux(func(*given), has_aux, "jvp")
        outputs, form = _outputs(out, "jvp")
        leaves, along = flatten(given)[0], flatten(tangents)[0]
        product = unflatten(_along(outputs, leaves, along), form)
        keep = _kept(outputs, leaves, [primals, tangents], outermost)
    out, product, aux = _finish(out, keep), _finish(product, keep), _finish(aux, keep)
    return (out, product, aux) if has_aux else (out, product)


def linearize(func: Function, *primals: Any) -> tuple[Any, Function]:
    """Give (output, function of tangents that gives its derivative along them). ``func`` is called once.

    What ``func`` gives that is no tensor stands in both as it is.
    """
    _check_primals(primals)
    with _inside() as outermost:
        given, _ = _split(primals, tuple(range(len(primals))))
        out = func(*given)
        values, form = flatten(out)
        outputs = [v for v in values if isinstance(v, Handle)]
        leaves, in_form = flatten(given)
        keep = _kept(outputs, leaves, list(primals), outermost)

    def jvp_fn(*tangents: Any) -> Any:
        along, own_form = flatten(list(tangents))
        if not same_structure(in_form, own_form):
            raise RuntimeError("Expected the tangents to have the same argspec as the primals")
        for i, (t, p) in enumerate(zip(along, leaves, strict=True)):
            need_tensor("linearize", **{f"tangent:{i}": t})
            for what, own, wanted in (("shape", t.shape, p.shape), ("dtype", t.dtype, p.dtype)):
                if own != wanted:
                    raise RuntimeError(
                        f"tangent:{i} with {what} {own} in flattened pytree doesn't match the {what} {wanted} of the corresponding primal."
                    )
        with _inside():
            products = iter(_along(outputs, leaves, along))
            product = unflatten([next(products) if isinstance(v, Handle) else v for v in values], form)
        return _finish(product, keep or any(t._rg for t in along))

    return _finish(out, keep), jvp_fn


def _along(outputs: Sequence[Any], inputs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Differentiate gradients by their seeds, in which they are linear."""
    seeds = [create.zeros_like(o).requires_grad_(_differentiable(o)) for o in outputs]
    at = [i for i, seed in enumerate(seeds) if seed._rg]
    along = _gradients(_gradients([outputs[i] for i in at], inputs, [seeds[i] for i in at]), [seeds[i] for i in at], tangents)
    for i, product in zip(at, along, strict=True):
        seeds[i] = product
    return seeds


def _jacobian(func: Function, argnums: int | tuple[int, ...], has_aux: bool, name: str) -> Function:
    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        wanted = [args[n] for n in ((argnums,) if isinstance(argnums, int) else argnums) if -len(args) <= n < len(args)]
        _check_real(name, flatten(wanted)[0], "inputs")
        if name == "jacfwd":
            _check_primals(wanted)
        with _inside() as outermost:
            given, numbers = _split(args, argnums)
            out, aux = _with_aux(func(*given, **kwargs), has_aux, name)
            outputs, form = _outputs(out, name)
            _check_real(name, outputs, "outputs")
            if name == "jacrev":
                _check_outputs(outputs)
            chosen = [given[n] for n in numbers]
            leaves, in_form = flatten(chosen)
            per_output = []
            for o in outputs:
                found = unflatten(_matrix(o, leaves), in_form)
                per_output.append(found[0] if isinstance(argnums, int) else tuple(found))
            result = unflatten(per_output, form)
            keep = _kept(outputs, leaves, [args, kwargs], outermost)
        return (_finish(result, keep), _finish(aux, keep)) if has_aux else _finish(result, keep)

    return wrapped


def _matrix(output: Any, inputs: Sequence[Any]) -> list[Any]:
    """Give the Jacobian of an output of shape O by inputs of shapes I: O + I each."""
    if not _differentiable(output):
        return [create.zeros(*output.shape, *t.shape, dtype=output.dtype) for t in inputs]
    flat = reshape(output, (-1,))
    rows = [_gradients([flat[i]], inputs, None) for i in range(output.numel())]
    if not rows:
        return [create.zeros(*output.shape, *t.shape, dtype=output.dtype) for t in inputs]
    return [reshape(stack(list(c)), (*output.shape, *t.shape)) for c, t in zip(zip(*rows, strict=True), inputs, strict=True)]


def jacrev(
    func: Function, argnums: int | tuple[int, ...] = 0, *, has_aux: bool = False, chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Function:  # fmt: skip
    """Give a function that returns the Jacobian of ``func`` by its arguments ``argnums``, one backward per element of the result."""
    return _jacobian(func, argnums, has_aux, "jacrev")


def jacfwd(func: Function, argnums: int | tuple[int, ...] = 0, has_aux: bool = False, *, randomness: str = "error") -> Function:
    """Give what ``jacrev`` gives: there is no forward mode here, and the values are the same."""
    return _jacobian(func, argnums, has_aux, "jacfwd")


def hessian(func: Function, argnums: int | tuple[int, ...] = 0) -> Function:
    """Give a function that returns the Hessian of ``func`` by its arguments ``argnums``."""
    return jacfwd(jacrev(func, argnums), argnums)


# -- one call for each example


def vmap(
    func: Function, in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Function:
    """Give a function that maps ``func`` over a dim of its tensors: dims ``in_dims`` go, and ``out_dims`` come.

    ``func`` is called once for each example, and all calls are recorded in one graph; keyword arguments are given whole. ``randomness``: "error" if ``func`` draws,
    "different" draws for each example, or the "same". Errors: ValueError for sizes that differ and dims that do not fit.
    """
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")

    @functools.wraps(func)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, form = flatten(list(args))
        dims = _spread(in_dims, args, in_dims)
        count = _count(leaves, dims, func)
        rows, result_form = [], None
        start = get_rng_state()
        for i in range(count):
            if randomness == "same":
                set_rng_state(start)
            example = unflatten([t if d is None else select(t, d, i) for t, d in zip(leaves, dims, strict=True)], form)
            values, result_form = flatten(func(*example, **kwargs))
            rows.append(values)
            if randomness == "error" and get_rng_state() != start:
                raise RuntimeError(
                    "vmap: called random operation while in randomness error mode. Please either use the 'same' or 'different' randomness "
                    "flags on vmap or perform the randomness operation out of vmap"
                )
        outs = _spread(out_dims, unflatten(rows[0], result_form), out_dims, whole=True)
        columns = [_joined(list(c), d) for c, d in zip(zip(*rows, strict=True), outs, strict=True)]
        return unflatten(columns, result_form)

    return wrapped


def _joined(column: list[Any], dim: int | None) -> Any:
    if dim is None:
        return column[0]
    if not isinstance(column[0], Handle):
        raise ValueError(
            f"vmap: the function must only return Tensors, got type {type(column[0])}. Did you mean to set out_dims= to None for output?"
        )
    out = stack(column)
    return out if dim == 0 else movedim(out, 0, dim)


def _spread(dims: Any, tree: Any, given: Any, whole: bool = False) -> list[Any]:
    """Give a dim for each leaf of a tree from dims of its form, or of the form of its upper part."""
    if dims is None or isinstance(dims, int):
        return [dims] * len(flatten(tree)[0])
    parts = list(tree.values()) if isinstance(tree, dict) else list(tree) if isinstance(tree, tuple | list) else [tree]
    wanted = list(dims.values()) if isinstance(dims, dict) else list(dims) if isinstance(dims, tuple | list) else None
    if wanted is None or len(wanted) != len(parts):
        what = (
            "out_dims is not compatible with the structure of the outputs"
            if whole
            else "in_dims is not compatible with the structure of `inputs`"
        )
        raise ValueError(f"vmap: {what}: got {given!r}")
    return [d for part, dim in zip(parts, wanted, strict=True) for d in _spread(dim, part, given, whole)]


def _count(leaves: list[Any], dims: list[Any], func: Function) -> int:
    sizes = []
    for i, (t, d) in enumerate(zip(leaves, dims, strict=True)):
        if d is None:
            continue
        if not isinstance(t, Handle):
            raise ValueError(
                f"vmap: Got in_dim={d} for an input but the input is of type {type(t)}. We cannot vmap over non-Tensor arguments, please use "
                "None as the respective in_dim"
            )
        if not -t.ndim <= d < t.ndim:
            raise ValueError(f"vmap: Got in_dim={d} for some input, but that input is a Tensor of dimensionality {t.ndim}")
        dims[i] = d % t.ndim
        sizes.append(t._type.shape[dims[i]])
    if not sizes:
        raise ValueError("vmap: at least one tensor must have a dim to map over, got none")
    if len(set(sizes)) > 1:
        raise ValueError(
            f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {sizes} for the mapped dimension"
        )
    if not sizes[0]:
        raise ValueError("vmap: a mapped dim of size 0 has no example to call the function with")
    return sizes[0]


__all__ = [
    "functional_call", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "stack_module_state", "vjp", "vmap",
]  # fmt: skip

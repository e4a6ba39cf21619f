"""Layers people think in: softmax, cross entropy, embedding, dropout, activations.

Next: ``normalization``, ``attention``, ``convolution``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gt.ir import factors as fx
from gt.ir.opdef import Local, Var, op
from gt.ir.ops.broadcast import cast, constant, reshape, sum, total
from gt.ir.ops.compare import eq, logical_and, ne, where
from gt.ir.ops.creation import iota
from gt.ir.ops.elementwise import add, div, exp, log, mul, neg, sub
from gt.ir.ops.families import FLOAT, along, check_kind, check_same, rule_of
from gt.ir.ops.index import in_dim, own_rows, rows_local
from gt.ir.ops.matmul import wide
from gt.ir.ops.normalization import like, up
from gt.ir.ops.reduce import amax
from gt.ir.types import DType, Shape, ShapeError, TensorType, TypeMismatch, int64, normalize_dim

# -- softmax


def _softmax_infer(x: TensorType, dim: int) -> TensorType:
    check_kind("softmax", FLOAT, x)
    normalize_dim(dim, x.ndim)
    return x


def _dims(x: Var, dim: int) -> tuple[int, ...]:
    return (dim,) if x.type.ndim else ()


def softmax_numpy(x: np.ndarray, dim: int) -> np.ndarray:
    axis = dim if x.ndim else None
    top = np.max(wide(x), axis=axis, keepdims=True, initial=-np.inf)
    e = np.exp(wide(x) - top)
    return e / np.sum(e, axis=axis, keepdims=True)


def log_softmax_numpy(x: np.ndarray, dim: int) -> np.ndarray:
    axis = dim if x.ndim else None
    shifted = wide(x) - np.max(wide(x), axis=axis, keepdims=True, initial=-np.inf)
    return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))


def _along_dim(operands: Any, results: Any, attrs: dict[str, Any]) -> fx.Rule:
    return along(operands, results, {attrs["dim"]})


def _split_softmax(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, ...]:
    """Over parts of dim: the largest of all, then the sum of all."""
    (x,), dim = inputs, attrs["dim"]
    v = up(x)
    e = exp(sub(v, amax(v, dims=(dim,), keepdim=True)))
    return (like(div(e, total(e, (dim,), keepdim=True)), x),)


def _split_log_softmax(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, ...]:
    (x,), dim = inputs, attrs["dim"]
    v = up(x)
    shifted = sub(v, amax(v, dims=(dim,), keepdim=True))
    return (like(sub(shifted, log(total(exp(shifted), (dim,), keepdim=True))), x),)


softmax = op(
    "softmax", "x",
    doc="exp(x) / sum(exp(x)) along dim.",
    infer=_softmax_infer, numpy=softmax_numpy, torch="torch.softmax({x}, {dim})",
    vjp=lambda g, y, x, dim: (_softmax_gradient(g, y, dim),),
    factors=_along_dim, when_split=_split_softmax,
)  # fmt: skip


def _softmax_gradient(g: Var, y: Var, dim: int) -> Any:
    weighted = mul(g, y)
    return sub(weighted, mul(y, total(weighted, _dims(y, dim), keepdim=True)))


def _log_softmax_backward_infer(g: TensorType, y: TensorType, dim: int) -> TensorType:
    check_same("log_softmax_backward", (g, y))
    if g.shape != y.shape:
        raise ShapeError(f"log_softmax_backward: the gradient is {g!r}, the result {y!r}")
    return y


def _log_softmax_backward_numpy(g: np.ndarray, y: np.ndarray, dim: int) -> np.ndarray:
    return wide(g) - np.exp(wide(y)) * np.sum(wide(g), axis=dim if y.ndim else None, keepdims=True)


def _log_softmax_backward_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    g, y = inputs
    v = up(g)
    return (like(sub(v, mul(exp(up(y)), total(v, _dims(y, attrs["dim"]), keepdim=True))), y),)


log_softmax_backward = op(
    "log_softmax_backward", "g y",
    doc="Gradient of log_softmax from its result.",
    infer=_log_softmax_backward_infer, numpy=_log_softmax_backward_numpy,
    torch="torch.ops.aten._log_softmax_backward_data({g}, {y}, {dim}, {y}.dtype)", inplace=((0, 0),),
    torch_inplace=lambda names, attrs, types: "kernels.log_softmax_backward_({}, {}, {})".format(*names, attrs["dim"]),
    decompose=_log_softmax_backward_parts, factors=_along_dim, linear=((0,),),
    when_split=lambda inputs, attrs, shards: _log_softmax_backward_parts(inputs, attrs),
)  # fmt: skip


log_softmax = op(
    "log_softmax", "x",
    doc="log(softmax(x)) along dim.",
    infer=_softmax_infer, numpy=log_softmax_numpy, torch="torch.log_softmax({x}, {dim})",
    vjp=lambda g, y, x, dim: (log_softmax_backward(g, y, dim=dim),),
    factors=_along_dim, when_split=_split_log_softmax,
)  # fmt: skip

# -- losses over classes. The class dim is 1, or 0 for a single example.


def class_dim(ndim: int) -> int:
    return 1 if ndim > 1 else 0


def _without_class(shape: Shape) -> Shape:
    c = class_dim(len(shape))
    return (*shape[:c], *shape[c + 1 :])


def _in_range_numpy(index: np.ndarray, size: int, ignore: int | None = None) -> np.ndarray:
    in_dim(index if ignore is None else index[index != ignore], size)
    return np.array(index)


def _in_range_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    """Read a dim of zeros at the indices, so that torch checks them in every tier."""
    (index,), ignore = names, attrs["ignore"]
    read = index if ignore is None else f"torch.where({index} == {ignore}, 0, {index})"
    zeros = f"torch.zeros({attrs['size']}, dtype={index}.dtype, device={index}.device)"
    place = f"kernels.from_start({read}.reshape(-1), {attrs['size']})"
    return f"{index} + {zeros}.index_select(0, {place}).view({index}.shape)"


in_range = op(
    "in_range", "index",
    doc="The indices, once each is known to lie in a dim of this size or to be the one ignored. Errors: IndexError when run.",
    infer=lambda index, size, ignore=None: index, numpy=_in_range_numpy, torch=_in_range_torch,
    factors=fx.elementwise, indices=(0,), refuses=(0,),
)  # fmt: skip


def _checked_target(target: Var, shape: Shape, ignore_index: int) -> Any:
    return in_range(target, size=shape[class_dim(len(shape))], ignore=ignore_index)


def _nll_infer(logp: TensorType, target: TensorType, reduction: str, ignore_index: int, dtype: DType | None = None) -> TensorType:
    check_kind("nll_loss", FLOAT, logp)
    if target.dtype is not int64:
        raise TypeMismatch(f"nll_loss: expected a target of int64 class indices, got {target!r}")
    if logp.ndim < 1 or target.shape != _without_class(logp.shape):
        raise ShapeError(f"Expected input batch_size to match target batch_size: got {logp!r} and {target!r}")
    return TensorType(() if reduction == "sum" else target.shape, dtype or logp.dtype)


def _nll_numpy(logp: np.ndarray, target: np.ndarray, reduction: str, ignore_index: int, dtype: DType | None = None) -> np.ndarray:
    axis = class_dim(logp.ndim)
    valid = target != ignore_index
    in_dim(target[valid], logp.shape[axis])
    index = np.expand_dims(np.where(valid, target, 0), axis)
    picked = (
        np.squeeze(np.take_along_axis(wide(logp), index, axis), axis) if logp.shape[axis] else np.zeros(target.shape)
    )
    loss = np.where(valid, -picked, 0)
    return loss.sum() if reduction == "sum" else loss


def _nll_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    return _class_rule([operands[0]], [operands[1]], results, attrs)


def _class_rule(full: list[Shape], batch: list[Shape], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    """Batch dims pass, or give partial sums under reduction="sum"; the class dim is whole."""
    c = class_dim(len(full[0]))
    names = [f"d{i}" for i in range(len(full[0]))]
    kept = [*names[:c], *names[c + 1 :]]
    terms = [names if len(s) == len(names) else kept if s else [] for s in (*full, *batch)]
    outs = [names if len(s) == len(names) else kept if s else [] for s in results]
    kinds: dict[str, fx.FactorKind] = {names[c]: "whole"}
    if attrs["reduction"] == "sum" and not any(outs):
        kinds |= {n: "sum" for n in kept}
    return rule_of(terms, outs, (*full, *batch, *results), kinds)


def _nll_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    each = attrs["reduction"] if "dtype" not in attrs else "none"
    loss = f"torch.nn.functional.nll_loss({names[0]}, {names[1]}, ignore_index={attrs['ignore_index']}, reduction={each!r})"
    return f"{loss}.sum(dtype=torch.{types[0].dtype.name})" if "dtype" in attrs else loss


def _split_nll(inputs: tuple[Any, ...], attrs: dict[str, Any], shards: int) -> tuple[Any, ...]:
    """Over parts of the classes: each worker adds what its own classes hold."""
    logp, target = inputs
    c = class_dim(logp.type.ndim)
    target = _checked_target(target, logp.type.shape, attrs["ignore_index"])
    hit = eq(iota(shape=logp.type.shape, dim=c, dtype=int64), _unsqueeze(target, c))
    counts = ne(target, _index(attrs["ignore_index"], target))
    picked = where(logical_and(hit, _unsqueeze(counts, c)), logp, constant(0, logp))
    return (neg(total(picked, None if attrs["reduction"] == "sum" else (c,))),)


nll_loss = op(
    "nll_loss", "logp target",
    doc="-logp at the target class; 0 where target is ignore_index. reduction: sum or none.",
    infer=_nll_infer, numpy=_nll_numpy,
    torch=_nll_torch, wide=True, saves="logp! target",
    vjp=lambda g, y, logp, target, reduction, ignore_index: (
        nll_loss_backward(
            g, _checked_target(target, logp.type.shape, ignore_index), shape=logp.type.shape, ignore_index=ignore_index
        ),
        None,
    ),
    factors=_nll_rule, linear=((0,),), when_split=_split_nll, refuses=(1,),
)  # fmt: skip


def _nll_backward_numpy(
    g: np.ndarray, target: np.ndarray, shape: Shape, ignore_index: int, start: int = 0
) -> np.ndarray:
    axis = class_dim(len(shape))
    classes = (np.arange(shape[axis]) + start).reshape(-1, *(1,) * (len(shape) - axis - 1))
    hit = (np.expand_dims(target, axis) == classes) & (np.expand_dims(target, axis) != ignore_index)
    return np.where(hit, -(np.expand_dims(g, axis) if g.ndim else g), np.zeros((), g.dtype))


def _nll_backward_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    names = [f"d{i}" for i in range(len(results[0]))]
    c = class_dim(len(names))
    kept = [*names[:c], *names[c + 1 :]]
    terms = [kept if operands[0] else [], kept]
    return rule_of(terms, [names], (*operands, *results))


def _nll_backward_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    """Of a part of the classes, targets of other parts are ignored."""
    g, target = names
    if attrs.get("start") is None:
        return f"kernels.nll_loss_backward({g}, {target}, {attrs['shape']}, {attrs['ignore_index']})"
    first, count = attrs["start"], attrs["shape"][class_dim(len(attrs["shape"]))]
    own = f"({target} >= {first}) & ({target} < {first + count}) & ({target} != {attrs['ignore_index']})"
    return f"kernels.nll_loss_backward({g}, torch.where({own}, {target} - {first}, -1), {attrs['shape']}, -1)"


def _nll_backward_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    shape = where.outputs[0].shape
    c = class_dim(len(shape))
    own = {"start": where.offset(0, c)} if shape[c] != attrs["shape"][c] else {}
    return attrs | {"shape": shape} | own


nll_loss_backward = op(
    "nll_loss_backward", "g target",
    doc="-g at the target class of each example, 0 elsewhere; g is 0-d or of the target's shape.",
    infer=lambda g, target, shape, ignore_index, start=0: TensorType(shape, g.dtype),
    numpy=_nll_backward_numpy, torch=_nll_backward_torch,
    vjp=lambda gg, y, g, target, shape, ignore_index: (
        nll_loss(gg, target, reduction="none" if g.type.ndim else "sum", ignore_index=ignore_index), None,
    ),
    factors=_nll_backward_rule, linear=((0,),), local=_nll_backward_local, refuses=(1,),
)  # fmt: skip


def _cross_entropy_infer(
    logits: TensorType, target: TensorType, reduction: str, ignore_index: int, label_smoothing: float
) -> TensorType:
    if target.dtype is int64:
        out = _nll_infer(logits, target, reduction, ignore_index)
    else:
        if logits.ndim < 1 or target.shape != logits.shape or target.dtype is not logits.dtype:
            raise TypeMismatch(
                f"cross_entropy: expected int64 classes or probabilities like the logits, got {logits!r} and {target!r}"
            )
        out = TensorType(_without_class(logits.shape), logits.dtype)
    return (
        TensorType((), logits.dtype)
        if reduction == "mean"
        else out
        if reduction == "none"
        else TensorType((), out.dtype)
    )


def _cross_entropy_numpy(
    logits: np.ndarray, target: np.ndarray, reduction: str, ignore_index: int, label_smoothing: float
) -> np.ndarray:
    c = class_dim(logits.ndim)
    logp = log_softmax_numpy(logits, c)
    if target.dtype.kind == "f":
        smooth = target * (1 - label_smoothing) + label_smoothing / logits.shape[c]
        loss, count = -(logp * smooth).sum(c), max(np.prod(_without_class(logits.shape)), 0)
    else:
        valid = target != ignore_index
        loss = _nll_numpy(logp, target, "none", ignore_index) * (1 - label_smoothing)
        loss = loss + np.where(valid, -logp.mean(c), 0) * label_smoothing if label_smoothing else loss
        count = valid.sum()
    return loss if reduction == "none" else loss.sum() if reduction == "sum" else loss.sum() / count


def _cross_entropy_parts(inputs: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Any, ...]:
    """log_softmax and nll_loss; a mean divides by the number of targets that count, over all shards."""
    logits, target = inputs
    c, reduction, smoothing = class_dim(logits.type.ndim), attrs["reduction"], attrs["label_smoothing"]
    ignore = attrs["ignore_index"]
    logp = log_softmax(logits, dim=c)
    classes = logits.type.shape[c]
    if target.type.dtype is not int64:
        if smoothing:
            target = add(mul(target, constant(1 - smoothing, target)), constant(smoothing / classes, target))
        loss = neg(total(mul(logp, target), (c,)))
        loss = loss if reduction == "none" else total(loss)
        batch = logits.type.numel // classes if classes else 0
        return (div(loss, constant(batch, loss)) if reduction == "mean" else loss,)
    inner = "none" if reduction == "none" else "sum"
    loss = nll_loss(logp, target, reduction=inner, ignore_index=ignore)
    valid = ne(target, _index(ignore, target))
    if smoothing:
        spread = neg(where(valid, total(logp, (c,)), constant(0, logp)))
        spread = spread if inner == "none" else total(spread)
        loss = add(mul(loss, constant(1 - smoothing, loss)), mul(spread, constant(smoothing / classes, loss)))
    if reduction == "mean":
        count = sum(valid, dims=tuple(range(valid.type.ndim)), keepdim=False, dtype=int64)
        loss = div(loss, cast(count, dtype=loss.type.dtype))
    return (loss,)


def _cross_entropy_grad_infer(logits: TensorType, target: TensorType, g: TensorType, ignore_index: int) -> tuple[TensorType, TensorType]:
    check_kind("cross_entropy_grad", FLOAT, logits)
    if logits.ndim != 2 or target.shape != logits.shape[:1] or target.dtype is not int64 or g.shape:
        raise ShapeError(f"cross_entropy_grad: expected logits [rows, classes], a class of each row, a number: got {logits!r}, {target!r}, {g!r}")
    return TensorType((), g.dtype), logits


def _cross_entropy_grad_numpy(logits: np.ndarray, target: np.ndarray, g: np.ndarray, ignore_index: int) -> tuple[Any, Any]:
    logp = log_softmax_numpy(wide(logits), 1)
    one = _nll_backward_numpy(g, target, logits.shape, ignore_index)
    return _nll_numpy(logp, target, "sum", ignore_index), _log_softmax_backward_numpy(one, logp, 1)


cross_entropy_grad = op(
    "cross_entropy_grad", "logits target g",
    doc="The summed cross entropy of [rows, classes], and g times its gradient; made of both by a pass, where rows are whole.",
    infer=_cross_entropy_grad_infer, numpy=_cross_entropy_grad_numpy,
    torch="kernels.cross_entropy_grad({logits}, {target}, {g}, {ignore_index})", refuses=(1,),
)  # fmt: skip


def _index(value: int, like: Var) -> Any:
    return constant(value, like)


def _unsqueeze(x: Var, dim: int) -> Any:
    return reshape(x, shape=(*x.type.shape[:dim], 1, *x.type.shape[dim:]))


cross_entropy = op(
    "cross_entropy", "logits target",
    doc="Negative log likelihood of target (class indices or probabilities) under softmax(logits), as torch's.",
    infer=_cross_entropy_infer, numpy=_cross_entropy_numpy,
    torch=(
        "torch.nn.functional.cross_entropy({logits}, {target}, ignore_index={ignore_index}, "
        'reduction={reduction}, label_smoothing={label_smoothing})'
    ),
    decompose=_cross_entropy_parts,
    saves=lambda types, attrs, numbers: (
        "target" if types[1].dtype is int64 else "" if attrs["label_smoothing"] else "target:logits"
    ),
)  # fmt: skip

# -- embedding


def _embedding_infer(
    weight: TensorType, index: TensorType, padding_idx: int = -1, start: int = 0, rows: int = 0
) -> TensorType:
    if weight.ndim != 2 or index.dtype.kind not in "iu":
        raise TypeMismatch(f"embedding: expected [rows, width] and integer indices, got {weight!r} and {index!r}")
    return TensorType((*index.shape, weight.shape[1]), weight.dtype)


def _padding(attrs: dict[str, Any]) -> str:
    return f", {attrs['padding_idx']}" if attrs.get("padding_idx", -1) >= 0 else ""


def _embedding_numpy(weight: np.ndarray, index: np.ndarray, padding_idx: int = -1, start: int = 0, rows: int = 0) -> Any:
    in_dim(index, rows or weight.shape[0])
    return own_rows(weight, index, 0, start) if rows else weight[index]


def _embedding_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    """Of a part of the rows, indices of other parts give zeros; those of no part are left to be refused."""
    weight, index = names
    if not attrs.get("rows"):
        return f"torch.nn.functional.embedding({index}, {weight}{_padding(attrs)})"
    own = f"({index} >= {attrs['start']}) & ({index} < {attrs['start']} + {weight}.shape[0])"
    other = f"torch.where(({index} >= 0) & ({index} < {attrs['rows']}), 0, {weight}.shape[0])"
    inside = f"torch.where({own}, {index} - {attrs['start']}, {other})"
    return f"torch.nn.functional.embedding({inside}, {weight}).masked_fill(~({own}).unsqueeze(-1), 0)"


embedding = op(
    "embedding", "weight index",
    doc="Rows of weight: [v, d] at [...] -> [..., d]. The row padding_idx (-1: none) gets no gradient.",
    infer=_embedding_infer, numpy=_embedding_numpy, torch=_embedding_torch,
    vjp=lambda g, y, weight, index, padding_idx=-1: (
        embedding_backward(
            g, in_range(index, size=weight.type.shape[0], ignore=None), rows=weight.type.shape[0], padding_idx=padding_idx
        ),
        None,
    ),
    factors="vd,...->...d | ^v", linear=((0,),), local=rows_local, refuses=(1,),
)  # fmt: skip


def _embedding_backward_numpy(
    g: np.ndarray, index: np.ndarray, rows: int, padding_idx: int, start: int = 0
) -> np.ndarray:
    out = np.zeros((rows, g.shape[-1]), wide(g).dtype)
    flat = index.reshape(-1)
    keep = (flat != padding_idx) & (flat >= start) & (flat < start + rows)
    np.add.at(out, flat[keep] - start, g.reshape(flat.size, g.shape[-1])[keep])
    return out


def _embedding_backward_torch(names: tuple[str, ...], attrs: dict[str, Any], types: tuple[TensorType, ...]) -> str:
    """Of a part of the rows, indices of other parts go to one row more, which is cut off."""
    (g, index), rows, start, padding = names, attrs["rows"], attrs.get("start"), attrs["padding_idx"]
    call = "torch.ops.aten.embedding_dense_backward"
    if start is None:
        return f"{call}({g}, {index}, {rows}, {padding}, False)"
    own = f"({index} >= {start}) & ({index} < {start + rows}) & ({index} != {padding})"
    return f"{call}({g}, torch.where({own}, {index} - {start}, {rows}), {rows + 1}, {rows}, False)[:{rows}]"


def _embedding_backward_local(attrs: dict[str, Any], where: Local) -> dict[str, Any]:
    rows = where.outputs[0].shape[0]
    return attrs if rows == attrs["rows"] else attrs | {"rows": rows, "start": where.offset(0, 0)}


def _embedding_backward_rule(operands: tuple[Shape, ...], results: tuple[Shape, ...], attrs: dict[str, Any]) -> fx.Rule:
    batch = [f"b{i}" for i in range(len(operands[1]))]
    kinds: dict[str, fx.FactorKind] = dict.fromkeys(batch, "sum")
    return rule_of([[*batch, "d"], batch], [["v", "d"]], (*operands, *results), kinds)


def _embedding_backward_vjp(gg: Var, y: Any, g: Var, index: Var, rows: int, padding_idx: int) -> tuple[Any, None]:
    found = embedding(gg, index, padding_idx=padding_idx)
    if padding_idx < 0:
        return found, None
    return where(_unsqueeze(eq(index, constant(padding_idx, index)), index.type.ndim), constant(0, found), found), None


embedding_backward = op(
    "embedding_backward", "g index",
    doc="Sum of the rows of g by index: [..., d] at [...] -> [rows, d].",
    infer=lambda g, index, rows, padding_idx, start=0: TensorType((rows, g.shape[-1]), g.dtype),
    numpy=_embedding_backward_numpy, torch=_embedding_backward_torch, local=_embedding_backward_local,
    vjp=_embedding_backward_vjp,
    factors=_embedding_backward_rule, linear=((0,),), refuses=(1,),
)  # fmt: skip

"""Every argument that torch's functions take by name, by torch's own schemas and signatures, gt's take by that name too."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gt
import gt.nn
from gt.arguments import renamed

# accepted where they mean something and documented as without effect or refused elsewhere
OPTIONS = frozenset(
    ["out", "layout", "pin_memory", "names", "implicit", "generator", "device", "dtype", "memory_format", "requires_grad"]
    + ["non_blocking", "out_dtype", "cudnn_enable", "cudnn_enabled"]
)
SCALARS = frozenset({"eq", "ne"})  # their schemas for Python numbers name the operands a and b
PICKLE = {"pickle_module", "pickle_protocol", "mmap", "_use_new_zipfile_serialization", "_disable_byteorder_record"}
OTHERS = {"sort": {"reverse"}, "from_dlpack": {"copy"}, "random_": {"from"}, "uniform_": {"from"}}
OTHERS |= {"copy_": {"src"}, "ormqr": {"input2", "input3"}, "cholesky_solve": {"input2"}, "save": PICKLE, "load": PICKLE}
SPLITS = frozenset({"sections", "indices", "tensor_indices_or_sections"})  # a method's: indices_or_sections in torch's documentation
SPACES: dict[str, tuple[Any, Any, str]] = {
    "": (gt, torch, ""), "Tensor": (gt.Tensor, torch.Tensor, ""), "nn.functional": (gt.nn.functional, torch.nn.functional, ""),
    "linalg": (gt.linalg, torch.linalg, "linalg_"), "fft": (gt.fft, torch.fft, "fft_"), "special": (gt.special, torch.special, "special_"),
    "nn.init": (gt.nn.init, torch.nn.init, ""),
}  # fmt: skip


def schemas() -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = defaultdict(list)
    for s in torch._C._jit_get_all_schemas():
        on_tensors = any("Tensor" in str(a.type) for a in s.arguments)
        if s.name.startswith("aten::") and on_tensors and not any(a.is_out for a in s.arguments) and "Dimname" not in str(s):
            found[s.name[6:]].append([a.name for a in s.arguments])
    return found


def signatures(function: Callable[..., Any], known: list[list[str]]) -> list[list[str]]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return known
    return [[p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]]


def takes(function: Callable[..., Any], name: str, method: bool) -> bool:
    parameters = inspect.signature(function).parameters
    if name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return True
    return not method and renamed(function, {name: None}) is not None


def missing(space: str) -> Iterator[str]:
    ours, theirs, prefix = SPACES[space]
    known, method = schemas(), space == "Tensor"
    for name in dir(ours):
        mine, function = getattr(ours, name, None), getattr(theirs, name, None)
        if name.startswith("_") or not callable(mine) or not callable(function) or inspect.isclass(mine) or name in SCALARS:
            continue
        left = OPTIONS | OTHERS.get(name, set()) | (SPLITS if method else frozenset())
        for arguments in signatures(function, known[prefix + name]):
            for argument in arguments:
                wanted = "input" if argument == "self" else argument
                if argument not in left and not (method and argument == "self") and not takes(mine, wanted, method):
                    yield f"{space}.{name}({wanted}=)"


@pytest.mark.parametrize("space", SPACES)
def test_arguments_have_torchs_names(space: str) -> None:
    assert not sorted(set(missing(space)))


def test_other_names_reach_the_function() -> None:
    x = gt.tensor([[2.0, 1.0], [1.0, 3.0]])
    assert gt.det(input=x).item() == pytest.approx(5.0)
    assert gt.inverse(input=x).shape == (2, 2)
    assert [tuple(t.shape) for t in gt.split(tensor=x, split_size_or_sections=1)] == [(1, 2), (1, 2)]
    assert x.split(split_size=1)[0].tolist() == [[2.0, 1.0]]
    assert gt.max(x, other=2 * gt.ones(2, 2)).tolist() == [[2.0, 2.0], [2.0, 3.0]]
    assert gt.broadcast_to(gt.ones(1), size=(2,)).tolist() == x.new_ones(1).expand(size=(2,)).tolist() == [1.0, 1.0]
    assert x.view(size=(4,)).shape == (4,)
    assert gt.swapaxes(x, axis0=0, axis1=1).tolist() == x.T.tolist()
    assert gt.sum(x, axis=0).tolist() == [3.0, 4.0]
    with pytest.raises(TypeError, match="det"):
        gt.det(nothing=x)
    with pytest.raises(TypeError, match="det"):
        gt.det(x, input=x)

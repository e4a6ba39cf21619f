"""``gt.save`` and ``gt.load``: tensors in safetensors files, which torch and others read too.

Owns: the file's layout: every tensor under its dotted path, the nesting as JSON in the header. Nothing read from a file is
executed. Next: ``torch_files`` (what torch.save wrote), ``gt.nn.module`` (state dicts).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors

from gt.absent import absent
from gt.devices import check_options
from gt.functions.create import upload
from gt.functions.numeric import is_conj, is_neg, view_as_complex, view_as_real
from gt.functions.strided import as_strided
from gt.handle import Handle, root_of
from gt.ir.types import complex_dtype, dtype_of, real_dtype
from gt.nests import Form, describe, rebuild
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.progress import awaited
from gt.trace import settle, state

_SHORT = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "I64": "int64", "I32": "int32", "I16": "int16"}
_SHORT |= {"I8": "int8", "U8": "uint8", "BOOL": "bool"}
ZIP, PICKLE = b"PK\x03\x04", b"\x80"  # how such files begin
_LONG = {name: short for short, name in _SHORT.items()}
_SHORT |= {"C64": "complex64"}  # written as pairs: there is no short name for complex128


File = str | os.PathLike[str] | BinaryIO


def save(obj: Any, f: File) -> None:
    """Write tensors in nested dicts, lists and tuples, with plain numbers and strings among them, to a safetensors file.

    ``f``: a path, where the file appears whole or not at all, or an open binary file. Errors: TypeError for what is none of these,
    a module for one: nothing is pickled.
    """
    if isinstance(obj, Module):
        raise TypeError(
            f"gt.save: a {type(obj).__name__} is code as well as data, and nothing is pickled: save its state_dict(), and load it into a new one"
        )
    found = _Tensors()
    form = describe(obj, found, "gt.save")
    tensors = found.by_path
    tree: dict[str, Any] = {"tree": form, "views": _views(tensors)}
    if pairs := [path for path, t in tensors.items() if t._type.dtype.kind == "c"]:
        tree["complex"] = pairs
    if state.trace.code:
        settle(state.trace, "gt.save")
    data = _container({path: _wire(t) for path, t in tensors.items()}, {"gt": json.dumps(tree)})
    if isinstance(f, str | os.PathLike):
        try:
            _write_whole(Path(f), data)
        except OSError as e:  # of a full disk it names no file, else one beside the target perhaps
            raise OSError(e.errno, e.strerror, os.fspath(f)) from e
    else:
        f.write(data)


class _Tensors:
    """Collects the tensors of a nest by path. One that stands twice is read once."""

    def __init__(self) -> None:
        self.by_path: dict[str, Handle] = {}
        self.seen: dict[int, str] = {}

    def __call__(self, obj: Any, path: str) -> Form | None:
        if not isinstance(obj, Handle):
            return None
        path = path or "tensor"
        while path in self.by_path:  # a key may hold a dot
            path += "'"
        self.by_path[path] = obj
        path = self.seen.setdefault(id(obj), path)
        return {"tensor": path, "parameter": isinstance(obj, Parameter), "requires_grad": obj._rg and obj._leaf}


def _views(tensors: dict[str, Any]) -> dict[str, Any]:
    """Say of which tensor those that share memory are views, and how they lie; a tensor that no path names is added."""
    groups: dict[int, list[str]] = {}
    for path, t in tensors.items():
        groups.setdefault(id(root_of(t)), []).append(path)
    views: dict[str, Any] = {}
    for paths in groups.values():
        root = root_of(tensors[paths[0]])
        if len({id(tensors[p]) for p in paths}) == 1:  # no other shares it
            alone: Any = tensors[paths[0]]
            flipped = is_neg(alone) or alone.dtype is not root._type.dtype
            if alone.is_contiguous() or alone.numel() != root._type.numel or flipped:
                continue
        root = _in_dtype(root, paths, tensors)
        storage = next((p for p in paths if _whole(tensors[p], root) and not is_conj(tensors[p])), None)
        if storage is None:
            storage = f"storage of {paths[0]}"
            tensors[storage] = root
        for path in paths:
            if path != storage:
                view: Any = tensors[path]
                views[path] = {
                    "of": storage,
                    "size": list(view.shape),
                    "stride": list(view.stride()),
                    "offset": view.storage_offset(),
                    **({"conj": True} if is_conj(view) else {}),
                }
    return views


def _in_dtype(root: Handle, paths: list[str], tensors: dict[str, Any]) -> Handle:
    """View what tensors share in their dtype. Errors: RuntimeError where they have two, or one is negative."""
    kinds = {tensors[p].dtype for p in paths}
    if len(kinds) > 1 or any(is_neg(tensors[p]) for p in paths):
        raise RuntimeError(
            "Cannot save multiple tensors or storages that view the same data as different types: take clone() of one of "
            + ", ".join(paths)
        )
    if root._type.dtype in kinds:
        return root
    flat: Any = root
    flat = flat.view(-1)
    return view_as_real(flat) if root._type.dtype.kind == "c" else view_as_complex(flat[: flat.numel() // 2 * 2].view(-1, 2))


def _whole(t: Any, root: Handle) -> bool:
    return t is root or (t.is_contiguous() and t.numel() == root._type.numel and tuple(t.shape) == root._type.shape)


def _wire(t: Handle) -> tuple[str, tuple[int, ...], bytes]:
    buffer = t._materialise()
    array = np.asarray(awaited(buffer.session.fetch(buffer.id), buffer.session))
    if t._type.dtype.kind == "c":  # pairs of real numbers
        return real_dtype(t._type.dtype).name, (*t._type.shape, 2), array.tobytes()
    return t.dtype.name, tuple(t.shape), array.tobytes()


def _container(arrays: dict[str, tuple[str, tuple[int, ...], bytes]], metadata: dict[str, str]) -> bytes:
    """Lay out a safetensors file. Written here because the library's writers take no bfloat16 without torch."""
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for path, (dtype, shape, data) in arrays.items():
        header[path] = {"dtype": _LONG[dtype], "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in arrays.values())


def _write_whole(path: Path, data: bytes) -> None:
    """Write beside the target, sync and rename, so that a crash leaves the old file or the new one."""
    import tempfile  # takes long to load

    folder = path.parent
    handle, name = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(f: File, map_location: Any = None, *, weights_only: bool | None = None, mmap: bool | None = None) -> Any:
    """Read what ``save`` or ``torch.save`` wrote; of another safetensors file, a dict of its tensors.

    ``f``: a path, or an open binary file, which is read from where it stands. Of ``torch.save``'s files only data is read, as with
    torch's ``weights_only=True``, whatever ``weights_only`` says. ``map_location`` is accepted and changes nothing: placement is the
    signals' matter. Errors: FileNotFoundError; ValueError for another file, or one that names classes of other things than data.
    """
    if isinstance(map_location, str):
        check_options("load", map_location)
    data = Path(f).read_bytes() if isinstance(f, str | os.PathLike) else f.read()
    name = os.fspath(f) if isinstance(f, str | os.PathLike) else str(getattr(f, "name", "the file"))
    if data[:4] == ZIP:
        from gt import torch_files  # zipfile and what it needs: not for every import of gt

        return torch_files.read(data, name)
    try:
        entries = safetensors.deserialize(data)
    except safetensors.SafetensorError as e:
        old = "; torch.save of torch before 1.6, perhaps: save it anew" if data[:1] == PICKLE else ""
        raise ValueError(f"{name}: not a safetensors file ({e}){old}") from None
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    form = json.loads(header.get("__metadata__", {}).get("gt", "null"))
    pairs = set(form.get("complex", ())) if isinstance(form, dict) else ()
    tensors = {name: _tensor(info, name in pairs) for name, info in entries}
    if form is None:
        return tensors
    if "tree" not in form:  # written before views were
        return _rebuild(form, tensors)
    for path, view in form["views"].items():
        found = as_strided(tensors[view["of"]], view["size"], view["stride"], view["offset"])
        tensors[path] = found.conj() if view.get("conj") else found
    return _rebuild(form["tree"], tensors)


def _tensor(info: dict[str, Any], pairs: bool) -> Any:
    name = _SHORT.get(info["dtype"])
    if name is None:
        raise ValueError(f"gt.load: dtype {info['dtype']} is not supported")
    dtype = dtype_of(name)
    if name == "bfloat16":
        bits = np.frombuffer(info["data"], np.uint16).astype(np.uint32) << 16
        array = bits.view(np.float32)
    else:
        array = np.frombuffer(info["data"], dtype.numpy)
    shape = info["shape"]
    if pairs:
        dtype, shape = complex_dtype(dtype), shape[:-1]
        array = array.view(dtype.numpy)
    return upload(array.reshape(shape), dtype)


def _rebuild(form: Form, tensors: dict[str, Any]) -> Any:
    def leaf(kind: str, form: Form) -> Any:
        if kind != "tensor":
            raise ValueError(f"a {kind!r}, which this gt does not know")
        value = tensors[form["tensor"]]
        if form.get("parameter"):
            if not isinstance(value, Parameter):
                value = tensors[form["tensor"]] = Parameter(value, bool(form.get("requires_grad")))
            return value
        return value.requires_grad_() if form.get("requires_grad") else value

    return rebuild(form, leaf)


ONLY_DATA = "only data is read from files, whatever classes are said to be safe"
__getattr__ = absent("gt.serialization", add_safe_globals=ONLY_DATA, safe_globals=ONLY_DATA, get_safe_globals=ONLY_DATA)

__all__ = ["load", "save"]

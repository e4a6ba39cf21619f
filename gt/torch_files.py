"""Reading what ``torch.save`` wrote, without torch and without running anything that the file names.

Owns: the zip's layout, and a reader of its program that knows tensors, numbers, strings and nests of them, as torch's
``weights_only=True``. Must not know: any other class. Next: ``serialization``.

Such a file is a program of Python's format for objects. Here only the instructions that put data together are known. A name in it
stands for one of ``NAMES``, which make inert values; once the whole is read, tensors are made of them, from bytes of the zip whose
sizes are checked first.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.devices import device
from gt.functions.create import upload
from gt.ir.types import DTYPES, DType, bfloat16, scalar_type
from gt.nn.parameter import Parameter
from gt.shape import Size

MAX_DEPTH = 100
MAX_REPEATED = 1 << 28  # bytes of a tensor that repeats what is stored, as an expanded one does


class Named:
    """What a name in the file stands for; nothing can be set on it."""

    __slots__ = ("name", "make")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name, self.make = name, make


class Stored:
    """A tensor to be: where its elements lie in the file."""

    __slots__ = ("storage", "offset", "size", "stride", "requires_grad", "parameter", "bits")

    def __init__(
        self, storage: Any, offset: int, size: Any, stride: Any, requires_grad: bool, _: object = None, bits: Any = None
    ) -> None:
        if not isinstance(storage, Storage):
            raise ValueError("a tensor without a storage")
        self.storage, self.offset, self.size, self.stride = storage, offset, size, stride
        self.requires_grad, self.parameter = bool(requires_grad), False
        self.bits = bits or {}  # whether the values are the conjugates of what is stored ("conj"), or negative ("neg")
        if not isinstance(self.bits, dict) or not self.bits.keys() <= {"conj", "neg"}:
            raise ValueError("a tensor of an unknown kind")


class Storage:
    """Elements of one dtype: an entry of the zip."""

    __slots__ = ("key", "dtype", "numel")

    def __init__(self, key: str, dtype: DType, numel: int) -> None:
        self.key, self.dtype, self.numel = key, dtype, numel


def _parameter(data: Any, requires_grad: bool = True, *_: object) -> Stored:
    if not isinstance(data, Stored):
        raise ValueError("a parameter without a tensor")
    out = Stored(data.storage, data.offset, data.size, data.stride, requires_grad, None, data.bits)
    out.parameter = True
    return out


def _plain(kind: type[Any]) -> Callable[..., Any]:
    return lambda *args: kind(*args)


NAMES = {
    n.name: n
    for n in (
        Named("torch._utils._rebuild_tensor_v2", Stored), Named("torch._utils._rebuild_parameter", _parameter),
        Named("collections.OrderedDict", _plain(OrderedDict)), Named("collections.Counter", _plain(Counter)),
        Named("torch.Size", lambda sizes=(): Size(sizes)), Named("torch.device", _plain(device)),
        Named("builtins.set", lambda items=(): set(items)), Named("builtins.complex", _plain(complex)),
        Named("__builtin__.set", lambda items=(): set(items)), Named("__builtin__.complex", _plain(complex)),
    )
}  # fmt: skip
STORAGES = {f"torch.{scalar_type(d)}Storage": d for d in DTYPES}
PLAIN_DTYPES = {f"torch.{d.name}": d for d in DTYPES}


def named(full: str) -> Any:
    """Give what a name stands for. Errors: ValueError for one that is not of data."""
    found = NAMES.get(full) or STORAGES.get(full) or PLAIN_DTYPES.get(full)
    if found is None:
        raise ValueError(
            f"it holds {full}, and to load that would run code of the file: save tensors, numbers, strings and nests of them, such as "
            "model.state_dict()"
        )
    return found


def storage(kind: str, dtype: Any, key: Any, _: object, numel: Any) -> Storage:
    if kind != "storage" or not isinstance(dtype, DType) or not isinstance(key, str) or type(numel) is not int:
        raise ValueError("a storage of an unknown kind")
    return Storage(key, dtype, numel)


CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "EMPTY_LIST": list, "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
}  # fmt: skip
LITERALS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE"})
SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Reader:
    """Follows the instructions of a pickle that put data together; no other is known."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # what was there before each mark
        self.memo: dict[int, Any] = {}

    def read(self, program: bytes) -> Any:
        argument: Any
        for instruction, argument, _ in pickletools.genops(program):
            name = instruction.name
            if name in LITERALS:
                self.stack.append(argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name]())
            elif name in ("BINPUT", "LONG_BINPUT"):
                self.memo[argument] = self.stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                self.stack.append(self.memo[argument])
            elif name == "MARK":
                self.below.append(self.stack)
                self.stack = []
            elif name == "STOP":
                return self.stack.pop()
            elif name != "PROTO":
                self.combine(name, argument)
        raise ValueError("it ends too early")

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def combine(self, name: str, argument: Any) -> None:
        """Do what makes one value of others, which are taken off the stack."""
        if name == "TUPLE":
            items = self.since_mark()
            self.stack.append(tuple(items))
        elif name in SHORT_TUPLES:
            n = SHORT_TUPLES[name]
            self.stack[-n:] = [tuple(self.stack[-n:])]
        elif name in ("APPEND", "APPENDS"):
            items = [self.stack.pop()] if name == "APPEND" else self.since_mark()
            list.extend(self.stack[-1], items)
        elif name in ("SETITEM", "SETITEMS"):
            items = [self.stack.pop(-2), self.stack.pop()] if name == "SETITEM" else self.since_mark()
            dict.update(self.stack[-1], zip(items[::2], items[1::2], strict=True))
        elif name == "GLOBAL":
            self.stack.append(named(argument.replace(" ", ".")))
        elif name == "BINPERSID":
            self.stack.append(storage(*self.stack.pop()))
        elif name == "REDUCE":
            args, what = self.stack.pop(), self.stack.pop()
            if not isinstance(what, Named) or not isinstance(args, tuple):
                raise ValueError(f"it calls a {type(what).__name__}")
            self.stack.append(what.make(*args))
        elif name == "BUILD":
            self.stack.pop()  # the versions of a state dict's modules
            if not isinstance(self.stack[-1], OrderedDict):
                raise ValueError(f"it sets attributes of a {type(self.stack[-1]).__name__}")
        else:
            raise ValueError(f"an instruction {name}, which is not of data")


BAD = (  # what reading a broken file ends in
    zipfile.BadZipFile, struct.error, ValueError, KeyError, IndexError, TypeError, AttributeError, EOFError,
    RuntimeError, OverflowError,
)  # fmt: skip


def read(data: bytes, name: str) -> Any:
    """Give what a file of ``torch.save`` holds. Errors: ValueError for what is no such file, or holds anything but data."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _read(archive)
    except BAD as error:
        raise ValueError(f"{name}: cannot be loaded: {error}") from None


def _read(archive: zipfile.ZipFile) -> Any:
    entries = {i.filename.partition("/")[2]: i for i in archive.infolist()}
    if "data.pkl" not in entries or "constants.pkl" in entries:
        raise ValueError("a zip file, but not one of torch.save" if "data.pkl" not in entries else "a TorchScript program, not data")
    if any(i.compress_type != zipfile.ZIP_STORED for i in entries.values()):
        raise ValueError("its entries are compressed, as torch's never are")
    if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
        raise ValueError("its bytes are in big-endian order")
    tree = Reader().read(archive.read(entries["data.pkl"]))
    return _Maker(archive, entries).value(tree)


class _Maker:
    """Makes tensors of what was read; what stands in several places is made once."""

    def __init__(self, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo]) -> None:
        self.archive, self.entries = archive, entries
        self.made: dict[int, Any] = {}

    def value(self, item: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError(f"it is nested more than {MAX_DEPTH} deep, or in itself")
        if not isinstance(item, Stored | dict | list | tuple | set):
            if isinstance(item, Named | Storage):
                raise ValueError("a name or a storage in place of a value")
            return item
        if id(item) not in self.made:
            self.made[id(item)] = self.tensor(item) if isinstance(item, Stored) else self.nest(item, depth)
        return self.made[id(item)]

    def nest(self, item: Any, depth: int) -> Any:
        if isinstance(item, dict):
            kind = type(item)
            return kind({self.value(k, depth + 1): self.value(v, depth + 1) for k, v in dict.items(item)})
        if isinstance(item, Size):
            return item
        return type(item)([self.value(v, depth + 1) for v in item])

    def tensor(self, t: Stored) -> Any:
        storage, dtype = t.storage, t.storage.dtype
        size, stride, offset = tuple(t.size), tuple(t.stride), t.offset
        if len(size) != len(stride) or any(type(n) is not int or n < 0 for n in (*size, *stride, offset, storage.numel)):
            raise ValueError("a tensor with a bad shape")
        entry = self.entries[f"data/{storage.key}"]
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if math.prod(size) else offset - 1
        if storage.numel * dtype.itemsize > entry.file_size or last >= storage.numel:
            raise ValueError("a tensor that reaches beyond its storage")
        if math.prod(size) > max(storage.numel, MAX_REPEATED // dtype.itemsize):
            raise ValueError(f"a tensor of {list(size)} that repeats few elements")
        kind = np.dtype(np.uint16) if dtype is bfloat16 else np.dtype(dtype.numpy)
        flat = np.frombuffer(self.archive.read(entry), kind, storage.numel)
        array = np.lib.stride_tricks.as_strided(flat[min(offset, flat.size) :], size, [s * kind.itemsize for s in stride])
        if dtype is bfloat16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        array = np.conj(array) if t.bits.get("conj") else -array if t.bits.get("neg") else array
        made = upload(np.array(array, order="C"), dtype)
        if t.parameter:
            return Parameter(made, t.requires_grad)
        return made.requires_grad_() if t.requires_grad else made


__all__ = ["read"]

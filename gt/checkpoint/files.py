"""The files of a checkpoint: safetensors files and ``index.json``, which has their checksums and what the tensors make up.

Owns: the layout of both, reading a part at a time, and distrust: a file that is not as the index says is refused by its name, before
anything of it is used. Must not know: tensors, what is saved. Next: ``folders`` (when a folder counts), ``saving``, ``loading``.
Source: https://github.com/huggingface/safetensors (the format).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from gt.ir.advice import Advised
from gt.ir.types import DType

INDEX = "index.json"
PART = re.compile(r"part-\d{5}\.safetensors")
VERSION = 1
FILE_BYTES = 1 << 30  # a file is closed once it has so much
CHUNK = 1 << 22
MAX_HEADER = 100_000_000  # the format's own limit
MAX_INDEX = 1 << 30
CODES = {
    "bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
}  # fmt: skip
DTYPES = {code: np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<") for name, code in CODES.items()}


def stored(dtype: DType) -> tuple[str, bool]:
    """Give the name of the dtype in which values of a dtype are in a file, and whether each is a pair there, as complex numbers are."""
    if dtype.kind != "c":
        return dtype.name, False
    return ("float32" if dtype.itemsize == 8 else "float64"), True


class DamagedError(Advised, ValueError):
    """A checkpoint's files are not as they were written, or are not a checkpoint's."""


@dataclass(frozen=True)
class Entry:
    """A value in a file: its name, safetensors' word for its dtype, and its shape."""

    name: str
    code: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.code].itemsize


class FileInfo(msgspec.Struct, frozen=True):
    """What was written of a file."""

    nbytes: int
    sha256: str


class Index(msgspec.Struct, frozen=True):
    """What is in a checkpoint: the forms of its state and random streams, and its files by name."""

    version: int
    step: int
    state: dict[str, Any]
    random: dict[str, Any]
    files: dict[str, FileInfo]


def split(entries: Iterable[Entry], limit: int = FILE_BYTES) -> list[list[Entry]]:
    """Cut values, in order, into files."""
    files: list[list[Entry]] = []
    room = 0
    for entry in entries:
        if room <= 0:
            files.append([])
            room = limit
        files[-1].append(entry)
        room -= entry.nbytes
    return files


def header(entries: Iterable[Entry]) -> bytes:
    """Give what stands before the values in a file."""
    at, named = 0, {}
    for entry in entries:
        named[entry.name] = {"dtype": entry.code, "shape": list(entry.shape), "data_offsets": [at, at + entry.nbytes]}
        at += entry.nbytes
    text = json.dumps(named).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_part(path: Path, entries: list[Entry], values: Iterator[np.ndarray], told: Callable[[int], None]) -> FileInfo:
    """Write a file of values, taking one after the other, and sync it; give its size and checksum. ``told``: hears of bytes of values as
    they are written. Errors: OSError.
    """
    start = header(entries)
    digest, nbytes = hashlib.sha256(start), len(start)
    with open(path, "xb") as out:
        out.write(start)
        for entry in entries:
            data = next(values)
            assert data.nbytes == entry.nbytes, f"{data.nbytes} bytes for {entry}"
            flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
            del data
            for at in range(0, entry.nbytes, CHUNK):
                chunk = flat[at : at + CHUNK]
                out.write(chunk)
                digest.update(chunk)
                told(chunk.nbytes)
                del chunk
            nbytes += entry.nbytes
            del flat
        out.flush()
        os.fsync(out.fileno())
    return FileInfo(nbytes, digest.hexdigest())


def write_index(path: Path, index: Index) -> None:
    """Write and sync the index, its own checksum with it. Errors: OSError."""
    text = _text(msgspec.to_builtins(index))
    with open(path, "x", encoding="utf-8") as out:
        out.write(f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}",\n"gt.checkpoint": {text}}}\n')
        out.flush()
        os.fsync(out.fileno())


def _text(content: Any) -> str:
    return json.dumps(content, separators=(",", ":"))


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file of a checkpoint. Errors: DamagedError if it is missing, a link, or no plain file."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing") from None
    except OSError as error:
        if not path.is_symlink():
            raise
        raise DamagedError(f"{path} is a symbolic link, which no checkpoint has: it is not followed") from error
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise DamagedError(f"{path} is not a plain file")
        yield file


def read_index(folder: Path) -> Index:
    """Read a checkpoint's index. Errors: DamagedError if it is damaged or names files outside of its folder."""
    path = folder / INDEX
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_INDEX:
            raise DamagedError(f"{path} is longer than an index can be")
        data = file.read()
    try:
        outer = json.loads(data)
        content = outer["gt.checkpoint"]
        whole = hashlib.sha256(_text(content).encode()).hexdigest() == outer["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: it is not the JSON that was written ({type(error).__name__}: {error})") from None
    if not whole:
        raise DamagedError(f"{path} is damaged: its checksum is another")
    if isinstance(content, dict) and content.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {content.get('version')!r} of the format, this gt reads {VERSION}: use the gt that wrote it"
        )
    try:
        index = msgspec.convert(content, Index)
    except msgspec.ValidationError as error:
        raise DamagedError(f"{path} is not the index of a checkpoint: {error}") from None
    for name in index.files:
        if not PART.fullmatch(name):
            raise DamagedError(f"{path} names {name!r}, which is not a file of a checkpoint: nothing outside of {folder} is read")
    return index


def verify(folder: Path, index: Index) -> None:
    """Compare every file with its checksum. Errors: DamagedError naming the first that differs."""
    for name, wanted in index.files.items():
        path = folder / name
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != wanted.nbytes:
                raise DamagedError(f"{path} is damaged: it has {size:,} bytes, {wanted.nbytes:,} were written")
            digest = hashlib.sha256()
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != wanted.sha256:
            raise DamagedError(f"{path} is damaged: its checksum is {digest.hexdigest()}, not {wanted.sha256}")


class Parts:
    """Reads values by name out of a checkpoint's files, one at a time."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder = folder
        self.at: dict[str, tuple[str, int, Entry]] = {}
        for name, wanted in index.files.items():
            self._enter(name, wanted.nbytes)

    def _enter(self, name: str, nbytes: int) -> None:
        path = self.folder / name
        with opened(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(MAX_HEADER, nbytes - 8):
                raise DamagedError(f"{path} is damaged: a header of {length:,} bytes")
            text = file.read(length)
        try:
            for key, info in json.loads(text).items():
                entry = Entry(key, info["dtype"], tuple(info["shape"]))
                begin, end = info["data_offsets"]
                if min((*entry.shape, begin)) < 0 or end - begin != entry.nbytes or 8 + length + end > nbytes:
                    raise ValueError(f"{key!r} does not fit")
                self.at[key] = (name, 8 + length + begin, entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedError(f"{path} is damaged: {type(error).__name__}: {error}") from None

    def entry(self, key: str) -> Entry:
        """Give what a value is. Errors: DamagedError if no file has it."""
        if key not in self.at:
            raise DamagedError(f"{self.folder}: no file holds {key!r}, which the index names")
        return self.at[key][2]

    def read(self, key: str) -> np.ndarray:
        """Give a value; bfloat16 as the 16 bits of each element. Errors: DamagedError if no file has it."""
        self.entry(key)
        name, begin, entry = self.at[key]
        array = np.empty(entry.shape, DTYPES[entry.code])
        with opened(self.folder / name) as file:
            file.seek(begin)
            read = file.readinto(array.reshape(-1).view(np.uint8).data) if array.nbytes else 0  # type: ignore[attr-defined]
        if read != array.nbytes:
            raise DamagedError(f"{self.folder / name} is damaged: it ends in the middle of {key!r}")
        return array


__all__ = [
    "CODES", "DTYPES", "INDEX", "DamagedError", "Entry", "FileInfo", "Index", "Parts", "opened", "read_index", "split", "stored", "verify",
    "write_index", "write_part",
]  # fmt: skip

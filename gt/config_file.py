"""Reads signal configuration from YAML, and says where a fault is: file, line, column and key.

Owns: ``read_config``, ``parse_config``. Must not know: the process's configuration.
Next: ``gt.ir.signals`` (the schema).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import yaml

from gt.config import ConfigError, did_you_mean
from gt.ir.advice import nearest
from gt.ir.signals import (
    MeshAxes,
    ParamRules,
    ShardConfig,
    SignalConfig,
    SignalFault,
    WrongType,
    WrongValue,
    byte_limit,
    contradiction,
    dotted,
    mesh_axes,
    shown,
    truth,
)  # fmt: skip
from gt.runtime.recovery import Recovery

_SIGNAL_KEYS = ("shard", "backward", "compile", "mesh", "params")  # what a file may say of one signal
AUTO = "auto"  # in place of a shard: search for it
_SHARD_KEYS = tuple(field.name for field in msgspec.structs.fields(ShardConfig))
_CLASHES = (("dims", "axis"), ("dims", "replicated"), ("replicated", "axis"))  # of a shard: one or the other


class ConfigFile(NamedTuple):
    """What a file says: signals by name, strictness, the mesh, and rules for parameters.

    ``search``: look for the best placement of what no signal places. ``memory_limit``: bytes of each worker to stay within.
    ``recovery``: how to get over the loss of a worker. ``places``: file, line and column of each signal, and of
    what is said of work that no signal marks.
    """

    signals: dict[str, SignalConfig]
    strict: bool | None = None
    mesh: MeshAxes = ()
    params: ParamRules = ()
    search: bool = False
    memory_limit: int | None = None
    recovery: Recovery | None = None
    places: Mapping[str, str] = MappingProxyType({})


def read_config(path: str | os.PathLike[str], named: str = "") -> ConfigFile:
    """Read a YAML file; errors of opening it call it ``named``. Errors: ConfigError with file, line, column and key."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"expected the path of a YAML file, got {type(path).__name__}")
    name, file = os.fspath(path), Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 text at byte {error.start}") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        what = error.strerror if isinstance(error, OSError) else None
        raise ConfigError(f"{named or name}: {what or error}{_files_beside(file)}") from error
    return parse_config(text, name)


def _files_beside(file: Path) -> str:
    """Give which YAML file may be meant instead of one that cannot be read."""
    folder = file if file.is_dir() else file.parent
    try:
        return did_you_mean(file.name, (f.name for f in folder.iterdir() if f.suffix in (".yaml", ".yml")))
    except (OSError, ValueError):
        return ""


def parse_config(text: str, name: str = "<string>") -> ConfigFile:
    """Read YAML text; ``name`` stands for the file in errors."""
    root, data = _read_yaml(text, name)
    if root is None:
        return ConfigFile({})
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{_at(name, root.start_mark)}: expected a mapping of signal names, got {_kind(data)}")
    signals: dict[str, SignalConfig] = {}
    places: dict[str, str] = {}
    strict: bool | None = None
    whole = SignalConfig()  # what the file says of every signal
    search, memory_limit, recovery = False, None, None
    for key, value in data.items():
        where = _child(root, key)
        if not isinstance(key, str):
            raise ConfigError(f"{_at(name, where[0].start_mark)}: a signal's name must be text, got {key!r}: quote it")
        if not key:
            raise ConfigError(f"{_at(name, where[0].start_mark)}: a signal's name must not be empty")
        if key == "strict" and not (isinstance(value, dict) and set(value) & set(_SIGNAL_KEYS)):
            with _placed(root, name):
                strict = truth(value, "strict")
        elif key == "shard" and value == AUTO:
            search = True
        elif key == "memory_limit" and not (isinstance(value, dict) and set(value) & set(_SIGNAL_KEYS)):
            with _placed(root, name):
                memory_limit = byte_limit(value, "memory_limit")
        elif key == "recover" and not (isinstance(value, dict) and set(value) & set(_SIGNAL_KEYS)):
            with _placed(root, name):
                recovery = _recovery(value)
        elif key in ("mesh", "params") and not (isinstance(value, dict) and set(value) & set(_SIGNAL_KEYS)):
            with _placed(root, name):
                whole = msgspec.structs.replace(whole, **{key: value})
            if key == "params" or "" not in places:
                places[""] = _at(name, where[0].start_mark)
        else:
            if isinstance(value, dict) and value.get("shard") == AUTO:
                search, value = True, {k: v for k, v in value.items() if k != "shard"}
            signals[key] = _signal(key, value, where[1], name)
            places[key] = _at(name, where[0].start_mark)
    for key, config in (*signals.items(), ("", whole)):
        _check_axes(key, config, mesh_axes(config.mesh or whole.mesh), root, name)
        _check_workers(key, config, mesh_axes(config.mesh or whole.mesh), root, name)
    params: ParamRules = tuple(whole.params)  # type: ignore[arg-type]
    return ConfigFile(signals, strict, mesh_axes(whole.mesh), params, search, memory_limit, recovery, places)


def _read_yaml(text: str, name: str) -> tuple[yaml.Node | None, Any]:
    """Give the YAML nodes, which know their lines, and the plain values."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
            if root is not None:
                _check_keys(root, name)
            return root, None if root is None else loader.construct_document(root)
        finally:
            loader.dispose()
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        what = ": ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{_at(name, error.problem_mark or error.context_mark)}: {what}") from error
    except yaml.reader.ReaderError as error:
        lines = text[: error.position].split("\n")
        raise ConfigError(f"{name}:{len(lines)}:{len(lines[-1]) + 1}: unprintable character") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or number that does not exist
        raise ConfigError(f"{name}: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deep") from error


def _signal(key: str, value: Any, node: yaml.Node, name: str) -> SignalConfig:
    """Read one signal."""
    if value is None:
        return SignalConfig()
    with _placed(node, name, key):
        if not isinstance(value, dict):
            hint = _top_level(key, value)
            raise WrongType(f"expected what a signal asks for, as in {{shard: {{axis: 0}}}}, got {shown(value)}{hint}")
        if key == "shard" and any(k in _SHARD_KEYS for k in value):
            raise WrongValue(
                f"at the top of a file it is {AUTO!r} or a signal's name: what to split stands in a signal, as in NAME: {{shard: ...}}",
                on_key=True,
            )
        near = nearest(key, ("mesh", "params"))
        _check_known(value, _SIGNAL_KEYS, meant=f"{near[:-1]} instead of {key!r}?" if near else "")
        given = {"backward_signal" if k == "backward" else k: v for k, v in value.items()}
        if given.get("shard") is not None:
            given["shard"] = _shard(given["shard"])
        return SignalConfig(**given)


def _recovery(value: Any) -> Recovery | None:
    """Read ``recover``: true, false, or numbers by name."""
    if not isinstance(value, dict):
        return Recovery() if truth(value, "recover") else None
    try:
        _check_known(value, Recovery.__struct_fields__)
        return Recovery(**value)
    except SignalFault as error:
        raise type(error)(error.what, "recover", *error.keys, on_key=error.on_key) from error


def _shard(value: Any) -> ShardConfig:
    if not isinstance(value, dict):
        near = nearest(value, [AUTO]) if isinstance(value, str) else ""
        raise WrongType(f"expected what to split, as in {{axis: 0}}, or {AUTO!r}, got {shown(value)}{near}", "shard")
    _check_known(value, _SHARD_KEYS, "shard")
    given = {k for k in value if k != "replicated" or value[k]}
    for a, b in _CLASHES:
        if a in given and b in given:
            raise _under("shard", contradiction(a, b))
    try:
        return ShardConfig(**value)
    except SignalFault as error:
        raise _under("shard", error) from None


def _under(key: str, fault: SignalFault) -> SignalFault:
    return type(fault)(fault.what, key, *fault.keys, on_key=fault.on_key)


def _check_known(given: Mapping[Any, Any], known: Sequence[str], *keys: str, meant: str = "") -> None:
    for key in given:
        if key not in known:
            hint = nearest(str(key), known) or meant or did_you_mean(str(key), known)
            raise WrongValue(f"unknown key {key!r}{hint}", *keys, key, on_key=True)


def _top_level(key: str, value: object) -> str:
    """Give what a key with a plain value at the top of the file may have been meant to be."""
    if key == "shard":
        return nearest(str(value), [AUTO]) or f", or {AUTO!r}"
    if key in _SIGNAL_KEYS:
        return f"; {key!r} stands in a signal, as in NAME: {{{key}: ...}}"
    if key in _SHARD_KEYS:
        return f"; {key!r} stands in a signal's shard, as in NAME: {{shard: {{{key}: ...}}}}"
    return nearest(key, ("strict", "memory_limit", "mesh", "params", "shard", "recover"))


@contextmanager
def _placed(node: yaml.Node, name: str, signal: str = "") -> Iterator[None]:
    """Say of a fault below ``node`` in which line it is."""
    try:
        yield
    except SignalFault as error:
        where = _follow(node, error.keys, error.on_key)
        keys = ["backward" if key == "backward_signal" else key for key in error.keys]
        if error.on_key and error.what.startswith("unknown key"):
            keys = keys[:-1]  # it is in the words
        path = ("." if signal and keys and isinstance(keys[0], str) else "").join(filter(None, (signal, dotted(keys))))
        raise ConfigError(f"{_at(name, where.start_mark)}: {path}: {error.what}") from error


def _check_axes(key: str, config: SignalConfig, mesh: MeshAxes, root: yaml.MappingNode, name: str) -> None:
    """Refuse a mesh axis that the file's mesh lacks. Without a mesh here, another file or Python may bring it."""
    known = dict(mesh)
    for axis in config.axes if known else ():
        if axis not in known:
            node = _child(root, key)[1] if key else root
            where = _scalar(node, axis) or node
            raise ConfigError(
                f"{_at(name, where.start_mark)}: {key or 'params'}: the mesh has no axis {axis!r}"
                f"{did_you_mean(axis, known)}"
            )


def _check_workers(key: str, config: SignalConfig, mesh: MeshAxes, root: yaml.MappingNode, name: str) -> None:
    """Refuse workers beside ``dims`` that the file's mesh cannot be laid over."""
    shard = config.shard
    if shard is None or shard.workers is None or not shard.axes or not mesh:
        return
    count, fixed = len(shard.workers), math.prod(size for _, size in mesh if size != -1)
    if count % fixed == 0 and (count == fixed or any(size == -1 for _, size in mesh)):
        return
    where = _follow(_child(root, key)[1], ("shard", "workers"), False)
    text = ", ".join(f"{axis}: {size}" for axis, size in mesh)
    wanted = f"a multiple of {fixed}" if any(size == -1 for _, size in mesh) else str(fixed)
    raise ConfigError(
        f"{_at(name, where.start_mark)}: {key}.shard.workers: the mesh {{{text}}} is laid over {wanted} workers, got {count}"
    )


def _scalar(node: yaml.Node, text: str) -> yaml.Node | None:
    """Give the first value below ``node`` that reads ``text``."""
    if isinstance(node, yaml.ScalarNode):
        return node if node.value == text else None
    children = [v for _, v in node.value] if isinstance(node, yaml.MappingNode) else node.value
    return next((found for child in children if (found := _scalar(child, text)) is not None), None)


def _same_key(key: yaml.ScalarNode) -> tuple[str, object]:
    """Give what two keys have in common that are one to Python: 1, +1 and 0x1 are one number."""
    if key.tag != "tag:yaml.org,2002:int":
        return key.tag, key.value
    return key.tag, yaml.constructor.SafeConstructor().construct_object(key)


def _check_keys(root: yaml.Node, name: str) -> None:
    """Refuse a key given twice in one mapping; YAML itself would keep the last without a word."""
    todo, seen = [root], {id(root)}
    while todo:
        node = todo.pop()
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            first: dict[tuple[str, object], yaml.Node] = {}
            for key, value in node.value:
                children += (key, value)
                if isinstance(key, yaml.ScalarNode):
                    before = first.setdefault(_same_key(key), key)
                    if before is not key:
                        line = before.start_mark.line + 1
                        raise ConfigError(f"{_at(name, key.start_mark)}: key {key.value!r} is already on line {line}")
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        for child in children:
            if id(child) not in seen:
                seen.add(id(child))
                todo.append(child)


def _follow(node: yaml.Node, keys: Sequence[object], on_key: bool) -> yaml.Node:
    """Walk keys down the YAML nodes as far as they lead; give where that is, the last key itself if ``on_key``."""
    for at, key in enumerate(keys):
        if isinstance(node, yaml.MappingNode):
            entry = _child(node, "backward" if key == "backward_signal" and not on_key else key)
            if entry[1] is node:  # merged from elsewhere
                return node
            node = entry[0 if on_key and at == len(keys) - 1 else 1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(key, int):
            node = node.value[key]
    return node


def _child(node: yaml.MappingNode, key: object) -> tuple[yaml.Node, yaml.Node]:
    """Give the key and value nodes of a mapping's entry; the mapping itself where a key is not a plain scalar."""
    for key_node, value_node in reversed(node.value):
        if isinstance(key_node, yaml.ScalarNode) and (key_node.value == key or str(key) == key_node.value):
            return key_node, value_node
    return node, node


def _at(name: str, mark: yaml.Mark | None) -> str:
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__


__all__ = ["ConfigError", "ConfigFile", "did_you_mean", "parse_config", "read_config"]

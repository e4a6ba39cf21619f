"""Reads signal configuration from YAML, and says where a fault is: file, line, column and key.

Owns: ``read_config``, ``parse_config``. Must not know: the process's configuration.
Next: ``gt.ir.signals`` (the schema).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import yaml

from gt.config import ConfigError, did_you_mean
from gt.ir.signals import MeshAxes, ParamRules, ShardConfig, SignalConfig, mesh_axes

_SIGNAL_KEYS = ("shard", "backward", "compile", "mesh", "params")  # what a file may say of one signal
AUTO = "auto"  # in place of a shard: search for it
_CLASHES = (("dims", "axis"), ("dims", "replicated"), ("replicated", "axis"))  # of a shard: one or the other


class ConfigFile(NamedTuple):
    """What a file says: signals by name, strictness, the mesh, and rules for parameters.

    ``search``: look for the best placement of what no signal places, within ``memory_bytes`` of each worker.
    """

    signals: dict[str, SignalConfig]
    strict: bool | None = None
    mesh: MeshAxes = ()
    params: ParamRules = ()
    search: bool = False
    memory_bytes: int | None = None


def read_config(path: str | os.PathLike[str]) -> ConfigFile:
    """Read a YAML file. Errors: ConfigError with file, line, column and key; OSError."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 text at byte {error.start}") from error
    return parse_config(text, name)


def parse_config(text: str, name: str = "<string>") -> ConfigFile:
    """Read YAML text; ``name`` stands for the file in errors."""
    root, data = _read_yaml(text, name)
    if root is None:
        return ConfigFile({})
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{_at(name, root.start_mark)}: expected a mapping of signal names, got {_kind(data)}")
    signals: dict[str, SignalConfig] = {}
    strict: bool | None = None
    whole = SignalConfig()  # what the file says of every signal
    search, memory_bytes = False, None
    for key, value in data.items():
        where = _child(root, key)
        if not isinstance(key, str):
            raise ConfigError(f"{_at(name, where[0].start_mark)}: a signal's name must be text, got {key!r}: quote it")
        if key == "strict" and not isinstance(value, dict):
            if not isinstance(value, bool):
                raise ConfigError(f"{_at(name, where[1].start_mark)}: strict: expected true or false, got {value!r}")
            strict = value
        elif key == "shard" and value == AUTO:
            search = True
        elif key == "memory_bytes" and not isinstance(value, dict):
            memory_bytes = _memory_bytes(value, where[1], name)
        elif key in ("mesh", "params") and not (isinstance(value, dict) and set(value) & set(_SIGNAL_KEYS)):
            found = _signal("", {key: value}, root, name)
            whole = msgspec.structs.replace(whole, **{key: getattr(found, key)})
        else:
            if isinstance(value, dict) and value.get("shard") == AUTO:
                search, value = True, {k: v for k, v in value.items() if k != "shard"}
            signals[key] = _signal(key, value, where[1], name)
    if memory_bytes is not None and not search:
        mark = _child(root, "memory_bytes")[0].start_mark
        raise ConfigError(f"{_at(name, mark)}: memory_bytes is what a search keeps within: add 'shard: {AUTO}'")
    for key, config in (*signals.items(), ("", whole)):
        _check_axes(key, config, mesh_axes(config.mesh or whole.mesh), root, name)
    params: ParamRules = tuple(whole.params)  # type: ignore[arg-type]
    return ConfigFile(signals, strict, mesh_axes(whole.mesh), params, search, memory_bytes)


def _memory_bytes(value: Any, node: yaml.Node, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"{_at(name, node.start_mark)}: memory_bytes: expected a number of bytes from 1 up, got {value!r}")
    return value


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
    """Read one signal; ``key`` is "" for what stands at the top of the file."""
    if value is None:
        return SignalConfig()
    try:
        _check_clashes(key, value, node, name)
        return msgspec.convert(value, SignalConfig)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `")
        path = path.rstrip("`").rpartition("$")[2].replace("[...]", "")
        where, keys = _follow(node, path or ("" if key else f".{next(iter(value))}"))
        unknown = re.search(r"unknown field `(.*)`", what)
        if unknown and isinstance(where, yaml.MappingNode):
            known = [f.encode_name for f in msgspec.structs.fields(ShardConfig)] if keys else _SIGNAL_KEYS
            what = f"unknown key {unknown[1]!r}{did_you_mean(unknown[1], known)}"
            where = _child(where, unknown[1])[0]
        raise ConfigError(f"{_at(name, where.start_mark)}: {'.'.join(k for k in [key, *keys] if k)}: {what}") from error
    except RecursionError as error:
        raise ConfigError(f"{_at(name, node.start_mark)}: {key}: nested too deep") from error


def _check_clashes(key: str, value: Any, node: yaml.Node, name: str) -> None:
    """Refuse keys that contradict each other, and those that only gt fills in."""
    if isinstance(value, dict) and "backward_config" in value:
        where = _child(node, "backward_config")[0] if isinstance(node, yaml.MappingNode) else node
        hint = did_you_mean("backward_config", _SIGNAL_KEYS)
        raise ConfigError(f"{_at(name, where.start_mark)}: {key}: unknown key 'backward_config'{hint}")
    shard = value.get("shard") if isinstance(value, dict) else None
    if not isinstance(shard, dict):
        return
    given = {k for k in shard if k != "replicated" or shard[k]}
    for a, b in _CLASHES:
        if a in given and b in given:
            where = _child(_child(node, "shard")[1], b)[0]  # type: ignore[arg-type]
            raise ConfigError(
                f"{_at(name, where.start_mark)}: {key}.shard: {a} and {b} contradict each other: remove one of them"
            )


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


def _scalar(node: yaml.Node, text: str) -> yaml.Node | None:
    """Give the first value below ``node`` that reads ``text``."""
    if isinstance(node, yaml.ScalarNode):
        return node if node.value == text else None
    children = [v for _, v in node.value] if isinstance(node, yaml.MappingNode) else node.value
    return next((found for child in children if (found := _scalar(child, text)) is not None), None)


def _check_keys(root: yaml.Node, name: str) -> None:
    """Refuse a key given twice in one mapping; YAML itself would keep the last without a word."""
    todo, seen = [root], {id(root)}
    while todo:
        node = todo.pop()
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            first: dict[tuple[str, str], yaml.Node] = {}
            for key, value in node.value:
                children += (key, value)
                if isinstance(key, yaml.ScalarNode):
                    before = first.setdefault((key.tag, key.value), key)
                    if before is not key:
                        line = before.start_mark.line + 1
                        raise ConfigError(f"{_at(name, key.start_mark)}: key {key.value!r} is already on line {line}")
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        for child in children:
            if id(child) not in seen:
                seen.add(id(child))
                todo.append(child)


def _follow(node: yaml.Node, path: str) -> tuple[yaml.Node, list[str]]:
    """Walk a msgspec error path such as ``.shard.workers[0]`` down the YAML nodes; give where it ends and the keys."""
    keys: list[str] = []
    for field, index in re.findall(r"\.([^.\[]+)|\[(\d+)\]", path):
        if field and isinstance(node, yaml.MappingNode):
            node = _child(node, field)[1]
            keys.append(field)
        elif index and isinstance(node, yaml.SequenceNode):
            node = node.value[int(index)]
            keys[-1] += f"[{index}]"
    return node, keys


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

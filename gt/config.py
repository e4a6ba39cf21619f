"""Signal configuration: from YAML files and from Python, one table per process.

Owns: ``load_config``, ``register_config``, ``get_config``, ``get_signal_config``, and how a fault in a file is
reported (file, line, column, key). Must not know: tensors, sessions.
Next: ``gt.ir.signals`` (the schema), ``gt.signal`` (marking).
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import yaml

from gt.ir.signals import ShardConfig, SignalConfig
from gt.runtime import env

_PACKAGE = str(Path(__file__).resolve().parent) + os.sep


class ConfigError(ValueError):
    """A configuration file or entry that cannot be used. Names file, line, column and key where there are any."""


class UnknownSignal(ConfigError, LookupError):
    """In strict mode: a signal was used that no configuration names."""


class SignalWarning(UserWarning):
    """A signal is ignored. Values stay the same; only placement differs from what was asked."""


class Config:
    """Signals by name. A later registration of a name replaces the earlier one.

    ``version`` grows with every change, so that a caller may keep what it looked up.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._signals: dict[str, SignalConfig] = {}
        self._warned: set[str] = set()
        self._strict = False
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    @property
    def strict(self) -> bool:
        """Say whether using an unknown signal is an error."""
        return self._strict

    @strict.setter
    def strict(self, value: bool) -> None:
        with self._lock:
            self._strict = value
            self._changed()

    @property
    def signals(self) -> Mapping[str, SignalConfig]:
        """Give every registered signal, as a read-only copy."""
        with self._lock:
            return MappingProxyType(dict(self._signals))

    def __repr__(self) -> str:
        return f"<Config {sorted(self.signals)}{' strict' if self.strict else ''}>"

    def has_signal(self, name: str) -> bool:
        return name in self._signals

    def load(self, path: str | os.PathLike[str]) -> None:
        """Add the signals of a YAML file. Nothing is added if the file has a fault. Errors: ConfigError, OSError."""
        signals, strict = read_config(path)
        with self._lock:
            self._signals.update(signals)
            if strict is not None:
                self._strict = strict
            self._changed()

    def register_signal(self, name: str, config: SignalConfig) -> None:
        """Add one signal. Errors: TypeError unless ``config`` is a SignalConfig."""
        if not isinstance(config, SignalConfig):
            raise TypeError(f"expected a gt.SignalConfig for signal {name!r}, got {type(config).__name__}")
        with self._lock:
            self._signals[name] = config
            self._changed()

    def get_signal(self, name: str) -> SignalConfig | None:
        """Give what a signal asks for, or None if nothing names it: one warning each, an UnknownSignal if strict."""
        found = self._signals.get(name)
        if found is None:
            self._unknown(name)
        return found

    def cannot_follow(self, text: str) -> None:
        """Say that a signal is not followed as asked: a warning, or a ConfigError if strict."""
        if self._strict:
            raise ConfigError(text)
        _warn(text)

    def clear(self) -> None:
        """Forget every signal, and strictness."""
        with self._lock:
            self._signals.clear()
            self._strict = False
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._warned.clear()

    def _unknown(self, name: str) -> None:
        with self._lock:
            known, strict = sorted(self._signals), self._strict
            # With no configuration at all one warning stands for every name.
            mark = name if known else ""
            silent = mark in self._warned
            self._warned.add(mark)
        if known:
            text = f"signal {name!r} is not configured{did_you_mean(name, known)}"
        else:
            text = f"signal {name!r} is ignored: none is configured (GT_CONFIG, gt.load_config, gt.register_config)"
        if strict:
            raise UnknownSignal(text)
        if not silent:
            _warn(text + (": ignored" if known else ""))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give ``"; did you mean 'x'?"`` for the nearest known word, or what is known if none is near."""
    choices = sorted(known)
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; known: {', '.join(choices[:8])}{', ...' if len(choices) > 8 else ''}" if choices else ""


def _warn(text: str) -> None:
    """Warn at the nearest line outside this package, and outside the ``with`` that may have led here."""
    frame, level = sys._getframe(0), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_PACKAGE, contextlib.__file__)):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, SignalWarning, stacklevel=level)


# -- the process's configuration

_lock = threading.Lock()
_config: Config | None = None


def get_config() -> Config:
    """Give this process's configuration. The first call loads the file that ``GT_CONFIG`` names, if it names one."""
    global _config
    found = _config
    if found is None:
        with _lock:
            found = _config
            if found is None:
                found = Config()
                found.strict = env.STRICT.get()
                path = env.CONFIG.get()
                if path:
                    try:
                        found.load(path)
                    except OSError as error:
                        raise ConfigError(f"GT_CONFIG={path}: {error.strerror or error}") from error
                _config = found
    return found


def load_config(path: str | os.PathLike[str]) -> Config:
    """Add the signals of a YAML file to this process's configuration. Errors: ConfigError, OSError."""
    config = get_config()
    config.load(path)
    return config


def register_config(name: str, config: SignalConfig) -> None:
    """Add one signal to this process's configuration, in place of an earlier one of that name."""
    get_config().register_signal(name, config)


def get_signal_config(name: str) -> SignalConfig | None:
    """Give what a signal asks for. Unknown names: None and one warning, or UnknownSignal in strict mode."""
    return get_config().get_signal(name)


# -- reading a file


def read_config(path: str | os.PathLike[str]) -> tuple[dict[str, SignalConfig], bool | None]:
    """Read signals and strictness from a YAML file. Errors: ConfigError with file, line, column and key; OSError."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 text at byte {error.start}") from error
    return parse_config(text, name)


def parse_config(text: str, name: str = "<string>") -> tuple[dict[str, SignalConfig], bool | None]:
    """Read signals and strictness from YAML text; ``name`` stands for the file in errors."""
    root, data = _read_yaml(text, name)
    if root is None:
        return {}, None
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{_at(name, root.start_mark)}: expected a mapping of signal names, got {_kind(data)}")
    signals: dict[str, SignalConfig] = {}
    strict: bool | None = None
    for key, value in data.items():
        where = _child(root, key)
        if not isinstance(key, str):
            raise ConfigError(f"{_at(name, where[0].start_mark)}: a signal's name must be text, got {key!r}: quote it")
        if key == "strict" and not isinstance(value, dict):
            if not isinstance(value, bool):
                raise ConfigError(f"{_at(name, where[1].start_mark)}: strict: expected true or false, got {value!r}")
            strict = value
        else:
            signals[key] = _signal(key, value, where[1], name)
    return signals, strict


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
    if value is None:
        return SignalConfig()
    try:
        return msgspec.convert(value, SignalConfig)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        where, keys = _follow(node, path.rstrip("`"))
        unknown = re.search(r"unknown field `(.*)`", what)
        if unknown and isinstance(where, yaml.MappingNode):
            known = [f.encode_name for f in msgspec.structs.fields(ShardConfig if keys else SignalConfig)]
            what = f"unknown key {unknown[1]!r}{did_you_mean(unknown[1], known)}"
            where = _child(where, unknown[1])[0]
        raise ConfigError(f"{_at(name, where.start_mark)}: {'.'.join([key, *keys])}: {what}") from error
    except RecursionError as error:
        raise ConfigError(f"{_at(name, node.start_mark)}: {key}: nested too deep") from error


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


__all__ = [
    "Config", "ConfigError", "ShardConfig", "SignalConfig", "SignalWarning", "UnknownSignal",
    "did_you_mean", "get_config", "get_signal_config", "load_config", "parse_config", "read_config", "register_config",
]  # fmt: skip

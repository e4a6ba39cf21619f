"""Signal configuration: from YAML files and from Python, one table per process.

Owns: ``load_config``, ``auto_shard``, ``register_config``, ``register_mesh``, ``register_params``, ``get_config``, ``get_signal_config``:
what names mean, each signal with the mesh and the rules for parameters that it uses. Must not know: tensors, sessions.
Next: ``gt.config_file`` (reading YAML), ``gt.ir.signals`` (the schema), ``gt.signal`` (marking).
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from gt.ir.advice import Advised, nearest
from gt.ir.blame import warn_user
from gt.ir.signals import (
    MeshAxes,
    ParamRules,
    PlanOptions,
    ShardConfig,
    SignalConfig,
    SignalFault,
    byte_limit,
    mesh_axes,
    param_rules,
    truth,
    work_of,
)  # fmt: skip
from gt.runtime import env
from gt.runtime.recovery import Recovery


class ConfigError(Advised, ValueError):
    """A configuration file or entry that cannot be used. Names file, line, column and key where there are any."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Give ``"; did you mean 'x'?"`` for the nearest known word, or what is known if none is near."""
    choices = sorted(known)
    if near := nearest(word, choices):
        return near
    return f"; known: {', '.join(choices[:8])}{', ...' if len(choices) > 8 else ''}" if choices else ""


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
        self._places: dict[str, str] = {}  # of those that a file says
        self._resolved: dict[str, SignalConfig] = {}  # each with the mesh and rules that it uses
        self._mesh: MeshAxes = ()
        self._params: ParamRules = ()
        self._auto: Literal["search"] | None = None
        self._budgets: list[int] = []
        self._memory_limit: int | None = None
        self.recovery: Recovery | None = None  # see ``gt.recover``; it counts when a session begins
        self._warned: set[str] = set()
        self._strict = False
        self._by_hand = False
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
            self._strict = truth(value, "strict")
            self._changed()

    @property
    def signals(self) -> Mapping[str, SignalConfig]:
        """Give every registered signal, as a read-only copy."""
        with self._lock:
            return MappingProxyType(dict(self._signals))

    @property
    def mesh(self) -> dict[str, int]:
        """Give the mesh: sizes of its axes by name, row-major over the workers."""
        return dict(self._mesh)

    @property
    def params(self) -> ParamRules:
        """Give the rules for parameters, the first that matches a name counts."""
        return self._params

    @property
    def base(self) -> tuple[str, SignalConfig] | None:
        """Give the signal of work that no scope marks: the rules for parameters, or the mesh to search; None if there are none."""
        needed = self._params or (self._auto == "search" and self._mesh)
        return ("", SignalConfig(mesh=self._mesh, params=self._params)) if needed else None

    @property
    def options(self) -> PlanOptions:
        """Give what is asked of the planning of all work from here on. Where anything is configured, nothing is automatic."""
        configured = bool(self._signals or self._mesh or self._params or self._by_hand)
        auto = self._auto or ("rows" if env.AUTO_SHARD.get() and not configured else "off")
        return PlanOptions(auto, self._strict, self.comm_bytes, self._memory_limit)

    @property
    def comm_bytes(self) -> int | None:
        """Give how many bytes one worker may send in a run, the least of the budgets there are; None if there is no limit."""
        return min(self._budgets, default=None)

    @property
    def memory_limit(self) -> int | None:
        """Give the bytes within which a run is to stay on each worker; None if there is no limit. See ``gt.memory_limit``."""
        return self._memory_limit

    @memory_limit.setter
    def memory_limit(self, given: int | str | None) -> None:
        with self._lock:
            self._memory_limit = None if given is None else byte_limit(given, "memory_limit")
            self._version += 1  # what gt.jit recorded was planned for another limit

    def search(self, on: bool = True) -> None:
        """Look for the fastest placement of what no signal places, within the memory limit, if there is one; or stop to."""
        truth(on, "on")
        with self._lock:
            self._auto = "search" if on else None
            self._changed()

    def placed_by_hand(self) -> None:
        """Count as configured from here on: work is placed by signals that no configuration names."""
        with self._lock:
            self._by_hand = True
            self._changed()

    def begin_budget(self, nbytes: int) -> None:
        """Make it an error to flush work in which one worker sends more than ``nbytes``. See ``gt.comm_budget``."""
        with self._lock:
            self._budgets = [*self._budgets, nbytes]

    def end_budget(self, nbytes: int) -> None:
        """Take a budget away, in any order: other threads' begin and end meanwhile."""
        with self._lock:
            left = list(self._budgets)
            if nbytes in left:  # else forgotten by ``clear``
                left.remove(nbytes)
            self._budgets = left

    def __repr__(self) -> str:
        return f"<Config {sorted(self.signals)}{' strict' if self.strict else ''}>"

    def has_signal(self, name: str) -> bool:
        return name in self._signals

    def entered_as(self, name: str, config: SignalConfig) -> str:
        """Give the name that a scope was entered by: a backward of its own is in the name it is recorded under."""
        return name if name in self._signals else name.removesuffix(f">{config.backward_signal}")

    def load(self, path: str | os.PathLike[str], named: str = "") -> None:
        """Add what a YAML file says. Nothing is added if the file has a fault. Errors: ConfigError, for an unreadable file, too.

        ``named``: what such an error calls the file (default: its path).
        """
        from gt.config_file import read_config  # loads a YAML parser

        found = read_config(path, named)
        with self._lock:
            self._signals.update(found.signals)
            self._places.update(found.places)
            self._mesh = found.mesh or self._mesh
            self._params = found.params or self._params
            if found.strict is not None:
                self._strict = found.strict
            if found.search:
                self.search()
            if found.memory_limit is not None:
                self.memory_limit = found.memory_limit
            self.recovery = found.recovery or self.recovery
            self._changed()

    def load_from_env(self, env_var: str = "GT_CONFIG") -> None:
        """Add what the YAML file says that an environment variable names, if it names one. Errors: ConfigError."""
        path = env.text_of(env_var)
        if path:
            self.load(path, f"{env_var}={path}")

    def register_signal(self, name: str, config: SignalConfig) -> None:
        """Add one signal. Errors: TypeError unless ``name`` is text and ``config`` a SignalConfig; ConfigError for an empty name."""
        if not isinstance(name, str):
            raise TypeError(f"a signal's name must be text, got {name!r}")
        if not name:
            raise ConfigError("a signal's name must not be empty")
        if not isinstance(config, SignalConfig):
            raise TypeError(f"expected a gt.SignalConfig for signal {name!r}, got {type(config).__name__}")
        with self._lock:
            self._signals[name] = config
            self._places.pop(name, None)
            self._changed()

    def register_mesh(self, mesh: Mapping[str, int]) -> None:
        """Name the axes of the workers, row-major. Errors: ConfigError."""
        with self._lock, _as_config_errors():
            self._mesh = mesh_axes(mesh)
            self._places.pop("", None)
            self._changed()

    def register_params(self, rules: Mapping[str, Mapping[int, Any]]) -> None:
        """Place parameters by the pattern of their name: ``{"*.weight": {1: "tp"}}``. Errors: ConfigError."""
        with self._lock, _as_config_errors():
            self._params = param_rules(rules)
            self._places.pop("", None)
            self._changed()

    def get_signal(self, name: str) -> SignalConfig | None:
        """Give what a signal asks for, or None if nothing names it: one warning each, an UnknownSignal if strict."""
        found = self._signals.get(name)
        if found is None:
            self._unknown(name)
        return found

    def resolve(self, name: str) -> SignalConfig | None:
        """As ``get_signal``, with all that the signal refers to: the mesh, rules for parameters, its backward signal."""
        found = self._resolved.get(name)
        if found is None and (given := self.get_signal(name)) is not None:
            with self._lock:
                found = self._resolved[name] = self._complete(given)
        return found

    def behind(self, scope: SignalConfig) -> tuple[str, SignalConfig] | None:
        """Give the signal that gradients of a scope's work follow, as it was when the scope began; None if none is named."""
        name, asked = scope.backward_signal, scope.backward_config
        if name is None:
            return None
        now = self.resolve(name) if asked is None or self.has_signal(name) else None
        return name, now if now is not None and asked in (None, work_of(now)) else asked or SignalConfig()

    def _complete(self, config: SignalConfig) -> SignalConfig:
        gradients = self._signals.get(config.backward_signal) if config.backward_signal is not None else None
        if gradients is not None:
            gradients = self._with_mesh(msgspec.structs.replace(gradients, backward_signal=None))
        return msgspec.structs.replace(self._with_mesh(config), backward_config=gradients)

    def _with_mesh(self, config: SignalConfig) -> SignalConfig:
        params = (*param_rules(config.params), *self._params)
        uses = bool(config.axes or params)
        mesh = config.mesh or (self._mesh if uses else ())
        return msgspec.structs.replace(config, mesh=mesh, params=params)

    def said_at(self, name: str) -> str:
        """Give `` (at FILE:LINE:COLUMN)`` for a signal that a file says (``""``: what it says of all work), nothing for one registered from Python."""
        place = self._places.get(name)
        return f" (at {place})" if place else ""

    def cannot_follow(self, text: str, place: tuple[str, int] | None = None) -> None:
        """Say that a signal is not followed as asked: a warning, at ``place`` if given, or a ConfigError if strict."""
        if self._strict:
            raise ConfigError(text + (f" (at {place[0]}:{place[1]})" if place is not None else ""))
        if place is None:
            warn_user(text, SignalWarning)
        else:
            warnings.warn_explicit(text, SignalWarning, *place)

    def clear(self) -> None:
        """Forget every signal, the mesh, the rules for parameters, strictness, and recovery for sessions to come."""
        with self._lock:
            self._signals.clear()
            self._places.clear()
            self._mesh, self._params = (), ()
            self._auto, self._budgets, self._memory_limit = None, [], None
            self._strict = self._by_hand = False
            self.recovery = None
            self._changed()

    def _changed(self) -> None:
        self._version += 1
        self._resolved.clear()
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
            warn_user(text + (": ignored" if known else ""), SignalWarning)


@contextlib.contextmanager
def _as_config_errors() -> Iterator[None]:
    try:
        yield
    except SignalFault as error:
        raise ConfigError(str(error)) from error


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
                found.recovery = Recovery() if env.RECOVER.get() else None
                path = env.CONFIG.get()
                if path:
                    found.load(path, f"GT_CONFIG={path}")
                _config = found
    return found


def load_config(path: str | os.PathLike[str]) -> Config:
    """Add the signals of a YAML file to this process's configuration. Errors: ConfigError, for an unreadable file, too."""
    config = get_config()
    config.load(path)
    return config


def register_config(name: str, config: SignalConfig) -> None:
    """Add one signal to this process's configuration, in place of an earlier one of that name."""
    get_config().register_signal(name, config)


def register_mesh(mesh: Mapping[str, int]) -> None:
    """Name the axes of the workers, row-major: ``{"dp": 2, "tp": 4}``; -1 stands for what the others leave."""
    get_config().register_mesh(mesh)


def register_params(rules: Mapping[str, Mapping[int, Any]]) -> None:
    """Place parameters by the pattern of their name: ``{"*.weight": {1: "tp"}, "*": {}}``; the first match counts."""
    get_config().register_params(rules)


def auto_shard(on: bool = True) -> None:
    """Search for the fastest placement of all that no signal places, within ``gt.memory_limit``; or stop to.

    As ``shard: auto`` in a file. From the next flush on, a graph as a whole is placed by an integer program over the ways
    of every op, the time that moving values takes, and memory. Needs SciPy (``pip install 'gt-tensor[solver]'``).
    """
    get_config().search(on)


def get_signal_config(name: str) -> SignalConfig | None:
    """Give what a signal asks for. Unknown names: None and one warning, or UnknownSignal in strict mode."""
    return get_config().get_signal(name)


__all__ = [
    "Config", "ConfigError", "ShardConfig", "SignalConfig", "SignalWarning", "UnknownSignal",
    "auto_shard", "did_you_mean", "get_config", "get_signal_config", "load_config", "register_config",
    "register_mesh", "register_params",
]  # fmt: skip

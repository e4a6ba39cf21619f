"""``load``, ``load_into`` and ``resume``: checkpoints onto whatever workers and signals there are now.

Owns: finding the checkpoint, and giving what it holds to objects. All files are verified before anything is changed; then values are
read and uploaded one object at a time. Where they go is the present signals' matter. Next: ``files``, ``states``, ``saving``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gt.autograd import no_grad
from gt.checkpoint import folders
from gt.checkpoint.files import CODES, INDEX, DamagedError, Index, Parts, read_index, stored, verify
from gt.checkpoint.placing import Place, Places, wanted
from gt.checkpoint.states import NOTHING, give, set_random_state, state_of
from gt.functions.create import upload
from gt.handle import Handle
from gt.ir.types import bfloat16, dtype_of
from gt.nests import Form, read_key, rebuild
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.signal import within
from gt.trace import settle, state

SHOWN = 20  # problems in one error
Where = str | os.PathLike[str]


def latest(folder: Where) -> int | None:
    """Give the step of the newest whole checkpoint in a folder, None if there is none."""
    return max(folders.whole(Path(folder)), default=None)


def load(folder: Where, *, step: int | None = None) -> Any:
    """Give the state that ``save`` was given: objects as their state dicts, tensors as new ones where the present signals place them.

    ``folder``: that of the checkpoints, of which the newest is taken or that of ``step``, or a checkpoint's own. Tensors that were
    one are one. Errors: FileNotFoundError; DamagedError naming the file, before anything is read of any.
    """
    with _reading(folder, step) as found:
        return found.value(found.index.state)


def load_into(folder: Where, state: Any, *, step: int | None = None, strict: bool = True) -> Any:
    """Give what a checkpoint holds to a nest like the one that was saved, and give the nest.

    Objects get their state, tensors their values in place, dicts and lists their other items. Not ``strict``: what the checkpoint
    lacks stays, what it has beyond is left. Errors: as ``load``; ValueError naming what is missing, unexpected, or has another shape,
    with both. That is found before anything is changed; but what an object's own ``load_state_dict`` refuses when it comes to it.
    """
    with _reading(folder, step) as found:
        found.check(found.index.state, state, strict)
        changed = found.into(found.index.state, state, "", strict)
    _settle()
    return changed


@dataclass(frozen=True)
class Resumed:
    """What ``resume`` found: how many steps are done, 0 without a checkpoint; its folder; what else had been saved, by name."""

    step: int = 0
    path: Path | None = None
    rest: dict[str, Any] = field(default_factory=dict)


def resume(folder: Where, *, step: int | None = None, **objects: Any) -> Resumed:
    """Go on from the newest checkpoint in a folder, or that of ``step``; without one, change nothing and say that 0 steps are done.

    ``objects``: those of the dict that was saved, by its keys: modules, optimizers, schedulers, scalers, loaders, generators, tensors.
    The random streams that were saved go on too, in the thread that calls. So a run that is killed and resumed is the run that was not.
    Errors: as ``load_into``; ValueError for an object that was not saved, or was saved and is not given.
    """
    if step is None and not (Path(folder) / INDEX).exists() and latest(folder) is None:
        return Resumed()
    with _reading(folder, step) as found:
        return _resumed(found, objects)


def _resumed(found: _Checkpoint, objects: dict[str, Any]) -> Resumed:
    saved = found.items()
    absent = [name for name in objects if name not in saved]
    left = [name for name, form in saved.items() if name not in objects and _has_objects(form)]
    if absent or left:
        has = ", ".join(map(repr, saved))
        raise ValueError(
            f"{found.path}: resume was given {_listed(absent)}, which was not saved; it has {has}"
            if absent
            else f"{found.path} has {_listed(left)}, which resume was not given: pass it, or use load_into for a part"
        )
    for name, own in objects.items():
        found.check(saved[name], own, True, name)
    rest = {name: found.value(form) for name, form in saved.items() if name not in objects}
    for name, own in objects.items():
        changed = found.into(saved[name], own, name, True)
        if changed is not own:
            rest[name] = changed
    _settle()  # the first step is the graph that it was
    set_random_state(found.value(found.index.random))
    return Resumed(found.index.step, found.path, rest)


def _settle() -> None:
    if state.trace.code:
        settle(state.trace, "gt.checkpoint.load")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))


@contextmanager
def _reading(folder: Where, step: int | None) -> Iterator[_Checkpoint]:
    """Give a verified checkpoint, which stays as long. One that is removed before it is held is none: the newest is another by then."""
    while True:
        path = _find(Path(folder), step)
        with folders.in_use(path):
            try:
                found = _Checkpoint(path)
            except DamagedError:
                if path.exists():
                    raise
                continue
            yield found
            return


def _find(folder: Path, step: int | None) -> Path:
    if folders.NAME.fullmatch(folder.name) and step is None and (folder / INDEX).exists():
        return folder
    there = folders.whole(folder)
    if not there:
        raise FileNotFoundError(f"{folder}: there is no checkpoint")
    if step is not None and step not in there:
        raise FileNotFoundError(f"{folder}: there is no checkpoint of step {step}; there are those of {', '.join(map(str, there))}")
    return there[step if step is not None else max(there)]


def _has_objects(form: Form) -> bool:
    if "object" in form:
        return True
    inner = form.get("list") or form.get("tuple") or [v for _, v in form.get("dict", ())]
    return any(map(_has_objects, inner))


class _Checkpoint:
    """A verified checkpoint: gives values of the forms in its index."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index: Index = read_index(path)
        verify(path, self.index)
        self.parts = Parts(path, self.index)
        self.made: dict[tuple[str, bool, bool], Any] = {}
        self.places: Places = {}
        self._try(self.index.state)
        self._try(self.index.random)

    def items(self) -> dict[str, Form]:
        """Give the forms by the keys of the dict that was saved."""
        form = self.index.state
        if "dict" not in form:
            raise ValueError(f"{self.path} holds no dict of objects, as resume needs it: use load or load_into")
        return {read_key(key): inner for key, inner in form["dict"]}

    def _try(self, form: Form) -> None:
        """Go through a form. Errors: DamagedError unless it is one, and what it names is there in the dtype that it says."""
        try:
            rebuild(form, self._checked)
        except DamagedError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration, RecursionError) as error:
            raise DamagedError(f"{self.path / INDEX} is damaged: {type(error).__name__}: {error}") from None

    def _checked(self, kind: str, form: Form) -> None:
        if kind == "object":
            rebuild(form["object"], self._checked)
            if not isinstance(form["class"], str):
                raise TypeError("a class that is no name")
        elif kind == "array":
            self.parts.entry(form["array"])
        elif kind == "tensor":
            entry, dtype = self.parts.entry(form["tensor"]), dtype_of(form["dtype"])
            plain, pair = stored(dtype)
            if entry.code != CODES[plain] or (pair and entry.shape[-1:] != (2,)):
                raise TypeError(f"{form['tensor']!r} is {entry.code} in its file, which is not {dtype.name}")
        else:
            raise DamagedError(f"{self.path / INDEX} has a {kind!r}, which this gt does not know")

    def value(self, form: Form) -> Any:
        """Give a value anew."""
        return rebuild(form, self._leaf)

    def _leaf(self, kind: str, form: Form) -> Any:
        if kind == "object":
            return rebuild(form["object"], self._leaf)
        if kind == "array":
            return self.parts.read(form["array"])
        key = form["tensor"], bool(form.get("parameter")), bool(form.get("requires_grad"))
        if key not in self.made:
            self.made[key] = self._tensor(*key, form["dtype"])
        return self.made[key]

    def _tensor(self, name: str, parameter: bool, requires_grad: bool, dtype: str) -> Any:
        plain = name, False, False
        if plain not in self.made:
            self.made[plain] = _uploaded(self.parts.read(name), dtype, self.places.get(name))
        if parameter:
            return Parameter(self.made[plain], requires_grad)
        return self.made[plain].detach().requires_grad_() if requires_grad else self.made[plain]

    # -- into what is there

    def check(self, form: Form, given: Any, strict: bool, path: str = "") -> None:
        """Compare with what is to take it. Errors: ValueError listing every difference."""
        problems: list[str] = []
        self._compare(form, given, path, strict, problems)
        if problems:
            more = [f"and {len(problems) - SHOWN} more"] if len(problems) > SHOWN else []
            raise ValueError(f"{self.path} does not fit:\n  " + "\n  ".join(problems[:SHOWN] + more))

    def _compare(self, form: Form, given: Any, path: str, strict: bool, problems: list[str]) -> None:
        what = f"{path or 'the state'!r}"
        if "tensor" in form:
            shape = self._shape(form)
            if not isinstance(given, Handle):
                problems.append(f"{what}: the checkpoint has a tensor of {list(shape)}, here is {type(given).__name__}")
            elif tuple(given.shape) != shape:
                problems.append(f"{what}: the checkpoint has shape {list(shape)}, here it is {list(given.shape)}")
        elif "object" in form:
            own = given.state_dict() if isinstance(given, Module) and not _renames(given) else None
            if own is not None:
                self._compare(form["object"], own, path, strict, problems)
            elif not _takes(given):
                problems.append(f"{what}: the checkpoint has the state of a {form['class']}, here is {type(given).__name__}")
        elif "dict" in form:
            if not isinstance(given, dict):
                problems.append(f"{what}: the checkpoint has a dict, here is {type(given).__name__}")
                return
            saved = {read_key(key): inner for key, inner in form["dict"]}
            join = f"{path}." if path else ""
            if strict:
                problems += [f"missing in the checkpoint: {f'{join}{k}'!r}{_shown(v)}" for k, v in given.items() if k not in saved]
                problems += [
                    f"unexpected in the checkpoint: {f'{join}{k}'!r}{self._shown(v)}" for k, v in saved.items() if k not in given
                ]
            for key in saved.keys() & given.keys():
                self._compare(saved[key], given[key], f"{join}{key}", strict, problems)
        elif "list" in form or "tuple" in form:
            inner: list[Form] = form["list" if "list" in form else "tuple"]
            if not isinstance(given, list | tuple) or len(given) != len(inner):
                here = f"{len(given)} items" if isinstance(given, list | tuple) else type(given).__name__
                problems.append(f"{what}: the checkpoint has {len(inner)} items, here is {here}")
                return
            for i, (one, own) in enumerate(zip(inner, given, strict=True)):
                self._compare(one, own, f"{path}.{i}" if path else str(i), strict, problems)

    def _shape(self, form: Form) -> tuple[int, ...]:
        shape = self.parts.entry(form["tensor"]).shape
        return shape[:-1] if dtype_of(form["dtype"]).kind == "c" else shape

    def _shown(self, form: Form) -> str:
        return f" of shape {list(self._shape(form))}" if "tensor" in form else ""

    def into(self, form: Form, given: Any, path: str, strict: bool) -> Any:
        """Give a value to what takes it; give that, or a new value where it cannot be changed."""
        if "tensor" in form:
            self.places = wanted(form, given)
            with no_grad():
                given.copy_(self.value(form).detach())
            self.made.clear()
            return given
        if "object" in form:
            self._give(form, given, path, strict)
            return given
        join = f"{path}." if path else ""
        if "dict" in form:
            for key, inner in form["dict"]:
                key = read_key(key)
                if key in given:
                    given[key] = self.into(inner, given[key], f"{join}{key}", strict)
            return given
        if "list" in form or "tuple" in form:
            changed = [
                self.into(one, own, f"{join}{i}", strict)
                for i, (one, own) in enumerate(zip(next(iter(form.values())), given, strict=True))
            ]
            if isinstance(given, tuple):
                return type(given)(changed)
            given[:] = changed
            return given
        return self.value(form)

    def _give(self, form: Form, given: Any, path: str, strict: bool) -> None:
        self.places = wanted(form, given)
        own = self.value(form)
        self.made.clear()
        try:
            if isinstance(given, Module):
                given.load_state_dict(own, strict)
            else:
                give(given, own)
        except (ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path}: {path!r} ({form['class']}) does not fit this {type(given).__name__}: {error}"
            ) from error


def _takes(given: Any) -> bool:
    return isinstance(given, Module) or state_of(given) is not NOTHING


def _renames(module: Any) -> bool:
    """Say whether hooks of a module change what it loads, so that its names need not be those of the checkpoint."""
    return any(m.__dict__["_load_state_dict_pre_hooks"] for m in module.modules())


def _shown(value: Any) -> str:
    return f" of shape {list(value.shape)}" if isinstance(value, Handle) else ""


def _uploaded(array: np.ndarray, dtype_name: str, place: Place | None) -> Any:
    """Make a tensor of what is in a file. A bfloat16 is 16 bits there, a complex number a pair."""
    dtype = dtype_of(dtype_name)
    if dtype is bfloat16:
        array = (array.astype(np.uint32) << np.uint32(16)).view(np.float32)
    elif dtype.kind == "c":
        array = array.view(dtype.numpy)[..., 0]
    with within(("a checkpoint", place.signal)) if place is not None and place.shape == array.shape else nullcontext():
        return upload(array, dtype)


__all__ = ["Resumed", "latest", "load", "load_into", "resume"]

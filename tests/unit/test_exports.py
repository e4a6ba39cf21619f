"""The public surface: what ``import gt`` offers is there, is documented, and is nothing by accident."""

from __future__ import annotations

import inspect
import types

import pytest

import gt

QUICK_START = (
    "tensor", "from_numpy", "randn", "zeros", "ones", "no_grad", "manual_seed", "connect", "gpu_workers", "disconnect",
    "num_workers", "load_config", "register_config", "get_config", "get_signal_config", "SignalConfig", "ShardConfig",
    "Tensor", "nn", "optim", "signal",
)  # fmt: skip
SUBMODULES = {
    "nn": ["Module", "Linear", "Sequential", "ReLU", "Parameter", "SGD", "functional"],
    "optim": ["Optimizer", "SGD"],
    "signal": ["context", "enter", "exit", "tensor"],
}
PUBLIC = sorted(name for name in dir(gt) if not name.startswith("_"))


@pytest.mark.parametrize("name", QUICK_START)
def test_the_quick_starts_names_are_there(name: str) -> None:
    assert hasattr(gt, name)


@pytest.mark.parametrize(("module", "names"), SUBMODULES.items(), ids=SUBMODULES)
def test_the_submodules_names_are_there(module: str, names: list[str]) -> None:
    missing = [name for name in names if not hasattr(getattr(gt, module), name)]
    assert not missing


def test_no_foreign_module_leaks_into_the_namespace() -> None:
    leaked = [
        name
        for name in PUBLIC
        if isinstance(value := getattr(gt, name), types.ModuleType) and not value.__name__.startswith("gt.")
    ]
    assert not leaked


@pytest.mark.parametrize(
    "name", [n for n in PUBLIC if callable(getattr(gt, n)) and getattr(gt, n).__module__.startswith("gt.")]
)
def test_public_callables_are_documented(name: str) -> None:
    doc = inspect.getdoc(getattr(gt, name))
    assert doc, f"gt.{name} has no docstring"


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    for name in getattr(gt, "__all__", PUBLIC):
        names[name] = getattr(gt, name)
    assert "Tensor" in names and "tensor" in names

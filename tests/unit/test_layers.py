"""The layers of docs/architecture.md, read from the imports themselves, and what no module may use."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "gt"
FILES = sorted(PACKAGE.rglob("*.py"))
LAYERS = ("gt.ir", "gt.passes", "gt.runtime", "gt")  # each may import itself and what stands before it

# What executes text or unpickles is listed here by file, with the reason it may.
ALLOWED = {
    ("gt/runtime/render.py", "exec"): "runs the source it renders itself from the op table",
    ("gt/torch_files.py", "pickletools"): "names the instructions of torch.save's files; it runs none of them",
    ("gt/runtime/compiler.py", "CompiledArtifact.load"): "Inductor's files; only those of a folder that is this user's alone",
}
FORBIDDEN_MODULES = {"pickle", "_pickle", "cPickle", "pickletools", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN_ATTRIBUTES = {
    ("yaml", "load"), ("yaml", "unsafe_load"), ("yaml", "full_load"), ("yaml", "load_all"),
    ("torch", "load"), ("np", "load"), ("numpy", "load"),
    ("os", "system"), ("os", "popen"), ("CompiledArtifact", "load"), ("torch", "save"), ("jit", "load"), ("hub", "load"),
}  # fmt: skip
FORBIDDEN_METHODS = {  # whoever they belong to
    "recv_pyobj", "send_pyobj", "unsafe_load", "full_load", "load_all", "all_gather_object", "gather_object", "broadcast_object_list",
    "scatter_object_list", "send_object_list", "recv_object_list", "rpc_sync", "rpc_async",
}  # fmt: skip


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer_of(module: str) -> str:
    return next(layer for layer in LAYERS if module == layer or module.startswith(layer + "."))


def is_typing_block(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Give line and absolute module name of each import, those inside functions included, typing-only ones not."""
    module = module_of(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    todo: list[ast.AST] = [parsed(path)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = package.split(".")
                up = up[: len(up) - node.level + 1]
                base = ".".join([*up, base] if base else up)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield node.lineno, full if is_module(full) else base
        elif is_typing_block(node):
            assert isinstance(node, ast.If)
            todo += node.orelse
        else:
            todo += ast.iter_child_nodes(node)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or path.is_dir()


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_there_is_something_to_check() -> None:
    assert {"gt/ir/graph.py", "gt/passes/plan.py", "gt/runtime/session.py"} <= {named(p) for p in FILES}


@pytest.mark.parametrize("path", FILES, ids=named)
def test_imports_run_only_downward(path: Path) -> None:
    own = LAYERS.index(layer_of(module_of(path)))
    faults = [
        f"{named(path)}:{line} imports {target}"
        for line, target in imports(path)
        if target.split(".")[0] == "gt" and LAYERS.index(layer_of(target)) > own
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", [p for p in FILES if layer_of(module_of(p)) in ("gt.ir", "gt.passes")], ids=named)
def test_ir_and_passes_import_no_torch_and_no_zmq(path: Path) -> None:
    faults = [f"{named(path)}:{line}" for line, m in imports(path) if m.split(".")[0] in ("torch", "zmq")]
    assert not faults, faults


@pytest.mark.parametrize("path", FILES, ids=named)
def test_nothing_executes_or_unpickles(path: Path) -> None:
    faults = [
        f"{named(path)}:{line} uses {what}"
        for line, what in dangerous(parsed(path))
        if (named(path), what) not in ALLOWED
    ]
    assert not faults, "\n".join(faults)


def dangerous(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Give line and name of each use of what executes text or unpickles."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if a.name.split(".")[0] in FORBIDDEN_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Name) and node.id in FORBIDDEN_CALLS and isinstance(node.ctx, ast.Load):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            owner = getattr(node.value, "attr", getattr(node.value, "id", ""))
            if (owner, node.attr) in FORBIDDEN_ATTRIBUTES or node.attr in FORBIDDEN_METHODS:
                yield node.lineno, f"{owner}.{node.attr}"
            elif owner == "builtins" and node.attr in FORBIDDEN_CALLS:
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and _imported(node).split(".")[0] in FORBIDDEN_MODULES:
            yield node.lineno, _imported(node)
        elif isinstance(node, ast.Call) and any(
            k.arg == "shell" and not (isinstance(k.value, ast.Constant) and k.value.value is False)
            for k in node.keywords
        ):
            yield node.lineno, "shell="


def _imported(call: ast.Call) -> str:
    """Give the module that a call imports by name."""
    named = getattr(call.func, "attr", getattr(call.func, "id", "")) == "import_module"
    first = call.args[0] if named and call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def test_every_exception_to_the_rule_is_needed() -> None:
    used = {(named(path), what) for path in FILES for _, what in dangerous(parsed(path))}
    assert used >= ALLOWED.keys(), ALLOWED.keys() - used


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from pickle import loads", "eval('1')", "exec(x)", "yaml.load(f)", "torch.load(p)",
     "s.recv_pyobj()", "run(x, shell=True)", "builtins.exec(x)", "f = exec", "torch.distributed.all_gather_object",
     "x.recv_object_list(y)", "importlib.import_module('pickle')", "yaml.unsafe_load(f)", "anything.full_load(f)",
     "import marshal", "eval", "inductor.CompiledArtifact.load(path=p)", "torch.save(x, p)", "import pickletools"],
)  # fmt: skip
def test_the_rule_finds_what_it_forbids(source: str) -> None:
    assert list(dangerous(ast.parse(source)))


def test_the_import_walk_sees_functions_and_relative_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gt" / "ir"
    folder.mkdir(parents=True)
    (tmp_path / "gt" / "tensor.py").touch()
    file = folder / "x.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\nelse:\n    import zmq\n"
        "def f():\n    from .. import tensor\n    from gt.tensor import Tensor\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert sorted(imports(file)) == [(1, "typing"), (5, "zmq"), (7, "gt.tensor"), (8, "gt.tensor")]


def run_python(code: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_importing_loads_no_torch() -> None:
    check = "assert 'torch' not in sys.modules, 'torch was imported'"
    run_python("import sys\n" + "\n".join(f"import {m}; {check}" for m in ("gt.config", "gt.passes.plan", "gt.cli", "gt")))


def test_importing_gt_loads_no_runtime() -> None:
    """A session loads what it needs when it starts; until then ``import gt`` is quick."""
    run_python("import sys, gt; assert not {'zmq', 'yaml', 'psutil', 'gt.starting', 'gt.runtime.embedded'} & set(sys.modules)")

"""Names, commands, options and variables of gt before it was rewritten: each works, or warns and says what to use instead."""

from __future__ import annotations

import importlib
import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import gt
from gt.config import get_config
from gt.runtime import env
from gt.runtime.status_request import ask
from tests.integration.programs import ROOT, environment, run, server, wait_for

WORKS = re.findall(
    r"\S+",
    """
connect gpu_workers tensor from_numpy randn zeros ones cat no_grad float32 float64 int32 int64 bool __version__ signal debug load_config
get_config get_signal_config register_config SignalConfig ShardConfig Config is_grad_enabled set_grad_enabled nn.SGD
signal.context signal.signal signal.enter signal.exit signal.tensor signal.current_signal signal.current_backward_signal
signal.get_signal_stack signal.SignalScope signal.SignalStack Config.load Config.get_signal Config.has_signal Config.load_from_env
Config.register_signal Config.clear debug.get_tape debug.print_tape debug.get_worker_stats debug.print_worker_stats
client.client.Client client.autograd.AutogradGraph client.autograd.get_graph client.autograd.add_grad client.autograd.mul_grad
client.autograd.matmul_grad
Tensor.shape Tensor.dtype Tensor.requires_grad Tensor.data Tensor.grad Tensor.T Tensor.numpy Tensor.exp Tensor.log Tensor.relu
Tensor.sigmoid Tensor.tanh Tensor.sqrt Tensor.sum Tensor.mean Tensor.max Tensor.reshape Tensor.view Tensor.unsqueeze Tensor.squeeze
Tensor.transpose Tensor.permute Tensor.split Tensor.chunk Tensor.item Tensor.zero_ Tensor.backward Tensor.requires_grad_
""",
)
WARNS = {  # by module: the names that warn, and words of what to use
    "gt.client": {"Tensor": "gt.Tensor", "Client": "gt.client.client"},
    "gt.client.nn": {
        "Module": "gt.nn.Module", "Linear": "gt.nn.Linear", "mse_loss": "gt.nn.functional.mse_loss", "SGD": "gt.optim.SGD",
        "binary_cross_entropy": "gt.nn.functional.binary_cross_entropy", "relu": "gt.relu", "sigmoid": "gt.sigmoid", "tanh": "gt.tanh",
        "cross_entropy_loss": "gt.nn.functional.binary_cross_entropy_with_logits",
    },
    "gt.client.tensor": {
        **{name: f"gt.{name}" for name in ("from_numpy", "randn", "zeros", "ones", "tensor", "cat", "no_grad", "set_grad_enabled")},
        "Tensor": "gt.Tensor", "TensorData": "gt.Tensor", "is_grad_enabled": "gt.is_grad_enabled",
    },
    "gt.client.autograd": {"no_grad": "gt.no_grad"},
    "gt.signals": {
        name: f"gt.signal.{name}" for name in (
            "context", "signal", "enter", "exit", "tensor", "current_signal", "current_backward_signal", "get_signal_stack", "SignalScope",
            "SignalStack",
        )
    },
    "gt.debug": {
        "VERBOSE": "GT_DEBUG=2", "DEBUG_CLIENT": "GT_DEBUG=3", "DEBUG_DISPATCHER": "GT_DEBUG=3", "DEBUG_WORKER": "GT_DEBUG=3",
        "DEBUG_COMPILE": "GT_DEBUG=4", "verbose_print": "logging", "debug_print_client": "logging", "debug_print_dispatcher": "logging",
        "debug_print_worker": "logging", "debug_print_compile": "logging",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WORKS)
def test_the_name_is_there(name: str) -> None:
    found: Any = gt
    for part in name.split("."):
        found = getattr(found, part)


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in WARNS.items() for name in names])
def test_the_name_works_and_says_what_to_use(module: str, name: str) -> None:
    with pytest.warns(UserWarning) as told:
        found = getattr(importlib.import_module(module), name)
    text = str(told[0].message)
    assert f"{module}.{name}" in text and WARNS[module][name] in text and told[0].filename == __file__
    if module in ("gt.client.nn", "gt.client.tensor", "gt.signals", "gt.client.autograd"):  # and what it is told to be, it is
        here: Any = gt
        for part in WARNS[module][name].split(".")[1:]:
            here = getattr(here, part)
        assert found is here
    else:
        assert found is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = importlib.import_module(module).nonsense


@pytest.mark.filterwarnings("ignore:x.id is", "ignore:transpose")
def test_tensors() -> None:
    t = gt.tensor([[4, 1], [2, 3]], dtype="float32", requires_grad=True)
    assert t.shape == (2, 2) and t.dtype == gt.float32 and t.id == t.id != gt.ones(1).id
    assert t.data.numpy().tolist() == np.asarray(t.data).tolist() == [[4, 1], [2, 3]]
    assert t.data.shape == (2, 2) and t.data.dtype == gt.float32 and "tensor" in repr(t.data)
    assert t.sum(axis=0, keepdims=True).tolist() == [[6, 4]] and t.mean(axis=(0, 1)).item() == 2.5
    assert gt.cat([t, t], axis=0).shape == (4, 2) and t.T.tolist() == t.transpose(0, 1).tolist()
    assert [p.tolist() for p in t.chunk(2, dim=0)] == [p.tolist() for p in t.split(1, 0)] == [[[4, 1]], [[2, 3]]]
    assert (2 * t - t / 2 + t**2 @ -t)[0, None, ...].shape == (1, 2) and (t == t).all() and (t > 0).all()
    (t * t).sum().backward()
    assert t.grad is not None and t.grad.data.numpy().tolist() == [[8, 2], [4, 6]]
    w = t.detach()
    before = w.id
    w -= 0.5 * t.grad
    assert w.id != before
    assert w.tolist() == [[0, 0], [0, 0]] and w.zero_().sum().item() == 0
    with pytest.warns(UserWarning, match=r"x\.id is id\(x\) now"):
        assert gt.ones(1).id


def test_what_is_torchs_now_says_what_to_use() -> None:
    t = gt.ones(2, 3, requires_grad=True)
    with pytest.warns(UserWarning, match="compare with gt.float32, not 'float32'"):
        assert t.dtype == "float32"
    with pytest.warns(UserWarning, match="compare with gt.int64"):
        assert t.dtype != "int64"
    assert t.dtype != "auto" and t.dtype != gt.int64 and {gt.float32: 1}[t.dtype] == 1 and "float32" not in {t.dtype: 1}
    with pytest.raises(AttributeError, match=r"return_types.max' object has no attribute 'data': it holds values, indices"):
        _ = t.max(axis=1).data
    with pytest.raises(RuntimeError, match=r"leaf Variable .* within gt.no_grad\(\), or by an optimizer"):
        t -= 1
    with pytest.warns(UserWarning, match=r"transpose\(\) without dims is x\.mT"):
        assert gt.ones(2, 3, 4).transpose().shape == (2, 4, 3)
    for given in ({"dim0": 0}, {"dim1": 1}):
        with pytest.raises(TypeError, match="missing required arguments: 'dim"):
            gt.ones(2, 3).transpose(**given)
    with pytest.raises(TypeError, match="'dim0' and 'dim1'"):
        gt.ones(2).transpose()
    with pytest.warns(UserWarning, match=r"x\.mT"):
        assert gt.ones(2, 3, 4).T.shape == (4, 3, 2)


@pytest.mark.filterwarnings("ignore:gt.client")
def test_layers_losses_and_the_tape() -> None:
    nn, autograd = gt.client.nn, gt.client.autograd
    gt.manual_seed(0)
    layer = nn.Linear(3, 2, bias=True)
    x, y = gt.ones(4, 3), gt.zeros(4, 2)
    optimizer = gt.nn.SGD(layer.parameters(), lr=0.1)
    before = nn.mse_loss(layer(x), y).item()
    assert 0 <= nn.mse_loss(nn.tanh(nn.relu(layer(x))), y).item() <= before
    graph = autograd.get_graph()
    for _ in range(5):
        loss = nn.mse_loss(layer(x), y)
        graph.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    assert nn.mse_loss(layer(x), y).item() < 0.5 * before
    with graph.no_grad():
        assert not (layer(x)).requires_grad
    with pytest.warns(UserWarning, match="gt.autograd.Function"):
        graph.record(loss, [x], lambda g: [g])
    ones = gt.ones(1)
    assert math.isclose(nn.cross_entropy_loss(0 * ones, ones).item(), math.log(2), rel_tol=1e-6)
    assert math.isclose(nn.binary_cross_entropy(nn.sigmoid(0 * ones), ones).item(), math.log(2), rel_tol=1e-6)
    a, b = (gt.tensor(np.random.default_rng(i).standard_normal((3, 3))).requires_grad_() for i in range(2))
    g = gt.ones(3, 3, dtype="float64")
    rules: list[tuple[Callable[[], Any], Any]] = [
        (lambda: a + b, autograd.add_grad), (lambda: a * b, autograd.mul_grad(a, b)), (lambda: a @ b, autograd.matmul_grad(a, b)),
    ]  # fmt: skip
    for forward, rule in rules:
        for want, have in zip(gt.autograd.grad(forward(), (a, b), g), rule(g), strict=True):
            np.testing.assert_allclose(have.detach().numpy(), want.numpy())


def test_the_stack_of_signals() -> None:
    get_config().clear()
    for name in ("outer", "inner", "back"):
        gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=None, replicated=False), compile=False))
    try:
        stack = gt.signal.get_signal_stack()
        assert list(stack) == [] and stack.current() is None and stack.pop() is None and gt.signal.current_signal() is None
        gt.signal.enter("outer")
        with gt.signal.signal("inner", backward="back"):
            assert gt.signal.current_signal() == stack.current_name() == "inner"
            assert gt.signal.current_backward_signal() == stack.current_backward_name() == "back"
            assert list(gt.signal.get_signal_stack()) == ["outer", "inner"]
        assert stack.pop() == gt.signal.SignalScope("outer")
        stack.push(gt.signal.SignalScope("inner", backward_name="back"))
        assert gt.signal.tensor(gt.ones(2), "outer", backward_name="back").tolist() == [1, 1]
        gt.signal.exit("inner")
        assert gt.signal.current_signal() is None
    finally:
        get_config().clear()


def test_a_configuration_from_a_variable_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.yaml").write_text("layer: {shard: {axis: 1, workers: [0], replicated: false}, compile: false}\n")
    config = gt.Config()
    config.load_from_env("MY_CONFIG")
    assert not config.has_signal("layer")
    monkeypatch.setenv("MY_CONFIG", str(tmp_path / "c.yaml"))
    config.load_from_env("MY_CONFIG")
    found = config.get_signal("layer")
    assert config.has_signal("layer") and found is not None and found.shard is not None and found.shard.axis == 1
    monkeypatch.setenv("MY_CONFIG", "nowhere.yaml")
    with pytest.raises(gt.ConfigError, match="MY_CONFIG=nowhere.yaml"):
        config.load_from_env("MY_CONFIG")


def test_what_is_recorded_is_shown_and_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    gt.ones(1).item()  # nothing is pending
    before = gt.stats().flushes
    x = gt.ones(2, 3).requires_grad_()
    y = (x.exp() * 2).sum()
    for entries in (gt.debug.get_tape(y), gt.debug.get_tape()):
        assert [e.op for e in entries][:3] == ["sum", "mul", "exp"] and entries[0].results == ("f32[]",)
        assert entries[0].operands == entries[1].results and __file__ in entries[0].where
    assert gt.stats().flushes == before
    gt.debug.print_tape(y)
    gt.debug.print_worker_stats()
    told = capsys.readouterr().out
    assert "sum(" in told and "worker 0" in told
    y.item()
    assert gt.stats().flushes == before + 1


# -- variables


@pytest.mark.parametrize(
    ("given", "variable", "value"),
    [
        ({"GT_COMPILE": "1"}, env.COMPILE_AFTER, 1),
        ({"GT_COMPILE": "0"}, env.COMPILE_AFTER, 0),
        ({"GT_COMPILE": "1", "GT_COMPILE_AFTER": "7"}, env.COMPILE_AFTER, 7),
        ({"GT_AUTO_COMPILE": "1"}, env.COMPILE_AFTER, 200),
        ({"GT_AUTO_COMPILE": "0"}, env.COMPILE_AFTER, 0),
        ({"GT_HOTPATH_THRESHOLD": "30"}, env.COMPILE_AFTER, 30),
        ({"GT_VERBOSE": "1"}, env.DEBUG, 2),
        ({"GT_VERBOSE": "0"}, env.DEBUG, 0),
        ({"GT_DEBUG_CLIENT": "1"}, env.DEBUG, 3),
        ({"GT_DEBUG_DISPATCHER": "1", "GT_VERBOSE": "1"}, env.DEBUG, 3),
        ({"GT_DEBUG_WORKER": "1", "GT_DEBUG_COMPILE": "0"}, env.DEBUG, 3),
        ({"GT_DEBUG_COMPILE": "1"}, env.DEBUG, 4),
        ({"GT_DEBUG_COMPILE": "1", "GT_DEBUG": "1"}, env.DEBUG, 1),
        ({"GT_BACKEND": "pytorch"}, env.BACKEND, "torch"),
        ({"GT_AUTO_SHARD": "0"}, env.AUTO_SHARD, False),
    ],
)
def test_an_older_variable_means_what_the_new_one_does(
    given: dict[str, str], variable: env.Variable[Any], value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*env.VARIABLES, *(older.name for older in env.OLDER_NAMES)):
        monkeypatch.delenv(name, raising=False)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(env, "VARIABLES", {**env.VARIABLES})  # where the next one enters itself
    fresh = env.Variable(variable.name, variable.parse, variable.default, variable.doc)
    monkeypatch.setattr(
        env, "OLDER_NAMES",
        [env.OlderName(o.name, fresh if o.stands_for is variable else o.stands_for, o.doc, o.texts) for o in env.OLDER_NAMES],
    )  # fmt: skip
    assert fresh.get() == value


def test_an_older_variables_fault_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GT_COMPILE_AFTER", raising=False)
    monkeypatch.setenv("GT_COMPILE", "always")
    env.COMPILE_AFTER.forget()
    try:
        with pytest.raises(ValueError, match="GT_COMPILE='always'"):
            env.COMPILE_AFTER.get()
    finally:
        env.COMPILE_AFTER.forget()


GONE = [older.name for older in env.OLDER_NAMES if older.stands_for is None]


def test_variables_without_effect_are_told_at_the_first_op(tmp_path: Path) -> None:
    assert "GT_WORKER_BATCH_SIZE" in GONE
    done = run("import gt\nprint(gt.ones(2).sum().item())", tmp_path, **dict.fromkeys(GONE, "3"))
    assert (done.code, done.out) == (0, "2.0\n")
    for name in GONE:
        assert f"script.py:2: UserWarning: {name} has no effect: " in done.err, done.err


def test_a_name_that_is_nearly_a_variables_is_told(tmp_path: Path) -> None:
    done = run("import gt\nprint(gt.ones(2).sum().item())", tmp_path, GT_INSTRUCTON_LOG="x", GT_OF_ANOTHER_PROGRAM="1")
    assert (done.code, done.out) == (0, "2.0\n")
    assert "script.py:2: UserWarning: GT_INSTRUCTON_LOG has no effect: did you mean GT_INSTRUCTION_LOG?" in done.err
    assert "GT_OF_ANOTHER_PROGRAM" not in done.err


def test_the_older_variables_that_say_more(tmp_path: Path) -> None:
    told = {
        name: run("import gt\ngt.ones(2).sum().item()", tmp_path, **{name: "1"}).err for name in ("GT_VERBOSE", "GT_DEBUG_COMPILE")
    }
    assert "flush (a value was read)" in told["GT_VERBOSE"] and "call client0" not in told["GT_VERBOSE"]
    assert "= sum(" in told["GT_DEBUG_COMPILE"]


# -- commands


def test_a_server_with_workers_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = ["-p", "0", "--spawn_gpu_workers", "2", "--log-file", log, "--no-console-log"]
    process = subprocess.Popen(
        [sys.executable, "-m", "gt.server", *map(str, words)], cwd=ROOT, text=True, env=environment(GT_WORKER_BATCH_SIZE="8"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        port = process.stdout.readline().rpartition(":")[2].strip()
        script = f"""
            import gt
            gt.connect("localhost:{port}")
            print((gt.ones(4, 2) @ gt.ones(2, 4)).sum().item())
        """
        assert wait_for(lambda: log.exists() and log.read_text().count("WorkerHello") == 2, 60)
        done = run(script, tmp_path)
        assert (done.code, done.out) == (0, "32.0\n"), done.err
        assert {line.split()[3] for line in log.read_text().splitlines() if " run " in line} <= {"worker0", "worker1"}
        assert [process.stdout.readline() for _ in range(2)] == ["workers 1\n", "workers 2\n"]
        killed = next(c for c in psutil.Process(process.pid).children() if "gt.runtime.worker" in c.cmdline())
        killed.kill()

        def replaced() -> bool:  # by another, which may be there before that one is missed, or in the same moment
            pids = [w.pid for w in ask(f"localhost:{port}").workers if w.joined]
            return len(pids) == 2 and killed.pid not in pids

        assert wait_for(replaced)
    finally:
        process.terminate()
        _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "--no-console-log is not needed" in told and "GT_WORKER_BATCH_SIZE has no effect" in told


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["gt.worker", "-p", "1", "--backend", "jax"], 2, "expected one of torch, numpy, got 'jax'"),
        (["gt.worker", "-p", "1", "--id", "w0", "--backend", "numpy"], 3, "--id has no effect"),
        (["gt", "server", "--help"], 0, "--spawn_gpu_workers"),
        (["gt", "worker", "--help"], 0, "--backend"),
    ],
)
def test_options_of_commands(words: list[str], code: int, said: str) -> None:
    done = subprocess.run([sys.executable, "-m", *words], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == code and said in done.stdout + done.stderr, done.stderr


def test_the_tools_by_module_name(tmp_path: Path) -> None:
    def gt_scripts(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60)

    for module in ("gt.scripts", "gt.scripts.top", "gt.scripts.trace", "gt.scripts.visualize"):
        assert "Usage: python -m " + module in gt_scripts(module, "-h").stdout
    log = tmp_path / "ops.log"
    assert run("import gt\nprint(gt.ones(2).sum().item())", tmp_path, GT_INSTRUCTION_LOG=str(log)).code == 0
    for words in (["gt.scripts", "ops.log"], ["gt.scripts", "visualize", "ops.log"], ["gt.scripts.visualize", "ops.log", "--dpi", 60]):
        done = gt_scripts(*words, "-o", tmp_path / "out.html")
        assert done.returncode == 0 and "worker0" in (tmp_path / "out.html").read_text(), done.stderr
        (tmp_path / "out.html").unlink()
    with server(1) as there:
        flags = ["--host", "localhost", "--port", there.port]
        done = gt_scripts("gt.scripts", "top", *flags, "--ema-alpha", 0.15, "--once")
        assert done.returncode == 0 and "worker" in done.stdout and "--ema-alpha has no effect" in done.stderr
        done = gt_scripts("gt.scripts.trace", *flags, "-s", 0.1, "-n", 100, "--dir", ".", "-o", "mine")
        assert done.returncode == 0 and (tmp_path / "mine.json").exists() and (tmp_path / "mine.log").exists(), done.stderr


def test_the_commands_of_their_own_names() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert 'gt-server = "gt.server:main"' in text and 'gt-worker = "gt.worker:main"' in text


def test_an_older_client(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        client = gt.client.client.Client("localhost", 1)
    assert "gt.connect" in str(told[-1].message) and client.address == "localhost:1"
    done = run("import gt\nfrom gt.client.client import Client\nClient('localhost', 1).connect()", tmp_path)
    assert done.code == 1 and "ConnectionFailed" in done.err

"""The quick starts, word for word, each as a script of its own; and signals, which never change a value."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from tests.integration.programs import ROOT, environment, log_lines, output, run, server

pytestmark = pytest.mark.timeout(120)


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d*)?(?:e[-+]?\d+)?", text)]


def test_matmul_and_print(tmp_path: Path) -> None:
    code = """
        import gt
        a = gt.randn(1000, 1000)
        b = gt.randn(1000, 1000)
        c = a @ b
        print(c[:4, :4])
        d = c.data.numpy()
        import numpy as np
        np.save("abd.npy", np.stack([a.numpy(), b.numpy(), d]))
    """
    out = output(code, tmp_path)
    a, b, d = np.load(tmp_path / "abd.npy")
    np.testing.assert_allclose(d, a @ b, rtol=1e-3, atol=1e-3)
    assert out.startswith("tensor([[") and out.count("[") == 5
    np.testing.assert_allclose(numbers(out), d[:4, :4].ravel(), rtol=1e-3, atol=1e-3)
    assert abs(a.mean()) < 0.01 and abs(a.std() - 1) < 0.01 and abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.01


def test_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import gt; print(gt.randn(2,2))"], cwd=tmp_path, env=environment(), text=True,
        capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "" and len(numbers(done.stdout)) == 4


def test_tensors_add(tmp_path: Path) -> None:
    code = "import gt\nprint(gt.tensor([1,2,3,4]) + gt.tensor([5,6,7,8]))"
    assert output(code, tmp_path) == "tensor([ 6,  8, 10, 12])\n"


def test_gradients(tmp_path: Path) -> None:
    code = """
        import gt
        import numpy as np
        x = np.arange(6, dtype='float32').reshape(2, 3)
        a = gt.from_numpy(x, requires_grad=True)
        (a * 2).sum().backward(); print(a.grad.data.numpy().tolist())
    """
    assert output(code, tmp_path) == "[[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]]\n"


TRAIN = """
import gt
from gt.nn import Module, Linear, SGD

class Net(Module):
    def __init__(self):
        super().__init__()
        self.fc1 = Linear(8, 16)
        self.fc2 = Linear(16, 1)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())

gt.manual_seed(0)
model = Net()
optimizer = SGD(model.parameters(), lr=0.05)
x = gt.randn(64, 8)
y = x.sum(dim=1, keepdim=True)
for step in range(20):
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
"""


@functools.cache
def alone() -> list[float]:
    """Give the losses of training in one process."""
    with tempfile.TemporaryDirectory() as folder:
        return numbers(output(TRAIN, Path(folder)))


def test_a_model_class_trains() -> None:
    losses = alone()
    assert len(losses) == 20 and losses[-1] < 0.5 * losses[0]


def test_four_local_workers_give_the_same_training(tmp_path: Path) -> None:
    log = tmp_path / "log"
    four = TRAIN.replace("import gt\n", "import gt\ngt.gpu_workers(4)\nassert gt.num_workers() == 4\n", 1)
    losses = numbers(output(four, tmp_path, GT_INSTRUCTION_LOG=str(log)))
    np.testing.assert_allclose(losses, alone(), rtol=1e-5)
    assert {line[3] for line in log_lines(log) if line[2] == "run"} == {f"worker{i}" for i in range(4)}


def test_a_server_with_workers_and_two_scripts(tmp_path: Path) -> None:
    """One names the server itself, the other finds it in GT_ADDR. ``python -m gt.server`` is what other tests start."""
    with server(0, "gt", "server") as there:
        there.add_workers(2, "gt", "worker")
        script = TRAIN.replace("import gt\n", f"import gt\ngt.connect('localhost:{there.port}')\n", 1)
        for losses in (output(script, tmp_path), output(TRAIN, tmp_path, GT_ADDR=there.address)):
            np.testing.assert_allclose(numbers(losses), alone(), rtol=1e-5)


def test_the_gt_command_is_the_modules(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gt", "--help"], cwd=ROOT, env=environment(), text=True, capture_output=True, timeout=60
    )
    assert done.returncode == 0 and "server" in done.stdout and "worker" in done.stdout


# -- signals

YAML = """
layer1:
  shard: {axis: 0, workers: [0, 1, 2, 3]}
  backward: layer1_bwd
layer1_bwd:
  shard: {axis: 0, workers: [2, 3]}
other:
  shard: {axis: 1}
"""

SIGNALS = """
import sys
import numpy as np
import gt
workers = int(sys.argv[1])
if workers:
    gt.gpu_workers(workers)
SETUP
x = gt.from_numpy(np.arange(32, dtype="float32").reshape(8, 4), requires_grad=True)
w = gt.from_numpy(np.ones((4, 4), dtype="float32"), requires_grad=True)
for step in range(3):
    with gt.signal.context('layer1', backward='layer1_bwd'):
        h = (x @ w).relu()
    h = gt.signal.tensor(h, name='layer1')
    gt.signal.enter('other')
    y = h * 2
    gt.signal.exit('other')
    y.sum().backward()
print(y.sum().item(), w.grad.tolist(), x.grad.sum().item())
"""
REGISTER = """
from gt import ShardConfig, SignalConfig
gt.register_config('layer1', SignalConfig(shard=ShardConfig(axis=0, workers=[0, 1, 2, 3]), backward_signal='layer1_bwd'))
gt.register_config('layer1_bwd', SignalConfig(shard=ShardConfig(axis=0, workers=[2, 3])))
gt.register_config('other', SignalConfig(shard=ShardConfig(axis=1)))
"""
column = [3.0 * 2 * sum(range(k, 32, 4)) for k in range(4)]
VALUES = f"{2.0 * 4 * sum(range(32))} {[[c] * 4 for c in column]} {3.0 * 2 * 4 * 32}\n"


def warned(err: str) -> list[str]:
    """Give the signal warnings; nothing else may be said."""
    lines = [line for line in err.splitlines() if "SignalWarning" in line]
    assert len(lines) == len(re.findall(r"^\S", err, re.MULTILINE)), err
    return lines


@pytest.mark.parametrize(
    ("how", "workers"), [("GT_CONFIG", 0), ("load_config", 0), ("register_config", 0), ("register_config", 4)]
)
def test_signals_never_change_a_value(how: str, workers: int, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(YAML)
    setup = {"GT_CONFIG": "", "load_config": "gt.load_config('config.yaml')", "register_config": REGISTER}[how]
    variables = {"GT_CONFIG": "config.yaml"} if how == "GT_CONFIG" else {}
    log = tmp_path / "log"
    done = run(SIGNALS.replace("SETUP", setup), tmp_path, workers, GT_INSTRUCTION_LOG=str(log), **variables)
    assert (done.code, done.out) == (0, VALUES), done.err
    if workers:
        assert done.err == ""
        assert any(line[2:5:2] == ["recv", "MakeGroup"] for line in log_lines(log)), "nothing was split"
    else:
        first, second = warned(done.err)
        assert "script.py" in first and "signal 'layer1': workers [1, 2, 3] are not present, using [0]" in first
        assert "signal 'layer1_bwd': ignored: none of the workers [2, 3] is present" in second


def test_without_any_configuration_one_warning_stands_for_all(tmp_path: Path) -> None:
    done = run(SIGNALS.replace("SETUP", ""), tmp_path, 0)
    assert (done.code, done.out) == (0, VALUES), done.err
    (line,) = warned(done.err)
    assert re.search(r"script\.py:\d+: SignalWarning: signal 'layer1' is ignored: none is configured", line)


def test_a_name_the_file_lacks_is_one_warning_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("others: {}\nlayer1: {shard: {axis: 0}}\nlayer1_bwd: {}\n")
    done = run(SIGNALS.replace("SETUP", ""), tmp_path, 0, GT_CONFIG="config.yaml")
    assert (done.code, done.out) == (0, VALUES), done.err
    (line,) = warned(done.err)
    assert "script.py:" in line and "signal 'other' is not configured; did you mean 'others'?: ignored" in line


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("others: {}\nlayer1: {}\nlayer1_bwd: {}\n", "signal 'other' is not configured; did you mean 'others'?"),
        ("layer1: {shard: {workers: [0, 7]}}\nlayer1_bwd: {}\nother: {}\n", "signal 'layer1': workers [7] are not present"),
        ("", "signal 'layer1' is ignored: none is configured"),
    ],
    ids=["name", "workers", "nothing"],
)
def test_strict_mode_makes_each_an_error_at_the_users_line(yaml: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml)
    done = run(SIGNALS.replace("SETUP", ""), tmp_path, 0, GT_CONFIG="config.yaml", GT_STRICT="1")
    assert done.code == 1 and done.out == ""
    assert f"gt.config.{'UnknownSignal' if 'workers' not in yaml else 'ConfigError'}: {said}" in done.err
    assert re.search(r"script\.py\", line \d+, in <module>\n    (with gt.signal.context|gt.signal.enter)", done.err)

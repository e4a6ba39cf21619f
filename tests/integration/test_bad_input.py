"""Bad input: a clear error at the user's line, and nothing lost afterwards."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.runtime.env import BACKEND
from gt.runtime.launch import LocalCluster
from tests.integration.programs import run

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=[0, 2], ids=["embedded", "two workers"])
def workers(request: pytest.FixtureRequest, pair: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(BACKEND, "_read", ["numpy"])
    if request.param:
        gt.connect(pair.address)
    return int(request.param)


MISTAKES: dict[str, tuple[Callable[[gt.Tensor], object], tuple[str, ...]]] = {
    "matmul": (lambda a: a @ a, ("matmul", "2x3 and 2x3", r"f32\[2, 3\], f32\[2, 3\]")),
    "add": (lambda a: a + gt.zeros(4), ("add", r"f32\[2, 3\], f32\[4\]")),
    "cat": (lambda a: gt.cat([a, gt.zeros(4, 5)]), ("size 3 but got size 5 for tensor number 1",)),
    "where": (lambda a: gt.where(a > 0, a, gt.zeros(5, 7)), ("where", r"\[2, 3\]", r"\[5, 7\]")),
    "reshape": (lambda a: a.reshape(4, 2), (r"shape '\[4, 2\]'", "size 6")),
    "sum dim": (lambda a: a.sum(dim=5), (r"range of \[-2, 1\], but got 5",)),
    "linear": (lambda a: gt.nn.functional.linear(a, gt.zeros(4, 5)), ("2x3 and 5x4",)),
    "and of floats": (lambda a: a & a, ("bitwise_and", "float32")),
    "index dtype": (lambda a: gt.gather(a, 0, a), ("gather", "int64")),
    "assignment": (lambda a: a.copy_(gt.zeros(7)), (r"\(7\)", r"\(3\)")),
}


@pytest.mark.usefixtures("workers")
def test_a_mistake_raises_at_the_users_line_and_names_what_was_given() -> None:
    a = gt.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))
    for name, (do, words) in MISTAKES.items():
        pending = a * 2
        with pytest.raises((ValueError, TypeError, RuntimeError, IndexError)) as caught:
            do(a)
        text = "".join(traceback.format_exception(caught.value))
        for word in (*words, f'{__file__}", line {do.__code__.co_firstlineno}'):
            assert re.search(word, text), f"{name}: {word!r} is not in {text}"
        lines = [f.line for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == __file__]
        assert len(lines) == 2, lines  # here, and the mistake's own line
        assert pending.tolist() == [[0, 2, 4], [6, 8, 10]], name  # nothing lost
        assert (pending + a).sum().item() == 45, name


@pytest.mark.usefixtures("workers")
def test_an_index_out_of_range_raises_whoever_reads_and_wherever_rows_lie() -> None:
    """Also where only the gradient is read, which does not need the rows that were looked up. Tables of 4 rows are split here."""
    F = gt.nn.functional  # noqa: N806
    for call in (
        lambda: F.embedding(gt.tensor([9]), gt.randn(4, 4)).tolist(),
        lambda: F.embedding(gt.tensor([-1]), gt.randn(4, 4)).tolist(),
        lambda: F.nll_loss(gt.randn(4, 4), gt.tensor([0, 1, 9, 2])).item(),
        lambda: F.nll_loss(gt.randn(4, 4).T, gt.tensor([0, 1, 9, 2])).item(),
        lambda: (gt.tensor([7]) // gt.tensor([0])).tolist(),
        lambda: F.nll_loss(gt.randn(4, 4), gt.tensor([0, 1, -2, 2])).item(),
        lambda: _grad_of(lambda w: F.embedding(gt.tensor([9, 1]), w)),
        lambda: _grad_of(lambda w: F.cross_entropy(w, gt.tensor([0, 1, 9, 2]))),
    ):
        with pytest.raises(RuntimeError, match="out of (range|bounds)|ZeroDivisionError"):
            call()
    assert _grad_of(lambda w: F.cross_entropy(w, gt.tensor([0, 1, -100, 2])))[2] == [0.0] * 4


def _grad_of(function: Callable[[gt.Tensor], gt.Tensor]) -> list[list[float]]:
    w = gt.zeros(4, 4, requires_grad=True)
    function(w).sum().backward()
    return w.grad.tolist()


@pytest.mark.usefixtures("workers")
def test_an_index_out_of_range_is_told_with_the_line_that_recorded_it() -> None:
    table = gt.from_numpy(np.arange(10, dtype=np.float32).reshape(5, 2))
    index = gt.tensor([1, 99])
    picked = table[index]  # the mistake
    with pytest.raises(gt.GtError) as caught:
        (picked * 2).sum().item()
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# the mistake"))
    assert f"{__file__}:{line}" in str(caught.value), caught.value
    assert "99" in str(caught.value) or "out of" in str(caught.value)
    with pytest.raises(gt.GtError, match=f":{line}"):
        picked.numpy()  # its dependants fail with the same cause, again and again
    assert table[gt.tensor([1, 4])].tolist() == [[2, 3], [8, 9]]


def test_data_that_is_no_tensor() -> None:
    for data in ([[1, 2], [3]], "text", [object()], {"a": 1}, [["x"]]):
        with pytest.raises((ValueError, TypeError, RuntimeError), match="expected"):  # torch's kinds of error, and what was expected
            gt.tensor(data)
    with pytest.raises(TypeError, match="np.ndarray"):
        gt.from_numpy([1, 2])  # type: ignore[arg-type]
    assert gt.tensor([[1, 2], [3, 4]]).sum().item() == 10


def test_backward_of_what_has_no_gradient() -> None:
    a = gt.ones(3)
    with pytest.raises(RuntimeError, match="grad"):
        a.sum().backward()
    b = gt.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="scalar"):
        (b * 2).backward()
    (b * 2).sum().backward()
    assert b.grad is not None and b.grad.tolist() == [2, 2, 2]


@pytest.mark.usefixtures("workers")
def test_workers_after_the_first_op_are_refused() -> None:
    kept = gt.ones(2) * 3
    assert kept.sum().item() == 6
    for start in (lambda: gt.gpu_workers(2), lambda: gt.connect("localhost:1")):
        with pytest.raises(RuntimeError, match="before the first op"):
            start()
    with pytest.raises(ValueError, match="at least one"):
        gt.gpu_workers(0)
    assert kept.tolist() == [3, 3]


@pytest.mark.parametrize("address", ["nowhere", "localhost", "localhost:", "localhost:0", ":12", "a:b", "h:99999"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"expected an address like 'localhost:12345', got {address!r}")):
        gt.connect(address)


@pytest.mark.parametrize("priority", [0, -1.0, float("nan"), float("inf"), pytest.param(10**400, id="vast"), "1", True, 1j])
def test_a_priority_that_is_none(priority: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="priority: expected a number over 0, got "):
        gt.connect("localhost:1", priority=priority)


BAD_YAML = {
    "no such key": ("layer1:\n  shrad: {}\n", r"2:3: layer1: unknown key 'shrad'; did you mean 'shard'\?"),
    "key inside": ("layer1:\n  shard: {axs: 0}\n", r"2:11: layer1\.shard: unknown key 'axs'; did you mean 'axis'\?"),
    "type": ("a: {}\nb:\n  shard:\n    axis: left\n", r"4:11: b\.shard\.axis: .*int"),
    "worker": ("b:\n  shard:\n    workers: [0, two]\n", r"3:\d+: b\.shard\.workers.*"),
    "syntax": ("a:\n  shard: {axis: 0\nb: 1\n", r"\d:\d+: "),
    "twice": ("a: {}\nb: {}\na: {}\n", r"3:1: key 'a' is already on line 1"),
    "a list": ("- a\n- b\n", r"1:1: expected a mapping"),
    "tab": ("a:\n\tshard: {}\n", r"2:1: "),
    "code": ("a: !!python/object/apply:os.system ['true']\n", r"1:4: "),
}


@pytest.mark.parametrize("name", BAD_YAML)
def test_bad_yaml_names_file_line_and_key_and_changes_nothing(name: str, tmp_path: Path) -> None:
    text, said = BAD_YAML[name]
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    gt.get_config().clear()
    gt.register_config("kept", gt.SignalConfig())
    try:
        with pytest.raises(gt.ConfigError, match=re.escape(str(path)) + ":" + said):
            gt.load_config(path)
        assert list(gt.get_config().signals) == ["kept"]
    finally:
        gt.get_config().clear()


def test_bad_yaml_named_by_the_environment_is_told_at_the_first_signal(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("layer1:\n  shrad: {}\n")
    code = "import gt\nwith gt.signal.context('layer1'):\n    print(gt.ones(2))\n"
    done = run(code, tmp_path, GT_CONFIG="bad.yaml")
    assert done.code == 1 and "ConfigError: bad.yaml:2:3: layer1: unknown key 'shrad'; did you mean 'shard'?" in done.err
    done = run(code, tmp_path, GT_CONFIG="absent.yaml")
    assert done.code == 1 and "ConfigError: GT_CONFIG=absent.yaml: No such file or directory" in done.err


@pytest.mark.parametrize(
    ("variable", "value", "said", "workers"),
    [
        ("GT_BACKEND", "jax", "torch, numpy", 0), ("GT_DEBUG", "loud", "Log level", 0), ("GT_WINDOW", "0", ">= 1", 0),
        ("GT_WINDOW", "0", ">= 1", 1),
    ],
)  # fmt: skip
def test_a_bad_environment_variable_is_named(variable: str, value: str, said: str, workers: int, tmp_path: Path) -> None:
    code = "import sys, gt\nif int(sys.argv[1]):\n    gt.gpu_workers(1)\nprint(gt.ones(2))"
    done = run(code, tmp_path, workers, **{variable: value})
    assert done.code == 1 and f"{variable}={value!r}: " in done.err and said in done.err, done.err


def test_values_of_a_closed_session_say_so_and_the_next_session_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKEND, "_read", ["numpy"])
    read = gt.from_numpy(np.ones(3, np.float32))
    pending = read * 2
    gt.disconnect()
    for lost in (read, pending):
        with pytest.raises(gt.GtError, match="closed"):
            lost.tolist()
        with pytest.raises(RuntimeError, match="closed"):
            (lost + 1).tolist()
    assert (gt.from_numpy(np.ones(3, np.float32)) + 1).tolist() == [2, 2, 2]


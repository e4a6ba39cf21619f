"""Every error that a person can meet says what was expected, what was there, where, and what to do, with the page that says more."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gt
from docs.generate import exceptions
from gt.config import Config
from gt.config_file import parse_config
from gt.drawing import draw_graph
from gt.ir.advice import ADVICE, PAGE, Advised
from gt.ir.opdef import OPS
from gt.ir.parse import parse_graph
from gt.ir.program import WireNode, WireType
from gt.ir.types import TensorType, float32
from gt.passes.integer_program import solve
from gt.passes.pipeline import Pipeline
from gt.runtime.errors import Fault
from gt.runtime.keys import read_keys
from gt.runtime.launchers import Asked, detect
from gt.runtime.log_lines import read_log
from gt.runtime.private import check_file
from gt.runtime.remote import RemoteSession
from gt.runtime.render import checked

HERE = Path(__file__)
TESTS = HERE.parents[1]
LINE = rf"{re.escape(str(HERE))}:\d+"
F = TensorType((4, 3), float32)
Provoke = Callable[[Path], Any]


def ones() -> gt.Tensor:
    return gt.ones(2, 3)


def read_where_it_may_not_be(folder: Path) -> None:
    with gt.flush_guard("disallow"):
        ones().sum().item()


def change_under_a_jit(folder: Path) -> None:
    calls: list[int] = []

    @gt.jit
    def step(x: gt.Tensor) -> gt.Tensor:
        calls.append(1)
        return x.sum() if len(calls) < 3 else x.mean()

    for _ in range(400):
        step(ones())


def strict(folder: Path) -> None:
    config = Config()
    config.register_signal("layer1", gt.SignalConfig())
    config.strict = True
    config.get_signal("layer2")


def open_to_others(folder: Path) -> None:
    (folder / "secret").touch(0o644)
    check_file(folder / "secret")


def damaged(folder: Path) -> None:
    gt.checkpoint.save(folder, {"a": ones()}, step=1).wait()
    for file in folder.rglob("*.safetensors"):
        file.write_bytes(b"rubbish")
    gt.checkpoint.load(folder)


def without_scipy(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "scipy.optimize", None)
        solve(SimpleNamespace(units=()))  # type: ignore[arg-type]


# By class: what makes one; what it says of what was expected and what was there; where.
PROVOKED: dict[str, tuple[Provoke, str, str]] = {
    "CallError": (
        lambda _: gt.where(gt.ones(2), gt.ones(2), gt.ones(2)), "expected condition to be a boolean tensor, but got a tensor with dtype Float",
        rf"in where\(f32\[2\], f32\[2\], f32\[2\]\) at {LINE}",
    ),
    "ConfigError": (lambda _: parse_config("a:\n  shard: {axs: 0}\n", "c.yaml"), "unknown key 'axs'; did you mean 'axis'", "c.yaml:2:11"),
    "ConnectionFailed": (lambda _: RemoteSession("localhost:1", timeout=0.5), "no gt server answers at .* within 0.5 s", "localhost:1"),
    "DamagedError": (damaged, "safetensors", r"step|safetensors"),
    "DimError": (lambda _: ones().sum(5), r"expected to be in range of \[-2, 1\], but got 5", rf"in sum\(f32\[2, 3\]\) at {LINE}"),
    "EmptyError": (lambda _: gt.ones(0, 3).amax(0), "Expected reduction dim 0 to have non-zero size", rf"in amax\(f32\[0, 3\]\) at {LINE}"),
    "GradcheckError": (
        lambda _: gt.autograd.gradcheck(lambda a: (a.detach() * a).sum(), (gt.ones(3, dtype=gt.float64, requires_grad=True),)),
        "(?s)mismatch for output 0 with respect to input 0,\nnumerical:.*\nanalytical:", rf"in gradcheck\(f64\[3\]\) at {LINE}",
    ),
    "JitError": (lambda _: gt.jit(lambda x: x.sum().item())(ones()), "a value is read inside a function under gt.jit", rf"in item\(f32\[\]\) at {LINE}"),
    "JitMismatch": (change_under_a_jit, r"op 1 is mean on f32\[2, 3\] at .*; what was replayed had sum", f"at {LINE}"),
    "KeyFileError": (lambda folder: read_keys(folder / "none.key"), "No such file", "none.key"),
    "KindError": (lambda _: gt.nn.functional.gelu(gt.tensor([1])), "not implemented for 'Long'", rf"in gelu\(i64\[1\]\) at {LINE}"),
    "LauncherError": (lambda _: detect({}, Asked(node=1), "odd"), "--node-rank 1 of one node: give --nnodes", "--node-rank"),
    "LinAlgError": (lambda _: gt.linalg.inv(gt.zeros(3, 3)).sum().item(), "inverse: .*[Ss]ingular", rf"\(given f32\[3, 3\], recorded at {LINE}"),
    "LogError": (lambda _: read_log(HERE), "instruction log", re.escape(HERE.name)),
    "NotPrivate": (open_to_others, "644|others|group", "secret"),
    "ParseError": (lambda _: parse_graph("graph @x {\n}"), "expected 'gtir', got graph", "line 1, column 1"),
    "PipelineError": (lambda _: Pipeline.parse("simplfy"), "simplfy", "simplify"),
    "ReadRefused": (read_where_it_may_not_be, "inside gt.flush_guard", f"read at {LINE}"),
    "RenderError": (lambda _: checked(WireNode("nonsense", (), (0,), (WireType((), "float32"),), ())), "unknown op 'nonsense'", "nonsense"),
    "RunError": (lambda _: (gt.tensor([1]) // gt.tensor([0])).sum().item(), "floor_divide: ZeroDivisionError", rf"\(given i64\[1\], i64\[1\], recorded at {LINE}"),
    "RunIndexError": (
        lambda _: ones()[gt.tensor([7])].sum().item(), "index 7 is out of bounds for (dimension|axis) 0 with size 2",
        rf"\(given f32\[2, 3\], i64\[1\], recorded at {LINE}",
    ),
    "ShapeError": (lambda _: ones() @ ones(), r"shapes cannot be multiplied \(2x3 and 2x3\)", rf"in matmul\(f32\[2, 3\], f32\[2, 3\]\) at {LINE}"),
    "SolverMissing": (without_scipy, "needs SciPy", "pip install"),
    "TooLarge": (
        lambda folder: draw_graph(SimpleNamespace(name="flush7", nodes=range(501)), folder / "x.png"),  # type: ignore[arg-type]
        "501 nodes, more than the 500", "flush7",
    ),
    "TypeMismatch": (
        lambda _: OPS["nll_loss"].infer_types((F, F), (("ignore_index", -100), ("reduction", "mean"))),
        r"expected a target of int64 class indices, got f32\[4, 3\]", "nll_loss",
    ),
    "UnknownSignal": (strict, "did you mean 'layer1'", "layer2"),
    "WrongType": (lambda _: gt.ShardConfig(axis="x"), r"expected the number of a dim \(an int\), got 'x'", rf"in ShardConfig\(\) at {LINE}"),
    "WrongValue": (
        lambda _: gt.memory_limit("20Gx"), "expected a number of bytes from 1 up, or text such as '20GiB', got '20Gx'", rf"in memory_limit\(\) at {LINE}"
    ),
}  # fmt: skip
# By class: a test that makes one, as it takes processes, a network or a fault in gt, and looks at what it says.
ELSEWHERE = {
    "CheckFailed": "integration/test_telling_why.py", "ConnectionRefused": "integration/test_sharing.py",
    "DispatcherLost": "fault/test_network.py", "NanMade": "integration/test_telling_why.py", "ExecutionError": "unit/runtime/test_executor.py",
    "LaunchError": "integration/test_runtime.py", "NodeRefused": "unit/runtime/test_node_link.py", "NoGradient": "unit/passes/test_autodiff.py",
    "NoWorkers": "state/test_dispatcher_stories.py", "OutOfMemoryError": "integration/test_memory.py", "PassError": "unit/passes/test_pipeline.py",
    "PlanRefused": "unit/passes/test_options.py", "ProtocolError": "integration/test_runtime.py", "QuotaExceeded": "integration/test_sharing.py",
    "SaveError": "integration/test_checkpoints.py", "SessionClosed": "integration/test_runtime.py",
    "Unwanted": "unit/runtime/test_hello.py",
    "VerifyError": "unit/ir/test_verify.py", "VersionMismatch": "unit/runtime/test_hello.py", "WireError": "unit/ir/test_program_wire.py",
    "WorkerLost": "fault/test_worker_lost.py",
}  # fmt: skip
WORDS = {"NoWorkers": '"no_workers"', "Unwanted": "wire.Refused"}  # by which a test knows one that it does not name


def advice(error: BaseException) -> list[str]:
    return [note for note in getattr(error, "__notes__", ()) if note.startswith("what to do: ")]


@pytest.mark.parametrize("name", PROVOKED)
def test_an_error_says_what_was_expected_what_was_there_where_and_what_to_do(name: str, tmp_path: Path) -> None:
    make, says, where = PROVOKED[name]
    with pytest.raises(Exception) as caught:
        make(tmp_path)
    error = caught.value
    assert type(error).__name__ == name, repr(error)
    notes = "\n".join(error.__notes__)
    assert re.search(says, str(error)), str(error)
    assert re.search(where, f"{error}\n{notes}"), f"{error}\n{notes}"
    assert advice(error) == [f"what to do: {ADVICE[name]} ({PAGE}#{name.lower()})"]


@pytest.mark.parametrize(("priority", "kind"), [(0, ValueError), (-1.0, ValueError), (float("nan"), ValueError), ("high", TypeError), (True, TypeError)])
def test_a_priority_that_is_none_is_refused_before_a_server_is_asked(priority: Any, kind: type[Exception]) -> None:
    said = rf"(?s)^priority: expected a number over 0, got .*in connect\(\) at {re.escape(__file__)}.*Correct the field or argument"
    with pytest.raises(kind, match=said):
        gt.connect("localhost:1", priority=priority)


def test_every_error_that_brings_advice_is_made_by_a_test() -> None:
    assert set(PROVOKED) | set(ELSEWHERE) == set(ADVICE) and not set(PROVOKED) & set(ELSEWHERE)
    for name, file in ELSEWHERE.items():
        assert WORDS.get(name, name) in (TESTS / file).read_text(), name


def test_every_class_that_may_reach_a_script_brings_advice_and_its_page_has_the_anchor() -> None:
    kinds = {kind.__name__: kind for kind in exceptions() if issubclass(kind, Advised)}
    page = (TESTS.parent / PAGE).read_text()
    for kind in kinds.values():
        with contextlib.suppress(TypeError):  # of those that take more than a text, others are made above
            notes = advice(kind("a text"))
            assert bool(notes) is any(k.__name__ in ADVICE for k in kind.__mro__)
            assert all(f"\n## {found}\n" in page.lower() for note in notes for found in re.findall(r"#(\w+)\)$", note))
    assert set(ADVICE) <= set(kinds)


@pytest.mark.parametrize(
    "kind", ["run", "no_workers", "quota", "memory", "worker_lost", "dispatcher_lost", "unreachable", "closed", "protocol"]
)
def test_an_error_that_travelled_brings_its_line_and_advice(kind: str) -> None:
    error = Fault(kind, "there is none", 1, 7, "train.py:12").exception()
    assert str(error) == "there is none (at train.py:12)" and len(advice(error)) == 1

"""Signals that cannot be followed: who is told, where, how often; and what is no reason to say anything."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import gt
from gt import config as configs
from gt import session as sessions
from gt.ir.signals import ShardConfig, SignalConfig
from gt.runtime.simulated import SimulatedSession

pytestmark = pytest.mark.filterwarnings("error::gt.config.SignalWarning")

@pytest.fixture(autouse=True)
def four_workers() -> Iterator[None]:
    gt.disconnect()
    config = configs.get_config()
    config.clear()
    config.register_signal("rows", SignalConfig(shard=ShardConfig(axis=0)))
    config.register_signal("sixth", SignalConfig(shard=ShardConfig(axis=5)))
    with sessions.pinned(SimulatedSession(4)):
        yield
    config.clear()


def line() -> int:
    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def told(found: list[warnings.WarningMessage]) -> list[tuple[int, str]]:
    ours = [w for w in found if w.category is not ResourceWarning]  # of whatever of another test was collected meanwhile
    assert all(w.category is configs.SignalWarning and w.filename == __file__ for w in ours)
    return [(w.lineno, str(w.message)) for w in ours]


def test_a_tensor_that_cannot_be_split_is_told_once_for_each_place() -> None:
    x = gt.ones(3, 8)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            at, a = line(), gt.signal.tensor(x, name="rows")
            b = gt.signal.tensor(x, name="sixth")
        assert a.sum().item() == b.sum().item() == 24
    assert told(found) == [
        (at, "signal 'rows': kept whole: dim 0 of f32[3, 8] is smaller than 4 workers"),
        (at + 1, "signal 'sixth': kept whole: f32[3, 8] has no dim 5"),
    ]


def test_host_data_that_cannot_be_split_is_told_where_it_is_given() -> None:
    with warnings.catch_warnings(record=True) as found, gt.signal.context("rows"):
        warnings.simplefilter("always")
        for rows in (8, 8, 3, 3):
            at, x = line(), gt.from_numpy(np.ones((rows, 2), np.float32))
        assert x.sum().item() == 6
    assert told(found) == [(at, "signal 'rows': kept whole: dim 0 of f32[3, 2] is smaller than 4 workers")]


def test_a_scope_that_places_nothing_is_told_at_its_first_line() -> None:
    x, w = gt.ones(3, 8), gt.ones(8, 5)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            with gt.signal.context("rows"):
                at, y = line(), x @ w
                z = y + 1
            assert z.sum().item() == 3 * 5 * 9
    assert told(found) == [(at, "signal 'rows': kept whole: dim 0 of f32[3, 5] is smaller than 4 workers")]


def test_gradients_that_cannot_follow_their_signal_are_told() -> None:
    configs.register_config("layer", SignalConfig(shard=ShardConfig(axis=0), backward_signal="sixth"))
    x, w = gt.ones(8, 8), gt.ones(8, 8, requires_grad=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with gt.signal.context("layer"):
            at, y = line(), x @ w
        y.sum().backward()
        assert w.grad is not None and w.grad.sum().item() == 512
    assert told(found) == [(at, "signal 'sixth': kept whole: f32[8, 8] has no dim 5")]


def test_parameters_that_no_rule_can_split_are_told() -> None:
    configs.register_mesh({"dp": 4})
    configs.register_params({"*.bias": {1: "dp"}, "*.weight": {0: "dp"}})
    layer = gt.nn.Sequential(gt.nn.Linear(8, 8))
    assert layer(gt.ones(8, 8)).shape == (8, 8)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            layer(gt.ones(8, 8)).sum().item()
    assert [text for _, text in told(found)] == ["parameters '*.bias': kept whole: f32[8] has no dim 1"]


def test_parameters_that_no_rule_can_split_are_an_error_in_the_run_that_makes_them(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text('mesh: {dp: 4}\nstrict: true\nparams: {"*.weight": {5: dp}}\n')
    gt.load_config(file)
    layer = gt.nn.Sequential(gt.nn.Linear(8, 8))
    for _ in range(2):
        with pytest.raises(configs.ConfigError, match=r"'\*\.weight': kept whole: f32\[8, 8\] has no dim 5 \(at .*rules.yaml:3:1\)"):
            layer(gt.ones(8, 8)).sum().item()


def test_what_ops_do_to_dims_inside_a_scope_is_nothing_to_say() -> None:
    x, w, b = gt.ones(8, 8), gt.ones(8, 8), gt.ones(3)
    with gt.signal.context("rows"):
        loss = (x @ w.T).mean() * 2
        loss = loss + b[0]
        scale = gt.tensor(3.0)
    assert (loss * scale).item() == 51
    with gt.signal.context("rows"):
        assert (loss + 1).item() == 18  # a graph of numbers alone
        assert x.sum().item() == 64


def test_one_worker_follows_everything() -> None:
    gt.session._pinned = False
    gt.disconnect()
    assert gt.signal.tensor(gt.ones(3), name="sixth").sum().item() == 3


def test_what_is_marked_before_the_session_is_told_when_it_starts() -> None:
    gt.session._pinned = False
    gt.disconnect()
    at, x = line(), gt.signal.tensor(gt.ones(3, 8), name="rows")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with sessions.pinned(SimulatedSession(4)):
            assert x.sum().item() == 24
    assert told(found) == [(at, "signal 'rows': kept whole: dim 0 of f32[3, 8] is smaller than 4 workers")]


def test_strict_mode_makes_it_an_error_each_time() -> None:
    configs.get_config().strict = True
    for _ in range(2):  # an error at a flush loses what was pending
        x = gt.ones(3, 8)
        with pytest.raises(configs.ConfigError, match=rf"signal 'rows': kept whole.*\(at {__file__}:\d+\)"):
            gt.signal.tensor(x, name="rows")
        with gt.signal.context("sixth"):
            y = x + 1
        with pytest.raises(configs.ConfigError, match=r"signal 'sixth': kept whole: f32\[3, 8\] has no dim 5 \(at "):
            y.tolist()
    assert (gt.ones(3, 8) + 2).sum().item() == 72
    configs.register_config("more", SignalConfig(shard=ShardConfig(workers=(0, 9))))
    for _ in range(2):
        with pytest.raises(configs.ConfigError, match=r"workers \[9\] are not present, using .*: start more workers, or name"), gt.signal.context("more"):
            pass


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ({}, "parameters: mesh axis 'zz' is not declared: add 'mesh: {zz: SIZE}'"),
        ({"zz": 8}, "parameters: the mesh asks for 8 workers, 4 are present: using {zz: 4}"),
    ],
)
def test_rules_for_parameters_whose_mesh_is_not_there_are_told_without_any_signal(mesh: dict[str, int], said: str) -> None:
    gt.register_params({"*": {0: "zz"}})
    gt.register_mesh(mesh)
    layer = gt.nn.Linear(8, 8)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            at, read = line(), layer(gt.ones(4, 8)).sum().item()
    assert np.isfinite(read) and told(found) == [(at, said)]
    configs.get_config().strict = True
    for _ in range(2):
        with pytest.raises(gt.ConfigError, match=said.partition("{")[0]):
            layer(gt.ones(4, 8)).sum().item()


def test_rules_of_a_file_are_told_with_their_place(tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("params: {'*': {0: zz}}\n")
    gt.load_config(file)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        at, _ = line(), gt.nn.Linear(8, 8)(gt.ones(4, 8)).sum().item()
    assert told(found) == [(at, f"parameters: mesh axis 'zz' is not declared: add 'mesh: {{zz: SIZE}}' (at {file}:1:1)")]


@pytest.mark.parametrize("hooked", [False, True], ids=["one node", "expanded"])
def test_gradients_follow_a_signal_over_the_declared_mesh(hooked: bool) -> None:
    configs.register_mesh({"dp": 2, "tp": 2})
    configs.register_config("work", SignalConfig(shard=ShardConfig(axis=None), backward_signal="gradients"))
    configs.register_config("gradients", SignalConfig(shard=ShardConfig(dims={1: "tp"})))
    x, w = (gt.from_numpy(np.arange(64, dtype=np.float32).reshape(8, 8) / 64) for _ in range(2))
    w.requires_grad_()
    with gt.signal.context("work"):
        h = x @ w
    if hooked:
        h.register_hook(lambda g: g * 1)
    (h * h).sum().backward()
    told = gt.explain(w.grad)
    assert told.axes == {"dp": 2, "tp": 2} and told.local_shape == (8, 4) and not told.notes
    np.testing.assert_allclose(w.grad.numpy(), 2 * x.numpy().T @ x.numpy() @ w.detach().numpy(), rtol=1e-5)


@pytest.mark.parametrize("read_between", [False, True])
def test_a_name_that_is_registered_anew_while_work_is_pending_means_what_it_says_from_there_on(read_between: bool) -> None:
    of = lambda axis: SignalConfig(shard=ShardConfig(axis=axis), backward_signal="gradients")  # noqa: E731
    parts = []
    for axis in (0, 1):
        configs.register_config("work", of(axis))
        configs.register_config("gradients", SignalConfig(shard=ShardConfig(axis=1 - axis)))
        with gt.signal.context("work"):
            w = gt.full((8, 8), float(axis + 2)).requires_grad_()
            parts.append((w, w * w))
        if read_between:
            assert parts[-1][1].sum().item() == 64 * (axis + 2) ** 2
    configs.get_config().clear()
    sum(y.sum() for _, y in parts).backward()
    for axis, (w, y) in enumerate(parts):
        assert gt.explain(y).local_shape == ((2, 8) if axis == 0 else (8, 2))
        assert gt.explain(w.grad).local_shape == ((8, 2) if axis == 0 else (2, 8))
        assert w.grad.sum().item() == 128 * (axis + 2)

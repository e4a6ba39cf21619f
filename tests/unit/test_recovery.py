"""Asking for recovery: in a call, in a file, by a variable; what may be said, and that it does nothing where nothing can be lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gt
from gt import config as config_module
from gt import session as sessions
from gt.config import ConfigError
from gt.config_file import parse_config
from gt.runtime import env
from gt.runtime.recovery import Recovery


@pytest.mark.parametrize(
    ("text", "recovery"),
    [
        ("recover: true", Recovery()),
        ("recover: false", None),
        ("strict: true", None),
        ("recover: {interval_s: 10, wait_s: 0, restarts: 0}", Recovery(interval_s=10, wait_s=0, restarts=0)),
    ],
)
def test_a_file_asks_for_it(text: str, recovery: Recovery | None) -> None:
    assert parse_config(text).recovery == recovery


def test_a_signal_may_be_called_recover() -> None:
    found = parse_config("recover: {shard: {axis: 0}}")
    assert found.recovery is None and "recover" in found.signals


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("recover: 5", "f.yaml:1:10: recover: expected true or false, got 5"),
        ("recover: {interval_s: 0}", "f.yaml:1:23: recover.interval_s: expected a number above 0, got 0"),
        ("recover: {tries: 1.5}", "f.yaml:1:18: recover.tries: expected a whole number, got 1.5"),
        ("recover: {intervall_s: 5}", "f.yaml:1:11: recover: unknown key 'intervall_s'; did you mean 'interval_s'?"),
    ],
)
def test_a_fault_in_a_file_is_told_with_its_place(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml")
    assert str(caught.value) == fault


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval_s": 0},
        {"interval_s": -1},
        {"interval_s": float("nan")},
        {"interval_s": float("inf")},
        {"wait_s": -1},
        {"tries": 0},
    ],
    ids=str,
)
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, Any], clean: None) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        gt.recover(**wrong)
    assert gt.get_config().recovery is None


@pytest.mark.parametrize("wrong", [{"on": 60}, {"interval_s": "60"}, {"tries": 2.5}, {"restarts": True}], ids=str)
def test_what_is_no_number_is_refused(wrong: dict[str, Any], clean: None) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        gt.recover(**wrong)


def test_a_session_in_this_process_has_nothing_to_lose(alone: None) -> None:
    gt.recover(interval_s=5)
    assert (gt.ones(3) + 1).sum().item() == 6
    assert gt.get_config().recovery == Recovery(interval_s=5) and gt.recoveries() == () and sessions.cluster() is None
    gt.recover(False)
    assert gt.get_config().recovery is None


def test_the_variable_asks_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(config_module, "_config", None)
    for text, recovery in (("1", Recovery()), ("0", None)):
        monkeypatch.setenv("GT_RECOVER", text)
        monkeypatch.setattr(env.RECOVER, "_read", [])
        monkeypatch.setattr(config_module, "_config", None)
        assert gt.get_config().recovery == recovery

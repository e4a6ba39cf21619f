"""``shard: auto`` in files and ``gt.auto_shard`` in Python: what they make of the options that travel with every graph."""

from __future__ import annotations

from pathlib import Path

import pytest

from gt import config as config_module
from gt.config import Config, ConfigError, auto_shard, get_config
from gt.config_file import parse_config
from gt.ir.signals import PlanOptions, ShardConfig


def loaded(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "auto.yaml"
    path.write_text(text)
    config = Config()
    config.load(path)
    return config


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("shard: auto", None),
        ("shard: auto\nmemory_limit: 40_000_000_000", 40_000_000_000),
        ("memory_limit: 8\nlayer: {shard: auto}", 8),
        ("mesh: {dp: 2, tp: 2}\nshard: auto\nbatch: {shard: {dims: {0: dp}}}", None),
    ],
)
def test_a_file_asks_for_a_search(text: str, memory: int | None, tmp_path: Path) -> None:
    options = loaded(text, tmp_path).options
    assert (options.auto, options.memory_limit) == ("search", memory)


def test_a_signal_that_is_searched_keeps_what_else_it_says(tmp_path: Path) -> None:
    config = loaded("layer: {shard: auto, compile: true, backward: other}", tmp_path)
    signal = config.get_signal("layer")
    assert signal is not None and signal.shard is None and signal.compile and signal.backward_signal == "other"


def test_a_signal_may_be_called_shard_or_memory_limit() -> None:
    found = parse_config("shard: {shard: {axis: 1}}\nmemory_limit: {compile: true}")
    assert found.signals["shard"].shard == ShardConfig(axis=1) and found.signals["memory_limit"].compile
    assert not found.search and found.memory_limit is None


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [("9", 9), ("20GiB", 20 * 2**30), ("80GB", 80 * 10**9), ("1.5 MiB", 3 * 2**19), ("7B", 7), ("2 TB", 2 * 10**12), ("300kB", 300_000), ("4 Kib", 4096), ("'12'", 12)]
)
def test_a_limit_on_memory_needs_no_search(given: str, nbytes: int, tmp_path: Path) -> None:
    options = loaded(f"memory_limit: {given}", tmp_path).options
    assert (options.auto, options.memory_limit) != ("search", None) and options.memory_limit == nbytes


def test_without_a_word_there_is_no_search(tmp_path: Path) -> None:
    assert loaded("layer: {shard: {axis: 0}}", tmp_path).options.auto == "off"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("shard: auto\nmemory_limit: 0", "2:15: memory_limit: expected a number of bytes from 1 up, or text such as '20GiB', got 0"),
        ("memory_limit: {a: 1}", "1:15: memory_limit: expected a number of bytes from 1 up, or text such as '20GiB', got {'a': 1}"),
        ("memory_limit: 80 gigs", "1:15: memory_limit: expected a number of bytes from 1 up, or text such as '20GiB', got '80 gigs'"),
        ("memory_limit: 0.5B", "1:15: memory_limit: expected a number of bytes from 1 up, or text such as '20GiB', got 0"),
        ("layer: {shard: automatic}", "layer.shard: expected what to split, as in {axis: 0}, or 'auto', got 'automatic'; did you mean 'auto'?"),
    ],
)
def test_faults_name_the_place(text: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "f.yaml")
    assert str(caught.value).startswith("f.yaml:") and fault in str(caught.value)


def test_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "_config", Config())
    auto_shard()
    get_config().memory_limit = 100
    assert get_config().options == PlanOptions("search", memory_limit=100)
    auto_shard(on=False)
    assert get_config().options.auto != "search" and get_config().options.memory_limit == 100
    get_config().memory_limit = None
    assert get_config().options.memory_limit is None
    with pytest.raises(ValueError, match="from 1 up, or text such as '20GiB', got 0"):
        get_config().memory_limit = 0
    auto_shard()
    get_config().clear()
    assert get_config().options.auto != "search"

"""Configuration: what a file may say, how its faults are reported, and what an unknown signal does."""

from __future__ import annotations

import json
import threading
import warnings
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gt import config as config_module
from gt.config import Config, ConfigError, SignalWarning, UnknownSignal
from gt.config_file import parse_config
from gt.ir.signals import ShardConfig, SignalConfig
from gt.ir.types import TensorType, float32
from gt.passes.signal_placement import signal_sharding
from gt.runtime import env


@pytest.fixture
def process_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a configuration of its own, as at the start of a process."""
    for variable in (env.CONFIG, env.STRICT):
        monkeypatch.delenv(variable.name, raising=False)
        monkeypatch.setattr(variable, "_read", [])
    monkeypatch.setattr(config_module, "_config", None)


FULL = """
layer1:
  shard: {axis: 1, workers: [0, 1, 2, 3]}
  backward: layer1_bwd
  compile: true
layer1_bwd:
  shard:
    axis: -1
    workers:
      - 2
      - 0
whole:
  shard: {replicated: true}
nothing:
strict: true
"""


def test_full_schema() -> None:
    signals, strict = parse_config(FULL)[:2]
    assert signals == {
        "layer1": SignalConfig(ShardConfig(1, (0, 1, 2, 3)), "layer1_bwd", True),
        "layer1_bwd": SignalConfig(ShardConfig(-1, (2, 0))),
        "whole": SignalConfig(ShardConfig(replicated=True)),
        "nothing": SignalConfig(),
    }
    assert strict is True


def test_empty_file_and_signal_named_strict() -> None:
    assert parse_config("")[:2] == ({}, None)
    assert parse_config("strict: {compile: true}")[:2] == ({"strict": SignalConfig(compile=True)}, None)


def test_anchors_and_merge_keys() -> None:
    signals, *_ = parse_config("a: &base {shard: {workers: [0, 1]}}\nb: {<<: *base, compile: true}\nc: *base\n")
    assert signals["b"] == SignalConfig(ShardConfig(0, (0, 1)), compile=True)
    assert signals["c"] == signals["a"]


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("a:\n  shard:\n    workrs: [0]\n", "3:5", ["a.shard", "'workrs'", "did you mean 'workers'?"]),
        ("a:\n  backwards: x\n", "2:3", ["a", "'backwards'", "did you mean 'backward'?"]),
        ("a:\n  compile: maybe\n", "2:12", ["a.compile", "true or false", "'maybe'"]),
        ("a:\n  shard: {axis: 0.5}\n", "2:17", ["a.shard.axis", "int", "0.5"]),
        ("a:\n  shard: {workers: [0, one]}\n", "2:24", ["a.shard.workers[1]", "int", "'one'"]),
        ("a:\n  shard: {workers: [0, 0]}\n", "2:20", ["a.shard.workers", "different"]),
        ("a:\n  shard: {workers: []}\n", "2:20", ["a.shard.workers", "at least one"]),
        ("a:\n  shard: {workers: [-1]}\n", "2:20", ["a.shard.workers", "from 0 up"]),
        ("a: {}\n'': {}\n", "2:1", ["a signal's name must not be empty"]),
        ("a: 3\n", "1:4", ["a: expected what a signal asks for, as in {shard: {axis: 0}}, got 3"]),
        ("a: {shard: {workers: 2}}\n", "1:22", ["a.shard.workers: expected worker numbers in a list, as in [0, 1], got 2"]),
        ("a: {shard: {replicated: 1}}\n", "1:25", ["a.shard.replicated: expected true or false, got 1"]),
        ("a: {shard: 0}\n", "1:12", ["a.shard: expected what to split, as in {axis: 0}, or 'auto', got 0"]),
        ("a: {backward: 3}\n", "1:15", ["a.backward: expected the name of a signal, got 3"]),
        ("a: {backward_signal: x}\n", "1:5", ["a: unknown key 'backward_signal'; did you mean 'backward'?"]),
        ("stict: true\n", "1:8", ["stict: ", "got true; did you mean 'strict'?"]),
        ("shard: autoo\n", "1:8", ["shard: ", "got 'autoo'; did you mean 'auto'?"]),
        ("shard: {axis: 0}\n", "1:8", ["shard: at the top of a file", "as in NAME: {shard: ...}"]),
        ("compile: true\n", "1:10", ["'compile' stands in a signal, as in NAME: {compile: ...}"]),
        ("axis: 0\n", "1:7", ["'axis' stands in a signal's shard, as in NAME: {shard: {axis: ...}}"]),
        ("msh: {dp: 2}\n", "1:7", ["msh: unknown key 'dp'; did you mean 'mesh' instead of 'msh'?"]),
        ("strict:\n", "1:8", ["strict: expected true or false, got nothing"]),
        ("a: {}\nb: {}\na: {}\n", "3:1", ["'a'", "line 1"]),
        ("a:\n  shard: {axis: 0, axis: 1}\n", "2:20", ["'axis'", "line 2"]),
        ("- a\n", "1:1", ["mapping", "list"]),
        ("just text\n", "1:1", ["mapping", "str"]),
        ("7: {}\n", "1:1", ["7", "quote it"]),
        ("no: {}\n", "1:1", ["False", "quote it"]),
        ("strict: 3\n", "1:9", ["strict", "true or false"]),
        ("a: {shard: [\n", "2:1", ["expected"]),
        ("a: b: c\n", "1:5", ["mapping values"]),
        ("a: {}\n---\nb: {}\n", "2:1", ["single document"]),
        ("a:\n b: \x1f\n", "2:5", ["unprintable"]),
        ("a: !!python/object/apply:os.system [x]\n", "1:4", ["constructor", "os.system"]),
    ],
)
def test_faults_name_file_line_column_and_key(text: str, where: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "gt.yaml")
    message = str(caught.value)
    assert message.startswith(f"gt.yaml:{where}: "), message
    for word in words:
        assert word in message


def test_deep_nesting_and_self_reference_are_config_errors() -> None:
    with pytest.raises(ConfigError):
        parse_config("a: " + "[" * 20_000 + "]" * 20_000, "gt.yaml")
    with pytest.raises(ConfigError, match=r"^gt.yaml:"):
        parse_config("a: &x\n  shard: *x\n", "gt.yaml")


@given(st.text(alphabet="ab:{}[]-&*!?|>'\"#%,\n 01\t", max_size=60) | st.text(max_size=40))
def test_any_text_gives_a_config_or_a_config_error(text: str) -> None:
    try:
        signals, *_ = parse_config(text, "gt.yaml")
    except ConfigError as error:
        assert str(error).startswith("gt.yaml:")
    else:
        assert all(isinstance(s, SignalConfig) for s in signals.values())


def test_a_date_that_does_not_exist_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="^gt.yaml: month must be"):
        parse_config("a: 2001-99-99", "gt.yaml")


def test_file_faults(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text("")
    for path, said in ((tmp_path / "gird.yaml", "No such file or directory; did you mean 'grid.yaml'?"),
                       (tmp_path, "Is a directory; known: grid.yaml"), (tmp_path / "no" / "a.yaml", "No such file or directory"),
                       ("a\0b", "embedded null byte")):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            Config().load(path)
        assert str(caught.value) == f"{path}: {said}"
    with pytest.raises(TypeError, match="path of a YAML file, got int"):
        Config().load(0)  # type: ignore[arg-type]
    (tmp_path / "bytes.yaml").write_bytes(b"a: {}\n\xff")
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 6"):
        Config().load(tmp_path / "bytes.yaml")


def test_a_faulty_file_changes_nothing(tmp_path: Path) -> None:
    config = Config()
    config.register_signal("a", SignalConfig(compile=True))
    (tmp_path / "bad.yaml").write_text("a: {}\nb: {compile: 3}\n")
    with pytest.raises(ConfigError):
        config.load(tmp_path / "bad.yaml")
    assert dict(config.signals) == {"a": SignalConfig(compile=True)}


def test_later_registrations_replace_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "gt.yaml"
    path.write_text("a: {compile: true}\nb: {}\n")
    config = Config()
    config.register_signal("a", SignalConfig(ShardConfig(1)))
    before = config.version
    config.load(path)
    assert config.get_signal("a") == SignalConfig(compile=True)
    assert config.version > before
    config.register_signal("b", SignalConfig(backward_signal="a"))
    assert config.get_signal("b") == SignalConfig(backward_signal="a")


def test_unknown_signal_warns_once_at_the_users_line() -> None:
    config = Config()
    config.register_signal("layer1", SignalConfig())
    with pytest.warns(SignalWarning, match=r"'layr1' is not configured; did you mean 'layer1'\?: ignored") as caught:
        assert config.get_signal("layr1") is None
        assert config.get_signal("layr1") is None
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.warns(SignalWarning, match="'other' is not configured; known: layer1"):
        config.get_signal("other")


def test_nothing_configured_is_one_warning_for_all_names() -> None:
    config = Config()
    with pytest.warns(SignalWarning, match="none is configured") as caught:
        assert config.get_signal("a") is None
        assert config.get_signal("b") is None
    assert len(caught) == 1


def test_strict_mode_raises_each_time() -> None:
    config = Config()
    config.register_signal("layer1", SignalConfig())
    config.strict = True
    for _ in range(2):
        with pytest.raises(UnknownSignal, match=r"did you mean 'layer1'\?"):
            config.get_signal("layer2")
    config.clear()
    assert not config.strict


def test_register_refuses_what_is_no_signal() -> None:
    with pytest.raises(TypeError, match="SignalConfig for signal 'a', got dict"):
        Config().register_signal("a", {"compile": True})  # type: ignore[arg-type]


@pytest.mark.usefixtures("process_config")
def test_environment_names_the_file_at_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gt.yaml"
    path.write_text("a: {compile: true}\n")
    monkeypatch.setenv("GT_CONFIG", str(path))
    assert config_module.get_signal_config("a") == SignalConfig(compile=True)
    monkeypatch.setenv("GT_CONFIG", str(tmp_path / "other.yaml"))
    config_module.register_config("b", SignalConfig())
    assert sorted(config_module.get_config().signals) == ["a", "b"]


@pytest.mark.usefixtures("process_config")
def test_environment_may_ask_for_strictness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_STRICT", "1")
    with pytest.raises(UnknownSignal, match="none is configured"):
        config_module.get_signal_config("a")


@pytest.mark.usefixtures("process_config")
def test_environment_naming_no_file_is_an_error_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_CONFIG", "/nowhere/gt.yaml")
    for _ in range(2):
        with pytest.raises(ConfigError, match="GT_CONFIG=/nowhere/gt.yaml: No such file"):
            config_module.get_config()


@pytest.mark.usefixtures("process_config")
def test_threads_share_one_configuration() -> None:
    start = threading.Barrier(8)
    seen: list[Config] = []

    def work(number: int) -> None:
        start.wait()
        for i in range(50):
            config_module.register_config(f"{number}.{i}", SignalConfig())
        seen.append(config_module.get_config())

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(c) for c in seen}) == 1
    assert len(seen[0].signals) == 400


def test_schema_takes_lists_and_travels() -> None:
    shard = ShardConfig(axis=0, workers=[0, 1, 2, 3])  # type: ignore[arg-type]
    assert shard.workers == (0, 1, 2, 3)
    assert hash(shard) == hash(ShardConfig(0, (0, 1, 2, 3)))
    signal = SignalConfig(shard=shard, backward_signal="bwd", compile=True)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(signal), type=SignalConfig) == signal
    assert msgspec.convert(msgspec.to_builtins(signal), SignalConfig) == signal
    with pytest.raises(TypeError, match="worker numbers"):
        ShardConfig(workers=["0"])  # type: ignore[arg-type]


def test_no_warning_for_known_signals() -> None:
    config = Config()
    config.register_signal("a", SignalConfig())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert config.get_signal("a") == SignalConfig()


@pytest.mark.parametrize(
    ("shard", "kind", "said"),
    [
        ({"axis": 1, "replicated": True}, ValueError, "axis: replicated and axis contradict each other"),
        ({"axis": 1, "dims": {}}, ValueError, "axis: dims and axis contradict each other"),
        ({"dims": {0: "dp"}, "replicated": True}, ValueError, "replicated: dims and replicated contradict each other"),
        ({"axis": "left"}, TypeError, "axis: expected the number of a dim"),
        ({"axis": True}, TypeError, "axis: expected the number of a dim"),
        ({"replicated": 1}, TypeError, "replicated: expected true or false"),
        ({"dims": {0.5: "dp"}}, TypeError, r"dims\[0.5\]: expected the number of a dim"),
        ({"dims": {0: 3}}, TypeError, r"dims\[0\]: expected a mesh axis or a list of them"),
        ({"dims": {0: [3]}}, TypeError, r"dims\[0\]: expected a mesh axis or a list of them"),
        ({"dims": {0: {"dp": 2}}}, TypeError, r"dims\[0\]: expected a mesh axis or a list of them"),
        ({"dims": "dp"}, TypeError, "dims: expected dims with the mesh axes that split them"),
        ({"workers": 2}, TypeError, "workers: expected worker numbers in a list"),
        ({"workers": "01"}, TypeError, "workers: expected worker numbers in a list"),
        ({"workers": [0, True]}, TypeError, r"workers\[1\]: worker numbers are ints, got true"),
        ({"workers": []}, ValueError, "workers: expected different numbers"),
    ],
)
def test_python_refuses_what_a_file_may_not_say(shard: dict[str, object], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=f"^{said}"):
        ShardConfig(**shard)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"a\.shard\.{said}"):
        parse_config(json.dumps({"a": {"shard": shard}}) if "dims" not in shard else yaml.dump({"a": {"shard": shard}}), "f")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"backward_signal": 3}, "backward_signal: expected the name of a signal, got 3"),
        ({"compile": "yes"}, "compile: expected true or false, got 'yes'"),
        ({"shard": {"axis": 0}}, "shard: expected a gt.ShardConfig, got {'axis': 0}"),
        ({"mesh": 4}, "mesh: expected axes with their sizes"),
        ({"params": {"*": 0}}, r"params\['\*'\]: expected dims"),
        ({"params": {3: {}}}, r"params\[3\]: expected a pattern of names"),
    ],
)
def test_python_refuses_a_signal_of_wrong_types(given: dict[str, object], said: str) -> None:
    with pytest.raises(TypeError, match=f"^{said}"):
        SignalConfig(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "name", "hint"),
    [
        (SignalConfig, "shrd", "; did you mean 'shard'?"), (SignalConfig, "backward", "; did you mean 'backward_signal'?"),
        (ShardConfig, "axs", "; did you mean 'axis'?"), (ShardConfig, "Workers", "; did you mean 'workers'?"),
        (ShardConfig, "colour", "; there are axis, workers, replicated, dims"),
    ],
)  # fmt: skip
def test_python_names_the_field_that_was_meant(make: type, name: str, hint: str) -> None:
    with pytest.raises(TypeError) as caught:
        make(**{name: 1})
    assert str(caught.value) == f"unknown field {name!r}{hint}"
    assert caught.value.__notes__[0].startswith(f"in {make.__name__}() at {__file__}:")


def test_the_rest_of_the_configuration_has_its_types_too() -> None:
    config = Config()
    with pytest.raises(TypeError, match="strict: expected true or false, got 'yes'"):
        config.strict = "yes"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="memory_limit: expected a number of bytes from 1 up, or text such as '20GiB', got 8.5"):
        config.memory_limit = 8.5  # type: ignore[assignment]
    with pytest.raises(TypeError, match="a signal's name must be text, got 7"):
        config.register_signal(7, SignalConfig())  # type: ignore[arg-type]


def test_dims_of_nothing_split_nothing() -> None:
    """As ``params: {"*": {}}`` means whole; without dims, it is dim 0."""
    found = parse_config("a: {shard: {dims: {}}}\nb: {shard: {}}").signals
    assert found["a"].shard == ShardConfig(dims={}) != ShardConfig() == found["b"].shard
    for shard, dims in ((found["a"].shard, ((), ())), (found["b"].shard, (("w",), ()))):
        assert signal_sharding(TensorType((8, 4), float32), SignalConfig(shard), (0, 1)).dims == dims
        again = msgspec.json.decode(msgspec.json.encode(shard), type=ShardConfig)
        assert again == shard

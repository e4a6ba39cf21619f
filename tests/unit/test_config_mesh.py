"""Meshes and rules for parameters in configuration: what a file may say, how faults are reported, what a signal carries."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gt.config import Config, ConfigError
from gt.config_file import parse_config
from gt.ir.signals import ShardConfig, SignalConfig

GRID = """
mesh: {dp: 2, tp: 2}
params:
  "*.weight": {1: tp}
  "*.bias": {}
batch:
  shard: {dims: {0: dp}}
  backward: gradients
gradients:
  shard: {dims: {-1: [dp, tp]}, workers: [3, 1, 0, 2]}
mlp:
  mesh: {ep: 4}
  shard: {dims: {0: ep}}
"""


def test_a_file_names_a_mesh_and_places_parameters() -> None:
    found = parse_config(GRID)
    assert found.mesh == (("dp", 2), ("tp", 2))
    assert found.params == (("*.weight", ((1, ("tp",)),)), ("*.bias", ()))
    assert found.signals["gradients"] == SignalConfig(
        ShardConfig(dims={-1: ("dp", "tp")}, workers=(3, 1, 0, 2))
    )


def test_a_signal_carries_its_mesh_rules_and_backward_signal(tmp_path: Path) -> None:
    (tmp_path / "grid.yaml").write_text(GRID)
    config = Config()
    config.load(tmp_path / "grid.yaml")
    found = config.resolve("batch")
    assert found is not None and found.mesh == (("dp", 2), ("tp", 2))
    assert found.params == config.params
    assert found.backward_config is not None and found.backward_config.mesh == found.mesh
    own = config.resolve("mlp")
    assert own is not None and own.mesh == (("ep", 4),)
    assert config.base == ("", SignalConfig(mesh=found.mesh, params=config.params))
    assert config.resolve("batch") is found, "looked up once"
    config.register_mesh({"dp": 4})
    again = config.resolve("batch")
    assert again is not None and again.mesh == (("dp", 4),)
    config.clear()
    assert config.base is None and config.mesh == {}


def test_a_signal_without_axes_carries_no_mesh() -> None:
    config = Config()
    config.register_mesh({"dp": 2})
    config.register_signal("a", SignalConfig(ShardConfig(1)))
    assert config.resolve("a") == SignalConfig(ShardConfig(1))


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ("mesh: {dp: 2, tp: 2}\na:\n  shard: {dims: {0: pd}}\n", "3:21", ["a", "'pd'", "known: dp, tp"]),
        ("mesh: {dp: 2}\nparams:\n  x: {0: tp}\n", "3:10", ["params", "'tp'"]),
        ("mesh: {dp: two}\n", "1:12", ["mesh.dp: expected a size from 1 up, or -1 for the rest, got 'two'"]),
        ("mesh: [2, 2]\n", "1:7", ["mesh: expected axes with their sizes, as in {dp: 2, tp: 2}, got [2, 2]"]),
        ("a: {mesh: 4}\n", "1:11", ["a.mesh: expected axes with their sizes"]),
        ("params: {'*.w': 0}\n", "1:17", ["params['*.w']: expected dims with the mesh axes that split them, as in {0: dp}, got 0"]),
        ("params: {x: {a: tp}}\n", "1:14", ["params.x.a: expected the number of a dim (an int)"]),
        ("params: {x: {0: 3}}\n", "1:17", ["params.x[0]: expected a mesh axis or a list of them, as in dp or [dp, tp], got 3"]),
        ("params: {3: {}}\n", "1:10", ["params[3]: expected a pattern of names as text"]),
        ("params: [x]\n", "1:9", ["params: expected patterns of names with dims to split"]),
        ("a: {shard: {dims: {0.5: dp}}}\n", "1:20", ["a.shard.dims[0.5]: expected the number of a dim"]),
        ("mesh: {dp: 0}\n", "1:12", ["mesh.dp", "from 1 up"]),
        ("mesh: {dp: -1, tp: -1}\n", "1:7", ["only one"]),
        ("mesh: {d-p: 1}\n", "1:8", ["word"]),
        ("a:\n  shard:\n    dims: {0: dp, 1: dp}\n", "3:11", ["a.shard.dims", "'dp'", "dims 0 and 1"]),
        ("a:\n  shard: {dims: {0: dp}, axis: 0}\n", "2:26", ["a.shard", "dims and axis contradict", "remove one"]),
        ("a:\n  shard: {dims: {0: dp}, replicated: true}\n", "2:26", ["dims and replicated contradict"]),
        ("a:\n  shard: {axis: 0, replicated: true}\n", "2:11", ["replicated and axis contradict"]),
        ("params: {x: {0: dp, 1: dp}}\n", "1:13", ["params.x", "dims 0 and 1"]),
        ("a: {backward_config: {}}\n", "1:5", ["unknown key"]),
        (
            "mesh: {dp: 2, tp: 2}\na:\n  shard: {dims: {0: dp}, workers: [0, 1, 2]}\n", "3:35",
            ["a.shard.workers: the mesh {dp: 2, tp: 2} is laid over 4 workers, got 3"],
        ),
        ("mesh: {dp: -1, tp: 2}\na: {shard: {dims: {0: dp}, workers: [2, 0, 1]}}\n", "2:37", ["over a multiple of 2 workers, got 3"]),
        ("a: {shard: {workers: [0, 99999999999999999999]}}\n", "1:26", ["a.shard.workers[1]: worker numbers are ints"]),
        ("a: {shard: {axis: 99999999999999999999}}\n", "1:19", ["a.shard.axis: expected the number of a dim"]),
        ("mesh: {dp: 99999999999999999999}\n", "1:12", ["mesh.dp: expected a size"]),
    ],
)
def test_faults_name_file_line_column_and_key(text: str, where: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "gt.yaml")
    message = str(caught.value)
    assert message.startswith(f"gt.yaml:{where}: "), message
    for word in words:
        assert word in message


def test_signals_may_be_named_mesh_or_params() -> None:
    found = parse_config("mesh: {shard: {axis: 0}}\nparams: {compile: true}\n")
    assert found.signals == {"mesh": SignalConfig(ShardConfig()), "params": SignalConfig(compile=True)}
    assert found.mesh == () and found.params == ()


def test_faults_from_python() -> None:
    config = Config()
    with pytest.raises(ConfigError, match="^mesh.dp: expected a size"):
        config.register_mesh({"dp": 0})
    with pytest.raises(ConfigError, match="splits dims 0 and 1"):
        config.register_params({"*": {0: "dp", 1: "dp"}})
    with pytest.raises(ConfigError, match=r"^params\['\*'\]: expected dims with the mesh axes that split them, as in {0: dp}, got 0"):
        config.register_params({"*": 0})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="^mesh: expected axes with their sizes"):
        config.register_mesh(4)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="contradict"):
        ShardConfig(axis=1, dims={0: "dp"})


def test_one_form_on_every_way() -> None:
    config = SignalConfig(ShardConfig(dims={0: "dp", 1: ("tp",)}), mesh={"dp": 2, "tp": 2}, params={"*": {0: "dp"}})
    assert msgspec.convert(msgspec.to_builtins(config), SignalConfig) == config
    assert msgspec.json.decode(msgspec.json.encode(config), type=SignalConfig) == config
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=SignalConfig) == config
    assert hash(config) == hash(msgspec.structs.replace(config))


@pytest.mark.parametrize("again", ["0", "-0", "0x0"])
def test_a_dim_written_in_two_ways_is_given_twice(again: str) -> None:
    with pytest.raises(ConfigError, match=rf"2:31: key '{again}' is already on line 2"):
        parse_config(f"mesh: {{dp: 2, tp: 2}}\nbatch: {{shard: {{dims: {{0: dp, {again}: tp}}}}}}\n")
    parse_config("mesh: {dp: 2, tp: 2}\nbatch: {shard: {dims: {0: dp, -1: tp}}}\n")


def test_what_is_wrong_with_rules_for_parameters_is_told_with_their_place(tmp_path: Path) -> None:
    """As it is of a signal."""
    config = Config()
    file = tmp_path / "c.yaml"
    file.write_text("mesh: {dp: 2}\nparams:\n  '*': {0: dp}\n")
    config.load(file)
    assert config.said_at("") == f" (at {file}:2:1)"
    config.register_mesh({"tp": 2})
    assert config.said_at("") == ""

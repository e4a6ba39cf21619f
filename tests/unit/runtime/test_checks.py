"""``gt doctor``: each check's verdict on facts that it is handed, and all of them on this machine."""

from __future__ import annotations

import os
import re
import resource
import socket
import tomllib
from pathlib import Path

import pytest

from gt.runtime import checks, env
from gt.runtime.checks import GIB, NEEDED, Finding, run_checks

ROOT = Path(__file__).resolve().parents[3]
HERE = Path("/tmp")


@pytest.mark.parametrize(
    ("finding", "verdict", "words"),
    [
        (checks.judge_python((3, 11), "CPython"), "ok", ""),
        (checks.judge_python((3, 10), "CPython"), "failed", "use CPython 3.11 to 3.13"),
        (checks.judge_python((3, 14), "CPython"), "failed", "use CPython"),
        (checks.judge_python((3, 12), "PyPy"), "failed", "use CPython"),
        (checks.judge_package("torch", "2.11.0+cu130"), "ok", ""),
        (checks.judge_package("torch", "2.9.1"), "failed", "pip install 'torch>=2.11'"),
        (checks.judge_package("pyzmq", None), "failed", "pip install 'pyzmq>=26'"),
        (checks.judge_package("numpy", "2.10.0"), "ok", ""),
        (checks.judge_extension(False), "warning", "install a C compiler"),
        (checks.judge_compiler(None), "warning", "install g\\+\\+"),
        (checks.judge_compiler("/usr/bin/g++"), "ok", "/usr/bin/g"),
        (checks.judge_gpu(0, None, None, 0), "ok", "use the CPU"),
        (checks.judge_gpu(2, "580.1", None, None), "ok", "driver 580.1"),
        (checks.judge_gpu(2, "580.1", None, 0), "failed", "install a CUDA build"),
        (checks.judge_gpu(2, "470.1", "13.0", 0), "failed", "update the driver"),
        (checks.judge_gpu(2, "580.1", "13.0", 2), "ok", "CUDA 13.0"),
        (checks.judge_clock(1.8e9, 0.2, 0.2), "ok", ""),
        (checks.judge_clock(1.8e9, 3600.2, 0.2), "warning", "deadlines do not use it"),
        (checks.judge_clock(5.0, 0.2, 0.2), "failed", "set the time"),
        (checks.judge_free("cache", HERE, 20 * GIB), "ok", "20.0 GiB"),
        (checks.judge_free("cache", HERE, GIB // 2), "warning", "make room"),
        (checks.judge_free("cache", HERE, 1 << 20), "failed", "make room"),
        (checks.judge_shared_memory(64 << 20), "warning", "--shm-size"),
        (checks.judge_shared_memory(None), "warning", "no /dev/shm"),
        (checks.judge_shared_memory(8 * GIB), "ok", "8.00 GiB"),
        (checks.judge_open_files(65536), "ok", "65536"),
        (checks.judge_open_files(1024), "warning", "ulimit -n"),
        (checks.judge_open_files(256), "failed", "ulimit -n"),
        (checks.judge_open_files(resource.RLIM_INFINITY), "ok", "no limit"),
    ],
)  # fmt: skip
def test_verdicts(finding: Finding, verdict: str, words: str) -> None:
    assert finding.verdict == verdict and re.search(words, f"{finding.text} {finding.fix}"), finding
    assert verdict == "ok" or finding.fix


def test_what_it_needs_is_what_the_package_requires() -> None:
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"{name}>={version}" for name, version in NEEDED.items()} <= set(required["dependencies"])
    assert required["requires-python"] == ">=" + ",<".join(".".join(map(str, v)) for v in checks.PYTHON)


def test_keys_that_others_may_read_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    assert checks.judge_key(key).verdict == "failed"
    key.touch(0o600)
    assert checks.judge_key(key).verdict == "ok"
    key.chmod(0o640)
    assert checks.judge_key(key).fix == f"chmod 600 {key}"
    monkeypatch.setattr(env, "VARIABLES", {**env.VARIABLES})  # where the next one enters itself
    env.Variable("GT_TEST_KEY_FILE", str, str(key), "")
    assert checks.keys().verdict == "failed"


def test_a_cache_that_others_may_write_to_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "CACHE", tmp_path / "gt")
    assert checks.cache().verdict in ("ok", "warning")  # it is made when needed
    (tmp_path / "gt" / "compiled").mkdir(parents=True, mode=0o700)
    assert checks.cache().verdict in ("ok", "warning")
    (tmp_path / "gt" / "compiled").chmod(0o777)
    assert checks.cache().fix == f"chmod 700 {tmp_path}/gt/compiled"
    assert checks.judge_cache(tmp_path, tmp_path.stat(), os.getuid() + 1) is not None


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert checks.port(number) == Finding(f"port {number}", "failed", "in use", checks.port(number).fix)
        assert f":{number}" in checks.port(number).fix
    assert checks.port(number).verdict == "ok"


def test_a_check_that_breaks_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise OSError("no such thing")

    monkeypatch.setattr(checks, "loopback", broken)
    found = {f.name: f for f in run_checks(quick=True)}
    assert found["loopback"] == Finding("loopback", "failed", "the check broke: OSError: no such thing")
    assert found["open files"].verdict in ("ok", "warning")  # those behind it are done all the same


def test_this_machine_is_looked_at() -> None:
    found = [f.name for f in run_checks(ports=[], quick=True)]
    assert found == [
        "python", "torch", "pyzmq", "numpy", "msgspec", "extension", "compiler", "gpu", "loopback", "keys", "clock", "temporary files",
        "cache", "shared memory", "open files",
    ]  # fmt: skip

"""Variables say by their name what they expect and what they got."""

from __future__ import annotations

import pytest

from gt.runtime import env


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        (env.ADDRESS, "foo", "GT_ADDR='foo': expected an address like 'localhost:12345', got 'foo'"),
        (env.ADDRESS, "host:99999", "got 'host:99999'"), (env.ADDRESS, "http://h:5", "got 'http://h:5'"), (env.ADDRESS, ":5", "got ':5'"),
        (env.ADDRESS, "ipc://", "got 'ipc://'"), (env.DEBUG, "loud", "GT_DEBUG='loud': expected an integer >= 0"),
        (env.DEBUG, "-1", "expected an integer >= 0"), (env.CHECK, "torch", "GT_CHECK='torch': expected one of numpy, nan"),
        (env.INSTRUCTION_LOG_SIZE, "abc", "GT_INSTRUCTION_LOG_SIZE='abc': expected a number of bytes"),
        (env.GROUP_TIMEOUT_S, "x", "GT_GROUP_TIMEOUT='x': expected a number over 0"), (env.EPOCH_TIMEOUT_S, "-1", "expected a number over 0"),
        (env.WORKER_LEASE_S, "long", "GT_WORKER_LEASE='long': expected a number from 0 up"),
        (env.PRIORITY, "high", "GT_PRIORITY='high': expected a number over 0"),
        (env.STRICT, "maybe", "GT_STRICT='maybe': expected 1, true, yes or on, or 0, false, no or off"),
        (env.BACKEND, "jax", "GT_BACKEND='jax': expected one of torch, numpy"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(variable: env.Variable[object], text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable.name, text)
    monkeypatch.setattr(variable, "_read", [])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        variable.get()
    assert said in str(caught.value) and variable.doc in str(caught.value)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("4000000", 4_000_000), ("300kB", 300_000), ("300KB", 300_000), ("2 mb", 2_000_000), ("64MiB", 1 << 26), ("64mib", 1 << 26), ("0", None), ("0kB", None)],
)  # fmt: skip
def test_sizes_are_taken_as_people_write_them(text: str, nbytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (env.INSTRUCTION_LOG_SIZE, env.CLIENT_MEMORY, env.WORKER_MEMORY):
        monkeypatch.setenv(variable.name, text)
        assert variable.read() == nbytes


@pytest.mark.parametrize("yes", ["1", "true", "True", "yes", "ON"])
@pytest.mark.parametrize("no", ["0", "false", "FALSE", "no", "off"])
def test_booleans_are_numbers_or_words_under_older_names_too(yes: str, no: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in [v for v in env.VARIABLES.values() if isinstance(v.default, bool)]:
        for text, value in ((yes, True), (no, False)):
            monkeypatch.setenv(variable.name, text)
            assert variable.read() is value
    monkeypatch.delenv("GT_COMPILE_AFTER", raising=False)
    for older, on, off in (("GT_VERBOSE", 2, 0), ("GT_DEBUG_WORKER", 3, 0), ("GT_COMPILE", 1, 0), ("GT_AUTO_COMPILE", 200, 0)):
        variable = env.COMPILE_AFTER if "COMPILE" in older else env.DEBUG
        for text, value in ((yes, on), (no, off)):
            monkeypatch.setenv(older, text)
            assert variable.read() == value, (older, text)
        monkeypatch.setenv(older, "maybe")
        with pytest.raises(ValueError, match=f"^{older}='maybe': expected 1, true, yes or on, or 0, false, no or off"):
            variable.read()
        monkeypatch.delenv(older)


@pytest.mark.parametrize("text", ["localhost:1", "[::1]:5", "ipc:///run/d", "tcp://host:5"])
def test_addresses_of_servers(text: str) -> None:
    assert env.server_address(text) == text

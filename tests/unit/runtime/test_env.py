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
        (env.BACKEND, "jax", "GT_BACKEND='jax': expected one of torch, numpy"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told(variable: env.Variable[object], text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable.name, text)
    monkeypatch.setattr(variable, "_read", [])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        variable.get()
    assert said in str(caught.value) and variable.doc in str(caught.value)


@pytest.mark.parametrize("text", ["localhost:1", "[::1]:5", "ipc:///run/d", "tcp://host:5"])
def test_addresses_of_servers(text: str) -> None:
    assert env.server_address(text) == text

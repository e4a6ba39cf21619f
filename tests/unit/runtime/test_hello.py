"""Versions at hello: what does not fit is refused with both versions and what to do, and nothing else happens."""

from __future__ import annotations

import pytest

from gt.ir.version import __version__
from gt.runtime import wire
from gt.runtime.errors import VersionMismatch
from gt.runtime.hello import hello_fault, protocol_fault, torch_version
from tests.state.stories import Story, sent

MINOR = __version__.rpartition(".")[0]


def worker(gt: str = __version__, torch: str = "") -> wire.WorkerHello:
    return wire.WorkerHello("u", "r", "host", 1, "cpu", "numpy", gt=gt, torch=torch)


@pytest.mark.parametrize("gt", ["0.0.9", "9.0.0", "", "nonsense", MINOR + "9.0"])
def test_another_gt_is_refused_with_both_versions(gt: str) -> None:
    s = Story(workers=1, clients=1)
    for peer, hello in (("x", wire.ClientHello(1, gt)), ("y", worker(gt))):
        (refused,) = sent(s.say(peer, hello), wire.Refused, peer)
        assert f"gt {gt}," in refused.reason and f"gt {__version__}" in refused.reason
        assert f"pip install gt-tensor=={__version__}" in refused.reason
    assert len(s.state.clients) == len(s.state.workers) == 1


def test_the_last_number_may_differ() -> None:
    for gt in (f"{MINOR}.0", f"{MINOR}.99"):
        assert not hello_fault(wire.ClientHello(1, gt), "")


def test_workers_have_one_minor_version_of_torch() -> None:
    s = Story(workers=0, clients=0)
    s.say("a", worker(torch="2.13.0+cpu"))
    s.say("b", worker(torch="2.13.1+cu130"))
    (refused,) = sent(s.say("c", worker(torch="2.11.0")), wire.Refused, "c")
    assert (
        "torch 2.11.0" in refused.reason and "torch 2.13.0+cpu" in refused.reason and "pip install torch==2.13.0" in refused.reason
    )
    assert len(s.state.workers) == 2
    assert torch_version().startswith("2.")


def test_a_refusal_is_read_in_every_version() -> None:
    reason = protocol_fault(wire.VERSION + 1)
    assert f"version {wire.VERSION}" in reason and f"version {wire.VERSION + 1}" in reason
    with pytest.raises(VersionMismatch, match="told by another version") as caught:
        wire.TO_CLIENT.decode([wire.encode_refused("told by another version", wire.VERSION + 1)])
    assert caught.value.theirs == wire.VERSION + 1
    assert wire.TO_CLIENT.decode([wire.encode_refused(reason, wire.VERSION)]) == (wire.Refused(reason), None)

"""What a call says of arguments it cannot take: torch's text where torch names them, never Python's own from the inside."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gt
from gt.arguments import guarded


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.cumsum([1], 0),
        lambda m: m.exp(3),
        lambda m: m.cat("ab"),
        lambda m: m.chunk(m.ones(2), "a"),
        lambda m: m.combinations(m.ones(2), r=1.5),
        lambda m: m.broadcast_tensors(m.ones(2), [1]),
        lambda m: m.block_diag(m.ones(2), None),
        lambda m: m.nn.functional.gelu(None),
        lambda m: m.unbind(m.tensor(1.0)),
        lambda m: m.fft.fft(m.tensor(1.0)),
        lambda m: m.narrow(m.tensor(1.0), 0, 0, 0),
        lambda m: m.select_scatter(m.ones(2, 2), m.ones(2), 0, 5),
        lambda m: m.nn.functional.unfold(m.ones(1, 1, 3, 3), 2, stride=0),
        lambda m: m.nn.functional.pixel_shuffle(m.ones(2), 2),
        lambda m: m.meshgrid(),
    ],
)  # fmt: skip
def test_text_is_torchs(call: Callable[[Any], Any]) -> None:
    texts = []
    for library in (gt, torch):
        with pytest.raises((TypeError, RuntimeError, IndexError)) as caught:
            call(library)
        texts.append(str(caught.value).splitlines()[0].rstrip("."))
    assert texts[1] in texts[0]


def test_what_torch_has_no_text_for_names_what_was_given() -> None:
    said = r"index_fill\(\) received an invalid combination of arguments - got \(f32\[2\], 0, i64\[1\], list\)"
    with pytest.raises(TypeError, match=said):
        gt.index_fill(gt.ones(2), 0, gt.tensor([0]), [1])
    with pytest.raises(RuntimeError, match=r"linear\(\): these shapes and sizes cannot be taken: got \(f32\[2\], 3\)"):
        guarded(lambda *a: ()[0], "gt", "linear")(gt.ones(2), 3)


@pytest.mark.parametrize(
    "call",
    [
        lambda out: gt.add(gt.ones(2), 1, out=out),
        lambda out: gt.kthvalue(gt.ones(2), 1, out=out),
        lambda out: gt.linalg.inv(gt.eye(2), out=out),
        lambda out: gt.nn.functional.relu(gt.ones(2), out=out),
        lambda out: gt.zeros(2, out=out),
    ],
)
def test_out_is_refused_with_what_to_do(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="out= is not offered, values are computed later: assign the result instead"):
        call(gt.ones(2))


def test_errors_of_the_function_itself_pass() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        gt.add(gt.ones(2), gt.ones(3))

    def distance(a: Any, b: Any) -> Any:
        raise AttributeError("mine")

    with pytest.raises(AttributeError, match="mine"):
        gt.nn.functional.triplet_margin_with_distance_loss(gt.ones(1, 2), gt.ones(1, 2), gt.ones(1, 2), distance_function=distance)


def test_guarded_functions_keep_their_name_signature_and_pickle() -> None:
    assert gt.gather.__doc__ and list(inspect.signature(gt.gather).parameters)[:3] == ["input", "dim", "index"]
    for function in (gt.add, gt.linalg.inv, gt.nn.functional.relu, gt.fft.fft, gt.special.expit):
        assert pickle.loads(pickle.dumps(function)) is function

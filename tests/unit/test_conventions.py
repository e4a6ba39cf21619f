"""What a torch user expects: error classes and texts, conversions, protocols. One test for each line of the list."""

from __future__ import annotations

import copy
import logging
import math
import pickle
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch

import gt
from gt import session as sessions
from gt.ir.graph import Graph


def said(make: object) -> tuple[str, str]:
    """Give class and text of what a function raises."""
    with pytest.raises(Exception) as caught:  # noqa: B017, PT011 - the class is what is compared
        make()  # type: ignore[operator]
    return type(caught.value).__name__, str(caught.value)


# -- errors when recording: torch's text at the user's line


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.ones(2, 3) + m.ones(2, 4),
        lambda m: m.ones(2, 3) @ m.ones(4, 5),
        lambda m: m.nn.functional.linear(m.ones(2, 3), m.ones(5, 4)),
        lambda m: m.ones(6).reshape(4),
        lambda m: m.ones(6).view(4),
        lambda m: m.cat([m.ones(2, 3), m.ones(2, 4)]),
        lambda m: m.ones(3).expand(4),
        lambda m: m.ones(2, 2).sum(5),
        lambda m: m.ones(3)[5],
        lambda m: m.ones(3)[::-1],
        lambda m: bool(m.ones(2)),
        lambda m: m.ones(2).item(),
        lambda m: len(m.tensor(1.0)),
        lambda m: m.arange(3).add_(1.5),
        lambda m: m.ones(2, requires_grad=True).add_(1),
        lambda m: m.ones(2, requires_grad=True).numpy(),
        lambda m: m.ones(2, dtype=m.bfloat16).numpy(),
        lambda m: m.ones(2, requires_grad=True).mul(2).backward(),
        lambda m: m.ones(2).sum().backward(),
        lambda m: copy.deepcopy(m.ones(2, requires_grad=True) * 2),
        lambda m: m.ones(2, 2).permute(0),
        lambda m: m.stack([m.ones(2), m.ones(3)]),
        lambda m: m.linalg.inv(m.ones(2, 3)),
        lambda m: m.einsum("ij,jk", m.ones(2, 3), m.ones(3, 4), m.ones(1)),
        lambda m: m.einsum("ij,jk", m.ones(2, 3)),
        lambda m: m.einsum("ii", m.ones(2, 3)),
        lambda m: m.ones(2, 3) * m.ones(3, 2),
        lambda m: m.ones(2, 2, 3) @ m.ones(2, 4, 5),
        lambda m: m.nn.Linear(3, 5)(m.arange(3)),
        lambda m: m.nn.functional.conv2d(m.ones(1, 3, 4, 4), m.ones(2, 3, 3, 3), m.ones(3)),
        lambda m: m.nn.functional.max_pool2d(m.ones(1, 3, 4, 4), 5),
        lambda m: m.nn.functional.nll_loss(m.ones(2, 3), m.tensor([0.0, 1.0])),
        lambda m: m.nn.functional.cross_entropy(m.ones(2, 3), m.ones(2, 4)),
        lambda m: m.tensor([[1, 2], [3]]),
        lambda m: m.tensor(None),
        lambda m: m.tensor(b"ab"),
        lambda m: m.tensor({1: 2}),
        lambda m: float(m.tensor(1j)),
        lambda m: int(m.tensor(1j)),
        lambda m: m.ones(3).mH,
        lambda m: m.ones(3).adjoint(),
        lambda m: m.ones(3, 1, 1).H,
        lambda m: m.nn.functional.binary_cross_entropy(m.ones(2), m.ones(2).long()),
        lambda m: m.nn.MultiheadAttention(2, 1)(*[m.ones(3, 2, 2)] * 3, key_padding_mask=m.zeros(2, 5).bool()),
        lambda m: m.tensor([1, 2]).std(),
        lambda m: m.tensor([1, 2]).softmax(0).unsqueeze(9),
        lambda m: m.zeros(2, 0).amax(1),
        lambda m: m.tensor([]).argmax(),
        lambda m: m.cumsum(m.tensor(1.0), 3),
        lambda m: int(m.ones(2)),
        lambda m: m.ones(2, 6).unflatten(1, (4, -1)),
        lambda m: m.ones(2, dtype=m.bool) - m.ones(2, dtype=m.bool),
        lambda m: m.autograd.grad((m.ones(2, requires_grad=True) * 1).sum(), m.ones(2, requires_grad=True)),
    ],
)  # fmt: skip
def test_error_text_starts_as_torch(call: object) -> None:
    (_, mine), (_, theirs) = said(lambda: call(gt)), said(lambda: call(torch))  # type: ignore[operator]
    head = theirs.split(". ")[0].split(" Got")[0].replace("torch.", "").replace("_lastdim_kernel_impl", "").splitlines()[0][:60]
    assert head.split(" at ")[0][:40] in mine.replace("torch.", "").replace("gt.", ""), f"{mine!r} against {theirs!r}"


def test_error_classes() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"The size of tensor a \(3\) must match the size of tensor b \(4\) at non-singleton dimension 1",
    ):
        gt.ones(2, 3) + gt.ones(2, 4)
    with pytest.raises(IndexError, match=r"Dimension out of range \(expected to be in range of \[-2, 1\], but got 5\)"):
        gt.ones(2, 2).sum(5)
    with pytest.raises(IndexError, match="index 5 is out of bounds for dimension 0 with size 3"):
        gt.ones(3)[5]
    with pytest.raises(ValueError, match="step must be greater than zero"):
        gt.ones(3)[::-1]
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        gt.arange(3).add_(1.5)
    with pytest.raises(TypeError, match="only integer tensors of a single element can be converted to an index"):
        range(gt.tensor(1.5))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda: gt.cat([]), ValueError),
        (lambda: gt.zeros(2, 0).amax(1), IndexError),
        (lambda: gt.tensor([]).argmax(), IndexError),
        (lambda: float(gt.ones(2)), ValueError),
        (lambda: float(gt.tensor(1j)), RuntimeError),
        (lambda: gt.tensor(b"ab"), TypeError),
        (lambda: gt.arange(3).softmax(0), NotImplementedError),
        (lambda: gt.tensor(["a"]), ValueError),
        (lambda: gt.tensor([1, [2]]), TypeError),
    ],
)
def test_error_classes_are_torchs(call: Callable[[], object], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        call()


def test_what_torch_refuses_for_its_values_is_refused_when_read() -> None:
    short = gt.zeros(3).masked_scatter(gt.tensor([True, False, True]), gt.ones(1))
    with pytest.raises(RuntimeError, match="out of range.*test_conventions.py"):
        short.tolist()
    with pytest.raises(RuntimeError, match="out of bounds.*test_conventions.py"):
        gt.nn.functional.one_hot(gt.tensor([0, 2]), 2).tolist()
    with pytest.raises(IndexError, match="out of range"):
        gt.zeros(3).index_add(0, gt.tensor([-1]), gt.ones(1)).tolist()


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("shpe", "shape"), ("matmull", "matmul"), ("backwards", "backward"), ("smu", "sum"), ("frobnicate", ""), ("foo", ""), ("_x", "")],
)
def test_an_unknown_name_of_a_tensor_gets_a_hint_if_one_is_near(wrong: str, right: str) -> None:
    hint = f". Did you mean: '{right}'?" if right else ""
    with pytest.raises(AttributeError) as caught:
        getattr(gt.ones(2), wrong)
    assert str(caught.value) == f"'Tensor' object has no attribute '{wrong}'{hint}"


@pytest.mark.parametrize(
    ("wrong", "right"), [("tensorr", "tensor"), ("onse", "ones"), ("Tensr", "Tensor"), ("frobnicate", ""), ("foo", ""), ("x", "")]
)
def test_an_unknown_name_of_gt_gets_a_hint_if_one_is_near(wrong: str, right: str) -> None:
    hint = f". Did you mean: '{right}'?" if right else ""
    with pytest.raises(AttributeError) as caught:
        getattr(gt, wrong)
    assert str(caught.value) == f"module 'gt' has no attribute '{wrong}'{hint}"
    assert not hasattr(gt, wrong)


def test_out_is_refused() -> None:
    with pytest.raises(TypeError, match="out"):
        gt.zeros(2, out=gt.ones(2))
    with pytest.raises(TypeError, match="out"):
        gt.add(gt.ones(2), 1, out=gt.ones(2))


# -- conversions


def test_equality_is_elementwise_and_hash_is_identity() -> None:
    a, b = gt.ones(2), gt.ones(2)
    assert (a == b).tolist() == [True, True]
    assert hash(a) != hash(b)
    assert len({a: 1, b: 2}) == 2


def test_item_and_numbers() -> None:
    assert int(gt.tensor(-1.7)) == -1
    assert (int(gt.tensor(2.5 + 0j)), float(gt.tensor([2.5 + 0j])), complex(gt.tensor(2))) == (2, 2.5, 2)
    assert [10, 11, 12][gt.tensor(1)] == 11
    assert isinstance(gt.tensor(1).item(), int)
    assert isinstance(gt.tensor(1.0).item(), float)
    assert gt.arange(4).reshape(2, 2).tolist() == [[0, 1], [2, 3]]
    assert 3 in gt.arange(4)
    assert [int(v) for v in gt.arange(3)] == [0, 1, 2]


def test_reductions_of_integers() -> None:
    assert gt.tensor([1, 2], dtype=gt.int32).sum().dtype is gt.int64
    assert gt.tensor([True, False]).sum().dtype is gt.int64
    with pytest.raises(RuntimeError, match="mean"):
        gt.arange(3).mean()
    assert gt.tensor([1.0, 2.0, 4.0]).std().item() == pytest.approx(torch.tensor([1.0, 2.0, 4.0]).std().item())


def test_created_dtypes() -> None:
    assert gt.tensor([1.0]).dtype is gt.float32
    assert gt.tensor(np.array([1.0])).dtype is gt.float64
    assert gt.tensor([1]).dtype is gt.int64
    assert (gt.arange(2) / gt.arange(1, 3)).dtype is gt.float32


def test_devices_are_accepted() -> None:
    x = gt.ones(2, device="cuda:0").to("cpu").cuda()
    assert x.device == gt.device("cpu")
    assert repr(gt.device("cuda:0")) == repr(torch.device("cuda:0"))
    assert str(gt.device("cuda", 1)) == "cuda:1"


# -- protocols


def test_arrays() -> None:
    x = gt.arange(4.0)
    assert np.asarray(x).tolist() == [0, 1, 2, 3]
    assert np.concatenate([x, x]).shape == (8,)
    for mixed in (lambda: np.ones(4) + x, lambda: np.sin(x)):  # no silent loop over elements
        with pytest.raises(TypeError):
            mixed()
    with pytest.raises(ValueError, match="copy"):
        np.array(x, copy=False)


@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64", "complex64"])
def test_values_cross_to_torch_and_back_in_every_dtype(name: str) -> None:
    theirs = torch.tensor([0, 1, 1], dtype=getattr(torch, name))
    for x in (gt.tensor(theirs), gt.as_tensor(theirs), gt.from_dlpack(theirs)):
        assert x.dtype is getattr(gt, name)
        back = torch.from_dlpack(x)
        assert back.dtype is theirs.dtype and torch.equal(back, theirs)


def test_copies_share_and_deep_copies_do_not() -> None:
    x = gt.ones(2)
    shares, own, sent = copy.copy(x), copy.deepcopy(x), pickle.loads(pickle.dumps(x))
    x.add_(1)
    assert (shares.tolist(), own.tolist(), sent.tolist()) == ([2, 2], [1, 1], [1, 1])
    p = pickle.loads(pickle.dumps(gt.nn.Parameter(gt.ones(2, dtype=gt.bfloat16))))
    assert isinstance(p, gt.nn.Parameter) and p.requires_grad and p.dtype is gt.bfloat16


def test_dlpack_both_ways() -> None:
    x = gt.arange(6.0).reshape(2, 3)
    assert torch.from_dlpack(x).tolist() == x.tolist()
    assert gt.from_dlpack(torch.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(BufferError, match="detach"):
        gt.ones(2, requires_grad=True).__dlpack__()
    for dtype in ("float32", "float16", "bfloat16", "int8", "bool", "complex64", "float64"):
        x = gt.arange(3).to(getattr(gt, dtype))
        for back in (gt.from_dlpack(x), gt.utils.dlpack.from_dlpack(gt.to_dlpack(x)), gt.from_dlpack(torch.to_dlpack(torch.tensor(x)))):
            assert back.dtype is x.dtype and back.tolist() == x.tolist()
    capsule = gt.to_dlpack(x)
    gt.from_dlpack(capsule)
    with pytest.raises(RuntimeError, match="consumed only once"):
        gt.from_dlpack(capsule)
    for m in (gt, torch):
        with pytest.raises(RuntimeError, match="invalid capsule"):
            m.from_dlpack(3)


def test_pickle_and_deepcopy() -> None:
    x = gt.tensor([1.5, 2.5], dtype=gt.bfloat16).requires_grad_()
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert y.requires_grad
        assert y.dtype is gt.bfloat16
        assert y.tolist() == [1.5, 2.5]


def test_constants_and_dtype_properties() -> None:
    for name in ("inf", "pi", "e", "newaxis"):
        assert getattr(gt, name) == getattr(torch, name)
    assert math.isnan(gt.nan)
    for name in ("float32", "int8", "uint8", "bool", "complex64"):
        mine, theirs = getattr(gt, name), getattr(torch, name)
        assert (mine.is_signed, mine.is_complex, mine.is_floating_point) == (theirs.is_signed, theirs.is_complex, theirs.is_floating_point)
    assert gt.float64.to_complex() is gt.complex128 and gt.complex64.to_real() is gt.float32
    for name in ("float16", "bfloat16", "float32", "float64"):
        assert str(gt.finfo(getattr(gt, name))) == str(torch.finfo(getattr(torch, name)))
    assert str(gt.iinfo(gt.int64)) == str(torch.iinfo(torch.int64))


def test_scripts_that_ask_for_devices_go_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    device = gt.device("cuda" if gt.cuda.is_available() else "cpu")
    gt.cuda.manual_seed_all(3)
    gt.set_default_device(device)
    monkeypatch.setattr(gt.backends.cudnn, "benchmark", True)
    assert gt.ones(2, device=device).device == gt.get_default_device() and gt.cuda.device_count() == 0


def test_einsum_by_lists() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    for lists in (([0, 1], [1, 2]), ([0, 1], [1, 2], [2, 0]), ([..., 1], [1, 0])):
        mine = gt.einsum(gt.tensor(a), lists[0], gt.tensor(b), lists[1], *lists[2:])
        theirs = torch.einsum(torch.tensor(a), lists[0], torch.tensor(b), lists[1], *lists[2:])
        np.testing.assert_allclose(mine.numpy(), theirs.numpy())


# -- float32 products


def test_the_switch_for_tf32_travels_with_each_graph() -> None:
    assert gt.get_float32_matmul_precision() == "highest" and not gt.backends.cuda.matmul.allow_tf32
    defined: list[Graph] = []
    before = gt.ones(2, 3) @ gt.ones(3, 2)  # recorded before the switch: computed as chosen then
    sessions.on_define.append(lambda number, graph: defined.append(graph))
    try:
        gt.backends.cuda.matmul.allow_tf32 = True
        assert gt.get_float32_matmul_precision() == "high"
        (gt.ones(2, 5) @ gt.ones(5, 2)).tolist()
        gt.set_float32_matmul_precision("highest")
        (gt.ones(2, 5) @ gt.ones(5, 2)).tolist()
    finally:
        sessions.on_define.pop()
        gt.set_float32_matmul_precision("highest")
    assert [g.options.float32_matmul for g in defined] == ["highest", "high", "highest"] and before.tolist()
    with pytest.raises(ValueError, match="expected one of highest, high, medium, got 'fast'"):
        gt.set_float32_matmul_precision("fast")  # type: ignore[arg-type]


# -- accidental reads


def test_flush_guard_refuses() -> None:
    x = gt.ones(2)
    with gt.flush_guard("disallow"), pytest.raises(gt.ReadRefused, match="test_conventions.py"):
        x.sum().item()
    with gt.flush_guard("disallow"), gt.flush_guard("allow"):
        assert x.sum().item() == 2


def test_flush_guard_logs(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("gt.flush")
    logger.addHandler(caplog.handler)  # gt's loggers may be configured not to propagate
    logger.setLevel(logging.WARNING)
    try:
        with gt.flush_guard("log"):
            gt.ones(2).tolist()
    finally:
        logger.removeHandler(caplog.handler)
        logger.setLevel(logging.NOTSET)
    assert "test_conventions.py" in caplog.text


def test_flush_guard_mode_is_checked() -> None:
    with pytest.raises(ValueError, match="expected 'log', 'disallow' or 'allow'"):
        gt.flush_guard("never")


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (lambda: gt.ones(2, 3, dtype=gt.int64) @ gt.ones(3, 2), r"in matmul\(i64\[2, 3\], f32\[3, 2\]\)"),
        (lambda: gt.ones(2, 3) + gt.ones(2), r"in add\(f32\[2, 3\], f32\[2\]\)"),
        (lambda: gt.ones(2, 3) * gt.ones(2), r"in mul\(f32\[2, 3\], f32\[2\]\)"),
        (lambda: gt.ones(2, 3).add_(gt.ones(3, 2, 3)), r"in add_\(f32\[2, 3\], f32\[3, 2, 3\]\)"),
        (lambda: gt.ones(2).bool().neg_(), r"in neg_\(b8\[2\]\)"),
        (lambda: gt.nn.functional.relu_(gt.ones(2).bool()), r"in relu_\(b8\[2\]\)"),
        (lambda: gt.fft.fft2(gt.ones(2)), r"in fft2\(f32\[2\]\)"),
        (lambda: gt.as_strided_copy(gt.ones(2), (9,), (1,)), r"in as_strided_copy\(f32\[2\]\)"),
        (lambda: gt.cat([gt.ones(2, 3), gt.ones(2, 2)]), r"in cat\(f32\[2, 3\], f32\[2, 2\]\)"),
        (lambda: gt.ones(2, 3).reshape(4), r"in reshape\(f32\[2, 3\]\)"),
        (lambda: gt.ones(2, 3)[5], r"in getitem\(f32\[2, 3\]\)"),
        (lambda: gt.nn.Linear(3, 2)(gt.ones(2, 4)), r"in Linear\(f32\[2, 4\]\)"),
        (lambda: gt.nn.Embedding(3, 4)(gt.ones(2)), r"in Embedding\(f32\[2\]\)"),
        (lambda: gt.ones(2, 3).gather(0, gt.ones(2)), r"in gather\(f32\[2, 3\], f32\[2\]\)"),
        (lambda: gt.bmm(gt.ones(2, 3, 4), gt.ones(2, 3, 4)), r"in bmm\(f32\[2, 3, 4\], f32\[2, 3, 4\]\)"),
        (lambda: gt.nn.functional.cross_entropy(gt.ones(2, 3), gt.ones(3, dtype=gt.int64)), r"in cross_entropy\(f32\[2, 3\], i64\[3\]\)"),
    ],
)
def test_a_mistake_names_the_call_its_operands_and_the_line(call, note):
    with pytest.raises((RuntimeError, IndexError)) as caught:
        call()
    found, advice = caught.value.__notes__
    assert advice.startswith("what to do: ")
    assert re.fullmatch(note + rf" at {re.escape(__file__)}:{call.__code__.co_firstlineno}", found), found


def test_what_python_repeats() -> None:
    for m in (gt, torch):
        two = m.tensor(2)
        assert [0] * two == two * [0] == [0, 0] and two * (1, 2) == (1, 2, 1, 2) and "ab" * two == two * "ab" == "abab" and b"a" * two == b"aa"
        assert [0] * m.tensor(True) == [0] and [0] * m.tensor([2]) == [0, 0] and m.Size([1]) * two == m.Size([1, 1])
        for wrong in (lambda m=m: [0] * m.tensor(2.0), lambda m=m: [0] * m.tensor([2, 3]), lambda m=m: "a" * m.tensor(1j)):
            with pytest.raises(TypeError, match="only integer tensors of a single element can be converted to an index"):
                wrong()
        with pytest.raises(TypeError):
            range(3) * two
        with pytest.raises(TypeError):
            m.ones(2).mul([1, 2])

"""Old constructors, switches and other names that torch scripts use without thinking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gt


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.Tensor(), lambda m: m.Tensor(2, 3).shape, lambda m: m.Tensor([1, 2]), lambda m: m.Tensor(m.Size([2])).shape,
        lambda m: m.Tensor(np.array([1, 2])), lambda m: m.Tensor(m.tensor([1, 2])), lambda m: m.Tensor(m.tensor([1.0]).double()),
        lambda m: m.LongTensor([1, 2]), lambda m: m.Tensor((2, 3)), lambda m: m.Tensor([[1], [2]]), lambda m: m.BoolTensor([0, 1]),
        lambda m: m.FloatTensor(2, 2).shape, lambda m: m.Tensor(size=(2,)).shape, lambda m: m.Tensor(2, device="cpu").shape,
        lambda m: m.tensor([1, 2]).new([3, 4]), lambda m: m.ones(2).new(3).shape, lambda m: m.ones(2).new(), lambda m: m.Tensor(3.5),
        lambda m: m.Tensor("a"), lambda m: m.Tensor(-1), lambda m: m.LongTensor(m.tensor([1.0])), lambda m: m.ByteTensor([3]),
        lambda m: m.ones(2, 2).apply_(lambda v: v * 3), lambda m: m.ones(2, 2).map_(m.arange(2.0), lambda a, b: a - b),
        lambda m: m.ones(2, requires_grad=True).apply_(abs), lambda m: m.DoubleTensor([1]), lambda m: m.HalfTensor([1]),
    ],
)  # fmt: skip
def test_old_constructors_make_what_torchs_do(call: Any) -> None:
    try:
        want = call(torch)
    except (TypeError, RuntimeError) as error:
        with pytest.raises(type(error)):
            call(gt)
        return
    got = call(gt)
    if isinstance(want, torch.Tensor):
        assert got.dtype.name == str(want.dtype).removeprefix("torch.")
        assert got.tolist() == want.tolist()
    else:
        assert tuple(got) == tuple(want)


def test_tensor_types_are_classes_of_tensors() -> None:
    for m in (torch, gt):
        assert isinstance(m.ones(2), m.FloatTensor) and not isinstance(m.ones(2), m.LongTensor)
        assert isinstance(m.nn.Parameter(m.ones(2)), m.FloatTensor) and isinstance(m.ones(2).long(), m.LongTensor)
        m.set_default_tensor_type(m.DoubleTensor)
        try:
            assert m.ones(1).dtype is m.float64 and m.Tensor([1]).dtype is m.float64
        finally:
            m.set_default_tensor_type("torch.FloatTensor")


def test_a_class_of_ones_own_is_made_of_data() -> None:
    class Mine(gt.Tensor):
        pass

    x = Mine([1, 2])
    assert isinstance(x, Mine) and (x + 1).tolist() == [2, 3]
    w = gt.Tensor([1.0, 2.0]).requires_grad_()
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, 4]


@pytest.mark.parametrize(
    "call",
    [
        lambda: gt.linalg.inv(gt.zeros(2, 2)), lambda: gt.linalg.solve(gt.zeros(2, 2), gt.ones(2)), lambda: gt.linalg.cholesky(-gt.eye(2)),
        lambda: gt.inverse(gt.zeros(2, 2)), lambda: gt.linalg.inv(gt.zeros(3, 2, 2)),
    ],
)  # fmt: skip
def test_matrices_without_a_result_raise_linalg_errors(call: Any) -> None:
    with pytest.raises(gt.linalg.LinAlgError):
        call().tolist()


def test_assert_close_says_what_torchs_says() -> None:
    pairs = [
        ([1.0, 2.0], [1.0, 2.1], {}), ([1.0], [1.0 + 1e-7], {}), ([1, 2], [1, 3], {}), ([1.0, 2.0], [1.0, 2.0, 3.0], {}),
        ([float("nan")], [float("nan")], {}), ([float("nan")], [float("nan")], {"equal_nan": True}), ([1.0], [1.5], {"rtol": 0, "atol": 1.0}),
    ]  # fmt: skip
    for a, b, options in pairs:
        said = []
        for m in (torch, gt):
            try:
                m.testing.assert_close(m.tensor(a), m.tensor(b), **options)
                said.append("")
            except AssertionError as error:
                said.append(str(error))
        mine, theirs = (s.replace("torch.", "").replace("gt.", "") for s in reversed(said))
        assert mine.splitlines()[:3] == theirs.splitlines()[:3]
    gt.testing.assert_close({"a": [gt.ones(2), 1.0]}, {"a": [gt.ones(2), 1.0]})
    with pytest.raises(AssertionError, match="dtype"):
        gt.testing.assert_close(gt.ones(2), gt.ones(2).double())
    with pytest.raises(AssertionError, match="own words"):
        gt.testing.assert_close(gt.ones(2), gt.zeros(2), msg="own words")
    with pytest.raises(TypeError):
        gt.testing.assert_close(gt.ones(2), torch.ones(2))
    made = gt.testing.make_tensor(2, 3, dtype=gt.int64, low=0, high=3)
    assert made.shape == (2, 3) and int(made.max()) < 3


def test_switches_are_kept() -> None:
    gt.set_num_threads(3)
    assert gt.get_num_threads() == 3
    gt.use_deterministic_algorithms(True, warn_only=True)
    assert gt.are_deterministic_algorithms_enabled() and gt.is_deterministic_algorithms_warn_only_enabled()
    gt.use_deterministic_algorithms(False)
    gt.cuda.empty_cache(), gt.cuda.synchronize(), gt.accelerator.synchronize()
    assert not (
        gt.backends.mps.is_available() or gt.accelerator.is_available() or gt.mps.is_available() or gt.backends.cudnn.is_available()
    )
    with gt.nn.attention.sdpa_kernel([gt.nn.attention.SDPBackend.MATH]), gt.cuda.amp.autocast(enabled=False):
        assert gt.compile(gt.sin) is gt.sin and gt.compile(mode="max-autotune")(gt.sin) is gt.sin
    assert gt.compiler.disable(gt.sin) is gt.sin and gt.nn.modules.Linear is gt.nn.modules.linear.Linear is gt.nn.Linear
    assert gt.default_generator.manual_seed(3).initial_seed() == gt.initial_seed() == 3
    x = gt.arange(3.0)
    assert (
        gt.utils.dlpack.from_dlpack(torch.arange(3.0)).tolist()
        == x.tolist()
        == torch.from_dlpack(gt.utils.dlpack.to_dlpack(x)).tolist()
    )
    assert isinstance(x, gt.autograd.Variable) and gt.autograd.Variable(x, requires_grad=True).requires_grad
    with pytest.raises(NotImplementedError, match=r"x\.data = y"):
        x.set_(x)


def test_tensor_types_say_what_to_convert_to():
    for lib in (gt, torch):
        x = lib.ones(2)
        assert x.type(lib.FloatTensor) is x and x.type(lib.LongTensor).dtype is lib.int64
        assert x.type(dtype=lib.HalfTensor).type() == "torch.HalfTensor" and x.long().type(lib.Tensor).dtype is lib.float32


def test_type_names() -> None:
    for ask in (
        lambda m: m.ones(1), lambda m: m.ones(1, dtype=m.bool), lambda m: m.nn.Parameter(m.ones(1).half()), lambda m: 3, lambda m: int, lambda m: [],
        lambda m: pytest.raises, lambda m: np.float32(1), lambda m: m,
    ):  # fmt: skip
        assert gt.typename(ask(gt)) == torch.typename(ask(torch)).replace("torch", "torch" if isinstance(ask(gt), gt.Tensor) else "gt")
    assert gt.typename(gt.nn.Linear(1, 1)) == gt.typename(gt.nn.Linear) == "gt.nn.linear.Linear"

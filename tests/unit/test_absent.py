"""Names of torch that mean "leave it as it is" here, and those that gt has not: said clearly."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import gt

KEPT = [
    lambda m, f: m.jit.script(f),
    lambda m, f: m.jit.ignore(f),
    lambda m, f: m.jit.ignore(drop=True)(f),
    lambda m, f: m.jit.unused(f),
    lambda m, f: m.jit.export(f),
    lambda m, f: m.jit.script_if_tracing(f),
]


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@pytest.mark.parametrize("mark", KEPT)
def test_what_marks_for_scripts_leaves_functions_as_they_are(mark: Any) -> None:
    assert mark(gt, double) is double
    assert mark(gt, double)(gt.ones(2)).tolist() == mark(torch, double)(torch.ones(2)).tolist()


def test_a_scripted_module_is_the_module() -> None:
    net = gt.nn.Linear(2, 2)
    assert gt.jit.script(net) is net and not isinstance(net, gt.jit.ScriptModule)
    assert not gt.jit.is_scripting() and not gt.jit.is_tracing()
    assert gt.jit.annotate(list[int], [1]) == [1] and gt.jit.isinstance([1], list)
    assert gt.jit.Final is torch.jit.Final

    assert gt.jit._overload_method(double) is double

    class Old(gt.jit.ScriptModule):
        @gt.jit.script_method
        def forward(self, x):
            return x + 1

    assert Old()(gt.ones(1)).tolist() == [2.0]
    with gt.jit.fuser("fuser2"), gt.jit.optimized_execution(False):
        assert gt.jit(lambda x: x * 2)(gt.ones(1)).tolist() == [2.0]  # it is gt's decorator still


def test_names_can_be_imported_from_it() -> None:
    from gt.jit import Final, ignore  # type: ignore[import-not-found]  # noqa: PLC0415 - what is tested

    assert Final is gt.jit.Final and ignore is gt.jit.ignore


@pytest.mark.parametrize("name", ["trace", "trace_module", "load", "save", "freeze", "optimize_for_inference"])
def test_what_needs_scripts_says_what_to_use(name: str) -> None:
    with pytest.raises(NotImplementedError, match=rf"gt\.jit\.{name}: there is no TorchScript here: \w+"):
        getattr(gt.jit, name)(1, 2)


@pytest.mark.parametrize(
    "name",
    ["distributed", "fx", "hub", "multiprocessing", "nested", "onnx", "overrides", "profiler", "sparse"]
    + ["embedding_bag", "lstm", "gru", "rnn_tanh", "rnn_relu"],
)
def test_what_is_not_there_says_what_to_use(name: str) -> None:
    assert hasattr(torch, name) and not hasattr(gt, name)
    with pytest.raises(AttributeError, match=rf"gt\.{name} is not offered: \w+"):
        getattr(gt, name)


def test_parts_that_are_not_there_say_so() -> None:
    for ask, text in (
        (lambda: gt.autograd.profiler, "gt.autograd.profiler is not offered: gt plan"),
        (lambda: gt.serialization.add_safe_globals, "gt.serialization.add_safe_globals is not offered: only data is read"),
        (lambda: gt.distributions.Gamma, "gt.distributions.Gamma is not offered: those of gt's have closed forms"),
        (lambda: gt.distributions.TransformedDistribution, "gt.distributions.TransformedDistribution is not offered: draw from the base"),
        (lambda: (gt.ones(1, requires_grad=True) * 2).grad_fn.register_prehook(print), r"attribute 'register_prehook': .*x\.register_hook"),
        (lambda: gt.ones(1).as_subclass, "'Tensor' object has no attribute 'as_subclass': what is computed is a plain tensor"),
        (lambda: gt.ones(1).untyped_storage(), "'Tensor' object has no attribute 'untyped_storage': the memory is"),
        (lambda: gt.ones(1).storage(), "'Tensor' object has no attribute 'storage': the memory is"),
    ):
        with pytest.raises(AttributeError, match=text):
            ask()


def test_formats_and_layouts_have_classes_for_annotations() -> None:
    for m in (gt, torch):
        assert isinstance(m.strided, m.layout) and isinstance(m.channels_last, m.memory_format)
        assert not isinstance(m.strided, m.memory_format) and isinstance(m.ones(1).layout, m.layout)
        assert isinstance(1, m.types.Number) and "1" not in (m.types.Device, m.types._size)
        with pytest.raises(AssertionError, match="why"):
            m._assert(m.tensor([0]) > 0, "why")
        m._assert(True, "")
        with pytest.raises(TypeError, match="memory_format"):
            m.ones(1).contiguous(memory_format=m.strided)


def test_the_gpu_that_is_not_there_has_no_name() -> None:
    for name in ("get_device_name", "get_device_properties", "get_device_capability", "mem_get_info"):
        with pytest.raises(RuntimeError, match=f"gt.cuda.{name}: no device is this script's own"):
            getattr(gt.cuda, name)(0)
    assert gt.cuda.ipc_collect() is None


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_allclose_by_its_old_name() -> None:
    for m in (gt, torch):
        m.testing.assert_allclose(m.ones(2), m.ones(2, dtype=m.float64) + 9e-5)
        m.testing.assert_allclose([1.0, float("nan")], m.tensor([1.0, float("nan")]))
        for a, b in ((m.ones(2), m.ones(2) + 2e-4), (m.ones(2, dtype=m.float64), m.ones(2, dtype=m.float64) + 2e-5)):
            with pytest.raises(AssertionError):
                m.testing.assert_allclose(a, b)
        with pytest.raises(AssertionError, match="mine"):
            m.testing.assert_allclose(m.ones(1), m.zeros(1), msg="mine")


def test_torchs_files_of_layers_have_their_names() -> None:
    for file, names in {
        "activation": ["MultiheadAttention", "ReLU"], "channelshuffle": ["ChannelShuffle"], "distance": ["CosineSimilarity"],
        "flatten": ["Flatten"], "fold": ["Unfold"], "pixelshuffle": ["PixelShuffle"], "upsampling": ["Upsample"], "batchnorm": ["_BatchNorm"],
        "loss": ["_Loss"], "utils": ["_pair"],
    }.items():  # fmt: skip
        mine = getattr(gt.nn.modules, file)
        for name in names:
            assert hasattr(getattr(torch.nn.modules, file), name)
            if hasattr(mine, name) or not name.startswith("_"):
                assert getattr(mine, name) is getattr(__import__(f"gt.nn.modules.{file}", fromlist=[name]), name)
                assert getattr(mine, name) is getattr(gt.nn, name, getattr(mine, name))
    assert pickle.loads(pickle.dumps(gt.nn.modules.activation.ReLU)) is gt.nn.ReLU

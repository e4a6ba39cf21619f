"""Names that scripts take from torch's own files: bases, helpers and what they are used for."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

import gt

PATHS = {
    "nn.modules.dropout": ["_DropoutNd", "Dropout"], "nn.modules.conv": ["_ConvNd", "_ConvTransposeNd", "Conv2d"],
    "nn.modules.batchnorm": ["_BatchNorm", "_NormBase"], "nn.modules.loss": ["_Loss", "_WeightedLoss"], "nn.modules.container": ["ModuleList"],
    "nn.modules.utils": ["_ntuple", "_pair", "_single", "_triple", "_reverse_repeat_tuple"], "nn.modules.instancenorm": ["_InstanceNorm"],
    "nn.modules.rnn": ["LSTM"], "optim.lr_scheduler": ["_LRScheduler", "LRScheduler"],
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_names_are_where_torch_has_them(path):
    ours, theirs = importlib.import_module(f"gt.{path}"), importlib.import_module(f"torch.{path}")
    for name in PATHS[path]:
        assert getattr(ours, name) and getattr(theirs, name)
        assert getattr(gt.nn, name, getattr(ours, name)) is getattr(ours, name)  # no second copy of the file


@pytest.mark.parametrize("lib", [gt, torch])
def test_layers_are_instances_of_their_bases(lib):
    conv, dropout = importlib.import_module(f"{lib.__name__}.nn.modules.conv"), importlib.import_module(f"{lib.__name__}.nn.modules.dropout")
    assert isinstance(lib.nn.Conv1d(1, 1, 1), conv._ConvNd) and isinstance(lib.nn.ConvTranspose2d(1, 1, 1), conv._ConvTransposeNd)
    assert isinstance(lib.nn.Dropout2d(), dropout._DropoutNd) and not isinstance(lib.nn.Dropout2d(), lib.nn.Dropout)


def test_a_convolution_with_weights_of_its_own_making():
    start = np.cos(np.arange(54, dtype=np.float32)).reshape(3, 2, 3, 3)
    image = np.sin(np.arange(50, dtype=np.float32)).reshape(1, 2, 5, 5)
    found = []
    for lib in (gt, torch):

        class Centred(lib.nn.Conv2d):
            def forward(self, x):
                return self._conv_forward(x, self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True), self.bias)

        layer = Centred(2, 3, 3, padding=1, padding_mode="reflect", bias=False)
        with lib.no_grad():
            layer.weight.copy_(lib.tensor(start))
        assert list(layer._reversed_padding_repeated_twice) == [1, 1, 1, 1] and not layer.transposed
        found.append(layer(lib.tensor(image)).detach().numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lib", [gt, torch])
def test_a_prefix_of_a_wrapped_model_is_cut_off(lib):
    utils = importlib.import_module(f"{lib.__name__}.nn.modules.utils")
    state = lib.nn.Sequential(lib.nn.Linear(1, 1)).state_dict(prefix="module.")
    utils.consume_prefix_in_state_dict_if_present(state, "module.")
    assert list(state) == ["0.weight", "0.bias"] and list(state._metadata) == ["", "0"]
    assert utils._pair(3) == (3, 3) and utils._triple([1, 2, 3]) == (1, 2, 3)

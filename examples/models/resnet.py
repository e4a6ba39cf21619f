"""ResNet-18 and -34 on gt.nn, with torchvision's parameter names, so that its checkpoints load as they are.

    model = ResNet(layers=(2, 2, 2, 2))                       # ResNet-18
    model.load_state_dict(torch.load("resnet18.pth", weights_only=True))
    scores = model.eval()(images)                             # [n, 3, h, w] -> [n, classes]

Source: He et al. 2016, "Deep residual learning for image recognition".
"""

from __future__ import annotations

from collections.abc import Sequence

import gt
from gt import nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside the input, which a 1x1 one fits to the output's shape where they differ."""

    downsample: nn.Module | None

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        beside = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + beside)


class ResNet(nn.Module):
    """Class scores of images. ``width``: channels of the first stage; each later one has twice as many."""

    def __init__(self, layers: Sequence[int] = (2, 2, 2, 2), num_classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for stage, count in enumerate(layers, start=1):
            blocks = []
            for i in range(count):
                out = width * 2 ** (stage - 1)
                blocks.append(BasicBlock(channels, out, 2 if stage > 1 and i == 0 else 1))
                channels = out
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        self.stages = len(layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        return self.fc(self.avgpool(x).flatten(1))

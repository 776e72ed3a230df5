"""ResNet-50, 101 and 152 (He et al., 2015) for the ImageNet tables."""

from collections import OrderedDict

import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.network import Network, convolution, stage

UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions with batch norm, plus the input; the 3x3 has the stride.

    The last batch norm starts at scale zero, so that a fresh network is its shortcuts alone.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        inner = outputs // 4
        self.convolution1 = convolution(inputs, inner, 1)
        self.norm1 = nn.BatchNorm2d(inner)
        self.convolution2 = convolution(inner, inner, 3, stride)
        self.norm2 = nn.BatchNorm2d(inner)
        self.convolution3 = convolution(inner, outputs, 1)
        self.norm3 = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.norm3.weight)
        self.shortcut = nn.Sequential()
        if inputs != outputs or stride != 1:
            self.shortcut.append(convolution(inputs, outputs, 1, stride))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, maps: Tensor) -> Tensor:
        residual = F.relu(self.norm1(self.convolution1(maps)))
        residual = F.relu(self.norm2(self.convolution2(residual)))
        residual = self.norm3(self.convolution3(residual))
        return F.relu(residual + self.shortcut(maps))


def resnet(depth: int, classes: int, channels: int = 3) -> Network:
    """ResNet-`depth`: a 7x7 stem and max-pool, then four stages of bottlenecks."""
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=convolution(channels, 64, 7, stride=2),
        norm=nn.BatchNorm2d(64),
        activation=nn.ReLU(),
        pool=nn.MaxPool2d(3, stride=2, padding=1),
    )
    inputs = 64
    for number, units in enumerate(UNITS[depth], start=1):
        outputs = 128 * 2**number
        stride = 1 if number == 1 else 2
        layers[f"stage{number}"] = stage(Bottleneck, inputs, outputs, units, stride)
        inputs = outputs
    return Network(nn.Sequential(layers), inputs, classes)

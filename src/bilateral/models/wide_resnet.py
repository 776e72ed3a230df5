"""Wide residual networks (Zagoruyko and Komodakis, 2016): the standard one and the authors' own.

The paper names WRN-28-10; its released code builds something else, kept here as `wrn-authors`.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from bilateral.models.network import Network, convolution
from bilateral.models.preact_resnet import parts, pre_activation_network


def wide_resnet(
    depth: int, width: int, classes: int, channels: int = 3, smooth: bool = False
) -> Network:
    """WRN-`depth`-`width` without dropout; `depth` is 6k + 4 for k blocks a stage."""
    widths = (16, 16 * width, 32 * width, 64 * width)
    return pre_activation_network(widths, (depth - 4) // 6, classes, channels, *parts(smooth))


def authors_activation(width: int) -> nn.Sequential:
    """Batch norm with TensorFlow's epsilon, then LeakyReLU."""
    return nn.Sequential(nn.BatchNorm2d(width, eps=1e-3), nn.LeakyReLU(0.1))


class AuthorsBlock(nn.Module):
    """A pre-activation block whose shortcut has no weights: average-pool, then zero channels.

    The shortcut starts at the raw input, but in the network's first block at the activated one,
    as in the network of Madry et al. that the authors took over.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.activation1 = authors_activation(inputs)
        self.convolution1 = convolution(inputs, outputs, 3, stride)
        self.activation2 = authors_activation(outputs)
        self.convolution2 = convolution(outputs, outputs, 3)
        self.stride = stride
        self.new_channels = outputs - inputs
        self.is_first = inputs != outputs and stride == 1

    def forward(self, maps: Tensor) -> Tensor:
        active: Tensor = self.activation1(maps)
        shortcut = active if self.is_first else maps
        if self.stride != 1:
            shortcut = F.avg_pool2d(shortcut, self.stride, ceil_mode=True)
        if self.new_channels:
            before = self.new_channels // 2
            shortcut = F.pad(shortcut, (0, 0, 0, 0, before, self.new_channels - before))
        residual: Tensor = self.convolution2(self.activation2(self.convolution1(active)))
        return residual + shortcut


def authors_wide_resnet(classes: int, channels: int = 3) -> Network:
    """The released code's network: five blocks a stage, 45.90 M parameters at ten classes.

    Strided convolutions pad both sides by one pixel, where TensorFlow pads the far side only.
    """
    widths = (16, 160, 320, 640)
    return pre_activation_network(widths, 5, classes, channels, AuthorsBlock, authors_activation)

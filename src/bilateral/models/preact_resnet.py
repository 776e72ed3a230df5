"""Pre-activation residual networks (He et al., 2016) for small images.

`wide_resnet` builds on the same block: a Wide ResNet is this network with three wider stages.
"""

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from bilateral.models.network import Network, convolution, stage


def activation(width: int) -> nn.Sequential:
    """Batch norm, then ReLU."""
    return nn.Sequential(nn.BatchNorm2d(width), nn.ReLU())


def smooth_activation(width: int) -> nn.Sequential:
    """Batch norm, then SiLU: its gradient does not jump, which helps adversarial training."""
    return nn.Sequential(nn.BatchNorm2d(width), nn.SiLU())


class PreActivationBlock(nn.Module):
    """Twice (batch norm, activation, 3x3 convolution), plus the input.

    Where width or resolution changes, a 1x1 convolution of the activated input replaces the input.
    """

    active = staticmethod(activation)

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.activation1 = self.active(inputs)
        self.convolution1 = convolution(inputs, outputs, 3, stride)
        self.activation2 = self.active(outputs)
        self.convolution2 = convolution(outputs, outputs, 3)
        changes = inputs != outputs or stride != 1
        self.shortcut = convolution(inputs, outputs, 1, stride) if changes else None

    def forward(self, maps: Tensor) -> Tensor:
        active: Tensor = self.activation1(maps)
        shortcut = maps if self.shortcut is None else self.shortcut(active)
        residual: Tensor = self.convolution2(self.activation2(self.convolution1(active)))
        return residual + shortcut


class SmoothBlock(PreActivationBlock):
    """The block with SiLU."""

    active = staticmethod(smooth_activation)


def pre_activation_network(
    widths: tuple[int, ...],
    units: int,
    classes: int,
    channels: int,
    block: Callable[[int, int, int], nn.Module] = PreActivationBlock,
    last: Callable[[int], nn.Module] = activation,
) -> Network:
    """A 3x3 stem of `widths[0]`, a stage of `units` blocks for each further width, and `last`.

    Every stage but the first halves the resolution.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(stem=convolution(channels, widths[0], 3))
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        layers[f"stage{number}"] = stage(block, inputs, outputs, units, 1 if number == 1 else 2)
    layers["last"] = last(widths[-1])
    return Network(nn.Sequential(layers), widths[-1], classes)


def preact_resnet_18(classes: int, channels: int = 3, smooth: bool = False) -> Network:
    """PreAct ResNet-18: 11.17 M parameters at ten classes; with SiLU if `smooth`.

    That is 11,172,170 with the batch norm before pooling that is built here, 11,171,146 without.
    """
    widths = (64, 64, 128, 256, 512)
    return pre_activation_network(widths, 2, classes, channels, *parts(smooth))


def parts(smooth: bool) -> tuple[type[PreActivationBlock], Callable[[int], nn.Module]]:
    """The block and the last activation, with ReLU or SiLU."""
    return (SmoothBlock, smooth_activation) if smooth else (PreActivationBlock, activation)

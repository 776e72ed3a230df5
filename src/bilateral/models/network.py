"""What all networks here share: normalise, convolve, average over space, classify."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bilateral.models.normalise import Normalise


class Network(nn.Module):
    """Images in [0, 1] to logits, through a convolutional `body` and a linear `head`.

    The average over space makes the network independent of the image size. It is a mean and not
    an adaptive pool, whose backward pass is not deterministic on a GPU.
    """

    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.normalise = Normalise()
        self.body = body
        self.head = nn.Linear(width, classes)
        initialise(self)

    def features(self, images: Tensor) -> Tensor:
        """What the head sees: one vector an image."""
        maps: Tensor = self.body(self.normalise(images))
        return maps.mean(dim=(2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Logits in float32 even under autocast.

        After training on soft labels the logits of wrong classes are nearly equal; in bfloat16 they
        tie, and a margin attack then follows the mean of several classes.
        """
        features = self.features(images)
        if features.is_meta:  # there is no autocast to switch off
            shape: Tensor = self.head(features)
            return shape
        with torch.autocast(features.device.type, enabled=False):
            logits: Tensor = self.head(features.to(self.head.weight.dtype))
        return logits


def initialise(network: nn.Module) -> None:
    """He's initialisation by fan-out for convolutions, no bias in the head.

    Batch norm already starts at scale 1 and shift 0, and linear weights keep torch's default.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """A convolution without bias that keeps the image size up to its stride."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def stage(
    block: Callable[[int, int, int], nn.Module], inputs: int, outputs: int, units: int, stride: int
) -> nn.Sequential:
    """`units` blocks, of which the first changes width and resolution."""
    first = block(inputs, outputs, stride)
    return nn.Sequential(first, *(block(outputs, outputs, 1) for _ in range(units - 1)))

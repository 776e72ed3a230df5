"""A network for the embedded digits: seconds of training on a CPU."""

from torch import nn

from bilateral.models.network import Network, convolution


def small_cnn(classes: int, channels: int = 3) -> Network:
    """Three 3x3 convolutions, 94 thousand parameters at one channel and ten classes.

    The last map sees 9 x 9 pixels, so on 8 x 8 digits each feature can depend on all of the image.
    """
    widths = (channels, 32, 64, 128)
    strides = (1, 2, 1)
    layers: list[nn.Module] = []
    for inputs, outputs, stride in zip(widths[:-1], widths[1:], strides, strict=True):
        layers += [convolution(inputs, outputs, 3, stride), nn.BatchNorm2d(outputs), nn.ReLU()]
    return Network(nn.Sequential(*layers), widths[-1], classes)

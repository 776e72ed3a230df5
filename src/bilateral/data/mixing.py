"""CutMix (Yun et al. 2019): a box in some images shows another image, and labels mix by area.

Rebuffi et al. (2021) report that with averaged weights it keeps long adversarial training from
overfitting. The other image is the one before in the batch, whose order is random anyway.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bilateral.randomness import derive, uniform

_BOX = 5


def cut_and_mix(
    images: Tensor, labels: Tensor, classes: int, boxes: Tensor
) -> tuple[Tensor, Tensor]:
    """Images that show the one before them in their boxes, and their labels as distributions."""
    truth = F.one_hot(labels, classes).to(torch.float32)
    area = boxes.to(torch.float32).mean((1, 2))
    return pasted(images, boxes), torch.lerp(truth, truth.roll(1, 0), area[:, None])


def pasted(images: Tensor, boxes: Tensor) -> Tensor:
    """Each image with the one before it in its box."""
    return torch.where(boxes[:, None], images.roll(1, 0), images)


def drawn_boxes(keys: Tensor, share: float, height: int, width: int) -> Tensor:
    """Where each image shows the other one: a box about a uniform point, cut at the border.

    Before the cut, its area is a uniform share of the image's, its shape that of the image. About
    `share` of the images have one; `keys` decide image by image.
    """
    chosen, area, row, column = uniform(derive(keys, _BOX), (4,)).unbind(1)
    half = torch.where(chosen < share, area.sqrt() / 2, 0.0)

    def within(centre: Tensor, size: int) -> Tensor:
        first = ((centre - half) * size).round().clamp(0, size)
        last = ((centre + half) * size).round().clamp(0, size)
        places = torch.arange(size, device=keys.device)
        return (places >= first[:, None]) & (places < last[:, None])

    return within(row, height)[:, :, None] & within(column, width)[:, None]

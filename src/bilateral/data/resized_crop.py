"""A random part of each picture at one size, mirrored or not: ImageNet's usual augmentation.

The part has a share of the area in [0.08, 1] and a width over height in [3/4, 4/3] (Szegedy et al.
2015), measured on the picture as it was before it was squashed to a square. A batch at a time, on
the device, and a function of each image's keys alone.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bilateral.randomness import uniform

AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
ATTEMPTS = 10
"""Draws of area and ratio, of which the first that fits counts."""
MARGIN = 8 / 7
"""Side of a squashed picture over that of the crop (256 for 224).

So a crop shrinks a picture by 8/7 at most, which plain bilinear sampling does without aliasing.
"""


def resized_crop_flip(
    pixels: Tensor, aspects: Tensor, crop_keys: Tensor, flip_keys: Tensor, size: int
) -> Tensor:
    """uint8 (B, C, S, S) as float32 (B, C, size, size) in [0, 1], half of them mirrored.

    `aspects` are the pictures' own widths over heights.
    """
    boxes = crop_boxes(aspects, crop_keys)
    return sample_boxes(pixels, boxes, uniform(flip_keys) < 0.5, size)


def crop_boxes(aspects: Tensor, keys: Tensor) -> Tensor:
    """(left, top, width, height) of each crop as shares of its picture.

    Where no attempt fits, the last one is shrunk to the largest box of its ratio that does.
    """
    draws = uniform(keys, (2 * ATTEMPTS + 2,))
    area = AREA[0] + (AREA[1] - AREA[0]) * draws[:, :ATTEMPTS]
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = (low + (high - low) * draws[:, ATTEMPTS : 2 * ATTEMPTS]).exp()
    relative = ratio / aspects.to(torch.float32)[:, None]
    widths, heights = (area * relative).sqrt(), (area / relative).sqrt()
    fits = (widths <= 1) & (heights <= 1)
    # argmax is the first that fits; where none does, the last attempt is taken.
    chosen = torch.where(fits.any(1), fits.to(torch.uint8).argmax(1), ATTEMPTS - 1)[:, None]
    sides = torch.cat([widths.gather(1, chosen), heights.gather(1, chosen)], 1)
    sides = sides / sides.amax(1, keepdim=True).clamp(min=1.0)
    return torch.cat([(1 - sides) * draws[:, 2 * ATTEMPTS :], sides], 1)


def sample_boxes(pixels: Tensor, boxes: Tensor, mirror: Tensor, size: int) -> Tensor:
    """Each box resized to (size, size) by bilinear sampling, mirrored where asked."""
    centres = (torch.arange(size, device=pixels.device, dtype=torch.float32) + 0.5) / size
    across = torch.where(mirror[:, None], 1 - centres, centres)
    columns = boxes[:, 0:1] + boxes[:, 2:3] * across
    rows = boxes[:, 1:2] + boxes[:, 3:4] * centres
    grid = torch.stack(
        [
            columns[:, None, :].expand(-1, size, -1),
            rows[:, :, None].expand(-1, -1, size),
        ],
        dim=-1,
    )
    return F.grid_sample(
        pixels.to(torch.float32) / 255,
        2 * grid - 1,
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )

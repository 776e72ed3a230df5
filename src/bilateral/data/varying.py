"""Varied images: each with one change of light or of view (Müller and Hutter 2021).

Li and Spratling (2023) report that more varied images keep adversarial training from overfitting.
The changes are some of TrivialAugment's, about as strong as there; those that change single bits
or levels of grey are left out, as are shifts, which a crop makes.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from bilateral.randomness import derive, uniform

LIGHTER, STEEPER, GREYER, TURNED, SHEARED_ACROSS, SHEARED_DOWN = range(6)
LIGHT, SHEAR, TURN = 0.6, 0.3, math.pi / 6
"""The largest change of brightness, contrast and colour, as a share; the largest shift of a row or
column, as a share of its distance from the middle; and the largest rotation, in radians."""
_CHANGE = 6


def varied(images: Tensor, keys: Tensor, share: float) -> Tensor:
    """Images in [0, 1], about `share` of them with a change; `keys` decide image by image."""
    chosen, kind, strength = uniform(derive(keys, _CHANGE), (3,)).unbind(1)
    kinds = (kind * 6).to(torch.int64)
    strengths = torch.where(chosen < share, 2 * strength - 1, 0.0)
    return viewed(lit(images, kinds, strengths), kinds, strengths)


def lit(images: Tensor, kinds: Tensor, strengths: Tensor) -> Tensor:
    """Images whose kind is one of light, moved towards or away from black, their mean or grey.

    A strength is in [-1, 1]; the other images stay as they are.
    """
    grey = _grey(images)
    mean = grey.mean((2, 3), keepdim=True)
    kind = kinds[:, None, None, None]
    anchor = torch.where(kind == STEEPER, mean, torch.where(kind == GREYER, grey, 0.0))
    factor = torch.where(kinds <= GREYER, LIGHT * strengths, 0.0)[:, None, None, None]
    return (images + factor * (images - anchor)).clamp(0, 1)


def viewed(images: Tensor, kinds: Tensor, strengths: Tensor) -> Tensor:
    """Images whose kind is one of view, turned or sheared about their middle over mid-grey."""
    height, width = images.shape[-2:]

    def where(kind: int, most: float) -> Tensor:
        return torch.where(kinds == kind, most * strengths, 0.0)[:, None, None]

    angle, across, down = (
        where(TURNED, TURN),
        where(SHEARED_ACROSS, SHEAR),
        where(SHEARED_DOWN, SHEAR),
    )
    rows = (torch.arange(height, device=images.device) - (height - 1) / 2)[:, None]
    columns = torch.arange(width, device=images.device) - (width - 1) / 2
    column = angle.cos() * columns - angle.sin() * rows + across * rows
    row = angle.sin() * columns + angle.cos() * rows + down * columns
    grid = torch.stack([2 * column / width, 2 * row / height], 3)
    seen = F.grid_sample(
        images - 0.5, grid, mode="bilinear", padding_mode="zeros", align_corners=False
    )
    moved = (kinds > GREYER)[:, None, None, None]
    return torch.where(moved, (seen + 0.5).clamp(0, 1), images)


def _grey(images: Tensor) -> Tensor:
    """The luminance as one channel."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    return 0.299 * images[:, :1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:]

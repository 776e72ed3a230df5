"""Training batches from images that live on the device as uint8.

Order, crops and mirroring follow from (seed, epoch, image) alone; augmentation is a batched
tensor operation, so no worker processes are needed for images that fit in memory.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bilateral.config import Data
from bilateral.data.datasets import Split
from bilateral.randomness import image_keys, purpose_key, uniform

PADDING = 4
_ORDER, _CROP, _FLIP = 1, 2, 3


class Batch(NamedTuple):
    """Images in [0, 1], their labels, and their numbers in the training set."""

    images: Tensor
    labels: Tensor
    numbers: Tensor


def as_tensors(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    """A split on the device: uint8 images as NCHW, and labels."""
    pixels = torch.from_numpy(np.ascontiguousarray(split.pixels.transpose(0, 3, 1, 2)))
    return pixels.to(device), torch.from_numpy(split.labels).to(device)


def as_floats(pixels: Tensor) -> Tensor:
    """uint8 pixels as float32 in [0, 1]."""
    return pixels.to(torch.float32) / 255


class Batches:
    """The batches of every epoch. The remainder of an epoch that fills no batch is left out."""

    def __init__(
        self, split: Split, settings: Data, batch_size: int, seed: int, device: torch.device
    ) -> None:
        self.pixels, self.labels = as_tensors(split, device)
        self.settings = settings
        self.batch_size = min(batch_size, len(self.labels))
        self.steps = len(self.labels) // self.batch_size
        self.seed = seed
        self.device = device

    def order(self, epoch: int) -> Tensor:
        """The image numbers of an epoch in training order."""
        generator = torch.Generator().manual_seed(purpose_key(self.seed, _ORDER, epoch))
        return torch.randperm(len(self.labels), generator=generator)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from a step on."""
        order = self.order(epoch).to(self.device)
        for step in range(first_step, self.steps):
            numbers = order[step * self.batch_size : (step + 1) * self.batch_size]
            images = as_floats(self._augment(numbers, epoch, step))
            yield Batch(images, self.labels[numbers], numbers)

    def _augment(self, numbers: Tensor, epoch: int, step: int) -> Tensor:
        pixels = self.pixels[numbers]
        if self.settings.augment == "none":
            return pixels
        mirror = torch.zeros_like(numbers, dtype=torch.bool)
        if self.settings.fidelity == "authors":
            key = image_keys(purpose_key(self.seed, _FLIP, epoch), torch.tensor([step]))
            mirror = (uniform(key) < 0.5).to(self.device).expand(len(numbers))
        elif self.settings.augment == "crop-flip":
            mirror = uniform(image_keys(purpose_key(self.seed, _FLIP, epoch), numbers)) < 0.5
        keys = image_keys(purpose_key(self.seed, _CROP, epoch), numbers)
        shifts = (uniform(keys, (2,)) * (2 * PADDING + 1)).to(torch.int64) - PADDING
        return shift_and_mirror(pixels, shifts, mirror)


def shift_and_mirror(pixels: Tensor, shifts: Tensor, mirror: Tensor) -> Tensor:
    """Each image moved by its (row, column) shift over mid-grey, and mirrored where asked.

    The same as padding with mid-grey and cropping. Mid-grey is 127.5 of 255, so the result is
    float.
    """
    height, width = pixels.shape[-2:]
    rows = torch.arange(height, device=pixels.device) + shifts[:, :1]
    columns = torch.arange(width, device=pixels.device).expand(len(pixels), -1)
    columns = torch.where(mirror[:, None], width - 1 - columns, columns) + shifts[:, 1:]
    here = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[
        :, None
    ]
    place = rows.clamp(0, height - 1)[:, :, None] * width + columns.clamp(0, width - 1)[:, None]
    channels = pixels.shape[1]
    place = place.flatten(1)[:, None].expand(-1, channels, -1)
    moved = pixels.flatten(2).gather(2, place).view_as(pixels).to(torch.float32)
    return torch.where(here[:, None], moved, 127.5)

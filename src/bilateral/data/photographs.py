"""Image files as an array of pixels, each decoded only when it is indexed; no torch."""

import hashlib
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from bilateral.data.datasets_entry import Bytes, Index
from bilateral.data.pictures import DECODED, PictureError, read_picture
from bilateral.errors import UserError
from bilateral.storage import digest_of

LARGEST = 2**20
"""Pixels of an image that is not resized: a batch of them is in memory at once."""
NAMED = 10
"""Pictures that cannot be read are named up to this many, then counted."""
THREADS = 8
"""Pillow decodes without Python's lock, so a few threads are enough for evaluation."""


def cores() -> int:
    """The processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, cores()), thread_name_prefix="decode")


def _first_shape(root: Path, names: Sequence[str]) -> tuple[int, ...]:
    """The shape of the first picture that can be read; those that cannot are reported together."""
    for name in names:
        with suppress(PictureError):
            return read_picture(root / name, None).shape
    return read_picture(root / names[0], None).shape


@dataclass(frozen=True, eq=False)
class Photographs:
    """Files read like an array uint8 (N, H, W, 3): indexing by number, slice or numbers decodes.

    Their names are kept in one array of bytes, which is quick to send to a worker process.
    """

    root: Path
    names: npt.NDArray[np.bytes_]
    image_size: int | None
    shape: tuple[int, ...]

    @classmethod
    def under(cls, root: Path, names: Sequence[str], image_size: int | None) -> Self:
        """The named files of a folder, of which one is read for its size if none is given."""
        encoded = np.array([os.fsencode(name) for name in names], dtype=np.bytes_)
        if image_size is not None:
            return cls(root, encoded, image_size, (len(names), image_size, image_size, 3))
        shape = _first_shape(root, names)
        if math.prod(shape[:2]) > LARGEST:
            size = f"{shape[1]}x{shape[0]} pixels"
            raise UserError(
                f"{root / names[0]} has {size}, too many for a network: give --image-size"
            )
        return cls(root, encoded, None, (len(names), *shape))

    @property
    def nbytes(self) -> int:
        """Bytes of all images, decoded."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, key: Index, /) -> Bytes:
        numbers = np.arange(len(self))[key]
        if numbers.ndim == 0:
            return self.picture(int(numbers))
        pixels = np.empty((len(numbers), *self.shape[1:]), dtype=np.uint8)

        def fill(place: int) -> PictureError | None:
            try:
                pixels[place] = self.picture(int(numbers[place]))
            except PictureError as error:
                return error
            return None

        said = zip(numbers.tolist(), _threads().map(fill, range(len(numbers))), strict=True)
        if faults := {number: fault for number, fault in said if fault is not None}:
            raise self._refusal(faults)
        return pixels

    def _refusal(self, faults: dict[int, PictureError]) -> PictureError:
        """All unreadable pictures in one line: found one by one, each would cost a run."""
        advice = "remove or convert it" if len(faults) == 1 else "remove or convert them"
        (_, first), *others = faults.items()
        names = [str(self.file(number).relative_to(self.root)) for number, _ in others]
        more = f" and {len(faults) - NAMED:,} more" if len(faults) > NAMED else ""
        listed = ", ".join(names[: NAMED - 1]) + more
        also = f"; these cannot be used either: {listed}" if others else ""
        return PictureError(f"{first}{also}; {advice}")

    def subset(self, numbers: npt.NDArray[np.int64]) -> Self:
        """Some of the photographs, none of them decoded."""
        shape = (len(numbers), *self.shape[1:])
        return replace(self, names=self.names[numbers], shape=shape)

    def file(self, number: int) -> Path:
        """Where a photograph lies."""
        return self.root / os.fsdecode(bytes(self.names[number]))

    def picture(self, number: int) -> Bytes:
        """One image as it is evaluated; refused if its size differs from the first one's."""
        picture = read_picture(self.file(number), self.image_size)
        if picture.shape != self.shape[1:]:
            height, width, _ = self.shape[1:]
            sizes = f"{width}x{height} and {picture.shape[1]}x{picture.shape[0]}"
            raise UserError(
                f"{self.file(0)} and {self.file(number)} differ in size ({sizes}): "
                "give --image-size"
            )
        return picture

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the SHA-256 of every file: what would be decoded, without decoding it."""
        digest = hashlib.sha256(DECODED.encode())
        for one in _threads().map(self._file_digest, range(len(self))):
            digest.update(one)
        return digest.hexdigest()

    def _file_digest(self, number: int) -> bytes:
        try:
            return bytes.fromhex(digest_of(self.file(number)))
        except OSError as error:
            raise UserError(f"{self.file(number)} cannot be read: {error}") from None

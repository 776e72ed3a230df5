"""All adversarial images of an attack, saved as npz files for a reviewer."""

import io
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import Tensor

from bilateral.arrays import read_npz
from bilateral.errors import UserError
from bilateral.reading import parse_json
from bilateral.runs import write_atomic

SAME = ("attack", "epsilon", "weights_digest", "code_digest", "data", "data_digest")
"""The fields that files of adversarial images must share to belong together."""


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an npz file atomically."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())


class AdversarialImages:
    """All adversarial images of an attack by their numbers, for `bilateral verify`.

    `members` says which member of an ensemble made each. `<attack>@<epsilon>.npz` is written once,
    at the end; until then every batch is a file of the same form, `<attack>@<epsilon>/part-N.npz`.
    A later file overrides earlier ones, so a part that outlives a crash does no harm.
    """

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path, self.about = path, about
        self.images: dict[int, np.ndarray] = {}
        self.members: dict[int, str] = {}
        self._unwritten: set[int] = set()

    @classmethod
    def open(cls, path: Path, attack: str, about: dict[str, Any]) -> Self:
        """The images saved before of the same attack on the same weights and data, if any."""
        kept = cls(path, {"attack": attack, **about})
        for file in kept._files():
            kept._take(cls._read_file(file))
        return kept

    @classmethod
    def read(cls, path: Path) -> Self:
        """The images that an evaluation saved, finished or not; the latest, if weights differ."""
        stored = [cls._read_file(file) for file in cls(path, {})._files()]
        if not stored:
            raise UserError(
                f"no adversarial images at {path} (evaluate --save-adversarial saves them)"
            )
        kept = cls(path, stored[-1].about)
        for one in stored:
            kept._take(one)
        return kept

    @classmethod
    def _read_file(cls, path: Path) -> Self:
        """The images of one file."""
        arrays = read_npz(path)
        try:
            kept = cls(path, dict(parse_json(str(arrays["about"]).encode(), "about")))
            numbers, members = arrays["numbers"], arrays["members"]
            if numbers.dtype.kind not in "iu" or members.dtype.kind != "U":
                raise ValueError("numbers must be integers, and members names")
            kept.images = dict(zip(numbers.tolist(), arrays["images"], strict=True))
            kept.members = dict(zip(numbers.tolist(), members.tolist(), strict=True))
        except KeyError as error:
            raise UserError(f"{path} does not hold adversarial images (no {error})") from None
        except (ValueError, TypeError, UserError) as error:
            raise UserError(f"{path} does not hold adversarial images ({error})") from None
        return kept

    def _parts(self) -> list[Path]:
        """The files of batches, oldest first; one still being written has another name."""
        return sorted(self.path.with_suffix("").glob("part-*.npz"))

    def _files(self) -> list[Path]:
        """All files, oldest first."""
        return [*([self.path] if self.path.is_file() else []), *self._parts()]

    def _take(self, stored: Self) -> None:
        """Add the images of a file, if it is of the same attack, weights and data."""
        if all(stored.about.get(key) == self.about.get(key) for key in SAME):
            self.images |= stored.images
            self.members |= stored.members
        if len({(image.dtype, image.shape) for image in self.images.values()}) > 1:
            raise UserError(
                f"{stored.path} holds images of another type or shape than earlier files"
            )

    def shows(self, number: int, robust: bool, member: str) -> bool:
        """Whether an image is saved that supports a member's flag for it."""
        return number in self.images and (robust or self.members[number] == member)

    def put(self, numbers: Tensor, images: Tensor, member: str) -> None:
        """Add a batch; a later ensemble member's images replace an earlier one's."""
        self.images |= dict(zip(numbers.tolist(), images.cpu().numpy(), strict=True))
        self.members |= dict.fromkeys(numbers.tolist(), member)
        self._unwritten.update(numbers.tolist())

    def write(self) -> None:
        """Write the images added since the last write, as a part."""
        if not self._unwritten:
            return
        parts = self._parts()
        place = int(parts[-1].stem.removeprefix("part-")) + 1 if parts else 0
        self.save(self.path.with_suffix("") / f"part-{place:06d}.npz", self._unwritten)
        self._unwritten.clear()

    def finish(self) -> None:
        """Merge the parts into one file."""
        self.write()
        if parts := self._parts():
            self.save(self.path, self.images)
            for part in parts:  # the latest last: it says which evaluation the files are of
                part.unlink()
            shutil.rmtree(self.path.with_suffix(""))

    def save(self, path: Path, numbers: Iterable[int]) -> None:
        """Write a file of these images atomically."""
        chosen = sorted(numbers)
        write_arrays(
            path,
            {
                "about": np.array(json.dumps(self.about)),
                "numbers": np.array(chosen),
                "members": np.array([self.members[number] for number in chosen]),
                "images": np.stack([self.images[number] for number in chosen]),
            },
        )

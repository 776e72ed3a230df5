"""Somebody's own images: a folder of class folders, read into memory at one size.

`PATH/<class>/*` is one set, of which a tenth of each class is held out by seed; `PATH/train/` and
`PATH/val/` (or `test/`) of class folders are used as they are.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from bilateral.data.datasets_entry import Bytes, Split, SplitName
from bilateral.errors import UserError

FORMATS = {
    ".bmp": "BMP",
    ".gif": "GIF",
    ".jpeg": "JPEG",
    ".jpg": "JPEG",
    ".png": "PNG",
    ".ppm": "PPM",
    ".webp": "WEBP",
}
MEMORY_LIMIT = 2**34
"""Bytes of decoded pixels; beyond them a set does not belong in memory."""


def load_folder(path: Path, split: SplitName, image_size: int | None, seed: int = 0) -> Split:
    """A split of a folder of images as RGB.

    With `image_size` the shorter side is resized to it and the centre cropped; without it all
    images must have one size.
    """
    path = path.expanduser()
    if not path.is_dir():
        raise UserError(f"{path} is not a folder")
    if image_size is not None and image_size < 1:
        raise UserError(f"an image size of {image_size}: at least 1 expected")
    files = _files_of_split(path, split, seed)
    labels = [label for label, images in enumerate(files.values()) for _ in images]
    images = [image for images in files.values() for image in images]
    return Split(_read(images, image_size), np.array(labels, dtype=np.int64), tuple(files))


def _files_of_split(path: Path, split: SplitName, seed: int) -> dict[str, list[Path]]:
    """The image files of each class."""
    train = path / "train" if _is_set(path / "train") else None
    test = next((path / name for name in ("val", "test") if _is_set(path / name)), None)
    if test is None:
        return _hold_out(_files_by_class(train or path), split, seed)
    if train is None:
        if split == "train":
            raise UserError(f"{path} has {test.name}/ but no train/ of class folders")
        return _files_by_class(test)
    both = {"train": _files_by_class(train), "test": _files_by_class(test)}
    different = sorted(both["train"].keys() ^ both["test"].keys())
    if different:
        shown = ", ".join(different[:5]) + (", ..." if len(different) > 5 else "")
        raise UserError(f"{train} and {test} have different classes: {shown}")
    return both[split]


def _folders(path: Path) -> list[Path]:
    return sorted(inner for inner in path.iterdir() if inner.is_dir() and inner.name[0] != ".")


def _is_set(path: Path) -> bool:
    """Whether `path` holds class folders (a class may itself be called train)."""
    return path.is_dir() and bool(_folders(path))


def _files_by_class(path: Path) -> dict[str, list[Path]]:
    files = {
        folder.name: sorted(
            file
            for file in folder.iterdir()
            if file.suffix.lower() in FORMATS and file.name[0] != "."
        )
        for folder in _folders(path)
    }
    if not files:
        raise UserError(f"{path} holds no class folders")
    empty = [name for name, images in files.items() if not images]
    if empty:
        raise UserError(f"{path / empty[0]} holds no images ({', '.join(FORMATS)})")
    return files


def _hold_out(files: dict[str, list[Path]], split: SplitName, seed: int) -> dict[str, list[Path]]:
    """A tenth of each class, at least one image, is `test`; the rest is `train`."""
    chosen = {}
    for label, (name, images) in enumerate(files.items()):
        if len(images) < 2:
            raise UserError(f"class {name} has one image: a tenth cannot be held out for testing")
        order = np.random.default_rng((seed, label)).permutation(len(images))
        held_out = set(order[: max(1, round(len(images) / 10))].tolist())
        chosen[name] = [
            image
            for number, image in enumerate(images)
            if (number in held_out) == (split == "test")
        ]
    return chosen


def _read(files: Sequence[Path], image_size: int | None) -> Bytes:
    first = _picture(files[0], image_size)
    needed = len(files) * first.nbytes
    if needed > MEMORY_LIMIT:
        raise UserError(
            f"{len(files)} images of {first.shape[0]}x{first.shape[1]} need {needed >> 30} GiB of "
            f"memory, more than {MEMORY_LIMIT >> 30}: choose a smaller image size"
        )
    pixels = np.empty((len(files), *first.shape), dtype=np.uint8)
    for number, file in enumerate(files):
        picture = _picture(file, image_size)
        if picture.shape != first.shape:
            sizes = f"{first.shape[1]}x{first.shape[0]} and {picture.shape[1]}x{picture.shape[0]}"
            raise UserError(f"{files[0]} and {file} differ in size ({sizes}): give --image-size")
        pixels[number] = picture
    return pixels


def _picture(file: Path, image_size: int | None) -> Bytes:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file, formats=sorted(set(FORMATS.values()))) as image:
                if image.mode[0] in "IF":
                    raise UserError(f"{file} has mode {image.mode}: 8 bits a channel expected")
                picture = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Warning) as error:
        raise UserError(f"{file} is not a readable image: {error}") from None
    if image_size is not None:
        picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(picture)

"""One image file as RGB pixels: whole or cropped for evaluation, squashed for training."""

import contextlib
import io
import math
import threading
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from bilateral.data.datasets_entry import Bytes
from bilateral.errors import UserError
from bilateral.reading import read_plain

FORMATS = {
    ".bmp": "BMP",
    ".gif": "GIF",
    ".jfif": "JPEG",
    ".jpe": "JPEG",
    ".jpeg": "JPEG",
    ".jpg": "JPEG",
    ".pbm": "PPM",
    ".pgm": "PPM",
    ".png": "PNG",
    ".pnm": "PPM",
    ".ppm": "PPM",
    ".webp": "WEBP",
}
UNREAD = (
    ".apng",
    ".arw",
    ".avif",
    ".cr2",
    ".cr3",
    ".dng",
    ".exr",
    ".hdr",
    ".heic",
    ".heif",
    ".ico",
    ".jp2",
    ".jxl",
    ".nef",
    ".orf",
    ".psd",
    ".raf",
    ".rw2",
    ".svg",
    ".tga",
    ".tif",
    ".tiff",
)
"""Pictures that are not read; a class that has some is refused rather than read in part."""
LIMIT = 2**26
"""Pixels of a picture, as its header declares them; more are refused before they are decoded."""
FILE_LIMIT = 2**28
"""Bytes of a picture's file."""
LARGE = 2**22
"""Larger pictures are decoded one at a time: eight threads with one each would take gigabytes."""
_one_by_one = threading.Lock()
DECODED = "upright, on white"
"""What becomes of a file's pixels; figures of the same files with another text are of others."""
DRAFT = 2
"""A JPEG is decoded at reduced size, but at no less than so many times the size needed."""
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What turns a picture upright, by EXIF's orientation: cameras store it as the sensor lay."""


class PictureError(UserError):
    """A file that this package cannot use as a picture."""


def read_picture(file: Path, image_size: int | None) -> Bytes:
    """uint8 (H, W, 3); with `image_size` the shorter side is resized to it, the centre cropped."""
    needed = None if image_size is None else DRAFT * image_size
    picture, _ = _decode(file, needed)
    if image_size is not None:
        picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BILINEAR)
    return np.asarray(picture)


def read_squashed(file: Path, side: int) -> tuple[Bytes, float]:
    """The whole picture squashed to a square of `side`, and its own width over its height."""
    picture, (width, height) = _decode(file, side)
    square = picture.resize((side, side), Image.Resampling.BILINEAR, reducing_gap=2.0)
    return np.asarray(square), width / height


def picture_size(file: Path) -> tuple[int, int] | None:
    """Width and height of the upright picture, by its header; none where it cannot be read."""
    try:
        content = io.BytesIO(read_plain(file, FILE_LIMIT))
        with Image.open(content, formats=sorted(set(FORMATS.values()))) as image:
            later = image.format == "PNG" and "exif" not in image.info  # behind its pixels
            return _upright(image.size, 1 if later else _orientation(image))
    except Exception:  # training will say what is wrong with it
        return None


def _decode(file: Path, needed: int | None) -> tuple[Image.Image, tuple[int, int]]:
    """The upright picture as RGB, no side reduced below what is needed, and its size on disk.

    What is transparent shows white behind it: its colour in the file, often black, is not seen.
    """
    try:
        # In memory, because Pillow asks a file for as many bytes as a damaged length says.
        content = io.BytesIO(read_plain(file, FILE_LIMIT))
        with Image.open(content, formats=sorted(set(FORMATS.values()))) as image:
            size, mode = image.size, image.mode
            _refuse_bomb(size)
            if needed is not None:
                image.draft(None, (needed, needed))
            with _one_by_one if math.prod(image.size) > LARGE else contextlib.nullcontext():
                if image.has_transparency_data:
                    white = Image.new("RGBA", image.size, "white")
                    picture = Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
                else:
                    picture = image.convert("RGB")
                # Not before: that decodes a PNG, and hides that it is damaged.
                orientation = _orientation(image)
                if orientation in _UPRIGHT:
                    picture = picture.transpose(_UPRIGHT[orientation])
    except UnidentifiedImageError:
        known = ", ".join(sorted(set(FORMATS.values())))
        raise PictureError(f"{file} is not a readable image: none of {known}") from None
    except Exception as error:  # a damaged image makes Pillow raise nearly anything
        reason = str(error) or type(error).__name__
        raise PictureError(f"{file} is not a readable image: {reason}") from None
    if mode[0] in "IF":
        raise PictureError(f"{file} has mode {mode}: 8 bits a channel expected")
    return picture, _upright(size, orientation)


def _orientation(image: Image.Image) -> int:
    """EXIF's orientation, from 1 (upright) to 8; damaged EXIF data say nothing."""
    with contextlib.suppress(Exception):
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


def _upright(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Width and height of the picture once it stands upright: 5 to 8 are quarter turns."""
    return (size[1], size[0]) if orientation in range(5, 9) else size


def _refuse_bomb(size: tuple[int, int]) -> None:
    """Refuse what Pillow only warns of: its warning cannot be made an error in one thread alone."""
    if math.prod(size) > LIMIT:
        raise ValueError(f"{size[0]} x {size[1]} pixels are more than {LIMIT:,}")

"""Arrays from outside, `.npy` and `.npz`: no size that a file declares is trusted; no torch.

Numbers and text only: an array of objects is a pickle, which could run any code.
"""

import io
import math
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bilateral.errors import UserError

LIMIT = 2**29
"""Bytes that any npz file may unpack to; a large one may unpack to `RATIO` times its size."""
RATIO = 16
_BLOCK = 2**20
_HEADER_BYTES = 2**16
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

Array = npt.NDArray[Any]


def array_of(content: bytes | bytearray) -> Array:
    """The array of an `.npy` file, sharing its memory; ValueError if the file is not intact."""
    stream = io.BytesIO(content[:_HEADER_BYTES])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # numpy warns about headers that it had to repair
            version = np.lib.format.read_magic(stream)
            shape, in_columns, kind = _HEADERS[version](stream)
    except Exception as error:  # the header is a Python expression: nearly anything can be wrong
        raise ValueError(f"no .npy header ({_reason(error)})") from None
    if kind.kind not in "biufU" or not kind.itemsize:
        raise ValueError(f"{kind} is not numbers or text")
    declared, found = math.prod(shape) * kind.itemsize, len(content) - stream.tell()
    if declared != found or min(shape, default=0) < 0:
        raise ValueError(f"{kind} {shape!s:.60} declared, {found} bytes found")
    if not found:
        return np.zeros(shape, dtype=kind)
    if kind.kind == "U":  # numpy passes any number to Python as a character
        letters = np.frombuffer(content, dtype=f"{kind.str[0]}u4", offset=stream.tell())
        if letters.max() > sys.maxunicode:
            raise ValueError("characters that do not exist")
    flat = np.frombuffer(content, dtype=kind, offset=stream.tell())
    return flat.reshape(shape, order="F" if in_columns else "C")


def read_npz(path: Path, damaged: list[str] | None = None) -> dict[str, Array]:
    """All arrays of an npz file; given a list, damaged ones are skipped and their names added."""
    arrays: dict[str, Array] = {}
    try:
        allowed = max(LIMIT, RATIO * path.stat().st_size)
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            total = sum(member.file_size for member in members)
            if total > allowed:
                raise ValueError(f"{total:,} bytes unpacked: more than {allowed:,} are refused")
            for member in members:
                name = member.filename.removesuffix(".npy")
                try:
                    arrays[name] = array_of(_unpacked(file, member))
                except Exception:
                    if damaged is None:
                        raise
                    damaged.append(name)
    except Exception as error:  # a flipped byte makes zipfile raise nearly anything
        raise UserError(f"{path} is damaged: not an npz file ({_reason(error)})") from None
    return arrays


def _unpacked(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytearray:
    """A member in small steps: read at once, zipfile unpacks more than was declared."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{member.filename} is not packed by deflate")
    content = bytearray()
    with file.open(member) as stream:
        while block := stream.read(_BLOCK):
            content += block
    return content


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]

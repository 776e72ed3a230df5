"""SVHN's official files: MATLAB 5, of which two arrays of bytes are read and nothing else.

What is expected is known beforehand, so no size that a file claims is believed: an element that
runs past the end of the file, or unpacks to more than the arrays take, is refused.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bilateral.data.archives import Members
from bilateral.data.datasets_entry import Bytes, DatasetEntry, SplitName
from bilateral.errors import UserError

Shape = tuple[int, ...]

_HEADER_BYTES = 128
_TAG_BYTES = 8
_VERSION = 0x0100
_SLACK = 4096
"""Bytes that tags, names and small variables may take beside the arrays."""

_INT32, _UINT32, _UINT8, _INT8 = 5, 6, 2, 1
_MATRIX, _COMPRESSED = 14, 15
_NUMERIC_CLASSES = range(6, 16)
_COMPLEX_FLAG = 0x0800


@dataclass(frozen=True)
class MatFiles:
    """A MATLAB file a split: `X` (H, W, C, N), and `y` (N, 1), in which 10 is the digit 0."""

    train: str
    test: str

    def names(self, entry: DatasetEntry) -> tuple[str, ...]:
        return self.train, self.test

    def read(self, files: Members, entry: DatasetEntry, split: SplitName) -> tuple[Bytes, Bytes]:
        name = self.train if split == "train" else self.test
        where, count, last = files.where(name), entry.counts[split], len(entry.classes)
        shapes = {"X": (*entry.image_shape, count), "y": (count, 1)}
        arrays = read_arrays(files.files[name], shapes, where)
        labels = arrays["y"][:, 0]
        wrong = np.flatnonzero((labels < 1) | (labels > last))
        if len(wrong):
            found = f"{labels[wrong[0]]} found at image {wrong[0]}"
            raise UserError(f"{where}: label 1 to {last} expected, {found}")
        return np.ascontiguousarray(arrays["X"].transpose(3, 0, 1, 2)), labels % last


def read_arrays(content: bytes, shapes: Mapping[str, Shape], where: str) -> dict[str, Bytes]:
    """The named arrays of bytes, each of exactly its shape; other variables are skipped."""
    try:
        arrays = dict(_variables(content, shapes))
    except (ValueError, zlib.error) as error:
        raise UserError(f"{where} is not a MATLAB 5 file that can be read: {error}") from None
    missing = [name for name in shapes if name not in arrays]
    if missing:
        raise UserError(f"{where}: no variable {' and '.join(missing)}")
    return arrays


class _Elements:
    """Data elements one after another, none of which may run past the end of `data`."""

    def __init__(self, data: memoryview, order: str) -> None:
        self.data, self.order, self.position = data, order, 0

    def take(self, size: int) -> memoryview:
        left = len(self.data) - self.position
        if size > left:
            raise ValueError(f"it is cut short, {size} bytes expected, {max(left, 0)} found")
        self.position += size
        return self.data[self.position - size : self.position]

    def next(self) -> tuple[int, memoryview]:
        """The type and the bytes of an element; up to four bytes may lie in its tag."""
        tag = self.take(8)
        kind, size = struct.unpack(f"{self.order}II", tag)
        if kind >> 16:
            kind, size = kind & 0xFFFF, kind >> 16
            if size > 4:
                raise ValueError(f"a tag of {size} bytes")
            return kind, tag[4 : 4 + size]
        data = self.take(size)
        if kind != _COMPRESSED:
            self.position += -size % 8
        return kind, data

    def expect(self, kind: int, what: str) -> memoryview:
        found, data = self.next()
        if found != kind:
            raise ValueError(f"{what} of type {kind} expected, {found} found")
        return data


def _variables(content: bytes, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Bytes]]:
    order = _byte_order(content)
    elements = _Elements(memoryview(content)[_HEADER_BYTES:], order)
    left = sum(map(math.prod, shapes.values())) + _SLACK
    while elements.position < len(elements.data):
        kind, data = elements.next()
        if kind == _COMPRESSED:
            unpacked = _unpack(data, left)
            kind, data = _Elements(unpacked, order).next()
        left -= len(data) + _TAG_BYTES
        if left < 0:
            raise ValueError("it holds more than its arrays take")
        if kind != _MATRIX:
            raise ValueError(f"a variable of type {_MATRIX} expected, {kind} found")
        variable = _variable(_Elements(data, order), shapes)
        if variable is not None:
            yield variable


def _byte_order(content: bytes) -> str:
    """How numbers are written, from the mark that ends the header."""
    order = {b"IM": "<", b"MI": ">"}.get(content[_HEADER_BYTES - 2 : _HEADER_BYTES])
    if order is None:
        raise ValueError("no header")
    (version,) = struct.unpack_from(f"{order}H", content, _HEADER_BYTES - 4)
    if version != _VERSION:
        raise ValueError(f"version {_VERSION:#06x} expected, {version:#06x} found")
    return order


def _unpack(data: memoryview, limit: int) -> memoryview:
    stream = zlib.decompressobj()
    unpacked = stream.decompress(data, limit + 1)
    if len(unpacked) > limit:
        raise ValueError("it unpacks to more than its arrays take")
    if not stream.eof:
        raise ValueError("a packed variable is cut short")
    return memoryview(unpacked)


def _variable(parts: _Elements, shapes: Mapping[str, Shape]) -> tuple[str, Bytes] | None:
    """A variable's name and array, if it is wanted.

    The class may be any number's: MATLAB keeps whole numbers of other classes as bytes too.
    """
    flags = parts.expect(_UINT32, "flags")
    sizes = parts.expect(_INT32, "a shape")
    name = bytes(parts.expect(_INT8, "a name")).decode("latin-1")
    if name not in shapes:
        return None
    if len(flags) != 8 or len(sizes) % 4:
        raise ValueError(f"{name} has damaged flags or shape")
    word, _ = struct.unpack(f"{parts.order}II", flags)
    if word & 0xFF not in _NUMERIC_CLASSES or word & _COMPLEX_FLAG:
        raise ValueError(f"{name} is not an array of real numbers")
    shape = struct.unpack(f"{parts.order}{len(sizes) // 4}i", sizes)
    if shape != shapes[name]:
        raise ValueError(f"{name} of shape {shapes[name]} expected, {shape!s:.60} found")
    data = parts.expect(_UINT8, f"{name}'s bytes")
    if len(data) != math.prod(shape):
        raise ValueError(f"{name} of {math.prod(shape)} bytes expected, {len(data)} found")
    return name, np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F")

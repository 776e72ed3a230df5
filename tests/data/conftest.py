"""A CIFAR-10 of thirteen images in every form the real one comes in, and an SVHN of twelve."""

import dataclasses
import hashlib
import io
import json
import pickle
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from bilateral.data.datasets import DATASETS, DatasetEntry
from bilateral.data.datasets_entry import SPLITS, Digests, SplitName
from bilateral.data.readers_mat import MatFiles

Array = npt.NDArray[np.uint8]


class Name:
    """A global that Python 2 would have written, without looking it up."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None:
        raise AssertionError("only ever pickled")


@dataclasses.dataclass
class Reduced:
    """An object that unpickles as `callable(*arguments)`, then takes `state`."""

    callable: Name
    arguments: tuple[Any, ...]
    state: Any


_Pickler: Any = vars(pickle)["_Pickler"]


class Python2Pickler(_Pickler):  # type: ignore[misc]
    """Protocol 2 as Python 2 wrote it: byte strings are BINSTRING, globals are as told."""

    dispatch: ClassVar[dict[Any, Any]] = dict(_Pickler.dispatch)

    def save_string(self, value: bytes) -> None:
        short = len(value) < 256
        self.write(b"U" + bytes([len(value)]) if short else b"T" + struct.pack("<i", len(value)))
        self.write(value)
        self.memoize(value)

    def save_name(self, value: Name) -> None:
        self.write(f"c{value.module}\n{value.name}\n".encode())
        self.memoize(value)

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Reduced):
            return value.callable, value.arguments, value.state
        return NotImplemented

    dispatch[bytes] = save_string
    dispatch[Name] = save_name


def python2_pickle(value: Any) -> bytes:
    out = io.BytesIO()
    Python2Pickler(out, protocol=2).dump(value)
    return out.getvalue()


def python2_array(array: npt.NDArray[Any], code: bytes = b"u1") -> Reduced:
    """An array as numpy 1.x pickled it under Python 2."""
    kind = Reduced(Name("numpy", "dtype"), (code, 0, 1), (3, b"|", None, None, None, -1, -1, 0))
    return Reduced(
        Name("numpy.core.multiarray", "_reconstruct"),
        (Name("numpy", "ndarray"), (0,), b"b"),
        (1, array.shape, kind, False, array.tobytes()),
    )


def png(pixels: Array) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def tar(path: Path, files: Mapping[str, bytes], folder: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@dataclasses.dataclass(frozen=True)
class Tiny:
    """The entry, its arrays, and its files in each form."""

    entry: DatasetEntry
    pixels: dict[SplitName, Array]
    labels: dict[SplitName, Array]

    def batches(self) -> dict[str, tuple[Array, Array]]:
        """The official division: five training batches and a test batch."""
        shares = zip(
            np.split(self.pixels["train"], 5), np.split(self.labels["train"], 5), strict=True
        )
        train = {f"data_batch_{number}": share for number, share in enumerate(shares, start=1)}
        return {**train, "test_batch": (self.pixels["test"], self.labels["test"])}

    def rows(self, pixels: Array) -> Array:
        return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)

    def python_files(self) -> dict[str, bytes]:
        return {
            name: python2_pickle(
                {
                    b"batch_label": b"training batch",
                    b"labels": labels.tolist(),
                    b"data": python2_array(self.rows(pixels)),
                    b"filenames": [b"x.png"] * len(labels),
                }
            )
            for name, (pixels, labels) in self.batches().items()
        }

    def binary_files(self) -> dict[str, bytes]:
        return {
            f"{name}.bin": np.hstack([labels[:, None], self.rows(pixels)]).tobytes()
            for name, (pixels, labels) in self.batches().items()
        }

    def npm_files(self) -> dict[str, bytes]:
        pictures = {
            f"{name}.png": png(pixels.reshape(len(pixels), -1, 3))
            for name, (pixels, _) in self.batches().items()
        }
        lists = {
            f"{split}_lables.json": json.dumps(self.labels[split].tolist()).encode()
            for split in SPLITS
        }
        return {**pictures, **lists}

    def files(self, form: str) -> dict[str, bytes]:
        return {
            "python": self.python_files,
            "binary": self.binary_files,
            "npm": self.npm_files,
        }[form]()

    def archive(self, path: Path, form: str = "npm") -> Path:
        return tar(path, self.files(form), "some-folder")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tiny:
    """The data set `tiny`, known by name, with an empty cache at `tmp_path / "cache"`."""
    monkeypatch.setenv("BILATERAL_DATA", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    counts: dict[SplitName, int] = {"train": 10, "test": 3}
    pixels = {
        split: random.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
        for split, count in counts.items()
    }
    labels = {
        split: random.integers(0, 10, count, dtype=np.uint8) for split, count in counts.items()
    }
    digests = {
        split: Digests(
            hashlib.sha256(pixels[split].tobytes()).hexdigest(),
            hashlib.sha256(labels[split].tobytes()).hexdigest(),
        )
        for split in SPLITS
    }
    entry = dataclasses.replace(
        DATASETS["cifar10"],
        name="tiny",
        image_shape=(4, 5, 3),
        counts=counts,
        digests=digests,
        url=None,
        npm=None,
    )
    monkeypatch.setitem(DATASETS, "tiny", entry)
    return Tiny(entry, pixels, labels)


def mat_element(kind: int, content: bytes, order: str = "<") -> bytes:
    """A MATLAB data element; up to four bytes go into the tag, as MATLAB has it."""
    if 0 < len(content) <= 4:
        return struct.pack(f"{order}I", len(content) << 16 | kind) + content.ljust(4, b"\0")
    tag = struct.pack(f"{order}II", kind, len(content))
    return tag + content + bytes(-len(content) % 8)


def mat_variable(
    name: str, array: Array, order: str = "<", flags: int = 9, kind: int = 2, packed: bool = False
) -> bytes:
    """A MATLAB variable; `flags` 9 is the class uint8, `kind` 2 says that bytes are stored."""
    shape = struct.pack(f"{order}{array.ndim}i", *array.shape)
    parts = [
        mat_element(6, struct.pack(f"{order}II", flags, 0), order),
        mat_element(5, shape, order),
        mat_element(1, name.encode(), order),
        mat_element(kind, array.tobytes(order="F"), order),
    ]
    variable = mat_element(14, b"".join(parts), order)
    if not packed:
        return variable
    content = zlib.compress(variable)
    return struct.pack(f"{order}II", 15, len(content)) + content


def mat_file(*variables: bytes, order: str = "<", version: int = 0x0100) -> bytes:
    mark = b"IM" if order == "<" else b"MI"
    text = b"MATLAB 5.0 MAT-file".ljust(116)
    return text + bytes(8) + struct.pack(f"{order}H", version) + mark + b"".join(variables)


@pytest.fixture
def mat() -> Any:
    """The writer of MATLAB files: `mat.file`, `mat.variable`, `mat.element`."""

    class Writer:
        file = staticmethod(mat_file)
        variable = staticmethod(mat_variable)
        element = staticmethod(mat_element)

    return Writer


@dataclasses.dataclass(frozen=True)
class House:
    """The entry `house`, its arrays, and its two official files."""

    entry: DatasetEntry
    pixels: dict[SplitName, Array]
    labels: dict[SplitName, Array]
    files: dict[str, bytes]

    def folder(self, path: Path) -> Path:
        path.mkdir()
        for name, content in self.files.items():
            (path / name).write_bytes(content)
        return path

    def archive(self, path: Path) -> Path:
        return tar(path, self.files, "housenumbers")


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> House:
    """The data set `house`, known like `svhn-full` by its files alone, with an empty cache."""
    monkeypatch.setenv("BILATERAL_DATA", str(tmp_path / "cache"))
    random = np.random.default_rng(2)
    counts: dict[SplitName, int] = {"train": 9, "test": 3}
    pixels = {
        split: random.integers(0, 256, (count, 4, 5, 3), dtype=np.uint8)
        for split, count in counts.items()
    }
    labels = {split: np.arange(count, dtype=np.uint8)[::-1] for split, count in counts.items()}
    files = {
        f"{split}_32x32.mat": mat_file(
            mat_variable("X", pixels[split].transpose(1, 2, 3, 0), packed=True),
            mat_variable("y", np.where(labels[split], labels[split], np.uint8(10))[:, None]),
        )
        for split in SPLITS
    }
    entry = dataclasses.replace(
        DATASETS["svhn-full"],
        name="house",
        image_shape=(4, 5, 3),
        counts=counts,
        readers=(MatFiles(train="train_32x32.mat", test="test_32x32.mat"),),
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
        url=None,
    )
    monkeypatch.setitem(DATASETS, "house", entry)
    return House(entry, pixels, labels, files)


@pytest.fixture
def python2() -> Any:
    """The writer of Python 2's pickles: `python2.dump`, `python2.array`, `python2.Name`."""

    class Writer:
        dump = staticmethod(python2_pickle)
        array = staticmethod(python2_array)
        Name = Name
        Reduced = Reduced

    return Writer

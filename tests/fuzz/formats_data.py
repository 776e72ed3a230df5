"""The formats in which data sets and pictures come."""

import dataclasses
import gzip
import hashlib
import importlib.util
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import ModuleType

import numpy as np
from fuzz_format import Format
from mutation import damage, strange_json
from PIL import Image

from bilateral.data.archives import read_members
from bilateral.data.datasets import DATASETS, load
from bilateral.data.datasets_entry import SPLITS, DatasetEntry, Digests
from bilateral.data.pictures import read_picture, read_squashed
from bilateral.data.readers import SpritePack, decode
from bilateral.data.readers_mat import read_arrays
from bilateral.data.readers_pickle import read_batch
from bilateral.data.sources_cache import read_array, store, with_recorded_digests


def _writers() -> ModuleType:
    """The writers of data sets that the readers' own tests have."""
    path = Path(__file__).parents[1] / "data" / "conftest.py"
    spec = importlib.util.spec_from_file_location("data_set_writers", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITERS = _writers()
RANDOM = np.random.default_rng(0)
PIXELS = {"train": RANDOM.integers(0, 256, (10, 4, 5, 3), dtype=np.uint8)}
PIXELS["test"] = RANDOM.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
LABELS = {"train": np.arange(10, dtype=np.uint8), "test": np.arange(3, dtype=np.uint8)}
ENTRY: DatasetEntry = dataclasses.replace(
    DATASETS["cifar10"],
    name="tiny",
    image_shape=(4, 5, 3),
    counts={"train": 10, "test": 3},
    digests={
        split: Digests(
            hashlib.sha256(PIXELS[split].tobytes()).hexdigest(),
            hashlib.sha256(LABELS[split].tobytes()).hexdigest(),
        )
        for split in SPLITS
    },
    url=None,
    npm=None,
)
TINY = WRITERS.Tiny(ENTRY, PIXELS, LABELS)
SPRITES = dataclasses.replace(ENTRY, readers=(SpritePack(tiles=5, images_per_sprite=10),))
ROWS = np.arange(24, dtype=np.uint8).reshape(2, 12)
SHAPES = {"X": (4, 5, 3, 2), "y": (2, 1)}


def _is_the_data_set(entry: DatasetEntry, source: Path) -> None:
    """What is accepted has the digests of the data set, so it is the data set."""
    for split, (pixels, labels) in decode(entry, source).items():
        np.testing.assert_array_equal(pixels, PIXELS[split])
        np.testing.assert_array_equal(labels, LABELS[split])


def _sprite_files() -> dict[str, bytes]:
    files = {}
    for split in SPLITS:
        count = len(LABELS[split])
        rows = -(-count // 5)
        tiles = np.zeros((rows * 5, 4, 5, 3), np.uint8)
        tiles[:count] = PIXELS[split]
        sprite = tiles.reshape(rows, 5, 4, 5, 3).swapaxes(1, 2).reshape(rows * 4, 25, 3)
        out = io.BytesIO()
        Image.fromarray(sprite).save(out, "WEBP", lossless=True, exact=True)
        files[f"{split}-00.webp"] = out.getvalue()
        labels = io.BytesIO()
        np.save(labels, LABELS[split])
        files[f"{split}-labels.npy"] = labels.getvalue()
    return files


def _one_file(entry: DatasetEntry, files: dict[str, bytes], name: str, title: str) -> Format:
    """A data set in a folder, of which one file is damaged."""

    def prepare(folder: Path) -> bytes:
        for each, content in files.items():
            (folder / each).write_bytes(content)
        return files[name]

    def read(content: bytes, folder: Path) -> None:
        (folder / name).write_bytes(content)
        _is_the_data_set(entry, folder)

    inside = (strange_json,) if name.endswith(".json") else ()
    return Format(title, prepare, read, (*inside, png_chunks) if ".png" in name else inside)


def png_chunks(random: Random, content: bytes) -> bytes:
    """A damaged chunk of a PNG with the right checksum."""
    chunks, position = [], 8
    while position + 8 <= len(content):
        (size,) = struct.unpack_from(">I", content, position)
        chunks.append((content[position + 4 : position + 8], content[position + 8 :][:size]))
        position += size + 12
    chosen = random.randrange(len(chunks))
    kind, data = chunks[chosen]
    if kind == b"IDAT" and random.random() < 0.5:
        data = zlib.compress(damage(random, zlib.decompress(data)))
    else:
        data = damage(random, data)
    chunks[chosen] = kind, data
    return content[:8] + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _archive(folder: Path, packed: bool) -> bytes:
    content = TINY.archive(folder / "a.tgz", "npm").read_bytes()
    return content if packed else gzip.decompress(content)


def _read_archive(content: bytes, folder: Path) -> None:
    path = folder / "archive"
    path.write_bytes(content)
    members = read_members(path, TINY.files("npm"))
    assert all(".." not in Path(found.folder).parts for found in members)
    _is_the_data_set(ENTRY, path)


def _in_gzip(random: Random, content: bytes) -> bytes:
    return gzip.compress(damage(random, gzip.decompress(content)), 1)


def _tar_header(random: Random, content: bytes) -> bytes:
    """A damaged header of a tar with the right checksum."""
    changed = bytearray(content)
    blocks = [
        place for place in range(0, len(content), 512) if content[place + 257 :][:5] == b"ustar"
    ]
    place = random.choice(blocks)
    field, size = random.choice([(0, 100), (124, 12), (156, 1), (157, 100), (345, 155)])
    new = random.choice([random.randbytes(size), bytes(size), b"\xff" * size, b"7" * size])
    changed[place + field : place + field + size] = new
    changed[place + 148 : place + 156] = b" " * 8
    changed[place + 148 : place + 156] = b"%06o\0 " % sum(changed[place : place + 512])
    return bytes(changed)


def _mat(folder: Path) -> bytes:
    pixels, labels = PIXELS["train"][:2].transpose(1, 2, 3, 0), LABELS["train"][1:3, None]
    first = WRITERS.mat_variable("X", pixels, packed=True)
    return bytes(WRITERS.mat_file(first, WRITERS.mat_variable("y", labels)))


def _mat_inside(random: Random, content: bytes) -> bytes:
    pixels = PIXELS["train"][:2].transpose(1, 2, 3, 0)
    plain = damage(random, WRITERS.mat_variable("X", pixels))
    packed = zlib.compress(plain)
    labels = WRITERS.mat_variable("y", LABELS["train"][1:3, None])
    return bytes(WRITERS.mat_file(struct.pack("<II", 15, len(packed)) + packed, labels))


def _read_mat(content: bytes, folder: Path) -> None:
    for name, array in read_arrays(content, SHAPES, "x.mat").items():
        assert array.shape == SHAPES[name] and array.dtype == np.uint8


def _pickle(folder: Path) -> bytes:
    batch = {b"data": WRITERS.python2_array(ROWS), b"labels": [7, 3], b"filenames": [b"a", b"b"]}
    return bytes(WRITERS.python2_pickle(batch))


def _read_pickle(content: bytes, folder: Path) -> None:
    rows, labels = read_batch(content, "labels", "batch")
    assert rows.dtype == np.uint8 and rows.ndim == 2 and isinstance(labels, list)


def _picture(kind: str, **options: object) -> Callable[[Path], bytes]:
    def prepare(folder: Path) -> bytes:
        slope = np.arange(20 * 24 * 3, dtype=np.uint16).reshape(20, 24, 3) // 6
        out = io.BytesIO()
        Image.fromarray(slope.astype(np.uint8)).save(out, kind, **options)
        return out.getvalue()

    return prepare


def _read_picture(suffix: str) -> Callable[[bytes, Path], None]:
    def read(content: bytes, folder: Path) -> None:
        path = folder / f"picture{suffix}"
        path.write_bytes(content)
        cropped = read_picture(path, 8)
        assert cropped.shape == (8, 8, 3) and cropped.dtype == np.uint8
        square, aspect = read_squashed(path, 16)
        assert square.shape == (16, 16, 3) and 0 < aspect < 1e6
        whole = read_picture(path, None)
        assert whole.ndim == 3 and whole.shape[2] == 3 and whole.dtype == np.uint8

    return read


def _cache(folder: Path) -> bytes:
    (folder / "work").mkdir()
    arrays = {split: (PIXELS[split], LABELS[split]) for split in SPLITS}
    store(folder, ENTRY, arrays, "source", folder / "work")
    return (folder / "tiny" / "train-pixels.npy").read_bytes()


def _read_cache(content: bytes, folder: Path) -> None:
    (folder / "tiny" / "train-pixels.npy").write_bytes(content)
    np.testing.assert_array_equal(read_array(folder, ENTRY, "train", "pixels"), PIXELS["train"])


RECORDED = dataclasses.replace(ENTRY, digests={}, files={"a": "00"})


def _manifest(folder: Path) -> bytes:
    digests = {split: dataclasses.asdict(ENTRY.digests[split]) for split in SPLITS}
    (folder / "tiny").mkdir()
    return json.dumps({"name": "tiny", "files": {"a": "00"}, "sha256": digests}).encode()


def _read_manifest(content: bytes, folder: Path) -> None:
    (folder / "tiny" / "manifest.json").write_bytes(content)
    found = with_recorded_digests(folder, RECORDED).digests
    assert all(isinstance(found[split].pixels, str) for split in SPLITS)


def _photographs(folder: Path) -> bytes:
    for place in ("a", "b"):
        (folder / "set" / place).mkdir(parents=True)
        for number in range(2):
            (folder / "set" / place / f"{number}.png").write_bytes(WRITERS.png(PIXELS["test"][0]))
    return bytes(WRITERS.png(PIXELS["test"][1]))


def _read_photographs(content: bytes, folder: Path) -> None:
    for number in range(2):
        (folder / "set" / "a" / f"{number}.png").write_bytes(content)
    split = load(f"folder:{folder / 'set'}", "train")
    assert split.pixels[:].shape == (2, *split.pixels.shape[1:])
    assert split.labels.tolist() == [0, 1]


DATA_FORMATS = [
    Format("tar", lambda folder: _archive(folder, False), _read_archive, (_tar_header,)),
    Format("tar.gz", lambda folder: _archive(folder, True), _read_archive, (_in_gzip,)),
    Format("cifar pickle", _pickle, _read_pickle),
    _one_file(ENTRY, TINY.files("python"), "data_batch_2", "cifar pickle batch"),
    _one_file(ENTRY, TINY.files("binary"), "data_batch_2.bin", "cifar binary batch"),
    _one_file(ENTRY, TINY.files("npm"), "data_batch_2.png", "cifar rows of png"),
    _one_file(ENTRY, TINY.files("npm"), "train_lables.json", "cifar labels json"),
    _one_file(SPRITES, _sprite_files(), "train-00.webp", "sprite webp"),
    _one_file(SPRITES, _sprite_files(), "train-labels.npy", "sprite labels npy"),
    Format("mat", _mat, _read_mat, (_mat_inside,)),
    Format("cache npy", _cache, _read_cache),
    Format("cache manifest", _manifest, _read_manifest, (strange_json,)),
    Format("folder of png", _photographs, _read_photographs, (png_chunks,)),
    Format("png", _picture("PNG"), _read_picture(".png"), (png_chunks,)),
    Format("jpeg", _picture("JPEG"), _read_picture(".jpg")),
    Format("webp", _picture("WEBP"), _read_picture(".webp")),
    Format("gif", _picture("GIF"), _read_picture(".gif")),
    Format("bmp", _picture("BMP"), _read_picture(".bmp")),
    Format("ppm", _picture("PPM"), _read_picture(".ppm")),
]

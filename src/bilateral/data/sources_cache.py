"""Decoded data sets on disk: `<cache>/<name>/{train,test}-{pixels,labels}.npy`, `manifest.json`.

A data set appears under its name only once it is whole and verified, and every read verifies it
again (SHA-256 of CIFAR-10 takes a fraction of a second).
"""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bilateral.arrays import array_of
from bilateral.data.datasets_entry import (
    PARTS,
    SPLITS,
    DatasetEntry,
    Digests,
    Part,
    SplitName,
    sha256,
)
from bilateral.data.readers import Arrays
from bilateral.errors import UserError
from bilateral.locks import locked
from bilateral.reading import read_json

WAIT_SECONDS = 3600.0
"""How long to wait for another process that fetches the same data set."""

_HEADER_BYTES = 2**16


def cache_folder() -> Path:
    """Where data sets are kept: `BILATERAL_DATA`, or `bilateral` in the user's cache folder."""
    chosen = os.environ.get("BILATERAL_DATA")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bilateral"
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    base = Path(os.environ.get(variable) or "~/.cache").expanduser()
    return base / "bilateral"


def array_path(root: Path, entry: DatasetEntry, split: SplitName, part: Part) -> Path:
    """Where an array of the data set is kept."""
    return root / entry.name / f"{split}-{part}.npy"


def read_array(root: Path, entry: DatasetEntry, split: SplitName, part: Part) -> npt.NDArray[Any]:
    """A verified array; the error for a missing or damaged one says how to fetch it."""
    path = array_path(root, entry, split, part)
    if not path.is_file():
        message = f"{entry.name} is not on disk: run `bilateral data fetch {entry.name}`"
        if entry.official is not None and (root / entry.official).is_dir():
            message += f", or choose the official {entry.official}, which is on disk, with --data"
        raise UserError(f"{message} (looked for {path})")
    entry = with_recorded_digests(root, entry)
    try:
        array = array_of(_content(path, math.prod(entry.shape(split, part))))
        fault = entry.fault(split, part, array)
    except (OSError, ValueError) as error:
        expected = f"uint8 {entry.shape(split, part)} expected"
        fault = f"{expected}, {path.stat().st_size} bytes found ({error})"
    if fault is not None:
        again = f"run `bilateral data fetch {entry.name}` to replace it"
        raise UserError(f"{path} is damaged: {fault}; {again}")
    return array


def _content(path: Path, pixels: int) -> bytearray:
    """The bytes of a file of so many pixels and a header; writable, as torch wants arrays."""
    size = path.stat().st_size
    if size > pixels + _HEADER_BYTES:
        raise ValueError("too long")
    content = bytearray(size)
    with path.open("rb") as file:
        if file.readinto(content) != size:
            raise ValueError("it shrank while it was read")
    return content


def with_recorded_digests(root: Path, entry: DatasetEntry) -> DatasetEntry:
    """The entry, with the digests that its manifest recorded when fetched if it has none itself."""
    if entry.digests:
        return entry
    manifest = root / entry.name / "manifest.json"
    try:
        found = read_json(manifest)
        if found["files"] != dict(entry.files):
            raise ValueError
        digests: dict[SplitName, Digests] = {
            split: Digests(*(str(found["sha256"][split][part]) for part in PARTS))
            for split in SPLITS
        }
    except (OSError, UserError, ValueError, KeyError, TypeError):
        raise UserError(
            f"{manifest} does not record what the official files held; "
            f"run `bilateral data fetch {entry.name}` to replace it"
        ) from None
    return dataclasses.replace(entry, digests=digests)


@contextlib.contextmanager
def workplace(root: Path, name: str) -> Iterator[Path]:
    """A temporary folder beside the cache, for one process at a time.

    What a killed fetch left behind is removed first: whoever has the lock owns all of it.
    """
    with locked(_lock(root, name), f"{name} in {root}", WAIT_SECONDS):
        for left_over in _left_overs(root, name):
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_partial(name), dir=root) as folder:
            yield Path(folder)


def tidy(root: Path, name: str) -> None:
    """Remove what a killed fetch left beside a data set that is whole."""
    if _lock(root, name).exists() or _left_overs(root, name):
        with contextlib.suppress(UserError, OSError), workplace(root, name):
            pass


def _lock(root: Path, name: str) -> Path:
    return root / f".{name}.lock"


def _partial(name: str) -> str:
    return f".{name}-partial-"


def _left_overs(root: Path, name: str) -> list[Path]:
    return list(root.glob(f"{_partial(name)}*"))


def store(root: Path, entry: DatasetEntry, arrays: Arrays, source: str, work: Path) -> Path:
    """Put verified arrays under the data set's name: written in `work`, then renamed."""
    complete = work / "complete"
    complete.mkdir()
    for split in SPLITS:
        for part, array in zip(PARTS, arrays[split], strict=True):
            np.save(complete / f"{split}-{part}.npy", np.ascontiguousarray(array))
    digests = {
        split: {part: sha256(array) for part, array in zip(PARTS, arrays[split], strict=True)}
        for split in SPLITS
    }
    manifest = {"name": entry.name, "source": source, "sha256": digests}
    if entry.files:
        manifest["files"] = dict(entry.files)
    (complete / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    target = root / entry.name
    if target.exists():
        target.rename(work / "replaced")
    complete.rename(target)
    return target

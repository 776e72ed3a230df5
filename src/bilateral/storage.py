"""Atomic writes of files, and folders that one process writes to at a time; no torch.

A temporary file or folder is locked by the process that writes it. One that can be locked is
abandoned: its process was killed, and the next one removes it.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bilateral.locks import is_at, locked, try_lock

LOCK = ".lock"
SUBFOLDERS = ("attacks", "adversarial", "flags", "transfer")
"""Subfolders of a folder of results to which results are written too."""
_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")


def write_atomic(path: Path, content: bytes) -> None:
    """Write to a temporary name beside `path`, flush to disk, rename."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_left_overs(path.parent, path.name)
        handle, temporary = _temporary_file(path)
        try:
            umask = os.umask(0)
            os.umask(umask)
            os.fchmod(handle, 0o666 & ~umask)  # mkstemp's mode would hide results from others
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)  # while locked: once closed it looks abandoned
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        # A failed write names no file, and a temporary name would mean nothing to the user.
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomic(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def append_line(path: Path, line: str) -> None:
    """Append a line to a file and flush it to disk."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def writing_to(folder: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Be the only process that writes results to a folder; left-overs of killed ones are removed.

    A folder that is made for the lock and stays empty is removed again.
    """
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        with locked(folder / LOCK, str(folder), wait_seconds):
            for place in _places(folder):
                remove_left_overs(place)
            yield
    finally:
        with suppress(OSError):
            for place in made:
                place.rmdir()


def tidy(folder: Path) -> None:
    """Remove the left-overs of killed processes from a folder that we do not write to."""
    if (folder / LOCK).exists() or any(map(_left_overs, _places(folder))):
        with suppress(Exception), writing_to(folder):  # in use, or read-only: left alone
            pass


def remove_left_overs(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files of killed processes, for one file or for all."""
    for path in _left_overs(folder):
        if name is None or path.name[1:-13] == name:
            with suppress(OSError):
                _remove_if_abandoned(path)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder; those of killed processes are removed."""
    root = Path(tempfile.gettempdir())
    for path in root.glob(f"{prefix}*"):
        with suppress(OSError):
            if path.stat(follow_symlinks=False).st_uid == os.getuid():
                _remove_if_abandoned(path)
    with tempfile.TemporaryDirectory(prefix=prefix) as folder:
        handle = os.open(folder, os.O_RDONLY)
        try:
            try_lock(handle)
            yield Path(folder)
        finally:
            os.close(handle)


def _temporary_file(path: Path) -> tuple[int, Path]:
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        # Between creation and lock another process may have taken it for a left-over.
        if try_lock(handle) is not False and is_at(handle, Path(name)):
            return handle, Path(name)
        os.close(handle)


def _places(folder: Path) -> Iterator[Path]:
    """A folder and its subfolders that results are written to."""
    yield folder
    for name in SUBFOLDERS:
        for place, _, _ in os.walk(folder / name):
            yield Path(place)


def _left_overs(folder: Path) -> list[Path]:
    """The files that look like temporary ones of ours."""
    try:
        with os.scandir(folder) as entries:
            return [
                Path(entry.path)
                for entry in entries
                if _TEMPORARY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
    except OSError:
        return []


def _remove_if_abandoned(path: Path) -> None:
    """Remove a temporary file or folder unless a process still works on it."""
    folder = path.is_dir()
    handle = os.open(path, (os.O_RDONLY if folder else os.O_RDWR) | os.O_NOFOLLOW)
    try:
        if try_lock(handle):
            shutil.rmtree(path) if folder else path.unlink()
    finally:
        os.close(handle)

"""The few files of a data set out of an archive or a folder, by name and into memory.

Nothing is ever unpacked to disk: members other than plain files with a wanted name are passed
over, and an archive may not grow past `LIMIT`.
"""

import contextlib
import gzip
import tarfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from bilateral.errors import UserError

LIMIT = 2**29
"""Bytes of an unpacked archive; the largest, CIFAR-10 as pickles, has 186 million."""


@dataclass
class Members:
    """The wanted files that lie in one folder of `source`."""

    source: Path
    folder: str
    files: dict[str, bytes] = field(default_factory=dict)

    def where(self, name: str) -> str:
        """How a message names the file."""
        inner = str(PurePosixPath(self.folder, name))
        return f"{self.source / inner}" if self.source.is_dir() else f"{self.source}: {inner}"


class _TooLargeError(Exception):
    """More than `LIMIT` bytes came out."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Bounded:
    """A stream that may give `LIMIT` bytes and no more, however small it is packed."""

    def __init__(self, stream: _Readable) -> None:
        self.stream = stream
        self.left = LIMIT

    def read(self, size: int) -> bytes:
        data = self.stream.read(min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise _TooLargeError
        return data


def read_members(source: Path, wanted: Collection[str]) -> list[Members]:
    """Every folder of `source` (a tar, plain or gzipped, or a folder) that has a wanted file."""
    try:
        return _from_folder(source, wanted) if source.is_dir() else _from_tar(source, wanted)
    except _TooLargeError:
        raise UserError(f"{source} unpacks to more than {LIMIT >> 20} MiB: refused") from None
    except (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{source} is not a whole .tar or .tar.gz archive: {reason}") from None
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror or error}") from None


def _from_tar(source: Path, wanted: Collection[str]) -> list[Members]:
    folders: dict[str, Members] = {}
    with source.open("rb") as raw, contextlib.ExitStack() as stack:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = _Bounded(stack.enter_context(gzip.GzipFile(fileobj=raw)) if packed else raw)
        with tarfile.open(fileobj=stream, mode="r|") as archive:  # type: ignore[call-overload]
            for member in archive:
                path = PurePosixPath(member.name)
                if not member.isreg() or path.name not in wanted:
                    continue
                if path.is_absolute() or ".." in path.parts:
                    continue
                content = archive.extractfile(member)
                assert content is not None
                folder = str(path.parent)
                members = folders.setdefault(folder, Members(source, folder))
                members.files[path.name] = content.read()
        while stream.read(2**16):
            pass  # to the end, where gzip keeps its checksum
    return list(folders.values())


def _from_folder(source: Path, wanted: Collection[str]) -> list[Members]:
    found = []
    left = LIMIT
    for folder in [source, *sorted(path for path in source.iterdir() if path.is_dir())]:
        paths = [folder / name for name in wanted if (folder / name).is_file()]
        left -= sum(path.stat().st_size for path in paths)
        if left < 0:
            raise _TooLargeError
        if paths:
            inner = folder.relative_to(source).as_posix()
            found.append(Members(source, inner, {path.name: path.read_bytes() for path in paths}))
    return found

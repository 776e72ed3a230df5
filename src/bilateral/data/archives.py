"""The few files of a data set, read from an archive or a folder by name and into memory.

Nothing is ever unpacked to disk: members other than plain files with a wanted name are skipped,
and an archive may not grow past `LIMIT` or `MEMBERS`. Only the headers of a tar are parsed by
`tarfile`: its own reader takes names and attributes of any length into memory.
"""

import contextlib
import gzip
import re
import tarfile
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from bilateral.errors import UserError

LIMIT = 2**29
"""Bytes of an unpacked archive; the largest, CIFAR-10 as pickles, has 186 million."""
MEMBERS = 10_000
"""Members of an archive; those of data sets have some twenty."""
_BLOCK = tarfile.BLOCKSIZE
_LONGEST_NAME = 2**13
_NAMING = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE)
_WITHOUT_CONTENT = (
    tarfile.LNKTYPE,
    tarfile.SYMTYPE,
    tarfile.DIRTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
)


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
    """A stream that gives at most `LIMIT` bytes, however small it is packed."""

    def __init__(self, stream: _Readable) -> None:
        self.stream = stream
        self.left = LIMIT

    def read(self, size: int) -> bytes:
        data = self.stream.read(min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise _TooLargeError
        return data

    def exactly(self, size: int) -> bytes:
        """So many bytes; memory is taken as they come, not as a header declares."""
        parts = []
        while size > 0:
            part = self.read(min(size, 2**20))
            if not part:
                raise EOFError(f"it ends {size:,} bytes before the end of a member")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        while size > 0:
            part = len(self.exactly(min(size, 2**20)))
            size -= part


def read_members(source: Path, wanted: Collection[str]) -> list[Members]:
    """Every folder of `source` (a tar, plain or gzipped, or a folder) that has a wanted file."""
    if not source.is_dir() and not source.is_file():
        raise UserError(f"{source} is neither a file nor a folder")
    try:
        return _from_folder(source, wanted) if source.is_dir() else _from_tar(source, wanted)
    except _TooLargeError:
        raise UserError(f"{source} unpacks to more than {LIMIT >> 20} MiB: refused") from None
    except (EOFError, tarfile.TarError, zlib.error, gzip.BadGzipFile) as error:
        reason = str(error) or type(error).__name__
        raise UserError(f"{source} is not a complete .tar or .tar.gz archive: {reason}") from None
    except OSError as error:
        raise UserError(f"cannot read {source}: {error.strerror or error}") from None


def _from_tar(source: Path, wanted: Collection[str]) -> list[Members]:
    folders: dict[str, Members] = {}
    with source.open("rb") as raw, contextlib.ExitStack() as stack:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = _Bounded(stack.enter_context(gzip.GzipFile(fileobj=raw)) if packed else raw)
        for path, content in _plain_files(stream, wanted):
            folder = str(path.parent)
            members = folders.setdefault(folder, Members(source, folder))
            members.files[path.name] = content
        while stream.read(2**16):
            pass  # to the end, where gzip keeps its checksum
    return list(folders.values())


def _plain_files(
    stream: _Bounded, wanted: Collection[str]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """The plain files of a tar with a wanted name that stays inside its folder."""
    long_name: str | None = None
    for number in range(MEMBERS + 1):
        header = stream.exactly(_BLOCK)
        if not any(header):
            if not number:
                raise tarfile.ReadError("it is empty")
            return
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
        if member.size < 0 or member.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a member of negative size, or a sparse one")
        if member.type in _WITHOUT_CONTENT:
            long_name = None
            continue
        padding = -member.size % _BLOCK
        if member.type in _NAMING and member.size <= _LONGEST_NAME:
            long_name = _name_in(stream.exactly(member.size), member.type) or long_name
            stream.skip(padding)
            continue
        path = PurePosixPath(long_name or member.name)
        if member.type not in _NAMING:
            long_name = None
        if (
            member.isreg()
            and path.name in wanted
            and not path.is_absolute()
            and ".." not in path.parts
        ):
            yield path, stream.exactly(member.size)
            stream.skip(padding)
        else:
            stream.skip(member.size + padding)
    raise tarfile.ReadError(f"more than {MEMBERS:,} members")


def _name_in(content: bytes, kind: bytes) -> str | None:
    """The name of the next member, if this header of GNU or POSIX gives it."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return content.partition(b"\0")[0].decode(errors="surrogateescape")
    found = re.search(rb"(?:^|\n)[0-9]+ path=([^\n]*)\n", content)
    return found[1].decode(errors="surrogateescape") if found else None


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

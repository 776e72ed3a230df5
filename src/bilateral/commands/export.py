"""`bilateral export`: the trained model for use elsewhere, and its model card."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bilateral.arguments import parse
from bilateral.commands.printing import print_json
from bilateral.errors import UserError, unknown
from bilateral.export.formats import FORMATS
from bilateral.runs import RunFolder, no_run
from bilateral.tables import render

if TYPE_CHECKING:
    from bilateral.export.files import Manifest


@dataclass(frozen=True)
class Options:
    """Write a run's model for use without this package, and MODEL_CARD.md beside it.

    Normalisation is part of the model, and batches can have any size. The written model is loaded
    again and its logits compared with the run's own; if they differ, nothing is kept.
    """

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """a run folder"""
    format: str = "safetensors"
    """safetensors: weights and model.py; torch: a torch.export program, model.pt2; onnx: model.onnx
    (needs onnx, onnxruntime, onnxscript)"""
    out: str | None = None
    """where the files go; <RUN>/export/ by default"""
    quiet: bool = False
    """say nothing on standard error"""
    json: bool = False
    """print files, digests and the largest logit difference as JSON"""


def command(words: Sequence[str]) -> None:
    """`bilateral export RUN`."""
    options = parse(Options, words, "bilateral export")
    if options.format not in FORMATS:
        raise unknown("format", options.format, FORMATS)
    folder = run_folder(options.run)
    out = Path(options.out) if options.out else folder.path / "export"
    manifest = _export(options, folder, out)
    files = [file for file in manifest.files if file.format == options.format]
    if options.json:
        print_json(_document(options, out, manifest))
        return
    rows = [[file.name, f"{file.bytes:,}", file.sha256] for file in files]
    print(render((["file", "bytes", "SHA-256"], rows)))
    print(
        f"\n{out}/MODEL_CARD.md describes it. Loaded again, its logits differ by at most "
        f"{files[0].largest_difference:.1e} ({files[0].images} images, {files[0].images_from})."
    )


def run_folder(name: str) -> RunFolder:
    """The run folder of that name."""
    folder = RunFolder(Path(name))
    if not name or not folder.config.is_file():
        raise no_run(folder.path) if name else UserError("export needs RUN: a run folder")
    return folder


def _export(options: Options, folder: RunFolder, out: Path) -> "Manifest":
    from bilateral.export.exporting import export_run

    def note(message: str) -> None:
        if not options.quiet:
            print(f"bilateral: {' '.join(message.split())}", file=sys.stderr, flush=True)

    return export_run(folder, options.format, out, note)


def _document(options: Options, out: Path, manifest: "Manifest") -> dict[str, object]:
    """What `--json` prints: the files of this call."""
    files = [file for file in manifest.files if file.format == options.format]
    return {
        "run": options.run,
        "out": str(out),
        "format": options.format,
        "files": [
            {"name": file.name, "sha256": file.sha256, "bytes": file.bytes} for file in files
        ],
        "card": str(out / "MODEL_CARD.md"),
        "largest_difference": files[0].largest_difference,
        "images": files[0].images,
        "images_from": files[0].images_from,
        "weights_digest": manifest.weights_digest,
    }

"""An export from beginning to end: written, loaded again, compared, put in place, described."""

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bilateral
from bilateral.config import Run
from bilateral.data.batches import as_floats, channels_first
from bilateral.data.datasets import load
from bilateral.data.subsets import balanced_subset
from bilateral.errors import UserError
from bilateral.evaluation.target import code_digest, trained_model
from bilateral.export.evidence import read_evidence
from bilateral.export.files import (
    CARD,
    ExportedFile,
    Manifest,
    check_writable,
    claim,
    write_manifest,
)
from bilateral.export.formats import FORMATS
from bilateral.export.model_card import Subject, model_card
from bilateral.export.programs import (
    Logits,
    load_onnx,
    load_program,
    require_onnx,
    traced,
    write_onnx,
    write_program,
)
from bilateral.export.standalone import standalone_source
from bilateral.models import build_model
from bilateral.models.normalise import Normalise
from bilateral.runs import RunFolder, write_atomic
from bilateral.runtime import limit_threads
from bilateral.storage import digest_of, temporary_folder
from bilateral.weights import read_about, read_weights, weights_digest, write_weights

LIMIT = 1e-4
"""The largest difference of a logit that is accepted."""
IMAGES = 32


def export_run(
    folder: RunFolder, format: str, out: Path, note: Callable[[str], None] = lambda _: None
) -> Manifest:
    """Write a run's model in a format of `FORMATS`, and its card; returns what is now in `out`.

    Nothing is written if the exported model, loaded again, gives other logits.
    """
    check_writable(out)
    if format == "onnx":
        require_onnx()
    run, model = trained_model(folder, torch.device("cpu"))
    subject = _subject(run, model, read_about(folder.weights))
    manifest = claim(out, subject.weights_digest, FORMATS[format].files)
    limit_threads(torch.device("cpu"), math.prod(subject.shape))
    images, images_from = check_images(run, subject.shape, note)
    with temporary_folder("bilateral-export-") as work:
        written = _write(work, format, model, subject)
        difference = largest_difference(model, _load(work, format, subject), images)
        if not difference <= LIMIT:
            raise UserError(
                f"the {format} export gives other logits than the run's model (by up to "
                f"{difference:.3g}, {LIMIT:g} is allowed): nothing was written"
            )
        files = [
            ExportedFile(
                name=path.name,
                format=format,
                sha256=digest_of(path),
                bytes=path.stat().st_size,
                largest_difference=difference,
                images=len(images),
                images_from=images_from,
            )
            for path in written
        ]
        manifest = manifest.with_files(files)
        write_manifest(out, manifest)
        for path in written:
            write_atomic(out / path.name, path.read_bytes())
    if format == "safetensors" and len(written) == 1:
        note(f"the network's code is not in the export: loading it needs {run.model}")
    code = code_digest(run.model)
    evidence = read_evidence(folder, subject.weights_digest, code)
    card = model_card(subject, evidence, manifest.present(out))
    write_atomic(out / CARD, card.encode())
    return manifest


def largest_difference(model: nn.Module, loaded: Logits, images: Tensor) -> float:
    """The largest difference of a loaded model's logits, for one image and for a batch."""
    differences = []
    with torch.no_grad():
        for part in (images[:1], images):
            expected, found = model(part), loaded(part)
            if found.shape != expected.shape:
                return float("inf")
            differences.append(float((found - expected).abs().max()))
    return max(differences, key=lambda value: (value != value, value))  # NaN is the largest


def check_images(
    run: Run, shape: tuple[int, ...], note: Callable[[str], None]
) -> tuple[Tensor, str]:
    """Test images of the run's data set, or random ones where it is not on disk."""
    try:
        split = load(run.data.name, "test", image_size=run.image_size, streamed=True)
        chosen = balanced_subset(split.labels, IMAGES, seed=0)
        images = as_floats(channels_first(split.pixels[chosen]))
        if tuple(images.shape[1:]) == shape:
            return images, f"test images of {run.data.name}"
        reason = f"its images are now of shape {tuple(images.shape[1:])}"
    except (UserError, OSError) as error:
        reason = str(error)
    note(f"checked on random images, not on {run.data.name}: {reason}")
    return torch.rand(IMAGES, *shape, generator=torch.Generator().manual_seed(0)), "random images"


def _subject(run: Run, model: nn.Module, about: dict[str, Any]) -> Subject:
    digest = weights_digest(model)
    layers = [layer for layer in model.modules() if isinstance(layer, Normalise)]
    normalisation = None
    if layers:
        mean, std = layers[0].mean.flatten().tolist(), layers[0].std.flatten().tolist()
        normalisation = {"mean": mean, "std": std}
    more = {
        "input": "float32 images in [0, 1], shape (N, C, H, W)",
        "output": "logits",
        "normalisation": normalisation,
        "recipe": run.recipe,
        "weights_digest": digest,
        "version": bilateral.__version__,
    }
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Subject({**about, **more}, parameters, digest)


def _write(work: Path, format: str, model: nn.Module, subject: Subject) -> list[Path]:
    """The files of a format in a working folder."""
    about, name = subject.about, subject.about["model"]
    paths = [work / file for file in FORMATS[format].files]
    if format == "torch":
        write_program(paths[0], traced(model, subject.shape, name), about)
    elif format == "onnx":
        write_onnx(paths[0], traced(model, subject.shape, name), about)
    else:
        write_weights(paths[0], model, about)
        if ":" in name:  # a user's own code, which may need anything
            return paths[:1]
        source = standalone_source(name, len(about["classes"]), about["channels"])
        paths[1].write_text(source, encoding="utf-8")
    return paths


def _load(work: Path, format: str, subject: Subject) -> Logits:
    """What was written, loaded as its user will."""
    if format == "torch":
        return load_program(work / "model.pt2")
    if format == "onnx":
        return load_onnx(work / "model.onnx")
    about = subject.about
    if (work / "model.py").exists():
        return load_standalone(work / "model.py")
    model = build_model(
        about["model"], len(about["classes"]), about["channels"], tuple(about["image_size"])
    )
    read_weights(work / "model.safetensors", model)
    return model.eval()


def load_standalone(path: Path) -> Logits:
    """The network that an exported `model.py` builds and loads."""
    spec = importlib.util.spec_from_file_location("bilateral_exported_model", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    network: Logits = module.load()
    return network


def _is_own_code(model: str) -> bool:
    return ":" in model and not model.startswith("timm:")

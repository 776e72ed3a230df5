"""The evaluation of a run folder: attack by attack and batch by batch, each kept as it is done.

An attack's file holds a flag for every image by its number, so an interrupted evaluation goes on,
and a larger one starts from what a smaller one found.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import nn

from bilateral.attacks.table import attack_named
from bilateral.config import Run, first_complaint, fraction_text
from bilateral.data.batches import as_floats, as_tensors
from bilateral.data.datasets import Split, load
from bilateral.data.subsets import balanced_subset
from bilateral.errors import UserError
from bilateral.evaluation.robustness import (
    check_inputs,
    noise_keys,
    predictions,
    robust_flags,
    searches_in_bfloat16,
    weights_digest,
)
from bilateral.models import build_model
from bilateral.results import (
    AttackFile,
    AttackSummary,
    Evaluation,
    EvaluationFile,
    summarise,
    wilson_interval,
)
from bilateral.runs import RunFolder, write_atomic, write_json
from bilateral.runtime import Interrupted, StopRequest, place, versions
from bilateral.weights import read_about, read_weights

GALLERY_IMAGES = 24
Shown = Callable[[str, int, int, float], None]
"""Progress: the attack, images done, images in all, robust accuracy so far."""


@dataclass(frozen=True)
class Target:
    """A model to evaluate and where its results go."""

    model: nn.Module
    folder: RunFolder
    data: str
    split: Split

    @property
    def epsilon(self) -> float:
        """The budget that this data set is usually attacked with."""
        return 40 / 255 if self.data == "digits" else 8 / 255


def find_target(
    name: str, data: str | None, image_size: int | None, out: str | None, device: torch.device
) -> Target:
    """A run folder's model, or what file.py:function or package.module:function returns."""
    if Path(name).is_dir():
        folder = RunFolder(Path(name))
        run, model = trained_model(folder, device)
        chosen = data or run.data.name
        split = load(chosen, "test", image_size=image_size or run.image_size, seed=run.seed)
        results = RunFolder(Path(out)) if out else folder
        return Target(model, results, chosen, split)
    if ":" not in name:
        raise UserError(f"no run folder at {name} (file.py:function names a model of your own)")
    if data is None:
        raise UserError(f"{name} needs --data: a data set's name or folder:PATH")
    split = load(data, "test", image_size=image_size)
    height, width, channels = split.pixels.shape[1:]
    model = build_model(name, len(split.classes), channels, (height, width))
    short = "".join(letter if letter.isalnum() else "-" for letter in name).strip("-")
    results = RunFolder(Path(out) if out else Path("evaluations") / short)
    return Target(place(model, device).eval(), results, data, split)


def trained_model(folder: RunFolder, device: torch.device) -> tuple[Run, nn.Module]:
    """The model that a finished run left."""
    run = folder.read_run()
    if not folder.weights.exists():
        raise UserError(f"{folder.path} has no model yet: train it to the end first")
    about = read_about(folder.weights)
    model = build_model(
        run.model, len(about["classes"]), about["channels"], tuple(about["image_size"])
    )
    read_weights(folder.weights, model)
    return run, place(model, device).eval()


def evaluate_target(
    target: Target,
    names: list[str],
    epsilon: float,
    images: int | None,
    device: torch.device,
    batch_size: int | None = None,
    shown: Shown = lambda *_: None,
) -> Evaluation:
    """Run what is missing of the named attacks and return this evaluation's entry."""
    labels = target.split.labels
    if images is not None and not 0 < images <= len(labels):
        raise UserError(f"--images {images}: {target.data} has {len(labels)} test images")
    numbers = np.arange(len(labels)) if images is None else balanced_subset(labels, images, seed=0)
    pixels, truth = as_tensors(target.split, device)
    check_inputs(target.model, as_floats(pixels[:1]), truth)
    size = batch_size or (1000 if device.type == "cuda" else 250)
    digest = weights_digest(target.model)
    common: dict[str, Any] = {
        "epsilon": epsilon,
        "epsilon_text": fraction_text(epsilon),
        "data": target.data,
        "weights_digest": digest,
        "versions": versions(device),
    }
    clean: list[bool] = []
    for start in range(0, len(numbers), size):
        places = torch.from_numpy(numbers[start : start + size]).to(device)
        right = predictions(target.model, as_floats(pixels[places])) == truth[places]
        clean += right.tolist()
    stop = StopRequest()
    summaries, gallery = {}, {}
    with stop.listening():
        for name in names:
            settings = attack_named(name, epsilon)
            path = target.folder.attack(name, common["epsilon_text"])
            file = _stored(path, digest, settings.model_dump(), target.data) or AttackFile(
                schema=1, attack=name, settings=settings.model_dump(), **common
            )
            done = set(file.images)
            missing = np.array([number for number in numbers if number not in done], dtype=np.int64)
            for start in range(0, len(missing), size):
                places = torch.from_numpy(missing[start : start + size]).to(device)
                flags = robust_flags(
                    target.model,
                    as_floats(pixels[places]),
                    truth[places],
                    settings,
                    noise_keys(places),
                    searches_in_bfloat16(target.model, device),
                )
                file.add(
                    places.tolist(),
                    flags.robust.tolist(),
                    flags.seconds,
                    flags.forwards,
                    flags.backwards,
                )
                write_json(path, file.model_dump(by_alias=True))
                if start == 0 and not done:
                    gallery[name] = (places[:GALLERY_IMAGES], flags.images[:GALLERY_IMAGES])
                shown(name, start + len(places), len(missing), file.accuracy or 0.0)
                if stop.number is not None:
                    raise Interrupted(stop.number)
            summaries[name] = _summary(file, numbers)
    if gallery:
        _write_gallery(target, gallery, device)
    entry = summarise(
        classes=target.split.classes,
        labels=labels[numbers].tolist(),
        clean=clean,
        attacks=summaries,
        **common,
    )
    stored = _evaluations(target.folder)
    entry = stored.put(entry)
    write_json(target.folder.evaluation, stored.model_dump(by_alias=True))
    return entry


def _stored(path: Path, digest: str, settings: dict[str, Any], data: str) -> AttackFile | None:
    """What an earlier evaluation left, if it is of the same weights, settings and data."""
    if not path.exists():
        return None
    try:
        file = AttackFile.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {first_complaint(error)}; remove it") from None
    same = file.weights_digest == digest and file.settings == settings and file.data == data
    return file if same and len(file.images) == len(file.robust) else None


def _summary(file: AttackFile, numbers: np.ndarray) -> AttackSummary:
    """The attack's line for these images; its cost is their share of the file's."""
    flag = dict(zip(file.images, file.robust, strict=True))
    robust = [flag[int(number)] for number in numbers]
    share = len(robust) / len(file.images)
    return AttackSummary(
        accuracy=sum(robust) / len(robust),
        interval=wilson_interval(sum(robust), len(robust)),
        images=len(robust),
        seconds=file.seconds * share,
        forwards=round(file.forwards * share),
        backwards=round(file.backwards * share),
        robust=robust,
    )


def _evaluations(folder: RunFolder) -> EvaluationFile:
    if not folder.evaluation.exists():
        return EvaluationFile(schema=1)
    try:
        return EvaluationFile.model_validate_json(folder.evaluation.read_bytes())
    except ValidationError as error:
        complaint = first_complaint(error)
        raise UserError(f"{folder.evaluation} is damaged: {complaint}; remove it") from None


def _write_gallery(target: Target, gallery: dict[str, Any], device: torch.device) -> None:
    """A few images before and after each attack, with what the model makes of them."""
    arrays: dict[str, np.ndarray] = {}
    pixels, labels = as_tensors(target.split, device)
    for name, (places, adversarial) in gallery.items():
        for kind, images in (("clean", as_floats(pixels[places])), ("adversarial", adversarial)):
            with torch.no_grad():
                confidence = target.model(images).float().softmax(1)
            arrays[f"{name}/{kind}"] = images.cpu().numpy()
            arrays[f"{name}/{kind}_confidence"] = confidence.cpu().numpy()
        arrays[f"{name}/labels"] = labels[places].cpu().numpy()
        arrays[f"{name}/numbers"] = places.cpu().numpy()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(target.folder.gallery, buffer.getvalue())

"""What a run needs before its first step, and the checks that come before anything is written."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bilateral.config import Run
from bilateral.data.batches import Batches, as_floats
from bilateral.data.datasets import Split
from bilateral.data.device_images import DeviceImages
from bilateral.data.photograph_batches import Decoder, PhotographBatches
from bilateral.data.photographs import Photographs
from bilateral.data.subsets import balanced_subset, divided, per_class_subset
from bilateral.errors import UserError
from bilateral.labels import default_ratio
from bilateral.machine import Machine
from bilateral.models.probe import last_linear_name, output_of
from bilateral.processes import Processes
from bilateral.randomness import image_keys, purpose_key
from bilateral.runs import check_trained, file_digest, weights_file
from bilateral.runtime import trains_in_bfloat16
from bilateral.weights import about_of, declared_shapes, read_weights

AnyBatches = Batches | PhotographBatches
FEW_STEPS = 500
"""With 240 drawings a new network only guessed for 140 updates, but not after 400 (docs/log.md)."""
PROBED = 8
"""Images whose outputs must all look like probabilities: those of one image may by chance."""
_SUBSET, _CHECK, _HELD_OUT = 5, 6, 9


def check_labels(split: Split, name: str) -> None:
    """Refuse an empty set and labels outside the classes."""
    if not len(split.labels):
        raise UserError(f"the training set of {name} is empty")
    if len(split.classes) < 2:
        raise UserError(f"{name} has one class; a classifier needs two or more")
    if split.labels.min() < 0 or split.labels.max() >= len(split.classes):
        raise UserError(f"a label lies outside the {len(split.classes)} classes of {name}")


def training_part(split: Split, run: Run) -> tuple[Split, Split | None]:
    """What a run trains on, and what it holds out of that, if anything."""
    if run.data.images_per_class is not None:
        split = per_class_subset(split, run.data.images_per_class, purpose_key(run.seed, _SUBSET))
    if not run.data.held_out:
        return split, None
    return divided(split, run.data.held_out, purpose_key(run.seed, _HELD_OUT))


def batches_of(
    split: Split, run: Run, machine: Machine, device: torch.device, processes: Processes
) -> AnyBatches:
    """A process's share of every batch, from memory or decoded as it is needed."""
    rank, world = processes.rank, processes.world
    size, seed = run.optimiser.batch_size, run.seed
    batches: AnyBatches
    if split.streamed:
        batches = PhotographBatches(
            split, run.data, size, seed, device, machine.workers, rank, world
        )
    else:
        batches = Batches(split, size, seed, device, rank, world)
    if batches.batch_size % (world * machine.accumulate):
        raise UserError(
            f"a batch of {batches.batch_size} images does not divide into "
            f"{world * machine.accumulate} equal parts ({world} processes, "
            f"machine.accumulate {machine.accumulate})"
        )
    return batches


def first_batch_fits(model: nn.Module, batches: AnyBatches, run: Run, classes: int) -> None:
    """Refuse a model that does not take the images, or whose outputs are not a row of logits."""
    logits = output_of(model, batches.floats(torch.zeros(1, dtype=torch.int64)), run.model)
    if tuple(logits.shape) != (1, classes):
        raise UserError(
            f"{run.model} gives outputs of shape {tuple(logits.shape)} for one image; "
            f"{run.data.name} needs (1, {classes})"
        )
    if ":" in run.model:  # a network of this package ends in logits
        _refuse_probabilities(model, batches, run)


def _refuse_probabilities(model: nn.Module, batches: AnyBatches, run: Run) -> None:
    """Refuse a model that ends in a softmax: the loss would apply another one."""
    several = torch.arange(min(PROBED, len(batches.labels)))
    outputs = output_of(model, batches.floats(several), run.model).float()
    if bool((outputs >= 0).all()) and bool(((outputs.sum(1) - 1).abs() < 1e-3).all()):
        raise UserError(
            f"{run.model} returns probabilities (every row sums to 1), not logits: the loss "
            "applies the softmax itself; return the softmax's input"
        )


def about_run(run: Run, split: Split) -> dict[str, Any]:
    """The metadata of checkpoints and weights: how to build the network, and how it was trained."""
    height, width, channels = split.pixels.shape[1:]
    return {
        "classes": list(split.classes),
        "channels": channels,
        "image_size": [height, width],
        "model": run.model,
        "run": run.model_dump(mode="json", exclude={"checkpoint_seconds"}),
        "pictures": split.files,
    }


def same_run(path: Path, about: Mapping[str, Any], run: Run, split: Split) -> None:
    """Refuse a file of another run, or of other training pictures than the folder has now.

    Where pictures were added, removed or renamed, other pictures are held out and used as test.
    """
    check_trained(path, about, run)
    if about.get("pictures", split.files) != split.files:
        raise UserError(
            f"the training pictures in {run.data.name} have changed since {path} was written "
            "(added, removed, moved or renamed): train under another --name"
        )


def begin_with(
    weights: str, run: Run, model: nn.Module, classes: Sequence[str], processes: Processes
) -> tuple[Run, str]:
    """Load saved weights into a run's model; if they are of other classes, without the last layer.

    Returns the run with their digest, and a line on what was loaded. Where a file names no classes,
    only their number is compared.
    """
    path = weights_file(weights)
    digest = _same_weights(path, processes)
    if run.weights_digest not in (None, digest):
        raise UserError(f"{path} is not the file that this run began with: its SHA-256 differs")
    about, layer = about_of(path), last_linear_name(model, len(classes))
    shape = declared_shapes(path).get(f"{layer}.weight") or (len(classes),)
    theirs = about["classes"] if about else None
    others = shape[0] != len(classes) if theirs is None else theirs != list(classes)
    if others and theirs and layer is None:
        raise UserError(
            f"{path} is of other classes, and {run.model} has no final linear layer to replace"
        )
    new = layer if others else None
    read_weights(path, model, without=new)
    said = f"starting from {path}"
    if new:
        order = theirs is not None and set(theirs) == set(classes)
        whose = "these classes in another order" if order else f"{shape[0]} other classes"
        said += f", of {whose}: the last layer, {new}, is new"
    elif theirs is None:
        said += ", which names no classes: its last layer is kept"
    else:
        said += ", of the same classes: every layer is taken"
    return run.with_fields(weights_digest=digest), said


def _same_weights(path: Path, processes: Processes) -> str:
    """The digest of a file; where one process does not find it, all of them refuse."""
    fault = digest = ""
    try:
        digest = file_digest(path)
    except UserError as error:
        fault = str(error)
    if len(set(processes.gather(digest))) > 1:
        raise UserError(f"the processes do not find the same weights at {path}")
    if fault:
        raise UserError(fault)
    return digest


def weights_can_turn(model: nn.Module, run: Run) -> None:
    """Refuse `optimiser.turn` without convolutions, or where one has no length to keep."""
    if not run.optimiser.turn:
        return
    lengths = [one.weight.norm() for one in model.modules() if isinstance(one, nn.Conv2d)]
    if not (lengths and all(lengths)):
        fault = "has one whose weights are all zero" if lengths else "has none"
        raise UserError(f"optimiser.turn keeps the length of convolutions; {run.model} {fault}")


def precision_of(run: Run, split: Split, device: torch.device, processes: Processes) -> str:
    """The precision of all processes: bfloat16 only if it pays on every one of their machines."""
    pays = trains_in_bfloat16(run.precision, device, split.image_values)
    return "float32" if processes.largest(int(not pays))[0] else "bfloat16"


def same_start(processes: Processes, step: int, checkpoint: Path) -> None:
    """Refuse to resume where processes would start at different steps."""
    if len(set(processes.gather(step))) > 1:
        raise UserError(
            f"the processes do not find the same checkpoint at {checkpoint}: "
            "--out must be a folder that all machines share"
        )


def numbers_read(labels: np.ndarray, run: Run) -> np.ndarray:
    """The numbers of the images that the guard reads, among those that it has."""
    return balanced_subset(labels, run.images_read, purpose_key(run.seed, _CHECK))


def guard_images(
    batches: AnyBatches, split: Split, held_out: Split | None, run: Run
) -> tuple[Tensor, Tensor, Tensor]:
    """The guard's images with labels and keys: held out if there are any, else training images."""
    labels = (held_out or split).labels
    device = batches.labels.device
    numbers = torch.from_numpy(numbers_read(labels, run)).to(device)
    keys = image_keys(purpose_key(run.seed, _CHECK), numbers)
    if held_out is None:
        return batches.floats(numbers), batches.labels[numbers], keys
    truth = torch.from_numpy(labels).to(device)[numbers]
    if isinstance(held_out.pixels, Photographs):  # an unreadable one is replaced, as in training
        portion = Decoder(held_out.pixels, labels, None)[numbers.tolist()]
        return as_floats(portion.pixels.to(device)), truth, keys
    return DeviceImages(held_out, device).floats(numbers), truth, keys


def remarks(run: Run, classes: int, images: int) -> list[str]:
    """Notes on settings that have no effect, or another one than they seem to."""
    rule, size = run.labels, run.optimiser.batch_size
    adversarial = rule.rule in ("adversarial", "supplementary")
    said = []
    if adversarial and rule.ratio is not None and rule.ratio < default_ratio(classes):
        said.append(
            f"labels.ratio {rule.ratio:g} is below {classes - 1} (classes - 1): the true class "
            "can get less than half of the label's mass"
        )
    if adversarial and rule.top_k is not None and rule.top_k >= classes:
        said.append(f"labels.top_k {rule.top_k}: all {classes - 1} wrong classes get a share")
    if size > images:
        said.append(f"optimiser.batch_size {size}: a step takes all {images:,} training images")
    steps = run.epochs * (images // min(size, images))
    new = run.weights is None and run.method != "undefended"
    if run.data.name.startswith("folder:") and new and steps < FEW_STEPS:
        said.append(
            f"{steps} update{'s' * (steps != 1)} in all: adversarial training of a new network may "
            "not learn anything in so few"
        )
    given = run.model_dump(exclude_defaults=True)
    if "trades_weight" in given and (run.method != "trades" or run.regulariser.kind != "none"):
        said.append("trades_weight has no effect: this loss has no divergence term")
    schedule = run.optimiser.schedule
    unheeded = {"last_share"} if schedule == "steps" else {"milestones", "drop"}
    said += [
        f"optimiser.{name} has no effect: the schedule is {schedule}"
        for name in sorted(unheeded & given.get("optimiser", {}).keys())
    ]
    if run.check_epochs and not run.data.held_out:
        said.append(
            "PGD-10 is measured on training images, so it is optimistic; --data.held-out N "
            "measures it on N held-out images"
        )
    if run.data.held_out and not run.check_epochs:
        said.append("data.held_out: nothing is measured on these images, as check_epochs is 0")
    if run.data.held_out and run.weights is not None:
        said.append(
            "data.held_out: the weights that training starts from may have been trained on these "
            "images; if so, what is measured on them is meaningless"
        )
    if run.keep == "best" and run.check_epochs >= run.epochs:
        said.append("keep = best has one reading to choose from: check_epochs is not below epochs")
    if run.regulariser.kind == "none":
        unheeded = given.get("regulariser", {}).keys()
        said += [
            f"regulariser.{name} has no effect: regulariser.kind is none"
            for name in sorted(unheeded)
        ]
    elif run.regulariser.of == "logits" and run.method == "adversarial":
        said.append(
            "regulariser.of = logits with method = adversarial moves only the adversarial "
            "prediction, and the loss may diverge even at low learning rates; with method = trades "
            "both predictions are trained"
        )
    if "weight_perturbation_along" in given and not run.weight_perturbation:
        said.append("weight_perturbation_along has no effect: weight_perturbation is 0")
    return said

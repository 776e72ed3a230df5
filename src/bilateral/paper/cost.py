"""What tables cost on this device, before hours are spent: forward passes over a measured rate."""

import time
from collections.abc import Iterable, Sequence

import torch

from bilateral.attacks.settings import APGD, FAB, AttackSettings, CarliniWagner, DeepFool, Square
from bilateral.attacks.table import attack_members
from bilateral.config import GradientAttack, Run
from bilateral.data.datasets import DATASETS
from bilateral.models import build_model
from bilateral.paper.plan import Choices, all_runs, budget, columns_of, runs_of
from bilateral.paper.tables import Attack, PaperTable, Transfer
from bilateral.runtime import autocast, has_bfloat16, place, synchronise
from bilateral.training.step import forwards_per_image

IMAGENET = (1_281_167, 50_000, (224, 224, 3), 1000)
"""Training images, validation images, shape and classes, where a recipe names a folder."""


def costs(
    tables: Sequence[PaperTable], choices: Choices, device: torch.device, trained: set[str]
) -> Iterable[str]:
    """Lines that say how many forward passes are to be done and how long they take at most."""
    runs = all_runs(tables, choices)
    rates: dict[tuple[str, str], float] = {}

    def seconds(run: Run, forwards: float) -> float:
        key = (run.model, run.data.name)
        if key not in rates:
            rates[key] = forward_rate(run, device)
        return forwards / rates[key]

    training = {
        name: seconds(run, run.epochs * training_images(run) * forwards_per_image(run))
        for name, run in runs.items()
        if name not in trained
    }
    yield f"training {len(training)} models: about {_hours(sum(training.values()))}"
    for table in tables:
        spent = sum(
            seconds(run, evaluation_forwards(table, run, choices))
            for row in table.rows
            for run in runs_of(table, row, choices)
        )
        yield f"evaluating {table.name}: at most {_hours(spent)}"
    for (model, data), rate in rates.items():
        yield f"at {rate:,.0f} forward passes of {model} a second on {data}'s images"


def training_images(run: Run) -> int:
    """Images of an epoch."""
    entry = DATASETS.get(run.data.name)
    count = IMAGENET[0] if entry is None else entry.counts["train"]
    per_class = run.data.images_per_class
    classes = IMAGENET[3] if entry is None else len(entry.classes)
    return count if per_class is None else per_class * classes


def evaluation_forwards(table: PaperTable, run: Run, choices: Choices) -> int:
    """Forward passes of a model's row, if no image breaks early."""
    entry = DATASETS.get(run.data.name)
    there = IMAGENET[1] if entry is None else entry.counts["test"]
    total = 0
    for column in columns_of(table, choices):
        images = there if column.images is None else min(column.images, there)
        forwards = 1
        if isinstance(column.measure, Attack | Transfer):
            measure = column.measure
            name = measure.name if isinstance(measure, Attack) else measure.attack
            members = attack_members(name, budget(table, choices)).values()
            forwards = sum(attack_forwards(settings) for settings in members)
        total += images * forwards
    return total


def attack_forwards(settings: AttackSettings) -> int:
    """Forward passes for an image that withstands; a backward pass to it counts as one."""
    match settings:
        case GradientAttack():
            return settings.restarts * (2 * settings.steps + 1)
        case APGD():
            targets = settings.targets if settings.loss == "dlr-targeted" else 1
            return 2 * settings.steps * settings.restarts * targets
        case FAB():
            return 3 * settings.steps * settings.restarts * settings.targets
        case Square():
            return settings.queries * settings.restarts
        case CarliniWagner():
            return 2 * settings.steps * settings.binary_search_steps
        case DeepFool():
            return settings.steps * (1 + settings.candidates)
        case _:
            return 1


def forward_rate(run: Run, device: torch.device, seconds: float = 0.5) -> float:
    """Forward passes of one image a second, in the precision of a search."""
    entry = DATASETS.get(run.data.name)
    shape = entry.image_shape if entry else IMAGENET[2]
    classes = len(entry.classes) if entry else IMAGENET[3]
    height, width, channels = shape
    model = place(build_model(run.model, classes, channels, (height, width)), device).eval()
    count = 256 if device.type == "cuda" else 16
    images = torch.rand(count, channels, height, width, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    done = 0
    with torch.no_grad(), autocast(device, has_bfloat16(device)):
        model(images)
        synchronise(device)
        started = time.monotonic()
        while time.monotonic() - started < seconds:
            model(images)
            synchronise(device)
            done += count
    return done / (time.monotonic() - started)


def _hours(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"

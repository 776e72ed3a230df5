"""What tables will cost on this device: their forward passes over a measured rate."""

import time
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

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

_HOUR, _DAY, _YEAR = 3600.0, 86_400.0, 31_557_600.0
_UNITS = (
    ("s", 1.0, 90.0),
    ("min", 60.0, 1.5 * _HOUR),
    ("h", _HOUR, 2 * _DAY),
    ("days", _DAY, _YEAR),
)
IMAGENET = (1_281_167, 50_000, (224, 224, 3), 1000)
"""Training images, validation images, shape and classes, where a recipe names a folder."""


@dataclass(frozen=True)
class Costs:
    """What is to be trained and evaluated, and how long it takes on a device."""

    models: list[str]
    trained: list[str]
    training_seconds: float
    evaluation_seconds: dict[str, float]
    """At most, by table: images that break early cost less."""
    forwards_per_second: dict[str, float]
    """By `<model> on <data>`, as measured."""

    def lines(self) -> Iterator[str]:
        """The costs in words."""
        left = len(self.models) - len(self.trained)
        yield said_of_models(len(self.models), len(self.evaluation_seconds), len(self.trained))
        yield f"training {counted(left, 'model')}: about {duration(self.training_seconds)}"
        for table, seconds in self.evaluation_seconds.items():
            yield f"evaluating {table}: at most {duration(seconds)}"
        for what, rate in self.forwards_per_second.items():
            model, _, data = what.partition(" on ")
            yield f"at {rate:,.0f} forward passes of {model} a second on images like {data}'s"


def costs(
    tables: Sequence[PaperTable], choices: Choices, device: torch.device, trained: Container[str]
) -> Costs:
    """How long the forward passes of training, and at most of evaluation, take; no data read."""
    runs = all_runs(tables, choices)
    rates: dict[tuple[str, str], float] = {}

    def seconds(run: Run, forwards: float) -> float:
        key = (run.model, run.data.name)
        if key not in rates:
            rates[key] = forward_rate(run, device)
        return forwards / rates[key]

    training = sum(
        seconds(run, run.epochs * training_images(run) * forwards_per_image(run))
        for name, run in runs.items()
        if name not in trained
    )
    evaluating = {
        table.name: sum(
            seconds(run, evaluation_forwards(table, run, choices))
            for row in table.rows
            for run in runs_of(table, row, choices)
        )
        for table in tables
    }
    return Costs(
        list(runs),
        [name for name in runs if name in trained],
        training,
        evaluating,
        {f"{model} on {data}": rate for (model, data), rate in rates.items()},
    )


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


def said_of_models(models: int, tables: int, trained: int) -> str:
    """How many models tables need, and how many of them are there."""
    needed = f"{counted(models, 'model')} for {counted(tables, 'table')}"
    return f"{needed}, {trained} of them trained already"


def duration(seconds: float) -> str:
    """A time in the unit that makes it readable."""
    for unit, length, most in _UNITS:
        if seconds < most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / _YEAR:.1f} years"


def counted(number: int, noun: str) -> str:
    """`1 model`, `2 models`."""
    return f"{number} {noun}{'s' * (number != 1)}"

"""Runs a table of the paper: trains what is missing, measures what is missing, writes it down.

Every stage resumes where it was interrupted, and a row is written as soon as it is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import mean
from typing import Any

import torch

import bilateral
from bilateral.budgets import fraction_text
from bilateral.config import Run, config_digest
from bilateral.data.datasets import load_training
from bilateral.data.device_images import DeviceImages
from bilateral.data.subsets import balanced_subset, chosen_images
from bilateral.errors import UserError
from bilateral.evaluation.attack_files import evaluations
from bilateral.evaluation.campaign import evaluate_target
from bilateral.evaluation.checks_gradients import gradient_magnitude
from bilateral.evaluation.diagnosis import Effort, GradientMagnitude
from bilateral.evaluation.robustness import noise_keys
from bilateral.evaluation.subject import Subject
from bilateral.evaluation.target import Target, find_target
from bilateral.evaluation.transfer import transfer_between
from bilateral.labels import soft_labels
from bilateral.machine import Machine
from bilateral.paper.beyond import table_named
from bilateral.paper.figures import LabelExample, curve_figure, label_chart
from bilateral.paper.pages import read_rows
from bilateral.paper.plan import (
    Choices,
    budget,
    columns_of,
    is_gradient_table,
    key_of,
    run_name,
    runs_of,
    sources_of,
)
from bilateral.paper.recipes import recipe_named
from bilateral.paper.tables import Attack, Column, Gradient, PaperTable, Row, Transfer
from bilateral.runs import RunFolder
from bilateral.runtime import commit, limit_threads, versions
from bilateral.storage import write_json, writing_to
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train
from bilateral.trials import both_versions

WAIT_SECONDS = 60
"""How long to wait for another process that writes its row of a table."""
Say = Callable[[str], None]
Figures = dict[str, dict[str, Any]]
"""By `key_of` a column: `value`, and the `images` it was measured on."""


class Reproduction:
    """The work on tables that share their trained models, on one device."""

    def __init__(
        self,
        out: Path,
        results: Path,
        choices: Choices,
        device: torch.device,
        command: str,
        say: Say = lambda _: None,
        machine: Machine | None = None,
    ) -> None:
        self.out, self.results, self.choices, self.device = out, results, choices, device
        self.command, self.say, self.machine = command, say, machine or Machine()
        self._magnitudes: dict[tuple[Path, int | None], list[GradientMagnitude]] = {}

    def table(self, table: PaperTable) -> list[dict[str, Any]]:
        """Measure the rows of a table one after another; all rows of its file, old ones too."""
        for row in table.rows:
            if not row.quoted:
                self.say(f"{table.name}: {row.title}")
                self.keep(table, self._row(table, row))
        return self.rows(table)

    def rows(self, table: PaperTable) -> list[dict[str, Any]]:
        """What is measured of a table so far."""
        return read_rows(self.results / f"{table.name}.json")

    def keep(self, table: PaperTable, measured: dict[str, Any]) -> None:
        """Write a row in place of an earlier measurement; columns that it lacks stay.

        They stay only if they are of the same weights.
        """
        with self.writing():
            rows = self.rows(table)
            self.refuse_others(table)
            for old in rows:
                same = old.get("weights") == measured["weights"]
                if same and _identity(old) == _identity(measured):
                    measured = together(old, measured)
            others = [old for old in rows if _identity(old) != _identity(measured)]
            write_json(self.results / f"{table.name}.json", [*others, measured])

    def refuse_others(self, table: PaperTable) -> None:
        """Quick rows and others never share a file: digits would stand beside the paper's data."""
        if {_is_quick(row) for row in self.rows(table)} - {self.choices.quick}:
            kind = "full runs" if self.choices.quick else "a --quick run"
            path = self.results / f"{table.name}.json"
            raise UserError(f"{path} holds rows of {kind}: choose another --results")

    def writing(self) -> AbstractContextManager[None]:
        """The lock of the results folder; another table's writer is waited for."""
        return writing_to(self.results, WAIT_SECONDS)

    def drawing(self, table: PaperTable, rows: Sequence[Mapping[str, Any]]) -> bytes | None:
        """The SVG that belongs to a table, if one does: the figure, or labels by both formulas.

        A figure shows all rows and columns that are measured, even if fewer were asked for.
        """
        if table.is_figure:
            return curve_figure(table_named(table.name), rows, self.choices)
        if table.name != "label-formulas":
            return None
        run = runs_of(table, table.rows[0], self.choices)[0]
        target = find_target(str(self.trained(run).path), None, None, None, self.device)
        return label_chart(label_examples(target, run), target.split.classes)

    def trained(self, run: Run) -> RunFolder:
        """The folder of a run, trained to its end; if another run is there, it is refused."""
        folder = self._folder(run)
        if folder.config.exists():
            folder.prepare(run, {})
        if not folder.weights.exists():
            split = load_training(run)
            limit_threads(self.device, split.image_values)
            train(run, folder, split, self.device, TrainingProgress(quiet=True), self.machine)
        return folder

    def _row(self, table: PaperTable, row: Row) -> dict[str, Any]:
        runs = runs_of(table, row, self.choices)
        columns = columns_of(table, self.choices)
        measured = [self._measure(table, row, run, columns) for run in runs]
        by_seed, there = [figures for figures, _ in measured], measured[0][1]
        figures = {key: _mean([one[key] for one in by_seed]) for key in by_seed[0]}
        clean = figures.pop("clean", {})
        run = runs[0]
        folders = [self._folder(one) for one in runs]
        seconds = [folder.last_record()["seconds"] for folder in folders]
        trained_on = [folder.versions.get("device", "") for folder in folders]
        attacks = {column.measure.name for column in columns if isinstance(column.measure, Attack)}
        return {
            "title": row.title,
            "recipe": row.recipe,
            "quick": self.choices.quick,
            "model": run.model,
            "data": run.data.name,
            "seeds": [one.seed for one in runs],
            "epochs": run.epochs,
            "epsilon_text": fraction_text(budget(table, self.choices)),
            "clean_accuracy": clean.get("value"),
            "clean_by_seed": clean.get("by_seed", []),
            "clean_images": clean.get("images"),
            "test_images": there,
            "attacks": {key: _named(cell) for key, cell in figures.items() if key in attacks},
            "other": {key: cell for key, cell in figures.items() if key not in attacks},
            "paper": {} if self.choices.quick else printed(table, row),
            "train_seconds": mean(seconds),
            "train_seconds_by_seed": seconds if len(seconds) > 1 else [],
            "train_device": " and ".join(dict.fromkeys(filter(None, trained_on))),
            "weights": [evaluations(folder).entries[-1].weights_digest for folder in folders],
            "config_digests": [config_digest(one) for one in runs],
            "version": bilateral.__version__,
            "device": versions(self.device)["device"],
            "commit": commit(),
            "command": self.command,
        }

    def _folder(self, run: Run) -> RunFolder:
        return RunFolder(self.out / run_name(run, self.choices) / f"seed{run.seed}")

    def _measure(
        self, table: PaperTable, row: Row, run: Run, columns: Sequence[Column]
    ) -> tuple[Figures, int]:
        """All columns on one model, and how many test images there are."""
        folder = self.trained(run)
        target = find_target(str(folder.path), None, None, None, self.device)
        limit_threads(self.device, target.split.image_values)
        epsilon = budget(table, self.choices)
        figures: Figures = {}
        for images in dict.fromkeys(column.images for column in columns):
            group = [column for column in columns if column.images == images]
            count = self._count(target, images)
            names = [c.measure.name for c in group if isinstance(c.measure, Attack)]
            # A thousand images take less time than compiling the search.
            slow = self.device.type == "cuda" and count is None and "autoattack" in names
            entry = evaluate_target(target, names, epsilon, count, self.device, compile=slow)
            for column in group:
                measure = column.measure
                if isinstance(measure, Attack):
                    summary = entry.attacks[measure.name]
                    cell = {"value": summary.accuracy, "images": summary.images}
                elif isinstance(measure, Transfer):
                    cell = self._transfer(row, column, run, target, epsilon, count)
                elif isinstance(measure, Gradient):
                    cell = self._gradients(target, epsilon, count, measure)
                else:
                    cell = {"value": entry.clean_accuracy, "images": entry.images}
                figures[key_of(column)] = cell
        return figures, len(target.split.labels)

    def _count(self, target: Target, images: int | None) -> int | None:
        """No more images than there are."""
        there = len(target.split.labels)
        return None if images is None or images >= there else images

    def _transfer(
        self,
        row: Row,
        column: Column,
        run: Run,
        target: Target,
        epsilon: float,
        images: int | None,
    ) -> dict[str, Any]:
        source_run = sources_of(row, column, run.seed, self.choices)
        assert source_run is not None and isinstance(column.measure, Transfer)
        folder = self.trained(source_run)
        source = find_target(str(folder.path), None, None, None, self.device)
        attack = column.measure.attack
        with writing_to(target.folder.path):
            found = transfer_between(
                {"source": source},
                {"target": target},
                [attack],
                epsilon,
                images,
                self.device,
                folder=target.folder.path / "transfer",
                force=True,
            )
        return {"value": found.attacks[attack]["source"]["target"], "images": found.images}

    def _gradients(
        self, target: Target, epsilon: float, images: int | None, measure: Gradient
    ) -> dict[str, Any]:
        key = (target.folder.path, images)
        if key not in self._magnitudes:
            self._magnitudes[key] = magnitudes(target, epsilon, images, self.device)
        (found,) = (
            one
            for one in self._magnitudes[key]
            if one.norm == "squared-l2" and one.scale == measure.scale
        )
        spread = getattr(found, measure.images)
        value = getattr(spread, measure.value)
        return {"value": value, "images": spread.images, "of": found.all.images}


def label_examples(target: Target, run: Run, count: int = 6) -> list[LabelExample]:
    """Test images with the labels that a training step would fit: as given, and by each formula."""
    numbers = balanced_subset(target.split.labels, count, seed=0)
    labels = torch.from_numpy(target.split.labels[numbers])
    device = next(iter(target.model.parameters())).device
    images = DeviceImages(target.split, device).floats(torch.from_numpy(numbers).to(device))
    with torch.no_grad():
        logits = target.model(images).float().cpu()
    rules = {
        "as given": run.labels.with_fields(rule="one-hot"),
        "main formula": run.labels.with_fields(rule="adversarial"),
        "appendix's formula": run.labels.with_fields(rule="supplementary"),
    }
    shares = {name: soft_labels(logits, labels, rule).tolist() for name, rule in rules.items()}
    return [
        LabelExample(
            pixels=target.split.pixels[int(number)],
            label=int(labels[place]),
            labels={name: rows[place] for name, rows in shares.items()},
        )
        for place, number in enumerate(numbers)
    ]


def magnitudes(
    target: Target, epsilon: float, images: int | None, device: torch.device
) -> list[GradientMagnitude]:
    """The gradients of a target's test images in every norm and scale."""
    numbers = torch.from_numpy(chosen_images(target.split, images, target.data)).to(device)
    known = DeviceImages(target.split, device)
    subject = Subject(
        model=target.model,
        images=known.floats(numbers),
        labels=known.labels[numbers],
        epsilon=epsilon,
        keys=noise_keys(numbers),
        batch_size=250,
        effort=Effort(),
    )
    return gradient_magnitude(subject)[0]


def printed(table: PaperTable, row: Row) -> dict[str, Any]:
    """What the paper prints of a row, filed like our figures; accuracies as fractions."""
    paper = recipe_named(str(row.recipe))
    unit = 1 if is_gradient_table(table) else 100
    figures = {
        key_of(column): row.printed[column.title] / unit
        for column in table.columns
        if column.title in row.printed
    }
    return {"network": paper.model, "epochs": paper.epochs, **figures} if figures else {}


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """What makes a row another measurement of the same thing."""
    return tuple(row.get(key) for key in ("title", "recipe", "model", "epochs", "data"))


def _is_quick(row: Mapping[str, Any]) -> bool:
    """Whether a row is of a --quick run; in older rows, which do not say, the digits tell."""
    return bool(row.get("quick", row.get("data") == "digits"))


def together(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Two measurements of the same models: the columns of both, the newer where both have one.

    Devices and commits are those of both, the newest last.
    """
    row = {**old, **new}
    row |= both_versions(old, {key: new[key] for key in ("device", "commit")})
    for group in ("attacks", "other"):
        row[group] = old.get(group, {}) | new[group]
    if new["clean_accuracy"] is None:
        row["clean_accuracy"] = old.get("clean_accuracy")
        row["clean_by_seed"] = old.get("clean_by_seed", [])
        row["clean_images"] = old.get("clean_images")
    if old.get("command", "") not in new["command"]:
        row["command"] = f"{old['command']} && {new['command']}"
    return row


def _named(cell: dict[str, Any]) -> dict[str, Any]:
    """The cell of an attack, whose value is an accuracy."""
    rest = {key: part for key, part in cell.items() if key != "value"}
    return {"accuracy": cell["value"], **rest}


def _mean(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The mean over seeds, and each; none where a seed has no value (as without wrong images)."""
    by_seed = [cell["value"] for cell in cells]
    values = [value for value in by_seed if value is not None]
    found = cells[0] | {"value": mean(values) if values else None}
    return found if len(cells) == 1 else found | {"by_seed": by_seed}

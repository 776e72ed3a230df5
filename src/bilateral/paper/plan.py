"""What a table needs: which runs, which attacks on how many images, and what that costs; no torch.

`quick` asks for the same on the digits, with few epochs, steps and images: the same code runs in
seconds, but its figures cannot be compared with the paper's.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from bilateral.config import Run
from bilateral.paper.recipes import recipe_named
from bilateral.paper.tables import (
    Attack,
    Clean,
    Column,
    Gradient,
    Measure,
    PaperTable,
    Row,
    Transfer,
)
from bilateral.runs import safe_name

QUICK_SCALE = 5
"""Budgets on the digits are five times the paper's: 40/255 for 8/255."""
QUICK_STEPS, QUICK_IMAGES = 5, 20
_QUICK_PER_CLASS = {500: 20, 2000: 50, 5000: 100}


@dataclass(frozen=True)
class Choices:
    """How a table is to be reproduced; None follows the paper."""

    model: str | None = None
    epochs: int | None = None
    seeds: int = 1
    images: int | None = None
    ensemble: Literal["autoattack", "apgd"] = "autoattack"
    quick: bool = False


def key_of(column: Column) -> str:
    """What a column's figures are filed under: the attack's name, `clean`, or the title."""
    if isinstance(column.measure, Attack):
        return column.measure.name
    return "clean" if isinstance(column.measure, Clean) else column.title


def run_of(recipe: str, seed: int, choices: Choices, fields: dict[str, Any] | None = None) -> Run:
    """The run of a recipe, with the fields of a table's row and the choices of the user."""
    run = recipe_named(recipe)
    run = run.with_paths(fields or {})
    run = run.with_fields(recipe=recipe, seed=seed)
    if choices.model is not None:
        run = run.with_fields(model=choices.model)
    if choices.epochs is not None:
        # The paper's "+" is twice its usual schedule, and stays so.
        longer = recipe.endswith("-long")
        run = run.with_fields(epochs=choices.epochs * (2 if longer else 1))
    return _quick(run) if choices.quick else run


def _quick(run: Run) -> Run:
    """The same method on the digits."""
    adversary, per_class = run.adversary, run.data.images_per_class
    scaled = {
        name: min(getattr(adversary, name) * QUICK_SCALE, 1.0) for name in ("epsilon", "step_size")
    }
    chosen = None if per_class is None else _QUICK_PER_CLASS[per_class]
    return run.with_fields(
        data={"name": "digits", "augment": "crop", "images_per_class": chosen},
        model="small-cnn",
        image_size=None,
        adversary=adversary.with_fields(**scaled),
        epochs=2 if run.epochs > 100 else 1,
        check_epochs=0,
        guard="watch",
        keep="last",
        optimiser=run.optimiser.with_fields(batch_size=64, learning_rate=0.1),
    )


def run_name(run: Run, choices: Choices) -> str:
    """The folder of a run: its recipe, and what differs from it."""
    usual = recipe_named(run.recipe)
    if choices.quick:
        usual = _quick(usual)
    parts = [run.recipe]
    if run.model != usual.model:
        parts.append(safe_name(run.model))
    if run.epochs != usual.epochs:
        parts.append(f"{run.epochs}-epochs")
    if run.data.images_per_class != usual.data.images_per_class:
        parts.append(f"{run.data.images_per_class}-a-class")
    return "-".join(parts)


def budget(table: PaperTable, choices: Choices) -> float:
    """The L-inf budget of a table's attacks."""
    return table.pixels * (QUICK_SCALE if choices.quick else 1) / 255


def columns_of(table: PaperTable, choices: Choices) -> list[Column]:
    """The columns as they are measured: another ensemble, fewer images, quick attacks.

    A title says what was run, so the title of another attack than the paper's is its name.
    """
    return [_chosen(column, choices) for column in table.columns]


def _chosen(column: Column, choices: Choices) -> Column:
    measure, images = column.measure, column.images
    if isinstance(measure, Attack) and measure.name == "autoattack":
        measure = Attack("apgd-ce" if choices.quick else choices.ensemble)
    if choices.images is not None:
        images = choices.images if images is None else min(images, choices.images)
    if choices.quick:
        images = QUICK_IMAGES
        if isinstance(measure, Attack):
            measure = Attack(quick_attack(measure.name))
        elif isinstance(measure, Transfer):
            measure = Transfer(quick_attack(measure.attack), measure.source)
    return Column(column.title if measure == column.measure else _said(measure), measure, images)


def _said(measure: Measure) -> str:
    """A title for what is measured in place of the paper's attack."""
    if isinstance(measure, Transfer):
        return f"{measure.attack} made on {measure.source or 'another seed'}"
    assert isinstance(measure, Attack)
    return measure.name


def quick_attack(name: str) -> str:
    """The attack with few steps."""
    if name == "cw-l2-fine":
        return "cw-l2"
    name = re.sub(r"-step[0-9.]+", "", name)
    return re.sub(r"^pgd(\d+)", lambda found: f"pgd{min(int(found[1]), QUICK_STEPS)}", name)


def runs_of(table: PaperTable, row: Row, choices: Choices) -> list[Run]:
    """The models of a row, one a seed; none of a quoted row."""
    if row.recipe is None:
        return []
    return [run_of(row.recipe, seed, choices, dict(row.fields)) for seed in range(choices.seeds)]


def sources_of(row: Row, column: Column, seed: int, choices: Choices) -> Run | None:
    """The model on which a column's images are made, if it needs one.

    Another model of the same recipe is the one of the seed after the last.
    """
    measure = column.measure
    if not isinstance(measure, Transfer) or row.recipe is None:
        return None
    if measure.source is not None:
        return run_of(measure.source, 0, choices)
    return run_of(row.recipe, choices.seeds + seed, choices, dict(row.fields))


def all_runs(tables: Iterable[PaperTable], choices: Choices) -> dict[str, Run]:
    """Every model that the tables need, by its folder: tables share what they can."""
    found: dict[str, Run] = {}
    for table in tables:
        for row in table.rows:
            for run in runs_of(table, row, choices):
                found |= _by_folder([run], choices)
                found |= _by_folder(_sources(table, row, run, choices), choices)
    return found


def shared_runs(table: PaperTable, choices: Choices) -> dict[str, Run]:
    """The models on which the images of rows are made, by folder: no row trains them alone."""
    found: dict[str, Run] = {}
    for row in table.rows:
        for run in runs_of(table, row, choices):
            found |= _by_folder(_sources(table, row, run, choices), choices)
    return found


def _sources(table: PaperTable, row: Row, run: Run, choices: Choices) -> list[Run]:
    sources = (sources_of(row, column, run.seed, choices) for column in table.columns)
    return [source for source in sources if source is not None]


def _by_folder(runs: Iterable[Run], choices: Choices) -> dict[str, Run]:
    return {f"{run_name(run, choices)}/seed{run.seed}": run for run in runs}


def is_gradient_table(table: PaperTable) -> bool:
    """Whether a table shows gradients and no accuracies."""
    return any(isinstance(column.measure, Gradient) for column in table.columns)

"""The tables of the page as plain values: attacks, classes, confusion, checks, configuration."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bilateral.budgets import fraction_text
from bilateral.paper import own_pictures
from bilateral.paper.recipes import RECIPES
from bilateral.report.gather import RunFiles
from bilateral.report.measures import Measure, attack_measures, class_names
from bilateral.report.reading import count, mapping, number, rows, share, square, text
from bilateral.tables import percent

LARGEST_MATRIX = 20
"""With more classes only the largest entries of a confusion matrix are shown."""
LONGEST = 100
"""With more classes only the worst are listed."""
SAID = ("recipe", "model", "data.name", "epochs", "seed")
"""The fields in the head of a page."""
BUDGETS = ("adversary.epsilon", "adversary.step_size")


@dataclass(frozen=True)
class Confusion:
    """Predicted classes for each true class: all counts, or only the largest wrong ones."""

    title: str
    names: list[str]
    counts: list[list[float]]
    largest: list[tuple[str, str, int, float]]


@dataclass(frozen=True)
class Check:
    """A reading of the diagnosis in words."""

    name: str
    value: str
    limit: str
    state: str
    raised_if: str
    meaning: str


def by_class(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Accuracy of each class, clean and worst case; of very many classes only the worst."""
    found: list[dict[str, Any]] = []
    for record in rows(entry.get("per_class")):
        clean, worst = share(record.get("clean_accuracy")), share(record.get("worst_case_accuracy"))
        if clean is not None and worst is not None:
            name, images = text(record.get("name")) or "?", count(record.get("images")) or 0
            found.append({"name": name, "images": images, "clean": clean, "worst": worst})
    if len(found) > LONGEST:
        found = sorted(found, key=lambda one: one["worst"])[:LONGEST]
    return found


def confusions(files: RunFiles, entry: dict[str, Any]) -> list[Confusion]:
    """The confusion on clean images, and under the strongest attack of this entry that has one."""
    names = class_names(files)
    found = []
    if clean := square(entry.get("clean_confusion")):
        found.append(_confusion("Clean images", clean, names))
    attacked = [
        (share(mapping(attack).get("accuracy")) or 0.0, name, table)
        for name, attack in mapping(entry.get("attacks")).items()
        if (table := square(mapping(attack).get("confusion")))
    ]
    if attacked:
        _, name, table = min(attacked, key=lambda one: one[0])
        budget = text(entry.get("epsilon_text")) or "?"
        found.append(_confusion(f"Under {name} at {budget}", table, names))
    return found


def _confusion(title: str, counts: list[list[float]], names: list[str]) -> Confusion:
    if len(names) != len(counts):
        names = [str(number) for number in range(len(counts))]
    wrong = [
        (names[true], names[seen], int(many), many / max(sum(row), 1))
        for true, row in enumerate(counts)
        for seen, many in enumerate(row)
        if seen != true and many > 0
    ]
    largest = sorted(wrong, key=lambda one: -one[2])[:LARGEST_MATRIX]
    return Confusion(title, names, counts if len(counts) <= LARGEST_MATRIX else [], largest)


def checks(files: RunFiles) -> list[Check]:
    """Every reading, the raised ones first."""
    found = []
    for record in rows(files.diagnosis.get("readings")):
        value, limit = number(record.get("value")), number(record.get("limit"))
        state = "passed"
        if record.get("raised") is True:
            state = text(record.get("severity")) or "raised"
        elif value is None:
            state = "not run"
        elif record.get("unsure") is True:
            state = "unsure"
        found.append(
            Check(
                text(record.get("name")) or "?",
                "" if value is None else f"{value:.3g}",
                "" if limit is None else f"{limit:.3g}",
                state,
                text(record.get("raised_if")) or "",
                text(record.get("meaning")) or "",
            )
        )
    order = ("masked", "suspect", "raised", "unsure")
    return sorted(found, key=lambda one: order.index(one.state) if one.state in order else 9)


def attack_names(entry: dict[str, Any]) -> str:
    """The attacks of an evaluation in one line."""
    return ", ".join(mapping(entry.get("attacks"))) or "no attack"


def training_seconds(files: RunFiles) -> float | None:
    """Training time up to the last epoch of the log."""
    return number(files.epochs[-1].get("seconds")) if files.epochs else None


def settings(files: RunFiles) -> list[tuple[str, str]]:
    """The configuration, flat: `adversary.epsilon`, `8/255`."""
    return [(name, _value(name, value)) for name, value in _flat(files.config)]


def beside_recipe(files: RunFiles) -> list[tuple[str, str]]:
    """The fields in which a run differs from its recipe, apart from those in the page's head.

    The recipe `folder` chooses most fields by the pictures, so its listed values do not apply.
    """
    recipe = RECIPES.get(text(files.config.get("recipe")) or "")
    if recipe is None or recipe.run.recipe == own_pictures.NAME:
        return []
    usual = dict(_flat(recipe.run.model_dump(mode="json")))
    told = [*SAID, "checkpoint_seconds", "weights_digest"]
    return [
        (name, _value(name, value))
        for name, value in _flat(files.config)
        if name in usual and name not in told and value != usual[name]
    ]


def differing(runs: Sequence[RunFiles]) -> list[tuple[str, list[str]]]:
    """The fields in which the configurations differ, with the value of each run."""
    flat = [dict(settings(run)) for run in runs]
    fields = dict.fromkeys(name for one in flat for name in one)
    lines = [(name, [one.get(name, "not recorded") for one in flat]) for name in fields]
    return [(name, values) for name, values in lines if len(set(values)) > 1]


def _flat(value: dict[str, Any], path: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, inner in value.items():
        if isinstance(inner, dict):
            found += _flat(inner, f"{path}{name}.")
        else:
            found.append((path + name, inner))
    return found


def _value(name: str, value: Any) -> str:
    known = number(value)
    if name in BUDGETS and known:
        return fraction_text(known)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{known:g}" if known else json.dumps(value)


def attack_settings(files: RunFiles) -> list[tuple[str, str]]:
    """The settings of each attack, as its file records them."""
    return [
        (
            f"{text(file.get('attack')) or '?'} at {text(file.get('epsilon_text')) or '?'}",
            json.dumps(file.get("settings"), indent=1, ensure_ascii=False),
        )
        for file in files.attacks
        if file.get("settings")
    ]


def commands(files: RunFiles) -> list[str]:
    """The commands that do it all again, from the configuration to this page."""
    lines = []
    if files.config:
        config = str(files.path / "config.json")
        lines.append(shlex.join(["bilateral", "train", config, "--out", "again"]))
    groups: dict[tuple[str, int | None, str], list[str]] = {}
    for one in attack_measures(files):
        if one.source == "evaluate":
            groups.setdefault((one.epsilon_text, one.images, one.data), []).append(one.attack)
    trained = text(mapping(files.config.get("data")).get("name"))
    for (budget, images, data), names in groups.items():
        words = ["--attacks", ",".join(names), "--epsilon", budget]
        words += ["--images", str(images)] if images else []
        words += ["--data", data] if data and data != trained else []
        lines.append(files.command("evaluate", *words))
    if files.diagnosis:
        words = []
        if images := count(files.diagnosis.get("images")):
            words += ["--images", str(images)]
        if diagnosed := text(files.diagnosis.get("epsilon_text")):
            words += ["--epsilon", diagnosed]
        if (seen := text(files.diagnosis.get("data"))) and seen != trained:
            words += ["--data", seen]
        lines.append(files.command("diagnose", *words))
    return [*lines, files.command("report")]


def accuracy(measure: Measure | None) -> str:
    """In per cent; empty if nothing was measured."""
    return "" if measure is None else percent(measure.accuracy)


def spread(measure: Measure | None) -> str:
    """The 95 % interval in per cent."""
    if measure is None or measure.interval is None:
        return ""
    low, high = measure.interval
    return f"{percent(low)} to {percent(high)}"


def a_image(measure: Measure, passes: float | None) -> str:
    """Forward or backward passes per image."""
    return "" if passes is None or not measure.images else f"{passes / measure.images:,.1f}"

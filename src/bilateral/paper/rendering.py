"""Accuracies in `results/` as Markdown: beside the paper's, beside peers'; no torch.

Below every table stands how its rows were measured.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bilateral.results import wilson_interval
from bilateral.tables import ABSENT, percent, render

Row = Mapping[str, Any]

# Shown even where it was not run: a table that stops at PGD is misleading.
_ALWAYS_SHOWN = "autoattack"
MOST_NAMED = 8
_CHOSEN = re.compile(r" --rows((?: (?!--)(?:'[^']*'|[^\s']\S*))+)")


def results_table(rows: Sequence[Row]) -> str:
    """`results/<table>.json`: accuracies in per cent.

    A row is followed by the paper's where it has one; network and epochs may differ. A cell of
    fewer images than the row's other attacks says of how many.
    """
    names = list(dict.fromkeys(name for row in rows for name in row["attacks"]))
    names = [name for name in names if name != _ALWAYS_SHOWN] + [_ALWAYS_SHOWN]
    head = ["accuracy (%)", "network", "epochs", "clean", *names, "images", "training (s)"]
    lines = []
    for row in rows:
        lines.append(_measured(row, names))
        if row["paper"]:
            lines.append(_printed(row["paper"], names))
    return with_origins(head, lines, rows)


def parity_table(rows: Sequence[Row]) -> str:
    """`results/parity.json`: our attacks beside a peer's on the same model and images.

    Attacks that seek the smallest perturbation are compared by its mean length, others by the
    accuracy they leave. A row without either was not measured.
    """
    head = ["model", "attack", "measured", "ours", "theirs", "peer", "images", "found", "aim"]
    commits: dict[str, set[str]] = {}
    for row in rows:
        commits.setdefault(row["recipe"], set()).add(row["commit"])
    # A recipe trained at two commits is two models, and their figures are not to be compared.
    several = {recipe for recipe, found in commits.items() if len(found) > 1}
    lines = [_parity(row, row["recipe"] in several) for row in rows]
    return with_origins(head, lines, rows)


def variants_table(rows: Sequence[Row]) -> str:
    """Variants of one recipe: means in per cent, and each seed's figure."""
    head = ["variant", "epochs", *rows[0]["by_seed"], "images"]
    lines = []
    for row in rows:
        cells = []
        for values in row["by_seed"].values():
            each = ", ".join(f"{100 * value:.2f}" for value in values)
            mean = f"{100 * sum(values) / len(values):.2f}"
            cells.append(f"{mean} ({each})" if len(values) > 1 else mean)
        images = max(attack["images"] for attack in row["attacks"].values())
        lines.append([row["variant"], str(row["epochs"]), *cells, _count(images)])
    return with_origins(head, lines, rows, lambda row: str(row["variant"]))


def diagnosis_table(rows: Sequence[Row]) -> str:
    """`results/diagnose-*.json`: verdict, accuracies in per cent, readings of the checks."""
    attacks = list(dict.fromkeys(name for row in rows for name in row["accuracies"]))
    checks = list(dict.fromkeys(name for row in rows for name in row["readings"]))
    head = ["model", "verdict", "images", *(f"{name} (%)" for name in attacks), *checks]
    lines = []
    for row in rows:
        shares, readings = row["accuracies"], row["readings"]
        cells = [percent(shares[name]) if name in shares else ABSENT for name in attacks]
        cells += [_reading(readings[name]) if name in readings else ABSENT for name in checks]
        lines.append([row["title"], f"`{row['verdict']}`", _count(row["images"]), *cells])
    return with_origins(head, lines, rows, lambda row: str(row["title"]))


def guard_table(rows: Sequence[Row]) -> str:
    """`results/guard.json`: what the guard reported in real runs, and their last reading."""
    head = ["run", "guard", "epochs", "epochs collapsed", "the first"]
    head += ["clean (%)", "FGSM (%)", "PGD-10 (%)", "alignment"]
    lines = []
    for row in rows:
        first = ABSENT if row["first_alarm_epoch"] is None else str(row["first_alarm_epoch"])
        last = [percent(row["last_check"][name]) for name in ("clean", "fgsm", "pgd10")]
        facts = [f"`{row['variant']}`", f"`{row['guard']}`", str(row["epochs"])]
        lines.append([*facts, str(row["alarms"]), first, *last, f"{row['last_alignment']:.2f}"])
    command = f"bilateral train RUN --model {rows[0]['model']} --epochs N"
    said = way(rows[0], command)
    return "\n".join([render((head, lines), "markdown"), "", f"- {said}"])


def readings_table(rows: Sequence[Row]) -> str:
    """`results/late-collapse.json`: readings of the last third of each run, and what was left."""
    head = ["run", "epoch", "training attack, in training (%)", "images read", "FGSM (%)"]
    lines = []
    for row in rows:
        for one in row["readings"]:
            if one["epoch"] > 2 * row["epochs"] / 3:
                cells = [row["title"], f"{one['epoch']} of {row['epochs']}"]
                cells += [percent(one["adversarial_accuracy"]), row["read"], percent(one["fgsm"])]
                lines.append([*cells, percent(one["pgd10"]), f"{one['alignment']:.2f}"])
    return with_origins([*head, "PGD-10 (%)", "alignment"], lines, rows, _left)


def _left(row: Row) -> str:
    """What attacks left of a run's last weights."""
    left = row["left"]
    shares = ", ".join(f"{name} {percent(share)}" for name, share in left["accuracy"].items())
    return f"{row['title']}, {_count(left['images'])} {left['of']} images: {shares} %"


def with_origins(
    head: list[str],
    lines: list[list[str]],
    rows: Sequence[Row],
    name: Callable[[Row], str] | None = None,
) -> str:
    """A table, and below it how its rows were measured."""
    below = origins(rows, name or (lambda row: f"`{row['recipe']}`, {row['model']}"))
    return "\n".join([render((head, lines), "markdown"), "", *below])


def origins(rows: Sequence[Row], name: Callable[[Row], str]) -> list[str]:
    """A line for each way in which rows were measured, with the names of those rows.

    Commands that differ only in their `--rows` are one.
    """
    ways: dict[str, list[Row]] = {}
    for row in rows:
        ways.setdefault(way(row, _with_rows(row["command"], "")), []).append(row)
    lines = []
    for alike in ways.values():
        names = list(dict.fromkeys(name(row) for row in alike))
        said = way(alike[0], _together([row["command"] for row in alike]))
        lines.append(f"- {_listed(names)}: {said}")
    return lines


def _together(commands: Sequence[str]) -> str:
    """One command for the rows of all of them."""
    chosen = [_CHOSEN.search(command) for command in commands]
    return _with_rows(commands[0], "".join(dict.fromkeys(found[1] for found in chosen if found)))


def _with_rows(command: str, rows: str) -> str:
    """A command for other rows; one that consists of several stays as it is."""
    return command if "&&" in command else _CHOSEN.sub(lambda _: f" --rows{rows}", command)


def _listed(names: list[str]) -> str:
    """Names in a row; if they are many, the first and the last."""
    if len(names) <= MOST_NAMED:
        return "; ".join(names)
    return f"{names[0]}; ...; {names[-1]} ({len(names)} rows)"


def way(row: Row, command: str) -> str:
    """Device, commit, seeds and command, in a line."""
    facts = [row["device"], f"commit {row['commit']}"]
    if seeds := row.get("seeds"):
        facts.append(f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}")
    if row.get("jobs", 1) > 1:
        facts.append(f"{row['jobs']} models at once on the device")
    note = f" Note: {row['note']}." if row.get("note") else ""
    return f"{', '.join(facts)}; `{command}`.{note}"


def _measured(row: Row, names: Sequence[str]) -> list[str]:
    attacks = row["attacks"]
    images = max((attack["images"] for attack in attacks.values()), default=None)

    def counted(accuracy: float, count: int | None) -> str:
        return percent(accuracy) + (f" ({count:,})" if count not in (None, images) else "")

    def cell(name: str) -> str:
        found = attacks.get(name)
        return counted(found["accuracy"], found["images"]) if found else ABSENT

    return [
        f"`{row['recipe']}`",
        row["model"],
        str(row["epochs"]),
        counted(row["clean_accuracy"], row.get("clean_images")),
        *map(cell, names),
        _count(images),
        f"{row['train_seconds']:,.0f}",
    ]


def _printed(paper: Row, names: Sequence[str]) -> list[str]:
    cells = [percent(paper[name]) if name in paper else ABSENT for name in ("clean", *names)]
    return ["as printed in the paper", paper["network"], str(paper["epochs"]), *cells, "", ""]


def _parity(row: Row, several: bool) -> list[str]:
    measured, figures = "not measured", [ABSENT, ABSENT]
    if row["mean_distance"] is not None:
        measured = "mean L2 distance"
        figures = [f"{row[key]:.4f}" for key in ("mean_distance", "peer_mean_distance")]
    elif row["accuracy"] is not None:
        measured = "accuracy (%)"
        figures = [percent(row[key]) for key in ("accuracy", "peer_accuracy")]
    found = ABSENT if row["found"] is None else f"{row['found']:,} / {row['peer_found']:,}"
    name = f"`{row['recipe']}`" + (f", trained at {row['commit']}" if several else "")
    facts = [name, row["attack"], measured, *figures, row["peer"], _count(row["images"])]
    return [*facts, found, _parity_aim(row)]


def _parity_aim(row: Row) -> str:
    """Whether ours is as strong: see `docs/evaluation.md` for the aims."""
    if row["mean_distance"] is not None:
        met = row["mean_distance"] <= 1.02 * row["peer_mean_distance"]
    elif row["accuracy"] is None:
        return ABSENT
    elif row["peer"] == "foolbox":
        counts = [round(row[key] * row["images"]) for key in ("accuracy", "peer_accuracy")]
        ours, theirs = (wilson_interval(count, row["images"]) for count in counts)
        met = ours[0] <= theirs[1] and theirs[0] <= ours[1]
    else:
        met = row["accuracy"] <= row["peer_accuracy"] + 0.003 + 1e-9
    return "met" if met else "missed"


def _count(images: int | None) -> str:
    return ABSENT if images is None else f"{images:,}"


def _reading(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"

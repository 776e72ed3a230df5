"""A table of the paper with our figures beside the printed ones; no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from bilateral.paper.comparisons import STAND_IN, STRONGEST, cell_of
from bilateral.paper.plan import Choices, columns_of, is_gradient_table, key_of
from bilateral.paper.tables import Column, PaperTable, Row
from bilateral.results import wilson_interval
from bilateral.tables import Table, percent

Measured = Mapping[str, Any]


def side_by_side(table: PaperTable, rows: Sequence[Measured], choices: Choices) -> Table:
    """`ours (printed, difference)` in every cell that was measured.

    Where the paper prints nothing, under AutoAttack, ours stands with its 95 % interval, and with
    the attack's name if only APGD was run. A cell measured on another number of images than its
    column's says so. A row that was not measured shows the printed figures alone, in brackets.
    """
    columns = list(dict.fromkeys(columns_of(table, choices)))  # several are one under --quick
    head = ["model", "network", "epochs", "seed", *(_title(column) for column in columns)]
    lines = []
    for row in table.rows:
        found = [one for one in rows if one.get("title") == row.title]
        for one in found:
            seeds = ", ".join(map(str, one["seeds"]))
            facts = [row.title, one["model"], str(one["epochs"]), seeds]
            lines.append([*facts, *(_cell(table, row, one, c, choices) for c in columns)])
        if not found and not choices.quick:
            name = f"{row.title} (quoted)" if row.quoted else row.title
            lines.append([name, "", "", "", *(_printed(table, row, column) for column in columns)])
    return head, lines


def _title(column: Column) -> str:
    return column.title if column.images is None else f"{column.title} (n = {column.images:,})"


def _cell(table: PaperTable, row: Row, measured: Measured, column: Column, choices: Choices) -> str:
    attack, by = key_of(column), ""
    if attack == STRONGEST and attack not in measured["attacks"]:
        attack, by = STAND_IN, f" by {STAND_IN}"
    value = cell_of(measured, attack)
    if value is None:
        return ""
    text, counted = _number(table, value), other_images(measured, attack, column.images)
    paper = row.printed.get(column.title)
    if choices.quick:
        return text + counted
    if paper is None:
        return text + interval_of(measured, attack) + by + counted
    if is_gradient_table(table):
        return f"{text} ({paper:.2g}){counted}"
    return f"{text} ({paper:.1f}, {100 * value - paper:+.1f}){counted}"


def other_images(measured: Measured, attack: str, said: int | None) -> str:
    """` (n = 20)` after a cell of another number of images than its column says (None: all).

    Of gradients, those examined count. Nothing where an older row does not record enough.
    """
    if attack == "clean":
        images = measured.get("clean_images")
    else:
        cell = measured["attacks"].get(attack) or measured.get("other", {}).get(attack, {})
        images = cell.get("of", cell.get("images"))
    said = measured.get("test_images") if said is None else said
    return f" (n = {images:,})" if None not in (images, said) and images != said else ""


def interval_of(measured: Measured, attack: str) -> str:
    """` [33.5, 39.4]` after the accuracy of one model; nothing where images are not known.

    After the mean of several models come the lowest and the highest: ` (33.9 to 34.6)`.
    """
    found = measured["attacks"].get(attack, {})
    seeds = measured.get("clean_by_seed", ()) if attack == "clean" else found.get("by_seed", ())
    if by_seed := [share for share in seeds if share is not None]:
        return f" ({percent(min(by_seed))} to {percent(max(by_seed))})"
    images, accuracy = found.get("images"), found.get("accuracy")
    if not images or accuracy is None or len(measured["seeds"]) != 1:
        return ""
    low, high = wilson_interval(round(accuracy * images), images)
    return f" [{percent(low)}, {percent(high)}]"


def _number(table: PaperTable, value: float) -> str:
    return f"{value:.2g}" if is_gradient_table(table) else f"{100 * value:.1f}"


def _printed(table: PaperTable, row: Row, column: Column) -> str:
    paper = row.printed.get(column.title)
    if paper is None:
        return ""
    return f"({paper:.2g})" if is_gradient_table(table) else f"({paper:.1f})"

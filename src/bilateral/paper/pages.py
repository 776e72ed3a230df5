"""The paper's tables from `results/` as Markdown: all of them, the claims, a brief; no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from bilateral.complaints import first_complaint
from bilateral.errors import UserError
from bilateral.paper import beyond
from bilateral.paper.judging import claims_table
from bilateral.paper.plan import Choices
from bilateral.paper.rendering import origins
from bilateral.paper.side_by_side import interval_of, side_by_side
from bilateral.paper.studies import NOT_MEASURED
from bilateral.paper.tables import TABLES, PaperTable
from bilateral.reading import read_json
from bilateral.tables import percent, render

Rows = Sequence[Mapping[str, Any]]

IN_BRIEF = ("cifar10", "budget")
"""The tables of the method itself."""


class _Figure(BaseModel):
    """A cell of a row: accuracies have one name, other figures another."""

    accuracy: float | None = None
    value: float | None = None
    images: int | None = None
    by_seed: list[float | None] = []


class _Row(BaseModel):
    """What is read of a row of `results/<table>.json`; it holds more."""

    title: str | None = None
    clean_accuracy: float | None = None
    clean_by_seed: list[float | None] = []
    attacks: dict[str, _Figure] = {}
    other: dict[str, _Figure] = {}
    command: str = ""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that a results file holds; none where there is no file."""
    if not path.exists():
        return []
    rows = read_json(path)
    try:
        TypeAdapter(list[_Row]).validate_python(rows)
    except ValidationError as error:
        raise UserError(f"{path} is damaged ({first_complaint(error)}); remove it") from None
    return [dict(row) for row in rows]


def measured_tables(folder: Path) -> dict[str, Rows]:
    """The rows that `reproduce` wrote, by table."""
    found: dict[str, Rows] = {}
    for name in TABLES:
        path = folder / f"{name}.json"
        rows = [row for row in read_rows(path) if "title" in row]
        order = {row.title: place for place, row in enumerate(TABLES[name].rows)}
        found[name] = sorted(rows, key=lambda row: order.get(row["title"], len(order)))
    return found


def beyond_page(folder: Path) -> str:
    """What the recipes beyond the paper keep, and how that was measured."""
    rows = read_rows(folder / f"{beyond.TABLE.name}.json")
    if not rows:
        return NOT_MEASURED
    titles = {row["title"] for row in rows}
    measured = tuple(row for row in beyond.TABLE.rows if row.title in titles)
    table = render(side_by_side(replace(beyond.TABLE, rows=measured), rows, Choices()), "markdown")
    missing = [row.title for row in beyond.TABLE.rows if row.title not in titles]
    below = [f"- Not measured yet: {'; '.join(missing)}."] if missing else []
    return "\n".join([table, "", *origins(rows, _about), *below])


def first_figure(results: Mapping[str, Rows]) -> str:
    """What the method leaves, in a line: clean, under twenty steps of PGD, under AutoAttack."""
    rows = [row for row in results["cifar10"] if row["title"] == "R-MC-LA"]
    return _figure(max(rows, key=lambda one: int(one["epochs"])), "pgd20-last", "last step")


def fast_figure(folder: Path) -> str:
    """What `cifar10-fast` leaves, in the same line."""
    rows = read_rows(folder / f"{beyond.TABLE.name}.json")
    fast = [row for row in rows if row["title"] == "cifar10-fast"]
    return _figure(fast[0], "pgd20", "any step") if fast else NOT_MEASURED


def _figure(row: Mapping[str, Any], attack: str, counted: str) -> str:
    pgd, strongest = row["attacks"][attack], row["attacks"]["autoattack"]
    head = [
        f"CIFAR-10, {row['model']}, {row['epochs']} epochs of {row['title']}",
        "clean",
        f"PGD-20 at 8/255, {counted} (n = {pgd['images']:,})",
        f"AutoAttack at 8/255 (n = {strongest['images']:,})",
    ]
    cells = [percent(row["clean_accuracy"]), percent(pgd["accuracy"])]
    cells.append(f"**{percent(strongest['accuracy'])}**{interval_of(row, 'autoattack')}")
    return render((head, [["accuracy (%)", *cells]]), "markdown")


def tables_page(results: Mapping[str, Rows]) -> str:
    """A section for every table: ours, the paper's, and how ours was measured."""
    return "\n\n".join(_section(table, results[name]) for name, table in TABLES.items())


def claims_page(results: Mapping[str, Rows]) -> str:
    """What the paper says in words, and whether it holds in what was measured."""
    return render(claims_table(results), "markdown")


def brief(results: Mapping[str, Rows], names: Sequence[str] = IN_BRIEF) -> str:
    """Some tables with their measured rows alone, and without columns that are empty there."""
    parts, names = [], [name for name in names if results[name]]
    for name in names:
        titles = {row["title"] for row in results[name]}
        rows = tuple(row for row in TABLES[name].rows if row.title in titles)
        head, lines = side_by_side(replace(TABLES[name], rows=rows), results[name], Choices())
        filled = [place for place in range(len(head)) if any(line[place] for line in lines)]
        cells = [[line[place] for place in filled] for line in lines]
        parts.append(render(([head[place] for place in filled], cells), "markdown"))
    measured = [row for name in names for row in results[name]]
    below = origins([{**row, "note": ""} for row in measured], _about)
    below += [f"- Note: {note}." for note in _notes(measured)]
    return "\n\n".join([*parts, "\n".join(below)])


def _section(table: PaperTable, rows: Rows) -> str:
    lines = [f"### {table.where}: `{table.name}`", "", f"{table.title}.", ""]
    lines.append(render(side_by_side(table, rows, Choices()), "markdown"))
    if table.is_figure and rows:
        lines += ["", f"![{table.title}](../results/{table.name}.svg)"]
    return "\n".join([*lines, "", *(origins(rows, _about) or [NOT_MEASURED])])


def _notes(rows: Rows) -> list[str]:
    """What there is to know of rows, each once."""
    return list(dict.fromkeys(row["note"] for row in rows if row.get("note")))


def _about(row: Mapping[str, Any]) -> str:
    times = row.get("train_seconds_by_seed") or [row["train_seconds"]]
    least, most = (f"{time:,.0f}" for time in (min(times), max(times)))
    took = least if len(times) == 1 else f"{least} to {most}"
    return f"{row['title']} ({row['model']}, trained in {took} s)"

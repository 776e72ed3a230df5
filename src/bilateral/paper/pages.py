"""The paper's tables from `results/` as Markdown: all of them, the claims, a headline; no torch."""

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
from bilateral.paper.side_by_side import interval_of, other_images, side_by_side
from bilateral.paper.studies import NOT_MEASURED
from bilateral.paper.tables import TABLES, PaperTable
from bilateral.reading import read_json
from bilateral.tables import percent, render

Rows = Sequence[Mapping[str, Any]]


class _Figure(BaseModel):
    """A cell of a row: accuracies have one name, other figures another."""

    accuracy: float | None = None
    value: float | None = None
    images: int | None = None
    of: int | None = None
    by_seed: list[float | None] = []


class _Row(BaseModel):
    """The part of a row of `results/<table>.json` that is read here."""

    title: str | None = None
    clean_accuracy: float | None = None
    clean_by_seed: list[float | None] = []
    clean_images: int | None = None
    test_images: int | None = None
    attacks: dict[str, _Figure] = {}
    other: dict[str, _Figure] = {}
    train_device: str = ""
    device: str = ""
    commit: str = ""
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
    """The accuracies of the recipes beyond the paper, and how they were measured."""
    rows = read_rows(folder / f"{beyond.TABLE.name}.json")
    if not rows:
        return NOT_MEASURED
    titles = {row["title"] for row in rows}
    measured = tuple(row for row in beyond.TABLE.rows if row.title in titles)
    table = render(side_by_side(replace(beyond.TABLE, rows=measured), rows, Choices()), "markdown")
    missing = [row.title for row in beyond.TABLE.rows if row.title not in titles]
    below = [f"- Not measured yet: {'; '.join(missing)}."] if missing else []
    return "\n".join([table, "", *origins(rows, _about), *below])


def headline(folder: Path) -> str:
    """The paper's method and our own recipes, a row each: time, clean, PGD-20, AutoAttack."""
    method = _longest(measured_tables(folder))
    ours = [row for row in read_rows(folder / f"{beyond.TABLE.name}.json") if "title" in row]
    head = ["CIFAR-10 at 8/255", "network", "trained in", "clean", "PGD-20", "AutoAttack", "of"]
    named = [(f"{method['title']}, the paper's method", method, "pgd20-last")]
    named += [(f"`{row['title']}`", row, "pgd20") for row in ours]
    lines = [[name, *_facts(row, attack), _judged(row)] for name, row, attack in named]
    return render((head, lines), "markdown")


def first_figure(results: Mapping[str, Rows]) -> str:
    """The method's accuracy in a line: clean, under twenty steps of PGD, under AutoAttack."""
    row = _longest(results)
    pgd, strongest = row["attacks"]["pgd20-last"], row["attacks"]["autoattack"]
    head = [
        f"CIFAR-10, {row['model']}, {row['epochs']} epochs of {row['title']}",
        "clean",
        f"PGD-20 at 8/255, last step (n = {pgd['images']:,})",
        f"AutoAttack at 8/255 (n = {strongest['images']:,})",
    ]
    _, _, *cells = _facts(row, "pgd20-last")
    return render((head, [["accuracy (%)", *cells]]), "markdown")


def _longest(results: Mapping[str, Rows]) -> Mapping[str, Any]:
    """The method's own row with the longest schedule."""
    rows = [row for row in results["cifar10"] if row["title"] == "R-MC-LA"]
    return max(rows, key=lambda one: int(one["epochs"]))


def _facts(row: Mapping[str, Any], attack: str) -> list[str]:
    """Network, shortest training, and accuracies in per cent; the strongest attack's stands out."""
    seconds = min(row.get("train_seconds_by_seed") or [row["train_seconds"]])
    clean, pgd, strongest = (
        percent(share)
        for share in (
            row["clean_accuracy"],
            row["attacks"][attack]["accuracy"],
            row["attacks"]["autoattack"]["accuracy"],
        )
    )
    spread = interval_of(row, "autoattack")
    clean += other_images(row, "clean", None)
    pgd += other_images(row, attack, None)
    return [row["model"], f"{seconds:,.0f} s", clean, pgd, f"**{strongest}**{spread}"]


def _judged(row: Mapping[str, Any]) -> str:
    """What the strongest attack's figure is based on: `3 models, 10,000 images`."""
    count = len(row["seeds"])
    images = row["attacks"]["autoattack"]["images"]
    return f"{count} model{'s' if count > 1 else ''}, {images:,} images"


def tables_page(results: Mapping[str, Rows]) -> str:
    """A section for every table: ours, the paper's, and how ours was measured."""
    return "\n\n".join(_section(table, results[name]) for name, table in TABLES.items())


def claims_page(results: Mapping[str, Rows]) -> str:
    """What the paper says in words, and whether it holds in what was measured."""
    return render(claims_table(results), "markdown")


def _section(table: PaperTable, rows: Rows) -> str:
    lines = [f"### {table.where}: `{table.name}`", "", f"{table.title}.", ""]
    lines.append(render(side_by_side(table, rows, Choices()), "markdown"))
    if table.is_figure and rows:
        lines += ["", f"![{table.title}](../results/{table.name}.svg)"]
    return "\n".join([*lines, "", *(origins(rows, _about) or [NOT_MEASURED])])


def _about(row: Mapping[str, Any]) -> str:
    times = row.get("train_seconds_by_seed") or [row["train_seconds"]]
    least, most = (f"{time:,.0f}" for time in (min(times), max(times)))
    took = least if len(times) == 1 else f"{least} to {most}"
    elsewhere = row.get("train_device") not in (None, "", row["device"])
    on = f" on {row['train_device']}" if elsewhere else ""
    return f"{row['title']} ({row['model']}, trained in {took} s{on})"

"""`docs/reproduce.md` from `results/`: every table beside the paper's, and the claims; no torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from bilateral.config import first_complaint
from bilateral.errors import UserError
from bilateral.paper.claims import claims_table
from bilateral.paper.plan import Choices
from bilateral.paper.side_by_side import side_by_side
from bilateral.paper.tables import TABLES, PaperTable
from bilateral.reading import read_json
from bilateral.tables import render

Rows = Sequence[Mapping[str, Any]]


class _Figure(BaseModel):
    """A cell of a row: accuracies have one name, other figures another."""

    accuracy: float | None = None
    value: float | None = None
    images: int | None = None


class _Row(BaseModel):
    """What is read of a row of `results/<table>.json`; it holds more."""

    title: str | None = None
    clean_accuracy: float | None = None
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
        rows = read_rows(path)
        found[name] = [row for row in rows if "title" in row]
    return found


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
    origins = dict.fromkeys(_origin(row) for row in rows)
    return "\n".join([*lines, "", *(origins or ["Not measured yet."])])


def _origin(row: Mapping[str, Any]) -> str:
    seconds = f"{row['train_seconds']:,.0f} s of training"
    if row.get("jobs", 1) > 1:
        seconds += f" beside {row['jobs'] - 1} others on the GPU"
    return (
        f"- {row['title']}: {row['device']}, commit {row['commit']}, {seconds}; `{row['command']}`."
    )

"""`docs/reproduce.md` from `results/`: every table beside the paper's, and the claims; no torch."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bilateral.paper.claims import claims_table
from bilateral.paper.plan import Choices
from bilateral.paper.side_by_side import side_by_side
from bilateral.paper.tables import TABLES, PaperTable
from bilateral.tables import render

Rows = Sequence[Mapping[str, Any]]


def measured_tables(folder: Path) -> dict[str, Rows]:
    """The rows that `reproduce` wrote, by table."""
    found: dict[str, Rows] = {}
    for name in TABLES:
        path = folder / f"{name}.json"
        rows = json.loads(path.read_text()) if path.exists() else []
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

"""Comparisons between measured cells, the parts of which claims are made; no torch."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MeasuredRow = Mapping[str, Any]
Results = Mapping[str, Sequence[MeasuredRow]]
"""The rows of `results/<table>.json`, by table."""

STRONGEST = "autoattack"
STAND_IN = "apgd"


def cell_of(row: MeasuredRow, column: str) -> float | None:
    """What a row holds under an attack's name, `clean`, or a column's title; none if nothing."""
    if column == "clean":
        value = row["clean_accuracy"]
    elif column in row["attacks"]:
        value = row["attacks"][column]["accuracy"]
    else:
        value = row.get("other", {}).get(column, {}).get("value")
    return None if value is None else float(value)


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds (none: a cell it needs was not measured), and the figures behind it."""

    holds: bool | None
    reading: str


@dataclass(frozen=True)
class Cell:
    """A figure of a table: row by title; column by attack name, `clean`, or title.

    Accuracies are read in points; a gradient has `unit` 1.
    """

    table: str
    row: str
    column: str
    unit: float = 100.0


def measured_row(
    results: Results, table: str, title: str, columns: Collection[str]
) -> MeasuredRow | None:
    """The row with this title that holds all these columns; of several the longest schedule."""
    whole = [
        row
        for row in results.get(table, ())
        if row.get("title") == title and all(cell_of(row, one) is not None for one in columns)
    ]
    return max(whole, key=lambda row: int(row["epochs"]), default=None)


class Reading(NamedTuple):
    """What a comparison found: its margin, the figures in words, the rows they stand in."""

    margin: float
    words: str
    rows: tuple[MeasuredRow, ...]


@dataclass(frozen=True)
class Comparison:
    """Cells, and the margin by which they agree with a claim: it holds if that is positive."""

    cells: tuple[Cell, ...]
    margin: Callable[..., float]

    def read(self, results: Results) -> Reading | None:
        """None where a cell was not measured; cells of one title are read from one row."""
        for strongest in (STRONGEST, STAND_IN):
            columns = [strongest if c.column == STRONGEST else c.column for c in self.cells]
            pairs = list(zip(self.cells, columns, strict=True))
            needed: dict[tuple[str, str], list[str]] = {}
            for cell, column in pairs:
                needed.setdefault((cell.table, cell.row), []).append(column)
            rows = {
                place: measured_row(results, *place, wanted) for place, wanted in needed.items()
            }
            values = [
                cell.unit * value
                for cell, column in pairs
                if (row := rows[cell.table, cell.row]) is not None
                and (value := cell_of(row, column)) is not None
            ]
            if len(values) == len(pairs):
                found = tuple(row for row in rows.values() if row is not None)
                return Reading(self.margin(*values), self._words(columns, values), found)
        return None

    def _words(self, columns: Sequence[str], values: Sequence[float]) -> str:
        if len(set(columns)) == 1:
            figures = [f"{c.row} {v:.3g}" for c, v in zip(self.cells, values, strict=True)]
            return f"{columns[0]}: {', '.join(figures)}"
        figures = [f"{name} {value:.3g}" for name, value in zip(columns, values, strict=True)]
        return f"{self.cells[0].row}: {', '.join(figures)}"


@dataclass(frozen=True)
class Check:
    """Comparisons that must all hold; `partial` leaves out those that were not measured."""

    comparisons: tuple[Comparison, ...]
    partial: bool = False

    def __call__(self, results: Results) -> Finding:
        """The finding, with the figures of the comparison that is nearest to failing."""
        found = [comparison.read(results) for comparison in self.comparisons]
        read = [reading for reading in found if reading is not None]
        if not read or (len(read) < len(found) and not self.partial):
            return Finding(None, "")
        margin, words, _ = min(read, key=lambda reading: reading.margin)
        if len(found) > 1:
            good = sum(reading.margin > 0 for reading in read)
            words = f"{good} of {len(read)} comparisons, the closest {words}"
        rows = [row for reading in read for row in reading.rows]
        models = sorted({str(row["model"]) for row in rows})
        epochs = sorted({int(row["epochs"]) for row in rows})
        made = f"{', '.join(models)}, {' and '.join(map(str, epochs))} epochs"
        return Finding(margin > 0, f"{words} ({made})")


def above(high: Cell, low: Cell, points: float = 0.0) -> Comparison:
    """`high` exceeds `low` by more than so many points; a negative number lets it fall short."""
    return Comparison((high, low), lambda one, other: one - other - points)


def near(one: Cell, other: Cell, points: float) -> Comparison:
    """Two figures are less than so many points apart."""
    return Comparison((one, other), lambda left, right: points - abs(left - right))


def under(cell: Cell, points: float) -> Comparison:
    """A figure lies under so many points."""
    return Comparison((cell,), lambda value: points - value)


def times_smaller(small: Cell, large: Cell, times: float) -> Comparison:
    """One figure is smaller than another by more than a factor."""
    return Comparison((small, large), lambda one, other: other / times - one)


def beats(table: str, better: str, worse: str, *columns: str) -> tuple[Comparison, ...]:
    """A row is above another in every column."""
    return tuple(
        above(Cell(table, better, column), Cell(table, worse, column)) for column in columns
    )

"""Comparisons between measured cells, of which claims are built; no torch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MeasuredRow = Mapping[str, Any]
Results = Mapping[str, Sequence[MeasuredRow]]
"""The rows of `results/<table>.json`, by table."""

STRONGEST = "autoattack"
STAND_IN = "apgd"


def cell_of(row: MeasuredRow, column: str) -> float | None:
    """What a row holds under an attack's name, `clean`, or a column's title; None if nothing."""
    if column == "clean":
        value = row["clean_accuracy"]
    elif column in row["attacks"]:
        value = row["attacks"][column]["accuracy"]
    else:
        value = row.get("other", {}).get(column, {}).get("value")
    return None if value is None else float(value)


def images_of(row: MeasuredRow, column: str) -> int | None:
    """On how many images a figure was measured; None if not recorded."""
    if column == "clean":
        images = row.get("clean_images") or row.get("test_images")
    else:
        images = (row["attacks"].get(column) or row.get("other", {}).get(column, {})).get("images")
    return None if images is None else int(images)


@dataclass(frozen=True)
class Finding:
    """Whether a claim holds (none: a cell it needs was not measured), and the figures behind it."""

    holds: bool | None
    reading: str
    missing: int = 0
    """Comparisons that were not measured, where a claim is judged by the others."""


@dataclass(frozen=True)
class Cell:
    """A figure of a table: row by title; column by attack name, `clean`, or title.

    Accuracies are read in points; a gradient has `unit` 1.
    """

    table: str
    row: str
    column: str
    unit: float = 100.0

    def measured_row(self, results: Results) -> MeasuredRow | None:
        """The row with this title, of which there is one (see `one_model_each`)."""
        rows = (row for row in results.get(self.table, ()) if row.get("title") == self.row)
        return next(rows, None)

    def stands_in(self, row: MeasuredRow) -> bool:
        """Whether a row holds such a figure; APGD's does for AutoAttack's."""
        columns = (STRONGEST, STAND_IN) if self.column == STRONGEST else (self.column,)
        return any(cell_of(row, column) is not None for column in columns)

    def value(self, results: Results, column: str) -> float | None:
        """What was measured, in points."""
        row = self.measured_row(results)
        value = None if row is None else cell_of(row, column)
        return None if value is None else self.unit * value


def one_model_each(results: Results, cells: Iterable[Cell]) -> Results:
    """The rows that the cells name, one per title: figures of two models must not be mixed.

    That is the row with most of the cells; among equals, the one with the longest schedule.
    """
    needed: dict[tuple[str, str], set[Cell]] = {}
    for cell in cells:
        needed.setdefault((cell.table, cell.row), set()).add(cell)
    found: dict[str, list[MeasuredRow]] = {}
    for (table, title), wanted in needed.items():
        rows = [row for row in results.get(table, ()) if row.get("title") == title]
        if rows:
            most = max(rows, key=lambda row: (_count(wanted, row), int(row["epochs"])))
            found.setdefault(table, []).append(most)
    return found


def _count(cells: Iterable[Cell], row: MeasuredRow) -> int:
    return sum(cell.stands_in(row) for cell in cells)


@dataclass(frozen=True)
class Comparison:
    """Cells, and the margin by which they agree with a claim: it holds if that is positive."""

    cells: tuple[Cell, ...]
    margin: Callable[..., float]

    def read(self, results: Results) -> tuple[float, str] | None:
        """The margin and the figures in words; none where a cell was not measured."""
        for strongest in (STRONGEST, STAND_IN):
            columns = [strongest if c.column == STRONGEST else c.column for c in self.cells]
            pairs = zip(self.cells, columns, strict=True)
            values = [cell.value(results, column) for cell, column in pairs]
            known = [value for value in values if value is not None]
            if len(known) == len(values):
                return self.margin(*known), self._words(results, columns, known)
        return None

    def _words(self, results: Results, columns: Sequence[str], values: Sequence[float]) -> str:
        counts = []
        for cell, column in zip(self.cells, columns, strict=True):
            row = cell.measured_row(results)
            counts.append(None if row is None else images_of(row, column))
        differ = len({count for count in counts if count is not None}) > 1
        figures = [
            f"{value:.3g} (n = {count:,})" if differ and count is not None else f"{value:.3g}"
            for value, count in zip(values, counts, strict=True)
        ]
        if len(set(columns)) == 1:
            head, names = columns[0], [cell.row for cell in self.cells]
        else:
            head, names = self.cells[0].row, list(columns)
        named = [f"{name} {figure}" for name, figure in zip(names, figures, strict=True)]
        return f"{head}: {', '.join(named)}"


@dataclass(frozen=True)
class Check:
    """Comparisons that must all hold; `partial` leaves out those that were not measured."""

    comparisons: tuple[Comparison, ...]
    partial: bool = False

    @property
    def cells(self) -> list[Cell]:
        """All that are compared."""
        return [cell for comparison in self.comparisons for cell in comparison.cells]

    def __call__(self, results: Results) -> Finding:
        """The finding, with the figures of the comparison that is nearest to failing."""
        results = one_model_each(results, self.cells)
        found = [(comparison, comparison.read(results)) for comparison in self.comparisons]
        read = [(comparison, reading) for comparison, reading in found if reading is not None]
        if not read or (len(read) < len(found) and not self.partial):
            return Finding(None, "")
        margin, words = min((reading for _, reading in read), key=lambda reading: reading[0])
        if len(found) > 1:
            good = sum(one > 0 for _, (one, _) in read)
            which = "closest" if margin > 0 else "worst"
            words = f"{good} of {len(read)} comparisons, the {which} {words}"
        rows = [cell.measured_row(results) for comparison, _ in read for cell in comparison.cells]
        models = sorted({str(row["model"]) for row in rows if row is not None})
        epochs = sorted({int(row["epochs"]) for row in rows if row is not None})
        made = f"{', '.join(models)}, {' and '.join(map(str, epochs))} epochs"
        return Finding(margin > 0, f"{words} ({made})", len(found) - len(read))


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

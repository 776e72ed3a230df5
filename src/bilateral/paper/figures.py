"""The paper's figure as SVG, by matplotlib's object interface: no window, no global state."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from bilateral.paper.plan import Choices, columns_of
from bilateral.paper.side_by_side import figure
from bilateral.paper.tables import Attack, PaperTable

# Told apart by colour-blind readers too (Okabe and Ito), and by their marks in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = ("o", "s", "^", "D", "v", "P")


def curve_figure(table: PaperTable, rows: Sequence[Mapping[str, Any]], choices: Choices) -> bytes:
    """Accuracy against the number of attack steps, a curve a row."""
    steps = [
        (int(column.title), place)
        for place, column in enumerate(table.columns)
        if isinstance(column.measure, Attack) and column.title.isdigit()
    ]
    columns = columns_of(table, choices)
    drawing = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = drawing.subplots()
    order = [row.title for row in table.rows]
    drawn = sorted(
        (row for row in rows if row.get("title") in order),
        key=lambda row: order.index(row["title"]),
    )
    for number, row in enumerate(drawn):
        points = [(step, figure(row, columns[place])) for step, place in steps]
        known = [(step, 100 * value) for step, value in points if value is not None]
        axes.plot(
            [step for step, _ in known],
            [value for _, value in known],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKS[number % len(MARKS)],
            label=row["title"],
        )
    axes.set_xscale("log")
    axes.set_xticks([step for step, _ in steps], [str(step) for step, _ in steps])
    axes.minorticks_off()
    axes.set_xlabel("attack steps")
    axes.set_ylabel("accuracy (%)")
    axes.grid(alpha=0.3)
    if drawn:
        axes.legend()
    return svg(drawing)


def svg(drawing: Figure) -> bytes:
    """The same bytes for the same drawing."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "bilateral"}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()

"""Drawings as SVG, by matplotlib's object interface: the paper's figure, and labels seen."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure

from bilateral.paper.comparisons import cell_of
from bilateral.paper.plan import Choices, columns_of, key_of
from bilateral.paper.tables import Attack, PaperTable

# Told apart by colour-blind readers too (Okabe and Ito), and by their marks in print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class LabelExample:
    """An image (uint8, HWC), its class, and distributions over the classes by name."""

    pixels: npt.NDArray[np.uint8]
    label: int
    labels: Mapping[str, Sequence[float]]


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
        points = [(step, cell_of(row, key_of(columns[place]))) for step, place in steps]
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


def label_chart(examples: Sequence[LabelExample], classes: Sequence[str]) -> bytes:
    """For each image its picture and its labels as bars: as given, and by each formula."""
    drawing = Figure(figsize=(8.0, 1.5 * len(examples)), layout="constrained")
    grid = drawing.subplots(len(examples), 2, squeeze=False, gridspec_kw={"width_ratios": [1, 5]})
    for number, (example, (picture, bars)) in enumerate(zip(examples, grid, strict=True)):
        grey = example.pixels.shape[2] == 1
        picture.imshow(
            example.pixels.squeeze(2) if grey else example.pixels,
            cmap="gray" if grey else None,
            interpolation="nearest",
        )
        picture.set_axis_off()
        picture.set_title(classes[example.label], fontsize="small")
        width = 0.8 / len(example.labels)
        for place, (name, shares) in enumerate(example.labels.items()):
            bars.bar(
                [position + (place + 0.5) * width - 0.4 for position in range(len(classes))],
                shares,
                width,
                color=COLOURS[place],
                label=name,
            )
        last = number == len(examples) - 1
        bars.set_xticks(range(len(classes)), classes if last else [], fontsize="small")
        bars.set_ylim(0, 1)
    grid[0][1].legend(fontsize="small")
    return svg(drawing)


def svg(drawing: Figure) -> bytes:
    """The same bytes for the same drawing."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "bilateral"}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()

"""Drawings as SVG, by matplotlib's object interface: the paper's figure, and a chart of labels."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.figure import Figure

from bilateral.paper.comparisons import STRONGEST, cell_of
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
    """Accuracy against the number of attack steps, a curve per row, and AutoAttack's apart.

    Rows of the same title are told apart by their network and epochs.
    """
    steps = {}
    for column, chosen in zip(table.columns, columns_of(table, choices), strict=True):
        if isinstance(chosen.measure, Attack) and column.title.isdigit():
            # The steps that were run: a quick attack has fewer than the paper's column.
            run = re.match(r"pgd(\d+)", chosen.measure.name)
            steps[int(run[1]) if run else 1] = key_of(chosen)
    apart = 2.5 * max(steps)
    drawing = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = drawing.subplots()
    order = [row.title for row in table.rows]
    drawn = sorted(
        (row for row in rows if row.get("title") in order),
        key=lambda row: order.index(row["title"]),
    )
    titles = [row["title"] for row in drawn]
    judged = False
    for number, row in enumerate(drawn):
        look: dict[str, Any] = {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKS[(number + number // len(COLOURS)) % len(MARKS)],
        }
        name = row["title"]
        if titles.count(name) > 1:
            name += f" ({row['model']}, {row['epochs']} epochs)"
        strongest = cell_of(row, STRONGEST)
        if strongest is not None:
            axes.plot([apart], [100 * strongest], **look)
            judged = True
        points = [(step, cell_of(row, key)) for step, key in steps.items()]
        known = [(step, 100 * value) for step, value in points if value is not None]
        axes.plot(
            [step for step, _ in known],
            [value for _, value in known],
            label=name,
            **look,
        )
    axes.set_xscale("log")
    ticks = {step: str(step) for step in steps} | ({apart: "AutoAttack"} if judged else {})
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_xlabel("attack steps")
    axes.set_ylabel("accuracy (%)")
    axes.grid(alpha=0.3)
    if drawn:
        axes.legend()
    return svg(drawing)


def label_chart(examples: Sequence[LabelExample], classes: Sequence[str]) -> bytes:
    """For each image its picture and its labels as bars: as given, and by each formula.

    The wrong classes share what the true one loses, and have axes of their own to be seen.
    """
    drawing = Figure(figsize=(9.0, 1.25 * len(examples) + 0.7), layout="constrained")
    grid = drawing.subplots(len(examples), 3, squeeze=False, width_ratios=[1, 1.2, 6])
    most = max(_wrong_shares(example).max() for example in examples) or 1.0
    for number, (example, (picture, true, wrong)) in enumerate(zip(examples, grid, strict=True), 1):
        last = number == len(examples)
        grey = example.pixels.shape[2] == 1
        picture.imshow(
            example.pixels.squeeze(2) if grey else example.pixels,
            cmap="gray" if grey else None,
            interpolation="nearest",
        )
        picture.set_axis_off()
        picture.set_title(classes[example.label], fontsize="small")
        wrongs = _wrong_shares(example)
        spread = [place for place, shares in enumerate(wrongs) if shares.any()]
        width = 0.8 / max(1, len(spread))
        for place, (name, shares) in enumerate(example.labels.items()):
            colour = COLOURS[place % len(COLOURS)]
            bar = true.bar([place], [shares[example.label]], 0.9, color=colour, label=name)
            true.bar_label(bar, fmt="%.2f", fontsize="x-small")
            if place in spread:
                left = np.arange(len(classes)) - 0.4 + spread.index(place) * width
                wrong.bar(left, wrongs[place], width, align="edge", color=colour)
        true.set_ylim(0, 1.3)
        true.set_xticks([])
        true.set_yticks([0, 1])
        wrong.set_ylim(0, 1.1 * most)
        wrong.set_xlim(-0.5, len(classes) - 0.5)
        wrong.set_xticks(range(len(classes)), classes if last else [], fontsize="x-small")
        for axes in (true, wrong):
            axes.tick_params(labelsize="x-small", length=2)
            axes.spines[["top", "right"]].set_visible(False)
    grid[0][1].set_title("true class", fontsize="small")
    grid[0][2].set_title("wrong classes, another scale", fontsize="small")
    handles, names = grid[0][1].get_legend_handles_labels()
    drawing.legend(handles, names, loc="outside upper right", ncols=len(names), fontsize="small")
    return svg(drawing)


def _wrong_shares(example: LabelExample) -> npt.NDArray[np.float64]:
    """The labels of an example, a row each, without the share of the true class."""
    shares = np.array(list(example.labels.values()), dtype=np.float64)
    shares[:, example.label] = 0.0
    return shares


def svg(drawing: Figure) -> bytes:
    """The same bytes for the same drawing."""
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "bilateral"}):
        drawing.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()

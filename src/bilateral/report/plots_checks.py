"""Drawings of a diagnosis: gradient magnitudes, loss surface, reliability of confidence."""

from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator

from bilateral.report.charts import (
    INK,
    RULE,
    SERIES,
    Drawing,
    Line,
    colour,
    dashes,
    draw_line,
    draw_svg,
)
from bilateral.report.gather import RunFiles
from bilateral.report.reading import (
    all_numbers,
    count,
    mapping,
    matrix,
    number,
    numbers,
    points,
    rows,
    share,
    text,
)

FEWEST = 5
"""A bin with fewer images is listed but not drawn: its accuracy says nothing."""


def histograms(files: RunFiles, salt: str) -> list[Drawing]:
    """Gradient magnitudes in one drawing, other quantities in one each."""
    found = []
    for record in rows(files.diagnosis.get("histograms")):
        edges, counts = all_numbers(record.get("edges")), all_numbers(record.get("counts"))
        if counts and len(edges) == len(counts) + 1:
            found.append((text(record.get("name")) or "unnamed", edges, counts))
    gradients = [one for one in found if "gradient" in one[0]]
    split = [one for one in gradients if "correct" in one[0] or "wrong" in one[0]]
    groups = [("Gradient magnitude", split or gradients)] if gradients else []
    groups += [(one[0].capitalize(), [one]) for one in found if one not in gradients]
    return [
        _histogram(title, group, f"{salt}-histogram-{place}")
        for place, (title, group) in enumerate(groups)
    ]


def _histogram(title: str, group: list[tuple[str, list[float], list[float]]], salt: str) -> Drawing:
    looks = [place * (SERIES + 1) for place in range(len(group))]  # both colour and dashes differ

    def paint(axes: Any) -> None:
        for look, (_, edges, counts) in zip(looks, group, strict=True):
            line, style = colour(look), (0, dashes(look)) if dashes(look) else "-"
            axes.stairs(counts, edges, fill=True, color=line, alpha=0.25, linewidth=0)
            axes.stairs(counts, edges, color=line, linewidth=1.5, linestyle=style)
        axes.set_ylabel("images")
        if any("log10" in name for name, _, _ in group):
            axes.set_xlabel("log10 of the l2 norm, pixels in [0, 1]")
        elif any("logits" in name for name, _, _ in group):
            axes.set_xlabel("difference of logits")

    said = "; ".join(f"{name}: {int(sum(counts)):,} images" for name, _, counts in group)
    lines = [
        Line(name, [], look, marked=False)
        for look, (name, _, _) in zip(looks, group, strict=True)
        if len(group) > 1
    ]
    return Drawing(title, draw_svg(paint, salt), f"Histogram. {said}", lines=lines)


def gradient_table(files: RunFiles) -> list[list[str]]:
    """Rows of the paper's gradient table: group, images, smallest, mean and largest l2 norm."""
    for record in rows(files.diagnosis.get("gradient_magnitude")):
        if record.get("norm") == "l2" and record.get("scale") == "[0, 1]":
            table = []
            for group in ("all", "correct", "wrong"):
                spread = mapping(record.get(group))
                values = [number(spread.get(key)) for key in ("min", "mean", "max")]
                cells = ["" if value is None else f"{value:.3g}" for value in values]
                table.append([group, f"{count(spread.get('images')) or 0:,}", *cells])
            return table
    return []


def surface(files: RunFiles, salt: str) -> list[Drawing]:
    """The loss over the plane of the attack's and a random direction, and along both."""
    record = mapping(files.diagnosis.get("loss_surface"))
    offsets, loss = all_numbers(record.get("offsets")), matrix(record.get("loss"))
    size = len(offsets)
    if size < 3 or len(loss) != size or len(loss[0]) != size:
        return []
    middle = min(range(size), key=lambda place: abs(offsets[place]))
    ahead = Line(
        "along the attack", [(x, row[middle]) for x, row in zip(offsets, loss, strict=True)], 1
    )
    aside = Line("along a random sign", list(zip(offsets, loss[middle], strict=True)), 0)
    images = count(record.get("images"))
    mean = f"Mean cross-entropy of {images:,} images." if images else "Mean cross-entropy."

    def paint_slices(axes: Any) -> None:
        for line in (ahead, aside):
            draw_line(axes, line)
        axes.set_ylim(bottom=0)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1])
        axes.set_xlabel("distance from the image, in budgets")
        axes.set_ylabel("loss")

    def paint_surface(axes: Any) -> None:
        across, along = np.meshgrid(offsets, offsets)
        axes.plot_surface(
            across,
            along,
            np.array(loss),
            cmap="viridis",
            rstride=1,
            cstride=1,
            edgecolor=INK,
            linewidth=0.25,
            antialiased=True,
        )
        axes.patch.set_visible(False)
        axes.set_xticks([-1, 0, 1])
        axes.set_yticks([-1, 0, 1])
        axes.zaxis.set_major_locator(MaxNLocator(5))
        axes.zaxis.labelpad = 9  # clear of the ticks' labels
        axes.view_init(elev=28, azim=-55)
        axes.set_box_aspect((1, 1, 0.7), zoom=0.92)
        for axis, title in (
            (axes.xaxis, "random sign"),
            (axes.yaxis, "attack"),
            (axes.zaxis, "loss"),
        ):
            axis.set_label_text(title, color=INK)
            axis.pane.fill = False
            axis.pane.set_edgecolor(RULE)
            axis.line.set_color(INK)
            axis._axinfo["grid"].update(color=RULE, linewidth=0.6)
            axis.set_tick_params(colors=INK, labelsize=10)

    top = max(max(row) for row in loss)
    said = f"{mean} {loss[middle][middle]:.3g} at the image, at most {top:.3g} in the ball"
    return [
        Drawing(
            "Loss surface",
            draw_svg(paint_surface, f"{salt}-surface", (4.7, 3.7), "3d"),
            f"Loss over the plane of the attack's direction and a random one. {said}",
            f"{mean} Both directions run from minus one to plus one budget, inside the ball.",
        ),
        Drawing(
            "Loss along two directions",
            draw_svg(paint_slices, f"{salt}-slices", (4.7, 3.7)),
            f"Loss along the gradient's sign and along a random sign. {said}",
            "If the gradient can be trusted, the loss rises smoothly along the attack, and far "
            "less along a random sign.",
            [ahead, aside],
        ),
    ]


def reliability(files: RunFiles, salt: str) -> Drawing | None:
    """Accuracy against confidence, a line for each kind of image."""
    lines: list[Line] = []
    errors, cells = [], []
    for record in rows(files.diagnosis.get("reliability")):
        name = text(record.get("name")) or "unnamed"
        right = numbers(record.get("accuracy"))
        sure = [share(one) for one in numbers(record.get("confidence"))]
        images = [int(one or 0) for one in numbers(record.get("images"))]
        bins = zip(images, sure, right, strict=False)
        found = points([{"x": x, "y": y} for many, x, y in bins if many >= FEWEST], "x", "y")
        if not found:
            continue
        lines.append(Line(name, found, len(lines)))
        error = number(record.get("expected_calibration_error"))
        if error is not None:
            errors.append(f"{name} {100 * error:.1f} %")
        for many, x, y in zip(images, sure, right, strict=False):
            if x is not None and y is not None:
                cells.append([name, f"{many:,}", f"{100 * x:.1f}", f"{100 * y:.1f}"])
    if not lines:
        return None

    def paint(axes: Any) -> None:
        axes.plot([0, 100], [0, 100], color=INK, linewidth=0.8, dashes=(1, 2))
        for line in lines:
            shown = [(100 * x, y) for x, y in line.points]
            draw_line(axes, Line(line.name, shown, line.look), percent=True)
        axes.set_xlim(0, 100)
        axes.set_ylim(0, 100)
        axes.set_xlabel("confidence (%)")
        axes.set_ylabel("accuracy (%)")

    return Drawing(
        "Reliability of confidence",
        draw_svg(paint, f"{salt}-reliability"),
        "Accuracy against confidence. Expected calibration error: "
        + ("; ".join(errors) or "not measured"),
        "On the dotted line confidence equals accuracy; below it the model is overconfident. "
        f"Bins with fewer than {FEWEST} images are not drawn. "
        + (f"Expected calibration error: {'; '.join(errors)}." if errors else ""),
        lines,
        ["images of", "images", "confidence (%)", "accuracy (%)"],
        cells,
    )

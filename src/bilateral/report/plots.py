"""Curves of one run, or of several in one drawing: training, budget, steps; and a scatter plot."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.ticker import MaxNLocator

from bilateral.budgets import fraction_text
from bilateral.report.charts import Drawing, Line, draw_line, draw_svg, listed
from bilateral.report.gather import RunFiles
from bilateral.report.measures import Headline, attack_measures
from bilateral.report.reading import count, mapping, number, points, share, text

WIDEST = 32 / 255
"""Budgets up to this one are drawn, or up to four times the diagnosed one."""
ALIGNMENT = (
    "Training attack: accuracy under it, on the guard's images. Alignment: cosine of the gradients "
    "at an image and at a random point of its ball; it falls when one-step training collapses."
)
Kind = Callable[[Any], float | None]
READINGS = {
    "clean_accuracy": "clean, in training",
    "adversarial_accuracy": "adversarial, in training",
    "check/clean": "clean",
    "check/fgsm": "FGSM",
    "check/pgd10": "PGD-10",
}
"""By their paths in the log; `check/` readings are on the guard's images."""


def _series(files: RunFiles, path: str, kind: Kind = share) -> list[tuple[float, float]]:
    """A reading of the log by epoch; nested readings are named `part/name`."""
    *parts, name = path.split("/")
    found = []
    for place, record in enumerate(files.epochs, start=1):
        inner = record
        for part in parts:
            inner = mapping(inner.get(part))
        value, epoch = kind(inner.get(name)), count(record.get("epoch")) or place
        if value is not None:
            found.append((epoch, value))
    return sorted(found)


def _parts(files: RunFiles, part: str) -> list[str]:
    """The paths of all numbers in one part of the log's records."""
    return list(
        dict.fromkeys(
            f"{part}/{name}"
            for record in files.epochs
            for name, value in mapping(record.get(part)).items()
            if number(value) is not None
        )
    )


def _ends(lines: Sequence[Line], scale: float = 1, unit: str = "") -> str:
    """Where each line begins and ends, in words; with its last epoch if other lines are longer."""
    drawn = [line for line in lines if line.points]
    last = max((line.points[-1][0] for line in drawn), default=0)

    def end(line: Line) -> str:
        epoch, value = line.points[-1]
        return f"{scale * value:.3g}{unit}" + (f" in epoch {epoch:g}" if epoch < last else "")

    return "; ".join(
        f"{line.name}: from {scale * line.points[0][1]:.3g}{unit} to {end(line)}" for line in drawn
    )


def _per_cent(axes: Any) -> None:
    axes.set_ylim(0, 100)
    axes.set_ylabel("accuracy (%)")


def loss_curve(runs: Sequence[RunFiles], salt: str) -> Drawing | None:
    """The training loss of each run."""
    lines = _of_runs(runs, lambda run: _series(run, "loss", number))
    if not lines:
        return None

    def paint(axes: Any) -> None:
        for line in lines:
            draw_line(axes, line)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("epoch")
        axes.set_ylabel("training loss")

    return Drawing(
        "Training loss",
        draw_svg(paint, f"{salt}-loss"),
        f"Training loss by epoch. {_ends(lines)}",
        lines=lines if len(runs) > 1 else [],
    )


def accuracy_curves(files: RunFiles, salt: str) -> Drawing | None:
    """All accuracies that training logged."""
    paths = dict.fromkeys(["clean_accuracy", "adversarial_accuracy"])
    paths |= dict.fromkeys(path for part in ("check", "held_out") for path in _parts(files, part))
    where = {True: ", on held-out images", False: ", on fixed training images", None: ""}
    named = {
        path: READINGS.get(path, path.replace("_", " "))
        + (where[_holds_out(files)] if path.startswith("check/") else "")
        for path in paths
    }
    drawing = _accuracies("Accuracy during training", files, named, f"{salt}-accuracy")
    said = [f"Attacked at {budget}." if (budget := _trained_at(files)) else "", _kept(files)]
    return drawing and replace(drawing, caption=" ".join(filter(None, said)))


def guard_curves(files: RunFiles, salt: str) -> Drawing | None:
    """The guard's readings: accuracies, and the alignment of gradients, as fractions."""
    named = {path: path.partition("/")[2].replace("_", " ") for path in _parts(files, "guard")}
    drawing = _accuracies("Guard readings", files, named, f"{salt}-guard", percent=False)
    if drawing is None or "guard/alignment" not in named:
        return drawing
    return replace(drawing, caption=ALIGNMENT)


def _holds_out(files: RunFiles) -> bool | None:
    """Whether the guard's images were held out of training; None if no file says."""
    held_out = count(mapping(files.config.get("data")).get("held_out"))
    return None if held_out is None else held_out > 0


def guard_events(files: RunFiles) -> list[tuple[str, str]]:
    """The guard's messages, by epoch."""
    return [
        (f"{count(record.get('epoch')) or place}", said)
        for place, record in enumerate(files.epochs, start=1)
        if (said := text(mapping(record.get("guard")).get("event")))
    ]


def _accuracies(
    title: str, files: RunFiles, named: dict[str, str], salt: str, percent: bool = True
) -> Drawing | None:
    kind = share if percent else number
    lines = [Line(name, _series(files, path, kind), 0) for path, name in named.items()]
    lines = [Line(line.name, line.points, look) for look, line in enumerate(lines) if line.points]
    if not lines:
        return None

    def paint(axes: Any) -> None:
        for line in lines:
            draw_line(axes, line, percent)
        axes.set_xlabel("epoch")
        if percent:
            _per_cent(axes)
        else:
            axes.set_ylabel("reading")

    scale, unit = (100, " %") if percent else (1, "")
    summary = f"{title} by epoch. {_ends(lines, scale, unit)}"
    return Drawing(title, draw_svg(paint, salt), summary, lines=lines)


def _draw_shares(axes: Any, lines: Sequence[Line]) -> None:
    """Lines of fractions on an axis in per cent."""
    for line in lines:
        draw_line(axes, line, percent=True)
    _per_cent(axes)


def robust_during_training(runs: Sequence[RunFiles], salt: str) -> Drawing | None:
    """PGD-10 on fixed images, of each run."""
    lines = _of_runs(runs, lambda run: _series(run, "check/pgd10"))
    if not lines:
        return None

    def paint(axes: Any) -> None:
        _draw_shares(axes, lines)
        axes.set_xlabel("epoch")

    return Drawing(
        "PGD-10 accuracy during training",
        draw_svg(paint, f"{salt}-check"),
        f"Accuracy under PGD-10 by epoch. {_ends(lines, 100, ' %')}",
        _guarded(runs),
        lines,
    )


def _guarded(runs: Sequence[RunFiles]) -> str:
    """Which images the guard reads, and at which budgets it attacks them."""
    budgets: dict[str, list[str]] = {}
    for run in runs:
        budgets.setdefault(_trained_at(run) or "a budget that is not recorded", []).append(run.name)
    at = "; ".join(f"at {budget} in {', '.join(names)}" for budget, names in budgets.items())
    if len(budgets) == 1:
        at = f"at {next(iter(budgets))}"
    held_out = [run.name for run in runs if _holds_out(run)]
    if len(held_out) == len(runs):
        said = "On images held out of training."
    elif not held_out:
        said = "On fixed training images: no run held any out."
    else:
        names = ", ".join(held_out)
        said = f"On images held out of training in {names}; on training images in others."
    return " ".join([said, f"{at[0].upper()}{at[1:]}.", *filter(None, map(_kept, runs))])


def _trained_at(run: RunFiles) -> str:
    """The budget of a run's training attack, which is that of its readings too."""
    epsilon = number(mapping(run.config.get("adversary")).get("epsilon"))
    return fraction_text(epsilon) if epsilon else ""


def _kept(run: RunFiles) -> str:
    """Which epoch's weights a run ended with, if it kept those of its best reading."""
    taken = [record for record in run.epochs if record.get("kept") is True]
    return f"{run.name} kept the weights of epoch {count(taken[-1].get('epoch'))}." if taken else ""


def budget_curve(runs: Sequence[RunFiles], salt: str) -> Drawing | None:
    """Accuracy under PGD against the budget; for a single run also what `evaluate` measured."""
    curves = [points(_curves(run).get("epsilon"), "epsilon") for run in runs]
    known = [number(run.diagnosis.get("epsilon")) or 0.0 for run in runs]
    widest = max([WIDEST, *(4 * epsilon for epsilon in known)]) + 1e-9
    lines = [
        Line(run.name if len(runs) > 1 else "PGD", curve, look)
        for look, (run, curve) in enumerate(zip(runs, curves, strict=True))
        if curve
    ]
    if not lines:
        return None
    measured: dict[str, list[tuple[float, float]]] = {}
    for one in attack_measures(runs[0]) if len(runs) == 1 else []:
        if one.epsilon is not None and 0 <= one.epsilon <= widest and one.distance is None:
            measured.setdefault(one.attack, []).append((one.epsilon, one.accuracy))
    found = sorted(measured.items(), key=lambda item: min(y for _, y in item[1]))[:3]
    lines += [
        Line(f"{name}, from evaluate", sorted(where), look, joined=False)
        for look, (name, where) in enumerate(found, start=1)
    ]

    def paint(axes: Any) -> None:
        for line in lines:
            shown = [(255 * x, y) for x, y in line.points if x <= widest]
            draw_line(axes, Line(line.name, shown, line.look, line.joined), percent=True)
        axes.set_xlim(left=0)
        _per_cent(axes)
        axes.set_xlabel("budget (255ths)")

    head, cells = listed(lines, "budget", lambda x: fraction_text(x) if x else "0")
    beyond = any(x > widest for line in lines for x, _ in line.points)
    return Drawing(
        "Accuracy against the budget",
        draw_svg(paint, f"{salt}-budget"),
        f"Accuracy under PGD against the L-inf budget. {_ends(lines, 100, ' %')}",
        f"{_protocol(runs)}{' Larger budgets are listed under Numbers.' if beyond else ''}",
        lines,
        head,
        cells,
    )


def steps_curve(runs: Sequence[RunFiles], salt: str) -> Drawing | None:
    """Accuracy at PGD's last iterate against its steps: the paper's figure."""
    lines = _of_runs(runs, lambda run: points(_curves(run).get("steps"), "steps"))
    if not lines:
        return None
    places = sorted({x for line in lines for x, _ in line.points})

    def paint(axes: Any) -> None:
        for line in lines:
            draw_line(axes, line, percent=True)
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        axes.set_xticks(places, [f"{x:g}" for x in places])
        axes.minorticks_off()
        axes.set_xlim(left=0)
        _per_cent(axes)
        axes.set_xlabel("PGD steps")

    head, cells = listed(lines, "steps", lambda x: f"{x:g}")
    return Drawing(
        "Accuracy against attack steps",
        draw_svg(paint, f"{salt}-steps"),
        f"Accuracy at PGD's last iterate against its steps. {_ends(lines, 100, ' %')}",
        f"The paper's figure. {_protocol(runs)} At the last iterate.",
        lines if len(runs) > 1 else [],
        head,
        cells,
    )


def scatter(runs: Sequence[RunFiles], heads: Sequence[Headline], salt: str) -> Drawing | None:
    """Clean accuracy against accuracy under the strongest attack, a mark per run."""
    lines, cells = [], []
    alike: set[tuple[str, str]] = set()
    for look, (run, head) in enumerate(zip(runs, heads, strict=True)):
        robust = head.autoattack or head.worst or head.pgd
        if head.clean is not None and robust is not None:
            where = [(100 * head.clean.accuracy, robust.accuracy)]
            lines.append(Line(run.name, where, look, joined=False))
            shares = [f"{100 * one.accuracy:.1f}" for one in (head.clean, robust)]
            cells.append([run.name, *shares, robust.attack, robust.epsilon_text])
            cells[-1] += [f"{robust.images:,}" if robust.images else "", robust.data]
            alike.add((robust.data, robust.epsilon_text))
    if not lines:
        return None

    def paint(axes: Any) -> None:
        _draw_shares(axes, lines)
        axes.set_xlim(max(0, min(90.0, *(line.points[0][0] - 5 for line in lines))), 100)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.set_xlabel("clean accuracy (%)")
        axes.set_ylabel("accuracy under attack (%)")

    said = "; ".join(
        f"{line.name}: clean {line.points[0][0]:.1f} %, attacked {100 * line.points[0][1]:.1f} %"
        for line in lines
    )
    return Drawing(
        "Clean against robust",
        draw_svg(paint, f"{salt}-scatter"),
        f"One mark per run. {said}",
        "Under attack means AutoAttack where it was run, else the worst case over the attacks that "
        "were run: Numbers says which."
        + ("" if len(alike) == 1 else " Not all are on the same data or at the same budget."),
        lines,
        ["run", "clean (%)", "attacked (%)", "attack", "budget", "images", "data"],
        cells,
    )


def _of_runs(runs: Sequence[RunFiles], series: Any) -> list[Line]:
    """A line per run; a run's line looks the same in all drawings."""
    found = [Line(run.name, series(run), look) for look, run in enumerate(runs)]
    return [line for line in found if line.points]


def _curves(run: RunFiles) -> dict[str, Any]:
    """The diagnosis's own curves, or those that older versions put only into `curves.json`."""
    return mapping(run.diagnosis.get("curves")) or run.curves


def _protocol(runs: Sequence[RunFiles]) -> str:
    """How the diagnosis measured its curves: attack, budget, images."""
    said = []
    for run in filter(_curves, runs):
        images = count(run.diagnosis.get("images"))
        steps = count(mapping(run.diagnosis.get("effort")).get("steps"))
        budget = text(run.diagnosis.get("epsilon_text"))
        known = [f"PGD-{steps}" if steps else "PGD", f"at {budget}" if budget else ""]
        known.append(f"on {images:,} images" if images else "")
        known.append(f"of {data}" if (data := text(run.diagnosis.get("data"))) else "")
        said.append(" ".join(word for word in known if word))
    return f"Diagnosed with {', '.join(dict.fromkeys(said))}."

"""The page: run folders in, one self-contained HTML file out."""

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as packaged
from typing import Any

import jinja2
from markupsafe import Markup

import bilateral
from bilateral.report import plots, plots_checks, sections
from bilateral.report.charts import LEGEND_MARKS, Drawing, dashes, mark
from bilateral.report.gallery import gallery
from bilateral.report.gather import RunFiles
from bilateral.report.measures import Headline, Measure, attack_measures, headline
from bilateral.report.transfer import TransferMatrix

DETAILED = 4
"""Up to this many runs get drawings of their own: a drawing takes a twentieth of a second."""


@dataclass(frozen=True)
class RunView:
    """One run as the template shows it."""

    files: RunFiles
    head: Headline
    attacks: list[Measure]
    training: list[Drawing]
    curves: list[Drawing]
    gradients: list[Drawing]
    surface: list[Drawing]
    reliability: Drawing | None


def render(runs: Sequence[RunFiles], transfer: TransferMatrix | None = None) -> str:
    """The page of one run, or of several side by side."""
    detailed = len(runs) <= DETAILED
    views = [_view(run, f"run{place}", detailed) for place, run in enumerate(runs)]
    script = _packaged("page.js")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_packaged),
    )
    environment.globals |= {
        "accuracy": sections.accuracy,
        "a_image": sections.a_image,
        "dashes": dashes,
        "gradient_table": plots_checks.gradient_table,
        "mark": lambda look: Markup(LEGEND_MARKS[mark(look)]),
        "plots": plots,
        "sections": sections,
        "spread": sections.spread,
    }
    pictures = gallery(runs)
    return environment.get_template("page.html.j2").render(
        version=bilateral.__version__,
        title=runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared",
        views=views,
        detailed=detailed,
        together=_together(runs, [view.head for view in views]) if len(runs) > 1 else [],
        differing=sections.differing(runs) if len(runs) > 1 else [],
        transfer=transfer,
        gallery=_harmless(pictures),
        examples=len(pictures["examples"]),
        left_out=pictures["left_out"],
        style=Markup(_packaged("style.css")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _view(files: RunFiles, salt: str, detailed: bool) -> RunView:
    head = headline(files)
    training: list[Drawing | None] = []
    curves: list[Drawing | None] = []
    if detailed:
        training = [
            plots.loss_curve([files], salt),
            plots.accuracy_curves(files, salt),
            plots.guard_curves(files, salt),
        ]
        curves = [plots.budget_curve([files], salt), plots.steps_curve([files], salt)]
    return RunView(
        files=files,
        head=head,
        attacks=attack_measures(files),
        training=[one for one in training if one],
        curves=[one for one in curves if one],
        gradients=plots_checks.histograms(files, salt) if detailed else [],
        surface=plots_checks.surface(files, salt) if detailed else [],
        reliability=plots_checks.reliability(files, salt) if detailed else None,
    )


def _together(runs: Sequence[RunFiles], heads: Sequence[Headline]) -> list[Drawing]:
    """The curves of all runs, drawn over each other."""
    found = [
        plots.scatter(runs, heads, "all"),
        plots.budget_curve(runs, "all"),
        plots.steps_curve(runs, "all"),
        plots.robust_during_training(runs, "all"),
        plots.loss_curve(runs, "all"),
    ]
    return [one for one in found if one]


def _harmless(value: Any) -> Markup:
    """JSON that cannot end the script element that holds it."""
    written = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        written = written.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(written)


def _packaged(name: str) -> str:
    """The text of a file beside this module."""
    return packaged("bilateral.report").joinpath(name).read_text(encoding="utf-8")

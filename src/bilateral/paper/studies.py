"""Sweeps in `results/` as Markdown: ranked, side by side, choice by choice; no torch.

They are judged on images held out of training, at two budgets, so that nothing is chosen on the
test set.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bilateral.budgets import fraction_text
from bilateral.errors import UserError
from bilateral.paper.rendering import way
from bilateral.reading import read_json
from bilateral.tables import render
from bilateral.trials import (
    NOT_STARTED,
    Trial,
    crossed,
    effects,
    means,
    parts,
    ranked,
    ranking,
    stored_trial,
)

NOT_MEASURED = "Not measured yet."


class Study:
    """A sweep's file: its trials, how they were judged, and where they ran."""

    def __init__(self, path: Path) -> None:
        try:
            found = read_json(path)
            self.trials: list[Trial] = [stored_trial(one) for one in found["trials"]]
            self.judging: dict[str, Any] = dict(found["judging"])
            self.plan: dict[str, Any] = dict(found["plan"])
            self.attacks = f"{self.judging['attacks']} at {fraction_text(self.judging['epsilon'])}"
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is not a sweep ({error})") from None

    @property
    def budgets(self) -> dict[str, str]:
        """The budgets shown, by their key in a trial; that of the one that ranks is empty."""
        further = {text: text for trial in self.trials for text in trial.also}
        return {"": fraction_text(self.judging["epsilon"]), **further}

    def way(self) -> str:
        """How it was measured, in a line."""
        plan = self.plan
        made = [one for one in self.trials if one.versions and one.status != NOT_STARTED]
        where = {
            key: " and ".join(
                dict.fromkeys(one for trial in made for one in parts(trial.versions[key]))
            )
            for key in ("device", "commit")
        }
        counts = sorted({trial.images for trial in made if trial.images}) or [0]
        images = " or ".join(f"{count:,}" for count in counts)
        runs = "1 run" if len(made) == 1 else f"{len(made)} runs"
        fields = (_option(path, value) for path, value in plan["fields"].items())
        return (
            f"- {runs} of `{plan['recipe']}{''.join(fields)}`, judged on {images} "
            f"held-out images: {way({**plan, **where}, plan['command'])}"
        )


def _option(path: str, value: object) -> str:
    """A field as it is written on the command line; a switch has no value."""
    group, dot, name = path.replace("_", "-").rpartition(".")
    if isinstance(value, bool):
        return f" --{group}{dot}{'' if value else 'no-'}{name}"
    return f" --{group}{dot}{name} {value}"


def ranking_page(path: Path) -> str:
    """Every trial, best first, the dropped ones too, and means where there are several seeds."""

    def parts(study: Study) -> list[str]:
        trials = ranked(study.trials)
        shown = [render(ranking(trials, study.attacks), "markdown")]
        if len({trial.name.rpartition("/")[2] for trial in trials}) > 1:
            shown.append(render(means(trials, study.attacks), "markdown"))
        return shown

    return _page(path, parts)


def crossed_page(path: Path) -> str:
    """A grid's last axis side by side at each budget; then what each axis brings."""

    def parts(study: Study) -> list[str]:
        axes = study.plan["axes"]
        *_, last = axes
        shown = []
        for key, text in study.budgets.items():
            title = f"Robust accuracy (%) under {study.judging['attacks']} at {text}:"
            shown += [title, render(crossed(study.trials, axes, last, key), "markdown")]
        for axis in axes:
            table = effects(study.trials, axes, axis)
            shown += [render(table, "markdown")] if table[1] else []
        return shown

    return _page(path, parts)


def _page(path: Path, parts: Callable[[Study], Sequence[str]]) -> str:
    if not path.exists():
        return NOT_MEASURED
    study = Study(path)
    return "\n\n".join([*parts(study), study.way()])

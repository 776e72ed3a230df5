"""The runs of a sweep and their outcomes, as values and as tables; no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from statistics import mean
from typing import Any

from bilateral.config import Run
from bilateral.tables import ABSENT, Table, percent

NOT_STARTED = "not started"


@dataclass(frozen=True)
class Planned:
    """A run that a sweep's file asks for."""

    run: Run
    fields: Mapping[str, Any]
    """those in which it differs from the sweep's other runs"""
    chosen: Mapping[str, str]
    """its value on each axis of the sweep, as text"""


@dataclass
class Trial:
    """One run of a sweep and its outcome."""

    name: str
    fields: Mapping[str, Any]
    status: str = NOT_STARTED
    clean_accuracy: float | None = None
    robust_accuracy: float | None = None
    interval: tuple[float, float] | None = None
    images: int = 0
    seconds: float = 0.0
    early: dict[int, float] = field(default_factory=dict)
    """PGD-10 accuracy at the guard's readings, by epoch"""
    also: dict[str, float] = field(default_factory=dict)
    """robust accuracy at further budgets, by their texts"""
    chosen: Mapping[str, str] = field(default_factory=dict)
    """`Planned.chosen`"""
    config_digest: str = ""
    code_digest: str = ""
    """of the user's own network; empty for ours, and if an older version trained it"""
    versions: Mapping[str, str] = field(default_factory=dict)
    """where it was trained and judged: device, commit, torch"""

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to do."""
        return self.status == "done" or self.status.startswith("dropped")

    def unjudged(self) -> "Trial":
        """The trial with its training but without its judgement, to be judged again."""
        if self.robust_accuracy is None:  # dropped, say, which does not depend on the judging
            return self
        return replace(
            self,
            status=NOT_STARTED,
            clean_accuracy=None,
            robust_accuracy=None,
            interval=None,
            images=0,
            also={},
        )

    def robust(self, budget: str = "") -> float | None:
        """Robust accuracy at the budget that ranks, or at a further one by its text."""
        return self.also.get(budget) if budget else self.robust_accuracy


def stored_trial(stored: dict[str, Any]) -> Trial:
    """A trial as it was written."""
    early = {int(epoch): float(share) for epoch, share in stored["early"].items()}
    return Trial(**{**stored, "early": early})


def both_versions(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """The versions of work that was begun under some and resumed under others, newest last."""
    return {
        key: " and ".join([*(one for one in parts(before.get(key, "")) if one != value), value])
        for key, value in now.items()
    }


def parts(version: str) -> list[str]:
    """The versions that `both_versions` joined."""
    return version.split(" and ") if version else []


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Best first; dropped or failed trials come after, by their last reading."""

    def key(trial: Trial) -> tuple[bool, float]:
        last = trial.early[max(trial.early)] if trial.early else -1.0
        robust = trial.robust_accuracy
        return (robust is not None, last if robust is None else robust)

    return sorted(trials, key=key, reverse=True)


def outcome(trial: Trial) -> str:
    """The outcome of a trial in one line."""
    if trial.robust_accuracy is None or trial.clean_accuracy is None:
        return trial.status
    clean, robust = 100 * trial.clean_accuracy, 100 * trial.robust_accuracy
    return f"{robust:.1f} % under attack, {clean:.1f} % clean, {trial.seconds:.0f} s"


def ranking(trials: Sequence[Trial], attacks: str) -> Table:
    """The trials, best first; a highest reading well above the last points to overfitting."""
    also = list(dict.fromkeys(text for trial in trials for text in trial.also))
    head = ["run", f"{attacks} (%)", "95 % interval", *(f"at {text} (%)" for text in also)]
    head += ["clean (%)", "images", "highest reading (epoch), last (%)", "training (s)"]
    lines = []
    for trial in trials:
        cells = [trial.name]
        if trial.robust_accuracy is None or trial.clean_accuracy is None or not trial.interval:
            cells += ["", trial.status, *("" for _ in also), "", ""]
        else:
            low, high = (100 * value for value in trial.interval)
            cells += [percent(trial.robust_accuracy), f"{low:.1f} to {high:.1f}"]
            cells += [percent(trial.also[text]) if text in trial.also else "" for text in also]
            cells += [percent(trial.clean_accuracy), f"{trial.images:,}"]
        lines.append([*cells, _readings(trial), f"{trial.seconds:,.0f}"])
    return head, lines


def _readings(trial: Trial) -> str:
    if not trial.early:
        return ""
    highest = max(trial.early, key=lambda epoch: (trial.early[epoch], epoch))
    last = trial.early[max(trial.early)]
    return f"{percent(trial.early[highest])} ({highest}), {percent(last)}"


def means(trials: Sequence[Trial], attacks: str) -> Table:
    """Each configuration over its seeds, best first."""
    groups: dict[str, list[float]] = {}
    for trial in trials:
        if trial.robust_accuracy is not None:
            groups.setdefault(trial.name.rpartition("/")[0], []).append(trial.robust_accuracy)
    lines = [
        [name, percent(mean(values)), percent(max(values) - min(values)), str(len(values))]
        for name, values in sorted(groups.items(), key=lambda item: -mean(item[1]))
    ]
    return ["run", f"{attacks} (%), mean", "spread (%)", "seeds"], lines


def crossed(
    trials: Sequence[Trial], axes: Mapping[str, Sequence[str]], axis: str, budget: str = ""
) -> Table:
    """Robust accuracy with the values of one axis side by side, a row per choice on the others.

    Empty rows are left out. Several seeds of a configuration are one cell: their mean, and the
    smallest and the largest.
    """
    others = {name: values for name, values in axes.items() if name != axis}
    lines = []
    for line in product(*others.values()):
        rest = dict(zip(others, line, strict=True))
        alike = [trial for trial in trials if rest.items() <= trial.chosen.items()]
        cells = [[one for one in alike if one.chosen[axis] == value] for value in axes[axis]]
        texts = [_cell(cell, budget) for cell in cells]
        if any(text != ABSENT for text in texts):
            lines.append([*line, *texts])
    return [*others, *axes[axis]], lines


def _cell(trials: Sequence[Trial], budget: str) -> str:
    values = [value for trial in trials if (value := trial.robust(budget)) is not None]
    if not values:
        return "dropped" if any(trial.status.startswith("dropped") for trial in trials) else ABSENT
    if len(values) == 1:
        return percent(values[0])
    return f"{percent(mean(values))} ({percent(min(values))} to {percent(max(values))})"


def effects(
    trials: Sequence[Trial], axes: Mapping[str, Sequence[str]], axis: str, budget: str = ""
) -> Table:
    """The effect of each value of an axis against its first one, all else equal, the seed too.

    The mean difference in points, the smallest and largest, and how often it was an improvement.
    """
    found: dict[tuple[str, ...], dict[str, float]] = {}
    for trial in trials:
        if (robust := trial.robust(budget)) is not None:
            rest = [trial.chosen[name] for name in axes if name != axis]
            key = (*rest, trial.name.rpartition("/")[2])
            found.setdefault(key, {})[trial.chosen[axis]] = robust
    first, *others = axes[axis]
    lines = []
    for value in others:
        pairs = [
            100 * (one[value] - one[first])
            for one in found.values()
            if value in one and first in one
        ]
        if pairs:
            better = sum(pair > 0 for pair in pairs)
            middle = round(mean(pairs), 1) + 0.0  # -0.04 is no loss
            cells = [f"{middle:+.1f}", f"{min(pairs):+.1f} to {max(pairs):+.1f}"]
            lines.append([value, *cells, f"{better} of {len(pairs)}"])
    return [f"{axis}, beside {first}", "mean (points)", "from, to", "better"], lines

"""Several configurations under one time budget, ranked by what they keep on held-out images.

Choosing by the test set would flatter what is chosen, so every run of a sweep holds training
images out and is judged on them. Each is a normal run folder, and the sweep goes on where it was.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from bilateral.config import Machine, Run, config_digest
from bilateral.data.datasets import Split, load_training
from bilateral.data.device_images import DeviceImages
from bilateral.errors import TrainingError, UserError
from bilateral.evaluation.robustness import evaluate
from bilateral.evaluation.target import trained_model
from bilateral.reading import read_json
from bilateral.results import Evaluation, wilson_interval
from bilateral.runs import RunFolder
from bilateral.runtime import limit_threads
from bilateral.storage import write_json, writing_to
from bilateral.training.guard import GUARD_IMAGES
from bilateral.training.preparation import training_part
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train

EARLY = 3
"""A run is compared with the others after a third of its epochs."""


NOT_STARTED = "not started"


class Dropped(Exception):  # noqa: N818 - an outcome, not a mistake
    """An early reading says that a run is hopeless."""


@dataclass
class Trial:
    """One run of a sweep and what became of it."""

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
    config_digest: str = ""


class Early(TrainingProgress):
    """Looks at a run's readings as they come, and drops it when it is hopeless."""

    def __init__(self, trial: Trial, others: Sequence[Trial], images: int, quiet: bool) -> None:
        super().__init__(quiet)
        self.trial, self.others, self.images = trial, others, images

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Compare with what the best of the others had at the same epoch."""
        super().epoch(record, epochs)
        reading, number = record.get("check"), record["epoch"]
        if reading is None:
            return
        self.trial.early[number] = reading["pgd10"]
        if number < epochs // EARLY or number == epochs:
            return
        others = (other for other in self.others if other is not self.trial)
        before = [other.early[number] for other in others if number in other.early]
        if before and hopeless(reading["pgd10"], max(before), self.images):
            raise Dropped(
                f"dropped after epoch {number}: PGD-10 {100 * reading['pgd10']:.1f} % "
                f"where another had {100 * max(before):.1f} %"
            )


def alike(one: Run, other: Run) -> bool:
    """Whether early readings can be compared: attacked at one budget, as far on the way."""
    return (
        one.adversary.epsilon == other.adversary.epsilon
        and (one.epochs, one.optimiser.schedule) == (other.epochs, other.optimiser.schedule)
        and one.optimiser.milestones == other.optimiser.milestones
    )


def hopeless(robust: float, best: float, images: int) -> bool:
    """Whether a share is surely below half of the best, by the 95 % intervals of both.

    Runs that end alike differ by a third of their reading early on, so no less would do.
    """
    _, most = wilson_interval(round(robust * images), images)
    least, _ = wilson_interval(round(best * images), images)
    return 2 * most < least


@dataclass(frozen=True)
class Judging:
    """By what trials are ranked."""

    attacks: str
    epsilon: float


class Sweep:
    """The work on a list of runs, in their order, until the time is spent."""

    def __init__(
        self,
        runs: Mapping[str, tuple[Run, Mapping[str, Any]]],
        out: Path,
        judging: Judging,
        seconds: float,
        device: torch.device,
        say: Callable[[str], None],
        machine: Machine | None = None,
        quiet: bool = True,
    ) -> None:
        self.runs, self.out, self.judging, self.seconds = runs, out, judging, seconds
        self.device, self.say, self.machine, self.quiet = device, say, machine, quiet
        self.trials = {
            name: Trial(name, fields, config_digest=config_digest(run))
            for name, (run, fields) in runs.items()
        }
        stored = {name: old for name, old in self._stored().items() if old.status != NOT_STARTED}
        for name, trial in self.trials.items():
            if name in stored and stored[name].config_digest != trial.config_digest:
                raise UserError(
                    f"{self.out / name} was trained with other settings: choose another --out, "
                    "or give the run another name"
                )
        self.trials |= {name: stored[name] for name in self.trials if name in stored}

    @property
    def file(self) -> Path:
        """Where the sweep stands."""
        return self.out / "sweep.json"

    def _stored(self) -> dict[str, Trial]:
        if not self.file.exists():
            return {}
        try:
            found = read_json(self.file)
            trials = found["trials"] if found["judging"] == asdict(self.judging) else []
            for trial in trials:
                trial["early"] = {int(epoch): float(x) for epoch, x in trial["early"].items()}
            return {trial["name"]: Trial(**trial) for trial in trials}
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{self.file} is damaged ({error}); remove it") from None

    def work(self) -> list[Trial]:
        """Train and judge what is left; the trials, best first."""
        with writing_to(self.out):
            started = time.monotonic()
            for name, (run, _) in self.runs.items():
                trial = self.trials[name]
                if trial.status == "done" or trial.status.startswith("dropped"):
                    continue
                if time.monotonic() - started >= self.seconds:
                    self.say(f"{name}: not started, the time is spent")
                    continue
                self._try(trial, run)
                self.say(f"{name}: {outcome(trial)}")
                self._write()
            self._write()
        return ranked(list(self.trials.values()))

    def _try(self, trial: Trial, run: Run) -> None:
        folder = RunFolder(self.out / trial.name)
        split = load_training(run)
        limit_threads(self.device, split.image_values)
        others = [self.trials[name] for name, (other, _) in self.runs.items() if alike(other, run)]
        try:
            images = min(GUARD_IMAGES, run.data.held_out)
            progress = Early(trial, others, images, self.quiet)
            train(run, folder, split, self.device, progress, self.machine)
        except (Dropped, TrainingError) as error:
            trial.status = str(error)
        for record in folder.records():  # some epochs may be of an earlier call
            if "check" in record:
                trial.early[record["epoch"]] = record["check"]["pgd10"]
        trial.seconds = folder.last_record().get("seconds", 0.0)
        if not folder.weights.exists():
            return
        _, held_out = training_part(split, run)
        assert held_out is not None
        found = self._judged(folder, held_out)
        trial.status = "done"
        trial.clean_accuracy, trial.images = found.clean_accuracy, found.images
        trial.robust_accuracy, trial.interval = (
            found.worst_case_accuracy,
            found.worst_case_interval,
        )

    def _judged(self, folder: RunFolder, held_out: Split) -> Evaluation:
        """Attack the held-out images; also written beside the run, as `held-out.json`."""
        _, model = trained_model(folder, self.device)
        known = DeviceImages(held_out, self.device)
        numbers = torch.arange(len(held_out.labels), device=self.device)
        found = evaluate(
            model,
            known.floats(numbers),
            known.labels[numbers],
            self.judging.attacks,
            self.judging.epsilon,
        )
        write_json(folder.path / "held-out.json", found.model_dump(mode="json"))
        return found

    def _write(self) -> None:
        trials = [asdict(trial) for trial in ranked(list(self.trials.values()))]
        write_json(self.file, {"schema": 1, "judging": asdict(self.judging), "trials": trials})


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """Best first; what was dropped or failed after it, by its last reading."""

    def key(trial: Trial) -> tuple[bool, float]:
        last = trial.early[max(trial.early)] if trial.early else -1.0
        robust = trial.robust_accuracy
        return (robust is not None, last if robust is None else robust)

    return sorted(trials, key=key, reverse=True)


def outcome(trial: Trial) -> str:
    """What became of a trial, in a line."""
    if trial.robust_accuracy is None or trial.clean_accuracy is None:
        return trial.status
    clean, robust = 100 * trial.clean_accuracy, 100 * trial.robust_accuracy
    return f"{robust:.1f} % under attack, {clean:.1f} % clean, {trial.seconds:.0f} s"

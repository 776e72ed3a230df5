"""Several configurations under one time budget, ranked by robust accuracy on held-out images.

Choosing by the test set would flatter what is chosen, so every run of a sweep holds out training
images and is judged on them. Each has a normal run folder, and an interrupted sweep resumes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bilateral.attacks.table import Members, attack_members, attack_names
from bilateral.config import Run, config_digest
from bilateral.data.datasets import Split, load_training
from bilateral.data.device_images import DeviceImages
from bilateral.errors import TrainingError, UserError
from bilateral.evaluation.attack_files import same_settings
from bilateral.evaluation.robustness import evaluate
from bilateral.evaluation.target import code_digest, trained_model
from bilateral.jobs import run_together
from bilateral.machine import Machine
from bilateral.reading import read_json
from bilateral.results import Evaluation, wilson_interval
from bilateral.runs import RunFolder, changed_settings
from bilateral.runtime import commit, limit_threads, versions
from bilateral.storage import write_json, writing_to
from bilateral.training.preparation import numbers_read, training_part
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import train
from bilateral.trials import (
    NOT_STARTED,
    Planned,
    Trial,
    both_versions,
    outcome,
    ranked,
    stored_trial,
)

EARLY = 3
"""A run is compared with the others after a third of its epochs."""


class Dropped(Exception):  # noqa: N818 - an outcome, not a mistake
    """An early reading says that a run is hopeless."""


class Early(TrainingProgress):
    """Compares a run's readings with the others' as they come, and drops a hopeless run.

    The others' are read from their logs: they may be training in another process.
    """

    def __init__(self, folder: RunFolder, run: Run, others: Sequence[RunFolder]) -> None:
        super().__init__(quiet=True)
        self.folder, self.run, self.others = folder, run, others

    def epoch(self, record: dict[str, Any], epochs: int) -> None:
        """Compare with what the best of the others had at the same epoch."""
        super().epoch(record, epochs)
        number = record["epoch"]
        if "check" not in record or number < epochs // EARLY or number == epochs:
            return
        before = []
        for other in self.others:
            with suppress(UserError, LookupError):  # not that far yet, or a half-written line
                before.append(self._standing(other, number))
        own = self._standing(self.folder, number)
        images = min(self.run.images_read, self.run.data.held_out)
        if before and hopeless(own, max(before), images):
            raise Dropped(
                f"dropped after epoch {number}: PGD-10 {100 * own:.1f} % "
                f"where another had {100 * max(before):.1f} %"
            )

    def _standing(self, folder: RunFolder, epoch: int) -> float:
        """A run's reading at an epoch, or its best until then if runs keep their best weights.

        KeyError if the run has no reading at that epoch yet.
        """
        readings = early_readings(folder)
        reading = readings[epoch]
        if self.run.keep == "last":
            return reading
        return max(share for at, share in readings.items() if at <= epoch)


def early_readings(folder: RunFolder) -> dict[int, float]:
    """PGD-10 accuracy at the guard's readings, by epoch."""
    checks = {record["epoch"]: record.get("check") for record in folder.records()}
    return {epoch: check["pgd10"] for epoch, check in checks.items() if check}


def alike(one: Run, other: Run) -> bool:
    """Whether early readings of two runs can be compared: same budget, schedule and readings."""

    def matters(run: Run) -> tuple[Any, ...]:
        rate = run.optimiser
        schedule = (run.epochs, rate.schedule, rate.milestones, rate.last_share)
        return (run.adversary.epsilon, *schedule, run.keep, run.images_read)

    return matters(one) == matters(other)


def hopeless(robust: float, best: float, images: int) -> bool:
    """Whether a share is surely below half of the best, by the 95 % intervals of both.

    Early readings of runs that end alike differ by up to a third, so a tighter limit is unsafe.
    """
    _, most = wilson_interval(round(robust * images), images)
    least, _ = wilson_interval(round(best * images), images)
    return 2 * most < least


@dataclass(frozen=True)
class Judging:
    """The attacks and the budget that rank trials; accuracy at further budgets is only reported."""

    attacks: str
    epsilon: float
    also: tuple[float, ...] = ()


class Sweep:
    """The work on a list of runs, in their order, until time is up."""

    def __init__(
        self,
        runs: Mapping[str, Planned],
        out: Path,
        judging: Judging,
        seconds: float,
        device: torch.device,
        say: Callable[[str], None],
        machine: Machine | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.runs, self.out, self.judging, self.seconds = runs, out, judging, seconds
        self.device, self.say, self.machine = device, say, machine
        self.about = about or {}
        # Read once: a commit made later is not the code that runs.
        self.versions = {**versions(device), "commit": commit()}
        self.members = self._members()
        self.trials = {
            name: Trial(
                name,
                planned.fields,
                chosen=planned.chosen,
                config_digest=config_digest(planned.run),
                code_digest=code_digest(planned.run.model),
            )
            for name, planned in runs.items()
        }
        stored = self._stored()
        for name, trial in self.trials.items():
            old = stored.get(name, trial)
            if old.status != NOT_STARTED or RunFolder(out / name).config.exists():
                self._refuse_another(old, trial)
                # A run's place on the axes is taken from the file: an axis may have been renamed.
                self.trials[name] = replace(
                    old,
                    fields=trial.fields,
                    chosen=trial.chosen,
                    config_digest=trial.config_digest,
                    code_digest=old.code_digest if self._trained(old) else trial.code_digest,
                )

    def _trained(self, trial: Trial) -> bool:
        """Whether any training of it is on disk: a run that failed early leaves nothing."""
        folder = RunFolder(self.out / trial.name)
        return trial.settled or folder.checkpoint.exists() or folder.weights.exists()

    def _refuse_another(self, old: Trial, new: Trial) -> None:
        """Refuse to resume a trial begun with other settings, or with other code of the user's."""
        folder, run = RunFolder(self.out / new.name), self.runs[new.name].run
        advice = "choose another --out, or give the run another name"
        # A digest leaves out fields at their default, and a default may have changed since.
        if folder.config.exists() or old.config_digest != new.config_digest:
            changed = "; ".join(changed_settings(folder.read_run(), run))
            if changed:
                raise UserError(
                    f"{folder.path} was trained with other settings ({changed}): {advice}"
                )
        if self._trained(old) and old.code_digest not in ("", new.code_digest):
            raise UserError(f"{folder.path} was trained with other code of {run.model}: {advice}")

    @property
    def file(self) -> Path:
        """The state of the sweep."""
        return self.out / "sweep.json"

    def _stored(self) -> dict[str, Trial]:
        """The trials on disk: the sweep's own state, updated by runs that were started alone."""
        files = [self.file, *map(self._outcome, self.runs)]
        found = [trial for path in files if path.exists() for trial in self._read(path)]
        return {trial.name: trial for trial in found}

    def _read(self, path: Path) -> list[Trial]:
        """The trials in a file; if they were judged differently, their judgement is dropped."""
        try:
            found = read_json(path)
            trials = [stored_trial(trial) for trial in found["trials"]]
            alike = self._judged_alike(found["judging"])
            return trials if alike else [trial.unjudged() for trial in trials]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path} is damaged ({error}); remove it") from None

    def _judged_alike(self, judging: dict[str, Any]) -> bool:
        """Whether stored trials were judged as now; older versions did not write the settings."""
        settings = judging.get("settings")
        if settings is not None and (
            settings.keys() != self.members.keys()
            or not all(same_settings(settings[name], one) for name, one in self.members.items())
        ):
            return False
        return {**judging, "settings": None} == {**self._judging, "settings": None}

    def work(self) -> list[Trial]:
        """Train and judge the runs that are left, one by one; returns all trials, best first."""
        with writing_to(self.out):
            started = time.monotonic()
            for name, trial in self.trials.items():
                if not trial.settled and time.monotonic() - started < self.seconds:
                    self.keep(self.one(name))
            self._write_all()
        return self._ended()

    def work_together(self, jobs: int, words: Sequence[str]) -> list[Trial]:
        """The same with `jobs` at a time, each by the command `words --trial NAME`."""
        left = [name for name, trial in self.trials.items() if not trial.settled]
        with writing_to(self.out):
            started = time.monotonic()
            run_together(
                {name: [*words, "--trial", name] for name in left},
                jobs,
                lambda name: self.keep(self._left_by(name)),
                lambda: time.monotonic() - started < self.seconds,
            )
            self._write_all()
        return self._ended()

    def one(self, name: str) -> Trial:
        """Train and judge one run; the outcome is also written to its folder."""
        trial = self.trials[name]
        if not trial.settled:
            self._try(trial, self.runs[name].run)
        self._write(self._outcome(name), [trial])
        return trial

    def _left_by(self, name: str) -> Trial:
        """The outcome written by a run's own process, which read the sweep's file afresh."""
        planned = self.trials[name]
        for trial in self._read(self._outcome(name)):
            same = trial.config_digest == planned.config_digest
            if same and trial.code_digest == planned.code_digest and trial.status != NOT_STARTED:
                return trial
        raise UserError(
            f"{name}: the sweep's file or your own code has changed; start the sweep again"
        )

    def keep(self, trial: Trial) -> None:
        """Report a trial and write the state of the sweep."""
        self.trials[trial.name] = trial
        self.say(f"{trial.name}: {outcome(trial)}")
        self._write_all()

    def _outcome(self, name: str) -> Path:
        return self.out / name / "trial.json"

    def _ended(self) -> list[Trial]:
        for name, trial in self.trials.items():
            if trial.status == NOT_STARTED:
                self.say(f"{name}: not started, time is up")
        return ranked(list(self.trials.values()))

    def _try(self, trial: Trial, run: Run) -> None:
        folder = RunFolder(self.out / trial.name)
        self._refuse_changed_code(trial, run)
        before = trial.versions if self._trained(trial) else {}
        trial.versions = both_versions(before, self.versions)
        # To resume after a kill, one must know with which code, and where, it began.
        self._write(self._outcome(trial.name), [trial])
        split = load_training(run)
        limit_threads(self.device, split.image_values)
        others = [
            RunFolder(self.out / name)
            for name, other in self.runs.items()
            if name != trial.name and alike(other.run, run)
        ]
        try:
            train(run, folder, split, self.device, Early(folder, run, others), self.machine)
        except (Dropped, TrainingError) as error:
            trial.status = str(error)
        trial.early = early_readings(folder)
        trial.seconds = folder.last_record().get("seconds", 0.0)
        if not folder.weights.exists():
            return
        _, held_out = training_part(split, run)
        assert held_out is not None
        found, *further = self._judged(folder, run, held_out)
        self._refuse_changed_code(trial, run)
        trial.status = "done"
        trial.clean_accuracy, trial.images = found.clean_accuracy, found.images
        trial.robust_accuracy, trial.interval = (
            found.worst_case_accuracy,
            found.worst_case_interval,
        )
        trial.also = {other.epsilon_text: other.worst_case_accuracy for other in further}

    def _refuse_changed_code(self, trial: Trial, run: Run) -> None:
        """Refuse to rank a trial if the user's own code differs from that of the other trials.

        Their files are read afresh for every trial.
        """
        if trial.code_digest not in ("", code_digest(run.model)) or self._members() != self.members:
            raise UserError(f"{trial.name}: your own code has changed; start the sweep again")

    def _judged(self, folder: RunFolder, run: Run, held_out: Split) -> list[Evaluation]:
        """Attack the held-out images at every budget; results are also written to the run's folder.

        Images by which its weights were chosen are left out.
        """
        _, model = trained_model(folder, self.device)
        known = DeviceImages(held_out, self.device)
        judges = np.arange(len(held_out.labels))
        if run.keep == "best":
            judges = np.setdiff1d(judges, numbers_read(held_out.labels, run))
        numbers = torch.from_numpy(judges).to(self.device)
        images, labels = known.floats(numbers), known.labels[numbers]
        judging = self.judging
        found = [
            evaluate(model, images, labels, judging.attacks, epsilon)
            for epsilon in (judging.epsilon, *judging.also)
        ]
        entries = [one.model_dump(mode="json") for one in found]
        write_json(folder.path / "held-out.json", {"schema": 1, "entries": entries})
        return found

    def _members(self) -> Members:
        """The attacks that judge, with their settings; a user's own attack with its code."""
        judging = self.judging
        found: Members = {}
        for name in attack_names(judging.attacks):
            found |= attack_members(name, judging.epsilon)
        return found

    @property
    def _judging(self) -> dict[str, Any]:
        """The judging as it is written to disk."""
        settings = {name: one.model_dump(mode="json") for name, one in self.members.items()}
        return {**asdict(self.judging), "also": list(self.judging.also), "settings": settings}

    def _write_all(self) -> None:
        self._write(self.file, ranked(list(self.trials.values())))

    def _write(self, path: Path, trials: Sequence[Trial]) -> None:
        rows = [asdict(trial) for trial in trials]
        write_json(
            path, {"schema": 1, "judging": self._judging, "plan": self.about, "trials": rows}
        )

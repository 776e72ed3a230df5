"""The trainer: epochs, checkpoints, the log, and going on exactly where a run stopped.

All randomness follows from (seed, epoch, image), so a checkpoint holds weights, optimiser, step
and the sums of the epoch under way, and a run that goes on equals one that never stopped.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bilateral.attacks.perform import perform
from bilateral.attacks.table import attack_named
from bilateral.attacks.untouched import untouched
from bilateral.config import Machine, Run
from bilateral.data.batches import Batch, Batches
from bilateral.data.datasets import Split
from bilateral.data.photograph_batches import PhotographBatches, judge_unreadable
from bilateral.data.subsets import balanced_subset, per_class_subset
from bilateral.errors import Interrupted, TrainingError, UserError
from bilateral.labels import default_ratio
from bilateral.models import build_model
from bilateral.models.probe import output_of
from bilateral.processes import Processes, is_lost_process
from bilateral.randomness import image_keys, purpose_key
from bilateral.runs import RunFolder
from bilateral.runtime import (
    StopRequest,
    exact_float32,
    has_bfloat16,
    place,
    synchronise,
    versions,
)
from bilateral.training.averaging import AveragedWeights
from bilateral.training.checkpoint import read_checkpoint, write_checkpoint
from bilateral.training.engine import Engine, Speed, Totals
from bilateral.training.optimiser import build_optimiser, go_on_with, learning_rate
from bilateral.training.progress import TrainingProgress
from bilateral.training.tracking import Tracking, require_tensorboard
from bilateral.weights import read_weights, write_weights

CHECK_IMAGES = 500
_SUBSET, _CHECK = 5, 6


class Trainer:
    """One run from its configuration to `model.safetensors`."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        split: Split,
        device: torch.device,
        progress: TrainingProgress,
        machine: Machine | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.run, self.folder, self.device, self.progress = run, folder, device, progress
        self.machine, self.processes = machine or Machine(), processes or Processes()
        check_labels(split, run.data.name)
        if run.data.images_per_class is not None:
            split = per_class_subset(
                split, run.data.images_per_class, purpose_key(run.seed, _SUBSET)
            )
        self.split = split
        speed = Speed.on(self.machine, device, self.processes)
        if self.machine.graphs == "on" and not speed.graphs:
            progress.note("machine.graphs is off: it needs one GPU, one process, machine.fused")
        torch.manual_seed(purpose_key(run.seed, 0) % 2**31)
        height, width, channels = split.pixels.shape[1:]
        self.about = {
            "classes": list(split.classes),
            "channels": channels,
            "image_size": [height, width],
            "model": run.model,
        }
        model = build_model(run.model, len(split.classes), channels, (height, width))
        if run.weights is not None:
            read_weights(Path(run.weights), model)
        self.model = place(model, device, speed.channels_last)
        torch.backends.cudnn.benchmark = True  # every training batch has the same shape
        self.batches = self._batches()
        self.optimiser = build_optimiser(self.model, run.optimiser, speed.fused)
        self.averaged = AveragedWeights(self.model, run.averaging) if run.averaging else None
        self.bfloat16 = run.precision == "bfloat16" or (
            run.precision == "auto" and has_bfloat16(device)
        )
        self._first_batch_fits()
        self.engine = Engine(
            self.model,
            run,
            self.optimiser,
            self.averaged,
            device,
            self.bfloat16,
            speed,
            height,
            self.machine.accumulate,
            self.processes,
        )
        self.step = 0
        self.seconds, self._since = 0.0, time.monotonic()
        self.first_step_seconds: float | None = None
        self.unreadable: set[str] = set()
        self.tracking: Tracking | None = None
        if self.machine.tensorboard:
            require_tensorboard()

    def _batches(self) -> Batches | PhotographBatches:
        run, machine = self.run, self.machine
        rank, world = self.processes.rank, self.processes.world
        size, seed = run.optimiser.batch_size, run.seed
        batches: Batches | PhotographBatches
        if self.split.streamed:
            batches = PhotographBatches(
                self.split, run.data, size, seed, self.device, machine.workers, rank, world
            )
        else:
            batches = Batches(self.split, size, seed, self.device, rank, world)
        if batches.batch_size % (world * machine.accumulate):
            raise UserError(
                f"a batch of {batches.batch_size} images does not divide into "
                f"{world * machine.accumulate} equal parts ({world} processes, "
                f"machine.accumulate {machine.accumulate})"
            )
        return batches

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.run.epochs * self.batches.steps

    @property
    def final_model(self) -> nn.Module:
        """What is evaluated: the averaged weights where the run averages."""
        return self.averaged.model if self.averaged else self.model

    def fit(self) -> None:
        """Train to the end, going on from the checkpoint if there is one."""
        self._explain_ratio()
        if self.folder.checkpoint.exists():
            self._restore()
        if len(set(self.processes.gather(self.step))) > 1:
            raise UserError(
                f"the processes do not find the same checkpoint at {self.folder.checkpoint}: "
                "--out must be a folder that all machines share"
            )
        if self.processes.first:
            self.folder.cut_log(self.step // self.batches.steps)
            if self.machine.tensorboard:
                self.tracking = Tracking(self.folder.path, self.step)
        self.unreadable = set(map(str, self.folder.last_record().get("unreadable", ())))
        self._since = time.monotonic()
        stop = StopRequest()
        title = f"{self.run.recipe} on {self.device.type}"
        with stop.listening(), self.progress.running(title, self.total_steps, self.step):
            try:
                self._epochs(stop)
            except torch.OutOfMemoryError as error:  # a RuntimeError too
                raise TrainingError(
                    f"out of memory on {self.device} ({str(error).splitlines()[0][:120]}): give "
                    "--machine.accumulate 2 (or more) to compute a batch in parts; the same "
                    "command with it goes on from the last checkpoint"
                ) from None
            except RuntimeError as error:
                if not is_lost_process(error):
                    raise
                raise TrainingError(
                    f"another process of this run was lost ({str(error).splitlines()[0][:160]}); "
                    "the same command goes on from the last checkpoint"
                ) from None
        self._save()
        if self.processes.first:
            write_weights(self.folder.weights, self.final_model, self.about)

    def _epochs(self, stop: StopRequest) -> None:
        saved = time.monotonic()
        while self.step < self.total_steps:
            epoch, first = divmod(self.step, self.batches.steps)
            shown = started = time.monotonic()
            for batch in self._arriving(epoch, first, stop):
                self.take(batch, epoch)
                now = time.monotonic()
                if self.progress.wants_readings and self.processes.world == 1 and now - shown > 1:
                    shown = now
                    self.progress.step(self.step, self._record(epoch, now - started, first))
                else:
                    self.progress.step(self.step)
                if self.step % self.batches.steps == 0:
                    self._end_epoch(epoch, started, first)
                due = int(now - saved > self.run.checkpoint_seconds)
                # A signal may come between two looks: it is read once, and agreed upon.
                asked, due = self.processes.largest(stop.number or 0, due)
                if asked or due:
                    saved = now
                    self._save()
                if asked:
                    raise Interrupted(asked)

    def _arriving(self, epoch: int, first: int, stop: StopRequest) -> Iterator[Batch]:
        """An epoch's batches; a signal to all processes may have ended those that decode them."""
        try:
            yield from self.batches.epoch(epoch, first)
        except (RuntimeError, OSError):
            if stop.number is None or self.processes.world > 1:
                raise
            self._save()  # no step is under way
            raise Interrupted(stop.number) from None

    def take(self, batch: Batch, epoch: int) -> None:
        """One step on a batch of an epoch."""
        rate = learning_rate(self.run.optimiser, self.step / self.total_steps)
        started = time.monotonic() if self.first_step_seconds is None else None
        self.step += 1
        self.engine.take(batch, epoch, (self.step - 1) % self.batches.steps, self.step, rate)
        if started is not None:
            synchronise(self.device)
            self.first_step_seconds = time.monotonic() - started
            if self.engine.speed.compile:
                self.progress.note(f"compiled: first step after {self.first_step_seconds:.1f} s")

    def _record(self, epoch: int, seconds: float, first_step: int) -> dict[str, Any]:
        """The epoch so far; stops the run if a loss was not finite."""
        totals = Totals.read(self.engine)
        self._stop_if_not_finite(totals)
        steps = self.step - epoch * self.batches.steps
        seen = steps * self.batches.batch_size
        clean, adversarial = self.engine.counts
        return {
            "epoch": epoch + 1,
            "step": self.step,
            "learning_rate": learning_rate(self.run.optimiser, (self.step - 1) / self.total_steps),
            "loss": totals.loss / steps,
            "clean_accuracy": totals.clean_correct / seen if clean else None,
            "adversarial_accuracy": totals.adversarial_correct / seen if adversarial else None,
            "images_per_second": (steps - first_step)
            * self.batches.batch_size
            / max(seconds, 1e-9),
        }

    def _stop_if_not_finite(self, totals: Totals) -> None:
        if totals.bad_step >= 0:
            raise TrainingError(
                f"the loss was not finite at step {totals.bad_step}; the last checkpoint in "
                f"{self.folder.path} is from before it (a lower learning rate may help)"
            )

    def _end_epoch(self, epoch: int, started: float, first_step: int) -> None:
        synchronise(self.device)
        self._count_time()
        seconds = time.monotonic() - started
        record = {**self._record(epoch, seconds, first_step), "seconds": self.seconds}
        every = self.run.check_epochs
        if every and ((epoch + 1) % every == 0 or epoch + 1 == self.run.epochs):
            record["check"] = self.check()
        self._tell_unreadable()
        if self.unreadable:
            record["unreadable"] = sorted(self.unreadable)
        if self.processes.first:
            self.folder.append_log(record)
        if self.tracking:
            self.tracking.epoch(record)
        self.progress.epoch(record, self.run.epochs)
        self.engine.clear()
        self._since = time.monotonic()

    def _count_time(self) -> None:
        """Training time so far: without checks and checkpoints, and over interruptions."""
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now

    def _tell_unreadable(self) -> None:
        """Name the photographs that some process could not read, each once."""
        if isinstance(self.batches, Batches):
            return
        own = [str(path) for path in self.batches.corrupt]
        files = {path for paths in self.processes.gather(own) for path in paths}
        for path in sorted(files - self.unreadable):
            self.progress.note(f"{path} cannot be read: another image took its place")
        self.unreadable |= files
        judge_unreadable(sorted(self.unreadable), len(self.split.labels))

    def check(self) -> dict[str, float]:
        """Clean, FGSM and PGD-10 accuracy of the final model on fixed training images."""
        numbers = balanced_subset(
            self.split.labels, CHECK_IMAGES, purpose_key(self.run.seed, _CHECK)
        )
        places = torch.from_numpy(numbers).to(self.device)
        images, labels = self.batches.floats(places), self.batches.labels[places]
        keys = image_keys(purpose_key(self.run.seed, _CHECK), places)
        model = self.final_model
        right = {"clean": 0, "fgsm": 0, "pgd10": 0}
        with untouched(model), exact_float32():
            for start in range(0, len(places), self.batches.batch_size):
                part = slice(start, start + self.batches.batch_size)
                with torch.no_grad():
                    clean = model(images[part]).argmax(1) == labels[part]
                right["clean"] += int(clean.sum())
                for name in ("fgsm", "pgd10"):
                    settings = attack_named(name, self.run.adversary.epsilon)
                    found = perform(model, images[part], labels[part], settings, keys[part])
                    right[name] += int((clean & ~found.fooled).sum())
        return {name: count / len(places) for name, count in right.items()}

    def _save(self) -> None:
        """A checkpoint by the first process; all processes hold the same."""
        self._stop_if_not_finite(Totals.read(self.engine))
        self._count_time()
        sums = self.engine.sums()
        if not self.processes.first:
            return
        write_checkpoint(
            self.folder.checkpoint,
            {
                "schema": 2,
                "model": self.model.state_dict(),
                "averaged": self.averaged.model.state_dict() if self.averaged else None,
                "optimiser": self.optimiser.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
                "sums": sums,
                "about": self.about,
            },
        )
        self._since = time.monotonic()

    def _restore(self) -> None:
        state = read_checkpoint(self.folder.checkpoint, self.device)
        if state["about"] != self.about:
            changed = [key for key in self.about if state["about"].get(key) != self.about[key]]
            raise UserError(
                f"{self.folder.checkpoint} is of another model or data: {', '.join(changed)} differ"
            )
        try:
            self.model.load_state_dict(state["model"])
            if self.averaged:
                self.averaged.model.load_state_dict(state["averaged"])
            go_on_with(self.optimiser, state["optimiser"])
            self.engine.go_on(state["sums"])
            if not 0 <= state["step"] <= self.total_steps:
                raise ValueError(f"step {state['step']} of {self.total_steps}")
            if not math.isfinite(sum(state["sums"]) + state["seconds"]):
                raise ValueError("its sums are not finite")
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self.folder.checkpoint} does not fit the model any more ({reason})"
            ) from None
        self.step, self.seconds = state["step"], state["seconds"]
        self.progress.note(f"going on from step {self.step} of {self.total_steps}")

    def _first_batch_fits(self) -> None:
        """Say that the model does not take the images before anything is written."""
        classes = len(self.split.classes)
        logits = output_of(
            self.model, self.batches.floats(torch.zeros(1, dtype=torch.int64)), self.run.model
        )
        if tuple(logits.shape) != (1, classes):
            raise UserError(
                f"{self.run.model} gives outputs of shape {tuple(logits.shape)} for one image; "
                f"{self.run.data.name} needs (1, {classes})"
            )

    def _explain_ratio(self) -> None:
        classes, rule = len(self.split.classes), self.run.labels
        if rule.rule not in ("adversarial", "supplementary") or rule.ratio is None:
            return
        if rule.ratio < default_ratio(classes):
            self.progress.note(
                f"labels.ratio {rule.ratio:g} is below {classes - 1} (classes - 1): the true class "
                "can get less than half of the label's mass"
            )


def check_labels(split: Split, name: str) -> None:
    """Refuse an empty set and labels outside the classes."""
    if not len(split.labels):
        raise UserError(f"the training set of {name} is empty")
    if len(split.classes) < 2:
        raise UserError(f"{name} has one class; a classifier needs two or more")
    if split.labels.min() < 0 or split.labels.max() >= len(split.classes):
        raise UserError(f"a label lies outside the {len(split.classes)} classes of {name}")


def train(
    run: Run,
    folder: RunFolder,
    split: Split,
    device: torch.device,
    progress: TrainingProgress,
    machine: Machine | None = None,
    processes: Processes | None = None,
) -> bool:
    """Train into the folder; false if the run there was finished already."""
    if folder.config.exists():
        folder.prepare(run, {})
        if folder.weights.exists():
            return False
    trainer = Trainer(run, folder, split, device, progress, machine, processes)
    if trainer.processes.first:
        folder.prepare(run, versions(device))
    trainer.fit()
    return True

"""The trainer: epochs, checkpoints, the log, and resuming exactly where a run stopped.

All randomness follows from (seed, epoch, image), so a checkpoint holds weights, optimiser, step
and the sums of the current epoch, and a resumed run equals one that never stopped.
"""

import copy
import time
from collections.abc import Iterator
from typing import Any

import torch

from bilateral.config import Adversary, Run
from bilateral.data.batches import Batch
from bilateral.data.datasets import Split
from bilateral.errors import Interrupted, TrainingError, UserError
from bilateral.machine import Machine
from bilateral.models import build_model
from bilateral.processes import Processes
from bilateral.randomness import purpose_key
from bilateral.runs import RunFolder
from bilateral.runtime import StopRequest, place, synchronise, versions
from bilateral.training.averaging import AveragedWeights
from bilateral.training.checkpoint import check_progress, read_checkpoint, write_checkpoint
from bilateral.training.engine import Engine, Speed, Totals
from bilateral.training.failures import Unreadable, explained, stop_if_not_finite
from bilateral.training.guard import Best, Reading, Recovery
from bilateral.training.learner import Learner
from bilateral.training.logbook import Logbook
from bilateral.training.optimiser import build_optimiser, learning_rate
from bilateral.training.preparation import (
    about_run,
    batches_of,
    begin_with,
    check_labels,
    first_batch_fits,
    guard_images,
    precision_of,
    remarks,
    same_run,
    same_start,
    training_part,
    weights_can_turn,
)
from bilateral.training.priors import priors_of
from bilateral.training.progress import TrainingProgress
from bilateral.training.tracking import require_tensorboard
from bilateral.training.watch import Watch
from bilateral.weights import about_of, weights_digest, write_weights


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
        split, held_out = training_part(split, run)
        self.split = split
        self.precision = precision_of(run, split, device, self.processes)
        self.bfloat16 = self.precision == "bfloat16"
        speed = Speed.on(self.machine, device, self.processes, self.bfloat16)
        if self.machine.graphs == "on" and not speed.graphs:
            progress.note("machine.graphs is off: it needs a GPU, one process and machine.fused")
        torch.manual_seed(purpose_key(run.seed, 0) % 2**31)
        height, width, channels = split.pixels.shape[1:]
        model = build_model(run.model, len(split.classes), channels, (height, width))
        if run.weights is not None and not folder.checkpoint.exists():
            self.run, said = begin_with(run.weights, run, model, split.classes, self.processes)
            progress.note(said)
        self.about = about_run(self.run, split)
        model = place(model, device, speed.channels_last)
        torch.backends.cudnn.benchmark = True  # every training batch has the same shape
        self.batches = batches_of(split, run, self.machine, device, self.processes)
        self.learner = Learner(
            model,
            build_optimiser(model, run.optimiser, speed.fused, self.bfloat16),
            AveragedWeights(model, run.averaging) if run.averaging else None,
            priors_of(split, run, device, self.processes),
        )
        first_batch_fits(model, self.batches, run, len(split.classes))
        weights_can_turn(model, run)
        self.speed = speed
        self.engine = self._engine(run.adversary)
        self.watch = Watch(
            self.learner,
            run,
            guard_images(self.batches, split, held_out, run),
            self.processes,
            self.bfloat16,
            self.batches.batch_size // (self.processes.world * self.machine.accumulate),
        )
        self.logbook = Logbook(folder, progress, self.processes, run.epochs)
        self.first_step_seconds: float | None = None
        self.unreadable = Unreadable()
        if self.machine.tensorboard:
            require_tensorboard()

    def _engine(self, adversary: Adversary) -> Engine:
        """What takes the steps, with the recipe's training attack or a milder one."""
        return Engine(
            self.learner,
            self.run.with_fields(adversary=adversary),
            self.device,
            self.bfloat16,
            self.speed,
            image_size=self.split.pixels.shape[1],
            classes=len(self.split.classes),
            accumulate=self.machine.accumulate,
            processes=self.processes,
        )

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.run.epochs * self.batches.steps

    @property
    def step(self) -> int:
        """Steps taken so far."""
        return self.learner.step

    def fit(self) -> None:
        """Train to the end, resuming from the checkpoint if there is one."""
        for said in remarks(self.run, len(self.split.classes), len(self.split.labels)):
            self.progress.note(said)
        if self.folder.checkpoint.exists():
            self._restore()
        same_start(self.processes, self.step, self.folder.checkpoint)
        if not self.watch.recovery.stopped:  # if so, the log ends with the reason
            self.logbook.cut(self.step // self.batches.steps)
        self.unreadable = Unreadable(map(str, self.logbook.last().get("unreadable", ())))
        self.logbook.begin(self.step, self.machine.tensorboard)
        if self.run.guard != "watch" and self.watch.recovery.good is None:
            self.watch.recovery.good = self._good()
        stop = StopRequest()
        title = f"{self.run.recipe} on {self.device.type}"
        shown = self.progress.running(title, self.total_steps, self.step)
        with stop.listening(), shown, explained(self.device):
            self._epochs(stop)
        self._save()
        best = self.watch.best
        if best.weights is not None:
            self.learner.final_model.load_state_dict(best.weights)
            self.progress.note(
                f"kept: epoch {best.epoch}, where {best.robust} of {len(self.watch.images[1])} "
                "held-out images withstood PGD-10"
            )
        if self.processes.first:
            about = {**self.about, "weights_digest": weights_digest(self.learner.final_model)}
            write_weights(self.folder.weights, self.learner.final_model, about)

    def _epochs(self, stop: StopRequest) -> None:
        saved = time.monotonic()
        while self.step < self.total_steps and not self.watch.recovery.stopped:
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
                    went_on = self._end_epoch(epoch, started, first)
                else:
                    went_on = self._glance(epoch, started, first)
                due = int(now - saved > self.run.checkpoint_seconds)
                # A signal may come at any moment: it is read once, and all processes agree on it.
                asked, due = self.processes.largest(stop.number or 0, due)
                if asked or due:
                    saved = now
                    self._save()
                if asked:
                    raise Interrupted(asked)
                if not went_on:
                    break

    def _arriving(self, epoch: int, first: int, stop: StopRequest) -> Iterator[Batch]:
        """An epoch's batches; a signal to all processes may have ended the decoding workers."""
        try:
            yield from self.batches.epoch(epoch, first)
        except (RuntimeError, OSError):
            if stop.number is None or self.processes.world > 1:
                raise
            self._save()  # between two steps
            raise Interrupted(stop.number) from None

    def take(self, batch: Batch, epoch: int) -> None:
        """One step on a batch of an epoch."""
        progress = self.step / self.total_steps
        rate = learning_rate(self.run.optimiser, progress)
        started = time.monotonic() if self.first_step_seconds is None else None
        self.learner.step += 1
        step_in_epoch = (self.step - 1) % self.batches.steps
        self.engine.take(batch, epoch, step_in_epoch, self.step, rate, progress)
        if started is not None:
            synchronise(self.device)
            self.first_step_seconds = time.monotonic() - started
            if self.engine.speed.compile:
                self.progress.note(f"compiled: first step after {self.first_step_seconds:.1f} s")

    def _record(self, epoch: int, seconds: float, first_step: int) -> dict[str, Any]:
        """The epoch so far; stops the run if a loss was not finite."""
        totals = Totals.read(self.engine)
        stop_if_not_finite(totals, self.folder)
        steps = self.step - epoch * self.batches.steps
        seen = steps * self.batches.batch_size
        done = (steps - first_step) * self.batches.batch_size
        clean, adversarial = self.engine.counts
        return {
            "epoch": epoch + 1,
            "step": self.step,
            "learning_rate": learning_rate(self.run.optimiser, (self.step - 1) / self.total_steps),
            "loss": totals.loss / steps,
            "clean_accuracy": totals.clean_correct / seen if clean else None,
            "adversarial_accuracy": totals.adversarial_correct / seen if adversarial else None,
            "images_per_second": done / max(seconds, 1e-9),
        }

    def _end_epoch(self, epoch: int, started: float, first_step: int) -> bool:
        """Log the epoch; false if the guard rolled back instead."""
        synchronise(self.device)
        record = self._record(epoch, time.monotonic() - started, first_step)
        every, recovery = self.run.check_epochs, self.watch.recovery
        if recovery.level is None:
            recovery.level = record["adversarial_accuracy"]
        due = every and ((epoch + 1) % every == 0 or epoch + 1 == self.run.epochs)
        if due or recovery.leaps(record["adversarial_accuracy"]):
            readings = self.watch.readings(self.engine.run.adversary)
            reading = readings[0]
            record |= {"check": reading.check, "guard": reading.guard}
            if collapsed := self.watch.first_collapsed(readings):
                if self.run.guard != "watch":
                    self._go_back(collapsed, record)
                    return False
                record["guard"]["collapsed"] = True
                if news := recovery.tell(collapsed, epoch + 1):
                    self.progress.note(news)
            elif due:
                recovery.take(reading, record["adversarial_accuracy"])
                if recovery.good is not None:
                    recovery.good = self._good()
            else:  # a leap may begin a collapse: its reading is no standard for later ones
                recovery.level = record["adversarial_accuracy"]
            if due and self.run.keep == "best":
                record["kept"] = self.watch.best.look(reading, epoch + 1, self.learner.final_model)
        images = len(self.split.labels)
        self.unreadable.tell(self.batches, images, self.processes, self.progress)
        if self.unreadable.files:
            record["unreadable"] = sorted(self.unreadable.files)
        self._log(record)
        self.engine.clear()
        return True

    def _log(self, record: dict[str, Any]) -> None:
        """An epoch's line, with what the guard did since the last one."""
        if self.watch.recovery.event:
            record["guard"] = {**record.get("guard", {}), "event": self.watch.recovery.event}
            self.watch.recovery.event = ""
        self.logbook.write(record)

    def _glance(self, epoch: int, started: float, first_step: int) -> bool:
        """Four times an epoch: read if training accuracy leapt; false if the guard rolled back."""
        quarter = max(1, self.batches.steps // 4)
        if self.run.guard == "watch" or self.step % self.batches.steps % quarter:
            return True
        record = self._record(epoch, time.monotonic() - started, first_step)
        if not self.watch.recovery.leaps(record["adversarial_accuracy"]):
            return True
        readings = self.watch.readings(self.engine.run.adversary, within=True)
        if collapsed := self.watch.first_collapsed(readings):
            self._go_back(collapsed, record)
            return False
        self.watch.recovery.level = record["adversarial_accuracy"]
        return True

    def _go_back(self, reading: Reading, record: dict[str, Any]) -> None:
        """Return to the last good epoch and act as configured."""
        recovery = self.watch.recovery
        assert recovery.good is not None
        back = recovery.good["step"] // self.batches.steps
        adversary, news = recovery.act(
            reading, record["epoch"], back, self.run.guard, self.engine.run.adversary
        )
        if recovery.stopped and not back:
            raise TrainingError(
                f"{news}: no earlier reading is good, so there is no model to keep "
                "(--check-epochs 1 reads every epoch, --guard watch only reports)"
            )
        self.progress.note(news)
        if not recovery.stopped and self.processes.first:  # repeat what is about to be cut
            recovery.event = ". ".join([*self.folder.guard_events(back), recovery.event])
        if recovery.stopped:  # the line says why, and that its weights were discarded
            signs = {**reading.guard, "collapsed": True, "discarded": True}
            self._log({**record, "check": reading.check, "guard": signs})
        self.learner.go_on(recovery.good)
        recovery.level = recovery.good.get("level")
        self.engine = self._engine(adversary)
        self._save()
        if not recovery.stopped:  # last, as the checkpoint says where to cut
            self.logbook.cut(back)

    def _save(self) -> None:
        """A checkpoint by the first process; all processes hold the same."""
        stop_if_not_finite(Totals.read(self.engine), self.folder)
        seconds, sums = self.logbook.count_time(), self.engine.sums()
        if not self.processes.first:
            return
        write_checkpoint(
            self.folder.checkpoint,
            {
                "schema": 2,
                **self.learner.state(),
                "seconds": seconds,
                "sums": sums,
                "about": self.about,
                "recovery": vars(self.watch.recovery),
                "best": vars(self.watch.best),
                "adversary": self.engine.run.adversary.model_dump(mode="json"),
                "precision": self.precision,
            },
        )

    def _good(self) -> dict[str, Any]:
        """What the guard goes back to."""
        return {**copy.deepcopy(self.learner.state()), "level": self.watch.recovery.level}

    def _restore(self) -> None:
        state = read_checkpoint(self.folder.checkpoint, self.device, self.about)
        same_run(self.folder.checkpoint, state["about"], self.run, self.split)
        try:
            self.learner.go_on(state)
            self.watch.recovery = Recovery(**state.get("recovery", {}))
            self.watch.best = Best.stored(state.get("best", {}), self.learner.final_model)
            adversary = Adversary.model_validate(state.get("adversary", self.run.adversary))
            if adversary != self.run.adversary:
                self.engine = self._engine(adversary)
            self.engine.go_on(state["sums"])
            check_progress(state, self.total_steps)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self.folder.checkpoint} no longer fits the model ({reason}); "
                "remove it to start again"
            ) from None
        self.logbook.seconds = state["seconds"]
        if (before := state.get("precision", self.precision)) != self.precision:
            self.progress.note(
                f"the checkpoint was trained in {before}; resuming in {self.precision}"
            )
        self.progress.note(f"resuming from step {self.step} of {self.total_steps}")


def train(
    run: Run,
    folder: RunFolder,
    split: Split,
    device: torch.device,
    progress: TrainingProgress,
    machine: Machine | None = None,
    processes: Processes | None = None,
) -> bool:
    """Train into the folder; false if the run there is already complete."""
    if folder.config.exists():
        run = folder.prepare(run, {})
        if folder.weights.exists():
            same_run(folder.weights, about_of(folder.weights) or {}, run, split)
            return False
    trainer = Trainer(run, folder, split, device, progress, machine, processes)
    with trainer.processes.writing_to(folder.path):
        if trainer.processes.first:
            folder.prepare(trainer.run, {**versions(device), "precision": trainer.precision})
        trainer.fit()
    return True

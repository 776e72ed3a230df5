"""The trainer: epochs, checkpoints, the log, and going on exactly where a run stopped.

All randomness follows from (seed, epoch, image), so a checkpoint holds weights, optimiser, step
and the sums of the epoch under way, and a run that goes on equals one that never stopped.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bilateral.attacks.perform import perform
from bilateral.attacks.table import attack_named
from bilateral.attacks.untouched import untouched
from bilateral.config import Run
from bilateral.data.batches import Batches, as_floats
from bilateral.data.datasets import Split
from bilateral.data.subsets import balanced_subset, per_class_subset
from bilateral.errors import Interrupted, TrainingError, UserError
from bilateral.labels import default_ratio
from bilateral.models import build_model
from bilateral.models.probe import output_of
from bilateral.randomness import image_keys, purpose_key
from bilateral.runs import RunFolder
from bilateral.runtime import (
    StopRequest,
    autocast,
    exact_float32,
    has_bfloat16,
    memory_format,
    place,
    synchronise,
    versions,
)
from bilateral.training.averaging import AveragedWeights
from bilateral.training.checkpoint import read_checkpoint, write_checkpoint
from bilateral.training.optimiser import build_optimiser, learning_rate
from bilateral.training.progress import TrainingProgress
from bilateral.training.step import step_loss
from bilateral.weights import read_weights, write_weights

CHECK_IMAGES = 500
_NOISE, _SUBSET, _CHECK, _MODEL = 4, 5, 6, 8


@dataclass
class EpochSums:
    """The sums of an epoch under way, on the device so that no step waits for the host."""

    loss: Tensor
    clean_correct: Tensor
    adversarial_correct: Tensor
    bad_step: Tensor
    clean_seen: int = 0
    adversarial_seen: int = 0
    steps: int = 0

    @classmethod
    def empty(cls, device: torch.device) -> "EpochSums":
        """No step yet."""
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(zero, zero.clone(), zero.clone(), zero - 1)


class Trainer:
    """One run from its configuration to `model.safetensors`."""

    def __init__(
        self,
        run: Run,
        folder: RunFolder,
        split: Split,
        device: torch.device,
        progress: TrainingProgress,
    ) -> None:
        self.run, self.folder, self.device, self.progress = run, folder, device, progress
        check_labels(split, run.data.name)
        if run.data.images_per_class is not None:
            split = per_class_subset(
                split, run.data.images_per_class, purpose_key(run.seed, _SUBSET)
            )
        self.split = split
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
        self.model = place(model, device)
        torch.backends.cudnn.benchmark = True  # every training batch has the same shape
        self.batches = Batches(split, run.data, run.optimiser.batch_size, run.seed, device)
        self.optimiser = build_optimiser(self.model, run.optimiser, device)
        self.averaged = AveragedWeights(self.model, run.averaging) if run.averaging else None
        self.bfloat16 = run.precision == "bfloat16" or (
            run.precision == "auto" and has_bfloat16(device)
        )
        self.step = 0
        self.seconds = 0.0
        self.sums = EpochSums.empty(device)
        self._first_batch_fits()

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
        self.folder.cut_log(self.step // self.batches.steps)
        stop = StopRequest()
        saved = time.monotonic()
        title = f"{self.run.recipe} on {self.device.type}"
        with stop.listening(), self.progress.running(title, self.total_steps, self.step):
            while self.step < self.total_steps:
                epoch, first = divmod(self.step, self.batches.steps)
                started, before = time.monotonic(), self.sums.steps
                shown = started
                for batch in self.batches.epoch(epoch, first):
                    self._train_step(batch.images, batch.labels, batch.numbers, epoch)
                    now = time.monotonic()
                    if self.progress.wants_readings and now - shown > 1:
                        shown = now
                        self.progress.step(self.step, self._record(epoch, now - started, before))
                    else:
                        self.progress.step(self.step)
                    if self.step % self.batches.steps == 0:
                        self._end_epoch(epoch, started, before)
                    asked = stop.number  # read once: a signal may come between two looks
                    if asked is not None or now - saved > self.run.checkpoint_seconds:
                        saved = now
                        self._save()
                    if asked is not None:
                        raise Interrupted(asked)
        self._save()
        write_weights(self.folder.weights, self.final_model, self.about)

    def _train_step(self, images: Tensor, labels: Tensor, numbers: Tensor, epoch: int) -> None:
        rate = learning_rate(self.run.optimiser, self.step / self.total_steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        keys = image_keys(purpose_key(self.run.seed, _NOISE, epoch), numbers)
        # A model with dropout draws from torch's generator: seeded by the step, it goes on exactly.
        torch.manual_seed(purpose_key(self.run.seed, _MODEL, self.step))
        images = images.contiguous(memory_format=memory_format(self.device))
        self.model.train()
        with autocast(self.device, self.bfloat16):
            result = step_loss(self.model, images, labels, self.run, keys)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(result.loss)
        self.optimiser.step()
        self.step += 1
        if self.averaged:
            self.averaged.update(self.model, self.step)
        self._add(result.loss.detach(), result.clean_correct, result.adversarial_correct, labels)

    def _add(
        self, loss: Tensor, clean: Tensor | None, adversarial: Tensor | None, labels: Tensor
    ) -> None:
        sums = self.sums
        sums.loss = sums.loss + loss
        first_bad = ~torch.isfinite(loss) & (sums.bad_step < 0)
        sums.bad_step = torch.where(first_bad, float(self.step), sums.bad_step)
        if clean is not None:
            sums.clean_correct = sums.clean_correct + clean
            sums.clean_seen += len(labels)
        if adversarial is not None:
            sums.adversarial_correct = sums.adversarial_correct + adversarial
            sums.adversarial_seen += len(labels)
        sums.steps += 1

    def _record(self, epoch: int, seconds: float, steps_before: int) -> dict[str, Any]:
        """The epoch so far; stops the run if a loss was not finite."""
        sums = self.sums
        if (bad := int(sums.bad_step)) >= 0:
            raise TrainingError(
                f"the loss was not finite at step {bad}; the last checkpoint in "
                f"{self.folder.path} is from before it (a lower learning rate may help)"
            )
        images = (sums.steps - steps_before) * self.batches.batch_size
        return {
            "epoch": epoch + 1,
            "step": self.step,
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "loss": float(sums.loss) / sums.steps,
            "clean_accuracy": (
                float(sums.clean_correct) / sums.clean_seen if sums.clean_seen else None
            ),
            "adversarial_accuracy": (
                float(sums.adversarial_correct) / sums.adversarial_seen
                if sums.adversarial_seen
                else None
            ),
            "images_per_second": images / max(seconds, 1e-9),
        }

    def _end_epoch(self, epoch: int, started: float, steps_before: int) -> None:
        synchronise(self.device)
        seconds = time.monotonic() - started
        self.seconds += seconds
        record = {**self._record(epoch, seconds, steps_before), "seconds": self.seconds}
        every = self.run.check_epochs
        if every and ((epoch + 1) % every == 0 or epoch + 1 == self.run.epochs):
            record["check"] = self.check()
        self.folder.append_log(record)
        self.progress.epoch(record, self.run.epochs)
        self.sums = EpochSums.empty(self.device)

    def check(self) -> dict[str, float]:
        """Clean, FGSM and PGD-10 accuracy of the final model on fixed training images."""
        numbers = balanced_subset(
            self.split.labels, CHECK_IMAGES, purpose_key(self.run.seed, _CHECK)
        )
        places = torch.from_numpy(numbers).to(self.device)
        images = as_floats(self.batches.pixels[places])
        labels = self.batches.labels[places]
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
        if int(self.sums.bad_step) >= 0:
            self._record(self.step // self.batches.steps, 1.0, 0)
        sums = {**vars(self.sums)}
        write_checkpoint(
            self.folder.checkpoint,
            {
                "schema": 1,
                "model": self.model.state_dict(),
                "averaged": self.averaged.model.state_dict() if self.averaged else None,
                "optimiser": self.optimiser.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
                "sums": sums,
                "about": self.about,
            },
        )

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
            self.optimiser.load_state_dict(state["optimiser"])
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{self.folder.checkpoint} does not fit the model any more ({reason})"
            ) from None
        self.step, self.seconds = state["step"], state["seconds"]
        self.sums = EpochSums(**state["sums"])
        self.progress.note(f"going on from step {self.step} of {self.total_steps}")

    def _first_batch_fits(self) -> None:
        """Say that the model does not take the images before anything is written."""
        classes = len(self.split.classes)
        logits = output_of(self.model, as_floats(self.batches.pixels[:1]), self.run.model)
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
    run: Run, folder: RunFolder, split: Split, device: torch.device, progress: TrainingProgress
) -> bool:
    """Train into the folder; false if the run there was finished already."""
    if folder.config.exists():
        folder.prepare(run, {})
        if folder.weights.exists():
            return False
    trainer = Trainer(run, folder, split, device, progress)
    folder.prepare(run, versions(device))
    trainer.fit()
    return True

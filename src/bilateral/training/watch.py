"""The guard at work on a run: which images it reads, of which weights, and what it has read."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from bilateral.config import Adversary, Run
from bilateral.processes import Processes
from bilateral.training.guard import Best, Reading, Recovery, read
from bilateral.training.learner import Learner


class Watch:
    """Reads a learner's weights, in batches of at most `size`; all processes judge alike.

    `recovery` and `best` are what it has read and done so far, and part of a checkpoint.
    """

    def __init__(
        self,
        learner: Learner,
        run: Run,
        images: tuple[Tensor, Tensor, Tensor],
        processes: Processes,
        bfloat16: bool,
        size: int,
    ) -> None:
        self.learner, self.run, self.images = learner, run, images
        self.processes, self.bfloat16, self.size = processes, bfloat16, size
        self.recovery, self.best = Recovery(), Best()

    def readings(self, adversary: Adversary, within: bool = False) -> list[Reading]:
        """Of the final model; if that is an average and the guard acts, of the trained weights too.

        By the training attack as it is now. An average shows a collapse epochs late; within an
        epoch it is not read at all.
        """
        learner, run = self.learner, self.run.with_fields(adversary=adversary)
        found = []
        if not (learner.averaged and within):
            found.append(self.read(learner.final_model, run))
        if learner.averaged and run.guard != "watch":
            found.append(replace(self.read(learner.model, run), whose=" (weights in training)"))
        return found

    def first_collapsed(self, readings: Sequence[Reading]) -> Reading | None:
        """The first reading that shows a collapse, if any does; all processes agree on it."""
        if self.run.method == "undefended":
            return None
        signs = self.processes.largest(*(int(self.recovery.collapsed(one)) for one in readings))
        return next((one for one, sign in zip(readings, signs, strict=True) if sign), None)

    def read(self, model: nn.Module, run: Run) -> Reading:
        """A model's reading."""
        return read(model, *self.images, run, self.bfloat16, self.size)

"""A training step on the device: augment, attack, update, count, without waiting for the host.

The attack and the update are two compiled callables over the same weights. On one GPU a whole step
is captured once as a CUDA graph and replayed, which saves the cost of launching each kernel.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._triton import has_triton

from bilateral.config import Run
from bilateral.data.batches import Batch, augment, augmentation_keys, moves
from bilateral.data.mixing import cut_and_mix, drawn_boxes, pasted
from bilateral.errors import UserError
from bilateral.machine import Machine, Switch
from bilateral.processes import Processes
from bilateral.randomness import image_keys, purpose_key
from bilateral.runtime import autocast, compiled
from bilateral.training.learner import Learner
from bilateral.training.step import (
    Perturbed,
    StepLoss,
    climbs,
    perturbed_batch,
    reads_clean,
    step_loss,
    taught,
)
from bilateral.training.twin import twin_of
from bilateral.training.uphill import gradients, last_steps, uphill

WARM_STEPS = 2
"""Steps before the capture: by then code is compiled, algorithms chosen and momentum allocated."""
_NOISE, _MODEL = 4, 8
_LOSS, _CLEAN, _ADVERSARIAL, _BAD_STEP = range(4)


@dataclass(frozen=True)
class Speed:
    """The settings of `Machine` as decided for this device."""

    compile: bool
    graphs: bool
    channels_last: bool
    fused: bool

    @classmethod
    def on(
        cls, machine: Machine, device: torch.device, processes: Processes, bfloat16: bool = False
    ) -> "Speed":
        """By default everything on a GPU; elsewhere only channels-last, and that with bfloat16.

        Compiling by default needs Triton. Graphs need a single process and the fused optimiser: the
        plain one reads the learning rate on the host.
        """
        gpu = device.type == "cuda"

        def decided(asked: Switch, possible: bool = True, pays: bool = gpu) -> bool:
            return possible and (pays if asked == "auto" else asked == "on")

        fused = decided(machine.fused)
        return cls(
            compile=decided(machine.compile, machine.compile == "on" or has_triton()),
            graphs=decided(machine.graphs, gpu and processes.world == 1 and fused),
            channels_last=decided(machine.channels_last, pays=gpu or bfloat16),
            fused=fused,
        )


class _Part(NamedTuple):
    """A part of an augmented batch, with the start of attacks and the boxes pasted in, if any."""

    images: Tensor
    labels: Tensor
    numbers: Tensor
    start: Tensor | None
    boxes: Tensor | None

    def split(self, count: int) -> list["_Part"]:
        """The same in `count` parts."""
        pieces = [[None] * count if one is None else one.chunk(count) for one in self]
        return [_Part._make(part) for part in zip(*pieces, strict=True)]


class Engine:
    """Takes the steps of a run; `totals` holds the sums of the current epoch on the device."""

    def __init__(
        self,
        learner: Learner,
        run: Run,
        device: torch.device,
        bfloat16: bool,
        speed: Speed,
        *,
        image_size: int,
        classes: int,
        accumulate: int = 1,
        processes: Processes | None = None,
    ) -> None:
        self.model, self.optimiser = learner.model, learner.optimiser
        self.averaged, self.priors = learner.averaged, learner.priors
        self.run, self.device, self.bfloat16, self.speed = run, device, bfloat16, speed
        self.image_size, self.classes = image_size, classes
        self.accumulate, self.processes = accumulate, processes or Processes()
        if climbs(run) and accumulate > 1:
            raise UserError(
                "weight_perturbation_along = gradient needs the whole batch: set "
                "machine.accumulate to 1"
            )
        if run.regulariser.kind == "nuclear" and accumulate > 1:
            raise UserError(
                "regulariser.kind = nuclear needs the whole batch: set machine.accumulate to 1"
            )
        self.totals = torch.zeros(4, dtype=_sum_type(device), device=device)
        self.steps_taken = 0
        self.clear()
        self._numbers = torch.zeros(5, dtype=torch.int64, device=device)
        self._rate = torch.zeros((), device=device)
        self._progress = torch.zeros((), device=device)
        self._pull = torch.zeros((), device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None
        self._buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        self._update: Any = self.model
        if self.processes.world > 1:
            self._update = DistributedDataParallel(self.model)
            # Statistics are averaged after each step; a broadcast before each forward pass would
            # undo the update by the first of TRADES's two passes.
            self._update.broadcast_buffers = False
        self._twin: Any = twin_of(self.model, run.adversary.batch_norm)
        self._teacher: Any = None
        if self.averaged and run.labels.averaged_share:
            self._teacher = self.averaged.model
        if speed.compile:
            self._update = compiled(self._update, dynamic=False)
            self._twin = compiled(self._twin, dynamic=False)
            if self._teacher is not None:
                self._teacher = compiled(self._teacher, dynamic=False)

    def clear(self) -> None:
        """Reset the epoch's sums."""
        self.totals.zero_()
        self.totals[_BAD_STEP] = -1

    @property
    def counts(self) -> tuple[bool, bool]:
        """Whether images that are right when clean, and those right when attacked, are counted."""
        if self.run.method == "adversarial":
            return reads_clean(self.run), True
        return True, self.run.method == "trades"

    def sums(self) -> list[float]:
        """The loss and the two counts of the epoch so far, over all processes."""
        return self.processes.sum(self.totals[:_BAD_STEP]).tolist()

    def go_on(self, sums: list[float]) -> None:
        """Resume from the sums of an interrupted epoch, which the first process alone holds."""
        self.clear()
        if self.processes.first:
            self.totals[:_BAD_STEP] = torch.tensor(sums, dtype=self.totals.dtype)

    def take(
        self,
        batch: Batch,
        epoch: int,
        step_in_epoch: int,
        step: int,
        rate: float,
        progress: float = 1.0,
    ) -> None:
        """One step of the run, the `step`th; `progress` is the share of the run before it."""
        seed = self.run.seed
        keys = augmentation_keys(seed, epoch, step_in_epoch)
        numbers = torch.tensor([*keys, purpose_key(seed, _NOISE, epoch), step])
        self._numbers.copy_(numbers, non_blocking=True)
        self._set_rate(rate)
        self._progress.fill_(progress)
        if self.averaged:
            self._pull.fill_(self.averaged.pull(step))
        # Dropout draws from torch's generator: seeded by the step, it resumes exactly. Each process
        # drops other units; the first one's seed does not depend on how many there are.
        rank = [self.processes.rank] if self.processes.rank else []
        torch.manual_seed(purpose_key(seed, _MODEL, step - 1, *rank))
        self.model.train()
        if self.speed.graphs and self.steps_taken >= WARM_STEPS:
            self._replay(batch)
        else:
            # What was compiled in the first steps must serve for all others.
            settled = self.speed.compile and self.steps_taken >= WARM_STEPS
            stance = torch.compiler.set_stance("fail_on_recompile") if settled else nullcontext()
            with stance:
                self._compute(batch)
        self.steps_taken += 1

    def _set_rate(self, rate: float) -> None:
        self._rate.fill_(rate)
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate if self.speed.graphs else rate

    def _replay(self, batch: Batch) -> None:
        if self._graph is None or self._batch is None:
            self._batch = Batch._make(None if part is None else part.clone() for part in batch)
            self._graph = torch.cuda.CUDAGraph()
            # Other threads may call CUDA meanwhile: the one that pins photographs' memory does.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                self._compute(self._batch)
        for kept, new in zip(self._batch, batch, strict=True):
            if kept is not None and new is not None:
                kept.copy_(new, non_blocking=True)
        self._graph.replay()

    def _compute(self, batch: Batch) -> None:
        images = augment(batch, self.run.data, self.image_size, self._numbers[:3])
        labels, boxes = batch.labels, None
        if share := self.run.data.cutmix:
            keys = image_keys(self._numbers[:1], batch.numbers)
            boxes = drawn_boxes(keys, share, images.shape[-2], images.shape[-1])
            images, labels = cut_and_mix(images, labels, self.classes, boxes)
        start = self._start(batch.numbers, boxes)
        if self.speed.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        self.optimiser.zero_grad(set_to_none=True)
        parts = _Part(images, labels, batch.numbers, start, boxes).split(self.accumulate)
        results = [self._descend(part, last=part is parts[-1]) for part in parts]
        self.optimiser.step()
        # All processes must attack the same network, running statistics included.
        self.processes.average(self._buffers)
        if self.averaged:
            self.averaged.update(self._pull)
        self._count(results)

    def _start(self, numbers: Tensor, boxes: Tensor | None) -> Tensor | None:
        """Where the attacks on a batch start, pixel by pixel, if the run keeps priors."""
        if not self.priors:
            return None
        known = self.priors.start(numbers, moves(numbers, self.run.data, self._numbers[:3]))
        return known if boxes is None else pasted(known, boxes)

    def _descend(self, part: _Part, last: bool) -> StepLoss:
        """Add the gradients of a part of the batch; processes average them once a step."""
        alone = self.processes.world == 1 or last
        images, labels = part.images, part.labels
        with nullcontext() if alone else self._update.no_sync():
            perturbed = self._attack(part)
            if not self.run.weight_perturbation:
                return self._add_gradients(perturbed, images, labels)
            if climbs(self.run):
                self._add_gradients(perturbed, images, labels)
                ways = gradients(self.model)
            else:
                ways = last_steps(self.model, self.optimiser)
            with uphill(ways, self.run.weight_perturbation):
                return self._add_gradients(perturbed, images, labels)

    def _attack(self, part: _Part) -> Perturbed | None:
        """Attack a part of the batch; its perturbations are stored if the run keeps priors."""
        images, labels, numbers, start, boxes = part
        keys = image_keys(self._numbers[3], numbers)
        with autocast(self.device, self.bfloat16):
            perturbed = perturbed_batch(self._twin, images, labels, self.run, keys, start)
            if self._teacher is not None and perturbed:
                perturbed = taught(self._teacher, images, perturbed, self.run.labels)
        if self.priors and perturbed:
            moved = moves(numbers, self.run.data, self._numbers[:3])
            self.priors.keep(numbers, moved, perturbed.images - images, boxes)
        return perturbed

    def _add_gradients(
        self, perturbed: Perturbed | None, images: Tensor, labels: Tensor
    ) -> StepLoss:
        with autocast(self.device, self.bfloat16):
            result = step_loss(
                self._update,
                perturbed,
                images,
                labels,
                self.run,
                self._progress,
                self.processes.sum,
            )
        torch.autograd.backward(result.loss / self.accumulate)
        return result

    def _count(self, results: list[StepLoss]) -> None:
        step = self._numbers[4]
        loss = torch.stack([result.loss.detach() for result in results]).mean()
        bad = ~torch.isfinite(loss) & (self.totals[_BAD_STEP] < 0)
        self.totals[_BAD_STEP] = torch.where(
            bad, step.to(self.totals.dtype), self.totals[_BAD_STEP]
        )
        self.totals[_LOSS] += loss / self.processes.world
        for result in results:
            if result.clean_correct is not None:
                self.totals[_CLEAN] += result.clean_correct
            if result.adversarial_correct is not None:
                self.totals[_ADVERSARIAL] += result.adversarial_correct


@dataclass(frozen=True)
class Totals:
    """The sums of an epoch so far, over all processes, read from the device."""

    loss: float
    clean_correct: float
    adversarial_correct: float
    bad_step: int

    @classmethod
    def read(cls, engine: Engine) -> "Totals":
        """Waits for the device, and for the other processes."""
        summed = engine.sums()
        bad_step = engine.processes.largest(int(engine.totals[_BAD_STEP]))[0]
        return cls(summed[0], summed[1], summed[2], bad_step)


def _sum_type(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64

"""Training batches of photographs that are decoded in worker processes as they are needed.

Which images make up a step follows from (seed, epoch) alone, whatever the number of workers; what
they are cropped to is decided on the device (`resized_crop`). A file that cannot be read is
replaced by the next readable one of its class, and counted.
"""

import math
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from bilateral.config import Data
from bilateral.data.batches import Batch, as_floats, channels_first, epoch_order
from bilateral.data.datasets_entry import Bytes, Split
from bilateral.data.photographs import Photographs, cores
from bilateral.data.pictures import read_squashed
from bilateral.data.resized_crop import MARGIN
from bilateral.errors import UserError

PORTION = 32
"""Images that a worker decodes at a time: a step's batch is put together from several portions."""
TOLERATED, TOLERATED_SHARE = 10, 0.01
"""A run stops once both so many files and this share of all are known to be unreadable."""


class Portion(NamedTuple):
    """What a worker hands over: images, their aspects, and complaints by the number of the file."""

    pixels: Tensor
    aspects: Tensor
    complaints: dict[int, str]
    hopeless: int | None = None
    """The number of an image in whose class none can be read."""


class Decoder(Dataset[Portion]):
    """Decodes the numbers of a portion; lives in every worker.

    With a `side` whole pictures are squashed to it, else they are read as evaluation does.
    """

    def __init__(
        self, photographs: Photographs, labels: npt.NDArray[np.int64], side: int | None
    ) -> None:
        self.photographs, self.labels, self.side = photographs, labels, side

    def __getitem__(self, numbers: list[int]) -> Portion:
        complaints: dict[int, str] = {}
        pixels, aspects = [], []
        for number in numbers:
            found = self._readable(number, complaints)
            if found is None:
                return Portion(torch.empty(0), torch.empty(0), complaints, number)
            pixels.append(found[0])
            aspects.append(found[1])
        return Portion(channels_first(np.stack(pixels)), torch.tensor(aspects), complaints)

    def _readable(self, number: int, complaints: dict[int, str]) -> tuple[Bytes, float] | None:
        """The picture of this number, or of the next of its class that can be read."""
        for candidate in self._candidates(number):
            try:
                if self.side is None:
                    return self.photographs.picture(candidate), 1.0
                return read_squashed(self.photographs.file(candidate), self.side)
            except UserError as error:
                complaints[candidate] = str(error)
        return None

    def _candidates(self, number: int) -> Iterator[int]:
        yield number
        same = np.flatnonzero(self.labels == self.labels[number])
        after = int(np.searchsorted(same, number)) + 1
        yield from np.roll(same, -after)[:-1].tolist()


class Plan(Sampler[list[int]]):
    """The portions of the epoch that comes next, in order."""

    def __init__(self) -> None:
        self.shares = np.empty((0, 0), dtype=np.int64)
        """A row of numbers for each step."""

    def __iter__(self) -> Iterator[list[int]]:
        for share in self.shares:
            for start in range(0, len(share), PORTION):
                yield share[start : start + PORTION].tolist()


class PhotographBatches:
    """`Batches` for photographs: the batches of every epoch, this process's share of them.

    For the resized crop `pixels` are whole pictures squashed to 8/7 of the image's side, with their
    `aspects`; for other augmentations they are the images as evaluation reads them. `workers` are
    by default this process's share of the cores, and never more than there are cores or portions to
    decode; 0 decodes in this process.
    """

    def __init__(
        self,
        split: Split,
        settings: Data,
        batch_size: int,
        seed: int,
        device: torch.device,
        workers: int | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        assert isinstance(split.pixels, Photographs)
        self.photographs, self.classes = split.pixels, split.classes
        self.labels = torch.from_numpy(split.labels).to(device)
        self._as_evaluated = Decoder(self.photographs, split.labels, None)
        self.batch_size = min(batch_size, len(self.labels))
        self.steps = len(self.labels) // self.batch_size
        self.seed, self.device, self.rank, self.world = seed, device, rank, world
        self.is_squashed = settings.augment == "resized-crop-flip"
        side = _squashed_side(self.photographs) if self.is_squashed else None
        portions = self.steps * math.ceil(self.batch_size / world / PORTION)
        self._plan = Plan()
        self._loader: DataLoader[Portion] = _loader(
            Decoder(self.photographs, split.labels, side),
            self._plan,
            min(max(1, cores() // world) if workers is None else workers, cores(), portions),
            device,
        )
        self._complaints: dict[int, str] = {}

    @property
    def corrupt(self) -> list[Path]:
        """The files that this process could not read so far."""
        return [self.photographs.file(number) for number in sorted(self._complaints)]

    def floats(self, numbers: Tensor) -> Tensor:
        """Images in [0, 1] as they are evaluated, without augmentation."""
        portion = self._as_evaluated[numbers.tolist()]
        self._heed(portion)
        return as_floats(portion.pixels.to(self.device))

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """This process's share of an epoch's batches, from a step on."""
        order = epoch_order(len(self.labels), self.seed, epoch).numpy()
        steps = order[: self.steps * self.batch_size].reshape(self.steps, self.batch_size)
        self._plan.shares = steps[first_step:, self.rank :: self.world]
        arriving = iter(self._loader)
        for share in self._plan.shares:
            portions = [next(arriving) for _ in range(0, len(share), PORTION)]
            for portion in portions:
                self._heed(portion)
            numbers = torch.from_numpy(share.copy()).to(self.device)
            aspects = self._gathered([portion.aspects for portion in portions])
            yield Batch(
                self._gathered([portion.pixels for portion in portions]),
                self.labels[numbers],
                numbers,
                aspects if self.is_squashed else None,
            )

    def _gathered(self, parts: list[Tensor]) -> Tensor:
        """Portions as one tensor on the device; copies from pinned memory do not wait."""
        return torch.cat([part.to(self.device, non_blocking=True) for part in parts])

    def _heed(self, portion: Portion) -> None:
        """Count what could not be read, and stop where it is too much."""
        self._complaints |= portion.complaints
        if portion.hopeless is not None:
            name = self.classes[int(self.labels[portion.hopeless])]
            complaint = self._complaints[portion.hopeless]
            raise UserError(f"class {name} has no readable image: {complaint}")
        judge_unreadable(list(self._complaints.values()), len(self.labels))


def judge_unreadable(complaints: Sequence[str], total: int) -> None:
    """Stop where too many of a training set's files cannot be read."""
    count = len(complaints)
    if count > TOLERATED and count > TOLERATED_SHARE * total:
        first = "; ".join(complaints[:3])
        raise UserError(f"{count} of {total} photographs cannot be read: {first}; ...")


def _squashed_side(photographs: Photographs) -> int:
    height, width, _ = photographs.shape[1:]
    if height != width:
        raise UserError(f"a resized crop of {width}x{height} is not a square: give --image-size")
    return round(height * MARGIN)


def _loader(
    decoder: Decoder, plan: Plan, workers: int, device: torch.device
) -> DataLoader[Portion]:
    """Portions in the order of the plan, each decoded by one of the workers.

    The global random state is left alone. Workers are forked from a server that has no threads and
    no CUDA context, and has imported torch once for all of them.
    """
    processes: dict[str, Any] = {}
    if workers:
        known = "forkserver" in multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if known else "spawn")
        if known:
            context.set_forkserver_preload([__name__])
        processes = {
            "num_workers": workers,
            "multiprocessing_context": context,
            "persistent_workers": True,
            "worker_init_fn": _leave_group,
        }
    return DataLoader(
        decoder,
        batch_size=None,
        sampler=plan,
        collate_fn=_as_it_is,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),
        **processes,
    )


def _leave_group(worker: int) -> None:
    """Ctrl-C is meant for the training process, which still needs the batches of its last step."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def _as_it_is(portion: Any) -> Any:
    return portion

"""Attacks that start where the last one on the same image ended (FGSM-EP, Jia et al. 2022).

One byte for every value of every training image, on the device beside the pixels and in the frame
of the stored image, so that a perturbation follows its pixels through other crops and mirroring.
"""

import math

import torch
from torch import Tensor

from bilateral.config import Run
from bilateral.data.batches import Moves, shift_and_mirror
from bilateral.data.datasets import Split
from bilateral.errors import UserError
from bilateral.processes import Processes

_MOST, _NONE = 127, -128
"""A byte counts 127ths of the start's width; -128 means that nothing is known yet."""


class Priors:
    """The last perturbation of every training image, no wider than a random start may be."""

    def __init__(self, count: int, shape: tuple[int, ...], width: float, device: torch.device):
        self.kept = torch.full((count, *shape), _NONE, dtype=torch.int8, device=device)
        self.unit = width / _MOST

    def start(self, numbers: Tensor, moves: Moves) -> Tensor:
        """The perturbations of images that were moved by `moves`; NaN where nothing is known."""
        kept = self.kept[numbers]
        known = torch.where(kept == _NONE, math.nan, kept * self.unit)
        return shift_and_mirror(known, *moves, fill=math.nan)

    def keep(
        self, numbers: Tensor, moves: Moves, perturbations: Tensor, others: Tensor | None = None
    ) -> None:
        """Store the perturbations of images that were moved by `moves`; pixels out of frame stay.

        `others` (N x H x W) marks pixels of another image, whose perturbation is not stored.
        """
        if others is not None:
            perturbations = perturbations.masked_fill(others[:, None], math.nan)
        here = shift_and_mirror(perturbations, *moves.back(), fill=math.nan)
        steps = (here / self.unit).round().clamp(-_MOST, _MOST)
        self.kept[numbers] = torch.where(here.isnan(), self.kept[numbers], steps).to(torch.int8)

    def go_on(self, kept: Tensor) -> None:
        """Load what a checkpoint holds, in place: a CUDA graph refers to the address."""
        if kept.shape != self.kept.shape or kept.dtype != self.kept.dtype:
            raise ValueError(f"priors of {kept.dtype} {tuple(kept.shape)}")
        self.kept.copy_(kept)


def priors_of(split: Split, run: Run, device: torch.device, processes: Processes) -> Priors | None:
    """The priors of a run that starts from them, else None; refused where they cannot be kept."""
    adversary = run.adversary
    if not adversary.prior_start or run.method == "undefended":
        return None
    if split.streamed:
        raise UserError(
            "adversary.prior_start keeps a perturbation of every training image in memory: "
            "not possible for a folder that does not fit in memory"
        )
    if processes.world > 1:
        raise UserError(
            "adversary.prior_start needs one process: images move between processes every epoch"
        )
    height, width, channels = split.pixels.shape[1:]
    widest = adversary.epsilon * adversary.start_width
    return Priors(len(split.labels), (channels, height, width), widest, device)

"""Normalisation as a layer: every network takes images in [0, 1] and maps them itself."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalise(nn.Module):
    """`(images - mean) / std`; the default maps [0, 1] to the paper's [-1, 1].

    One value serves all channels; otherwise there is one per channel. Both are buffers, so they
    follow the weights into files and across devices and no optimiser sees them.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.5,)) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std

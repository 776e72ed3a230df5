"""Averaged weights: an exponential moving average of weights and batch-norm statistics."""

import copy

import torch
from torch import nn


class AveragedWeights:
    """A copy of the model whose weights follow the trained ones slowly.

    Early on the decay is smaller, so that the random initial weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the weights after a step; whole numbers are taken over as they are."""
        decay = min(self.decay, (1 + step) / (10 + step))
        own, trained = self.model.state_dict(), model.state_dict()
        moving = [name for name, value in own.items() if value.is_floating_point()]
        torch._foreach_lerp_(
            [own[name] for name in moving], [trained[name] for name in moving], 1 - decay
        )
        for name in own.keys() - set(moving):
            own[name].copy_(trained[name])

"""Averaged weights: an exponential moving average of weights and batch-norm statistics."""

import copy

import torch
from torch import Tensor, nn


class AveragedWeights:
    """A copy of the model whose weights follow the trained ones slowly.

    Early on the decay is smaller, so that the random initial weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        self.decay = decay

    def pull(self, step: int) -> float:
        """How far the average moves towards the weights after a step, as a share of the way."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, model: nn.Module, pull: Tensor) -> None:
        """Move towards the weights by `pull`; whole numbers are taken over as they are."""
        own, trained = self.model.state_dict(), model.state_dict()
        moving = [name for name, value in own.items() if value.is_floating_point()]
        ways = torch._foreach_sub(
            [trained[name] for name in moving], [own[name] for name in moving]
        )
        torch._foreach_mul_(ways, pull)
        torch._foreach_add_([own[name] for name in moving], ways)
        for name in own.keys() - set(moving):
            own[name].copy_(trained[name])

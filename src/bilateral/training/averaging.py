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
        # Each tensor once: a weight that two layers share must not move twice.
        pairs = list(zip(_tensors(self.model), _tensors(model), strict=True))
        self._moving = [pair for pair in pairs if pair[0].is_floating_point()]
        self._copied = [pair for pair in pairs if not pair[0].is_floating_point()]

    def pull(self, step: int) -> float:
        """How far the average moves towards the weights after a step, as a share of the way."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, pull: Tensor) -> None:
        """Move towards the weights by `pull`; integers are copied as they are."""
        own, trained = [one for one, _ in self._moving], [other for _, other in self._moving]
        ways = torch._foreach_sub(trained, own)
        torch._foreach_mul_(ways, pull)
        torch._foreach_add_(own, ways)
        for one, other in self._copied:
            one.copy_(other)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]

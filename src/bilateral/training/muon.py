"""Weights that turn: momentum whose directions all count alike (Muon, Jordan et al. 2024).

A gradient has a few strong directions, and momentum sums them; the rest is hardly learnt. The
orthogonal matrix nearest to the momentum moves along all of them equally far, which is steepest
descent for the spectral norm (Bernstein and Newhouse 2024).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients: singular values from 1/100 on come near one in five rounds."""
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """SGD with momentum, but for groups with a `turn`: there a step turns each weight.

    It goes along its orthogonalised momentum by `turn` times the rate as a share of its length,
    which it keeps, so that weight decay has nothing to do there. The products of matrices are in
    bfloat16 if asked for. Rates may be tensors: nothing is read by the host.
    """

    def __init__(
        self, groups: Sequence[dict[str, Any]], rate: float, momentum: float, bfloat16: bool = False
    ) -> None:
        self.kind = torch.bfloat16 if bfloat16 else torch.float32
        super().__init__(
            groups, {"lr": rate, "momentum": momentum, "weight_decay": 0.0, "turn": 0.0}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Go on by the gradients that there are."""
        assert closure is None
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            slopes = [weight.grad for weight in weights]
            if group["weight_decay"]:
                slopes = list(torch._foreach_add(slopes, weights, alpha=group["weight_decay"]))
            kept = [self._momentum(weight) for weight in weights]
            torch._foreach_mul_(kept, group["momentum"])
            torch._foreach_add_(kept, slopes)
            if group["turn"]:
                for weight, slope, momentum in zip(weights, slopes, kept, strict=True):
                    ahead = slope + group["momentum"] * momentum
                    way = orthogonal(ahead.flatten(1).to(self.kind)).view_as(weight)
                    rotate(weight, way.to(weight.dtype), group["turn"] * group["lr"])
            else:
                torch._foreach_sub_(weights, torch._foreach_mul(kept, group["lr"]))

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def rotate(weight: Tensor, way: Tensor, share: Tensor | float) -> None:
    """Move a weight against `way` by a share of its length, which stays as it is."""
    length = weight.norm()
    weight.sub_(way * (share * length / way.norm().clamp_min(1e-12)))
    weight.mul_(length / weight.norm().clamp_min(1e-12))


def orthogonal(matrix: Tensor) -> Tensor:
    """About the orthogonal matrix nearest to a matrix, by products of matrices alone."""
    first, third, fifth = _QUINTIC
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    found: Tensor = wide / wide.norm().clamp_min(1e-12)
    for _ in range(_ROUNDS):
        gram = found @ found.T
        found = first * found + (third * gram + fifth * gram @ gram) @ found
    return found.T if wide is not matrix else found

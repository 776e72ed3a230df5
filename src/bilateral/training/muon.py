"""Muon (Jordan et al. 2024): orthogonalised momentum, by which weights turn at constant length.

A few strong directions dominate gradients and so their sum, the momentum; the others are hardly
learnt. The orthogonal matrix nearest to the momentum moves along all of them equally far, which is
steepest descent for the spectral norm (Bernstein and Newhouse 2024).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_QUINTIC = (3.4445, -4.7750, 2.0315)
"""Jordan's coefficients: five rounds bring singular values above 1/100 close to one."""
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """SGD with momentum; in groups with a `turn`, a step turns each weight instead.

    There a weight moves against its orthogonalised momentum by `turn` times the rate, as a share of
    its length, and keeps that length, so weight decay would have no effect. Matrix products are in
    bfloat16 if asked for. Rates may be tensors: the host reads nothing.
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
        """Take a step with the current gradients."""
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
                ahead = torch._foreach_add(slopes, kept, alpha=group["momentum"])
                turn(weights, self._ways(ahead), group["turn"] * group["lr"])
            else:
                torch._foreach_sub_(weights, torch._foreach_mul(kept, group["lr"]))

    def _ways(self, slopes: Sequence[Tensor]) -> list[Tensor]:
        """Each made orthogonal; equal shapes in one batch, as single small products are slow."""
        alike: dict[tuple[int, int], list[int]] = {}
        for number, slope in enumerate(slopes):
            alike.setdefault((len(slope), slope[0].numel()), []).append(number)
        found: dict[int, Tensor] = {}
        for numbers in alike.values():
            matrices = torch.stack([slopes[number].flatten(1).to(self.kind) for number in numbers])
            found |= dict(zip(numbers, orthogonal(matrices), strict=True))
        return [found[k].view_as(slope).to(slope.dtype) for k, slope in enumerate(slopes)]

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer: Tensor = state["momentum_buffer"]
        return buffer


def turn(weights: list[Tensor], ways: list[Tensor], share: Tensor | float) -> None:
    """Move each weight against its way by a share of its length, then restore that length."""
    lengths, sizes = torch._foreach_norm(weights), torch._foreach_norm(ways)
    for weight, way, length, size in zip(weights, ways, lengths, sizes, strict=True):
        weight.sub_(way * (share * length / size.clamp_min(1e-12)))
    for weight, length, now in zip(weights, lengths, torch._foreach_norm(weights), strict=True):
        weight.mul_(length / now.clamp_min(1e-12))


def orthogonal(matrices: Tensor) -> Tensor:
    """Approximately the orthogonal matrix nearest to each matrix, by products alone."""
    first, third, fifth = _QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    wide = matrices.mT if tall else matrices
    found = wide / wide.norm(dim=(1, 2), keepdim=True).clamp_min(1e-12)
    for _ in range(_ROUNDS):
        gram = found @ found.mT
        gram = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        found = torch.baddbmm(found, gram, found, beta=first)
    turned: Tensor = found.mT if tall else found
    return turned

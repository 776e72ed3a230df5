"""Adversarial weight perturbation (Wu et al. 2020): the gradient at weights of higher loss.

The weights move along the batch's own gradient, which costs one more update, or further along the
last steps, which costs nothing: these overshoot wherever the loss is steep (Becker et al. 2024).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def gradients(model: nn.Module) -> dict[Tensor, Tensor]:
    """The gradient of each parameter that has one; the parameters' own are cleared."""
    found: dict[Tensor, Tensor] = {
        one: one.grad for one in model.parameters() if one.grad is not None
    }
    for parameter in found:
        parameter.grad = None
    return found


def last_steps(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[Tensor, Tensor]:
    """The direction in which momentum moves each parameter; empty before the first step.

    SGD moves against its momentum, which is a sum of gradients.
    """
    found = {one: optimiser.state[one].get("momentum_buffer") for one in model.parameters()}
    return {parameter: -momentum for parameter, momentum in found.items() if momentum is not None}


@contextmanager
def uphill(ways: dict[Tensor, Tensor], share: float) -> Iterator[None]:
    """Move weights along their ways inside the context, and back at its end.

    Each weight moves by the same share of its length. Biases and batch norm's parameters stay.
    """
    moved = [weight for weight in ways if weight.dim() > 1]
    if not moved:
        yield
        return
    slopes = [ways[weight] for weight in moved]
    with torch.no_grad():
        lengths = torch._foreach_norm(moved)
        steepness = torch._foreach_norm(slopes)
        torch._foreach_clamp_min_(steepness, 1e-12)
        scales = torch._foreach_mul(torch._foreach_div(lengths, steepness), share)
        shifts = list(torch._foreach_mul(slopes, scales))
        torch._foreach_add_(moved, shifts)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_sub_(moved, shifts)

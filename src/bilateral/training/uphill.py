"""Adversarial weight perturbation (Wu et al. 2020): a gradient taken where weights are worse."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def uphill(model: nn.Module, share: float) -> Iterator[None]:
    """Weights moved along their gradients inside, and back outside; gradients start anew inside.

    Each weight moves by the same share of its length. Batch norm's scales and shifts stay.
    """
    weights = [weight for weight in model.parameters() if weight.dim() > 1]
    moved: list[Tensor] = [weight for weight in weights if weight.grad is not None]
    slopes = [weight.grad for weight in weights if weight.grad is not None]
    with torch.no_grad():
        lengths = torch._foreach_norm(moved)
        steepness = torch._foreach_norm(slopes)
        torch._foreach_clamp_min_(steepness, 1e-12)
        scales = torch._foreach_mul(torch._foreach_div(lengths, steepness), share)
        shifts = list(torch._foreach_mul(slopes, scales))
        torch._foreach_add_(moved, shifts)
    for parameter in model.parameters():
        parameter.grad = None
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_sub_(moved, shifts)

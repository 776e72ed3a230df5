"""SGD with the paper's parameter groups, or Muon; the learning rate as a function of progress."""

import math
from typing import Any

import torch
from torch import nn

from bilateral.config import Optimiser
from bilateral.training.muon import Muon


def build_optimiser(
    model: nn.Module, settings: Optimiser, fused: bool, bfloat16: bool = False
) -> torch.optim.Optimizer:
    """Weight decay on convolution and linear weights only, not on batch norm or biases.

    With `turn`, convolutions have none either: they keep their length.
    """
    # By identity: a shared weight counts once, and a parametrised one is not the module's own.
    chosen = {
        id(module._parameters.get("weight"))
        for module in model.modules()
        if isinstance(module, nn.modules.conv._ConvNd | nn.Linear)
    }
    decayed = [parameter for parameter in model.parameters() if id(parameter) in chosen]
    plain = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": settings.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    if settings.turn:
        groups[0]["params"] = [weight for weight in decayed if weight.dim() == 2]
        turning = [weight for weight in decayed if weight.dim() > 2]
        groups.append({"params": turning, "turn": settings.turn / settings.learning_rate})
        return Muon(groups, settings.learning_rate, settings.momentum, bfloat16)
    return torch.optim.SGD(
        groups,
        lr=settings.learning_rate,
        momentum=settings.momentum,
        fused=fused or None,
    )


def go_on_with(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an optimiser's momentum, in this machine's layout; the settings stay the run's."""
    settings = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimiser.param_groups
    ]
    optimiser.load_state_dict(state)
    for group, own in zip(optimiser.param_groups, settings, strict=True):
        group.update(own)
        for parameter in group["params"]:
            kept = optimiser.state[parameter].get("momentum_buffer")
            if kept is not None:
                buffer = torch.empty_like(parameter).copy_(kept)
                optimiser.state[parameter]["momentum_buffer"] = buffer


def learning_rate(settings: Optimiser, progress: float) -> float:
    """The rate at a point of the run, given as a fraction in [0, 1]."""
    if settings.schedule != "steps":
        peak = 0.2 if settings.schedule == "triangular" else 0.3
        rising = progress < peak
        height = progress / peak if rising else (1 - progress) / (1 - peak)
        if settings.schedule == "one-cycle":
            height = (1 - math.cos(math.pi * height)) / 2
        lowest = 0.0 if rising else settings.last_share
        return settings.learning_rate * (lowest + (1 - lowest) * height)
    # Within rounding error: a milestone may be given as 0.1 + 0.2.
    passed = sum(progress >= milestone - 1e-9 for milestone in settings.milestones)
    return settings.learning_rate * settings.drop**passed

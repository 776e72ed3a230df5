"""What a training step changes: weights, their average, momentum, and where attacks begin."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bilateral.training.averaging import AveragedWeights
from bilateral.training.optimiser import go_on_with
from bilateral.training.priors import Priors


@dataclass
class Learner:
    """A model in training, after so many steps."""

    model: nn.Module
    optimiser: torch.optim.Optimizer
    averaged: AveragedWeights | None = None
    priors: Priors | None = None
    step: int = 0

    @property
    def final_model(self) -> nn.Module:
        """What is evaluated: the averaged weights where the run averages."""
        return self.averaged.model if self.averaged else self.model

    def state(self) -> dict[str, Any]:
        """All of it, by reference: the next step changes what is returned."""
        return {
            "model": self.model.state_dict(),
            "averaged": self.averaged.model.state_dict() if self.averaged else None,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "priors": self.priors.kept if self.priors else None,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        """Take over a state, which stays as it is."""
        self.model.load_state_dict(state["model"])
        if self.averaged:
            self.averaged.model.load_state_dict(state["averaged"])
        # Copied: the optimiser would write to the tensors of a state that may be needed again.
        go_on_with(self.optimiser, copy.deepcopy(state["optimiser"]))
        self.step = state["step"]
        if self.priors:
            self.priors.go_on(state["priors"])

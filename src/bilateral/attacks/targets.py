"""Which class a targeted attack moves towards."""

from typing import cast

import torch
from torch import Tensor, nn

from bilateral.config import Target
from bilateral.errors import UserError
from bilateral.models.probe import last_linear_name
from bilateral.randomness import derive, integers


def choose_targets(
    kind: Target, logits: Tensor, labels: Tensor, keys: Tensor, model: nn.Module
) -> Tensor | None:
    """The target class of each image; None for an untargeted attack.

    `nearest` is the wrong class whose decision boundary in the last layer is closest (the
    authors' MOSA); it needs a model whose logits come from a linear layer.
    """
    if kind == "none":
        return None
    if kind == "random":
        classes = logits.shape[1]
        return (labels + 1 + integers(derive(keys, 1), classes - 1)) % classes
    if kind == "least-likely":
        return logits.scatter(1, labels[:, None], torch.inf).argmin(1)
    if kind == "most-confusing":
        return logits.scatter(1, labels[:, None], -torch.inf).argmax(1)
    weights = last_linear(model, logits.shape[1]).weight.detach().to(logits.dtype)
    distance = torch.cdist(weights, weights)[labels].clamp_min(1e-12)
    gap = logits.gather(1, labels[:, None]) - logits
    return (gap / distance).scatter(1, labels[:, None], torch.inf).argmin(1)


def last_linear(model: nn.Module, classes: int) -> nn.Linear:
    """The linear layer that makes the logits."""
    name = last_linear_name(model, classes)
    if name is None:
        raise UserError("the nearest target needs a model that ends in a linear layer")
    return cast(nn.Linear, model.get_submodule(name))

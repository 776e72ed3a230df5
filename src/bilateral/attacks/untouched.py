"""An attack leaves the model as it found it: mode, gradients and batch-norm statistics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn


@contextmanager
def untouched(model: nn.Module, batch_norm: Literal["eval", "train"] = "eval") -> Iterator[None]:
    """The model in eval mode inside, and as it was found outside.

    With batch norm in train mode its running statistics are neither used nor updated.
    """
    modes = [(module, module.training) for module in model.modules()]
    norms = [
        (module, module.track_running_stats)
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
    ]
    model.eval()
    if batch_norm == "train":
        for norm, _ in norms:
            norm.train()
            norm.track_running_stats = False
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for norm, tracked in norms:
            norm.track_running_stats = tracked

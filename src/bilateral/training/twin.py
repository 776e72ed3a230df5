"""The model as the training adversary sees it: the same weights, in a mode of its own.

The twin's parameters share memory with the model's and require no gradient, so an attack on it is
never stale, computes no weight gradient, and toggles nothing on the model that is being trained.
"""

import copy
from typing import Literal

from torch import nn


def twin_of(model: nn.Module, batch_norm: Literal["eval", "train"] = "eval") -> nn.Module:
    """A copy of the modules over the same parameters and buffers, in eval mode.

    With batch norm in train mode its running statistics are neither used nor updated.
    """
    twin = copy.deepcopy(model).requires_grad_(False).eval()
    for own, theirs in zip(
        twin.named_parameters(remove_duplicate=False),
        model.named_parameters(remove_duplicate=False),
        strict=True,
    ):
        own[1].data = theirs[1].data
    for own_module, their_module in zip(twin.modules(), model.modules(), strict=True):
        for name, buffer in their_module.named_buffers(recurse=False):
            own_module.register_buffer(name, buffer)
        if batch_norm == "train" and isinstance(own_module, nn.modules.batchnorm._BatchNorm):
            own_module.train()
            own_module.track_running_stats = False
    return twin

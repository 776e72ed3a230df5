"""The model that attacks search on: the same function, faster.

What it finds is re-checked on the model itself in float32, so it may be a compiled copy that
computes in bfloat16.
"""

import copy
from typing import cast

import torch
from torch import nn

from bilateral.models.network import Network
from bilateral.runtime import has_bfloat16


def searches_in_bfloat16(model: nn.Module, device: torch.device) -> bool:
    """Whether attacks search in bfloat16: on a GPU, for models whose logits stay float32.

    Logits in bfloat16 tie, which weakens a margin attack; a float32 re-check cannot make up for a
    weak search.
    """
    return has_bfloat16(device) and isinstance(model, Network)


def compiled(model: nn.Module) -> nn.Module:
    """A compiled copy whose weights need no gradients, so that none are computed for them.

    Its batch size is dynamic: batches shrink as images break, and nothing is compiled again.
    """
    frozen = copy.deepcopy(model).requires_grad_(False).eval()
    return cast(nn.Module, torch.compile(frozen, dynamic=True))

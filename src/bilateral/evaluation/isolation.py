"""Whether images stand alone: a model may answer otherwise at them than everywhere beside them.

Such a model knows its test images, by their whole grey levels say. Attacks leave that point with
their first step and measure another function than the one whose clean accuracy is told.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bilateral.randomness import derive, random_signs

DISTANCES = (0.25 / 255, 0.5 / 255)
"""How far the neighbours are: no image of whole grey levels lies nearer than twice as far."""
JUMP = 0.05
"""In parts of the largest logit. Networks here stay below 0.004, an undefended one included
(`docs/log.md`, 18th session)."""
_SIGNS = 620


def isolated(outputs: Callable[[Tensor], Tensor], images: Tensor, keys: Tensor) -> Tensor:
    """Which images have logits that jump between them and the mean of two opposite neighbours.

    A slope, however steep, cancels between the two; what bends a network bends it far less.
    """
    logits = outputs(images)
    largest = torch.zeros_like(logits[:, 0])
    for turn, distance in enumerate(DISTANCES):
        change = distance * random_signs(images, derive(keys, _SIGNS + turn))
        ahead, behind = (outputs((images + side).clamp(0, 1)) for side in (change, -change))
        largest = largest.maximum((logits - (ahead + behind) / 2).abs().amax(1))
    return largest > JUMP * logits.abs().amax()

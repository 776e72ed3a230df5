"""Whether images stand alone: a model may answer otherwise at them than everywhere beside them.

Such a model knows its test images, by their whole grey levels say, or has an edge there. Attacks
leave that point with their first step and measure another function than the one whose clean
accuracy is told.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bilateral.randomness import derive, random_signs

DISTANCES = (0.125 / 255, 0.25 / 255)
"""How far the nearer of two neighbours is; the further one is twice as far, so that no image of
whole grey levels lies nearer than twice that."""
JUMP = 0.05
"""In parts of how far the two largest logits of an image usually are apart."""
_SURE = 4
"""So many times what changes from call to call, or from one direction to another, is no jump."""
_SIGNS = 620


def isolated(
    outputs: Callable[[Tensor], Tensor], images: Tensor, keys: Tensor, logits: Tensor
) -> Tensor:
    """Which images have `logits` that jump from what lies beside them, whichever way one looks.

    A slope goes on along the line of two neighbours, however steep; what bends a network bends it
    far less. An input that is rounded jumps as well, but every way otherwise. Neither what is added
    to all logits counts, nor the size of a class that is never meant. NaN beside an image does.
    """
    noise = _apart(outputs(images), logits).max().nan_to_num(0.0)
    largest = torch.zeros_like(logits[:, 0])
    for turn, distance in enumerate(DISTANCES):
        one, other = (
            _led_to(outputs, images, derive(keys, _SIGNS + 2 * turn + way), distance)
            for way in range(2)
        )
        jump = _apart(one, logits).minimum(_apart(other, logits)).nan_to_num(torch.inf)
        largest = largest.maximum(jump - _SURE * _apart(one, other).nan_to_num(0.0))
    first, second = logits.topk(2, 1).values.unbind(1)
    return largest > JUMP * (first - second).median() + _SURE * noise


def _led_to(
    outputs: Callable[[Tensor], Tensor], images: Tensor, keys: Tensor, distance: float
) -> Tensor:
    """What the logits at the images would be by the line through two neighbours on one side."""
    low, high = images < 2 * distance, images > 1 - 2 * distance
    signs = torch.where(low, 1.0, torch.where(high, -1.0, random_signs(images, keys)))
    nearer, further = (outputs(images + by * distance * signs) for by in (1, 2))
    return torch.where(nearer.isneginf() & further.isneginf(), nearer, 2 * nearer - further)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """How far the logits of each image are apart, but for what was added to all of them.

    A class at minus infinity on both sides is not apart.
    """
    apart = torch.where(one.isneginf() & other.isneginf(), 0.0, one - other)
    return (apart - apart.median(1, keepdim=True).values).abs().amax(1)

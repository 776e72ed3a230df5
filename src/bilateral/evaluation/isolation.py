"""Isolated images: those at which a model answers differently than at all points next to them.

Such a model recognises its test images, by their whole grey levels say, or has a discontinuity
there. Attacks leave that point with their first step, and measure another function than the one
whose clean accuracy is reported.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bilateral.randomness import derive, random_signs

DISTANCES = (0.125 / 255, 0.25 / 255)
"""The distance of the nearer of two neighbours. The further one is twice as far: at most half a
grey level, so no other image of whole grey levels is closer to it."""
JUMP = 0.05
"""The smallest jump that counts, as a share of the median gap between the two largest logits."""
_SURE = 4
"""Jumps up to this multiple of the change between calls, or between directions, do not count."""
_SIGNS = 620


def isolated(
    outputs: Callable[[Tensor], Tensor], images: Tensor, keys: Tensor, logits: Tensor
) -> Tensor:
    """Which images have `logits` that jump from those right next to them, in every direction.

    However steep, a slope continues the line through two neighbours, and a network's curvature
    departs from it far less. Rounded inputs jump too, but differently in each direction. Neither a
    shift of all logits counts, nor the size of a logit that is never among the largest. NaN next to
    an image does.
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
    """The logits at the images, extrapolated linearly from two neighbours on one side."""
    low, high = images < 2 * distance, images > 1 - 2 * distance
    signs = torch.where(low, 1.0, torch.where(high, -1.0, random_signs(images, keys)))
    nearer, further = (outputs(images + by * distance * signs) for by in (1, 2))
    return torch.where(nearer.isneginf() & further.isneginf(), nearer, 2 * nearer - further)


def _apart(one: Tensor, other: Tensor) -> Tensor:
    """The largest difference between each image's logits, apart from a shift of all of them.

    A class at minus infinity in both does not differ.
    """
    apart = torch.where(one.isneginf() & other.isneginf(), 0.0, one - other)
    return (apart - apart.median(1, keepdim=True).values).abs().amax(1)

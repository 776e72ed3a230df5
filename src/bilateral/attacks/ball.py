"""The feasible set of an attack: the L-inf ball around the images, inside [0, 1]."""

from typing import Literal

import torch
from torch import Tensor

from bilateral.randomness import uniform

TOLERANCE = 1e-6
"""How far outside the ball float32 rounding may carry an image that still counts."""


def project(
    images: Tensor,
    clean: Tensor,
    epsilon: float,
    into: Literal["ball", "range", "none"] = "ball",
) -> Tensor:
    """The nearest images in the ball around `clean` and [0, 1], in [0, 1] alone, or as they are."""
    if into != "ball":
        return images if into == "none" else images.clamp(0, 1)
    return torch.min(torch.max(images, clean - epsilon), clean + epsilon).clamp(0, 1)


def random_start(
    clean: Tensor, epsilon: float, keys: Tensor, clip: bool, corners: bool = False
) -> Tensor:
    """A uniform point, or corner, of the ball around each image, clipped to [0, 1] if asked."""
    noise = 2 * uniform(keys, tuple(clean.shape[1:])).to(clean.dtype) - 1
    start = clean + (torch.where(noise < 0, -1.0, 1.0) if corners else noise) * epsilon
    return start.clamp(0, 1) if clip else start


def given_start(clean: Tensor, otherwise: Tensor, perturbations: Tensor, clip: bool) -> Tensor:
    """Images moved by the given perturbations, or `otherwise` where these are NaN."""
    start = clean + perturbations
    start = start.clamp(0, 1) if clip else start
    return torch.where(perturbations.isnan(), otherwise, start)


def inside(images: Tensor, clean: Tensor, epsilon: float) -> Tensor:
    """Which images lie in the ball and in [0, 1], within float32 rounding."""
    images, clean = images.flatten(1), clean.flatten(1)
    near = (images - clean).abs().amax(1) <= epsilon + TOLERANCE
    in_range = (images.amin(1) >= 0) & (images.amax(1) <= 1)
    return near & in_range & torch.isfinite(images).all(1)


def per_image(values: Tensor, images: Tensor) -> Tensor:
    """One value for each image in a shape that broadcasts over its pixels."""
    return values.reshape(-1, *[1] * (images.dim() - 1))

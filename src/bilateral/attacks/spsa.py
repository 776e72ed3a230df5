"""SPSA in L-inf: an attack without gradients, for models whose gradients are useless.

Uesato et al. 2018 (arXiv 1802.05666): the margin's gradient is estimated from differences
between pairs of images on either side of the iterate, along random signs.
"""

import torch
from torch import Tensor, nn

from bilateral.attacks import ball
from bilateral.attacks.losses import margin
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.settings import SPSA
from bilateral.randomness import derive, fresh_keys, uniform

IMAGES_PER_FORWARD = 512
"""Samples of several images share a forward pass of about this size."""


@torch.no_grad()
def spsa(
    model: nn.Module, images: Tensor, labels: Tensor, settings: SPSA, keys: Tensor | None = None
) -> Attacked:
    """Attack `images` inside the ball by Adam on estimated gradients.

    An image leaves the batch as soon as an iterate fools. `keys` determine each image's signs.
    """
    current = clean = images.detach()
    if keys is None:
        keys = fresh_keys(len(images), images.device)
    result, fooled = clean.clone(), torch.zeros_like(labels, dtype=torch.bool)
    place = torch.arange(len(labels), device=labels.device)
    mean, square = torch.zeros_like(clean), torch.zeros_like(clean)
    forwards = 0
    for step in range(settings.steps + 1):
        broken = model(current).argmax(1) != labels
        forwards += len(place)
        result[place], fooled[place] = current, broken
        if bool(broken.any()):
            stay = ~broken
            place, clean, labels, keys = place[stay], clean[stay], labels[stay], keys[stay]
            current, mean, square = current[stay], mean[stay], square[stay]
        if step == settings.steps or not len(place):
            break
        gradient = _estimate(model, current, labels, settings, derive(keys, step))
        forwards += settings.samples * len(place)
        mean = torch.lerp(gradient, mean, 0.9)
        square = torch.lerp(gradient.square(), square, 0.999)
        spread = (square / (1 - 0.999 ** (step + 1))).sqrt()
        ascent = mean / (1 - 0.9 ** (step + 1)) / (spread + 1e-8)
        moved = current + settings.learning_rate * ascent
        current = ball.project(moved, clean, settings.epsilon)
    return Attacked(result, fooled, forwards, 0)


def _estimate(
    model: nn.Module, images: Tensor, labels: Tensor, settings: SPSA, keys: Tensor
) -> Tensor:
    """The margin's gradient: the mean over pairs of sign times difference."""
    pairs, shape = settings.samples // 2, images.shape[1:]
    group = max(1, IMAGES_PER_FORWARD // settings.samples)
    estimates = []
    for some, some_labels, some_keys in zip(
        *(torch.split(tensor, group) for tensor in (images, labels, keys)), strict=True
    ):
        positive = uniform(some_keys, (pairs, *shape)) < 0.5
        signs = torch.where(positive, 1.0, -1.0).to(images.dtype)
        probes = settings.probe_size * signs
        samples = torch.stack([some[:, None] + probes, some[:, None] - probes], 1)
        logits = model(samples.flatten(0, 2)).float()
        gaps = margin(logits, some_labels.repeat_interleave(settings.samples), None)
        ahead, behind = gaps.reshape(-1, 2, pairs).unbind(1)
        slopes = (ahead - behind) / (2 * settings.probe_size)
        weighted = signs.flatten(2) * slopes[:, :, None].to(images.dtype)
        estimates.append(weighted.mean(1).reshape(some.shape))
    return torch.cat(estimates)

"""Attacks that look for the nearest fooling image in L2: Carlini-Wagner and DeepFool.

Both are in the appendix's table of other attacks. Neither has a budget: the result is an image, its
distance and whether it fools, to be compared with any radius afterwards.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bilateral.attacks.ball import per_image
from bilateral.attacks.losses import image_gradient, margin
from bilateral.attacks.settings import CarliniWagner, DeepFool

CROSSING = 1e-4
"""Added to the length of every DeepFool move. Clipping to [0, 1] shortens moves, so iterates can
creep up to a boundary forever: without this, 24 % of 191 digits were not fooled in 50 steps."""


class MinimumNorm(NamedTuple):
    """What a minimum-norm attack found.

    `found` says which `images` are misclassified, `distances` how far in L2 they are from the
    clean ones. Where nothing was found the clean image is returned at an infinite distance; an
    image misclassified from the start is returned as it is at distance zero. `forwards` and
    `backwards` count images passed through the network.
    """

    images: Tensor
    found: Tensor
    distances: Tensor
    forwards: int
    backwards: int


def _at_clean(model: nn.Module, clean: Tensor, labels: Tensor) -> tuple[MinimumNorm, Tensor]:
    """The result before any step, and the clean images' logits."""
    with torch.no_grad():
        logits = model(clean).float()
    wrong = logits.argmax(1) != labels
    distances = torch.where(wrong, 0.0, torch.inf).to(clean.dtype)
    return MinimumNorm(clean.clone(), wrong, distances, len(labels), 0), logits


def _l2(difference: Tensor) -> Tensor:
    return difference.flatten(1).square().sum(1).sqrt()


def cw_l2(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: CarliniWagner,
    keys: Tensor | None = None,
) -> MinimumNorm:
    """Carlini and Wagner's L2 attack (2017): Adam on distance plus constant times margin.

    Images are written as (tanh + 1) / 2, so they cannot leave [0, 1]. With more than one binary
    search step each image's constant grows tenfold until a first success, and is then halfway
    between the largest that failed and the smallest that succeeded. The nearest successful iterate
    of all is kept. Nothing is random: `keys` are ignored.
    """
    clean = images.detach()
    result, _ = _at_clean(model, clean, labels)
    left = (~result.found).nonzero().squeeze(1)
    clean, labels = clean[left], labels[left]
    constants = torch.full_like(labels, settings.constant, dtype=clean.dtype)
    lower, upper = torch.zeros_like(constants), torch.full_like(constants, torch.inf)
    for _ in range(settings.binary_search_steps if len(left) else 0):
        again = _cw_at_constant(model, clean, labels, constants, settings)
        nearer = again.distances < result.distances[left]
        place = left[nearer]
        result.images[place], result.found[place] = again.images[nearer], True
        result.distances[place] = again.distances[nearer]
        result = result._replace(
            forwards=result.forwards + again.forwards,
            backwards=result.backwards + again.backwards,
        )
        upper = torch.where(again.found, constants, upper)
        lower = torch.where(again.found, lower, constants)
        constants = torch.where(upper.isinf(), 10 * constants, (lower + upper) / 2)
    return result


def _cw_at_constant(
    model: nn.Module, clean: Tensor, labels: Tensor, constants: Tensor, settings: CarliniWagner
) -> MinimumNorm:
    """The nearest successful iterate for each image's constant."""
    # atanh is infinite at black and white; this far inside it is 7.3, and Adam can move it.
    variable = torch.atanh((2 * clean - 1) * (1 - 1e-6)).requires_grad_()
    optimiser = torch.optim.Adam([variable], settings.learning_rate)
    nearest, found = clean, torch.zeros_like(labels, dtype=torch.bool)
    distances = torch.full_like(constants, torch.inf)
    for _ in range(settings.steps):
        with torch.enable_grad():
            current = (torch.tanh(variable) + 1) / 2
            logits = model(current).float()
            gap = margin(logits, labels, None)
            squared = (current - clean).square().flatten(1).sum(1)
            loss = squared + constants * (settings.confidence - gap).clamp_min(0)
            variable.grad = image_gradient(loss, variable)
        optimiser.step()
        current = current.detach()
        length = _l2(current - clean)
        success = (logits.argmax(1) != labels) & (gap.detach() >= settings.confidence)
        nearer = success & (length < distances)
        found |= success
        distances = torch.where(nearer, length, distances)
        nearest = torch.where(per_image(nearer, clean), current, nearest)
    passes = settings.steps * len(labels)
    return MinimumNorm(nearest, found, distances, passes, passes)


def deepfool_l2(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: DeepFool,
    keys: Tensor | None = None,
) -> MinimumNorm:
    """DeepFool in L2 (Moosavi-Dezfooli et al. 2016) among the most likely classes.

    Every step linearises the boundaries to the candidates, which are chosen at the clean image,
    and moves on to the nearest. An image leaves the batch when it is misclassified. A step takes
    one backward pass per candidate, whatever the number of classes. Nothing is random: `keys` are
    ignored.
    """
    clean = images.detach()
    result, logits = _at_clean(model, clean, labels)
    wrong_classes = min(settings.candidates, logits.shape[1]) - 1
    candidates = logits.scatter(1, labels[:, None], -torch.inf).topk(wrong_classes, 1).indices
    place = (~result.found).nonzero().squeeze(1)
    clean, labels, candidates = clean[place], labels[place], candidates[place]
    perturbation, current = torch.zeros_like(clean), clean
    forwards, backwards = result.forwards, 0
    for _ in range(settings.steps):
        if not len(place):
            break
        perturbation = perturbation + _to_nearest_boundary(model, current, labels, candidates)
        current = (clean + (1 + settings.overshoot) * perturbation).clamp(0, 1)
        with torch.no_grad():
            wrong = model(current).argmax(1) != labels
        forwards = forwards + 2 * len(place)
        backwards = backwards + wrong_classes * len(place)
        if bool(wrong.any()):
            done, stay = place[wrong], ~wrong
            result.images[done], result.found[done] = current[wrong], True
            result.distances[done] = _l2(current[wrong] - clean[wrong])
            place, clean, labels, candidates = (
                tensor[stay] for tensor in (place, clean, labels, candidates)
            )
            perturbation, current = perturbation[stay], current[stay]
    return result._replace(forwards=forwards, backwards=backwards)


def _to_nearest_boundary(
    model: nn.Module, images: Tensor, labels: Tensor, candidates: Tensor
) -> Tensor:
    """The shortest L2 move on to a linearised boundary with one of the candidates."""
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        logits = model(images).float()
        nearest, move = torch.full_like(logits[:, 0], torch.inf), torch.zeros_like(images)
        for rank in range(candidates.shape[1]):
            gap = margin(logits, labels, candidates[:, rank])
            last = rank == candidates.shape[1] - 1
            gradient = image_gradient(gap, images, again=not last)
            norm = _l2(gradient).clamp_min(1e-12)
            distance = gap.detach().abs() / norm + CROSSING
            scale = per_image(distance / norm, images)
            move = torch.where(per_image(distance < nearest, images), scale * gradient, move)
            nearest = torch.minimum(nearest, distance)
    return move

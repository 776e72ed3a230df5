"""FAB-T in L-inf: the nearest point of another class (Croce and Hein 2019, arXiv 1907.02044).

The boundary between the true class and a target is linearised at the iterate; the iterate and
the clean image are both projected on to it inside [0, 1], and the next iterate lies between the
two. Targets are the most likely wrong classes, one after another.
"""

import torch
from torch import Tensor, nn

from bilateral.attacks import ball
from bilateral.attacks.ball import per_image
from bilateral.attacks.losses import margin
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.settings import FAB
from bilateral.randomness import derive, fresh_keys, uniform


def fab(
    model: nn.Module, images: Tensor, labels: Tensor, settings: FAB, keys: Tensor | None = None
) -> Attacked:
    """Look for the nearest fooling point of each image; `fooled` if one lies within epsilon.

    An image leaves the batch at the first such point. What comes back for a survivor is the
    projection of its nearest fooling point on to the ball, or the clean image if there was none.
    The caller puts the model into eval mode.
    """
    clean = images.detach()
    if keys is None:
        keys = fresh_keys(len(images), images.device)
    with torch.no_grad():
        reference = model(clean).float()
    fooled = reference.argmax(1) != labels
    result, distances = clean.clone(), torch.full_like(labels, torch.inf, dtype=clean.dtype)
    forwards, backwards = len(labels), 0
    count = min(settings.targets, reference.shape[1] - 1)
    targets = reference.scatter(1, labels[:, None], -torch.inf).topk(count, 1).indices
    for attempt in range(settings.restarts * count):
        left = (~fooled).nonzero().squeeze(1)
        if not len(left):
            break
        start = clean[left]
        if attempt >= count:
            radius = distances[left].clamp_max(settings.epsilon) / 2
            start = _sphere_point(start, radius, derive(keys[left], attempt))
        target = targets[left, attempt % count]
        run, lengths = _towards(model, start, clean[left], labels[left], target, settings)
        nearer = run.fooled | (lengths < distances[left])
        result[left[nearer]] = run.images[nearer]
        distances[left] = torch.minimum(distances[left], lengths)
        fooled[left] = run.fooled
        forwards, backwards = forwards + run.forwards, backwards + run.backwards
    return Attacked(result, fooled, forwards, backwards, reference)


def _sphere_point(clean: Tensor, radius: Tensor, keys: Tensor) -> Tensor:
    """A random point at L-inf distance `radius` from each image, clipped to [0, 1]."""
    noise = 2 * uniform(keys, tuple(clean.shape[1:])).to(clean.dtype) - 1
    scale = radius / noise.abs().flatten(1).amax(1).clamp_min(1e-30)
    return (clean + noise * per_image(scale, clean)).clamp(0, 1)


def _towards(
    model: nn.Module,
    current: Tensor,
    clean: Tensor,
    labels: Tensor,
    targets: Tensor,
    settings: FAB,
) -> tuple[Attacked, Tensor]:
    """One run towards one target from `current`, and the distance of the nearest fooling point.

    The paper's final search shrinks that point along its line to the clean image; only the ball
    counts here, so its projection on to the ball is tried instead, in one forward pass.
    """
    result, fooled = clean.clone(), torch.zeros_like(labels, dtype=torch.bool)
    lengths = torch.full_like(labels, torch.inf, dtype=clean.dtype)
    place = torch.arange(len(labels), device=labels.device)
    nearest, nearest_length = clean, lengths
    forwards = backwards = 0
    for _ in range(settings.steps):
        value, normal = _boundary(model, current, labels, targets)
        current = _step(current, clean, value, normal, settings)
        with torch.no_grad():
            wrong = model(current).argmax(1) != labels
        forwards, backwards = forwards + 2 * len(labels), backwards + len(labels)
        length = (current - clean).abs().flatten(1).amax(1)
        nearer = wrong & (length < nearest_length)
        nearest = torch.where(per_image(nearer, clean), current, nearest)
        nearest_length = torch.where(nearer, length, nearest_length)
        broken = wrong & ball.inside(current, clean, settings.epsilon)
        if bool(broken.any()):
            done = place[broken]
            result[done], lengths[done], fooled[done] = current[broken], length[broken], True
            stay = ~broken
            place, clean, labels, targets = place[stay], clean[stay], labels[stay], targets[stay]
            current, wrong = current[stay], wrong[stay]
            nearest, nearest_length = nearest[stay], nearest_length[stay]
            if not len(place):
                return Attacked(result, fooled, forwards, backwards), lengths
        retreated = torch.lerp(clean, current, settings.retreat)
        current = torch.where(per_image(wrong, clean), retreated, current)
    projected = ball.project(nearest, clean, settings.epsilon)
    with torch.no_grad():
        fooled[place] = model(projected).argmax(1) != labels
    result[place], lengths[place] = projected, nearest_length
    return Attacked(result, fooled, forwards + len(labels), backwards), lengths


def _boundary(
    model: nn.Module, images: Tensor, labels: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Target logit minus true logit at the images, and its gradient."""
    with torch.enable_grad():
        images = images.detach().requires_grad_()
        value = margin(model(images).float(), labels, targets)
        (gradient,) = torch.autograd.grad(value.sum(), images)
    return value.detach(), gradient


def _step(current: Tensor, clean: Tensor, value: Tensor, normal: Tensor, settings: FAB) -> Tensor:
    """The next iterate: past the linearised boundary, biased towards the clean image."""
    here, origin, normal = current.flatten(1), clean.flatten(1), normal.flatten(1)
    value_at_origin = value + ((origin - here) * normal).sum(1)
    moves = shortest_moves(
        torch.cat([here, origin]), normal.repeat(2, 1), torch.cat([value, value_at_origin])
    )
    move, move_from_origin = moves.chunk(2)
    length, length_from_origin = moves.abs().amax(1, keepdim=True).chunk(2)
    bias = length / (length + length_from_origin).clamp_min(1e-30)
    bias = bias.clamp_max(settings.largest_bias)
    moved = torch.lerp(
        here + settings.extrapolation * move,
        origin + settings.extrapolation * move_from_origin,
        bias,
    )
    return moved.clamp(0, 1).reshape(clean.shape)


def shortest_moves(points: Tensor, normals: Tensor, values: Tensor) -> Tensor:
    """The L-inf shortest move of each row on to its hyperplane inside [0, 1].

    `values` are what the affine functions with gradients `normals` are at `points`; the moved
    rows have value zero, or as near to it as the box allows.
    A move of length t shifts every pixel by t or, where that is less, to the edge of the box;
    what it gains is concave and piecewise linear in t, with a kink wherever a pixel reaches its
    edge. Sorting these kinks finds the piece on which the value reaches zero.
    """
    direction = -values.sign()[:, None] * normals.sign()
    room = torch.where(direction > 0, 1 - points, points)
    kinks, order = room.sort(1)
    weights = normals.abs().gather(1, order)
    spent = (weights * kinks).cumsum(1) - weights * kinks
    slope = weights.flip(1).cumsum(1).flip(1)
    needed = values.abs()[:, None]
    piece = (spent + slope * kinks < needed).sum(1, keepdim=True).clamp_max(points.shape[1] - 1)
    length = (needed - spent.gather(1, piece)) / slope.gather(1, piece).clamp_min(1e-30)
    return direction * torch.minimum(length, room)

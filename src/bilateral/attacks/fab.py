"""FAB-T in L-inf: the nearest point of another class (Croce and Hein 2019, arXiv 1907.02044).

The boundary between the true class and a target is linearised at the iterate; the iterate and
the clean image are both projected on to it inside [0, 1], and the next iterate lies between the
two. Targets are the most likely wrong classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.attacks import ball
from bilateral.attacks.ball import per_image
from bilateral.attacks.losses import fools, image_gradient, margin
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.rows import ROWS, Rows, best_rows, broken_rows, likeliest_wrong
from bilateral.attacks.settings import FAB
from bilateral.randomness import derive, fresh_keys, uniform


def fab(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: FAB,
    keys: Tensor | None = None,
    slack: float = 0.0,
) -> Attacked:
    """Look for the nearest fooling point of each image; `fooled` if one lies within epsilon.

    An image leaves the batch at the first such point. For a survivor, the projection of its nearest
    fooling point on to the ball is returned, or the clean image if there was none. Targets run in
    one batch where `ROWS` allows it. The caller puts the model into eval mode.
    """
    clean = images.detach()
    if keys is None:
        keys = fresh_keys(len(images), images.device)
    with torch.no_grad():
        reference = model(clean).float()
    fooled = fools(reference, labels, slack)
    result, distances = clean.clone(), torch.full_like(labels, torch.inf, dtype=clean.dtype)
    forwards, backwards = len(labels), 0
    targets = likeliest_wrong(reference, labels, settings.targets)
    attempts = range(settings.restarts * targets.shape[1])
    limit = ROWS.get(images.device.type, 1)
    while attempts and len(left := (~fooled).nonzero().squeeze(1)):
        group = attempts[: max(1, limit // len(left))]
        walk = _start(left, group, clean, labels, targets, settings, keys)
        try:
            for broken, points in _walk(model, walk, settings, slack):
                result[broken], fooled[broken] = points, True
        except torch.OutOfMemoryError:
            if len(group) == 1:
                raise
            limit = 1
            continue
        finally:
            forwards, backwards = forwards + walk.forwards, backwards + walk.backwards
        rows = best_rows(-walk.length, len(group))
        rows = rows[walk.length[rows] < distances[walk.place[rows]]]
        survivors = walk.place[rows]
        result[survivors], distances[survivors] = walk.nearest[rows], walk.length[rows]
        attempts = attempts[len(group) :]
    return Attacked(result, fooled, forwards, backwards, reference)


@dataclass
class _Walk(Rows):
    """The state of each row: an attempt on the image at `place`; rows are ordered by attempt.

    `nearest` is the nearest fooling point so far and `length` its distance, infinite if none.
    """

    attempts: int
    place: Tensor
    clean: Tensor
    labels: Tensor
    targets: Tensor
    current: Tensor
    nearest: Tensor
    length: Tensor
    forwards: int = 0
    backwards: int = 0


def _start(
    left: Tensor,
    attempts: range,
    clean: Tensor,
    labels: Tensor,
    targets: Tensor,
    settings: FAB,
    keys: Tensor,
) -> _Walk:
    """A new walk: from the images `left` on the first pass over the targets, then from near them.

    Such a start lies at half the distance of the nearest fooling point, but at most epsilon / 2;
    this is always epsilon / 2, as fooling points of an image that is left lie outside the ball.
    """
    count = targets.shape[1]
    place, unmoved = left.repeat(len(attempts)), clean[left]
    starts = [
        unmoved
        if attempt < count
        else _sphere_point(unmoved, settings.epsilon / 2, derive(keys[left], attempt))
        for attempt in attempts
    ]
    return _Walk(
        attempts=len(attempts),
        place=place,
        clean=clean[place],
        labels=labels[place],
        targets=torch.cat([targets[left, attempt % count] for attempt in attempts]),
        current=torch.cat(starts),
        nearest=clean[place],
        length=torch.full_like(place, torch.inf, dtype=clean.dtype),
    )


def _sphere_point(clean: Tensor, radius: float, keys: Tensor) -> Tensor:
    """A random point at L-inf distance `radius` from each image, clipped to [0, 1]."""
    noise = 2 * uniform(keys, tuple(clean.shape[1:])).to(clean.dtype) - 1
    scale = radius / noise.abs().flatten(1).amax(1).clamp_min(1e-30)
    return (clean + noise * per_image(scale, clean)).clamp(0, 1)


def _walk(
    model: nn.Module, walk: _Walk, settings: FAB, slack: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Run the attempts to their end; yields the places and points of images as they break.

    The paper's final search shrinks the nearest point along its line to the clean image; only the
    ball counts here, so its projection on to the ball is tried instead, in one forward pass.
    """
    for _ in range(settings.steps):
        value, normal = _boundary(model, walk)
        current = _step(walk.current, walk.clean, value, normal, settings)
        wrong, clearly = _fools(model, walk, current, slack)
        length = (current - walk.clean).abs().flatten(1).amax(1)
        nearer = wrong & (length < walk.length)
        walk.nearest = torch.where(per_image(nearer, current), current, walk.nearest)
        walk.length = torch.where(nearer, length, walk.length)
        retreated = torch.lerp(walk.clean, current, settings.retreat)
        walk.current = torch.where(per_image(wrong, current), retreated, current)
        broken = clearly & ball.inside(current, walk.clean, settings.epsilon)
        if rows := broken_rows(broken, walk.attempts):
            found, stay = rows
            yield walk.place[found], current[found]
            walk.keep(stay)
            if not len(walk.place):
                return
    walk.nearest = ball.project(walk.nearest, walk.clean, settings.epsilon)
    _, clearly = _fools(model, walk, walk.nearest, slack)
    if rows := broken_rows(clearly, walk.attempts):
        found, stay = rows
        yield walk.place[found], walk.nearest[found]
        walk.keep(stay)


def _fools(model: nn.Module, walk: _Walk, images: Tensor, slack: float) -> tuple[Tensor, Tensor]:
    """Which rows of `images` the model gets wrong, and which by more than the slack."""
    with torch.no_grad():
        logits = model(images).float()
    walk.forwards += len(images)
    return fools(logits, walk.labels), fools(logits, walk.labels, slack)


def _boundary(model: nn.Module, walk: _Walk) -> tuple[Tensor, Tensor]:
    """Target logit minus true logit at the current images, and its gradient."""
    with torch.enable_grad():
        images = walk.current.detach().requires_grad_()
        value = margin(model(images).float(), walk.labels, walk.targets)
        gradient = image_gradient(value, images)
    walk.forwards, walk.backwards = walk.forwards + len(value), walk.backwards + len(value)
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

    `values` are the values at `points` of the affine functions with gradients `normals`; the moved
    rows have value zero, or as near to it as the box allows.
    A move of length t shifts every pixel by t or, where that is less, to the edge of the box; its
    gain is concave and piecewise linear in t, with a kink wherever a pixel reaches its edge.
    Sorting these kinks finds the piece on which the value reaches zero.
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

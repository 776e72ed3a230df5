"""Auto-PGD (Croce & Hein 2020, arXiv 2003.01690, algorithm 1): no step size to tune.

Signed-gradient steps with momentum start at twice the budget. At checkpoints that come ever more
often, an image whose loss has stalled halves its step and continues from its best point.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bilateral.attacks import ball, losses
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.rows import ROWS, Rows, best_rows, broken_rows, likeliest_wrong
from bilateral.attacks.settings import APGD
from bilateral.randomness import derive, fresh_keys

MOMENTUM = 0.75
"""Weight of the new step against the last move, the paper's alpha."""
RISING_SHARE = 0.75
"""Below this share of rising steps since the last checkpoint the step halves, the paper's rho."""
_START = 300  # the first of the numbers from which starts derive their keys


def checkpoints(steps: int) -> list[int]:
    """The steps at which the step size is judged: ceil(p_j * steps) of the paper's section 3."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    # The shares are sums of hundredths: a bare ceiling would turn 57.00000000000001 into 58.
    return [math.ceil(round(share * steps, 6)) for share in shares if share < 1]


def apgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: APGD,
    keys: Tensor | None = None,
    slack: float = 0.0,
) -> Attacked:
    """Attack `images` inside the ball of `settings.epsilon`.

    An image leaves the batch as soon as an iterate fools the model, and that iterate is returned;
    for a survivor it is the iterate of largest loss, or one that fooled only within the slack.
    Each start, and each target class of the targeted loss, attacks the images that are left, in one
    batch where `ROWS` allows it. `keys` determine each image's noise, `slack` the margin by which
    it must fool (`losses.fools`). The caller puts the model into eval mode and chooses the
    precision by autocast.
    """
    clean = images.detach()
    if keys is None:
        keys = fresh_keys(len(images), images.device)
    with torch.no_grad():
        reference = model(clean).float()
    result, fooled = clean.clone(), losses.fools(reference, labels, slack)
    doubted = torch.zeros_like(fooled)
    largest_loss = torch.full_like(reference[:, 0], -torch.inf)
    forwards, backwards = len(labels), 0
    goals = _goals(reference, labels, settings)
    attempts = range(settings.restarts * (1 if goals is None else goals.shape[1]))
    limit = ROWS.get(images.device.type, 1)
    while attempts and len(left := (~fooled).nonzero().squeeze(1)):
        group = attempts[: max(1, limit // len(left))]
        search = _start(left, group, clean, labels, goals, settings, keys)
        try:
            for places, iterates, clearly in _climb(model, search, settings, slack):
                result[places] = iterates
                fooled[places], doubted[places] = clearly, not clearly
        except torch.OutOfMemoryError:
            if len(group) == 1:
                raise
            limit = 1
            continue
        finally:
            forwards, backwards = forwards + search.forwards, backwards + search.backwards
        rows = best_rows(search.best_loss, len(group))
        better = search.best_loss[rows] > largest_loss[search.place[rows]]
        rows = rows[better & ~doubted[search.place[rows]]]
        survivors = search.place[rows]
        result[survivors] = search.best[rows]
        largest_loss[survivors] = search.best_loss[rows]
        attempts = attempts[len(group) :]
    return Attacked(result, fooled, forwards, backwards, reference)


def _goals(reference: Tensor, labels: Tensor, settings: APGD) -> Tensor | None:
    """The target classes of each image in the order in which they are tried, if there are any."""
    if settings.loss != "dlr-targeted":
        return None
    return likeliest_wrong(reference, labels, settings.targets)


@dataclass
class _Search(Rows):
    """The state of each row: an attempt on the image at `place`; rows are ordered by attempt."""

    attempts: int
    place: Tensor
    clean: Tensor
    labels: Tensor
    targets: Tensor | None
    current: Tensor
    previous: Tensor
    loss: Tensor
    gradient: Tensor
    best: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    step_size: Tensor
    rises: Tensor
    halved: Tensor
    checkpoint_loss: Tensor
    forwards: int = 0
    backwards: int = 0


def _start(
    left: Tensor,
    attempts: range,
    clean: Tensor,
    labels: Tensor,
    goals: Tensor | None,
    settings: APGD,
    keys: Tensor,
) -> _Search:
    """A new search from random points of the balls around the images `left`."""
    place, epsilon = left.repeat(len(attempts)), settings.epsilon
    targets = None
    if goals is not None:
        tried = [goals[left, attempt // settings.restarts] for attempt in attempts]
        targets = torch.cat(tried)
    noise = torch.cat([derive(keys[left], _START + attempt) for attempt in attempts])
    clean = clean[place]
    start = ball.random_start(clean, epsilon, noise, clip=True)
    start = ball.project(start, clean, epsilon)
    zeros = torch.zeros(len(place), device=clean.device)
    return _Search(
        attempts=len(attempts),
        place=place,
        clean=clean,
        labels=labels[place],
        targets=targets,
        current=start,
        previous=start,
        loss=zeros + torch.inf,
        gradient=torch.zeros_like(clean),
        best=start,
        best_gradient=torch.zeros_like(clean),
        best_loss=zeros - torch.inf,
        step_size=(zeros + 2 * epsilon).to(clean.dtype),
        rises=zeros,
        halved=zeros > 0,
        checkpoint_loss=zeros - torch.inf,
    )


def _climb(
    model: nn.Module, search: _Search, settings: APGD, slack: float
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Run the starts to their end; yields the places and iterates of images as they break.

    Also of those that fool only within the slack, marked False: their search continues, but the
    iterate is worth a check.
    """
    judged, last_judged = set(checkpoints(settings.steps)), 0
    for step in range(settings.steps + 1):
        last = step == settings.steps
        logits, loss, gradient = _evaluate(model, search, settings, differentiate=not last)
        broken = losses.fools(logits, search.labels, slack)
        if slack and len(near := _near(logits, search.labels, broken)):
            yield search.place[near], search.current[near], False
        if rows := broken_rows(broken, search.attempts):
            found, stay = rows
            yield search.place[found], search.current[found], True
            search.keep(stay)
            loss, gradient = loss[stay], gradient[stay]
        _record(search, loss, gradient)
        if last or not len(search.place):
            break
        if step in judged:
            _judge(search, step - last_judged)
            last_judged = step
        _move(search, settings.epsilon, MOMENTUM if step else 1.0)


def _near(logits: Tensor, labels: Tensor, broken: Tensor) -> Tensor:
    """The rows that fool, but only within the slack."""
    return (losses.fools(logits, labels) & ~broken).nonzero().squeeze(1)


def _evaluate(
    model: nn.Module, search: _Search, settings: APGD, differentiate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, loss and gradient at the current images; the last gradient unless `differentiate`."""
    with torch.set_grad_enabled(differentiate):
        current = search.current.detach().requires_grad_(differentiate)
        logits = model(current).float()
        search.forwards += len(logits)
        if settings.loss == "cross-entropy":
            loss = losses.cross_entropy(logits, search.labels, None)
        elif settings.loss == "margin":
            loss = losses.margin(logits, search.labels, None)
        elif search.targets is None:
            loss = losses.dlr(logits, search.labels)
        else:
            loss = losses.dlr_targeted(logits, search.labels, search.targets)
        if not differentiate:
            return logits, loss, search.gradient
        gradient = losses.image_gradient(loss, current)
        search.backwards += len(logits)
    return logits.detach(), loss.detach(), gradient


def _record(search: _Search, loss: Tensor, gradient: Tensor) -> None:
    """Update the search with the loss and gradient of the current images."""
    search.rises = search.rises + (loss > search.loss)
    better = loss > search.best_loss
    search.best_loss = torch.where(better, loss, search.best_loss)
    taken = ball.per_image(better, search.current)
    search.best = torch.where(taken, search.current, search.best)
    search.best_gradient = torch.where(taken, gradient, search.best_gradient)
    search.loss, search.gradient = loss, gradient


def _judge(search: _Search, interval: int) -> None:
    """Halve the step and return to the best point where the loss rose too rarely or has stalled.

    These are the paper's conditions 1 and 2; the second only counts if the step was not halved at
    the last checkpoint.
    """
    stalled = ~search.halved & (search.best_loss <= search.checkpoint_loss)
    search.halved = (search.rises < RISING_SHARE * interval) | stalled
    search.checkpoint_loss = search.best_loss
    search.rises = torch.zeros_like(search.rises)
    search.step_size = torch.where(search.halved, search.step_size / 2, search.step_size)
    search.loss = torch.where(search.halved, search.best_loss, search.loss)
    back = ball.per_image(search.halved, search.current)
    search.current = torch.where(back, search.best, search.current)
    search.gradient = torch.where(back, search.best_gradient, search.gradient)


def _move(search: _Search, epsilon: float, weight: float) -> None:
    """One projected step, mixed with the last move."""
    length = ball.per_image(search.step_size, search.current)
    ahead = search.current + length * search.gradient.sign()
    ahead = ball.project(ahead, search.clean, epsilon)
    momentum = (1 - weight) * (search.current - search.previous)
    moved = search.current + weight * (ahead - search.current) + momentum
    search.previous = search.current
    search.current = ball.project(moved, search.clean, epsilon)

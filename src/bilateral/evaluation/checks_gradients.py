"""Checks of outputs and gradients, the gradient tables of the paper, and the loss surface."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bilateral.attacks import ball, losses
from bilateral.evaluation.checks import read
from bilateral.evaluation.diagnosis import (
    GradientMagnitude,
    Histogram,
    Reading,
    Reliability,
    Spread,
    Surface,
)
from bilateral.evaluation.isolation import isolated
from bilateral.evaluation.subject import Subject, share
from bilateral.randomness import derive, random_signs

PROBE = 1e-3
"""Half the interval of finite differences: less than half a level of an 8-bit image."""
CLAIM = 0.05
"""Below this accuracy PGD breaks the model anyway, so a rugged surface hides nothing."""
_PROBE, _POINT, _SIDE = 600, 601, 602


def output_readings(subject: Subject) -> list[Reading]:
    """Whether outputs change from call to call, jump, are probabilities, or saturate."""
    logits, again = subject.clean_logits, subject.logits(subject.images)
    change = float((logits - again).abs().amax() / logits.abs().amax().clamp_min(1e-30))
    turned = share(logits.argmax(1) != again.argmax(1))
    probabilities = (logits >= 0).all(1) & ((logits.sum(1) - 1).abs() < 1e-3)
    gaps = _gaps(logits)
    alone = isolated(subject.logits, subject.images, subject.keys, logits)
    return [
        read("changing-outputs", change, details={"share_of_changed_classes": turned}),
        read("isolated-images", share(alone), images=len(alone)),
        read("softmax-outputs", share(probabilities)),
        read("saturated-logits", float(gaps.median()), details={"largest": float(gaps.max())}),
    ]


def gradient_readings(subject: Subject, no_gradient: str | None) -> list[Reading]:
    """Whether gradients exist, are the model's own, and hold for the rest of the ball."""
    cross_entropy = subject.gradients(subject.images, _cross_entropy)
    zero = cross_entropy.flatten(1).abs().amax(1) == 0
    elements = share(cross_entropy.flatten() == 0)
    point = ball.random_start(
        subject.images, subject.epsilon, derive(subject.keys, _POINT), clip=True
    )
    elsewhere = subject.gradients(point, _cross_entropy)
    cosine = F.cosine_similarity(cross_entropy.flatten(1), elsewhere.flatten(1), eps=1e-30)
    accuracy = share(subject.pgd)
    claims = accuracy > CLAIM
    details = {"pgd_accuracy": accuracy}
    return [
        read(
            "not-differentiable",
            float(no_gradient is not None),
            details={"error": no_gradient} if no_gradient else {},
        ),
        read(
            "zero-gradients",
            share(zero),
            images=len(zero),
            details={"share_of_zero_elements": elements},
        ),
        read("gradient-mismatch", _mismatch(subject)),
        read("gradient-alignment", float(cosine.mean()), applies=claims, details=details),
        read("local-linearity", _linearity(subject), applies=claims, details=details),
    ]


def gradient_magnitude(subject: Subject) -> tuple[list[GradientMagnitude], list[Histogram]]:
    """The paper's gradient tables (cross-entropy, in three pixel scales), and histograms."""
    gradients = subject.gradients(subject.images, _cross_entropy)
    norms = gradients.flatten(1).double().norm(dim=1)
    rows = [
        GradientMagnitude(
            norm=norm,
            scale=scale,
            all=_spread(values / divisor),
            correct=_spread(values[subject.right] / divisor),
            wrong=_spread(values[~subject.right] / divisor),
        )
        for norm, values, power in (("squared-l2", norms.square(), 2), ("l2", norms, 1))
        for scale, width in (("[0, 1]", 1), ("[-1, 1]", 2), ("[0, 255]", 255))
        for divisor in (float(width**power),)
    ]
    name, moving = "log10 of the gradient's l2 norm", norms > 0
    together = _histogram(name, norms[moving].log10())
    apart = [
        _histogram(f"{name}, {kind} images", norms[moving & which].log10(), together.edges)
        for kind, which in (("correct", subject.right), ("wrong", ~subject.right))
    ]
    gaps = _histogram("gap of the two largest logits", _gaps(subject.clean_logits))
    return rows, [together, gaps, *apart]


def reliability(name: str, logits: Tensor, labels: Tensor, bins: int = 10) -> Reliability:
    """Confidence against accuracy in bins of equal width (Guo et al. 2017)."""
    confidence, seen = logits.double().softmax(1).max(1)
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    place = torch.bucketize(confidence.cpu(), edges[1:-1])
    images = torch.bincount(place, minlength=bins)

    def mean_of(values: Tensor) -> list[float | None]:
        totals = torch.bincount(place, values.double().cpu(), minlength=bins)
        return [float(t / n) if n else None for t, n in zip(totals, images, strict=True)]

    sure, right = mean_of(confidence), mean_of(seen == labels)
    error = sum(
        int(count) * abs(told - true)
        for count, told, true in zip(images, sure, right, strict=True)
        if told is not None and true is not None
    )
    return Reliability(
        name=name,
        edges=edges.tolist(),
        images=images.tolist(),
        confidence=sure,
        accuracy=right,
        expected_calibration_error=error / len(labels),
    )


def loss_surface(subject: Subject, points: int = 11) -> Surface:
    """Mean cross-entropy on a grid in the ball, along the gradient's sign and a random sign."""
    count = min(subject.effort.surface_images, len(subject.images))
    images, labels = subject.images[:count], subject.labels[:count]
    ahead = subject.gradients(subject.images, _cross_entropy)[:count].sign()
    aside = random_signs(images, derive(subject.keys[:count], _SIDE))
    offsets = torch.linspace(-1, 1, points).tolist()
    grid = []
    for along in offsets:
        row = []
        for across in offsets:
            moved = images + subject.epsilon * (along * ahead + across * aside)
            logits = subject.logits(ball.project(moved, images, subject.epsilon))
            row.append(float(F.cross_entropy(logits, labels)))
        grid.append(row)
    return Surface(images=count, offsets=offsets, loss=grid)


def _mismatch(subject: Subject) -> float:
    """The median disagreement of autograd and finite differences along the gradient's sign.

    The function is the logit gap between the image's top two classes, as it does not saturate.
    Pixels at the ends of [0, 1] are moved inside first, where a model that clips is differentiable.
    """
    images = subject.images.clamp(2 * PROBE, 1 - 2 * PROBE)
    leading = subject.logits(images).topk(2).indices
    gradient = subject.gradients(images, _gap_between, leading)
    random = random_signs(images, derive(subject.keys, _PROBE))
    direction = torch.where(gradient == 0, random, gradient.sign())
    promised = (gradient * direction).flatten(1).sum(1)
    ahead = _gap_between(subject.logits(images + PROBE * direction), leading)
    behind = _gap_between(subject.logits(images - PROBE * direction), leading)
    measured = (ahead - behind) / (2 * PROBE)
    disagreement = (promised - measured).abs() / (promised.abs() + measured.abs()).clamp_min(1e-30)
    return float(disagreement.median())


def _linearity(subject: Subject) -> float:
    """The median share of the promised gain in margin that one signed step reaches."""
    images = subject.images
    gradient = subject.gradients(images, _margin)
    stepped = ball.project(images + subject.epsilon * gradient.sign(), images, subject.epsilon)
    promised = (gradient * (stepped - images)).flatten(1).sum(1)
    gained = _margin(subject.logits(stepped), subject.labels) - _margin(
        subject.clean_logits, subject.labels
    )
    return float(torch.where(promised > 0, gained / promised.clamp_min(1e-30), 0.0).median())


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return losses.cross_entropy(logits, labels, None)


def _margin(logits: Tensor, labels: Tensor) -> Tensor:
    return losses.margin(logits, labels, None)


def _gap_between(logits: Tensor, pairs: Tensor) -> Tensor:
    first, second = logits.gather(1, pairs).unbind(1)
    return first - second


def _gaps(logits: Tensor) -> Tensor:
    first, second = logits.topk(2).values.unbind(1)
    return first - second


def _spread(values: Tensor) -> Spread:
    if not len(values):
        return Spread(images=0, min=None, mean=None, max=None)
    low, mean, high = float(values.min()), float(values.mean()), float(values.max())
    return Spread(images=len(values), min=low, mean=mean, max=high)


def _histogram(name: str, values: Tensor, bins: int | list[float] = 30) -> Histogram:
    counts, edges = np.histogram(values.cpu().numpy(), bins)
    return Histogram(name=name, edges=edges.tolist(), counts=counts.tolist())

"""Checks that compare attacks: a weaker one must not beat a stronger one, and all must work."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from bilateral.attacks import ball
from bilateral.attacks.apgd import apgd
from bilateral.attacks.gradient import gradient_attack
from bilateral.attacks.settings import APGD, Square
from bilateral.attacks.untouched import untouched
from bilateral.config import GradientAttack
from bilateral.errors import UserError
from bilateral.evaluation.binarization import binarization_test
from bilateral.evaluation.checks import read
from bilateral.evaluation.diagnosis import Curves, EpsilonPoint, Reading, StepsPoint
from bilateral.evaluation.subject import Subject, share
from bilateral.randomness import derive, random_signs
from bilateral.runtime import exact_float32

LARGE_BUDGETS = (0.5, 1.0)
WIDEST, SPACES = 32 / 255, 8
"""The least budget to which the curve's even spacing extends, and the number of spaces."""
FEWEST_BROKEN = 0.02
"""If a smaller share of the images is broken, ratios of broken images are too coarse to judge."""
_NOISE, _BINARIZATION = 610, 640


def one_step_readings(subject: Subject) -> list[Reading]:
    """FGSM compared with the clean images and with PGD.

    Label leaking is measured on all images: it can even correct those that are wrong when clean.
    """
    one_step = GradientAttack(
        epsilon=subject.epsilon, step_size=subject.epsilon, random_start=False, iterate="last"
    )
    stepped = torch.cat(
        [
            _search(subject.model, images, labels, one_step)
            for images, labels in zip(
                torch.split(subject.images, subject.batch_size),
                torch.split(subject.labels, subject.batch_size),
                strict=True,
            )
        ]
    )
    right = subject.is_right(stepped)
    clean, pgd, fgsm = share(subject.right), share(subject.pgd), share(subject.right & right)
    bites = clean - pgd >= FEWEST_BROKEN
    details = {"clean_accuracy": clean, "fgsm_accuracy": share(right), "pgd_accuracy": pgd}
    return [
        read("label-leaking", share(right) - clean, images=len(right), details=details),
        read(
            "one-step-overfitting",
            (clean - fgsm) / (clean - pgd) if bites else None,
            details=details,
        ),
        read("one-step-stronger", pgd - fgsm, images=len(right), details=details),
    ]


def curves(subject: Subject) -> Curves:
    """PGD's accuracy against the budget, and at the last iterate against the steps.

    Budgets are evenly spaced up to four times epsilon or 32/255, whichever is larger, before
    `LARGE_BUDGETS`.
    """
    spacing = max(4 * subject.epsilon, WIDEST) / SPACES
    spaced = {subject.epsilon, *(place * spacing for place in range(1, SPACES + 1))}
    budgets = sorted({budget for budget in spaced if budget < 1} | {*LARGE_BUDGETS})

    def at_budget(budget: float) -> Tensor:
        if budget == subject.epsilon:
            return subject.pgd
        return subject.survivors(subject.pgd_settings(epsilon=budget))

    by_budget = [
        EpsilonPoint(epsilon=budget, accuracy=share(at_budget(budget))) for budget in budgets
    ]
    by_steps = [
        StepsPoint(
            steps=steps,
            accuracy=share(subject.survivors(subject.pgd_settings(steps=steps, iterate="last"))),
        )
        for steps in subject.effort.step_counts
    ]
    return Curves(
        epsilon=[EpsilonPoint(epsilon=0.0, accuracy=share(subject.right)), *by_budget],
        steps=[StepsPoint(steps=0, accuracy=share(subject.right)), *by_steps],
    )


def curve_readings(curves: Curves, images: int) -> list[Reading]:
    """Whether accuracy never rises with more steps, and falls to zero at large budgets."""
    lowest = accumulate((point.accuracy for point in curves.steps), min)
    rise = max(point.accuracy - low for point, low in zip(curves.steps, lowest, strict=True))
    large = {
        point.epsilon: point.accuracy for point in curves.epsilon if point.epsilon in LARGE_BUDGETS
    }
    return [
        read("steps-not-monotone", rise, images=images),
        read("large-budget", min(large.values()), images=images),
    ]


def search_readings(subject: Subject) -> list[Reading]:
    """PGD compared with restarts, random noise, other losses, and APGD."""
    clean, pgd = share(subject.right), share(subject.pgd)
    again = subject.survivors(subject.pgd_settings(restarts=subject.effort.restarts))
    quiet = subject.right.clone()
    for draw in range(subject.effort.noise_draws):
        signs = random_signs(subject.images, derive(subject.keys, _NOISE + draw))
        moved = subject.images + subject.epsilon * signs
        quiet &= subject.is_right(ball.project(moved, subject.images, subject.epsilon))
    by_noise, by_pgd = clean - share(quiet), max(clean - pgd, 1 / len(quiet))
    bites = max(by_noise, by_pgd) >= FEWEST_BROKEN
    margin = share(subject.survivors(subject.pgd_settings(loss="margin")))
    targeted = share(subject.survivors(subject.pgd_settings(target="most-confusing")))
    return [
        read("restarts-help", pgd - share(again), images=len(again)),
        read(
            "noise-as-good",
            by_noise / by_pgd if bites else None,
            details={"noise_accuracy": share(quiet), "pgd_accuracy": pgd},
        ),
        read(
            "loss-gap",
            pgd - min(margin, targeted),
            images=len(quiet),
            details={"cross-entropy": pgd, "margin": margin, "targeted": targeted},
        ),
        read(
            "pgd-apgd-gap",
            pgd - share(subject.apgd),
            images=len(quiet),
            details={"pgd": pgd, "apgd": share(subject.apgd)},
        ),
    ]


def black_box_readings(subject: Subject, sources: Sequence[nn.Module]) -> list[Reading]:
    """Whether Square, or images made on other models, break survivors of white-box attacks."""
    left = subject.white_box
    square = Square(epsilon=subject.epsilon, queries=subject.effort.queries)
    after = subject.survivors(square, left)
    transferred = left.clone()
    for source in sources:
        numbers = left.nonzero().squeeze(1)
        for part in torch.split(numbers, subject.batch_size):
            images, labels = subject.images[part], subject.labels[part]
            settings = subject.pgd_settings(iterate="last")
            found = _search(source, images, labels, settings, subject.keys[part])
            transferred[part] &= subject.logits(found).argmax(1) == labels
    beaten = share(left) - share(transferred) if sources else None
    return [
        read("black-box-stronger", share(left) - share(after), images=len(left)),
        read(
            "transfer-stronger",
            beaten,
            images=len(left),
            details={"sources": len(sources)} if sources else {"skipped": "no source models given"},
        ),
    ]


def binarization_reading(subject: Subject) -> Reading:
    """Whether APGD finds examples that are known to exist."""

    def attack(model: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
        settings = APGD(epsilon=epsilon, steps=subject.effort.apgd_steps, loss="margin")
        return apgd(model, images, labels, settings, torch.zeros_like(labels)).images

    count = subject.effort.binarization_images
    keys = derive(subject.keys[:count], _BINARIZATION)
    try:
        result = binarization_test(
            subject.model, subject.images[:count], subject.epsilon, attack, keys=keys
        )
    except UserError:
        return read("binarization", None, details={"skipped": "no last linear layer"})
    except RuntimeError as error:  # what follows the last layer may not take two classes
        return read("binarization", None, details={"skipped": str(error).splitlines()[0]})
    return read(
        "binarization",
        result.success_rate if result.images else None,
        details={"random_rate": result.random_rate, "images": result.images},
    )


def _search(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: GradientAttack,
    keys: Tensor | None = None,
) -> Tensor:
    with untouched(model), exact_float32():
        return gradient_attack(model, images, labels, settings, keys).images

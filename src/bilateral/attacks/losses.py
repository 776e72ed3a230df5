"""The losses that attacks increase, image by image.

Cross-entropy, margin (CW), divergence (TRADES), and AutoAttack's difference of logits ratio.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from bilateral.errors import UserError


def largest_wrong(logits: Tensor, labels: Tensor) -> Tensor:
    """The largest logit of a wrong class."""
    return logits.scatter(1, labels[:, None], -torch.inf).amax(1)


def true_logit(logits: Tensor, labels: Tensor) -> Tensor:
    """The logit of the true class."""
    return logits.gather(1, labels[:, None]).squeeze(1)


def image_gradient(loss: Tensor, images: Tensor, again: bool = False) -> Tensor:
    """The gradient of each image's loss; UserError if the model gives none.

    `again` retains the graph for another gradient of the same outputs.
    """
    gradient = None
    if loss.requires_grad:
        (gradient,) = torch.autograd.grad(loss.sum(), images, retain_graph=again, allow_unused=True)
    if gradient is None:
        raise UserError(
            "the model's outputs have no gradient with respect to the images (no_grad or detach in "
            "its forward?): gradient attacks measure nothing; square and spsa need none, and "
            "diagnose says more"
        )
    return gradient


def cross_entropy(logits: Tensor, labels: Tensor, targets: Tensor | None) -> Tensor:
    """Away from the label, or towards the target."""
    if targets is None:
        return F.cross_entropy(logits, labels, reduction="none")
    return -F.cross_entropy(logits, targets, reduction="none")


def fools(logits: Tensor, labels: Tensor, slack: float = 0.0) -> Tensor:
    """Which images are given a wrong class, by more than `slack` times their largest logit.

    A row with NaN is wrong, whatever `argmax` makes of it. A search in low precision requires more
    than a rounding error, so that what it finds also fools in float32.
    """
    wrong = (logits.argmax(1) != labels) | logits.isnan().any(1)
    if slack == 0:
        return wrong
    return wrong & (margin(logits, labels, None) > slack * logits.abs().amax(1))


def margin(
    logits: Tensor, labels: Tensor, targets: Tensor | None, cap: float | None = None
) -> Tensor:
    """Wrong (or target) logit minus true logit: above zero when the image fools."""
    true = true_logit(logits, labels)
    wrong = largest_wrong(logits, labels) if targets is None else true_logit(logits, targets)
    gap = wrong - true
    return gap if cap is None else gap.clamp_max(cap)


def divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """KL from the prediction at the clean image to the prediction here (TRADES)."""
    clean = F.log_softmax(reference.detach(), 1)
    return (clean.exp() * (clean - F.log_softmax(logits, 1))).sum(1)


def change(logits: Tensor, reference: Tensor) -> Tensor:
    """The squared distance of the prediction from that at the clean image (GAT)."""
    return (F.softmax(logits, 1) - F.softmax(reference.detach(), 1)).pow(2).sum(1)


_SMALLEST_SPREAD = 1e-12


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """The margin over the spread of the three largest logits (Croce & Hein 2020, equation 6).

    It does not change when logits are scaled or shifted. The spread needs three classes; with
    two the margin itself is used.
    """
    gap = margin(logits, labels, None)
    if logits.shape[1] < 3:
        return gap
    largest = logits.topk(3).values
    return gap / (largest[:, 0] - largest[:, 2] + _SMALLEST_SPREAD)


def dlr_targeted(logits: Tensor, labels: Tensor, targets: Tensor) -> Tensor:
    """The margin of the target over the spread of the four largest logits (equation 7 there).

    With two or three classes the margin itself is used.
    """
    gap = margin(logits, labels, targets)
    if logits.shape[1] < 4:
        return gap
    largest = logits.topk(4).values
    spread = largest[:, 0] - (largest[:, 2] + largest[:, 3]) / 2
    return gap / (spread + _SMALLEST_SPREAD)

"""What one training step computes: undefended, adversarial (the paper and its rivals), TRADES."""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bilateral.config import Labels, Run
from bilateral.labels import soft_cross_entropy, soft_labels
from bilateral.method import needs_reference, perturb_by
from bilateral.regularisers import Summed, alone, regularisation


class Perturbed(NamedTuple):
    """What the adversary made of a batch: images, soft labels, and the reference if computed."""

    images: Tensor
    soft_labels: Tensor
    reference: Tensor | None


class StepLoss(NamedTuple):
    """The loss to minimise, and how many images were right; None where a step does not count."""

    loss: Tensor
    clean_correct: Tensor | None
    adversarial_correct: Tensor | None


def perturbed_batch(
    twin: nn.Module,
    images: Tensor,
    labels: Tensor,
    run: Run,
    keys: Tensor,
    start: Tensor | None = None,
) -> Perturbed | None:
    """What the adversary makes of a batch; `twin` has the same weights in the adversary's mode."""
    if run.method == "undefended":
        return None
    adversary, rule = run.adversary, run.labels
    return Perturbed(
        *perturb_by(twin, images, labels, adversary, rule, keys, regularised(run), start)
    )


@torch.no_grad()
def taught(teacher: nn.Module, images: Tensor, perturbed: Perturbed, rule: Labels) -> Perturbed:
    """The same, with the averaged weights' prediction mixed into the labels (Dong et al. 2022).

    Late in training the network memorises labels that its average does not predict yet.
    """
    believed = F.softmax(teacher(images).float(), 1)
    return perturbed._replace(
        soft_labels=torch.lerp(perturbed.soft_labels, believed, rule.averaged_share)
    )


def regularised(run: Run) -> bool:
    """Whether the loss needs the reference: TRADES computes the clean logits itself."""
    return run.regulariser.kind != "none" and run.method == "adversarial"


def reads_clean(run: Run) -> bool:
    """Whether the adversary looks at the clean image, which costs a forward pass."""
    return needs_reference(run.adversary, run.labels, regularised(run))


def step_loss(
    model: nn.Module,
    perturbed: Perturbed | None,
    images: Tensor,
    labels: Tensor,
    run: Run,
    progress: Tensor | float = 1.0,
    summed: Summed = alone,
) -> StepLoss:
    """The loss of a batch by the run's method; weight gradients come from this loss alone.

    `progress` is the share of the run that is over; `summed` adds up over the processes.
    """
    if perturbed is None:
        logits = model(images).float()
        loss = soft_cross_entropy(logits, soft_labels(logits, labels, run.labels))
        return StepLoss(loss, _correct(logits, labels), None)
    adversarial, soft, reference = perturbed
    if run.method == "trades":
        # Two forwards, as TRADES does: batch norm sees clean and adversarial images apart.
        clean_logits, logits = model(images).float(), model(adversarial).float()
        loss = soft_cross_entropy(clean_logits, soft)
        loss = loss + _apart(logits, clean_logits, run, progress, summed)
        return StepLoss(loss, _correct(clean_logits, labels), _correct(logits, labels))
    logits = model(adversarial).float()
    loss = soft_cross_entropy(logits, soft)
    if regularised(run):
        assert reference is not None
        loss = loss + regularisation(logits, reference, run.regulariser, progress, summed)
    clean_correct = None
    if reference is not None and reads_clean(run):
        clean_correct = _correct(reference, labels)
    return StepLoss(loss, clean_correct, _correct(logits, labels))


def climbs(run: Run) -> bool:
    """Whether a step computes the batch's gradient once more, to perturb the weights along it."""
    return bool(run.weight_perturbation) and run.weight_perturbation_along == "gradient"


def _apart(
    logits: Tensor, clean_logits: Tensor, run: Run, progress: Tensor | float, summed: Summed
) -> Tensor:
    """The distance between the two predictions; both learn from it, so neither is detached."""
    if run.regulariser.kind != "none":
        return regularisation(logits, clean_logits, run.regulariser, progress, summed)
    clean, adversarial = F.softmax(clean_logits, 1), F.log_softmax(logits, 1)
    return run.trades_weight * F.kl_div(adversarial, clean, reduction="batchmean")


def forwards_per_image(run: Run) -> int:
    """The cost of a step in forward passes of the network.

    A backward pass to the images counts as one, the one to the weights as two.
    """
    if run.method == "undefended":
        return 3
    adversary = run.adversary
    update = 6 if run.method == "trades" else 3
    updates = 2 if climbs(run) else 1
    clean = reads_clean(run) + bool(run.labels.averaged_share)
    return clean + 2 * adversary.steps + updates * update


def _correct(logits: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point():  # mixed images: the class with the largest share
        labels = labels.argmax(1)
    return (logits.detach().argmax(1) == labels).sum()

"""What one training step computes: undefended, adversarial (the paper and its rivals), TRADES."""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from bilateral.config import Run
from bilateral.labels import soft_cross_entropy, soft_labels
from bilateral.method import needs_reference, perturb_by


class StepLoss(NamedTuple):
    """The loss to descend, and how many images were right; no clean count where none was seen."""

    loss: Tensor
    clean_correct: Tensor | None
    adversarial_correct: Tensor | None


def step_loss(
    model: nn.Module, twin: nn.Module, images: Tensor, labels: Tensor, run: Run, keys: Tensor
) -> StepLoss:
    """The loss of a batch by the run's method; weight gradients come from this loss alone.

    `twin` is what the adversary attacks: the same weights in the adversary's mode.
    """
    if run.method == "undefended":
        logits = model(images).float()
        loss = soft_cross_entropy(logits, soft_labels(logits, labels, run.labels))
        return StepLoss(loss, _correct(logits, labels), None)
    adversarial, soft, reference = perturb_by(twin, images, labels, run.adversary, run.labels, keys)
    if run.method == "trades":
        # Two forwards, as TRADES does: batch norm sees clean and adversarial images apart.
        clean_logits, logits = model(images).float(), model(adversarial).float()
        # TRADES lets both sides of its divergence learn, so nothing is detached here.
        apart = F.kl_div(
            F.log_softmax(logits, 1), F.softmax(clean_logits, 1), reduction="batchmean"
        )
        loss = soft_cross_entropy(clean_logits, soft) + run.trades_weight * apart
        return StepLoss(loss, _correct(clean_logits, labels), _correct(logits, labels))
    logits = model(adversarial).float()
    clean_correct = None if reference is None else _correct(reference, labels)
    return StepLoss(soft_cross_entropy(logits, soft), clean_correct, _correct(logits, labels))


def forwards_per_image(run: Run) -> int:
    """The cost of a step in forward passes of the network: a backward to the images costs one
    more, one to images and weights two.
    """
    if run.method == "undefended":
        return 3
    adversary = run.adversary
    update = 6 if run.method == "trades" else 3
    return needs_reference(adversary, run.labels) + 2 * adversary.steps + update


def _correct(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.detach().argmax(1) == labels).sum()

"""The paper on one screen: perturb the image, perturb the label.

    adversary = BilateralAdversary(epsilon=8 / 255)
    images, soft_labels = adversary(model, images, labels)
    loss = soft_cross_entropy(model(images), soft_labels)

The image takes one step towards the most confusing class from a random start; the label is the
closed-form adversarial label at the clean image. Both read the network in eval mode.
"""

from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from bilateral.attacks.gradient import gradient_attack
from bilateral.attacks.inputs import check_batch, check_images
from bilateral.attacks.untouched import untouched
from bilateral.complaints import first_complaint
from bilateral.config import Adversary, Labels
from bilateral.errors import UserError
from bilateral.labels import soft_cross_entropy, soft_labels

__all__ = ["BilateralAdversary", "perturb", "soft_cross_entropy"]


def perturb(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    adversary: Adversary,
    rule: Labels,
    keys: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Adversarial images, their soft labels, and the reference logits if they were computed.

    The model is left as it was found.
    """
    with untouched(model, adversary.batch_norm):
        return perturb_by(model, images, labels, adversary, rule, keys)


def perturb_by(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    adversary: Adversary,
    rule: Labels,
    keys: Tensor | None = None,
    wants_reference: bool = False,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same for a model that is already in the adversary's mode and may be compiled.

    `wants_reference` returns the reference logits in any case. `start` is `gradient_attack`'s.
    """
    reference: Tensor | None = None
    if needs_reference(adversary, rule, wants_reference):
        with torch.no_grad():
            reference = model(images).float()
    attacked = gradient_attack(model, images, labels, adversary, keys, reference, start=start)
    assert attacked.reference is not None
    soft = soft_labels(attacked.reference, labels, rule)
    return attacked.images, soft, attacked.reference if wants_reference else reference


def needs_reference(adversary: Adversary, rule: Labels, wanted: bool = False) -> bool:
    """Whether target, label or `wanted` logits need a forward pass at the clean image."""
    by_logits = adversary.target not in ("none", "random") or adversary.loss == "divergence"
    by_logits = by_logits or adversary.guide > 0 or wanted
    by_logits = by_logits or rule.rule in ("adversarial", "supplementary")
    return by_logits and adversary.reference == "clean"


class BilateralAdversary:
    """The paper's R-MC-LA for your own training loop, on any `nn.Module`.

    Keyword arguments are fields of `Adversary` or `Labels` (`ratio=9`, `target="none"`,
    `reference="start"`, `batch_norm="train"`, ...). The model's mode, gradients and statistics
    are left as they were; noise follows `torch.manual_seed`. On a GPU only the first call checks
    that images lie in [0, 1].
    """

    def __init__(self, epsilon: float = 8 / 255, **fields: Any) -> None:
        label_fields = {name: fields.pop(name) for name in list(fields) if name in _LABEL_FIELDS}
        defaults = {"step_size": epsilon, "target": "most-confusing"}
        try:
            self.adversary = Adversary.model_validate({**defaults, **fields, "epsilon": epsilon})
            self.labels = Labels.model_validate(label_fields)
        except ValidationError as error:
            raise UserError(first_complaint(error)) from None
        if self.adversary.prior_start:
            raise UserError("prior_start is for `bilateral train`, which knows images by number")
        if self.labels.averaged_share:
            raise UserError("averaged_share is for `bilateral train`, which averages the weights")
        self._checked = False

    def __repr__(self) -> str:
        return f"BilateralAdversary({self.adversary!r}, {self.labels!r})"

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Adversarial images and soft labels for one training step."""
        check_batch(images, labels)
        if not self._checked or images.device.type == "cpu":  # a check makes a GPU wait
            check_images(images)
            self._checked = True
        numbers = labels.long()  # torch gathers by int64 only
        adversarial, soft, _ = perturb(model, images, numbers, self.adversary, self.labels)
        if soft.shape[1] < 2:
            raise UserError("the model returns one output: give it a logit for each class")
        return adversarial, soft


_LABEL_FIELDS = frozenset(Labels.model_fields)

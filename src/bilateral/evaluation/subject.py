"""The model under examination with its images, and the results that several checks need."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from bilateral.attacks.settings import APGD, AttackSettings
from bilateral.attacks.untouched import untouched
from bilateral.config import GradientAttack
from bilateral.errors import UserError
from bilateral.evaluation.diagnosis import Effort
from bilateral.evaluation.robustness import robust_flags
from bilateral.evaluation.search import Search, prepare_search
from bilateral.runtime import exact_float32

Loss = Callable[[Tensor, Tensor], Tensor]
"""(logits, classes) -> a number for each image."""


class ZeroGradients(nn.Module):
    """Gives a model that autograd cannot differentiate zero gradients, so that attacks run."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """The model's own outputs."""
        outputs: Tensor = self.model(images.detach())
        return outputs + 0.0 * images.flatten(1).sum(1, keepdim=True)


def why_no_gradient(model: nn.Module, images: Tensor) -> str | None:
    """Autograd's error for the model, if it raises one."""
    with untouched(model), torch.enable_grad():
        images = images.detach().clone().requires_grad_()
        try:
            torch.autograd.grad(model(images).float().sum(), images)
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return None


@dataclass
class Subject:
    """A model, images and a budget; flags and gradients in batches, the common ones cached."""

    model: nn.Module
    images: Tensor
    labels: Tensor
    epsilon: float
    keys: Tensor
    batch_size: int
    effort: Effort

    def logits(self, images: Tensor) -> Tensor:
        """The float32 outputs, in eval mode; outputs that are not finite are refused."""
        with untouched(self.model), torch.no_grad(), exact_float32():
            logits = torch.cat(
                [self.model(part).float() for part in torch.split(images, self.batch_size)]
            )
        if not bool(logits.isfinite().all()):
            raise UserError(
                "the model returns outputs that are not finite on these images or near them; fix "
                "it first (`evaluate` counts such images as broken)"
            )
        return logits

    def is_right(self, images: Tensor) -> Tensor:
        """Which images the model classifies right."""
        return self.logits(images).argmax(1) == self.labels

    def gradients(self, images: Tensor, loss: Loss, classes: Tensor | None = None) -> Tensor:
        """The gradient of each image's loss, a function of the logits and labels (or classes).

        Values that are not finite count as zero: no attack can use them.
        """
        gradients = []
        classes = self.labels if classes is None else classes
        with untouched(self.model), exact_float32(), torch.enable_grad():
            for part, those in zip(
                torch.split(images, self.batch_size),
                torch.split(classes, self.batch_size),
                strict=True,
            ):
                inputs = part.detach().clone().requires_grad_()
                total = loss(self.model(inputs).float(), those).sum()
                gradients.append(torch.autograd.grad(total, inputs)[0])
        return torch.cat(gradients).nan_to_num(0.0, 0.0, 0.0)

    def survivors(self, settings: AttackSettings, among: Tensor | None = None) -> Tensor:
        """Which of the images, or of those in `among`, survive an attack."""
        return self.attacked(settings, among)[0]

    def attacked(
        self, settings: AttackSettings, among: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The survivors of an attack, and the images as it left them."""
        left = (self.right if among is None else among).nonzero().squeeze(1)
        survives, images = torch.zeros_like(self.right), self.images.clone()
        for part in torch.split(left, self.batch_size):
            found = robust_flags(
                self.model,
                self.images[part],
                self.labels[part],
                settings,
                self.keys[part],
                search=self.search,
            )
            survives[part], images[part] = found.robust, found.images
        return survives, images

    @cached_property
    def search(self) -> Search:
        """The copy that attacks search on."""
        return prepare_search(self.model, self.images)

    def pgd_settings(self, **fields: Any) -> GradientAttack:
        """PGD on cross-entropy from a random start, or a variant of it."""
        epsilon = fields.get("epsilon", self.epsilon)
        usual = {
            "epsilon": epsilon,
            "steps": self.effort.steps,
            "step_size": epsilon / 4,
            "clip_start": True,
        }
        return GradientAttack.model_validate({**usual, **fields})

    @cached_property
    def clean_logits(self) -> Tensor:
        """The outputs on the clean images."""
        return self.logits(self.images)

    @cached_property
    def right(self) -> Tensor:
        """Which clean images the model classifies right."""
        return self.clean_logits.argmax(1) == self.labels

    @cached_property
    def _under_pgd(self) -> tuple[Tensor, Tensor]:
        return self.attacked(self.pgd_settings())

    @property
    def pgd(self) -> Tensor:
        """Which images survive PGD."""
        return self._under_pgd[0]

    @property
    def pgd_images(self) -> Tensor:
        """The images after PGD; those misclassified without it stay clean."""
        return self._under_pgd[1]

    @cached_property
    def apgd(self) -> Tensor:
        """Which images survive APGD-CE and then APGD-T."""
        steps = self.effort.apgd_steps
        left = self.survivors(APGD(epsilon=self.epsilon, steps=steps))
        return self.survivors(APGD(epsilon=self.epsilon, steps=steps, loss="dlr-targeted"), left)

    @cached_property
    def white_box(self) -> Tensor:
        """Which images survive both PGD and APGD."""
        return self.pgd & self.apgd


def share(flags: Tensor) -> float:
    """The share of images that are flagged."""
    return float(flags.double().mean()) if len(flags) else 0.0

"""The checks that try to discredit a robustness number, with their limits; no torch.

A reading past its limit makes the number suspect; past `masked`, if the check has one, the number
overstates the model. To keep small samples from raising false alarms, a reading that is a share of
images is raised only if its one-sided 95 % lower bound is past the limit.
"""

import math
from dataclasses import dataclass
from typing import Any

from bilateral.evaluation.diagnosis import Reading, Severity


@dataclass(frozen=True)
class Check:
    """What raises a check, and what that means."""

    raised_if: str
    meaning: str
    limit: float
    masked: float | None = None
    below: bool = False

    def past(self, value: float, limit: float) -> bool:
        """Whether a value lies on the wrong side of a limit."""
        return value < limit if self.below else value > limit


CHECKS: dict[str, Check] = {
    "not-differentiable": Check(
        "autograd gives no gradient from the logits to the image",
        "a layer cuts the gradient, so white-box attacks only try their random starts",
        limit=0.0,
        masked=0.0,
    ),
    "zero-gradients": Check(
        "the cross-entropy gradient is exactly zero for more than 5 % of the images",
        "a signed step does not move these images at all: vanishing or shattered gradients",
        limit=0.05,
        masked=0.05,
    ),
    "gradient-mismatch": Check(
        "the slope along autograd's gradient disagrees with finite differences (median above 0.2; "
        "0: equal, 1: one of them is zero)",
        "autograd's gradient is not the model's: quantised input, a staircase, or a fake gradient",
        limit=0.2,
    ),
    "gradient-alignment": Check(
        "the gradients at the image and at a random point of its ball have a mean cosine below "
        "0.3, and PGD leaves more than 5 % accuracy",
        "the gradient at one point says little about the rest of the ball; it misleads attacks",
        limit=0.3,
        below=True,
    ),
    "local-linearity": Check(
        "one step along the gradient's sign gains less than a tenth of what the gradient promises "
        "(median), and PGD leaves more than 5 % accuracy",
        "the loss is rugged inside the ball: steps of the usual size miss its maxima",
        limit=0.1,
        below=True,
    ),
    "changing-outputs": Check(
        "two calls on the same images differ by more than 0.0001 of the largest logit",
        "noise at inference: gradients and flags are random, attacks must average over it",
        limit=1e-4,
    ),
    "isolated-images": Check(
        "the logits of more than 5 % of the images are off the line through those an eighth to "
        "half a grey level away, by more than a twentieth of the usual gap between the two largest",
        "the model answers differently right next to its test images, where attacks search: it "
        "recognises them, or has a discontinuity there (a threshold)",
        limit=0.05,
        masked=0.05,
    ),
    "softmax-outputs": Check(
        "outputs are non-negative and sum to one for more than half of the images",
        "the outputs are probabilities, not logits: the attacks' losses saturate on them",
        limit=0.5,
    ),
    "saturated-logits": Check(
        "the median gap between the two largest logits is above 17 (masked above 103)",
        "float32 rounds the true class to probability 1 from a gap of 17 and its gradient to zero "
        "from 103: a temperature or scale hides the gradient",
        limit=17.0,
        masked=103.0,
    ),
    "label-leaking": Check(
        "FGSM accuracy is above clean accuracy by more than 0.5 points",
        "the model reads the label off the one-step perturbation it was trained on",
        limit=0.005,
        masked=0.005,
    ),
    "one-step-overfitting": Check(
        "FGSM breaks less than a quarter of what PGD breaks",
        "the model withstands one step and not several: it has learnt the attack (catastrophic "
        "overfitting)",
        limit=0.25,
        masked=0.25,
        below=True,
    ),
    "one-step-stronger": Check(
        "FGSM accuracy is below PGD accuracy by more than 2 points (masked: 5)",
        "several steps should find all that one finds: the gradient is misleading",
        limit=0.02,
        masked=0.05,
    ),
    "steps-not-monotone": Check(
        "more PGD steps raise the accuracy by more than 3 points (masked: 10)",
        "a longer search ends at a worse point: steps do not climb the loss",
        limit=0.03,
        masked=0.10,
    ),
    "restarts-help": Check(
        "five PGD starts lower the accuracy by more than 5 points compared with one",
        "the result depends on the start: the loss surface has many local maxima",
        limit=0.05,
    ),
    "noise-as-good": Check(
        "random corners of the ball break more than half of what PGD breaks (masked: 90 %)",
        "the gradient is worth little more than chance",
        limit=0.5,
        masked=0.9,
    ),
    "large-budget": Check(
        "PGD accuracy stays above 2 % at budgets of 0.5 and 1 (masked: 10 %)",
        "no model can be robust at such budgets: the attack has failed",
        limit=0.02,
        masked=0.10,
    ),
    "loss-gap": Check(
        "margin or targeted PGD is stronger than cross-entropy PGD by more than 6 points "
        "(masked: 13)",
        "the cross-entropy gradient is hidden; a number from it alone overstates the model",
        limit=0.06,
        masked=0.13,
    ),
    "pgd-apgd-gap": Check(
        "PGD accuracy exceeds that under APGD-CE and APGD-T by more than 6 points (masked: 13)",
        "2 to 6 points are usual; more means that the PGD number overstates the model",
        limit=0.06,
        masked=0.13,
    ),
    "black-box-stronger": Check(
        "Square breaks more than 1 % of the images after PGD and APGD failed on them (masked: 3 %)",
        "a search without gradients finds more than those with gradients: gradients are masked",
        limit=0.01,
        masked=0.03,
    ),
    "transfer-stronger": Check(
        "images made on other models break more than 1 % of the images after PGD and APGD failed "
        "on them (masked: 3 %)",
        "another model's gradient works better than the model's own: gradients are masked",
        limit=0.01,
        masked=0.03,
    ),
    "binarization": Check(
        "APGD finds less than 90 % of the examples planted in the ball (masked: 50 %)",
        "the attack fails where success is known to be possible, so its failure proves nothing",
        limit=0.9,
        masked=0.5,
        below=True,
    ),
}


def read(
    name: str,
    value: float | None,
    *,
    images: int | None = None,
    applies: bool = True,
    details: dict[str, Any] | None = None,
) -> Reading:
    """A check's reading; not raised without a finite value or if the check does not apply.

    `images` is the sample size of a value that is a share of images.
    """
    check = CHECKS[name]
    value = value if value is not None and math.isfinite(value) else None
    sure = value
    if value is not None and images is not None:
        sure = value - 1.645 * math.sqrt(abs(value) * (1 - abs(value)) / images)
    raised = sure is not None and applies and check.past(sure, check.limit)
    grave = check.masked is not None and sure is not None and check.past(sure, check.masked)
    severity: Severity = "masked" if grave or check.masked == check.limit else "suspect"
    return Reading(
        name=name,
        value=value,
        limit=check.masked if grave and check.masked is not None else check.limit,
        raised=raised,
        unsure=value is not None and applies and not raised and check.past(value, check.limit),
        severity=severity,
        raised_if=check.raised_if,
        meaning=check.meaning,
        details=details or {},
    )

"""`bilateral diagnose`: can a robustness number be believed?

Runs every check, draws the gradient tables, loss surface and curves, and gives a verdict.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from bilateral.budgets import fraction_text
from bilateral.errors import UserError
from bilateral.evaluation.checks import CHECKS
from bilateral.evaluation.checks_attacks import (
    binarization_reading,
    black_box_readings,
    curve_readings,
    curves,
    one_step_readings,
    search_readings,
)
from bilateral.evaluation.checks_gradients import (
    gradient_magnitude,
    gradient_readings,
    loss_surface,
    output_readings,
    reliability,
)
from bilateral.evaluation.diagnosis import Diagnosis, Effort, judge
from bilateral.evaluation.robustness import check_inputs, in_memory, noise_keys
from bilateral.evaluation.subject import Subject, ZeroGradients, share, why_no_gradient
from bilateral.runtime import versions
from bilateral.weights import weights_digest

Shown = Callable[[str, int, int], None]
"""Progress: the current stage, stages done, stages in total."""
STAGES = ("outputs", "gradients", "one step", "curves", "searches", "black box", "binarization")


def diagnose(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    seed: int = 0,
    sources: Sequence[nn.Module] = (),
    batch_size: int = 250,
    effort: Effort | None = None,
    progress: Shown = lambda *_: None,
) -> Diagnosis:
    """Try to discredit the robust accuracy of a model at a budget.

    Images are floats in [0, 1]; a few hundred suffice. `sources` are models of the same classes
    whose adversarial images are tried on this one. The model is left as it was found.
    """
    started = time.monotonic()
    if not 0 < epsilon <= 1:
        raise UserError(f"epsilon {epsilon:g} is outside (0, 1]: images are floats in [0, 1]")
    images, labels = in_memory(model, images, labels)
    device = images.device
    check_inputs(model, images, labels)
    no_gradient = why_no_gradient(model, images[:2])
    subject = Subject(
        model=model if no_gradient is None else ZeroGradients(model),
        images=images,
        labels=labels,
        epsilon=epsilon,
        keys=noise_keys(torch.arange(len(labels), device=device), seed),
        batch_size=batch_size,
        effort=effort or Effort(),
    )

    def begin(stage: str) -> None:
        progress(stage, STAGES.index(stage), len(STAGES))

    begin("outputs")
    readings = output_readings(subject)
    begin("gradients")
    readings += gradient_readings(subject, no_gradient)
    magnitude, histograms = gradient_magnitude(subject)
    surface = loss_surface(subject)
    begin("one step")
    readings += one_step_readings(subject)
    begin("curves")
    drawn = curves(subject)
    readings += curve_readings(drawn, len(labels))
    begin("searches")
    readings += search_readings(subject)
    begin("black box")
    readings += black_box_readings(subject, sources)
    begin("binarization")
    readings.append(binarization_reading(subject))
    progress("done", len(STAGES), len(STAGES))
    order = list(CHECKS)
    readings.sort(key=lambda reading: order.index(reading.name))
    verdict, reasons = judge(readings)
    return Diagnosis(
        schema=1,
        verdict=verdict,
        reasons=reasons,
        readings=readings,
        gradient_magnitude=magnitude,
        histograms=histograms,
        loss_surface=surface,
        curves=drawn,
        reliability=[
            reliability("clean", subject.clean_logits, labels),
            reliability(f"pgd{subject.effort.steps}", subject.logits(subject.pgd_images), labels),
        ],
        accuracies={
            "clean": share(subject.right),
            "pgd": share(subject.pgd),
            "apgd": share(subject.apgd),
            "white-box": share(subject.white_box),
        },
        images=len(labels),
        epsilon=epsilon,
        epsilon_text=fraction_text(epsilon),
        effort=subject.effort,
        seconds=time.monotonic() - started,
        weights_digest=weights_digest(model),
        versions=versions(device),
    )

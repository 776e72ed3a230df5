"""The one gradient loop: FGSM, PGD, MI-FGSM and the training adversary are settings of it.

x <- project(x + step_size * sign(gradient)), from the image or a random start in the ball
(the paper's equations 3 and 4). Gradients are computed for the image only, never for weights.
"""

import torch
from torch import Tensor, nn

from bilateral.attacks import ball, losses
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.targets import choose_targets
from bilateral.config import GradientAttack
from bilateral.randomness import derive, fresh_keys


def attack_loss(
    logits: Tensor,
    labels: Tensor,
    targets: Tensor | None,
    reference: Tensor | None,
    settings: GradientAttack,
) -> Tensor:
    """The loss of each image that a step increases, as the settings say."""
    if settings.loss == "divergence":
        assert reference is not None
        return losses.divergence(logits, reference)
    if settings.loss == "margin":
        return losses.margin(logits, labels, targets, settings.margin_cap)
    loss = losses.cross_entropy(logits, labels, targets)
    if settings.guide:
        assert reference is not None
        loss = loss + settings.guide * losses.change(logits, reference)
    return loss


def gradient_attack(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: GradientAttack,
    keys: Tensor | None = None,
    reference: Tensor | None = None,
    slack: float = 0.0,
    start: Tensor | None = None,
) -> Attacked:
    """Attack `images` inside the ball of `settings.epsilon`.

    `labels` may be distributions (of mixed images) for an untargeted cross-entropy with
    `iterate = last`. `keys` determine each image's noise. `reference` are the logits that choose
    the targets (by default those of the first iterate). `start` are perturbations to start from
    instead of noise, NaN for images without one; restarts use noise. With `iterate = any` an image
    leaves the batch as soon as an iterate fools the model, and that iterate is returned; `fooled`
    says which did. With `iterate = last` nothing is tested and `fooled` is all false. `slack` is
    the margin by which an iterate must fool (`losses.fools`). The caller puts the model into the
    mode it wants (`untouched`) and chooses the precision by autocast.
    """
    clean = images.detach()
    if keys is None:
        keys = fresh_keys(len(images), images.device)
    result = _one_start(model, clean, labels, settings, keys, reference, slack, start)
    for restart in range(1, settings.restarts):
        left = (~result.fooled).nonzero().squeeze(1)
        if not len(left):
            break
        again = _one_start(
            model,
            clean[left],
            labels[left],
            settings,
            derive(keys[left], 100 + restart),
            None if reference is None else reference[left],
            slack,
        )
        result.images[left], result.fooled[left] = again.images, again.fooled
        result = result._replace(
            forwards=result.forwards + again.forwards,
            backwards=result.backwards + again.backwards,
        )
    return result


def _one_start(
    model: nn.Module,
    clean: Tensor,
    labels: Tensor,
    settings: GradientAttack,
    keys: Tensor,
    reference: Tensor | None,
    slack: float,
    start: Tensor | None = None,
) -> Attacked:
    current = clean
    if settings.random_start:
        width = settings.epsilon * settings.start_width
        current = ball.random_start(clean, width, keys, settings.clip_start, settings.start_corners)
    if start is not None:
        current = ball.given_start(clean, current, start, settings.clip_start)
    testing = settings.iterate == "any"
    result, fooled = clean, labels.new_zeros(len(labels), dtype=torch.bool)
    doubted = fooled.clone()
    place = torch.arange(len(labels), device=labels.device)
    if testing:
        result = clean.clone()
    targets: Tensor | None = None
    velocity: Tensor | None = None
    first_logits = reference
    forwards = backwards = 0
    for step in range(settings.steps):
        with torch.enable_grad():
            current = current.detach().requires_grad_()
            logits = model(current).float()
            if step == 0:
                if reference is None:
                    reference = first_logits = logits.detach()
                targets = choose_targets(settings.target, reference, labels, keys, model)
            loss = attack_loss(logits, labels, targets, reference, settings)
            gradient = losses.image_gradient(loss, current)
        current = current.detach()
        forwards, backwards = forwards + len(labels), backwards + len(labels)
        if testing:
            broken = losses.fools(logits.detach(), labels, slack)
            if step == 0 and settings.random_start:
                broken &= ball.inside(current, clean, settings.epsilon)
            if slack:  # fooling within the slack is worth a check if nothing better comes
                near = losses.fools(logits.detach(), labels) & ~broken
                near &= ball.inside(current, clean, settings.epsilon)
                result[place[near]], doubted[place[near]] = current[near], True
            if bool(broken.any()):
                result[place[broken]], fooled[place[broken]] = current[broken], True
                stay = ~broken
                place, clean, labels = place[stay], clean[stay], labels[stay]
                current, gradient = current[stay], gradient[stay]
                targets = targets[stay] if targets is not None else None
                velocity = velocity[stay] if velocity is not None else None
                reference = reference[stay] if reference is not None else None
                if not len(place):
                    return Attacked(result, fooled, forwards, backwards, first_logits)
        if settings.momentum is not None:
            scale = gradient.abs().flatten(1).mean(1).clamp_min(1e-30)
            gradient = gradient / ball.per_image(scale, gradient)
            velocity = gradient if velocity is None else settings.momentum * velocity + gradient
            gradient = velocity
        moved = current + settings.step_size * gradient.sign()
        current = ball.project(moved, clean, settings.epsilon, settings.projection)
    if testing:
        with torch.no_grad():
            broken = losses.fools(model(current).float(), labels, slack)
        forwards += len(labels)
        fooled[place] = broken
        taken = broken | ~doubted[place]
        result[place[taken]] = current[taken]
    else:
        result = current
    return Attacked(result, fooled, forwards, backwards, first_logits)

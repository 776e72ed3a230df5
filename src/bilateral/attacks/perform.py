"""Settings applied to (model, images, labels): the one place that maps them to functions."""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bilateral.attacks.apgd import apgd
from bilateral.attacks.ball import inside
from bilateral.attacks.fab import fab
from bilateral.attacks.gradient import gradient_attack
from bilateral.attacks.losses import fools
from bilateral.attacks.minimum_norm import cw_l2, deepfool_l2
from bilateral.attacks.outcome import Attacked
from bilateral.attacks.settings import (
    APGD,
    FAB,
    SPSA,
    AttackSettings,
    CarliniWagner,
    DeepFool,
    OwnAttack,
    Square,
)
from bilateral.attacks.spsa import spsa
from bilateral.attacks.square import square
from bilateral.budgets import fraction_text
from bilateral.config import GradientAttack
from bilateral.errors import UserError
from bilateral.models.external import load_function


def perform(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: AttackSettings,
    keys: Tensor,
    slack: float = 0.0,
) -> Attacked:
    """Run an attack; the caller has put the model into eval mode and chosen the precision.

    `slack` is the margin by which an image must fool before the search drops it (`losses.fools`).
    """
    match settings:
        case GradientAttack():
            return _gradient(model, images, labels, settings, keys, slack)
        case APGD():
            return apgd(model, images, labels, settings, keys, slack)
        case Square():
            return square(model, images, labels, settings, keys, slack)
        case FAB():
            return fab(model, images, labels, settings, keys, slack)
        case SPSA():
            return spsa(model, images, labels, settings, keys)
        case CarliniWagner():
            found = cw_l2(model, images, labels, settings, keys)
        case DeepFool():
            found = deepfool_l2(model, images, labels, settings, keys)
        case OwnAttack():
            return _own(model, images, labels, settings)
    return Attacked(found.images, found.found, found.forwards, found.backwards)


def _gradient(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: GradientAttack,
    keys: Tensor,
    slack: float,
) -> Attacked:
    """The gradient loop, its targets chosen at the clean image."""
    if settings.target in ("none", "random") or not settings.random_start:
        return gradient_attack(model, images, labels, settings, keys, slack=slack)
    with torch.no_grad():
        reference = model(images).float()
    found = gradient_attack(model, images, labels, settings, keys, reference, slack)
    return found._replace(forwards=found.forwards + len(labels))


@cache
def _loaded(settings: OwnAttack) -> Callable[..., Any]:
    """A user's own attack, loaded once; its source's digest is part of the settings."""
    return load_function(settings.target)


def _own(model: nn.Module, images: Tensor, labels: Tensor, settings: OwnAttack) -> Attacked:
    """Run a user's own attack; its cost is counted by the model's calls."""
    passed = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal passed
        passed += len(output)

    hook = model.register_forward_hook(count)
    try:
        tried = _loaded(settings)(model, images.clone(), labels.clone(), settings.epsilon)
    except Exception as error:  # a user's own attack may raise anything
        reason = (str(error).splitlines() or [""])[0]
        raise UserError(f"{settings.target} failed: {type(error).__name__} {reason}") from None
    finally:
        hook.remove()
    if not isinstance(tried, Tensor) or tried.shape != images.shape:
        shape = tuple(tried.shape) if isinstance(tried, Tensor) else type(tried).__name__
        raise UserError(f"{settings.target} returned {shape}, not images of {tuple(images.shape)}")
    tried = tried.detach().to(images)
    outside = int((~inside(tried, images, settings.epsilon)).sum())
    if outside:
        warnings.warn(
            f"{settings.target}: {outside} of {len(images)} images lie outside the ball of "
            f"{fraction_text(settings.epsilon)} or of [0, 1]: they do not count as broken",
            stacklevel=2,
        )
    with torch.no_grad():
        fooled = fools(model(tried.clone()), labels)
    return Attacked(tried, fooled, passed + len(labels), 0)

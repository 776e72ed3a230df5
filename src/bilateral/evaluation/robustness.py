"""Robust accuracy of a model on images in memory.

An attack may search in bfloat16; an image counts as broken only if the float32 model is fooled
by an image that lies in the ball and in [0, 1].
"""

import hashlib
import time
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bilateral.attacks.ball import inside
from bilateral.attacks.gradient import gradient_attack
from bilateral.attacks.table import attack_named, attack_names
from bilateral.attacks.untouched import untouched
from bilateral.config import GradientAttack, fraction_text
from bilateral.errors import UserError
from bilateral.models.network import Network
from bilateral.randomness import image_keys, purpose_key
from bilateral.results import AttackSummary, Evaluation, summarise, wilson_interval
from bilateral.runtime import autocast, exact_float32, has_bfloat16, synchronise, versions

_NOISE = 7


class Flags(NamedTuple):
    """Which images stayed right, the images tried on them, and what it cost."""

    robust: Tensor
    images: Tensor
    seconds: float
    forwards: int
    backwards: int


def searches_in_bfloat16(model: nn.Module, device: torch.device) -> bool:
    """Whether attacks search in bfloat16: on a GPU, for models whose logits stay float32.

    Logits in bfloat16 tie, which weakens a margin attack; a float32 re-check cannot make up for a
    weak search.
    """
    return has_bfloat16(device) and isinstance(model, Network)


def noise_keys(numbers: Tensor, seed: int = 0) -> Tensor:
    """The keys of evaluation noise: they belong to the image, not to its place in a batch."""
    return image_keys(purpose_key(seed, _NOISE), numbers)


def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """The classes that the float32 model sees."""
    with untouched(model), torch.no_grad(), exact_float32():
        logits: Tensor = model(images)
        return logits.argmax(1)


def robust_flags(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: GradientAttack,
    keys: Tensor,
    bfloat16: bool = False,
) -> Flags:
    """Attack one batch; only images that are right to begin with are attacked."""
    started = time.monotonic()
    robust = predictions(model, images) == labels
    forwards, backwards = len(labels), 0
    tried = images.clone()
    todo = robust.nonzero().squeeze(1)
    for reduced in (True, False) if bfloat16 else (False,):
        if not len(todo):
            break
        clean, truth = images[todo], labels[todo]
        with untouched(model), exact_float32(), autocast(images.device, reduced):
            reference = None
            if settings.target != "none" and settings.random_start:
                with torch.no_grad():
                    reference = model(clean).float()
                forwards += len(truth)
            found = gradient_attack(model, clean, truth, settings, keys[todo], reference)
        wrong = predictions(model, found.images) != truth
        broken = wrong & inside(found.images, clean, settings.epsilon)
        forwards += found.forwards + len(truth)
        backwards += found.backwards
        tried[todo], robust[todo] = found.images, ~broken
        # An image that fooled in bfloat16 alone left the search too early: search on in float32.
        todo = todo[found.fooled & ~broken]
    synchronise(images.device)
    return Flags(robust, tried, time.monotonic() - started, forwards, backwards)


def check_inputs(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Refuse what would only give a wrong number; the number of classes otherwise."""
    if not len(images):
        raise UserError("there are no images to evaluate")
    if not images.is_floating_point() or images.min() < 0 or images.max() > 1:
        low, high = float(images.min()), float(images.max())
        raise UserError(f"images must be floats in [0, 1]; these are {low:g} to {high:g}")
    try:
        with untouched(model), torch.no_grad():
            outputs = model(images[:1])
    except RuntimeError as error:
        shape, reason = tuple(images.shape[1:]), str(error).splitlines()[0]
        raise UserError(f"the model does not take images of shape {shape}: {reason}") from None
    if outputs.dim() != 2:
        raise UserError(f"the model gives outputs of shape {tuple(outputs.shape)}, not logits")
    classes = int(outputs.shape[1])
    if labels.min() < 0 or labels.max() >= classes:
        raise UserError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, "
            f"but the model has {classes} classes"
        )
    return classes


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names and values of all weights and statistics."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().tobytes())
    return digest.hexdigest()


def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacks: str = "fgsm,pgd20,pgd20-cw",
    epsilon: float = 8 / 255,
    batch_size: int = 250,
    seed: int = 0,
) -> Evaluation:
    """Evaluate a model that takes images in [0, 1] and returns logits.

    `attacks` is a comma-separated list of names; the result has accuracies with intervals, the
    worst case over all attacks, and for each attack a flag per image (`.attacks[name].robust`).
    """
    names = attack_names(attacks)
    if len(images) != len(labels):
        raise UserError(f"{len(images)} images but {len(labels)} labels")
    classes = check_inputs(model, images, labels)
    device = next(iter(model.parameters()), images).device
    keys = noise_keys(torch.arange(len(labels)), seed)
    clean: list[bool] = []
    for start in range(0, len(labels), batch_size):
        part = predictions(model, images[start : start + batch_size].to(device))
        clean += (part.cpu() == labels[start : start + batch_size].cpu()).tolist()
    summaries = {}
    for name in names:
        settings = attack_named(name, epsilon)
        flags = [
            robust_flags(
                model,
                images[start : start + batch_size].to(device),
                labels[start : start + batch_size].to(device),
                settings,
                keys[start : start + batch_size].to(device),
                searches_in_bfloat16(model, device),
            )
            for start in range(0, len(labels), batch_size)
        ]
        robust = [bool(flag) for batch in flags for flag in batch.robust.tolist()]
        summaries[name] = AttackSummary(
            accuracy=sum(robust) / len(robust),
            interval=wilson_interval(sum(robust), len(robust)),
            images=len(robust),
            seconds=sum(batch.seconds for batch in flags),
            forwards=sum(batch.forwards for batch in flags),
            backwards=sum(batch.backwards for batch in flags),
            robust=robust,
        )
    return summarise(
        epsilon=epsilon,
        epsilon_text=fraction_text(epsilon),
        data="memory",
        classes=[str(number) for number in range(classes)],
        labels=labels.tolist(),
        clean=clean,
        attacks=summaries,
        weights_digest=weights_digest(model),
        versions=versions(device),
    )

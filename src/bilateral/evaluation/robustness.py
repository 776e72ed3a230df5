"""Robust accuracy of a model on images in memory.

An attack may search in bfloat16; an image counts as broken only if the float32 model is fooled
by an image that lies in the ball and in [0, 1].
"""

import hashlib
import math
import time
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bilateral.attacks.ball import inside
from bilateral.attacks.inputs import check_batch, check_images
from bilateral.attacks.losses import fools
from bilateral.attacks.perform import perform
from bilateral.attacks.settings import AttackSettings, CarliniWagner, DeepFool
from bilateral.attacks.table import attack_members, attack_names
from bilateral.attacks.untouched import untouched
from bilateral.budgets import fraction_text, parse_fraction
from bilateral.errors import UserError
from bilateral.evaluation.guards import guard
from bilateral.evaluation.search import Search, prepare_search
from bilateral.models.probe import output_of
from bilateral.randomness import image_keys, purpose_key
from bilateral.results import (
    AttackSummary,
    Evaluation,
    MemberFlags,
    summarise,
    summarise_members,
)
from bilateral.runtime import autocast, exact_float32, synchronise, versions
from bilateral.tables import percent
from bilateral.weights import weights_digest

_NOISE = 7
UNEVEN = 0.1
"""Classes are uneven if the largest exceeds its even share of the images by this much."""


class Flags(NamedTuple):
    """Which images stayed right, the adversarial images tried on them, and what they cost.

    `predictions` are the classes that the float32 model predicts for the images tried.
    `distances` are the L2 norms of the perturbations that fooled, for minimum-norm attacks only;
    infinite where none did.
    """

    robust: Tensor
    predictions: Tensor
    images: Tensor
    seconds: float
    forwards: int
    backwards: int
    distances: Tensor | None = None


def noise_keys(numbers: Tensor, seed: int = 0) -> Tensor:
    """The keys of evaluation noise: they belong to the image, not to its place in a batch."""
    return image_keys(purpose_key(seed, _NOISE), numbers)


def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """The classes that the float32 model predicts."""
    return _classes(float32_logits(model, images))


def _classes(logits: Tensor) -> Tensor:
    """The class of the largest logit in each row; NaN is never the largest."""
    return logits.nan_to_num(-torch.inf, torch.inf, -torch.inf).argmax(1)


def float32_logits(model: nn.Module, images: Tensor) -> Tensor:
    """The logits of the model itself, in eval mode."""
    with untouched(model), torch.no_grad(), exact_float32():
        # A copy: a model that scales its input in place would change what is judged afterwards.
        logits: Tensor = model(images.clone())
        return logits


def robust_flags(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    settings: AttackSettings,
    keys: Tensor,
    epsilon: float | None = None,
    search: Search | None = None,
) -> Flags:
    """Attack one batch; only images that are right to begin with are attacked.

    `epsilon` is the L-inf budget that counts; a minimum-norm attack has none of its own. `search`
    is a faster copy of the model for the attack to work on; only what `model` itself confirms in
    float32 counts.
    """
    started = time.monotonic()
    minimum_norm = isinstance(settings, CarliniWagner | DeepFool)
    if epsilon is None:
        assert not isinstance(settings, CarliniWagner | DeepFool)
        epsilon = settings.epsilon
    logits = float32_logits(model, images)
    seen, robust = _classes(logits), ~fools(logits, labels)
    distances = torch.where(robust, torch.inf, 0.0)
    forwards, backwards = len(labels), 0
    tried = images.clone()
    todo = robust.nonzero().squeeze(1)
    # Images that fooled only the search's copy left too early: the search goes on with the model.
    stages = [Search(model, bfloat16=False)]
    if search is not None and not minimum_norm:
        stages.insert(0, search)
    for stage in stages:
        if not len(todo):
            break
        clean, truth = images[todo], labels[todo]
        with untouched(stage.model), exact_float32(), autocast(images.device, stage.bfloat16):
            found = perform(stage.model, clean, truth, settings, keys[todo], stage.slack)
        logits = float32_logits(model, found.images)
        taken_for, wrong = _classes(logits), fools(logits, truth)
        broken = wrong & inside(found.images, clean, epsilon)
        forwards += found.forwards + len(truth)
        backwards += found.backwards
        tried[todo], robust[todo], seen[todo] = found.images, ~broken, taken_for
        lengths = (found.images - clean).flatten(1).norm(dim=1)
        distances[todo] = torch.where(wrong, lengths, torch.inf)
        todo = todo[found.fooled & ~wrong]
    synchronise(images.device)
    seconds = time.monotonic() - started
    lengths_found = distances if minimum_norm else None
    return Flags(robust, seen, tried, seconds, forwards, backwards, lengths_found)


def in_memory(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The caller's images and labels on the model's device; anything else is refused."""
    if not isinstance(model, nn.Module):
        raise UserError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    check_batch(images, labels)
    if not images.is_floating_point():
        check_images(images)
    device = next(iter(model.parameters()), images).device
    # torch only gathers by int64, and the budget is checked on float32 images.
    return images.detach().to(device).float(), labels.to(device).long()


def check_inputs(model: nn.Module, images: Tensor, labels: Tensor) -> int:
    """Refuse inputs that would give a wrong number; return the number of classes."""
    if not len(images):
        raise UserError("there are no images to evaluate")
    check_images(images)
    outputs = output_of(model, images[:1])
    if outputs.dim() != 2:
        raise UserError(f"the model returns outputs of shape {tuple(outputs.shape)}, not logits")
    classes = int(outputs.shape[1])
    if classes < 2:
        raise UserError("the model returns one output: give a binary model a logit for each class")
    if labels.min() < 0 or labels.max() >= classes:
        raise UserError(
            f"labels run from {int(labels.min())} to {int(labels.max())}, "
            f"but the model has {classes} classes"
        )
    return classes


def evaluate(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    attacks: str | Sequence[str] = "autoattack",
    epsilon: float | str = 8 / 255,
    batch_size: int = 250,
    seed: int = 0,
    force: bool = False,
) -> Evaluation:
    """Evaluate a model that takes images in [0, 1] and returns logits.

    `attacks` are names, in a list or separated by commas. The result has accuracies with
    intervals, the worst case over all attacks, and for every image a flag and the predicted class
    (`.attacks[name].robust`, `.attacks[name].predictions`).
    What casts doubt on the number is raised as Python warnings and stored in `.warnings`; `force`
    continues where the evaluation would be refused.
    """
    if callable(attacks):
        raise UserError("attacks are named: your own is file.py:function")
    try:
        epsilon = float(str(parse_fraction(epsilon)))
    except ValueError as error:
        raise UserError(f"epsilon: {error}") from None
    images, labels = in_memory(model, images, labels)
    device = images.device
    classes = check_inputs(model, images, labels)
    doubts = guard(model, images, labels, epsilon, force)
    for message in doubts:
        warnings.warn(message, stacklevel=2)
    keys = noise_keys(torch.arange(len(labels), device=device), seed)
    search = prepare_search(model, images)
    seen = torch.cat(
        [
            predictions(model, images[start : start + batch_size])
            for start in range(0, len(labels), batch_size)
        ]
    )
    summaries = {}
    for name in attack_names(attacks if isinstance(attacks, str) else ",".join(attacks)):
        members, flags = attack_members(name, epsilon), {}
        left = torch.arange(len(labels), device=device)
        for member, settings in members.items():
            flags[member] = MemberFlags()
            survivors = []
            for start in range(0, len(left), batch_size):
                part = left[start : start + batch_size]
                found = robust_flags(
                    model, images[part], labels[part], settings, keys[part], epsilon, search
                )
                add_flags(flags[member], part, found)
                survivors.append(part[found.robust])
            left = torch.cat(survivors) if survivors else left
        summaries[name] = summarise_members(flags, range(len(labels)))
    result = summarise(
        epsilon=epsilon,
        epsilon_text=fraction_text(epsilon),
        data="memory",
        data_digest=hashlib.sha256(images.cpu().contiguous().numpy().tobytes()).hexdigest(),
        search=search.precision,
        classes=[str(number) for number in range(classes)],
        labels=labels.tolist(),
        predictions=seen.tolist(),
        attacks=summaries,
        weights_digest=weights_digest(model),
        versions=versions(device),
    )
    result.warnings = [*doubts, *uncounted(summaries, labels.tolist()), *uneven(result, classes)]
    return result


def uneven(result: Evaluation, classes: int) -> list[str]:
    """A warning if always answering one class, which no attack can change, would do as well."""
    largest = max(result.per_class, key=lambda one: one.images)
    share, fewest = largest.images / result.images, -(-result.images // classes)
    even = share < 1 / classes + UNEVEN or largest.images <= fewest
    if even or result.worst_case_interval[0] > share:
        return []
    return [
        f"always answering {largest.name} would be right on {percent(share)} % of these images "
        f"under any attack: the worst case, {percent(result.worst_case_accuracy)} %, is not "
        "significantly higher"
    ]


def uncounted(attacks: dict[str, AttackSummary], labels: Sequence[int]) -> list[str]:
    """Warnings about a user's own attacks that fooled the model from outside the ball.

    Such images do not count, so an attack with the wrong budget or range breaks nothing, which
    does not make the model robust.
    """
    said = []
    for name, attack in attacks.items():
        kept = zip(attack.robust, attack.predictions, labels, strict=False)
        outside = sum(robust and seen != label for robust, seen, label in kept)
        if ":" in name and outside:
            said.append(
                f"{name} fooled the model on {outside} of {len(labels)} images by leaving the ball "
                "or [0, 1]: they count as robust"
            )
    return said


def add_flags(flags: MemberFlags, numbers: Tensor, found: Flags) -> None:
    """Add a batch's flags to a member's record."""
    distances: list[float | None] = []
    if found.distances is not None:
        distances = [None if math.isinf(value) else value for value in found.distances.tolist()]
    flags.add(
        numbers.tolist(),
        found.robust.tolist(),
        found.predictions.tolist(),
        distances,
        found.seconds,
        found.forwards,
        found.backwards,
    )

"""Black-box transfer: images made against source models, shown to target models.

The convention is the paper's black-box tables': every image is attacked on the source, also one
that the source gets wrong, and a target's accuracy is plain, over all images. An attack by
gradients hands over its last iterate: the first one that fools the source lies just across the
source's boundary, and seldom across anybody else's. The diagonal can thus differ from `evaluate`'s
accuracy, which counts an image as broken if any iterate fools.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from bilateral.attacks.ball import inside
from bilateral.attacks.perform import perform
from bilateral.attacks.settings import CarliniWagner, DeepFool
from bilateral.attacks.table import Members, attack_members
from bilateral.attacks.untouched import untouched
from bilateral.config import GradientAttack, fraction_text
from bilateral.data.device_images import DeviceImages
from bilateral.data.subsets import chosen_images, data_digest
from bilateral.errors import UserError
from bilateral.evaluation.guards import SAMPLE, guard
from bilateral.evaluation.robustness import check_inputs, noise_keys, predictions, weights_digest
from bilateral.evaluation.target import Target
from bilateral.results import Record
from bilateral.runtime import exact_float32, versions

Matrix = dict[str, dict[str, float]]
"""Accuracy by source, then by target."""
Shown = Callable[[str, int, int], None]
"""Progress: the attack and its source, images done, images in all."""


class Transfer(Record):
    """`transfer.json`: the accuracy of every target on the images made on every source.

    Where source and target are the same model the attack is white-box.
    """

    format: Literal[1] = Field(1, alias="schema")
    epsilon: float
    epsilon_text: str
    images: int
    data: str
    clean: dict[str, float]
    attacks: dict[str, Matrix]
    settings: dict[str, dict[str, dict[str, Any]]]
    white_box: list[str] = Field(description="models that are source and target")
    weights_digests: dict[str, str]
    seconds: float
    versions: dict[str, str]


def transfer_members(name: str, epsilon: float) -> Members:
    """The settings of an attack's members as transfer uses them: gradients to the last iterate."""
    members = attack_members(name, epsilon)
    for member, settings in members.items():
        if isinstance(settings, CarliniWagner | DeepFool):
            raise UserError(f"{member} has no L-inf budget: transfer takes attacks inside the ball")
        if isinstance(settings, GradientAttack):
            members[member] = settings.with_fields(iterate="last")
    return members


def transfer_images(
    model: nn.Module, images: Tensor, labels: Tensor, members: Members, keys: Tensor
) -> Tensor:
    """Adversarial images made on a source, in float32.

    Each further member of an ensemble goes on with what the source still gets right. An image
    that an attack put outside the ball does not count: the clean one stands in its place.
    """
    tried = images.clone()
    left = torch.arange(len(labels), device=labels.device)
    for settings in members.values():
        clean = images[left]
        with untouched(model), exact_float32():
            found = perform(model, clean, labels[left], settings, keys[left]).images
        assert not isinstance(settings, CarliniWagner | DeepFool)
        kept = inside(found, clean, settings.epsilon)
        tried[left[kept]] = found[kept]
        left = left[predictions(model, tried[left]) == labels[left]]
        if not len(left):
            break
    return tried


def transfer(
    sources: Mapping[str, nn.Module],
    targets: Mapping[str, nn.Module],
    images: Tensor,
    labels: Tensor,
    attacks: list[str],
    epsilon: float,
    *,
    numbers: Tensor | None = None,
    data: str = "memory",
    batch_size: int = 250,
    shown: Shown = lambda *_: None,
) -> Transfer:
    """The transfer matrix of models that take images in [0, 1] and return logits.

    A model under the same name on both sides is the same model. `numbers` are the images' numbers
    in their data set, which decide the noise.
    """
    return _matrices(
        sources,
        targets,
        lambda part: images[part],
        labels,
        attacks,
        epsilon,
        torch.arange(len(labels)) if numbers is None else numbers,
        data,
        batch_size,
        shown,
    )


def _matrices(
    sources: Mapping[str, nn.Module],
    targets: Mapping[str, nn.Module],
    images_at: Callable[[Tensor], Tensor],
    labels: Tensor,
    attacks: list[str],
    epsilon: float,
    numbers: Tensor,
    data: str,
    batch_size: int,
    shown: Shown,
) -> Transfer:
    """`transfer` of images that are asked for by their places among the labels."""
    started = time.monotonic()
    members = {name: transfer_members(name, epsilon) for name in attacks}
    keys = noise_keys(numbers).to(labels.device)
    batches = torch.split(torch.arange(len(labels), device=labels.device), batch_size)

    def right(model: nn.Module, shown_images: Tensor, part: Tensor) -> int:
        return int((predictions(model, shown_images) == labels[part]).sum())

    hits = dict.fromkeys(targets, 0)
    for part in batches:
        images = images_at(part)
        for target, model in targets.items():
            hits[target] += right(model, images, part)
    clean = {target: count / len(labels) for target, count in hits.items()}
    matrices: dict[str, Matrix] = {}
    for attack in attacks:
        matrices[attack] = {}
        for source, model in sources.items():
            hits = dict.fromkeys(targets, 0)
            for part in batches:
                made = transfer_images(
                    model, images_at(part), labels[part], members[attack], keys[part]
                )
                for target in targets:
                    hits[target] += right(targets[target], made, part)
                shown(f"{attack} from {source}", int(part[-1]) + 1, len(labels))
            matrices[attack][source] = {
                target: count / len(labels) for target, count in hits.items()
            }
    return Transfer(
        schema=1,
        epsilon=epsilon,
        epsilon_text=fraction_text(epsilon),
        images=len(labels),
        data=data,
        clean=clean,
        attacks=matrices,
        settings={
            attack: {name: value.model_dump(mode="json") for name, value in used.items()}
            for attack, used in members.items()
        },
        white_box=[name for name in sources if name in targets],
        weights_digests={
            name: weights_digest(model) for name, model in {**sources, **targets}.items()
        },
        seconds=time.monotonic() - started,
        versions=versions(labels.device),
    )


def transfer_between(
    sources: Mapping[str, Target],
    targets: Mapping[str, Target],
    attacks: list[str],
    epsilon: float,
    images: int | None,
    device: torch.device,
    *,
    batch_size: int = 250,
    shown: Shown = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
    force: bool = False,
) -> Transfer:
    """The transfer matrix of targets of `evaluate`, all on the test images that they share."""
    for attack in attacks:
        transfer_members(attack, epsilon)
    models = {**sources, **targets}
    first = next(iter(models.values()))
    digest = data_digest(first.split)
    for other in models.values():
        # Runs on a folder without a test set hold out images by their seeds.
        if other.data != first.data or data_digest(other.split) != digest:
            raise UserError(
                f"{first.name} and {other.name} are tested on different images "
                f"({first.data}, {other.data}): --data gives all models the same"
            )
    known = DeviceImages(first.split, device)
    chosen = chosen_images(first.split, images, first.data)
    numbers = torch.from_numpy(chosen).to(device)
    truth = known.labels[numbers]
    spread = torch.linspace(0, len(numbers) - 1, min(SAMPLE, len(numbers)), device=device)
    few = spread.round().long()
    clean = known.floats(numbers[few])
    for name, model in models.items():
        check_inputs(model.model, clean[:1], truth)
        for message in guard(model.model, clean, truth[few], epsilon, force):
            warn(f"{name}: {message}")
    return _matrices(
        {name: source.model for name, source in sources.items()},
        {name: target.model for name, target in targets.items()},
        lambda part: known.floats(numbers[part]),
        truth,
        attacks,
        epsilon,
        numbers,
        first.data,
        batch_size,
        shown,
    )

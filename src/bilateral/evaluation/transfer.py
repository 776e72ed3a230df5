"""Black-box transfer: images made against source models, shown to target models.

The convention is that of the paper's black-box tables: every image is attacked on the source, even
one that the source gets wrong, and a target's accuracy is over all images. A gradient attack hands
over its last iterate: the first one that fools the source lies just across the source's boundary,
and seldom across another model's. The diagonal can thus differ from `evaluate`'s accuracy, which
counts an image as broken if any iterate fools.

The targets' flags are saved after every batch, so an interrupted transfer can be resumed.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from bilateral.attacks.ball import inside
from bilateral.attacks.perform import perform
from bilateral.attacks.settings import CarliniWagner, DeepFool
from bilateral.attacks.table import Members, attack_members
from bilateral.attacks.untouched import untouched
from bilateral.budgets import fraction_text
from bilateral.config import GradientAttack
from bilateral.data.device_images import DeviceImages
from bilateral.data.subsets import chosen_images, data_digest
from bilateral.errors import Interrupted, UserError
from bilateral.evaluation.guards import SAMPLE, guard
from bilateral.evaluation.robustness import check_inputs, noise_keys, predictions
from bilateral.evaluation.target import Target
from bilateral.reading import read_record
from bilateral.results import Record, Seconds
from bilateral.runs import safe_name, write_json
from bilateral.runtime import StopRequest, exact_float32, versions
from bilateral.weights import weights_digest

Matrix = dict[str, dict[str, float]]
"""Accuracy by source, then by target."""
Shown = Callable[[str, int, int], None]
"""Progress: the attack and its source, images done, images in total."""
SAME = ("attack", "settings", "source", "weights_digest", "code_digest", "data", "data_digest")
"""Fields that must match before flags are reused; the budget is among the settings."""


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
    white_box: list[str] = Field(description="models that are both source and target")
    weights_digests: dict[str, str]
    config_digests: dict[str, str] = Field({}, description="of the runs, as far as known")
    seconds: float = Field(description="of the attacks, including earlier calls")
    versions: dict[str, str]


class TargetFlags(Record):
    """Which of the images made on a source a target gets right, by image number."""

    weights_digest: str
    code_digest: str
    right: dict[int, bool] = Field(default_factory=dict)


class SourceFile(Record):
    """`flags/<attack>@<epsilon>/<source>-<weights>.json`: an attack on a source, so far."""

    format: Literal[1] = Field(1, alias="schema")
    attack: str
    settings: dict[str, dict[str, Any]]
    source: str
    weights_digest: str
    code_digest: str
    data: str
    data_digest: str
    targets: dict[str, TargetFlags]
    seconds: Seconds = 0.0
    versions: dict[str, str]


class Participant(NamedTuple):
    """A model, and what distinguishes it from another of the same name."""

    name: str
    model: nn.Module
    weights_digest: str
    code_digest: str = ""


def transfer_members(name: str, epsilon: float) -> Members:
    """The settings of an attack's members, with gradient attacks returning the last iterate."""
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

    Each further member of an ensemble attacks the images that the source still gets right. An
    adversarial image outside the ball is dropped; the clean one is used in its place.
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


@dataclass(frozen=True)
class Trial:
    """What all sources have in common: the images, fetched by their places, and the targets.

    Flags are saved in the folder, if one is given.
    """

    targets: list[Participant]
    images_at: Callable[[Tensor], Tensor]
    labels: Tensor
    numbers: Tensor
    data: str
    epsilon: float
    batch_size: int
    shown: Shown
    data_digest: str = ""
    folder: Path | None = None
    stop: StopRequest = field(default_factory=StopRequest)

    def batches(self, places: Sequence[int]) -> Iterator[Tensor]:
        """These places in batches, on the device."""
        every = torch.tensor(places, dtype=torch.int64, device=self.labels.device)
        for start in range(0, len(places), self.batch_size):
            yield every[start : start + self.batch_size]

    def clean_accuracies(self) -> dict[str, float]:
        """The accuracy of every target without an attack."""
        hits = {target.name: 0 for target in self.targets}
        for part in self.batches(range(len(self.labels))):
            images = self.images_at(part)
            for target in self.targets:
                right = predictions(target.model, images) == self.labels[part]
                hits[target.name] += int(right.sum())
        return {name: count / len(self.labels) for name, count in hits.items()}

    def attack(self, name: str, source: Participant) -> tuple[dict[str, float], float]:
        """The accuracy of every target on the images of a source, and the seconds they took.

        Only images that lack flags are attacked; flags are written after every batch.
        """
        members = transfer_members(name, self.epsilon)
        file, path = self._blank(name, members, source), self._path(name, source)
        if path is not None and path.exists():
            file = _known(path, file)
        rights = {target.name: file.targets[target.name].right for target in self.targets}
        chosen = self.numbers.tolist()
        todo = [
            place
            for place, number in enumerate(chosen)
            if not all(number in right for right in rights.values())
        ]
        done = len(chosen) - len(todo)
        self.shown(f"{name} from {source.name}", done, len(chosen))
        for part in self.batches(todo):
            started = time.monotonic()
            labels, numbers = self.labels[part], self.numbers[part]
            made = transfer_images(
                source.model, self.images_at(part), labels, members, noise_keys(numbers)
            )
            for target in self.targets:
                flags = (predictions(target.model, made) == labels).tolist()
                rights[target.name].update(zip(numbers.tolist(), flags, strict=True))
            file.seconds += time.monotonic() - started
            if path is not None:
                write_json(path, file.model_dump(by_alias=True))
            done += len(part)
            self.shown(f"{name} from {source.name}", done, len(chosen))
            if self.stop.number is not None:
                raise Interrupted(self.stop.number)
        accuracies = {
            target: sum(right[number] for number in chosen) / len(chosen)
            for target, right in rights.items()
        }
        recorded = max((len(right) for right in rights.values()), default=len(chosen))
        return accuracies, file.seconds * len(chosen) / recorded

    def _path(self, attack: str, source: Participant) -> Path | None:
        """The path of flags; it names the weights, as file names of two sources may be the same."""
        if self.folder is None:
            return None
        budget = fraction_text(self.epsilon).replace("/", "-")
        file = f"{safe_name(source.name)}-{source.weights_digest[:8]}.json"
        return self.folder / "flags" / f"{safe_name(attack)}@{budget}" / file

    def _blank(self, attack: str, members: Members, source: Participant) -> SourceFile:
        """The file of an attack without any flags."""
        return SourceFile(
            schema=1,
            attack=attack,
            settings=_as_json(members),
            source=source.name,
            weights_digest=source.weights_digest,
            code_digest=source.code_digest,
            data=self.data,
            data_digest=self.data_digest,
            targets={
                name: TargetFlags(weights_digest=digest, code_digest=code_digest)
                for name, _, digest, code_digest in self.targets
            },
            versions=versions(self.labels.device),
        )


def _as_json(members: Members) -> dict[str, dict[str, Any]]:
    return {name: settings.model_dump(mode="json") for name, settings in members.items()}


def _known(path: Path, blank: SourceFile) -> SourceFile:
    """The file that an earlier call left for the same attack, models and data, or the blank one."""
    file = read_record(path, SourceFile, "; remove it")
    if any(getattr(file, key) != getattr(blank, key) for key in SAME):
        return blank
    for name, wanted in blank.targets.items():
        flags = file.targets.get(name)
        if flags is None or flags.model_copy(update={"right": {}}) != wanted:
            file.targets[name] = wanted
    return file


def _matrices(trial: Trial, sources: list[Participant], attacks: list[str]) -> Transfer:
    """The matrix of every attack."""
    matrices: dict[str, Matrix] = {attack: {} for attack in attacks}
    clean, seconds = trial.clean_accuracies(), 0.0
    for attack in attacks:
        for source in sources:
            matrices[attack][source.name], spent = trial.attack(attack, source)
            seconds += spent
    return Transfer(
        schema=1,
        epsilon=trial.epsilon,
        epsilon_text=fraction_text(trial.epsilon),
        images=len(trial.labels),
        data=trial.data,
        clean=clean,
        attacks=matrices,
        settings={attack: _as_json(transfer_members(attack, trial.epsilon)) for attack in attacks},
        white_box=[source.name for source in sources if source.name in clean],
        weights_digests={one.name: one.weights_digest for one in [*sources, *trial.targets]},
        seconds=seconds,
        versions=versions(trial.labels.device),
    )


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
    in their data set, which determine the noise.
    """
    places = torch.arange(len(labels)) if numbers is None else numbers
    trial = Trial(
        [Participant(name, model, weights_digest(model)) for name, model in targets.items()],
        lambda part: images[part],
        labels,
        places.to(labels.device),
        data,
        epsilon,
        batch_size,
        shown,
    )
    made_on = [Participant(name, model, weights_digest(model)) for name, model in sources.items()]
    return _matrices(trial, made_on, attacks)


def first_names(models: Mapping[str, Target]) -> dict[str, str]:
    """Every model's name, replaced by the first name of a model of the same weights and code."""
    first: dict[tuple[str, str], str] = {}
    return {
        name: first.setdefault((weights_digest(model.model), model.code_digest), name)
        for name, model in models.items()
    }


def transfer_between(
    sources: Mapping[str, Target],
    targets: Mapping[str, Target],
    attacks: list[str],
    epsilon: float,
    images: int | None,
    device: torch.device,
    *,
    batch_size: int = 250,
    folder: Path | None = None,
    shown: Shown = lambda *_: None,
    warn: Callable[[str], None] = lambda _: None,
    force: bool = False,
) -> Transfer:
    """The transfer matrix of targets of `evaluate`, all on the test images that they share.

    A model must have one name (`first_names`): under two, attacks on itself would pass for
    black-box. Flags are saved in the folder, and reused for the same models, images and settings.
    """
    for attack in attacks:
        transfer_members(attack, epsilon)
    models = {**sources, **targets}
    first = next(iter(models.values()))
    digest = data_digest(first.split)
    for other in models.values():
        # Runs on the same folder may read its images at different sizes.
        if other.data != first.data or data_digest(other.split) != digest:
            raise UserError(
                f"{first.name} and {other.name} are tested on different images "
                f"({first.data}, {other.data}): --data chooses the same for all models"
            )
    known = DeviceImages(first.split, device)
    chosen = chosen_images(first.split, images, first.data)
    numbers = torch.from_numpy(chosen).to(device)
    truth = known.labels[numbers]
    spread = torch.linspace(0, len(numbers) - 1, min(SAMPLE, len(numbers)), device=device)
    few = spread.round().long()
    clean = known.floats(numbers[few])
    warnings = []
    for name, model in models.items():
        try:
            check_inputs(model.model, clean[:1], truth)
            messages = guard(model.model, clean, truth[few], epsilon, force, few=True)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None
        warnings += [f"{name}: {message}" for message in messages]
    for message in warnings:  # only once every model has passed
        warn(message)
    participants = {
        name: Participant(name, model.model, weights_digest(model.model), model.code_digest)
        for name, model in models.items()
    }
    trial = Trial(
        [participants[name] for name in targets],
        lambda part: known.floats(numbers[part]),
        truth,
        numbers,
        first.data,
        epsilon,
        batch_size,
        shown,
        digest,
        folder,
    )
    with trial.stop.listening():
        found = _matrices(trial, [participants[name] for name in sources], attacks)
    digests = {name: model.config_digest for name, model in models.items()}
    found.config_digests = {name: digest for name, digest in digests.items() if digest}
    return found

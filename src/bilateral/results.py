"""The schema of every measurement, with its JSON; no torch.

Accuracies are fractions in [0, 1]; intervals are 95 % Wilson intervals.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Interval = tuple[float, float]


def wilson_interval(right: int, images: int) -> Interval:
    """The 95 % interval of a share (Wilson 1927): sensible near 0 and 1 and for few images."""
    if images == 0:
        return (0.0, 1.0)
    z = 1.959963984540054
    share, spread = right / images, z * z / images
    centre = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / images + spread / (4 * images))
    return (max(0.0, centre - half), min(1.0, centre + half))


class Record(BaseModel):
    """A measured value: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class AttackFile(Record):
    """`attacks/<attack>@<epsilon>.json`: what an attack did to each image, by its number."""

    format: Literal[1] = Field(1, alias="schema")
    attack: str
    settings: dict[str, Any]
    epsilon: float
    epsilon_text: str
    data: str
    weights_digest: str
    versions: dict[str, str]
    images: list[int] = []
    robust: list[bool] = []
    accuracy: float | None = None
    seconds: float = 0.0
    forwards: int = 0
    backwards: int = 0

    def add(
        self,
        numbers: Sequence[int],
        robust: Sequence[bool],
        seconds: float,
        forwards: int,
        backwards: int,
    ) -> None:
        """Take in the flags of another batch."""
        self.images.extend(numbers)
        self.robust.extend(robust)
        self.accuracy = sum(self.robust) / len(self.robust)
        self.seconds += seconds
        self.forwards += forwards
        self.backwards += backwards


class AttackSummary(Record):
    """An attack's line in an evaluation."""

    accuracy: float
    interval: Interval
    images: int
    seconds: float
    forwards: int
    backwards: int
    robust: list[bool] = Field(default=[], exclude=True, repr=False)


class ClassAccuracy(Record):
    """How one class fares."""

    name: str
    images: int
    clean_accuracy: float
    worst_case_accuracy: float


class Evaluation(Record):
    """One entry of `evaluation.json`: a model on a set of images at a budget."""

    epsilon: float
    epsilon_text: str
    images: int
    data: str
    clean_accuracy: float
    clean_interval: Interval
    attacks: dict[str, AttackSummary]
    worst_case_accuracy: float
    worst_case_interval: Interval
    per_class: list[ClassAccuracy]
    weights_digest: str
    versions: dict[str, str]


class EvaluationFile(Record):
    """`evaluation.json`."""

    format: Literal[1] = Field(1, alias="schema")
    entries: list[Evaluation] = []

    def put(self, entry: Evaluation) -> Evaluation:
        """Add an entry; one of the same budget, images and weights takes over its attacks."""
        for place, old in enumerate(self.entries):
            if (old.epsilon_text, old.images, old.data) != (
                entry.epsilon_text,
                entry.images,
                entry.data,
            ):
                continue
            if old.weights_digest == entry.weights_digest:
                entry = entry.model_copy(update={"attacks": {**old.attacks, **entry.attacks}})
            self.entries[place] = entry
            return entry
        self.entries.append(entry)
        return entry


def summarise(
    *,
    epsilon: float,
    epsilon_text: str,
    data: str,
    classes: Sequence[str],
    labels: Sequence[int],
    clean: Sequence[bool],
    attacks: dict[str, AttackSummary],
    weights_digest: str,
    versions: dict[str, str],
) -> Evaluation:
    """The entry for flags of the same images under several attacks."""
    worst = list(clean)
    for attack in attacks.values():
        worst = [before and now for before, now in zip(worst, attack.robust, strict=True)]
    per_class = []
    for number, name in enumerate(classes):
        members = [place for place, label in enumerate(labels) if label == number]
        if members:
            per_class.append(
                ClassAccuracy(
                    name=name,
                    images=len(members),
                    clean_accuracy=sum(clean[place] for place in members) / len(members),
                    worst_case_accuracy=sum(worst[place] for place in members) / len(members),
                )
            )
    return Evaluation(
        epsilon=epsilon,
        epsilon_text=epsilon_text,
        images=len(labels),
        data=data,
        clean_accuracy=sum(clean) / len(labels),
        clean_interval=wilson_interval(sum(clean), len(labels)),
        attacks=attacks,
        worst_case_accuracy=sum(worst) / len(labels),
        worst_case_interval=wilson_interval(sum(worst), len(labels)),
        per_class=per_class,
        weights_digest=weights_digest,
        versions=versions,
    )

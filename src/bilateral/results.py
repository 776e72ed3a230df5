"""The schema of every measurement, with its JSON; no torch.

Accuracies are fractions in [0, 1]; intervals are 95 % Wilson intervals.
"""

import math
from collections.abc import Container, Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Interval = tuple[float, float]
Confusion = list[list[int]]
"""Images by true class (row) and predicted class (column); empty if unknown or too large."""
LARGEST_CONFUSION = 100
"""The most classes for which a confusion matrix is recorded."""


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

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


Count = Annotated[int, Field(ge=0, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=1e12)]
Distance = Annotated[float, Field(ge=0, le=1e9)]
Share = Annotated[float, Field(ge=0, le=1)]


def near_chance(accuracy: float, classes: int) -> bool:
    """Whether accuracy is within a tenth of the way from chance to 1, and below twice chance."""
    chance = 1 / classes
    return accuracy < min(chance + 0.1 * (1 - chance), 2 * chance)


def check_flags(images: Sequence[int], robust: Sequence[bool], **others: Sequence[object]) -> None:
    """Refuse duplicate images and images without a flag; each of `others` may also be empty."""
    for name, values in {"robust": robust, **others}.items():
        if len(values) != len(images) and (values or name == "robust"):
            raise ValueError(f"{name} has another length than images")
    if len(set(images)) != len(images):
        raise ValueError("an image occurs twice")


class MemberFlags(Record):
    """What one member of an attack did to the images that reached it, by their numbers.

    `predictions` are the float32 model's classes for the images tried: for all of them, or for none
    if a batch came without, as in older files.
    """

    images: list[Count] = []
    robust: list[bool] = []
    predictions: list[Count] = []
    distances: list[Distance | None] = []
    seconds: Seconds = 0.0
    forwards: Count = 0
    backwards: Count = 0

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        check_flags(
            self.images, self.robust, predictions=self.predictions, distances=self.distances
        )
        return self

    def add(
        self,
        images: Sequence[int],
        robust: Sequence[bool],
        predictions: Sequence[int],
        distances: Sequence[float | None],
        seconds: float,
        forwards: int,
        backwards: int,
    ) -> None:
        """Add the flags of another batch."""
        all_predicted = len(self.predictions) == len(self.images)
        self.images.extend(images)
        self.robust.extend(robust)
        self.predictions.extend(predictions)
        if not all_predicted or len(self.predictions) != len(self.images):
            self.predictions = []
        self.distances.extend(distances)
        self.seconds += seconds
        self.forwards += forwards
        self.backwards += backwards

    def keep(self, numbers: Container[int]) -> None:
        """Drop the images that are not among these, with their share of the cost."""
        places = [place for place, number in enumerate(self.images) if number in numbers]
        share = len(places) / len(self.images) if self.images else 1.0
        self.seconds *= share
        self.forwards, self.backwards = round(self.forwards * share), round(self.backwards * share)
        self.images = [self.images[place] for place in places]
        self.robust = [self.robust[place] for place in places]
        if self.predictions:
            self.predictions = [self.predictions[place] for place in places]
        if self.distances:
            self.distances = [self.distances[place] for place in places]


class AttackFile(Record):
    """`attacks/<attack>@<epsilon>.json`: a robust flag for every image, by its number.

    A single attack has one member; an ensemble several, each with the survivors of those before.
    `distances` are L2 norms of the smallest perturbations found, for minimum-norm attacks; None
    stands for an image that did not fool the model.
    """

    format: Literal[1] = Field(1, alias="schema")
    attack: str
    settings: dict[str, dict[str, Any]]
    epsilon: float
    epsilon_text: str
    data: str
    data_digest: str
    code_digest: str = ""
    config_digest: str = ""
    search: str
    weights_digest: str
    versions: dict[str, str]
    members: dict[str, MemberFlags]
    images: list[Count] = []
    robust: list[bool] = []
    distances: list[Distance | None] = []
    accuracy: Share | None = None
    seconds: Seconds = 0.0
    forwards: Count = 0
    backwards: Count = 0

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        check_flags(self.images, self.robust, distances=self.distances)
        if self.settings.keys() != self.members.keys():
            raise ValueError("settings and members have different names")
        if len(self.members) > 1 and any(member.distances for member in self.members.values()):
            raise ValueError("only an attack with one member has distances")
        return self

    def settled(self) -> dict[int, bool]:
        """The images whose outcome is known: broken by some member, or survivors of the last."""
        members = list(self.members.values())
        broken = {
            number
            for member in members
            for number, flag in zip(member.images, member.robust, strict=True)
            if not flag
        }
        known = broken | set(members[-1].images)
        seen = dict.fromkeys(number for member in members for number in member.images)
        return {number: number not in broken for number in seen if number in known}

    def compile(self) -> None:
        """Combine the members: an image that any of them broke is broken, a survivor robust.

        An incomplete ensemble yields no flags: broken images are known before robust ones.
        """
        flags = self.settled()
        distances: dict[int, float | None] = {}
        members = list(self.members.values())
        if any(number not in flags for member in members for number in member.images):
            flags = {}
        for member in members:
            if member.distances:
                distances |= dict(zip(member.images, member.distances, strict=True))
        self.images, self.robust = list(flags), list(flags.values())
        self.distances = [distances[number] for number in flags] if distances else []
        self.accuracy = sum(self.robust) / len(self.robust) if self.robust else None
        self.seconds = sum(member.seconds for member in members)
        self.forwards = sum(member.forwards for member in members)
        self.backwards = sum(member.backwards for member in members)


class AttackSummary(Record):
    """An attack's line in an evaluation."""

    accuracy: Share
    interval: Interval
    images: int
    seconds: float
    forwards: int
    backwards: int
    members: dict[str, float] = Field(default={}, description="accuracy left after each member")
    mean_distance: float | None = Field(None, description="mean smallest L2 perturbation found")
    accuracy_at_radius: dict[str, float] = Field(
        default={}, description="accuracy against L2 radius, for minimum-norm attacks"
    )
    confusion: Confusion = Field(
        default=[], description="a broken image counts as the class predicted for it"
    )
    robust: list[bool] = Field(default=[], exclude=True, repr=False)
    predictions: list[int] = Field(default=[], exclude=True, repr=False)


class ClassAccuracy(Record):
    """The accuracies of one class."""

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
    data_digest: str
    code_digest: str = ""
    config_digest: str = Field("", description="of the run; empty if there is none")
    search: str = Field(description="precision of the search; results are checked in float32")
    clean_accuracy: Share
    clean_interval: Interval
    clean_confusion: Confusion = []
    attacks: dict[str, AttackSummary]
    worst_case_accuracy: Share
    worst_case_interval: Interval
    per_class: list[ClassAccuracy]
    weights_digest: str
    warnings: list[str] = Field(default=[], description="what casts doubt on the figures")
    versions: dict[str, str]

    def __str__(self) -> str:
        """The figures, one per line."""
        named = [("clean", self.clean_accuracy)]
        named += [(name, attack.accuracy) for name, attack in self.attacks.items()]
        named.append(("worst case", self.worst_case_accuracy))
        lines = [f"{name} {100 * accuracy:.1f} %" for name, accuracy in named]
        return "\n".join([f"{self.images:,} images at {self.epsilon_text}", *lines])


class EvaluationFile(Record):
    """`evaluation.json`."""

    format: Literal[1] = Field(1, alias="schema")
    entries: list[Evaluation] = []

    def find(self, entry: Evaluation) -> Evaluation | None:
        """The entry of the same budget, images and data."""
        key = (entry.epsilon_text, entry.images, entry.data)
        same = (old for old in self.entries if (old.epsilon_text, old.images, old.data) == key)
        return next(same, None)

    def put(self, entry: Evaluation) -> None:
        """Add an entry in place of one of the same budget, images and data."""
        old = self.find(entry)
        self.entries = [one for one in self.entries if one is not old] + [entry]


class PairedTest(Record):
    """Two models on the same images under one attack."""

    images: int
    only_first: int
    only_second: int
    p_value: float


class RunLine(Record):
    """One run under one attack, on the images that all compared runs have flags for."""

    run: str
    accuracy: float
    interval: Interval
    against_first: PairedTest | None = None


class Comparison(Record):
    """Several runs under one attack."""

    attack: str
    epsilon_text: str
    images: int
    runs: list[RunLine]
    mean_accuracy: float
    spread: float | None


RADII = (0.25, 0.5, 1.0, 1.5, 2.0)
"""L2 radii at which the accuracy under a minimum-norm attack is reported."""


def summarise_members(members: dict[str, MemberFlags], numbers: Iterable[int]) -> AttackSummary:
    """An attack's line for these images; its cost is their share of the recorded cost."""
    chosen = list(numbers)
    robust = dict.fromkeys(chosen, True)
    predicted: dict[int, int | None] = {}
    after: dict[str, float] = {}
    seconds = forwards = backwards = 0.0
    lengths: list[float | None] = []
    for name, member in members.items():
        flag = dict(zip(member.images, member.robust, strict=True))
        seen = [number for number in chosen if number in flag]
        classes = dict(zip(member.images, member.predictions, strict=False))
        for number in seen:
            if robust[number]:  # what an earlier member broke stays broken
                robust[number], predicted[number] = flag[number], classes.get(number)
        share = len(seen) / len(flag) if flag else 0.0
        seconds += member.seconds * share
        forwards += member.forwards * share
        backwards += member.backwards * share
        after[name] = sum(robust.values()) / len(chosen)
        if member.distances:
            length = dict(zip(member.images, member.distances, strict=True))
            lengths = [length[number] for number in chosen]
    found = [length for length in lengths if length]
    radii = {
        f"{radius:g}": sum(length is None or length > radius for length in lengths) / len(lengths)
        for radius in RADII
        if lengths
    }
    predictions = [each for each in map(predicted.get, chosen) if each is not None]
    right = sum(robust.values())
    return AttackSummary(
        accuracy=right / len(chosen),
        interval=wilson_interval(right, len(chosen)),
        images=len(chosen),
        seconds=seconds,
        forwards=round(forwards),
        backwards=round(backwards),
        members=after if len(members) > 1 else {},
        mean_distance=sum(found) / len(found) if found else None,
        accuracy_at_radius=radii,
        robust=list(robust.values()),
        predictions=predictions if len(predictions) == len(chosen) else [],
    )


def confusion(classes: int, labels: Sequence[int], seen: Sequence[int]) -> Confusion:
    """The confusion matrix; empty if too large, or if a predicted class has no name."""
    if len(seen) != len(labels) or classes > LARGEST_CONFUSION or max(seen) >= classes:
        return []
    table = [[0] * classes for _ in range(classes)]
    for label, other in zip(labels, seen, strict=True):
        table[label][other] += 1
    return table


def summarise(
    *,
    epsilon: float,
    epsilon_text: str,
    data: str,
    data_digest: str,
    code_digest: str = "",
    config_digest: str = "",
    search: str,
    classes: Sequence[str],
    labels: Sequence[int],
    predictions: Sequence[int],
    attacks: dict[str, AttackSummary],
    weights_digest: str,
    versions: dict[str, str],
) -> Evaluation:
    """The entry for flags of the same images under several attacks.

    `predictions` are the predicted classes of the clean images.
    """
    clean = [seen == label for seen, label in zip(predictions, labels, strict=True)]
    worst, summaries = list(clean), {}
    for attack_name, attack in attacks.items():
        worst = [before and now for before, now in zip(worst, attack.robust, strict=True)]
        # What fooled the model outside the ball does not count: a robust image keeps its class.
        seen = [
            label if robust else predicted
            for label, robust, predicted in zip(
                labels, attack.robust, attack.predictions, strict=False
            )
        ]
        table = confusion(len(classes), labels, seen)
        summaries[attack_name] = attack.model_copy(update={"confusion": table})
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
        data_digest=data_digest,
        code_digest=code_digest,
        config_digest=config_digest,
        search=search,
        clean_accuracy=sum(clean) / len(labels),
        clean_interval=wilson_interval(sum(clean), len(labels)),
        clean_confusion=confusion(len(classes), labels, predictions),
        attacks=summaries,
        worst_case_accuracy=sum(worst) / len(labels),
        worst_case_interval=wilson_interval(sum(worst), len(labels)),
        per_class=per_class,
        weights_digest=weights_digest,
        versions=versions,
    )

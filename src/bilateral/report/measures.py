"""The figures at the head of a page: clean, PGD, AutoAttack, and the verdict on them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bilateral.budgets import fraction_text
from bilateral.evaluation.diagnosis import FEW
from bilateral.report.gather import RunFiles
from bilateral.report.reading import count, interval, mapping, number, rows, share, text
from bilateral.results import Interval, wilson_interval

VERDICTS = ("holds", "suspect", "masked")


@dataclass(frozen=True)
class Measure:
    """An accuracy: under which attack and budget, on how many images, at what cost."""

    attack: str
    accuracy: float
    images: int | None = None
    epsilon: float | None = None
    epsilon_text: str = ""
    data: str = ""
    interval: Interval | None = None
    seconds: float | None = None
    forwards: float | None = None
    backwards: float | None = None
    members: dict[str, float] = field(default_factory=dict)
    distance: float | None = None
    source: str = "evaluate"
    entry: dict[str, Any] = field(default_factory=dict)
    """The evaluation, or the file of the attack, that it was read from."""


@dataclass(frozen=True)
class Headline:
    """A run in a few figures; None for what was not measured.

    `entry` is the evaluation with the worst case, the classes and the confusion matrices.
    """

    epsilon_text: str
    entry: dict[str, Any]
    clean: Measure | None
    pgd: Measure | None
    autoattack: Measure | None
    strongest: Measure | None
    worst: Measure | None
    data: str
    verdict: str | None
    reasons: list[str]
    doubts: list[str]
    warnings: list[str]


def attack_measures(files: RunFiles) -> list[Measure]:
    """All attacks of the evaluations, then those whose flags are in no evaluation yet."""
    found = []
    for entry in files.entries:
        for name, attack in mapping(entry.get("attacks")).items():
            found.append(_measure(name, mapping(attack), entry, "accuracy", "interval"))
    known = {(one.attack, one.epsilon_text) for one in found if one is not None}
    for file in files.attacks:
        name, budget = text(file.get("attack")) or "?", text(file.get("epsilon_text")) or ""
        if (name, budget) not in known:
            flags = file.get("images")
            images = len(flags) if isinstance(flags, list) else None
            record = {**file, "images": images, "members": None}
            found.append(_measure(name, record, file, "accuracy", "", "flags alone"))
    return [one for one in found if one is not None]


def clean_measures(files: RunFiles) -> list[Measure]:
    """The clean accuracy of every evaluation."""
    found = [
        _measure("clean", entry, entry, "clean_accuracy", "clean_interval")
        for entry in files.entries
    ]
    return [one for one in found if one is not None]


def headline(files: RunFiles) -> Headline:
    """The figures at the head of a run's page, all at one budget and on one data set."""
    attacks, clean = attack_measures(files), clean_measures(files)
    data = text(mapping(files.config.get("data")).get("name"))
    if not any(one.data == data for one in attacks):
        data = attacks[0].data if attacks else None
    budget = _main_budget(files, [one for one in attacks if one.data == data])

    def here(measures: Iterable[Measure | None]) -> list[Measure]:
        return [
            one
            for one in measures
            if one is not None and one.epsilon_text == budget and (data is None or one.data == data)
        ]

    own = here(attacks)
    entry = _main_entry(files, budget, data)
    pgd = [one for one in own if one.attack.startswith("pgd")]
    autoattack = _best([one for one in own if one.attack == "autoattack"])
    worst = _measure("worst case", entry, entry, "worst_case_accuracy", "worst_case_interval")
    if budget != _budget(entry) or (autoattack and not _has_autoattack(entry)):
        worst = None  # it would be above the AutoAttack that was measured separately
    stronger = [one for one in own if one.attack.startswith(("apgd", "square", "fab"))]
    diagnosed = _diagnosed(files, budget, data)
    verdict = text(files.diagnosis.get("verdict"))
    said = [
        warning
        for one in files.entries
        if text(one.get("epsilon_text")) == budget
        for warning in _texts(one.get("warnings"))
    ]
    return Headline(
        epsilon_text=budget,
        entry=entry,
        clean=_best(here(clean)) or _best([one for one in clean if not _differ(one.data, data)]),
        pgd=_best([one for one in pgd if one.entry is entry]) or _best(pgd),
        autoattack=autoattack,
        strongest=_best([*stronger, *diagnosed]),
        worst=worst,
        data=data or text(entry.get("data")) or "",
        verdict=verdict if verdict in VERDICTS else None,
        reasons=_texts(files.diagnosis.get("reasons")),
        doubts=doubts(files.diagnosis, budget, data) if verdict == "holds" else [],
        warnings=list(dict.fromkeys(said)),
    )


def _texts(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def class_names(files: RunFiles) -> list[str]:
    """The classes by number, as far as a file names them."""
    kept = files.gallery.get("classes")
    if kept is not None and kept.ndim == 1:
        return [str(name) for name in kept.tolist()]
    named = [
        [text(one.get("name")) or "?" for one in rows(entry.get("per_class"))]
        for entry in files.entries
    ]
    return max(named, key=len, default=[])


def doubts(
    diagnosis: dict[str, Any], budget: str | None = None, data: str | None = None
) -> list[str]:
    """Why the verdict "holds" does not clear the figures at this budget and on these data."""
    images = count(diagnosis.get("images"))
    few = (
        [f"{images} images are too few to clear it"] if images is not None and images < FEW else []
    )
    unsure = [
        f"{text(one.get('name'))} is past its limit, but not significantly on so few images"
        for one in rows(diagnosis.get("readings"))
        if one.get("unsure") is True and one.get("raised") is not True
    ]
    at = text(diagnosis.get("epsilon_text"))
    other = [f"the checks were run at {at}, not at {budget}"] if budget and at != budget else []
    seen = text(diagnosis.get("data"))
    other += [f"the checks were run on {seen}, not on {data}"] if _differ(seen, data) else []
    return other + few + unsure


def _differ(one: str | None, other: str | None) -> bool:
    """Whether two data sets are both known, and not the same."""
    return bool(one and other and one != other)


def _measure(
    name: str,
    record: dict[str, Any],
    about: dict[str, Any],
    accuracy: str,
    ends: str,
    source: str = "evaluate",
) -> Measure | None:
    value = share(record.get(accuracy))
    if value is None:
        return None
    images = count(record.get("images"))
    spread = interval(record.get(ends)) if ends else None
    if spread is None and images:
        spread = wilson_interval(round(value * images), images)
    members = mapping(record.get("members"))
    return Measure(
        attack=name,
        accuracy=value,
        images=images,
        epsilon=number(about.get("epsilon")),
        epsilon_text=_budget(about),
        data=text(about.get("data")) or "",
        interval=spread,
        seconds=number(record.get("seconds")),
        forwards=number(record.get("forwards")),
        backwards=number(record.get("backwards")),
        members={key: left for key, one in members.items() if (left := share(one)) is not None},
        distance=number(record.get("mean_distance")),
        source=source,
        entry=about,
    )


def _best(measures: list[Measure]) -> Measure | None:
    """The tightest one: on the most images, and of those the lowest."""
    return min(measures, key=lambda one: (-(one.images or 0), one.accuracy), default=None)


def _main_entry(files: RunFiles, budget: str, data: str | None) -> dict[str, Any]:
    """The evaluation with AutoAttack, else on the most images, at this budget and on this data.

    The worst case over weaker attacks on more images would be above AutoAttack's accuracy.
    """
    on_data = [one for one in files.entries if data is None or text(one.get("data")) == data]
    here = [one for one in on_data if _budget(one) == budget]
    return max(
        here or on_data or files.entries,
        key=lambda one: (_has_autoattack(one), count(one.get("images")) or 0),
        default={},
    )


def _budget(about: dict[str, Any]) -> str:
    epsilon = number(about.get("epsilon"))
    return text(about.get("epsilon_text")) or (fraction_text(epsilon) if epsilon else "")


def _has_autoattack(entry: dict[str, Any]) -> bool:
    attack = mapping(mapping(entry.get("attacks")).get("autoattack"))
    return share(attack.get("accuracy")) is not None


def _main_budget(files: RunFiles, attacks: list[Measure]) -> str:
    """AutoAttack's budget, else the one trained for, else the diagnosed, else the first."""
    known = [one.epsilon_text for one in attacks]
    trained = number(mapping(files.config.get("adversary")).get("epsilon"))
    diagnosed = text(files.diagnosis.get("epsilon_text"))
    wanted = [one.epsilon_text for one in attacks if one.attack == "autoattack"]
    wanted += [fraction_text(trained)] if trained else []
    wanted += [diagnosed] if diagnosed else []
    return next((budget for budget in wanted if budget in known or not known), (known or [""])[0])


def _diagnosed(files: RunFiles, budget: str, data: str | None) -> list[Measure]:
    """The accuracy under APGD that the diagnosis measured as well."""
    elsewhere = _differ(text(files.diagnosis.get("data")), data)
    if elsewhere or text(files.diagnosis.get("epsilon_text")) != budget:
        return []
    record = {
        "apgd": mapping(files.diagnosis.get("accuracies")).get("apgd"),
        "images": files.diagnosis.get("images"),
    }
    found = _measure("apgd", record, files.diagnosis, "apgd", "", "diagnose")
    return [found] if found is not None else []

"""Flags that earlier evaluations of a model stored, reused before an attack is run again.

An attack's file holds a flag per image, by number, so that an interrupted evaluation resumes, a
larger one starts from what a smaller one found, and an ensemble from the flags of its members.
Files of other weights, code or images are set aside, and reused when those are evaluated again.
"""

import hashlib
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from bilateral.attacks.settings import AttackSettings
from bilateral.attacks.table import Members, attack_members
from bilateral.errors import UserError
from bilateral.reading import read_record
from bilateral.results import AttackFile, Evaluation, EvaluationFile, MemberFlags
from bilateral.runs import RunFolder
from bilateral.tables import percent

SAME = ("weights_digest", "code_digest", "data", "data_digest")
"""Fields that must match before flags are reused; so must the precision if one was requested."""
BEFORE = "before"
"""The folder next to an attack's file that keeps files of other weights, code or images."""


class AttackFiles:
    """A folder's attack files of one model on one data set at one budget.

    `common` holds the fields that they share.
    """

    def __init__(self, folder: RunFolder, common: dict[str, Any]) -> None:
        self.folder, self.common = folder, common

    def path(self, name: str) -> Path:
        """The path of an attack's file."""
        return self.folder.attack(name, self.common["epsilon_text"])

    def known(
        self, name: str, numbers: np.ndarray, any_precision: bool, from_others: bool = True
    ) -> AttackFile:
        """The stored flags of an attack on these weights, completed from other attacks' files.

        Other files add flags only for the images with these `numbers`. Whatever the precision of
        the search, every flag was confirmed in float32.
        """
        members = attack_members(name, self.common["epsilon"])
        settings = {member: value.model_dump(mode="json") for member, value in members.items()}
        path = self.path(name)
        found = [
            file
            for file in self._stored(path, any_precision)
            if file.settings.keys() == members.keys()
            and all(same_settings(file.settings[member], one) for member, one in members.items())
        ]
        file = max(found, key=lambda one: len(one.images), default=None) or AttackFile(
            schema=1,
            attack=name,
            settings=settings,
            members={member: MemberFlags() for member in members},
            **self.common,
        )
        others = path.parent.glob(f"*@{path.name.rpartition('@')[2]}") if from_others else ()
        for other in sorted(others):
            for known in self._stored(other, any_precision) if other != path else ():
                _take_over(file, known, members, set(numbers.tolist()))
        file.compile()
        return file

    def found_before(self, name: str, numbers: np.ndarray) -> Iterator[AttackFile]:
        """What earlier calls found on this model with an attack that may have changed since.

        An image that it broke stays broken, even if a user's own attack was edited or removed.
        """
        for stored in self._stored(self.path(name), any_precision=True):
            stored.compile()
            yield stored
        with suppress(UserError):
            yield self.known(name, numbers, any_precision=True)

    def set_aside(self, file: AttackFile) -> None:
        """Move the file that this one would overwrite away, unless this one continues it."""
        path = self.path(file.attack)
        there = self._of_this(path)
        if path.exists() and (
            there is None or (there.search, there.settings) != (file.search, file.settings)
        ):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            (path.parent / BEFORE).mkdir(exist_ok=True)
            path.replace(path.parent / BEFORE / f"{path.stem}.{digest[:12]}.json")

    def _stored(self, path: Path, any_precision: bool) -> list[AttackFile]:
        """The file there and those set aside from there, if of the same weights and data."""
        asides = sorted(path.parent.glob(f"{BEFORE}/{path.stem}.*.json"))
        files = [file for one in (path, *asides) if (file := self._of_this(one))]
        return [file for file in files if any_precision or file.search == self.common["search"]]

    def _of_this(self, path: Path) -> AttackFile | None:
        if not path.exists():
            return None
        file = read_record(path, AttackFile, "; remove it")
        return file if all(getattr(file, key) == self.common[key] for key in SAME) else None


def evaluations(folder: RunFolder) -> EvaluationFile:
    """The earlier evaluations in a folder."""
    if not folder.evaluation.exists():
        return EvaluationFile(schema=1)
    return read_record(folder.evaluation, EvaluationFile, "; remove it")


def same_settings(stored: dict[str, Any] | None, settings: AttackSettings) -> bool:
    """Whether an attack was run with these settings; fields that older files lack have defaults."""
    try:
        return type(settings).model_validate(stored) == settings
    except ValidationError:
        return False


def _take_over(
    file: AttackFile, known: AttackFile, members: Members, wanted: Container[int]
) -> None:
    """Copy the flags of members that another attack has too, with their share of the cost.

    Only for wanted images: of others an ensemble would learn which are broken, not which are
    robust.
    """
    for name, flags in file.members.items():
        if not same_settings(known.settings.get(name), members[name]):
            continue
        theirs, own = known.members[name], set(flags.images)
        places = [
            place
            for place, number in enumerate(theirs.images)
            if number not in own and number in wanted
        ]
        share = len(places) / len(theirs.images) if theirs.images else 0.0
        flags.add(
            [theirs.images[place] for place in places],
            [theirs.robust[place] for place in places],
            [theirs.predictions[place] for place in places] if theirs.predictions else [],
            [theirs.distances[place] for place in places] if theirs.distances else [],
            theirs.seconds * share,
            round(theirs.forwards * share),
            round(theirs.backwards * share),
        )


def measured(one: Evaluation | AttackFile) -> tuple[str, str, str]:
    """Which model and which images a result is of."""
    return one.weights_digest, one.code_digest, one.data_digest


def broken_before(result: Evaluation, folder: RunFolder, numbers: Sequence[int]) -> list[str]:
    """A warning if attacks of earlier evaluations broke images that are robust in this one."""
    known: dict[str, set[int]] = {}
    attacks, budget = folder.path / "attacks", result.epsilon_text.replace("/", "-")
    for path in (*attacks.glob(f"{BEFORE}/*@{budget}.*.json"), *attacks.glob(f"*@{budget}.json")):
        with suppress(UserError):
            file = read_record(path, AttackFile)
            if measured(file) == measured(result) and file.epsilon_text == result.epsilon_text:
                flags = file.settled()
                broken = {number for number, robust in flags.items() if not robust}
                known.setdefault(file.attack, set()).update(broken)
    here = result.attacks.values()
    hold = {
        one for place, one in enumerate(numbers) if all(attack.robust[place] for attack in here)
    }
    by = {name: hold & broken for name, broken in known.items()}
    names = sorted(name for name, broken in by.items() if broken)
    if not names:
        return []
    left = len(hold.difference(*by.values())) / len(numbers)
    return [
        f"{', '.join(names)} broke more of these images in earlier evaluations: with those counted "
        f"the worst case is {percent(left)} %, not {percent(result.worst_case_accuracy)} %"
    ]

"""Runs compared by the flags in their folders: a paired test, and the spread over seeds; no torch.

McNemar's test asks whether the images on which only one of two models is robust are split evenly
between the two.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean, stdev

from bilateral.errors import UserError
from bilateral.reading import read_record
from bilateral.results import AttackFile, Comparison, PairedTest, RunLine, wilson_interval
from bilateral.runs import RunFolder, no_model, safe_name, said_of_weights

STRONGEST = ("autoattack", "apgd")
"""Ensembles: a single attack is unlikely to break an image that they did not."""


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value: a fair coin's chance of a split at least this uneven."""
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**total)) if total < 1000 else _large(only_first, only_second)


def _large(only_first: int, only_second: int) -> float:
    """The normal approximation with continuity correction, for a thousand images or more."""
    gap = max(abs(only_first - only_second) - 1, 0)
    return math.erfc(gap / math.sqrt(only_first + only_second) / math.sqrt(2))


def paired_test(first: Mapping[int, bool], second: Mapping[int, bool]) -> PairedTest:
    """McNemar's test on the images that both have."""
    shared = first.keys() & second.keys()
    only_first = sum(first[number] and not second[number] for number in shared)
    only_second = sum(second[number] and not first[number] for number in shared)
    return PairedTest(
        images=len(shared),
        only_first=only_first,
        only_second=only_second,
        p_value=mcnemar(only_first, only_second),
    )


def budgets_of(folder: RunFolder, attack: str) -> list[str]:
    """The budgets, such as `8/255`, at which a run has flags of an attack."""
    return sorted(budget for name, budget in _known(folder) if name == safe_name(attack))


def attacks_of(folder: RunFolder) -> list[str]:
    """The attacks of which a run has flags, as their files are named."""
    return sorted({name for name, _ in _known(folder)})


def _known(folder: RunFolder) -> set[tuple[str, str]]:
    """The attack and budget of every flag file of a run, from its name."""
    stems = (path.stem.rpartition("@") for path in _files(folder))
    return {(name, budget.replace("-", "/")) for name, _, budget in stems}


def _files(folder: RunFolder) -> list[Path]:
    return sorted((folder.path / "attacks").glob("*@*.json"))


def strongest_shared(runs: Sequence[str], epsilon_text: str | None = None) -> str | None:
    """The strongest attack of which all runs have flags; None if they share none.

    AutoAttack comes first, then APGD, then the attack that breaks most images over all runs.
    """
    folders = [RunFolder(Path(run)) for run in runs]
    shared = set.intersection(*map(_known, folders))
    budgets = sorted({budget for _, budget in shared} if epsilon_text is None else {epsilon_text})
    if len(budgets) > 1:  # a larger budget would pass for a stronger attack
        raise UserError(f"the runs have flags at {', '.join(budgets)}: give --epsilon")
    broken: dict[str, int] = {}
    for attack in sorted(name for name, budget in shared if budget in budgets):
        flags = [flags_of(folder, attack, budgets[0]).robust for folder in folders]
        if all(flags):  # an unfinished ensemble may have no flags yet
            broken[attack] = sum(one.count(False) for one in flags)
    first = [attack for attack in STRONGEST if attack in broken]
    return first[0] if first else max(broken, key=broken.__getitem__, default=None)


def flags_of(folder: RunFolder, attack: str, epsilon_text: str) -> AttackFile:
    """The stored flags of an attack, refused unless they are of the run's current weights."""
    path = folder.attack(attack, epsilon_text)
    flags = read_record(path, AttackFile)
    now = said_of_weights(folder.trained.weights).get("weights_digest", flags.weights_digest)
    if flags.weights_digest != now:
        data = f" --data {flags.data}" if folder.trained != folder else ""
        raise UserError(
            f"{path} is of other weights than {folder.trained.weights}: run bilateral evaluate "
            f"{folder.trained.path}{data} --attacks {flags.attack} --epsilon {epsilon_text} again"
        )
    return flags


def no_flags(runs: Sequence[str], run: str, attack: str, epsilon_text: str = "") -> UserError:
    """The error for runs on different data, or else for one without flags of an attack."""
    data = [_data_of(RunFolder(Path(one))) for one in runs]
    for other, names in zip(runs, data, strict=True):
        if names and data[0] and names.isdisjoint(data[0]):
            return _other_data(other, ", ".join(sorted(names)), runs[0], ", ".join(sorted(data[0])))
    folder = RunFolder(Path(run))
    if folder.config.is_file() and not folder.weights.exists():
        return no_model(folder)
    has = f"it has {', '.join(sorted(f'{one} at {at}' for one, at in _known(folder)))}; "
    options = f"--attacks {attack}" + (f" --epsilon {epsilon_text}" if epsilon_text else "")
    # The folder of its results does not say how to load a user's own model.
    command = f"run bilateral evaluate {run} {options} first"
    advice = command if folder.config.is_file() else f"evaluate that model with {options} first"
    return UserError(
        f"{run} has no flags of {attack}{f' at {epsilon_text}' if epsilon_text else ''}: "
        f"{has if _known(folder) else ''}{advice}, or choose another --attack"
    )


def _data_of(folder: RunFolder) -> set[str]:
    """What a run was evaluated on, or trained on if it has no flags; damaged files are skipped."""
    found: set[str] = set()
    for path in _files(folder):
        with suppress(UserError):
            found.add(read_record(path, AttackFile).data)
    if not found and folder.config.is_file():
        found.add(folder.read_run().data.name)
    return found


def _other_data(run: str, data: str, first: str, first_data: str) -> UserError:
    return UserError(
        f"{run} was evaluated on {data}, {first} on {first_data}: "
        "only models on the same images can be compared"
    )


def _same_attack(one: AttackFile, other: AttackFile) -> bool:
    """Whether settings match, ignoring fields that an older version did not record."""
    if one.settings.keys() != other.settings.keys():
        return False
    pairs = [(one.settings[member], other.settings[member]) for member in one.settings]
    return all(mine[key] == theirs[key] for mine, theirs in pairs for key in mine.keys() & theirs)


def _refuse_one_model_twice(runs: Sequence[str], files: Sequence[AttackFile]) -> None:
    """Refuse a copied run: it would pass for another seed, and give a spread of 0.0."""
    first: dict[tuple[str, str], str] = {}
    for run, file in zip(runs, files, strict=True):
        other = first.setdefault((file.weights_digest, file.code_digest), run)
        if other != run and file.weights_digest:
            raise UserError(f"{other} and {run} are one model: their weights and code are the same")


def compare(runs: Sequence[str], attack: str, epsilon_text: str) -> Comparison:
    """All runs on their shared images, each tested against the first."""
    folders = [RunFolder(Path(run)) for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if not folder.attack(attack, epsilon_text).exists():
            raise no_flags(runs, run, attack, epsilon_text)
    files = [flags_of(folder, attack, epsilon_text) for folder in folders]
    for run, file in zip(runs, files, strict=True):
        if file.data != files[0].data:
            raise _other_data(run, file.data, runs[0], files[0].data)
        if not _same_attack(file, files[0]):
            raise UserError(
                f"{run} and {runs[0]} were attacked by different versions of {attack}: evaluate "
                "both again"
            )
        if file.data_digest != files[0].data_digest:
            raise UserError(f"{run} was evaluated on other images of {file.data} than {runs[0]}")
    _refuse_one_model_twice(runs, files)
    flags = [dict(zip(file.images, file.robust, strict=True)) for file in files]
    shared = set.intersection(*(set(one) for one in flags))
    if not shared:
        raise UserError(f"the runs share no images under {attack} at {epsilon_text}")
    lines = []
    for place, (run, own) in enumerate(zip(runs, flags, strict=True)):
        right = sum(own[number] for number in shared)
        lines.append(
            RunLine(
                run=run,
                accuracy=right / len(shared),
                interval=wilson_interval(right, len(shared)),
                against_first=paired_test(flags[0], own) if place else None,
            )
        )
    accuracies = [line.accuracy for line in lines]
    return Comparison(
        attack=attack,
        epsilon_text=epsilon_text,
        images=len(shared),
        runs=lines,
        mean_accuracy=mean(accuracies),
        spread=stdev(accuracies) if len(accuracies) > 1 else None,
    )

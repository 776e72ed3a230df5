"""Runs compared by what their folders hold: a paired test, and the spread over seeds; no torch.

McNemar's test asks of two models on the same images whether those that only one of them holds
are split evenly.
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
"""Ensembles: what they do not break no single attack is likely to."""


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p-value: a fair coin's chance of a split at least this uneven."""
    total, fewer = only_first + only_second, min(only_first, only_second)
    tail = sum(math.comb(total, count) for count in range(fewer + 1))
    return min(1.0, float(2 * tail / 2**total)) if total < 1000 else _large(only_first, only_second)


def _large(only_first: int, only_second: int) -> float:
    """The normal approximation with continuity correction, for a thousand and more."""
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
    """The budgets at which a run has flags of an attack, as `8/255`."""
    return sorted(budget for name, budget in _known(folder) if name == safe_name(attack))


def attacks_of(folder: RunFolder) -> list[str]:
    """The attacks of which a run has flags, as their files are named."""
    return sorted({name for name, _ in _known(folder)})


def _known(folder: RunFolder) -> set[tuple[str, str]]:
    """Attack and budget of all flags of a run, by the names of their files."""
    stems = (path.stem.rpartition("@") for path in _files(folder))
    return {(name, budget.replace("-", "/")) for name, _, budget in stems}


def _files(folder: RunFolder) -> list[Path]:
    return sorted((folder.path / "attacks").glob("*@*.json"))


def strongest_shared(runs: Sequence[str], epsilon_text: str | None = None) -> str | None:
    """The strongest attack of which all runs have flags; none where they share none.

    AutoAttack before APGD, then by the images that it breaks in all runs together.
    """
    folders = [RunFolder(Path(run)) for run in runs]
    shared = set.intersection(*map(_known, folders))
    budgets = sorted({budget for _, budget in shared} if epsilon_text is None else {epsilon_text})
    if len(budgets) > 1:  # the larger budget would pass for the stronger attack
        raise UserError(f"the runs have flags at {', '.join(budgets)}: give --epsilon")
    broken: dict[str, int] = {}
    for attack in sorted(name for name, budget in shared if budget in budgets):
        flags = [flags_of(folder, attack, budgets[0]).robust for folder in folders]
        if all(flags):  # of an ensemble under way nothing is told
            broken[attack] = sum(one.count(False) for one in flags)
    first = [attack for attack in STRONGEST if attack in broken]
    return first[0] if first else max(broken, key=broken.__getitem__, default=None)


def flags_of(folder: RunFolder, attack: str, epsilon_text: str) -> AttackFile:
    """What an evaluation left of an attack, if it is of the weights that are there now."""
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
    """That one of the runs has no flags of an attack, and what to do; other data are said first."""
    data = [_data_of(RunFolder(Path(one))) for one in runs]
    for other, names in zip(runs, data, strict=True):
        if names and data[0] and names.isdisjoint(data[0]):
            return _other_data(other, ", ".join(sorted(names)), runs[0], ", ".join(sorted(data[0])))
    folder = RunFolder(Path(run))
    if folder.config.is_file() and not folder.weights.exists():
        return no_model(folder)
    has = f"it has {', '.join(sorted(f'{one} at {at}' for one, at in _known(folder)))}; "
    options = f"--attacks {attack}" + (f" --epsilon {epsilon_text}" if epsilon_text else "")
    # Somebody's own model is not known by the folder of its results.
    command = f"run bilateral evaluate {run} {options} first"
    advice = command if folder.config.is_file() else f"evaluate that model with {options} first"
    return UserError(
        f"{run} has no flags of {attack}{f' at {epsilon_text}' if epsilon_text else ''}: "
        f"{has if _known(folder) else ''}{advice}, or choose another --attack"
    )


def _data_of(folder: RunFolder) -> set[str]:
    """What a run was evaluated on, or trained on where it has no flags; a damaged file is none."""
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
    """Whether settings agree; what an older version did not write down is not asked for."""
    if one.settings.keys() != other.settings.keys():
        return False
    pairs = [(one.settings[member], other.settings[member]) for member in one.settings]
    return all(mine[key] == theirs[key] for mine, theirs in pairs for key in mine.keys() & theirs)


def _refuse_one_model_twice(runs: Sequence[str], files: Sequence[AttackFile]) -> None:
    """Refuse a copied run: it would pass for another seed, and the spread for one of 0.0."""
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

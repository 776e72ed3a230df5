"""Runs compared by what their folders hold: a paired test, and the spread over seeds; no torch.

McNemar's test asks of two models on the same images whether those that only one of them holds
are split evenly.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev

from bilateral.errors import UserError
from bilateral.reading import read_record
from bilateral.results import AttackFile, Comparison, PairedTest, RunLine, wilson_interval
from bilateral.runs import RunFolder


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
    found = folder.attack(attack, "*").parent.glob(folder.attack(attack, "*").name)
    return sorted(path.stem.rpartition("@")[2].replace("-", "/") for path in found)


def attacks_of(folder: RunFolder) -> list[str]:
    """The attacks of which a run has flags, as their files are named."""
    files = (folder.path / "attacks").glob("*@*.json")
    return sorted({path.stem.rpartition("@")[0] for path in files})


def flags_of(folder: RunFolder, attack: str, epsilon_text: str) -> AttackFile:
    """What an evaluation left of an attack."""
    path = folder.attack(attack, epsilon_text)
    if not path.exists():
        raise UserError(
            f"{folder.path} has no flags of {attack} at {epsilon_text}: "
            f"run bilateral evaluate {folder.path} --attacks {attack} "
            f"--epsilon {epsilon_text} first"
        )
    return read_record(path, AttackFile)


def compare(runs: Sequence[str], attack: str, epsilon_text: str) -> Comparison:
    """All runs on their shared images, each tested against the first."""
    files = [flags_of(RunFolder(Path(run)), attack, epsilon_text) for run in runs]
    for run, file in zip(runs, files, strict=True):
        if file.data != files[0].data:
            raise UserError(f"{run} was evaluated on {file.data}, {runs[0]} on {files[0].data}")
        if file.data_digest != files[0].data_digest:
            raise UserError(f"{run} was evaluated on other images of {file.data} than {runs[0]}")
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

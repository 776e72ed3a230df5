"""`bilateral compare`: runs compared under one attack on the same images, from their flags."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from bilateral.arguments import budget, call
from bilateral.attacks.table import attack_names
from bilateral.budgets import fraction_text
from bilateral.commands.printing import print_json
from bilateral.config import config_digest
from bilateral.errors import UserError
from bilateral.evaluation.comparison import budgets_of, compare, no_flags, strongest_shared
from bilateral.runs import RunFolder, no_run
from bilateral.tables import Format, narrow, paired_table, render


def command(words: Sequence[str]) -> None:
    """`bilateral compare RUN RUN...`."""
    call(compare_runs, words, "bilateral compare")


def compare_runs(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")],
    /,
    attack: str | None = None,
    epsilon: str | None = None,
    json: bool = False,
    format: Format = "text",
) -> None:
    """Compare runs by the flags that `bilateral evaluate` saved; nothing is attacked.

    Each run is tested against the first by McNemar's test on the images that all have; mean and
    standard deviation are over all runs (give the seeds of one recipe to see its spread).

    Args:
        runs: run folders.
        attack: the attack whose flags are compared; the strongest that all runs have by default.
        epsilon: the attack's budget; needed only if the first run has flags at several.
        json: print the comparison as JSON.
        format: how the table is printed.
    """
    if len(runs) < 2:
        raise UserError("compare needs RUN...: two or more run folders")
    for run in runs:
        if not (Path(run) / "attacks").is_dir() and not (Path(run) / "config.json").is_file():
            raise no_run(Path(run))
    whole = [Path(run).resolve() for run in runs]
    if again := [run for place, run in enumerate(runs) if whole[place] in whole[:place]]:
        raise UserError(f"{again[0]} is named twice: a run does not differ from itself")
    size = budget("--epsilon", epsilon)
    text = fraction_text(size) if size else None
    if attack is None and (attack := strongest_shared(runs, text)) and not json:
        taken = f"{attack} is the strongest attack with flags in all runs (--attack for another)"
        print(taken, file=sys.stderr)
    if attack is None:  # they share none: the error below names one that a run lacks
        attack = next(filter(None, (strongest_shared([run], text) for run in runs)), "pgd20")
    known = budgets_of(RunFolder(Path(runs[0])), attack)
    if size is None and not known:
        attack_names(attack)  # an unknown name is rejected, not reported as missing flags
        raise no_flags(runs, runs[0], attack)
    if size is None and len(known) > 1:
        raise UserError(f"{runs[0]} has {attack} at {', '.join(known)}: give --epsilon")
    result = compare(runs, attack, text or known[0])
    if json:
        print_json(result.model_dump(mode="json"))
        return
    spread = f" +- {100 * result.spread:.1f}" if result.spread is not None else ""
    table = paired_table(result)
    if format != "text":
        print(render(table, format))
        return
    names, table = narrow(table)
    print(f"{result.attack} at {result.epsilon_text}, {result.images} images in common")
    print("\n".join([*names, render(table)]))
    if _one_recipe(runs):
        print(f"mean {100 * result.mean_accuracy:.1f}{spread} over {len(result.runs)} runs")


def _one_recipe(runs: Sequence[str]) -> bool:
    """Whether runs differ only in their seed, so that their mean is meaningful."""
    try:
        found = {config_digest(RunFolder(Path(run)).read_run().with_fields(seed=0)) for run in runs}
    except UserError:  # evaluations of a user's own model have no configuration
        return False
    return len(found) == 1

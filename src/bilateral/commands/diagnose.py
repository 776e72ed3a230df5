"""`bilateral diagnose`: gradient magnitude, masking checks, curves, and a verdict."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from bilateral.arguments import budget, parse
from bilateral.commands.printing import print_json
from bilateral.commands.targets import guarded, other_budget, print_warning, said_of
from bilateral.errors import UserError
from bilateral.evaluation.diagnosis import FEW, Diagnosis, Effort
from bilateral.reading import read_record
from bilateral.runs import RunFolder
from bilateral.storage import write_json, writing_to
from bilateral.tables import Format, Table, percent, render

SAYS = {
    "holds": "no check found anything against this figure; whether it is high is another question",
    "suspect": "the figure is doubtful; --json says what each check means",
    "masked": "the figure cannot be trusted; --json says what each check means",
}


@dataclass(frozen=True)
class Options:
    """Try to discredit a model's robust accuracy; writes diagnostics.json and curves.json.

    The verdict is holds, suspect or masked, with its reasons.
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """as for `bilateral evaluate`"""
    sources: tuple[str, ...] = ()
    """run folders or file.py:function; adversarial images made on these models are tried too"""
    images: int | None = None
    """size of a seeded, class-balanced subset of the test images; 200, or all if there are fewer"""
    epsilon: str | None = None
    """L-inf budget; 8/255 by default, 40/255 on the digits, the run's own on a folder"""
    data: str | None = None
    """a data set's name or folder:PATH; the run's own by default"""
    image_size: int | None = None
    """resize and crop the pictures of folder:PATH to this"""
    out: str | None = None
    """where results go; by default the run folder, its on/<data>/ for data that are not its own, or
    evaluations/<name>/ for other targets"""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the GPU if there is one"""
    quiet: bool = False
    """no progress"""
    json: bool = False
    """print diagnostics.json"""
    format: Format = "text"
    """how the table is printed"""
    effort: Effort = field(default_factory=Effort)
    """how hard the checks try"""


def command(words: Sequence[str]) -> None:
    """`bilateral diagnose TARGET`."""
    options = parse(Options, words, "bilateral diagnose")
    result = diagnose_target(options)
    if options.json:
        print_json(result.model_dump(mode="json", by_alias=True))
        return
    print(render(readings_table(result), options.format))
    few = result.verdict == "holds" and result.images < FEW
    doubt = f", but {result.images} images are too few to clear it" if few else ""
    under = "pgd" if result.of_pgd_alone else "apgd"
    left = f"{percent(result.accuracies[under])} % under {under} at {result.epsilon_text}"
    print(f"\nverdict on {left}: {result.verdict}{doubt}")
    if result.of_pgd_alone:
        stands = percent(result.accuracies["apgd"])
        print(f"  it is too high; no check discredits the {stands} % under apgd")
    else:
        print(f"  {SAYS[result.verdict]}")
    for reason in result.reasons:
        print(f"  {reason}")


def diagnose_target(options: Options) -> Diagnosis:
    """Diagnose a target; the result is also written to its folder."""
    epsilon = budget("--epsilon", options.epsilon)
    from rich.console import Console

    from bilateral.evaluation.campaign import Campaign
    from bilateral.evaluation.diagnostics import diagnose
    from bilateral.evaluation.robustness import check_inputs
    from bilateral.evaluation.target import find_target
    from bilateral.runtime import choose_device, limit_threads

    console = Console(stderr=True, quiet=options.quiet, highlight=False, soft_wrap=True)
    place = choose_device(options.device)
    found = find_target(options.target, options.data, options.image_size, options.out, place)
    limit_threads(place, found.split.image_values)
    data = options.data or found.data
    models = [
        find_target(source, data, options.image_size, None, place).model
        for source in options.sources
    ]
    images = min(200, len(found.split.labels)) if options.images is None else options.images
    campaign = Campaign(found, epsilon or found.epsilon, images, place)
    numbers = campaign.chosen()
    for source, model in zip(options.sources, models, strict=True):
        with said_of(source):
            check_inputs(model, campaign.images_of(numbers[:1]), campaign.labels)
    warnings = [] if epsilon else other_budget(options.target, campaign.epsilon)
    warnings += guarded(found, campaign.epsilon, place, force=True)

    def shown(stage: str, done: int, total: int) -> None:
        if not done:  # not before: a target that is refused needs no warnings
            for message in warnings:
                print_warning(message)
        console.print(f"{done}/{total} {stage}")

    with writing_to(found.folder.path):
        result = diagnose(
            found.model,
            campaign.images_of(numbers),
            campaign.labels[numbers],
            campaign.epsilon,
            sources=models,
            effort=options.effort,
            progress=shown,
        )
        result.config_digest, result.code_digest = found.config_digest, found.code_digest
        result.data, result.data_digest = found.data, campaign.common["data_digest"]
        if larger := _larger(found.folder, result):
            print_warning(
                f"not stored: {found.folder.diagnostics} has a diagnosis on {larger.images} images "
                f"({larger.verdict}); remove it to store one on {result.images}"
            )
        else:
            write(found.folder, result)
    return result


def _larger(folder: RunFolder, result: Diagnosis) -> Diagnosis | None:
    """The stored diagnosis of the same model, data and budget if it is on more images."""
    with suppress(UserError, OSError):  # one that is missing or damaged is replaced
        stored = read_record(folder.diagnostics, Diagnosis)
        same = ("weights_digest", "code_digest", "data_digest", "epsilon_text")
        alike = all(getattr(stored, name) == getattr(result, name) for name in same)
        return stored if alike and stored.images > result.images else None
    return None


def write(folder: RunFolder, result: Diagnosis) -> None:
    """`diagnostics.json` and `curves.json` into a folder."""
    write_json(folder.diagnostics, result.model_dump(mode="json", by_alias=True))
    write_json(folder.curves, {"schema": 1, **result.curves.model_dump(mode="json")})


def readings_table(result: Diagnosis) -> Table:
    """Every check: reading, limit, and whether it was raised."""
    from bilateral.evaluation.checks import CHECKS

    head = ["check", "reading", "raised if", "raised"]
    return head, [
        [
            reading.name,
            "not run" if reading.value is None else f"{reading.value:.4g}",
            f"{'below' if CHECKS[reading.name].below else 'above'} {reading.limit:.4g}",
            reading.severity if reading.raised else "unsure: more images" if reading.unsure else "",
        ]
        for reading in result.readings
    ]

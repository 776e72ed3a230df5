"""`bilateral evaluate`: attack a trained model and record the accuracy that is left."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from bilateral.arguments import budget, parse
from bilateral.attacks.table import attack_names
from bilateral.budgets import fraction_text
from bilateral.commands.printing import is_first_process, print_json
from bilateral.commands.targets import guarded, other_budget, print_warning
from bilateral.errors import UserError
from bilateral.evaluation.comparison import STRONGEST
from bilateral.models.external import load_function
from bilateral.reading import read_record
from bilateral.results import AttackFile, Evaluation
from bilateral.runs import RunFolder
from bilateral.tables import Format, evaluation_table, percent, render

if TYPE_CHECKING:
    from bilateral.evaluation.target import Target


@dataclass(frozen=True)
class Options:
    """Attack a trained model and record accuracy, flags and cost in its folder.

    Resumes where it was interrupted; what was measured before is not measured again.
    """

    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """a run folder, or file.py:function / package.module:function that returns a model taking
    images in [0, 1] and returning logits (--data then names the data set)"""
    attacks: str = "fgsm,pgd20,pgd20-cw"
    """comma-separated names from `bilateral list attacks`, or file.py:function for your own"""
    images: int | None = None
    """size of a seeded, class-balanced subset of the test images; all by default"""
    epsilon: str | None = None
    """L-inf budget; 8/255 by default, 40/255 on the digits, the run's own on a folder"""
    batch_size: int | None = None
    """images per batch"""
    data: str | None = None
    """a data set's name or folder:PATH; the run's own by default"""
    image_size: int | None = None
    """resize and crop the pictures of folder:PATH to this"""
    out: str | None = None
    """where results go; by default the run folder, its on/<data>/ for data that are not its own, or
    evaluations/<name>/ for other targets"""
    save_adversarial: bool = False
    """keep all adversarial images in <out>/adversarial/, for `bilateral verify`"""
    search: Literal["auto", "float32", "bfloat16"] = "auto"
    """precision of the search; auto is bfloat16 on a GPU. Results are always checked in float32"""
    compile: bool = False
    """search on a compiled copy of the model: pays off in long evaluations"""
    force: bool = False
    """evaluate the model even if a guard refuses it"""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the GPU if there is one"""
    quiet: bool = False
    """no progress"""
    json: bool = False
    """print this evaluation's entry as JSON"""
    format: Format = "text"
    """how the table is printed"""


def command(words: Sequence[str]) -> None:
    """`bilateral evaluate TARGET`."""
    options = parse(Options, words, "bilateral evaluate")
    entry = evaluate_run(options)
    if not is_first_process():
        return
    if options.json:
        print_json(entry.model_dump(mode="json"))
    else:
        if options.format == "text":
            print(f"{options.target} on {entry.data}: {entry.images:,} images")
        print(render(evaluation_table(entry), options.format))
        if options.format == "text" and not entry.attacks.keys() & set(STRONGEST):
            print(
                "these are upper bounds: AutoAttack, which was not run, can leave far less "
                "(--attacks apgd is its quick half)"
            )


def evaluate_run(options: Options) -> Evaluation:
    """Evaluate a target and return the entry of this call."""
    names = attack_names(options.attacks)
    epsilon = budget("--epsilon", options.epsilon)
    for own in (name for name in names if ":" in name):
        load_function(own)  # a missing function is rejected before other attacks run for hours
    if options.batch_size is not None and options.batch_size < 1:
        raise UserError(f"--batch-size {options.batch_size}: must be at least one image")
    from bilateral.data.subsets import chosen_images
    from bilateral.evaluation.attack_files import evaluations
    from bilateral.evaluation.campaign import evaluate_target
    from bilateral.evaluation.progress import EvaluationProgress
    from bilateral.evaluation.target import find_target
    from bilateral.processes import joined
    from bilateral.runtime import choose_device, limit_threads

    place = choose_device(options.device)
    found = find_target(options.target, options.data, options.image_size, options.out, place)
    limit_threads(place, found.split.image_values)
    chosen_images(found.split, options.images, found.data)  # refused before anything is printed
    size = epsilon or found.epsilon
    trained = RunFolder(Path(options.target))
    events = [f"training: {event}" for event in trained.guard_events()]
    if epsilon is None:
        events += other_budget(options.target, size)
    warnings = guarded(found, size, place, options.force)
    before = evaluations(found.folder)
    count = options.images or len(found.split.labels)
    events += replaced(found, names, fraction_text(size), count, before.entries)
    for message in [*events, *warnings]:
        if is_first_process():
            print_warning(message)
    quiet = options.quiet or not is_first_process()
    if not quiet and found.folder.path != trained.path:
        print(f"results go to {found.folder.path}", file=sys.stderr)
    with joined(place) as processes, EvaluationProgress(quiet) as progress:
        result = evaluate_target(
            found,
            names,
            size,
            options.images,
            place,
            options.batch_size,
            progress.show,
            options.save_adversarial,
            options.search,
            options.compile,
            processes,
            warnings,
        )
    for message in result.warnings:
        if is_first_process() and message not in warnings:
            print_warning(message)
    return result


def replaced(
    target: "Target",
    attacks: Sequence[str],
    epsilon: str,
    images: int,
    before: Sequence[Evaluation],
) -> list[str]:
    """Warnings about results of another model or of other images that will be replaced."""
    from bilateral.data.subsets import data_digest
    from bilateral.evaluation.attack_files import measured
    from bilateral.weights import weights_digest

    now = (weights_digest(target.model), target.code_digest, data_digest(target.split))
    said = [
        "this replaces an evaluation of other weights, code or images "
        f"({percent(old.worst_case_accuracy)} % worst case)"
        for old in before
        if (old.epsilon_text, old.images, old.data) == (epsilon, images, target.data)
        and measured(old) != now
    ]
    for path in (target.folder.attack(name, epsilon) for name in attacks):
        with suppress(UserError):  # a damaged file is refused when it is needed
            if path.exists() and measured(read_record(path, AttackFile)) != now:
                said.append(
                    f"{path} is of other weights, code or images: it is set aside, and used again "
                    "when those are evaluated again"
                )
    return said

"""`bilateral verify`: re-check kept adversarial images against a model, in float32."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from bilateral.arguments import parse
from bilateral.commands.printing import print_json
from bilateral.commands.targets import guarded, print_warning
from bilateral.errors import UserError
from bilateral.runs import RunFolder
from bilateral.tables import Format, Table, percent, render

if TYPE_CHECKING:
    from bilateral.evaluation.verification import Verification

_SHOWN = 20


@dataclass(frozen=True)
class Options:
    """Re-check kept adversarial images: in the ball, in [0, 1], finite, fooled or not.

    The file is one that `bilateral evaluate --save-adversarial` wrote. Whether the claim holds
    is part of the result: the exit code is 0 whenever the check could be run.
    """

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """<run>/adversarial/<attack>@<epsilon>.npz"""
    target: str | None = None
    """the model, as for `bilateral evaluate`; the run two folders up by default"""
    data: str | None = None
    """a data set's name or folder:PATH; the file's own by default"""
    image_size: int | None = None
    """resize and crop the pictures of folder:PATH to this; the file's own size by default"""
    batch_size: int = 250
    """images per batch"""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the GPU if there is one"""
    quiet: bool = False
    """say nothing on standard error"""
    json: bool = False
    """print the findings as JSON"""
    format: Format = "text"
    """how the table is printed"""


def command(words: Sequence[str]) -> None:
    """`bilateral verify FILE`."""
    options = parse(Options, words, "bilateral verify")
    found = verify_file(options)
    if options.json:
        print_json(found.model_dump(mode="json"))
        return
    print(render(_table(found), options.format))
    for line in _reports(found) if options.format == "text" else ():
        print(line)


def verify_file(options: Options) -> "Verification":
    """Check a file of adversarial images and return what was found."""
    if options.batch_size < 1:
        raise UserError(f"--batch-size {options.batch_size}: must be at least one image")
    if not Path(options.file).name:
        raise UserError("verify needs FILE: <run>/adversarial/<attack>@<epsilon>.npz")
    from bilateral.evaluation.target import find_target
    from bilateral.evaluation.verification import kept_images, verify_images
    from bilateral.runtime import choose_device, limit_threads

    place = choose_device(options.device)
    stored, kept = kept_images(Path(options.file))
    folder = RunFolder(stored.path.resolve().parent.parent).trained
    if options.target is None and not folder.config.is_file():
        raise UserError(
            f"{options.file} is not in a run folder's adversarial/: name its model with --target"
        )
    data, image_size = options.data or kept.data, options.image_size
    if image_size is None and data.startswith("folder:"):
        image_size = next(iter(stored.images.values())).shape[-1]
    found = find_target(options.target or str(folder.path), data, image_size, None, place)
    limit_threads(place, found.split.image_values)
    result = verify_images(stored, kept, found, place, options.batch_size)
    for message in () if options.quiet else guarded(found, kept.epsilon, place, force=True):
        print_warning(message)
    return result


def _table(found: "Verification") -> Table:
    claimed = "" if found.claimed_accuracy is None else percent(found.claimed_accuracy)
    more = found.claimed_images > found.images
    of_all = f" of the {found.claimed_images} that have flags" if more else ""
    head = [f"{found.attack} at {found.epsilon_text}", "found"]
    rows = [
        ["images", f"{found.images}{of_all}"],
        ["in the ball", str(found.in_ball)],
        ["in [0, 1]", str(found.in_range)],
        ["finite", str(found.finite)],
        ["fooled", str(found.fooled)],
        ["robust accuracy confirmed (%)", percent(found.robust_accuracy)],
        ["robust accuracy claimed (%)", claimed],
        ["claim holds", {True: "yes", False: "no", None: "nothing is claimed"}[found.claim_holds]],
    ]
    return head, rows


def _reports(found: "Verification") -> list[str]:
    """A line for each kind of fault, with the numbers of the images."""
    kinds = {
        "outside the ball": found.outside_ball,
        "outside [0, 1]": found.outside_range,
        "not finite": found.not_finite,
        "claimed broken but not fooled": found.not_fooled,
        "claimed robust but fooled": found.claimed_robust,
    }
    return [
        f"{what}: image {', '.join(map(str, numbers[:_SHOWN]))}"
        + (f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else "")
        for what, numbers in kinds.items()
        if numbers
    ]

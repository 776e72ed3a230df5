"""`bilateral transfer`: adversarial images made on some models, shown to others."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bilateral.arguments import budget, parse
from bilateral.attacks.table import attack_names
from bilateral.commands.printing import print_json
from bilateral.commands.targets import print_warning
from bilateral.errors import UserError
from bilateral.tables import Format, Table, lettered, percent, render

if TYPE_CHECKING:
    from bilateral.evaluation.transfer import Transfer


@dataclass(frozen=True)
class Options:
    """Black-box transfer: the accuracy of targets on images made on sources, as a matrix.

    Every image is attacked, and gradient attacks hand over their last iterate, not the first that
    fools the source. Writes transfer.json, and flags beside it, from which an interrupted call
    resumes.
    """

    sources: list[str]
    """models on which images are made, given as for `bilateral evaluate`"""
    targets: list[str]
    """models to which these images are shown"""
    attacks: str = "fgsm,pgd20"
    """comma-separated names from `bilateral list attacks`"""
    images: int | None = None
    """size of a seeded, class-balanced subset of the test images; all by default"""
    epsilon: str | None = None
    """L-inf budget; 8/255 by default, 40/255 on the digits"""
    batch_size: int = 250
    """images per batch"""
    data: str | None = None
    """a data set's name or folder:PATH; the runs' own by default"""
    image_size: int | None = None
    """resize and crop the pictures of folder:PATH to this"""
    out: str = "evaluations/transfer"
    """the folder of transfer.json"""
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the GPU if there is one"""
    force: bool = False
    """continue even if a guard refuses a model"""
    quiet: bool = False
    """no progress"""
    json: bool = False
    """print the matrix as JSON"""
    format: Format = "text"
    """how the table is printed"""


def command(words: Sequence[str]) -> None:
    """`bilateral transfer --sources A B --targets C D`."""
    options = parse(Options, words, "bilateral transfer")
    found = transfer_runs(options)
    if options.json:
        print_json(found.model_dump(mode="json", by_alias=True))
    elif options.format == "text":
        print(_text(found))
    else:
        print(render(_table(found), options.format))


def transfer_runs(options: Options) -> "Transfer":
    """The transfer matrix between runs or users' own models, also in `<out>/transfer.json`."""
    sources, targets = options.sources, options.targets
    names = attack_names(options.attacks)
    epsilon = budget("--epsilon", options.epsilon)
    if not sources or not targets:
        raise UserError("transfer needs --sources and --targets, at least one model each")
    if options.batch_size < 1:
        raise UserError(f"--batch-size {options.batch_size}: must be at least one image")
    from rich.console import Console

    from bilateral.evaluation.target import find_target
    from bilateral.evaluation.transfer import first_names, transfer_between
    from bilateral.runtime import choose_device, limit_threads
    from bilateral.storage import write_json, writing_to

    place = choose_device(options.device)
    spelled: dict[str, str] = {}
    named = [spelled.setdefault(_identity(name), name) for name in [*sources, *targets]]
    models = {
        name: find_target(name, options.data, options.image_size, None, place)
        for name in dict.fromkeys(named)
    }
    first_of = first_names(models)
    for name, other in first_of.items():
        if name != other:
            print_warning(f"{name} and {other} have the same weights and code: shown as {other}")
    named = [first_of[name] for name in named]
    console = Console(file=sys.stderr, quiet=options.quiet, highlight=False, soft_wrap=True)

    def shown(what: str, done: int, total: int) -> None:
        if done == total:
            console.print(f"{what}: {total} images")

    first = models[named[0]]
    limit_threads(place, first.split.image_values)
    with writing_to(Path(options.out)):
        found = transfer_between(
            {name: models[name] for name in named[: len(sources)]},
            {name: models[name] for name in named[len(sources) :]},
            names,
            epsilon or first.epsilon,
            options.images,
            place,
            batch_size=options.batch_size,
            folder=Path(options.out),
            shown=shown,
            warn=print_warning,
            force=options.force,
        )
        path = Path(options.out) / "transfer.json"
        replaced = _other_models(path, found)
        write_json(path, found.model_dump(mode="json", by_alias=True))
    if replaced:
        print_warning(
            f"{path} was of other models ({replaced}) and is replaced: another --out keeps both"
        )
    if not options.json:
        console.print(f"written to {path}")
    return found


def _other_models(path: Path, found: "Transfer") -> str:
    """The models of the stored matrix, if they are not the same; empty if it is damaged."""
    from bilateral.reading import read_record

    with suppress(UserError, OSError):
        before = read_record(path, type(found)).weights_digests
        if set(before.values()) != set(found.weights_digests.values()):
            return ", ".join(before)
    return ""


def _identity(name: str) -> str:
    """The same text for every spelling of a run folder's path."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _text(found: "Transfer") -> str:
    """The matrix for a terminal: models as letters, with a legend above it."""
    sources = [source for matrix in found.attacks.values() for source in matrix]
    names = lettered([*found.clean, *sources])  # in reading order: columns, then rows
    title = f"at {found.epsilon_text} on {found.data}: {found.images:,} images"
    parts = [*(f"{letter}  {name}" for name, letter in names.items()), "", title]
    parts.append(render(_table(found, names, "*", " ")))
    if found.white_box:
        parts.append("* white-box: made on the model itself")
    return "\n".join(parts)


def _table(
    found: "Transfer",
    names: Mapping[str, str] | None = None,
    white_box: str = " (white-box)",
    black_box: str = "",
) -> Table:
    """A row per attack and source, a column per target; `names` are short names of models."""
    called = names or {}
    head = ["accuracy (%)", *(called.get(name, name) + black_box for name in found.clean)]
    rows = [["clean", *(percent(share) + black_box for share in found.clean.values())]]
    for attack, matrix in found.attacks.items():
        for source, row in matrix.items():
            cells = [
                percent(share) + (white_box if target == source else black_box)
                for target, share in row.items()
            ]
            at = "" if called else f" at {found.epsilon_text}"
            rows.append([f"{attack}{at} from {called.get(source, source)}", *cells])
    return head, rows

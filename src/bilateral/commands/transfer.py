"""`bilateral transfer`: images made on some models, shown to others."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bilateral.arguments import budget, call
from bilateral.attacks.table import attack_names
from bilateral.commands.evaluate import print_warning
from bilateral.commands.printing import print_json
from bilateral.errors import UserError
from bilateral.tables import Format, Table, percent, render

if TYPE_CHECKING:
    from bilateral.evaluation.transfer import Transfer


def command(words: Sequence[str]) -> None:
    """`bilateral transfer --sources A B --targets C D`."""

    def transfer(
        sources: list[str],
        targets: list[str],
        attacks: str = "fgsm,pgd20",
        images: int | None = None,
        epsilon: str | None = None,
        batch_size: int = 250,
        data: str | None = None,
        image_size: int | None = None,
        out: str = "evaluations/transfer",
        device: str | None = None,
        force: bool = False,
        quiet: bool = False,
        json: bool = False,
        format: Format = "text",
    ) -> None:
        """Black-box transfer: the accuracy of targets on images made on sources, as a matrix.

        Every image is attacked, and attacks by gradients hand over their last iterate, not the
        first that fools the source. Writes transfer.json.

        Args:
            sources: models that images are made on, as for `bilateral evaluate`.
            targets: models that they are shown to.
            attacks: comma-separated names from `bilateral list attacks`.
            images: a seeded, class-balanced subset of so many test images; all without it.
            epsilon: L-inf budget; 8/255 by default, 40/255 on the digits.
            batch_size: images attacked together.
            data: a data set's name or folder:PATH; the runs' own by default.
            image_size: resize and crop the pictures of folder:PATH to this.
            out: the folder of transfer.json.
            device: the GPU if there is one.
            force: go on where a guard refuses a model.
            quiet: no progress.
            json: print the matrix as JSON.
            format: how the table is printed.
        """
        size = budget("--epsilon", epsilon)
        found = transfer_runs(
            sources,
            targets,
            attack_names(attacks),
            images,
            size,
            batch_size,
            data,
            image_size,
            out,
            device,
            force,
            quiet,
        )
        if json:
            print_json(found.model_dump(mode="json", by_alias=True))
        else:
            print(render(_table(found), format))

    call(transfer, words, "bilateral transfer")


def transfer_runs(
    sources: Sequence[str],
    targets: Sequence[str],
    attacks: list[str],
    images: int | None = None,
    epsilon: float | None = None,
    batch_size: int = 250,
    data: str | None = None,
    image_size: int | None = None,
    out: str = "evaluations/transfer",
    device: str | None = None,
    force: bool = False,
    quiet: bool = False,
) -> "Transfer":
    """The transfer matrix between runs and models of one's own, also in `<out>/transfer.json`."""
    if not sources or not targets:
        raise UserError("transfer needs --sources and --targets, at least one model each")
    if batch_size < 1:
        raise UserError(f"--batch-size {batch_size}: at least one image")
    from rich.console import Console

    from bilateral.evaluation.target import find_target
    from bilateral.evaluation.transfer import transfer_between
    from bilateral.runs import write_json
    from bilateral.runtime import choose_device, limit_threads

    place = choose_device(device)
    spelled: dict[str, str] = {}
    named = [spelled.setdefault(_identity(name), name) for name in [*sources, *targets]]
    models = {
        name: find_target(name, data, image_size, None, place) for name in dict.fromkeys(named)
    }
    console = Console(file=sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)

    def shown(what: str, done: int, total: int) -> None:
        if done == total:
            console.print(f"{what}: {total} images")

    first = models[named[0]]
    limit_threads(place, first.split.pixels[0].size)
    found = transfer_between(
        {name: models[name] for name in named[: len(sources)]},
        {name: models[name] for name in named[len(sources) :]},
        attacks,
        epsilon or first.epsilon,
        images,
        place,
        batch_size=batch_size,
        shown=shown,
        warn=print_warning,
        force=force,
    )
    write_json(Path(out) / "transfer.json", found.model_dump(mode="json", by_alias=True))
    return found


def _identity(name: str) -> str:
    """What two spellings of the same run folder have in common."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _table(found: "Transfer") -> Table:
    """A row for every attack and source, a column for every target."""
    head = ["accuracy (%)", *found.clean]
    rows = [["clean", *map(percent, found.clean.values())]]
    for attack, matrix in found.attacks.items():
        for source, row in matrix.items():
            cells = [
                percent(share) + (" (white-box)" if target == source else "")
                for target, share in row.items()
            ]
            rows.append([f"{attack} at {found.epsilon_text} from {source}", *cells])
    return head, rows

"""`bilateral bench`: throughput on this machine."""

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import tyro
from pydantic import Field

from bilateral.arguments import budget, call, parse
from bilateral.attacks.table import ENSEMBLES, attack_names
from bilateral.commands.printing import print_json
from bilateral.commands.targets import guarded, print_warning
from bilateral.commands.train import default_run, with_consequences
from bilateral.config import Run, Settings
from bilateral.errors import UserError, unknown
from bilateral.machine import Machine
from bilateral.models import model_entry
from bilateral.paper.recipes import RECIPES
from bilateral.runs import changed_fields, recipe_with
from bilateral.tables import Format, bench_table, bench_train_table, render

COMPARABLE = (*ENSEMBLES, "cw-l2", "cw-l2-fine", "deepfool-l2")


def command(words: Sequence[str]) -> None:
    """`bilateral bench train RECIPE` and `bilateral bench evaluate TARGET`."""
    kinds = ("train", "evaluate")
    if not words or words[0] in ("-h", "--help"):
        print(
            "usage: bilateral bench train RECIPE\n       bilateral bench evaluate TARGET\n\n"
            "Throughput on this machine: of training against the machine's own limit, and of "
            "attacks against other libraries."
        )
        return
    if words[0] not in kinds:
        raise unknown("benchmark", words[0], kinds)
    if words[0] == "train":
        train(words[1:])
    else:
        call(evaluate, words[1:], "bilateral bench evaluate")


def train(words: Sequence[str]) -> None:
    """`bilateral bench train RECIPE`: any field of the recipe can be overridden."""
    recipe, default, _ = default_run(words, "bench train")

    class Options(Settings):
        """Time a recipe's training steps with all speed features on, and with some switched off.

        A named data set is replaced by noise of its shape, which costs the same; a folder:PATH is
        read as in training. Nothing is written. The options below default to the recipe's.
        """

        run: Annotated[Run, tyro.conf.arg(name="")]
        machine: Machine = Machine()
        without: tuple[Literal["compile", "graphs", "channels-last", "fused", "bfloat16"], ...] = (
            Field((), description="also measure with each of these switched off")
        )
        seconds: Annotated[float, Field(gt=0)] = Field(
            10.0, description="how long each measurement runs after its warm-up"
        )
        device: str | None = Field(
            None, description="cpu, cuda, cuda:1, ...; the GPU if there is one"
        )
        quiet: bool = Field(False, description="no progress")
        json_: Annotated[bool, tyro.conf.arg(name="json")] = Field(
            False, description="print everything as JSON"
        )
        format: Format = Field("text", description="how the table is printed")

    rest = words[1:] if recipe is not None else words
    prog = f"bilateral bench train {recipe or 'RECIPE'}"
    given = parse(Options, rest, prog, default=Options(run=default))
    run = with_consequences(given.run, default, rest)
    if ":" not in run.model:
        model_entry(run.model)  # an unknown name is rejected before anything is measured
    from rich.console import Console

    from bilateral.runtime import choose_device, limit_threads
    from bilateral.training.bench import bench_split, bench_train

    console = Console(stderr=True, quiet=given.quiet, highlight=False, soft_wrap=True)
    place = choose_device(given.device)
    split, images = bench_split(run)
    limit_threads(place, split.image_values)
    measured = bench_train(
        run, split, images, place, given.machine, given.without, given.seconds, console.print
    )
    fields = fields_of(run)
    if given.json_:
        print_json({"recipe": run.recipe, "fields": fields, **measured})
        return
    # In a format for other programs, standard output has the table alone.
    file = sys.stdout if given.format == "text" else sys.stderr
    print(recipe_with(run.recipe, fields), file=file)
    print(render(bench_train_table(measured), given.format))


def fields_of(run: Run) -> dict[str, Any]:
    """The fields in which a run differs from its recipe, or from the defaults if it has none."""
    usual = RECIPES[run.recipe].run if run.recipe in RECIPES else Run(recipe=run.recipe)
    return changed_fields(usual, run)


def evaluate(
    target: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")],
    /,
    attacks: str = "pgd20,apgd,autoattack",
    images: int | None = None,
    epsilon: str | None = None,
    batch_size: int | None = None,
    peer_batch_sizes: tuple[int, ...] = (250, 500, 1000),
    data: str | None = None,
    image_size: int | None = None,
    search: Literal["auto", "float32", "bfloat16"] = "auto",
    compile: bool = False,
    device: str | None = None,
    quiet: bool = False,
    json: bool = False,
    format: Format = "text",
) -> None:
    """Time attacks against pyautoattack's and foolbox's on the same model and images.

    Args:
        target: as for `bilateral evaluate`.
        attacks: pgdK, cw-l2, deepfool-l2 (against foolbox), apgd, autoattack (pyautoattack).
        images: size of a seeded, class-balanced subset of the test images; 1,000 by default, or
            all if there are fewer.
        epsilon: L-inf budget; 8/255 by default, 40/255 on the digits.
        batch_size: images per batch of our attacks.
        peer_batch_sizes: the peer is timed at each of these batch sizes; its fastest counts.
        data: a data set's name or folder:PATH; the run's own by default.
        image_size: resize and crop the pictures of folder:PATH to this.
        search: precision of the search; auto is bfloat16 on a GPU, float32 elsewhere.
        compile: search on a compiled copy of the model; its compilation is timed separately.
        device: cpu, cuda, cuda:1, ...; the GPU if there is one.
        quiet: no progress.
        json: print everything as JSON.
        format: how the table is printed.
    """
    names = attack_names(attacks)
    for name in names:
        if name not in COMPARABLE and not (name.startswith("pgd") and name[3:].isdigit()):
            raise UserError(
                f"--attacks {name}: no peer has it; bench times pgdK, {', '.join(COMPARABLE)}"
            )
    if not peer_batch_sizes:
        raise UserError("--peer-batch-sizes needs a value")
    ours = () if batch_size is None else (batch_size,)
    for option, sizes in (("--batch-size", ours), ("--peer-batch-sizes", peer_batch_sizes)):
        if min(sizes, default=1) < 1:
            raise UserError(f"{option} {min(sizes)}: must be at least one image")
    size = budget("--epsilon", epsilon)
    from rich.console import Console

    from bilateral.evaluation.bench import bench_evaluate
    from bilateral.evaluation.target import find_target
    from bilateral.runtime import choose_device, limit_threads

    console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
    place = choose_device(device)
    found = find_target(target, data, image_size, None, place)
    limit_threads(place, found.split.image_values)
    for message in guarded(found, size or found.epsilon, place, force=True):
        print_warning(message)
    result = bench_evaluate(
        found,
        names,
        size or found.epsilon,
        min(1000, len(found.split.labels)) if images is None else images,
        place,
        batch_size,
        peer_batch_sizes,
        search,
        compile,
        console.print,
    )
    if json:
        print_json(result)
    else:
        print(render(bench_table(result["attacks"]), format))

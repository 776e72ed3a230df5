"""The command `bilateral`: one function a command; each imports what it needs inside."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import bilateral
from bilateral.errors import UserError, unknown

if TYPE_CHECKING:
    from bilateral.config import Run

USAGE = """usage: bilateral COMMAND [arguments]     (bilateral COMMAND --help says more)

Train robust image classifiers by bilateral adversarial training, and measure them honestly.

commands:
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        width = max(map(len, COMMANDS))
        lines = [f"  {name:<{width}}  {summary}" for name, (summary, _) in COMMANDS.items()]
        print(USAGE + "\n".join(lines))
        return 0 if words else 2
    if words[0] == "--version":
        print(f"bilateral {bilateral.__version__}")
        return 0
    try:
        if words[0] not in COMMANDS:
            raise unknown("command", words[0], COMMANDS)
        COMMANDS[words[0]][1](words[1:])
    except UserError as error:
        print(f"bilateral: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bilateral: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe (head, say) has gone; nothing more can be printed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except BaseException as error:
        return _exit_code(error)
    return 0


def _exit_code(error: BaseException) -> int:
    """The code of an error that only exists once torch is imported; others go on."""
    name = type(error).__name__
    if name == "Interrupted":
        print(f"bilateral: {error}; the same command goes on from here", file=sys.stderr)
        return 128 + int(error.number)  # type: ignore[attr-defined]
    if name == "TrainingError":
        print(f"bilateral: {error}", file=sys.stderr)
        return 1
    raise error


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=1, allow_nan=False))


def train_command(words: Sequence[str]) -> None:
    """`bilateral train RECIPE`: the recipe decides the defaults of all other options."""
    import tyro

    from bilateral.arguments import parse, wants_help
    from bilateral.config import Run, Settings, run_from_json
    from bilateral.paper.recipes import recipe_named

    recipe = words[0] if words and not words[0].startswith("-") else None
    if recipe is None and not wants_help(words):
        raise UserError("train needs a recipe: `bilateral list recipes` shows them")
    if recipe is not None and recipe.endswith(".json"):
        path = Path(recipe)
        if not path.is_file():
            raise UserError(f"no configuration at {recipe}")
        default = run_from_json(path.read_bytes(), recipe)
    else:
        default = recipe_named(recipe or "cifar10-r-mc-la")

    class Options(Settings):
        """Train a recipe, or the run of a config.json, into <out>/<name>/seed<k>/.

        An interrupted run goes on by the same command. The options below default to the recipe's.
        """

        run: Annotated[Run, tyro.conf.arg(name="")]
        out: str = "runs"
        name: str | None = None
        device: str | None = None
        quiet: bool = False
        json_: Annotated[bool, tyro.conf.arg(name="json")] = False

    rest = words[1:] if recipe is not None else words
    prog = f"bilateral train {recipe or 'RECIPE'}"
    given = parse(Options, rest, prog, default=Options(run=default))
    name = given.name or _run_name(given.run, default)
    result = train_run(given.run, Path(given.out) / name, given.device, given.quiet)
    if given.json_:
        _print_json(result)
    else:
        said = "trained" if result["trained"] else "already finished: nothing was changed"
        print(f"{result['folder']}  {said}")


def _run_name(run: "Run", default: "Run") -> str:
    """The recipe's name, with the model's appended when another model is trained."""
    from bilateral.paper.recipes import RECIPES

    usual = RECIPES[run.recipe].run.model if run.recipe in RECIPES else default.model
    if run.model == usual:
        return run.recipe
    model = "".join(letter if letter.isalnum() else "-" for letter in run.model).strip("-")
    return f"{run.recipe}-{model}"


def train_run(run: "Run", out: Path, device: str | None, quiet: bool) -> dict[str, Any]:
    """Train into `<out>/seed<k>/` and say what is there now."""
    from bilateral.data.datasets import load
    from bilateral.runs import RunFolder
    from bilateral.runtime import choose_device, limit_threads
    from bilateral.training.progress import TrainingProgress
    from bilateral.training.trainer import train

    folder = RunFolder(out / f"seed{run.seed}")
    place = choose_device(device)
    split = load(run.data.name, "train", image_size=run.image_size, seed=run.seed)
    limit_threads(place, split.pixels[0].size)
    trained = train(run, folder, split, place, TrainingProgress(quiet))
    last = json.loads(folder.log.read_text().splitlines()[-1])
    return {"folder": str(folder.path), "trained": trained, "last_epoch": last}


def evaluate_command(words: Sequence[str]) -> None:
    """`bilateral evaluate TARGET`."""
    import tyro

    from bilateral.arguments import budget, call

    def evaluate(
        target: Annotated[str, tyro.conf.Positional],
        /,
        attacks: str = "fgsm,pgd20,pgd20-cw",
        images: int | None = None,
        epsilon: str | None = None,
        batch_size: int | None = None,
        data: str | None = None,
        image_size: int | None = None,
        out: str | None = None,
        device: str | None = None,
        quiet: bool = False,
        json: bool = False,
        format: Literal["text", "markdown", "csv", "latex"] = "text",
    ) -> None:
        """Attack a trained model and record accuracy, flags and cost in its folder.

        Goes on where it was interrupted; what was measured before is not measured again.

        Args:
            target: a run folder, or file.py:function / package.module:function that returns a
                model taking images in [0, 1] and returning logits (then --data says on what).
            attacks: comma-separated names from `bilateral list attacks`.
            images: a seeded, class-balanced subset of so many test images; all without it.
            epsilon: L-inf budget; 8/255 by default, 40/255 on the digits.
            batch_size: images attacked together.
            data: a data set's name or folder:PATH; the run's own by default.
            image_size: resize and crop the pictures of folder:PATH to this.
            out: where results go; the run folder, or evaluations/<name>/ for other targets.
            device: the GPU if there is one.
            quiet: no progress.
            json: print this evaluation's entry as JSON.
            format: how the table is printed.
        """
        size = budget("--epsilon", epsilon)
        entry = evaluate_run(
            target, attacks, images, size, batch_size, data, image_size, out, device, quiet
        )
        if json:
            _print_json(entry.model_dump(mode="json"))
        else:
            from bilateral.tables import evaluation_table, render

            print(render(evaluation_table(entry), format))

    call(evaluate, words, "bilateral evaluate")


def evaluate_run(
    target: str,
    attacks: str,
    images: int | None = None,
    epsilon: float | None = None,
    batch_size: int | None = None,
    data: str | None = None,
    image_size: int | None = None,
    out: str | None = None,
    device: str | None = None,
    quiet: bool = False,
) -> Any:
    """Evaluate a target and return the entry of this call."""
    from bilateral.attacks.table import attack_names

    names = attack_names(attacks)
    if batch_size is not None and batch_size < 1:
        raise UserError(f"--batch-size {batch_size}: at least one image")
    from bilateral.evaluation.campaign import evaluate_target
    from bilateral.evaluation.progress import EvaluationProgress
    from bilateral.evaluation.target import find_target
    from bilateral.runtime import choose_device, limit_threads

    place = choose_device(device)
    found = find_target(target, data, image_size, out, place)
    limit_threads(place, found.split.pixels[0].size)
    with EvaluationProgress(quiet) as progress:
        return evaluate_target(
            found, names, epsilon or found.epsilon, images, place, batch_size, progress.show
        )


def list_command(words: Sequence[str]) -> None:
    """`bilateral list KIND`: what there is, a line each."""
    from bilateral.arguments import call

    kind = words[0] if words and not words[0].startswith("-") else None
    kinds = ("recipes", "models", "datasets", "attacks")

    def list_(json: bool = False) -> bool:
        """What there is, a line each: recipes, models, datasets or attacks.

        Args:
            json: an array of objects with name and summary.
        """
        return json

    as_json = call(list_, words[1:] if kind else words, f"bilateral list {kind or 'KIND'}")
    if kind is None:
        raise UserError(f"list needs one of: {', '.join(kinds)}")
    if kind not in kinds:
        raise unknown("list", kind, kinds)
    rows = [{"name": name, "summary": summary} for name, summary in _listing(kind)]
    if as_json:
        _print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    print("\n".join(f"{row['name']:<{width}}  {row['summary']}" for row in rows))


def _listing(kind: str) -> list[tuple[str, str]]:
    if kind == "recipes":
        from bilateral.paper.recipes import RECIPES

        return [(name, recipe.summary) for name, recipe in RECIPES.items()]
    if kind == "models":
        from bilateral.models import MODELS

        return [(name, model.summary) for name, model in MODELS.items()]
    if kind == "datasets":
        from bilateral.data.datasets import DATASETS

        return [(name, entry.summary) for name, entry in DATASETS.items()]
    from bilateral.attacks.table import ATTACKS, ENSEMBLES, PATTERN, PATTERN_SUMMARY

    listed = [
        (name, attack.summary + ("; in the paper" if attack.in_paper else ""))
        for name, attack in ATTACKS.items()
    ]
    ensembles = [(name, ensemble.summary) for name, ensemble in ENSEMBLES.items()]
    return [*listed, (PATTERN, PATTERN_SUMMARY), *ensembles]


def data_command(words: Sequence[str]) -> None:
    """`bilateral data list / fetch NAME / check NAME`."""
    from bilateral.arguments import call
    from bilateral.data.actions import check_data, fetch_data, list_data

    actions: dict[str, Callable[..., Any]] = {
        "list": list_data,
        "fetch": fetch_data,
        "check": check_data,
    }
    if not words or words[0] in ("-h", "--help"):
        print(
            "usage: bilateral data list | fetch NAME [--source PATH] | check NAME\n\n"
            "Where data sets come from, and whether what is on disk is whole."
        )
        return
    if words[0] not in actions:
        raise unknown("data action", words[0], actions)
    call(actions[words[0]], words[1:], f"bilateral data {words[0]}")


def demo_command(words: Sequence[str]) -> None:
    """`bilateral demo`."""
    from bilateral.arguments import call

    def demo(
        out: str = "demo", device: str | None = None, quiet: bool = False, json: bool = False
    ) -> None:
        """Train R-MC-LA and an undefended twin on the digits, and attack both at 40/255.

        Args:
            out: where the two runs go.
            device: the GPU if there is one.
            quiet: no progress.
            json: print both evaluations as JSON.
        """
        from bilateral.paper.recipes import recipe_named

        entries = {}
        for name in ("digits-undefended", "digits-r-mc-la"):
            run = recipe_named(name)
            trained = train_run(run, Path(out) / name, device, quiet)
            entries[name] = evaluate_run(
                trained["folder"], "fgsm,pgd20,pgd20-cw", device=device, quiet=quiet
            )
        if json:
            _print_json({name: entry.model_dump(mode="json") for name, entry in entries.items()})
            return
        from bilateral.tables import comparison_table, render

        print(f"both runs are in {out}/; next: bilateral train cifar10-r-mc-la --help\n")
        print(render(comparison_table(entries), "text"))

    call(demo, words, "bilateral demo")


COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], None]]] = {
    "demo": ("train and attack two small models on the digits, in about a minute", demo_command),
    "train": ("train a recipe, on your own model and data if you like", train_command),
    "evaluate": ("attack a trained model", evaluate_command),
    "list": ("recipes, models, datasets, attacks", list_command),
    "data": ("list, fetch and check data sets", data_command),
}

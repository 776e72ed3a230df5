"""`bilateral train`: a recipe, or the run of a config.json, into a run folder."""

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from pydantic import Field

from bilateral.arguments import parse, wants_help
from bilateral.budgets import fraction_text, usual_budget
from bilateral.commands.printing import is_first_process, print_json
from bilateral.config import Run, Settings, run_from_json
from bilateral.errors import UserError
from bilateral.machine import Machine
from bilateral.paper import own_pictures
from bilateral.paper.recipes import RECIPES, recipe_named
from bilateral.reading import json_bytes
from bilateral.results import near_chance
from bilateral.runs import RunFolder, safe_name, weights_file
from bilateral.tables import percent

if TYPE_CHECKING:
    from bilateral.data.survey import Survey


def default_run(words: Sequence[str], command: str) -> tuple[str | None, Run, "Survey | None"]:
    """The recipe named by the first word, and its run or that of a config.json.

    The recipe `folder` surveys the folder that the other words name.
    """
    recipe = words[0] if words and words[0] and not words[0].startswith("-") else None
    if recipe is None and not wants_help(words):
        raise UserError(f"{command} needs a recipe as its first word; see `bilateral list recipes`")
    if recipe is None:
        return None, recipe_named("cifar10-r-mc-la"), None
    if recipe == own_pictures.NAME and not wants_help(words):
        given, _ = parse(
            Run, words[1:], recipe, default=own_pictures.FOLDER, return_unknown_args=True
        )
        return recipe, *own_pictures.for_folder(given)
    path = Path(recipe)
    if (path / "config.json").is_file():
        raise UserError(f"{recipe} is a run folder: to repeat its run, give {path / 'config.json'}")
    if not recipe.endswith(".json"):
        return recipe, recipe_named(recipe), None
    if not path.is_file():
        raise UserError(f"no configuration at {recipe}")
    return recipe, run_from_json(json_bytes(path), recipe), None


def command(words: Sequence[str]) -> None:
    """`bilateral train RECIPE`: the recipe decides the defaults of all other options."""
    recipe, default, survey = default_run(words, "train")

    class Options(Settings):
        """Train a recipe, or the run of a config.json, into <out>/<name>/seed<k>/.

        Repeat the same command to resume a run. The options below default to the recipe's. The
        recipe `folder` chooses network, image size, budget, batches and epochs from the pictures.
        """

        run: Annotated[Run, tyro.conf.arg(name="")]
        machine: Machine = Machine()
        out: str = Field("runs", description="where runs go")
        name: str | None = Field(
            None,
            description="the run's folder in --out; by default the name of the recipe or of the "
            "repeated run folder, plus that of the model if it is another",
        )
        device: str | None = Field(
            None, description="cpu, cuda, cuda:1, ...; the GPU if there is one"
        )
        quiet: bool = Field(False, description="no progress")
        json_: Annotated[bool, tyro.conf.arg(name="json")] = Field(
            False, description="print the folder and the last epoch as JSON"
        )

    rest = words[1:] if recipe is not None else words
    prog = f"bilateral train {recipe or 'RECIPE'}"
    given = parse(Options, rest, prog, default=Options(run=default))
    run = with_consequences(given.run, default, rest)
    name = _run_name(run, default, recipe or "") if given.name is None else given.name
    if name in ("", ".") or ".." in Path(name).parts or Path(name).is_absolute():
        raise UserError(f"--name '{name}': must be the name of a folder inside --out")
    if survey and not given.quiet and is_first_process():
        print(f"folder: {own_pictures.described(run, survey)}", file=sys.stderr, flush=True)
    notes = [] if survey else _kept_budget(run, default, rest)
    result = train_run(
        absolute(run), Path(given.out) / name, given.device, given.quiet, given.machine, notes
    )
    if not is_first_process():  # under torchrun only the first process prints
        return
    if given.json_:
        print_json(result)
    else:
        said = "trained" if result["trained"] else "already finished: nothing was changed"
        print(f"{result['folder']}  {said}")
        if result["trained"] and not given.quiet:
            next_ = shlex.join(["bilateral", "evaluate", result["folder"]])
            print(f"to measure its robustness: {next_}", file=sys.stderr)


def with_consequences(run: Run, default: Run, rest: Sequence[str]) -> Run:
    """The run with the fields that depend on the given ones, unless the user set them too.

    Another budget scales the step with it: a step of twice the budget would end at the same
    corner from any start. Other data get the ratio classes - 1: the recipe's is the paper's for
    its own data set. The ratio of a recipe for a folder stays: any folder may hold that data set.
    """
    given = {word.partition("=")[0] for word in rest}
    adversary, labels = run.adversary, run.labels
    scaled = adversary.epsilon != default.adversary.epsilon
    if scaled and "--adversary.step-size" not in given:
        step = adversary.step_size * adversary.epsilon / default.adversary.epsilon
        adversary = adversary.with_fields(step_size=min(step, 1.0))
    named = [name.partition(":")[0] for name in (run.data.name, default.data.name)]
    other_data = run.data.name != default.data.name and named != ["folder", "folder"]
    if other_data and "--labels.ratio" not in given:
        labels = labels.with_fields(ratio=None)
    if "--weights" in given:  # the digest in a config.json is of its own run's initial weights
        run = run.with_fields(weights_digest=None)
    return run.with_fields(adversary=adversary, labels=labels)


def _kept_budget(run: Run, default: Run, rest: Sequence[str]) -> list[str]:
    """A note if the recipe's budget is kept on data for which another one is usual."""
    usual = usual_budget(run.data.name)
    asked = any(word.startswith("--adversary.epsilon") for word in rest)
    if asked or run.method == "undefended" or usual == usual_budget(default.data.name):
        return []
    said = f"the budget stays the recipe's, {fraction_text(run.adversary.epsilon)}: "
    if run.data.name.startswith("folder:"):
        return [f"{said}--adversary.epsilon sets another"]
    return [f"{said}--adversary.epsilon {fraction_text(usual)} is usual for {run.data.name}"]


def absolute(run: Run) -> Run:
    """The run with absolute paths to the user's own files: a model's code and weights."""
    file, colon, function = run.model.rpartition(":")
    if colon and Path(file).is_file():
        run = run.with_fields(model=f"{Path(file).resolve()}:{function}")
    if run.weights is not None:
        run = run.with_fields(weights=str(weights_file(run.weights).absolute()))
    return run


def _run_name(run: Run, default: Run, source: str) -> str:
    """The recipe's name, with the model's appended when another model is trained.

    A run that repeats a run folder's config.json takes the name of that folder.
    """
    usual, name, folder = default.model, run.recipe, Path(source).resolve().parent
    if source.endswith("config.json") and re.fullmatch(r"seed[0-9]+", folder.name):
        name = folder.parent.name
    elif run.recipe in RECIPES and run.recipe != own_pictures.NAME:
        usual = RECIPES[run.recipe].run.model
    return name if run.model == usual else f"{name}-{safe_name(run.model)}"


def train_run(
    run: Run,
    out: Path,
    device: str | None,
    quiet: bool,
    machine: Machine | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """Train into `<out>/seed<k>/` and return the outcome; `notes` are printed first."""
    from bilateral.data.datasets import load_training
    from bilateral.data.readers_folder import same_test_pictures
    from bilateral.data.survey import shared_pictures
    from bilateral.paper.cost import duration
    from bilateral.processes import joined
    from bilateral.runtime import choose_device, limit_threads
    from bilateral.storage import tidy
    from bilateral.training.bench import least_seconds
    from bilateral.training.progress import TrainingProgress
    from bilateral.training.trainer import train

    folder = RunFolder(out / f"seed{run.seed}")
    place = choose_device(device)
    if folder.config.exists():
        same_test_pictures(folder, run.data.name)
    split = load_training(run)
    limit_threads(place, split.image_values)
    progress = TrainingProgress(quiet or not is_first_process())
    alone = place.type == "cpu" and "WORLD_SIZE" not in os.environ
    begun = folder.checkpoint.exists() or folder.weights.exists()
    if alone and not begun and ":" not in run.model:
        seconds = least_seconds(run, split, place)
        if seconds >= 60:
            least = duration(seconds)
            progress.note(f"no GPU is used: training takes at least {least} on this CPU")
    for note in (*notes, *shared_pictures(run.data.name, run.data.name)):
        progress.note(note)
    with joined(place) as processes:
        trained = train(run, folder, split, place, progress, machine, processes)
    if not trained:
        tidy(folder.path)
    last = folder.last_record() or None
    if trained:
        for said in _nothing_learnt(folder.kept_record(), len(split.classes)):
            progress.note(said)
    return {"folder": str(folder.path), "trained": trained, "last_epoch": last}


def _nothing_learnt(record: Mapping[str, Any], classes: int) -> list[str]:
    """A note if a run ended near chance: its learning rate too high, say, or its epochs too few."""
    clean = record.get("check", {}).get("clean", record.get("clean_accuracy"))
    if clean is None or not near_chance(clean, classes):
        return []
    return [
        f"nothing was learnt: {percent(clean)} % of clean images are right, near chance for "
        f"{classes} classes; try another --optimiser.learning-rate, or more --epochs"
    ]

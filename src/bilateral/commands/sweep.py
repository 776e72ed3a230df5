"""`bilateral sweep FILE`: a list or grid of configurations under a time budget, ranked."""

import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from bilateral.arguments import budget, parse
from bilateral.attacks.table import attack_names
from bilateral.budgets import fraction_text, usual_budget
from bilateral.commands.printing import print_json
from bilateral.commands.targets import said_of
from bilateral.commands.train import absolute, with_consequences
from bilateral.complaints import first_complaint
from bilateral.config import Positive, Run, flat
from bilateral.data.datasets import DATASETS, entry_named
from bilateral.errors import UserError, unknown
from bilateral.machine import Machine
from bilateral.models import model_entry
from bilateral.paper import own_pictures
from bilateral.paper.recipes import recipe_named
from bilateral.reading import parse_json, read_plain
from bilateral.runs import file_digest, safe_name
from bilateral.tables import Format, render
from bilateral.trials import Planned, means, ranking

Values = Mapping[str, Any]
MOST_BYTES = 2**20
"""The largest size of a sweep's file."""


@dataclass(frozen=True)
class Options:
    """Train a list or grid of configurations and rank them on images held out of training.

    The file is TOML (or JSON): `recipe`, `fields` for all runs, `grid` with a list of values for a
    field, `choices` with named alternatives of several fields, `runs` with the fields of single
    runs. Repeat the same command to resume it.
    """

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """a TOML or JSON file"""
    minutes: float | None = None
    """start no run after this time; the file's `minutes` by default"""
    out: str | None = None
    """where the runs go; sweeps/<file's name> by default"""
    jobs: int = 1
    """runs to work on at once, each in its own process: a large GPU has room"""
    trial: str | None = None
    """train and judge only this run, named as in --plan, and leave the ranking as it is"""
    machine: Machine = field(default_factory=Machine)
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the GPU if there is one"""
    plan: bool = False
    """only list the runs"""
    quiet: bool = False
    """no progress"""
    json: bool = False
    """print the trials as JSON, best first"""
    format: Format = "text"
    """how the table is printed"""


def _by_path(fields: Any) -> Any:
    """Fields by their dotted path: TOML reads `adversary.epsilon = ...` as nested tables."""
    if not isinstance(fields, dict):
        return fields
    found = {path: value for path, value in flat(fields).items() if path}
    if isinstance(found.get("data"), str | list):  # short for data.name, as on the command line
        found["data.name"] = found.pop("data")
    return found


Fields = Annotated[dict[str, Any], BeforeValidator(_by_path)]
Grid = Annotated[
    dict[str, Annotated[list[Any], Field(min_length=1)]],
    BeforeValidator(_by_path),
]


class Plan(BaseModel):
    """A sweep's file."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    recipe: str
    fields: Fields = {}
    grid: Grid = {}
    choices: dict[str, Annotated[dict[str, Fields], Field(min_length=1)]] = {}
    runs: Annotated[list[Fields], Field(min_length=1)] = [{}]
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=2**31)]], Field(min_length=1)] = [0]
    attacks: str = "apgd"
    epsilon: str | float | list[str | float] | None = None
    held_out: Positive | None = None
    minutes: Annotated[float, Field(ge=0)] = 60.0


def command(words: Sequence[str]) -> None:
    """`bilateral sweep FILE`."""
    options = parse(Options, words, "bilateral sweep")
    if options.minutes is not None and not options.minutes >= 0:
        raise UserError(f"--minutes {options.minutes:g}: must be at least 0")
    plan = read_plan(Path(options.file))
    with said_of(options.file):
        attack_names(plan.attacks)
        runs = dict(runs_of(plan))
        epsilons = budgets(plan)
    if options.jobs < 1:
        raise UserError(f"--jobs {options.jobs}: must be at least 1")
    if options.trial is not None and options.trial not in runs:
        raise unknown("run", options.trial, runs)
    if options.plan:
        if options.json:
            print_json(list(runs))
        else:
            print("\n".join(_listed(name, planned) for name, planned in runs.items()))
        return
    runs = {name: _with_digest(planned) for name, planned in runs.items()}
    from rich.console import Console

    from bilateral.jobs import machine_words
    from bilateral.runtime import choose_device
    from bilateral.sweeps import Judging, Sweep

    place = choose_device(options.device)
    console = Console(stderr=True, quiet=options.quiet, highlight=False, soft_wrap=True)
    counts = sorted({f"{planned.run.images_judging:,}" for planned in runs.values()})
    at = " and ".join(map(fraction_text, epsilons))
    judged = f"{plan.attacks} at {at} on {' or '.join(counts)} images"
    console.print(f"runs: {len(runs)}, judged by {judged} held out of training")
    if any(planned.run.weights for planned in runs.values()):
        console.print(
            "runs start from given weights: if those were trained on the held-out images, the "
            "ranking means nothing"
        )
    minutes = plan.minutes if options.minutes is None else options.minutes
    sweep = Sweep(
        runs,
        Path(options.out or Path("sweeps") / Path(options.file).stem),
        Judging(plan.attacks, epsilons[0], tuple(epsilons[1:])),
        60 * minutes,
        place,
        console.print,
        options.machine,
        {
            "command": shlex.join(["bilateral", "sweep", *words]),
            "jobs": options.jobs,
            "recipe": plan.recipe,
            "fields": plan.fields,
            "axes": {values[0].axis: [value.text for value in values] for values in _axes(plan)},
        },
    )
    if options.trial is not None:
        trials = [sweep.one(options.trial)]
    elif options.jobs > 1:
        one = ["sweep", options.file, "--out", str(sweep.out), *machine_words(options.machine)]
        one += [] if options.device is None else ["--device", options.device]
        trials = sweep.work_together(options.jobs, [*one, "--quiet"])
    else:
        trials = sweep.work()
    if options.json:
        print_json([vars(trial) for trial in trials])
        return
    title = f"{plan.attacks} at {fraction_text(epsilons[0])}"
    print(render(ranking(trials, title), options.format))
    if len(plan.seeds) > 1 and options.trial is None:
        print("\n" + render(means(trials, title), options.format))
    console.print(f"each run has its folder in {sweep.out}")


def budgets(plan: Plan) -> list[float]:
    """The budgets at which runs are judged, the one that ranks them first."""
    given = plan.epsilon if isinstance(plan.epsilon, list) else [plan.epsilon]
    found = [budget("epsilon", str(one)) for one in given if one is not None]
    asked = [one for one in found if one is not None]
    return asked or [usual_budget(recipe_named(plan.recipe).data.name)]


def read_plan(path: Path) -> Plan:
    """The sweep that a file describes."""
    if not path.is_file():
        raise UserError(f"no file at {path}")
    try:
        content = read_plain(path, MOST_BYTES)
        if path.suffix == ".json":
            return Plan.model_validate(parse_json(content, str(path)))
        return Plan.model_validate(tomllib.loads(content.decode()))
    except ValidationError as error:
        foreign = any(fault["type"] == "extra_forbidden" for fault in error.errors())
        known = f" (available: {', '.join(Plan.model_fields)})" if foreign else ""
        raise UserError(f"{path}: {first_complaint(error)}{known}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None


class _Value(NamedTuple):
    """One value of an axis of the sweep."""

    axis: str
    text: str
    name: str
    fields: Values


def _axes(plan: Plan) -> list[list[_Value]]:
    """The axes whose values are combined: the grid's fields, the choices, then the single runs."""
    axes = [
        [_Value(path, str(value), _part(path, value), {path: value}) for value in values]
        for path, values in plan.grid.items()
    ]
    axes += [
        [_Value(axis, name, safe_name(name), fields) for name, fields in values.items()]
        for axis, values in plan.choices.items()
    ]
    if plan.runs != [{}]:
        axes.append([_single(fields) for fields in plan.runs])
    names = [values[0].axis for values in axes]
    for axis in plan.choices:
        if names.count(axis) > 1:
            raise UserError(f"choices.{axis}: the name is taken, by the grid or by `runs`")
    return axes


def _single(fields: Values) -> _Value:
    """One of `runs`, under its own name or one made of its fields."""
    own = {path: value for path, value in fields.items() if path != "name"}
    parts = [_part(path, value) for path, value in own.items()]
    name = safe_name(str(fields["name"])) if "name" in fields else "-".join(parts)
    return _Value("run", name or "base", name, own)


def _part(path: str, value: object) -> str:
    return safe_name(f"{path.rpartition('.')[2]}-{value}")


def _together(values: Sequence[_Value]) -> Values:
    """The fields of a run, each set by only one axis, so that its name shows every value."""
    own: dict[str, Any] = {}
    for value in values:
        if twice := sorted(own.keys() & value.fields.keys()):
            raise UserError(f"{twice[0]}: only one of grid, choices and runs may set it")
        own |= value.fields
    if "seed" in own:
        raise UserError("seeds are set by `seeds` in the file, not by a field of runs")
    return own


def runs_of(plan: Plan) -> Iterator[tuple[str, Planned]]:
    """Every run of a sweep by its name."""
    # Validated with the fields: some of them are valid only with held-out images.
    held_out = {"data.held_out": plan.held_out} if plan.held_out else {}
    common = {**held_out, **plan.fields}
    recipe = recipe_named(plan.recipe)
    base = changed(recipe, common)
    if not base.data.held_out:
        base = base.with_paths({"data.held_out": _usual_part(base)})
    seen: set[str] = set()
    for values in product(*_axes(plan)):
        own = _together(values)
        name = "-".join(value.name for value in values if value.name) or "base"
        if name in seen:
            raise UserError(f"two runs are named '{name}': give each a `name` of its own")
        seen.add(name)
        chosen = {value.axis: value.text for value in values}
        if plan.recipe == own_pictures.NAME:  # depends on a run's own fields too: on weights
            asked = changed(recipe, {**common, **own})
            held = {"data.held_out": base.data.held_out}
            base = changed(own_pictures.for_folder(asked)[0], {**held, **plan.fields})
        for seed in plan.seeds:
            run = changed(base, own).with_fields(seed=seed)
            _check(run, name)
            yield f"{name}/seed{seed}", Planned(absolute(run), own, chosen)


def _check(run: Run, name: str) -> None:
    """Refuse what would stop the sweep only after hours spent on earlier runs."""
    if ":" not in run.model:
        model_entry(run.model)
    known = None if run.data.name.startswith("folder:") else entry_named(run.data.name)
    most = 2**31 if known is None else known.counts["train"]
    if not 0 < run.data.held_out < most:
        upper = "" if known is None else f", and less than the {most:,} training images"
        raise UserError(
            f"{name}: data.held_out {run.data.held_out}: must be 1 or more{upper}: "
            "the ranking needs held-out images"
        )


def _with_digest(planned: Planned) -> Planned:
    """The run with the digest of its initial weights, which must exist and not change."""
    if planned.run.weights is None:
        return planned
    digest = file_digest(Path(planned.run.weights))
    return replace(planned, run=planned.run.with_fields(weights_digest=digest))


def _listed(name: str, planned: Planned) -> str:
    """A run's name, its epochs and the fields of its own."""
    own = [f"{path} {value}" for path, value in planned.fields.items() if path != "epochs"]
    return ", ".join([f"{name}: {planned.run.epochs} epochs", *own])


def _usual_part(run: Run) -> int:
    """How many images a sweep holds out: a thousand, or a tenth of a small data set."""
    entry = DATASETS.get(run.data.name)
    count = entry.counts["train"] if entry else 1000
    if run.data.images_per_class is not None and entry:
        count = run.data.images_per_class * len(entry.classes)
    return min(1000, max(1, count // 10))


def changed(run: Run, fields: Values) -> Run:
    """The run with some fields changed, and those that depend on them, as in `train`."""
    try:
        found = run.with_paths(fields)
    except ValidationError as error:
        raise UserError(first_complaint(error)) from None
    return with_consequences(found, run, [f"--{path.replace('_', '-')}" for path in fields])

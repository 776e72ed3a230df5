"""`bilateral reproduce`: a table of the paper, or all of them, beside the figures measured here."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from bilateral.arguments import parse
from bilateral.commands.printing import print_json
from bilateral.errors import UserError, unknown
from bilateral.machine import Machine
from bilateral.models import model_entry
from bilateral.paper.beyond import table_named
from bilateral.paper.plan import Choices, all_runs, shared_runs
from bilateral.paper.tables import TABLES, PaperTable, Row
from bilateral.tables import Format, render

if TYPE_CHECKING:
    from bilateral.paper.reproduce import Reproduction


@dataclass(frozen=True)
class Options:
    """Train and evaluate what a table of the paper needs; print paper and measured side by side.

    What is trained or measured already is reused; repeat the same command to resume it.
    """

    table: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="TABLE")]
    """a name from `bilateral list tables`, or "all" for all of the paper's"""
    rows: tuple[str, ...] = ()
    """only the rows with these titles"""
    columns: tuple[str, ...] = ()
    """only the columns with these titles"""
    model: str | None = None
    """the network for every row, in place of the recipe's"""
    epochs: int | None = None
    """epochs in place of the recipe's; a row with a + trains twice as long"""
    seeds: int = 1
    """models per row; the figures are their mean"""
    images: int | None = None
    """the most test images for any column"""
    ensemble: Literal["autoattack", "apgd"] = "autoattack"
    """the attack of the column added to the paper's; apgd is AutoAttack's quick half"""
    quick: bool = False
    """a trial run on the digits, in seconds; never shown beside the paper's figures"""
    jobs: int = 1
    """models and rows to work on at once, each in its own process: a large GPU has room"""
    plan: bool = False
    """only print what would be trained and what it costs on this device; needs no data"""
    out: str | None = None
    """where runs go: runs, or quick/runs with --quick"""
    results: str | None = None
    """where tables go: results, or quick with --quick"""
    machine: Machine = field(default_factory=Machine)
    device: str | None = None
    """cpu, cuda, cuda:1, ...; the GPU if there is one"""
    quiet: bool = False
    """no progress"""
    json: bool = False
    """print the rows as JSON"""
    format: Format = "text"
    """how the tables are printed"""


def command(words: Sequence[str]) -> None:
    """`bilateral reproduce TABLE`."""
    options = parse(Options, words, "bilateral reproduce")
    for name in ("seeds", "epochs", "images", "jobs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UserError(f"--{name} {value}: must be at least 1")
        if options.quick and name in ("epochs", "images") and value is not None:
            raise UserError(f"--{name} {value} has no effect with --quick, which chooses its own")
    if options.quick and options.model is not None:
        raise UserError(
            f"--model {options.model} has no effect with --quick, which chooses its own"
        )
    if options.model is not None:
        model_entry(options.model)
    tables = list(TABLES.values()) if options.table == "all" else [_named(options.table)]
    tables = list(narrowed(tables, options.rows, options.columns))
    choices = Choices(
        options.model,
        options.epochs,
        options.seeds,
        options.images,
        options.ensemble,
        options.quick,
    )
    rows = reproduce(tables, choices, options, shlex.join(["bilateral", "reproduce", *words]))
    if options.json and not options.plan:
        print_json(rows)


def _named(name: str) -> PaperTable:
    """The table of that name; if given its number in the paper, the error tells its name here."""
    if number := re.fullmatch(r"(?:(table|figure)[ -]?)?(\d+)", name.lower()):
        where = f"{(number[1] or 'table').capitalize()} {number[2]}"
        for table in TABLES.values():
            if table.where.partition(" (")[0] == where:
                raise UserError(
                    f"unknown table '{name}': {where} of the paper is {table.name} here"
                )
    return table_named(name)


def narrowed(
    tables: Sequence[PaperTable], rows: Sequence[str], columns: Sequence[str]
) -> Iterator[PaperTable]:
    """The tables with only the named rows and columns, or all of them if none are named."""
    for kind, names in (("row", rows), ("column", columns)):
        titles = [part.title for table in tables for part in getattr(table, f"{kind}s")]
        for name in names:
            if name not in titles:
                raise unknown(kind, name, dict.fromkeys(titles))
    for table in tables:
        chosen = tuple(row for row in table.rows if not rows or row.title in rows)
        shown = tuple(one for one in table.columns if not columns or one.title in columns)
        if chosen and shown:
            yield replace(table, rows=chosen, columns=shown)


def with_data(
    tables: Sequence[PaperTable], choices: Choices, skip: bool, say: Callable[[str], None]
) -> Iterator[PaperTable]:
    """The tables without the rows whose data are not on disk, found out before hours of training.

    A table without any row left is an error, or left out with `skip`.
    """
    from bilateral.data.datasets import load

    faults: dict[tuple[str, int | None], UserError | None] = {}

    def fault_of(row: Row, table: PaperTable) -> UserError | None:
        for run in all_runs([replace(table, rows=(row,))], choices).values():
            key = (run.data.name, run.image_size)
            if key not in faults:
                try:
                    load(run.data.name, "test", image_size=run.image_size)
                    faults[key] = None
                except UserError as error:
                    faults[key] = error
            if faults[key] is not None:
                return faults[key]
        return None

    for table in tables:
        found = {row.title: fault_of(row, table) for row in table.rows if not row.quoted}
        rows = tuple(row for row in table.rows if row.quoted or found[row.title] is None)
        left_out = [fault for fault in found.values() if fault is not None]
        if len(left_out) == len(found) and not skip:
            raise UserError(f"{table.name} cannot be measured: {left_out[0]}")
        if left_out:
            say(f"{table.name}: {len(left_out)} of {len(found)} rows are left out: {left_out[0]}")
        if len(left_out) < len(found):
            yield replace(table, rows=rows)


def reproduce(
    tables: Sequence[PaperTable], choices: Choices, options: Options, words: str
) -> dict[str, list[dict[str, object]]]:
    """Work through the tables; each is written and printed as soon as it is done."""
    from rich.console import Console

    from bilateral.paper.cost import costs, said_of_models
    from bilateral.paper.reproduce import Reproduction
    from bilateral.paper.side_by_side import side_by_side
    from bilateral.runtime import choose_device
    from bilateral.storage import write_atomic

    console = Console(stderr=True, quiet=options.quiet, highlight=False, soft_wrap=True)
    place = choose_device(options.device)
    out = Path(options.out or ("quick/runs" if options.quick else "runs"))
    results = Path(options.results or ("quick" if options.quick else "results"))
    if options.quick and results.resolve() == Path("results").resolve():
        raise UserError("--quick never writes to results/: choose another --results")
    there = [
        name for name in all_runs(tables, choices) if (out / name / "model.safetensors").exists()
    ]
    if options.plan:
        planned = costs(tables, choices, place, there)
        if options.json:
            print_json(asdict(planned))
        else:
            print("\n".join(planned.lines()))
        list(with_data(tables, choices, True, console.print))
        return {}
    tables = list(with_data(tables, choices, options.table == "all", console.print))
    needed = all_runs(tables, choices)
    there = [name for name in there if name in needed]
    lines = [said_of_models(len(needed), len(tables), len(there))]
    if not options.quick and (options.table == "all" or place.type == "cpu"):
        lines = list(costs(tables, choices, place, there).lines())
    for line in lines:
        console.print(line)
    work = Reproduction(out, results, choices, place, words, console.print, options.machine)
    for table in tables:
        work.refuse_others(table)
    found = {}
    for table in tables:
        if options.jobs > 1:
            _together(table, work, options, words)
            found[table.name] = work.rows(table)
        else:
            found[table.name] = work.table(table)
        shown = side_by_side(table_named(table.name), found[table.name], choices)
        title = f"{table.title} ({table.where})"
        if options.quick:
            title = f"a trial run on the digits, not {table.where}: no figure is of its data"
        text = f"# {title}\n\n{render(shown, 'markdown')}\n"
        drawing = work.drawing(table, found[table.name])
        with work.writing():
            write_atomic(results / f"{table.name}.md", text.encode())
            if drawing is not None:
                write_atomic(results / f"{table.name}.svg", drawing)
        if not options.json:
            print(f"{table.name}: {title}")
            print(render(shown, options.format) + "\n", flush=True)
    return found


def _together(table: PaperTable, work: "Reproduction", options: Options, words: str) -> None:
    """Train and measure a table several rows at a time, after training the models they share."""
    from bilateral.jobs import machine_words
    from bilateral.paper.together import rows_together, train_together

    device = [] if options.device is None else ["--device", options.device]
    missing = {
        name: run
        for name, run in shared_runs(table, work.choices).items()
        if not (work.out / name / "model.safetensors").exists()
    }
    if missing:
        work.say(f"{table.name}: training {len(missing)} models, {options.jobs} at once")
    train_together(missing, work.out, device, options.machine, options.jobs)
    common = ["--out", str(work.out), "--ensemble", options.ensemble, *device]
    common += machine_words(options.machine) + (["--quick"] if options.quick else [])
    for name in ("model", "epochs", "seeds", "images"):
        if (value := getattr(options, name)) is not None:
            common += [f"--{name}", str(value)]
    if options.columns:
        common += ["--columns", *options.columns]

    def keep(row: dict[str, Any]) -> None:
        work.say(f"{table.name}: {row['title']} is measured")
        work.keep(table, {**row, "command": words, "jobs": options.jobs})

    titles = [row.title for row in table.rows if not row.quoted]
    rows_together(table.name, titles, common, options.jobs, keep)

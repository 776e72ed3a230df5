"""The models and rows of a table in parallel, each as a `bilateral` command of its own."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bilateral.config import Run
from bilateral.jobs import machine_words, run_together
from bilateral.machine import Machine
from bilateral.storage import temporary_folder

Words = Sequence[str]
FOLDER = "bilateral-jobs-"


def train_together(
    runs: Mapping[str, Run], out: Path, device: Words, machine: Machine, jobs: int
) -> None:
    """Train runs into `<out>/<folder>/`, by folder, `jobs` at a time."""
    with temporary_folder(FOLDER) as folder:
        commands = {}
        for place, (name, run) in enumerate(runs.items()):
            config = folder / f"{place}.json"
            config.write_text(json.dumps({"run": run.model_dump(mode="json")}))
            words = ["train", str(config), "--out", str(out), "--name", name.rpartition("/")[0]]
            commands[name] = [*words, *device, *machine_words(machine), "--quiet"]
        run_together(commands, jobs)


def rows_together(
    table: str, titles: Iterable[str], words: Words, jobs: int, keep: Callable[[Any], None]
) -> None:
    """Measure rows of a table, `jobs` at a time; each is kept as soon as it is there.

    `words` are the options of `bilateral reproduce` that all rows have in common.
    """
    with temporary_folder(FOLDER) as folder:
        places = {title: folder / str(place) for place, title in enumerate(titles)}

        def measured(title: str) -> None:
            (row,) = json.loads((places[title] / f"{table}.json").read_text())
            keep(row)

        commands = {
            title: ["reproduce", table, "--rows", title, "--results", str(place), *words, "--quiet"]
            for title, place in places.items()
        }
        run_together(commands, jobs, measured)

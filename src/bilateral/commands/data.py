"""`bilateral data`: list, fetch and check data sets."""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from bilateral.arguments import call
from bilateral.commands.printing import print_json
from bilateral.data.datasets import DATASETS, entry_named
from bilateral.data.sources import Finding, cache_folder, check, fetch
from bilateral.errors import UserError, unknown


def command(words: Sequence[str]) -> None:
    """`bilateral data list / fetch NAME / check NAME`."""
    if not words or words[0] in ("-h", "--help"):
        print(
            "usage: bilateral data list | fetch NAME [--source PATH] | check NAME\n\n"
            "List data sets, fetch them, and check that the files on disk are intact."
        )
        return
    if words[0] not in ACTIONS:
        raise unknown("data action", words[0], ACTIONS)
    call(ACTIONS[words[0]], words[1:], f"bilateral data {words[0]}")


def list_data(json: bool = False) -> None:
    """The data sets, and whether each is on disk.

    Args:
        json: print the list as JSON.
    """
    rows = [
        {
            "name": name,
            "summary": entry.summary,
            "on_disk": not entry.readers or (cache_folder() / name).is_dir(),
        }
        for name, entry in DATASETS.items()
    ]
    if json:
        print_json(rows)
        return
    for row in rows:
        print(f"{row['name']:<10} {'on disk' if row['on_disk'] else 'absent':<8} {row['summary']}")
    print(f"kept in {cache_folder()} (BILATERAL_DATA overrides it)")


def fetch_data(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    source: str | None = None,
    quiet: bool = False,
    json: bool = False,
) -> None:
    """Fetch a data set and verify it; one that is on disk and intact is left alone.

    Args:
        name: a data set's name.
        source: a local archive or folder to read instead of downloading.
        quiet: no progress.
        json: print the data set's name and folder as JSON.
    """
    console = Console(file=sys.stderr, quiet=quiet, highlight=False, soft_wrap=True)
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    hidden = quiet or not console.is_terminal
    bar = Progress(*columns, console=console, disable=hidden)
    with nullcontext() if hidden else bar:  # an older rich prints a newline after a hidden bar
        task = bar.add_task(name, total=None, visible=False)

        def progress(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        where = fetch(name, Path(source) if source else None, progress, console.print)
    kept = where.name if where.name in DATASETS else name
    if json:
        print_json({"name": kept, "folder": str(where)})
    else:
        print(f"{kept}: {where}")


def check_data(
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")], /, json: bool = False
) -> None:
    """Check a data set on disk: every file must be there, with the expected SHA-256.

    Args:
        name: a data set's name.
        json: print the findings as JSON.
    """
    findings = check(name)
    folder, bad = findings[0].file.parent, [finding for finding in findings if not finding.ok]
    if json:
        rows = [{"file": str(f.file), "ok": f.ok, "message": f.message} for f in findings]
        print_json(rows)
    elif any(finding.file.exists() for finding in findings):
        print(f"{name}: {entry_named(name).summary}\nin {folder}:")
        width = max(len(finding.file.name) for finding in findings)
        for finding in findings:
            print(f"  {finding.file.name:<{width}}  {_said(finding, name)}")
    if len(bad) == len(findings) and not folder.exists():
        raise UserError(bad[0].message)
    if bad:
        raise UserError(f"{name} is not intact: {bad[0].file.name} is {_said(bad[0], name)}")
    if not json:
        print(f"{name} is intact: every file is there, with the expected SHA-256")


def _said(finding: Finding, name: str) -> str:
    """The message of a finding without the file's name, which is printed before it."""
    if not finding.ok and not finding.file.exists():
        return f"missing: run `bilateral data fetch {name}`"
    return finding.message.removeprefix(f"{finding.file} is ").removeprefix(f"{finding.file} ")


ACTIONS: dict[str, Callable[..., Any]] = {
    "list": list_data,
    "fetch": fetch_data,
    "check": check_data,
}

"""`bilateral report`: the contents of run folders as one self-contained page."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from bilateral.arguments import call
from bilateral.commands.printing import print_json
from bilateral.errors import UserError


def command(words: Sequence[str]) -> None:
    """`bilateral report RUN...`."""
    call(report, words, "bilateral report")


def report(
    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...")],
    /,
    out: str | None = None,
    transfer: str | None = None,
    quiet: bool = False,
    json: bool = False,
) -> None:
    """Write the contents of run folders as one HTML file; nothing is measured.

    It opens from disk and loads nothing from the network. Files that are missing or damaged are
    listed on the page, with the command that makes them.

    Args:
        runs: run folders, or folders of `bilateral evaluate --out`.
        out: path of the page; by default RUN/report.html for one run, report.html for several.
        transfer: the transfer.json of `bilateral transfer`, for its matrix.
        quiet: do not list what is missing.
        json: print the page's path and what is missing as JSON.
    """
    if not runs or "" in runs:
        raise UserError("report needs RUN...: one or more run folders")
    result = write_report(runs, out, transfer)
    if json:
        print_json(result)
        return
    if not quiet:
        for run in result["runs"]:
            for gap in run["missing"]:
                print(f"{run['name']}: {gap['file']}: {gap['problem']}", file=sys.stderr)
    many = f"{len(runs)} run{'s' * (len(runs) > 1)}"
    print(f"{result['report']}  {many}, {result['bytes'] / 1e6:.1f} MB")


def write_report(
    runs: Sequence[str], out: str | None = None, transfer: str | None = None
) -> dict[str, Any]:
    """Write the page; return its path, its size and what each run folder lacks."""
    path = Path(out or (Path(runs[0]) / "report.html" if len(runs) == 1 else "report.html"))
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: give a file, such as {path / 'report.html'}")
    from bilateral.report.gather import gather
    from bilateral.report.page import render
    from bilateral.report.transfer import read_transfer
    from bilateral.runs import write_atomic

    files = gather(runs)
    matrix = read_transfer(transfer) if transfer is not None else None
    if matrix is not None:
        matrix.refuse_others(files)
    page = render(files, matrix).encode("utf-8", "replace")
    write_atomic(path, page)
    return {
        "report": str(path),
        "bytes": len(page),
        "runs": [
            {
                "name": one.name,
                "folder": str(one.path),
                "missing": [vars(gap) for gap in one.gaps],
            }
            for one in files
        ],
    }

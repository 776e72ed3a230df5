"""`bilateral report`: one self-contained page of what run folders hold."""

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
    """Write one HTML file of what the run folders hold; nothing is measured.

    It opens from disk and asks the network for nothing. What is missing or damaged is listed on
    the page, with the command that makes it.

    Args:
        runs: run folders, or folders of `bilateral evaluate --out`.
        out: the page; RUN/report.html for one run, report.html for several.
        transfer: the transfer.json of `bilateral transfer`, for its matrix.
        quiet: do not list what is missing.
        json: print where the page is and what it misses as JSON.
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
    """Write the page, and say where it is and what it misses."""
    path = Path(out or (Path(runs[0]) / "report.html" if len(runs) == 1 else "report.html"))
    if path.is_dir():
        raise UserError(f"--out {path} is a folder: name the page, {path / 'report.html'}")
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

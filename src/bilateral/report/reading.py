"""Files read without trusting them: damage becomes a note on the page, not a crash.

The models of `bilateral.results` refuse unknown fields, as an evaluation must; a page shows what it
can, so values are read one by one, and a value of the wrong type counts as absent.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bilateral import reading
from bilateral.arrays import read_npz
from bilateral.errors import UserError

Arrays = dict[str, np.ndarray]
LARGEST = 1e12
"""No measurement of ours comes near it; axes to 1e300 cannot be drawn."""


class DamagedError(Exception):
    """A file that cannot be read, with the reason."""


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    try:
        return reading.read_json(path)
    except (UserError, OSError) as error:
        raise DamagedError(_reason(error, path)) from None


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a file of JSON lines, and how many lines are not records."""
    try:
        lines = reading.read_plain(path, reading.LIMIT).splitlines()
    except (UserError, OSError) as error:
        raise DamagedError(_reason(error, path)) from None
    found, bad = [], 0
    for line in lines:
        try:
            record = reading.parse_json(line, "a line")
        except UserError:
            record = None
        if isinstance(record, dict):
            found.append(record)
        else:
            bad += 1
    return found, bad


def read_arrays(path: Path) -> tuple[Arrays, list[str]]:
    """The arrays of an npz file, and the names of those that are damaged."""
    bad: list[str] = []
    try:
        return read_npz(path, bad), bad
    except (UserError, OSError) as error:
        raise DamagedError(_reason(error, path)) from None


def _reason(error: Exception, path: Path) -> str:
    """An error in one line, without the file's name and "is damaged", which are shown already."""
    said = str(error).removeprefix(f"{path} is ").removeprefix(f"{path} ").removeprefix("damaged: ")
    return " ".join(said.split())[:160]


def number(value: Any) -> float | None:
    """A finite number, of a size that can be drawn."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) and abs(found) <= LARGEST else None


def share(value: Any) -> float | None:
    """A fraction in [0, 1]."""
    found = number(value)
    return found if found is not None and 0 <= found <= 1 else None


def count(value: Any) -> int | None:
    """A whole number that is not negative."""
    found = number(value)
    return int(found) if found is not None and found >= 0 and found == int(found) else None


def text(value: Any) -> str | None:
    """A text that is not empty."""
    return value if isinstance(value, str) and value else None


def mapping(value: Any) -> dict[str, Any]:
    """An object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def numbers(value: Any) -> list[float | None]:
    """A list's numbers, with None in place of anything else."""
    return [number(one) for one in value] if isinstance(value, list) else []


def all_numbers(value: Any) -> list[float]:
    """A list of numbers; an empty one if any item is not a number."""
    found = numbers(value)
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else []


def matrix(value: Any) -> list[list[float]]:
    """Rows of numbers of one length; an empty list in place of anything else."""
    found = [all_numbers(row) for row in value] if isinstance(value, list) else []
    return found if found and found[0] and len({len(row) for row in found}) == 1 else []


def square(value: Any) -> list[list[float]]:
    """A square matrix."""
    found = matrix(value)
    return found if found and len(found) == len(found[0]) else []


def points(value: Any, across: str, up: str = "accuracy") -> list[tuple[float, float]]:
    """The points of a curve, a fraction for each place from zero on, in rising order."""
    pairs = [(number(row.get(across)), share(row.get(up))) for row in rows(value)]
    return sorted((x, y) for x, y in pairs if x is not None and x >= 0 and y is not None)


def interval(value: Any) -> tuple[float, float] | None:
    """Two fractions; None in place of anything else."""
    ends = [share(end) for end in value] if isinstance(value, Sequence) else []
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]

"""JSON from outside: plain files of limited size, depth and number of parts; no torch.

A parser may take a hundred bytes of memory for a byte of hostile JSON, and recurse as deep as it
nests, so a file is measured before it is parsed.
"""

import json
import re
import stat
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from bilateral.complaints import first_complaint
from bilateral.errors import UserError

LIMIT = 2**26
"""Bytes of a JSON file; AutoAttack's flags of 50,000 images take some 15 million."""
PARTS = 2**18
"""Lists and objects in a JSON file; results have some thousands."""
VALUES = 2**21
"""Values in a JSON file; pydantic records an error of 200 bytes for each that is wrong."""
DEPTH = 64
"""Levels of lists and objects; results have eight."""

Kind = TypeVar("Kind", bound=BaseModel)


def read_plain(path: Path, limit: int) -> bytes:
    """The bytes of a plain file; a pipe or a device could make the reader wait forever."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise UserError(f"{path} is not a plain file")
    if about.st_size > limit:
        raise UserError(f"{path} has {about.st_size:,} bytes: more than {limit:,} are refused")
    return path.read_bytes()


def json_bytes(path: Path) -> bytes:
    """A JSON file, not parsed yet."""
    content = read_plain(path, LIMIT)
    measure(content, str(path))
    return content


def measure(content: bytes, source: str) -> None:
    """Refuse JSON whose parsing would take too much memory."""
    parts, values = content.count(b"[") + content.count(b"{"), content.count(b",")
    if len(content) > LIMIT or parts > PARTS or values > VALUES:
        raise UserError(f"{source} is too large: {values:,} values in {parts:,} lists and objects")
    depth = 0
    for bracket in re.finditer(rb"[\[\]{}]", content):  # those in strings count too: no harm
        depth += 1 if bracket[0] in b"[{" else -1
        if depth > DEPTH:
            raise UserError(f"{source} is refused: its JSON is nested deeper than {DEPTH} levels")


def parse_json(content: bytes, source: str) -> Any:
    """The value of JSON text; NaN, which is not JSON, is refused."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not allowed")

    measure(content, source)
    try:
        return json.loads(content, parse_constant=refuse)
    except ValueError as error:
        raise UserError(f"{source} is damaged: not JSON ({error})") from None


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return parse_json(json_bytes(path), str(path))


def read_record(path: Path, kind: type[Kind], advice: str = "") -> Kind:
    """A JSON file as a record; `advice` is what to do about one that is damaged."""
    try:
        # Parsed first: to report a missing field, pydantic copies all the JSON that it was given.
        return kind.model_validate(read_json(path))
    except UserError as error:
        raise UserError(f"{error}{advice}") from None
    except ValidationError as error:
        raise UserError(f"{path} is damaged: {first_complaint(error)}{advice}") from None

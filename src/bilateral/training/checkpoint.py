"""Checkpoints on disk: written whole, read without executing anything."""

import io
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch

from bilateral.errors import UserError
from bilateral.runs import write_atomic

_FIELDS = {
    "model": dict,
    "averaged": dict | None,
    "optimiser": dict,
    "step": int,
    "seconds": float,
    "sums": list,
    "about": dict,
}
_MOST_OPERATIONS = 2**22
_OPERATIONS = (
    "PROTO STOP MARK GLOBAL REDUCE BUILD BINPERSID BINPUT LONG_BINPUT BINGET LONG_BINGET "
    "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE EMPTY_TUPLE TUPLE "
    "TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS"
)
"""What torch writes a checkpoint with."""


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """The state of a run, written to a temporary name and renamed."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(path, buffer.getvalue())


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """The state of a run; a file that is not one of ours is refused."""
    try:
        _refuse_tricks(path)
        # Mapped, so that no tensor reaches past the file, whatever sizes its pickle claims.
        state = torch.load(path, map_location=device, weights_only=True, mmap=True)
    except Exception as error:  # a flipped byte makes torch raise nearly anything
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"{path} is damaged ({reason}); remove it to start again") from None
    if not isinstance(state, dict) or state.get("schema") != 2:
        raise UserError(f"{path} is not a checkpoint of this version")
    missing = [name for name, kind in _FIELDS.items() if not isinstance(state.get(name), kind)]
    if missing:
        raise UserError(f"{path} is damaged (no {missing[0]}); remove it to start again")
    return state


def _refuse_tricks(path: Path) -> None:
    """Refuse what `weights_only` does not: packed members, and keys that take for ever to hash.

    A tuple that holds another one twice doubles the time with every level; torch writes none twice.
    """
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
        total = sum(member.file_size for member in members)
        if any(member.compress_type for member in members) or total > path.stat().st_size:
            raise ValueError("its members are packed")
        (program,) = (each for each in members if each.filename.endswith("/data.pkl"))
        operations = pickletools.genops(file.read(program))
        after_tuple, tuples = False, set[Any]()
        for number, (operation, argument, _) in enumerate(operations):
            if operation.name not in _OPERATIONS.split() or number > _MOST_OPERATIONS:
                raise ValueError(f"{operation.name} after {number} operations")
            if operation.name.endswith("BINPUT"):
                (tuples.add if after_tuple else tuples.discard)(argument)
                continue
            if operation.name.endswith("BINGET") and argument in tuples:
                raise ValueError("a tuple is used twice")
            after_tuple = operation.name.startswith("TUPLE")

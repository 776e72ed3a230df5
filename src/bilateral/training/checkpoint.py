"""Checkpoints on disk: written whole, read without executing anything.

A checkpoint is what `torch.save` writes, a zip archive; the archive's comment is the SHA-256 of all
bytes before it, so that contents and digest are renamed into place together.
"""

import hashlib
import io
import math
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch

from bilateral.errors import UserError
from bilateral.runs import write_atomic

_MARK = b"bilateral sha256 "
_COMMENT = len(_MARK) + 64
_FIELDS = {
    "model": dict,
    "averaged": dict | None,
    "optimiser": dict,
    "step": int,
    "seconds": float,
    "sums": list,
    "about": dict,
}
_NETWORK = ("classes", "channels", "image_size", "model")
_MOST_OPERATIONS = 2**22
_OPERATIONS = (
    "PROTO STOP MARK GLOBAL REDUCE BUILD BINPERSID BINPUT LONG_BINPUT BINGET LONG_BINGET "
    "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE EMPTY_TUPLE TUPLE "
    "TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM SETITEMS"
)
"""The pickle operations that torch writes a checkpoint with."""


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """The state of a run, written to a temporary name and renamed."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(-2, io.SEEK_END)  # an archive ends with the length of its comment
    buffer.write(_COMMENT.to_bytes(2, "little"))
    buffer.write(_MARK + hashlib.sha256(buffer.getvalue()).hexdigest().encode())
    write_atomic(path, buffer.getvalue())


def _check_digest(path: Path, content: bytes) -> None:
    """Refuse a file that is not what was written.

    The first checkpoints had no digest: such an archive ends with its last record, 22 bytes long.
    """
    if content[-22:].startswith(b"PK\5\6") and content.endswith(b"\0\0"):
        return
    body, comment = content[:-_COMMENT], content[-_COMMENT:]
    if comment != _MARK + hashlib.sha256(body).hexdigest().encode():
        raise UserError(
            f"{path} is damaged (its SHA-256 is not the one it was written with); "
            "remove it to start again"
        )


def read_checkpoint(
    path: Path, device: torch.device, about: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The state of a run; a file that is not one of ours, or of another network, is refused."""
    _check_digest(path, path.read_bytes())
    try:
        _refuse_tricks(path)
        # Mapped, so that no tensor reaches past the file, whatever sizes its pickle claims.
        state = torch.load(path, map_location=device, weights_only=True, mmap=True)
    except Exception as error:  # a flipped byte makes torch raise nearly anything
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"{path} is damaged ({reason}); remove it to start again") from None
    if not isinstance(state, dict) or state.get("schema") != 2:
        raise UserError(f"{path} is not a checkpoint of this version; remove it to start again")
    missing = [name for name, kind in _FIELDS.items() if not isinstance(state.get(name), kind)]
    if missing:
        raise UserError(f"{path} is damaged (no {missing[0]}); remove it to start again")
    expected = about or {}
    network = [key for key in _NETWORK if key in expected]
    if changed := [key for key in network if state["about"].get(key) != expected[key]]:
        raise UserError(
            f"{path} is of another model or data: {', '.join(changed)} differ; train under another "
            "--name"
        )
    return state


def check_progress(state: dict[str, Any], steps: int) -> None:
    """Refuse a checkpoint from beyond the run's last step, or whose sums are not finite."""
    if not 0 <= state["step"] <= steps:
        raise ValueError(f"step {state['step']} of {steps}")
    if not math.isfinite(sum(state["sums"]) + state["seconds"]):
        raise ValueError("its sums are not finite")


def _refuse_tricks(path: Path) -> None:
    """Refuse what `weights_only` does not: packed members, and keys that take forever to hash.

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

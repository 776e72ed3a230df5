"""Checkpoints on disk: written whole, read without executing anything.

A checkpoint is what `torch.save` writes, a zip archive; its comment is the SHA-256 of all bytes
before it, so the digest is renamed into place with what it is of.
"""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from bilateral.errors import UserError
from bilateral.runs import write_atomic

_MARK = b"bilateral sha256 "
_COMMENT = len(_MARK) + 64


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


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """The state of a run; a file that is not one of ours is refused."""
    content = path.read_bytes()
    _check_digest(path, content)
    try:
        state = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged ({reason}); remove it to start again") from None
    if not isinstance(state, dict) or state.get("schema") != 2:
        raise UserError(f"{path} is not a checkpoint of this version")
    return state

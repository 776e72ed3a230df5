"""Checkpoints on disk: written whole, read without executing anything."""

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from bilateral.errors import UserError
from bilateral.runs import write_atomic


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """The state of a run, written to a temporary name and renamed."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomic(path, buffer.getvalue())


def read_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """The state of a run; a file that is not one of ours is refused."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path} is damaged ({reason}); remove it to start again") from None
    if not isinstance(state, dict) or state.get("schema") != 2:
        raise UserError(f"{path} is not a checkpoint of this version")
    return state

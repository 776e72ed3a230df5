"""Weights on disk as safetensors: written whole, read without executing anything."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from bilateral.errors import UserError
from bilateral.runs import write_atomic


def write_weights(path: Path, model: nn.Module, about: dict[str, Any]) -> None:
    """The weights as safetensors, with what is needed to build the model again."""
    state = model.state_dict()
    # Copies, because safetensors refuses tensors that share memory (tied weights).
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}
    # One metadata key: safetensors does not keep several in a fixed order.
    write_atomic(path, save(tensors, {"bilateral": json.dumps(about, sort_keys=True)}))


def read_weights(path: Path, model: nn.Module) -> None:
    """Load weights into a model; says what does not fit."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"no weights at {path}") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged: not safetensors ({error})") from None
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    theirs = {name: tuple(value.shape) for name, value in tensors.items()}
    if own != theirs:
        names = sorted(
            name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name)
        )
        first = names[0]
        found, expected = theirs.get(first, "missing"), own.get(first, "missing")
        raise UserError(
            f"{path} does not fit the model: {len(names)} tensors differ, first {first} "
            f"({found} in the file, {expected} in the model)"
        )
    model.load_state_dict(tensors)


def read_about(path: Path) -> dict[str, Any]:
    """What a weights file says of its model: classes, channels, image size."""
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})["bilateral"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError(f"{path} is not a weights file of this package ({error})") from None
    if not isinstance(about, dict):
        raise UserError(f"{path} is not a weights file of this package")
    return about

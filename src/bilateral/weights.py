"""Weights on disk as safetensors: written whole, read without executing anything."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from bilateral.complaints import first_complaint
from bilateral.config import Side
from bilateral.errors import UserError
from bilateral.models import build_model
from bilateral.reading import parse_json
from bilateral.runs import write_atomic

T = TypeVar("T")
_DIGEST = "sha256"
_PICKLES = (".pt", ".pth", ".ckpt", ".bin")


def write_weights(path: Path, model: nn.Module, about: dict[str, Any]) -> None:
    """Write the weights as safetensors, with what is needed to build the model again."""
    state = model.state_dict()
    # Copies, because safetensors refuses tensors that share memory (tied weights).
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in state.items()}
    signed = {**about, _DIGEST: _digest_of(about, tensors)}
    # One metadata key: safetensors does not keep several in a fixed order.
    write_atomic(path, save(tensors, {"bilateral": json.dumps(signed, sort_keys=True)}))


def weights_digest(model: nn.Module) -> str:
    """SHA-256 over names and values of all weights and statistics."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(flat.numpy().tobytes())
    return digest.hexdigest()


def _digest_of(about: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over what a file records about its model and over all its tensors."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def read_weights(path: Path, model: nn.Module, without: str | None = None) -> None:
    """Load weights into a model, except those of the layer `without`; refuse what does not fit."""
    theirs = check_shapes(path, model, without)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in theirs}
        metadata = file.metadata() or {}
    _check_digest(path, metadata, tensors)
    own = model.state_dict()
    for name, value in _but(without, own).items():
        kind = tensors[name].dtype
        if kind.is_complex or kind.is_floating_point != value.dtype.is_floating_point:
            raise UserError(f"{path} does not fit the model: {name} is {kind}, not {value.dtype}")
        if not bool(tensors[name].float().isfinite().all()):
            raise UserError(f"{path} holds no usable weights: {name} contains NaN or infinity")
    model.load_state_dict({**own, **_but(without, tensors)})


def check_shapes(
    path: Path, model: nn.Module, without: str | None = None
) -> dict[str, tuple[int, ...]]:
    """The shapes that a weights file declares, if they are the model's; no weight is read.

    Shapes of the layer `without` are not compared.
    """
    declared = declared_shapes(path)
    own = _but(without, {name: tuple(value.shape) for name, value in model.state_dict().items()})
    theirs = _but(without, declared)
    if own != theirs:
        names = sorted(
            name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name)
        )
        first = names[0]
        found, expected = theirs.get(first, "missing"), own.get(first, "missing")
        raise UserError(
            f"{path} does not fit the model: {len(names)} tensors differ, first {first[:100]} "
            f"({found} in the file, {expected} in the model){_of_which_network(path)}"
        )
    return declared


def _of_which_network(path: Path) -> str:
    """The network of a file that does not fit, if the file records it."""
    try:
        about = read_about(path)
        height, width = about["image_size"]
        kind = f"{about['model']!s:.100}, {about['channels']} channels, {height} x {width} pixels"
        return f"; the file is for {kind}"
    except (UserError, KeyError):  # not the error to report
        return ""


def check_network(path: Path, model: str, about: Mapping[str, Any]) -> None:
    """Refuse weights that are not of the named network, without building it.

    A few bytes of JSON could ask for a network of terabytes.
    """
    with torch.device("meta"):
        check_shapes(path, build_model(model, len(about["classes"]), about["channels"]))


def _but(layer: str | None, named: Mapping[str, T]) -> dict[str, T]:
    """All entries except those of a layer."""
    outside = f"{layer}."
    return {
        name: one for name, one in named.items() if layer is None or not name.startswith(outside)
    }


def declared_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes in a weights file, which safetensors checks against its size; nothing is read."""
    if not path.is_file():
        raise UserError(f"no weights at {path}")
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            return {name: tuple(file.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        beside = path.with_name("model.safetensors")
        if path.name == "checkpoint.pt" and beside.is_file():
            raise UserError(f"{path} is a run's checkpoint; its weights are in {beside}") from None
        if path.suffix in _PICKLES:
            raise UserError(
                f"{path}: weights are read as safetensors, which cannot carry code; convert them "
                "with safetensors.torch.save_file(torch.load(path, weights_only=True), new_path)"
            ) from None
        raise UserError(f"{path} is damaged, or not safetensors ({error!s:.200})") from None


class _About(BaseModel):
    """What every weights file records about its model; it may record more."""

    classes: Annotated[list[str], Field(min_length=1)]
    channels: Annotated[int, Field(ge=1, le=1024)]
    image_size: tuple[Side, Side]


def _check_digest(path: Path, metadata: dict[str, str], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a file that is not as it was written; files from elsewhere have no digest."""
    try:
        about = json.loads(metadata.get("bilateral", "{}"))
        digest = about.pop(_DIGEST, None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{path} is damaged: its record of the model is not JSON") from None
    if digest is not None and digest != _digest_of(about, tensors):
        raise UserError(
            f"{path} is damaged: its SHA-256 is not the one it was written with; "
            "remove it, and train again with the same command"
        )


def read_about(path: Path) -> dict[str, Any]:
    """What a weights file records about its model: classes, channels, image size."""
    about = about_of(path)
    if about is None:
        raise UserError(f"{path} is not a weights file of this package")
    return about


def about_of(path: Path) -> dict[str, Any] | None:
    """The same; None for a file from elsewhere, which records nothing about its model."""
    declared_shapes(path)
    with safe_open(path, "pt") as file:
        said = (file.metadata() or {}).get("bilateral")
    if said is None:
        return None
    about = parse_json(said.encode(), str(path))
    try:
        known = _About.model_validate(about).model_dump(mode="json")
    except ValidationError as error:
        fault = first_complaint(error)
        raise UserError(f"{path} is not a weights file of this package ({fault})") from None
    return {name: value for name, value in {**about, **known}.items() if name != _DIGEST}

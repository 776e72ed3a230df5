"""What is evaluated: the model of a run folder, or one that a user's own function returns."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bilateral.budgets import usual_budget
from bilateral.config import Labels, Run, config_digest
from bilateral.data.datasets import Split, load
from bilateral.data.device_images import DeviceImages
from bilateral.data.readers_folder import (
    has_test_set,
    location,
    same_test_pictures,
    training_files,
)
from bilateral.data.survey import shared_pictures
from bilateral.errors import UserError
from bilateral.evaluation.robustness import predictions
from bilateral.models import build_model
from bilateral.models.own_code import source_digest
from bilateral.runs import RunFolder, check_trained, no_model, safe_name
from bilateral.runtime import place
from bilateral.weights import check_network, read_about, read_weights

ANSWERS = 64
"""How many images a user's own model must classify as before for its stored flags to be reused."""


@dataclass(frozen=True)
class Target:
    """A model to evaluate, on what, and where its results go."""

    name: str
    model: nn.Module
    folder: RunFolder
    data: str
    split: Split
    code_digest: str = ""
    label_rule: Labels | None = None
    """How the run that trained the model perturbed labels; None if no run is known."""
    config_digest: str = ""
    """Of the run that trained the model; empty if no run is known."""
    trained_on: str = ""
    """The data of that run."""
    trained_at: float | None = None
    """The budget of that run; None if it had no adversary."""
    doubts: tuple[str, ...] = ()
    """Warnings about these images that cast doubt on every figure."""

    @property
    def epsilon(self) -> float:
        """The budget that this data set is usually attacked with.

        A user's own pictures have no usual one: theirs is the budget the model was trained with.
        """
        own = self.trained_at if self.data.startswith("folder:") else None
        return own or usual_budget(self.data)


def find_target(
    name: str, data: str | None, image_size: int | None, out: str | None, device: torch.device
) -> Target:
    """A run folder's model, or what file.py:function or package.module:function returns.

    The model is on the device but keeps its mode, so that the guards can warn of train mode.
    """
    if not name:
        raise UserError("no model is named: give a run folder, or file.py:function of your own")
    if Path(name).is_dir():
        folder = RunFolder(Path(name))
        run, model = trained_model(folder, device)
        chosen = data or run.data.name
        if location(chosen) == location(run.data.name):
            chosen = run.data.name  # one spelling: figures are compared by it
        size = image_size or (run.image_size if chosen.startswith("folder:") else None)
        split = load(chosen, "test", image_size=size)
        _same_classes(folder, split, chosen)
        results = folder
        doubts: tuple[str, ...] = ()
        if chosen == run.data.name:
            same_test_pictures(folder, chosen)
        else:
            results = folder.on(location(chosen))
        if run.data.name.startswith("folder:"):
            doubts = _trained_on_others(folder, chosen) + shared_pictures(run.data.name, chosen)
        if image_size is not None and image_size != run.image_size:
            results = folder.on(f"{location(chosen)} at {image_size}")
        return Target(
            name,
            model,
            RunFolder(Path(out)) if out else results,
            chosen,
            split,
            code_digest(run.model),
            run.labels,
            config_digest(run),
            run.data.name,
            None if run.method == "undefended" else run.adversary.epsilon,
            doubts,
        )
    if name.endswith(".py"):
        raise UserError(f"{name} names no function: give {name}:FUNCTION, which returns a model")
    if ":" not in name:
        raise UserError(f"no run folder at {name} (file.py:function names your own model)")
    if data is None:
        raise UserError(f"{name} needs --data: a data set's name or folder:PATH")
    split = load(data, "test", image_size=image_size)
    height, width, channels = split.pixels.shape[1:]
    model = build_model(name, len(split.classes), channels, (height, width))
    results = RunFolder(Path(out) if out else Path("evaluations") / safe_name(name))
    digest = code_digest(name) + _attributes(model)
    model = place(model, device)
    digest += _answers(model, DeviceImages(split, device))
    return Target(name, model, results, data, split, digest)


def _trained_on_others(folder: RunFolder, data: str) -> tuple[str, ...]:
    """A warning if a folder's training pictures are not those that a run was trained on.

    If the folder has test pictures of its own, its training pictures do not matter.
    """
    kind, _, path = data.partition(":")
    before = read_about(folder.weights).get("pictures")
    if kind != "folder" or not before or has_test_set(Path(path)):
        return ()
    if training_files(Path(path)) == before:
        return ()
    return (
        f"{data} has other training pictures than when the model was trained (added, removed, "
        "moved or renamed): the model may have been trained on today's test pictures",
    )


def _same_classes(folder: RunFolder, split: Split, data: str) -> None:
    """Refuse data whose classes are not the model's: class numbers would mean different classes."""
    known = read_about(folder.weights)["classes"]
    if list(split.classes) == known:
        return
    said = [
        f"{word} {', '.join(names[:5])}" + (", ..." if len(names) > 5 else "")
        for word, names in (
            ("without", [name for name in known if name not in split.classes]),
            ("with", [name for name in split.classes if name not in known]),
        )
        if names
    ]
    raise UserError(
        f"{data} has other classes than the model in {folder.path}: "
        + (", ".join(said) or "the same in another order")
    )


def code_digest(model: str) -> str:
    """A digest of a user's own model's source: its forward can change while its weights do not."""
    own = ":" in model and not model.startswith("timm:")
    return source_digest(model) if own else ""


def _attributes(model: nn.Module) -> str:
    """A digest of what modules hold besides weights and modules: numbers, text, plain tensors."""
    lines = [
        f"{path} {type(module).__name__} {attribute} {_plain(value)}"
        for path, module in model.named_modules()
        for attribute, value in sorted(vars(module).items())
        if attribute != "training" and not attribute.startswith("_")
    ]
    return f"-{hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:8]}"


def _answers(model: nn.Module, images: DeviceImages) -> str:
    """A digest of a model's predictions for the first images.

    Weights outside the state dict, such as a session of another library, show only in these. It is
    empty if the model fails or its predictions change from call to call.
    """
    numbers = torch.arange(min(ANSWERS, len(images)), device=images.labels.device)
    try:
        given = images.floats(numbers)
        first, again = (predictions(model, given) for _ in range(2))
    except Exception:  # the checks that come next report what is wrong with the model
        return ""
    told = ",".join(map(str, first.tolist()))
    return f"-{hashlib.sha256(told.encode()).hexdigest()[:8]}" if torch.equal(first, again) else ""


def _plain(value: object) -> str:
    """An attribute as text if it is a plain value, otherwise the name of its type."""
    if isinstance(value, Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    if isinstance(value, tuple | list):
        return ", ".join(map(_plain, value))
    known = value is None or isinstance(value, bool | int | float | str)
    return repr(value) if known else type(value).__name__


def _refuse_code_of_the_folder(folder: RunFolder, model: str) -> None:
    """Refuse code that may have come with a run folder; a user's own has a full path outside."""
    file = Path(model.rpartition(":")[0])
    if file.suffix != ".py":
        return
    if not file.is_absolute() or file.resolve().is_relative_to(folder.path.resolve()):
        raise UserError(
            f"{folder.config} asks for code that may have come with it ({model}): not run; inspect "
            "it, and name it yourself as file.py:function"
        )


def trained_model(folder: RunFolder, device: torch.device) -> tuple[Run, nn.Module]:
    """The model that a finished run left, in eval mode."""
    run = folder.read_run()
    if not folder.weights.exists():
        raise no_model(folder)
    _refuse_code_of_the_folder(folder, run.model)
    about = read_about(folder.weights)
    check_trained(folder.weights, about, run)
    size = tuple(about["image_size"])
    if ":" not in run.model:
        check_network(folder.weights, run.model, about)
    model = build_model(run.model, len(about["classes"]), about["channels"], size)
    read_weights(folder.weights, model)
    return run, place(model, device).eval()

"""Functions and models from outside the package: `file.py:function`, `package.module:function`
and `timm:NAME`. Importing this module does not import torch.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bilateral.errors import UserError

if TYPE_CHECKING:
    from torch import nn


def load_function(target: str) -> Callable[..., Any]:
    """The function that `file.py:function` or `package.module:function` names.

    The file's folder, or the current one for a module, is appended to `sys.path`, so that the
    user's code finds its neighbours as it does when Python runs it.
    """
    source, _, name = target.rpartition(":")
    if not source or not name:
        raise UserError(f"'{target}' is not file.py:function or package.module:function")
    is_file = source.endswith(".py") or "/" in source
    if is_file and not Path(source).is_file():
        raise UserError(f"no such file: {source}")
    try:
        module = _module_of_file(Path(source)) if is_file else _module_named(source)
    except (Exception, SystemExit) as error:
        raise UserError(f"importing {source} failed: {_one_line(error)}") from error
    if not hasattr(module, name):
        raise UserError(f"{source} has no function '{name}'{_functions_of(module)}")
    function = getattr(module, name)
    if not callable(function):
        raise UserError(f"{target} is not a function but of type {type(function).__name__}")
    return function  # type: ignore[no-any-return]


def external_model(
    target: str, classes: int, channels: int, image_size: int | tuple[int, int] | None
) -> "nn.Module":
    """What `target`'s function returns, called with the arguments that it accepts.

    An unknown `image_size` is left out, so the function's own default applies.
    """
    from torch import nn

    arguments: dict[str, Any] = {"classes": classes, "channels": channels}
    if image_size is not None:
        arguments["image_size"] = image_size
    function = load_function(target)
    try:
        accepted = _accepted(function, arguments)
    except (TypeError, ValueError) as error:
        given = ", ".join(arguments)
        raise UserError(f"{target}: {error}; the function is given {given}") from None
    try:
        model = function(**accepted)
    except Exception as error:
        raise UserError(f"{target} failed: {_one_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise UserError(f"{target} returned {type(model).__name__}, not a torch.nn.Module")
    try:
        model.train(model.training)
    except NotImplementedError:  # a program of torch.export: its mode is fixed
        from bilateral.models.program import Program

        return Program(model)
    return model


def timm_model(
    name: str, classes: int, channels: int, image_size: int | tuple[int, int] | None
) -> "nn.Module":
    """A fresh timm model behind the normalisation it was designed for."""
    try:
        timm = importlib.import_module("timm")
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "timm":
            raise UserError(f"timm:{name} needs timm; install it: pip install timm") from None
        raise UserError(f"importing timm failed: {_one_line(error)}") from error
    from torch import nn

    from bilateral.models.normalise import Normalise

    def create(**size: Any) -> Any:
        return timm.create_model(
            name, pretrained=False, num_classes=classes, in_chans=channels, **size
        )

    try:
        model = create()
        settings = getattr(model, "default_cfg", {})
        # Transformers are built for one size; convolutional models refuse the argument.
        if image_size is not None and settings.get("fixed_input_size"):
            model = create(img_size=image_size)
    except Exception as error:
        raise UserError(f"timm:{name} failed: {_one_line(error)}") from error
    mean = _per_channel(settings.get("mean", (0.5,)), channels)
    std = _per_channel(settings.get("std", (0.5,)), channels)
    return nn.Sequential(Normalise(mean, std), model)


def _module_of_file(path: Path) -> ModuleType:
    """The file as a module, run afresh on every call."""
    make_importable(path.parent)
    name = f"bilateral_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up while their class is being made.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _module_named(name: str) -> ModuleType:
    make_importable(Path.cwd())
    return importlib.import_module(name)


def make_importable(folder: Path) -> None:
    """Make the code in a folder importable by name; what was importable before comes first."""
    entry = str(folder.resolve())
    if entry not in sys.path:
        sys.path.append(entry)


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those arguments that the function takes by name; TypeError where it needs others."""
    signature = inspect.signature(function)
    parameters = signature.parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        by_name = {
            parameter.name
            for parameter in parameters
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        arguments = {name: value for name, value in arguments.items() if name in by_name}
    signature.bind(**arguments)
    return arguments


def _functions_of(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    return f"; it has {', '.join(names[:12])}" if names else ""


def _per_channel(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """The values if there is one per channel, else their average for all channels."""
    return values if len(values) == channels else (sum(values) / len(values),)


def _one_line(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return f"{type(error).__name__}: {message}" if message else type(error).__name__

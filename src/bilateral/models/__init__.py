"""The networks by name; importing this package does not import torch.

Every model takes images in [0, 1], normalises them itself and returns logits; those in the table
have their final linear layer as `head`.
"""

import importlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bilateral.errors import UserError, unknown

if TYPE_CHECKING:
    from torch import nn

__all__ = ["MODELS", "ModelEntry", "build_model", "model_entry"]


@dataclass(frozen=True)
class ModelEntry:
    """A line of the table: what it is, and the function and settings that build it."""

    summary: str
    builder: str
    settings: dict[str, int] = field(default_factory=dict)


MODELS: dict[str, ModelEntry] = {
    "small-cnn": ModelEntry(
        "three convolutions for 8x8 digits, 94 thousand parameters",
        "bilateral.models.small:small_cnn",
    ),
    "preact-resnet-18": ModelEntry(
        "PreAct ResNet-18 for 32x32 images, 11.2 M parameters",
        "bilateral.models.preact_resnet:preact_resnet_18",
    ),
    "preact-resnet-18-silu": ModelEntry(
        "the same with SiLU in place of ReLU",
        "bilateral.models.preact_resnet:preact_resnet_18",
        {"smooth": True},
    ),
    "wrn-28-10": ModelEntry(
        "Wide ResNet, the paper's network, 36.5 M parameters; any wrn-D-W[-silu], D = 6k + 4",
        "bilateral.models.wide_resnet:wide_resnet",
        {"depth": 28, "width": 10},
    ),
    "wrn-authors": ModelEntry(
        "the Wide ResNet of the authors' released code, 45.9 M parameters",
        "bilateral.models.wide_resnet:authors_wide_resnet",
    ),
    "resnet-50": ModelEntry(
        "ResNet-50 for 224x224 images, 25.6 M parameters",
        "bilateral.models.resnet:resnet",
        {"depth": 50},
    ),
    "resnet-101": ModelEntry(
        "ResNet-101 for 224x224 images, 44.5 M parameters",
        "bilateral.models.resnet:resnet",
        {"depth": 101},
    ),
    "resnet-152": ModelEntry(
        "ResNet-152 for 224x224 images, 60.2 M parameters",
        "bilateral.models.resnet:resnet",
        {"depth": 152},
    ),
}


def model_entry(name: str) -> ModelEntry:
    """The entry of a name in the table, or of any `wrn-D-W` or `wrn-D-W-silu`."""
    if name in MODELS:
        return MODELS[name]
    wide = re.fullmatch(r"wrn-([0-9]{1,9})-([0-9]{1,9})(-silu)?", name)
    if wide is None:
        if name.endswith(".py"):
            raise UserError(f"which function of {name} builds the model? write {name}:FUNCTION")
        raise unknown("model", name, MODELS)
    depth, width = int(wide[1]), int(wide[2])
    if depth < 10 or depth % 6 != 4:
        raise UserError(f"'{name}': the depth D of wrn-D-W must be 6k + 4 (10, 16, 22, 28, ...)")
    if depth > 1000 or width > 100:
        raise UserError(f"'{name}': the depth must be at most 1000 and the width at most 100")
    if width < 1:
        raise UserError(f"'{name}': the width W of wrn-D-W must be at least 1")
    return ModelEntry(
        f"Wide ResNet of depth {depth} and width {width}" + (", with SiLU" if wide[3] else ""),
        MODELS["wrn-28-10"].builder,
        {"depth": depth, "width": width} | ({"smooth": True} if wide[3] else {}),
    )


def build_model(
    name: str, classes: int, channels: int = 3, image_size: int | tuple[int, int] | None = None
) -> "nn.Module":
    """A fresh model: a name in `MODELS`, `wrn-D-W`, `file.py:function`, `package.module:function`
    or `timm:NAME`.

    `image_size` is for models from outside: those in the table take images of any size.
    """
    if ":" in name:
        from bilateral.models.external import external_model, timm_model

        if name.startswith("timm:"):
            return timm_model(name.removeprefix("timm:"), classes, channels, image_size)
        return external_model(name, classes, channels, image_size)
    entry = model_entry(name)
    module, _, function = entry.builder.partition(":")
    builder = getattr(importlib.import_module(module), function)
    model: nn.Module = builder(**entry.settings, classes=classes, channels=channels)
    return model

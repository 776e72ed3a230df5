"""First questions to a model: whether it takes the images, and which layer makes its logits."""

import torch
from torch import Tensor, nn

from bilateral.errors import UserError


def output_of(model: nn.Module, image: Tensor, name: str = "the model") -> Tensor:
    """The outputs for some images in eval mode; whatever the model raises becomes one line."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(image)
    except Exception as error:  # whatever a user's own model raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        shape = tuple(image.shape[1:])
        raise UserError(f"{name} does not take images of shape {shape}: {reason}") from None
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(outputs, Tensor):
        raise UserError(f"{name} returns {type(outputs).__name__}, not a tensor of logits")
    return outputs


def last_linear_name(model: nn.Module, classes: int) -> str | None:
    """The name of the last linear layer with an output for each class, if there is one."""
    fitting = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == classes
    ]
    return fitting[-1] if fitting else None

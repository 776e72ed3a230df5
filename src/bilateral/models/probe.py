"""What is asked of a model before anything is spent on it: does it take the images, how it ends."""

import torch
from torch import Tensor, nn

from bilateral.errors import UserError


def output_of(model: nn.Module, image: Tensor, name: str = "the model") -> Tensor:
    """The outputs for one image in eval mode; what goes wrong is one line."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            outputs = model(image)
    except Exception as error:  # whatever somebody's own model raises
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
    """Where the linear layer lies that makes the logits, if there is one."""
    fitting = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module.out_features == classes
    ]
    return fitting[-1] if fitting else None

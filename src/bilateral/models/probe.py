"""Whether a model takes the images it is given, asked before anything is spent on it."""

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

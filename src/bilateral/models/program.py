"""A `torch.export` program as a model whose mode can be set, which changes nothing in it."""

from torch import Tensor, nn


class Program(nn.Module):
    """Wraps what `torch.export.load(...).module()` returns: it refuses `train()` and `eval()`."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> "Program":
        """Set the mode of this module alone."""
        self.training = mode
        return self

    def forward(self, images: Tensor) -> Tensor:
        """The program's logits."""
        logits: Tensor = self.program(images)
        return logits

"""Small networks that several attack tests share."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bilateral
from bilateral.config import Adversary, Labels
from bilateral.method import perturb

DIGITS = Path(bilateral.__path__[0]) / "data" / "digits.npz"


class Counted(nn.Module):
    """A model that counts the images passed forwards and backwards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forwards, self.backwards = model, 0, 0

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += len(images)
        if images.requires_grad:
            images.register_hook(self._passed_backwards)  # type: ignore[no-untyped-call]
        logits: Tensor = self.model(images)
        return logits

    def _passed_backwards(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


class Recorded(nn.Module):
    """A model that writes down what passed forwards and backwards."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.predictions: list[Tensor] = []
        self.images: list[Tensor] = []
        self.backwards = 0

    def forward(self, images: Tensor) -> Tensor:
        if images.requires_grad:
            images.register_hook(self._passed_backwards)  # type: ignore[no-untyped-call]
        logits: Tensor = self.model(images)
        self.predictions.append(logits.detach().argmax(1))
        self.images.append(images.detach().clone())
        return logits

    def _passed_backwards(self, gradient: Tensor) -> None:
        self.backwards += len(gradient)


@cache
def trained_on_digits(pixels: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A network trained on the digits for a second, and the first 200 test images.

    It is undefended, or trained with one-step adversaries of a budget in 255ths.
    """
    torch.manual_seed(0)
    stored = np.load(DIGITS)
    images, test_images = (
        torch.from_numpy(stored[name]).permute(0, 3, 1, 2).contiguous().float() / 255
        for name in ("train-pixels", "test-pixels")
    )
    labels, test_labels = (
        torch.from_numpy(stored[name]).long() for name in ("train-labels", "test-labels")
    )
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(8):
        for batch in torch.split(torch.randperm(len(images)), 64):
            inputs = images[batch]
            if pixels:
                budget = pixels / 255
                adversary = Adversary(epsilon=budget, step_size=budget, clip_start=True)
                one_hot = Labels(rule="one-hot")
                inputs, _, _ = perturb(model, inputs, labels[batch], adversary, one_hot)
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(model(inputs), labels[batch]))
            optimiser.step()
    model.eval().zero_grad(set_to_none=True)
    return model, test_images[:200], test_labels[:200]


def centred(model: nn.Sequential, channels: int = 1, side: int = 6) -> nn.Sequential:
    """The model with its last bias moved so that every class is predicted now and then."""
    with torch.no_grad():
        layer = model[-1]
        assert isinstance(layer, nn.Linear)
        layer.bias.sub_(model(random_images(64, channels, side=side, seed=9)).mean(0))
    return model


def convolutional(classes: int = 10) -> nn.Sequential:
    """An untrained network for 6x6 images of three channels."""
    torch.manual_seed(1)
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU())
    return centred(nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 2 * 2, classes)), 3)


def random_images(count: int, channels: int = 1, side: int = 6, seed: int = 0) -> Tensor:
    """Uniform noise."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, channels, side, side, generator=generator)


def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """The classes that a model sees."""
    with torch.no_grad():
        logits: Tensor = model(images)
    return logits.argmax(1)

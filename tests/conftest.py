"""What several tests share: small models, and trainings that are interrupted."""

import os
from contextlib import contextmanager

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny networks: a second thread only waits

import pytest
import torch
from torch import Tensor, nn

from bilateral.errors import Interrupted
from bilateral.runtime import StopRequest

torch.set_num_threads(1)

LONG = (
    "test_reproduce",
    "test_cli",
    "test_guard",
    "test_processes",
    "test_together",
    "test_sweeps",
)
"""Files of half a minute and more: begun first, so that no core waits for another at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in LONG)


class Linear(nn.Module):
    """A linear classifier on images: every worst case is known in closed form."""

    def __init__(self, classes: int = 5, shape: tuple[int, int, int] = (3, 6, 6), seed: int = 0):
        super().__init__()
        self.head = nn.Linear(shape[0] * shape[1] * shape[2], classes)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.head.weight.normal_(generator=generator)
            self.head.bias.zero_()
        self.shape = shape

    def forward(self, images: Tensor) -> Tensor:
        return self.head(images.flatten(1) - 0.5)


class Convolutional(nn.Module):
    """A small network with batch norm and dropout, so that its mode matters."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.5)
        )
        self.head = nn.Linear(8, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images).mean((2, 3)))


@pytest.fixture
def linear() -> Linear:
    return Linear()


@pytest.fixture
def two_classes() -> Linear:
    return Linear(classes=2)


@pytest.fixture
def convolutional() -> Convolutional:
    torch.manual_seed(0)
    model = Convolutional().eval()
    with torch.no_grad():  # without this an untrained network gives every image the same class
        model.head.bias -= model(torch.rand(500, 3, 6, 6)).mean(0)
    return model


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    """Sixteen images and labels."""
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(16, 3, 6, 6, generator=generator)
    return images, torch.randint(0, 5, (16,), generator=generator)


class StopAfter(StopRequest):
    """A signal after so many looks at the flag: one look a step."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self.looks = looks

    @property
    def number(self):
        self.looks -= 1
        return 15 if self.looks < 0 else None

    @number.setter
    def number(self, value) -> None:
        pass


@pytest.fixture
def stopped_after(monkeypatch):
    """`with stopped_after(3): train(...)`: it is interrupted after the fourth step."""

    @contextmanager
    def stopped(looks: int):
        with monkeypatch.context() as patch, pytest.raises(Interrupted):
            patch.setattr("bilateral.training.trainer.StopRequest", lambda: StopAfter(looks))
            yield

    return stopped

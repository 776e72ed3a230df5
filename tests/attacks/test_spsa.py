"""SPSA against known gradients, and on networks without useful ones."""

from pathlib import Path

import pytest
import torch
from small_models import trained_on_digits
from torch import Tensor, nn

import bilateral
from bilateral.attacks import ball
from bilateral.attacks import spsa as module
from bilateral.attacks.gradient import gradient_attack
from bilateral.attacks.settings import SPSA
from bilateral.attacks.spsa import spsa
from bilateral.config import GradientAttack

DIGITS = Path(bilateral.__path__[0]) / "data" / "digits.npz"
QUICK = SPSA(epsilon=60 / 255, steps=20, samples=32, learning_rate=0.05)


class Rounded(nn.Module):
    """Pixels rounded to 32 levels: the gradient is zero everywhere."""

    def forward(self, images: Tensor) -> Tensor:
        return (images * 31).round() / 31


class Counted(nn.Module):
    """A model that counts images and refuses to record gradients."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forwards, self.largest = model, 0, 0

    def forward(self, images: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        self.forwards += len(images)
        self.largest = max(self.largest, len(images))
        logits: Tensor = self.model(images)
        return logits


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """An undefended network, and 40 test images that it gets right."""
    model, images, labels = trained_on_digits()
    right = (model(images).argmax(1) == labels).nonzero().squeeze(1)[:40]
    return model, images[right], labels[right]


def linear_model(classes: int) -> tuple[nn.Module, Tensor]:
    """A linear model without bias, and its weights."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, classes, bias=False))
    weight = torch.randn(classes, 48, generator=torch.Generator().manual_seed(classes))
    model[1].weight.data = weight
    return model, weight


@pytest.mark.parametrize("classes", [2, 3])
def test_estimate_is_the_gradient_of_a_linear_margin(classes: int) -> None:
    model, weight = linear_model(classes)
    images = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(images)
        labels = logits.argmax(1)
        runner_up = logits.scatter(1, labels[:, None], -torch.inf).argmax(1)
        keys = torch.arange(3)
        attack = SPSA(samples=4096, probe_size=1e-4)
        estimate = module._estimate(model, images, labels, attack, keys).flatten(1)
    true = weight[runner_up] - weight[labels]
    # 2,048 pairs in 48 dimensions: the relative error is about sqrt(47 / 2048) = 0.15.
    error = (estimate - true).norm(dim=1) / true.norm(dim=1)
    assert (error < 0.25).all()


def test_undefended_network_is_broken_inside_the_ball(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    model, images, labels = digits
    attacked = spsa(model, images, labels, QUICK)
    assert attacked.fooled.float().mean() > 0.6
    assert ball.inside(attacked.images, images, QUICK.epsilon).all()
    assert torch.equal(model(attacked.images).argmax(1) != labels, attacked.fooled)


def test_rounded_inputs_stop_gradients_but_not_spsa(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    model, images, labels = digits
    rounded = nn.Sequential(Rounded(), model)
    right = rounded(images).argmax(1) == labels
    images, labels = images[right], labels[right]
    walk = GradientAttack(epsilon=60 / 255, steps=10, step_size=15 / 255, random_start=False)
    assert not gradient_attack(rounded, images, labels, walk).fooled.any()
    probing = SPSA(**{**QUICK.model_dump(), "probe_size": 0.05})
    assert spsa(rounded, images, labels, probing).fooled.float().mean() > 0.6


def test_passes_are_counted_without_gradients_and_broken_images_leave(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    model, images, labels = digits
    counted = Counted(model)
    attacked = spsa(counted, images, labels, QUICK)
    assert (attacked.forwards, attacked.backwards) == (counted.forwards, 0)
    assert counted.largest <= module.IMAGES_PER_FORWARD
    everything = len(labels) * (1 + QUICK.steps * (1 + QUICK.samples))
    survivors = int((~attacked.fooled).sum())
    assert attacked.forwards < everything * (survivors + 0.8 * (40 - survivors)) / 40
    wrong = spsa(model, images, (labels + 1) % 10, QUICK)
    assert wrong.fooled.all()
    assert wrong.forwards == len(labels)
    assert torch.equal(wrong.images, images)


def test_keys_decide_and_neither_batch_size_nor_order_matters(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    model, images, labels = digits
    keys = torch.arange(40) * 7919
    attack = SPSA(epsilon=40 / 255, steps=8, samples=32, learning_rate=0.05)
    whole = spsa(model, images, labels, attack, keys)
    assert 3 < whole.fooled.sum() < 37
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    parts = [
        spsa(model, images[some], labels[some], attack, keys[some])
        for some in torch.split(order, 7)
    ]
    assert torch.equal(torch.cat([part.fooled for part in parts]), whole.fooled[order])
    moved = torch.cat([part.images for part in parts])
    assert torch.allclose(moved, whole.images[order], atol=1e-3)
    alone = spsa(model, images[:1], labels[:1], attack, keys[:1])
    assert torch.allclose(alone.images, whole.images[:1], atol=1e-3)
    other = spsa(model, images, labels, attack, keys + 1)
    assert not torch.allclose(other.images, whole.images, atol=1e-3)


def test_channels_last_images_and_low_precision_logits() -> None:
    class Half(nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return logits.half()

    model, _ = linear_model(4)
    images = torch.rand(10, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    labels, keys = model(images).argmax(1), torch.arange(10)
    attack = SPSA(epsilon=0.05, steps=5, samples=32, probe_size=0.05, learning_rate=0.05)
    plain = spsa(model, images, labels, attack, keys)
    wide = spsa(model, images.to(memory_format=torch.channels_last), labels, attack, keys)
    assert torch.allclose(plain.images, wide.images, atol=1e-4)
    half = spsa(nn.Sequential(model, Half()), images, labels, attack, keys)
    assert half.images.dtype == torch.float32
    assert (half.fooled != plain.fooled).sum() <= 1


def test_an_odd_number_of_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 2"):
        SPSA(samples=33)

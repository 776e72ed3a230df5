"""The binarization test: a good attack finds what was planted, a shuffled gradient does not."""

import pytest
import torch
from torch import nn

from bilateral.attacks.apgd import apgd
from bilateral.attacks.settings import APGD
from bilateral.errors import UserError
from bilateral.evaluation.binarization import binarization_test
from bilateral.models import build_model
from bilateral.randomness import image_keys

EPSILON = 0.1
KEYS = image_keys(3, torch.arange(16))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build_model("small-cnn", 10, 1, (8, 8)).eval()


@pytest.fixture(scope="module")
def images():
    return torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def search(model, images, labels, epsilon):
    settings = APGD(epsilon=epsilon, steps=30, loss="margin")
    return apgd(model, images, labels, settings, KEYS[: len(images)]).images


class Shuffled(nn.Module):
    """The same outputs; the gradient's pixels change places."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        places = torch.randperm(images[0].numel(), generator=torch.Generator().manual_seed(5))
        passed = images.clone()
        if passed.requires_grad:
            passed.register_hook(lambda gradient: gradient.flatten(1)[:, places].view_as(gradient))
        return self.model(passed)


def shuffled_search(model, images, labels, epsilon):
    return search(Shuffled(model), images, labels, epsilon)


def test_apgd_passes_and_a_shuffled_gradient_fails(model, images):
    passed = binarization_test(model, images, EPSILON, search, keys=KEYS)
    failed = binarization_test(model, images, EPSILON, shuffled_search, keys=KEYS)
    assert passed.images == failed.images == 16
    assert passed.success_rate >= 0.9
    assert failed.success_rate <= 0.2
    assert passed.random_rate == failed.random_rate <= 0.3


def test_an_attack_that_leaves_the_ball_finds_nothing(model, images):
    def outside(model, images, labels, epsilon):
        return search(model, images, labels, 2 * epsilon)

    far = binarization_test(model, images, EPSILON, outside, keys=KEYS)
    assert far.success_rate <= 0.2


def test_what_the_attack_sees(model, images):
    """The clean image is of the first class, as far from the boundary as in the model itself."""
    with torch.no_grad():
        leading = model(images).topk(2).values
    gaps = []

    def look(two, clean, labels, epsilon):
        with torch.no_grad():
            first, second = two(clean)[0]
        gaps.append(float(first - second))
        return clean

    result = binarization_test(model, images, EPSILON, look, keys=KEYS)
    assert result.success_rate == 0
    assert gaps == pytest.approx((leading[:, 0] - leading[:, 1]).tolist(), rel=1e-2, abs=1e-4)


def test_the_model_is_left_as_it_was(model, images):
    model.train()
    with torch.no_grad():
        before = {name: value.clone() for name, value in model.state_dict().items()}
    binarization_test(model, images[:2], EPSILON, search, keys=KEYS)
    assert model.training and not model.head._forward_hooks
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    model.eval()
    assert model(images).shape == (16, 10)


def test_a_model_without_a_linear_layer_is_refused(images):
    with pytest.raises(UserError, match="linear layer"):
        binarization_test(nn.Flatten(), images, EPSILON, search, keys=KEYS)

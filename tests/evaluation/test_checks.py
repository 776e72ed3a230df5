"""The checks' limits and sums by hand, on models whose gradients are known."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bilateral.evaluation.checks import CHECKS, read
from bilateral.evaluation.checks_gradients import (
    gradient_readings,
    loss_surface,
    output_readings,
)
from bilateral.evaluation.diagnosis import Effort
from bilateral.evaluation.subject import Subject
from bilateral.randomness import image_keys

WORDS = {"a quarter": 0.25, "a tenth": 0.1, "half": 0.5}


def numbers_in(text):
    """What a sentence tells, as it is and in hundredths."""
    found = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    words = [value for word, value in WORDS.items() if word in text]
    return [*found, *(number / 100 for number in found), *words]


@pytest.mark.parametrize("name", [name for name in CHECKS if CHECKS[name].limit])
def test_limits_are_those_that_are_told(name):
    """In the sentence that is printed; what masks stands in brackets where it is another one."""
    check = CHECKS[name]
    usual, _, rest = check.raised_if.partition("(masked")
    assert any(math.isclose(check.limit, number) for number in numbers_in(usual))
    if check.masked in (None, check.limit):
        assert rest == ""
    else:
        assert any(math.isclose(check.masked, number) for number in numbers_in(rest))


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_raised_on_the_wrong_side_of_its_limit_alone(name):
    check = CHECKS[name]
    past, short = (check.limit * (1 + way) + way * 1e-9 for way in (1e-6, -1e-6))
    if check.below:
        past, short = short, past
    assert read(name, past).raised and not read(name, short).raised
    assert not read(name, check.limit).raised
    for value in (past, short):  # what it would be, where it is not raised
        severity = "masked" if check.masked == check.limit else "suspect"
        assert read(name, value).severity == severity
    assert not read(name, past, applies=False).raised
    assert not read(name, past, applies=False).unsure
    assert not read(name, None).raised and not read(name, math.inf).raised


def test_a_share_must_be_past_the_limit_surely():
    """0.14 - 1.645 sqrt(0.14 * 0.86 / n) is past 0.13 from 3,259 images and past 0.06 from 51."""
    readings = {n: read("pgd-apgd-gap", 0.14, images=n) for n in (3259, 3258, 51, 50)}
    told = {n: (one.raised, one.severity, one.limit) for n, one in readings.items()}
    assert told == {
        3259: (True, "masked", 0.13),
        3258: (True, "suspect", 0.06),
        51: (True, "suspect", 0.06),
        50: (False, "suspect", 0.06),
    }
    assert [readings[n].unsure for n in (51, 50)] == [False, True]
    below = read("pgd-apgd-gap", 0.05, images=50)
    assert not below.raised and not below.unsure


def test_a_difference_below_nothing_is_no_share():
    """FGSM usually leaves fewer images than there were: the reading is negative and fine."""
    found = read("label-leaking", -0.3, images=100)
    assert (found.value, found.raised, found.unsure) == (-0.3, False, False)


def subject(model, images, labels=None, epsilon=0.02):
    labels = model(images).argmax(1) if labels is None else labels
    keys = image_keys(0, torch.arange(len(images)))
    return Subject(model.eval(), images, labels, epsilon, keys, 64, Effort(steps=2))


def readings(found):
    return {one.name: one for one in found}


class Clipping(nn.Module):
    """A linear model of what is left of images in [0, 1]."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, images):
        return self.linear(images.clamp(0, 1))


def test_black_and_white_images_do_not_accuse_a_linear_model(linear, batch):
    """A step is cut where pixels end, and so is what the gradient promises of it."""
    images = batch[0].round()
    for model in (linear, Clipping(linear)):
        found = readings(gradient_readings(subject(model, images), None))
        assert found["gradient-mismatch"].value == pytest.approx(0, abs=1e-3)
    found = readings(gradient_readings(subject(linear, images, epsilon=1e-3), None))
    assert found["local-linearity"].value == pytest.approx(1, abs=0.02)
    assert found["gradient-alignment"].value == pytest.approx(1, abs=0.05)
    assert not any(one.raised for one in found.values())


class Torn(nn.Module):
    """The gradient turns around every thousandth of a grey level; the class never changes."""

    def forward(self, images):
        waves = 1e-4 * torch.sin(6e5 * images).flatten(1).sum(1)
        return torch.stack([1 + waves, -waves], 1)


def test_a_rugged_surface_counts_where_something_is_claimed(batch):
    """An accuracy of nothing hides nothing."""
    names = ("gradient-alignment", "local-linearity")
    for labels, claims in ((0, True), (1, False)):
        those = torch.full((16,), labels)
        found = readings(gradient_readings(subject(Torn(), batch[0], those), None))
        for name in names:
            assert abs(found[name].value) < 0.1
            assert found[name].raised is claims and not found[name].unsure
            assert found[name].details == {"pgd_accuracy": float(claims)}


class Fixed(nn.Module):
    """The same outputs for every image."""

    def __init__(self, *outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, images):
        return torch.tensor([self.outputs]).repeat(len(images), 1) + 0 * images.sum()


@pytest.mark.parametrize(
    ("outputs", "raised"),
    [
        ((0.2, 0.8, 0.0), True),
        ((-0.5, 0.8, 0.7), False),  # a sum of one, and not a probability
        ((0.2, 0.8, 0.1), False),
    ],
)
def test_probabilities_are_not_negative_and_sum_to_one(batch, outputs, raised):
    found = readings(output_readings(subject(Fixed(*outputs), batch[0])))
    assert found["softmax-outputs"].raised is raised
    first, second, _ = sorted(outputs, reverse=True)
    assert found["saturated-logits"].value == pytest.approx(first - second)
    assert found["changing-outputs"].value == 0


@pytest.mark.parametrize(("zeros", "raised"), [(0, False), (3, False), (16, True)])
def test_a_gradient_is_zero_when_all_of_it_is(linear, batch, zeros, raised):
    """Of squared pixels black ones have none; an image has none where all are black."""

    class Squared(nn.Module):
        def forward(self, images):
            return linear(images.square())

    images = batch[0].clone()
    images[:, :, 0] = 0
    images[:zeros] = 0
    one = readings(gradient_readings(subject(Squared(), images), None))["zero-gradients"]
    assert one.value == zeros / 16 and one.raised is raised
    elements = (16 * 18 + zeros * 90) / (16 * 108)
    assert one.details["share_of_zero_elements"] == pytest.approx(elements)


def test_the_surface_is_that_of_images_inside_the_range(linear, batch):
    images = batch[0].round()
    labels = batch[1]
    surface = loss_surface(subject(linear, images, labels, epsilon=0.1), points=3)
    count = surface.images
    inputs = images[:count].clone().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(linear(inputs), labels[:count]), inputs)
    for place, way in enumerate((-1, 0, 1)):
        moved = (images[:count] + way * 0.1 * slope.sign()).clamp(0, 1)
        expected = float(F.cross_entropy(linear(moved), labels[:count]).detach())
        assert surface.loss[place][1] == pytest.approx(expected, rel=1e-4)

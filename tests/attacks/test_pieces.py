"""Pieces of other one-step methods: where a step may end, and a guided loss."""

import pytest
import torch
from pydantic import ValidationError

from bilateral.attacks.gradient import gradient_attack
from bilateral.attacks.perform import perform
from bilateral.attacks.settings import OwnAttack
from bilateral.config import Adversary, GradientAttack
from bilateral.randomness import image_keys

EPSILON = 0.1


def wide(projection, **fields):
    """N-FGSM: noise of twice the budget, a step of the budget."""
    return Adversary(
        epsilon=EPSILON, step_size=EPSILON, start_width=2.0, projection=projection, **fields
    )


@pytest.fixture
def edge(batch):
    """Images that touch black and white, so that noise leaves the range."""
    images, labels = batch
    return images.round(), labels


def attacked(model, batch, settings):
    keys = image_keys(0, torch.arange(len(batch[0])))
    return gradient_attack(model, *batch, settings, keys).images


def test_without_projection_the_whole_noise_stays(linear, edge):
    found = {kind: attacked(linear, edge, wide(kind)) for kind in ("ball", "range", "none")}
    apart = {kind: (images - edge[0]).abs().amax() for kind, images in found.items()}
    assert apart["ball"] <= EPSILON + 1e-6
    assert 2.5 * EPSILON < apart["none"] <= 3 * EPSILON + 1e-6, "noise of two and a step of one"
    assert found["none"].min() < 0 and found["none"].max() > 1
    assert found["range"].min() == 0 and found["range"].max() == 1
    torch.testing.assert_close(found["range"], found["none"].clamp(0, 1))


def test_on_a_linear_model_the_step_is_added_to_the_noise(linear, edge):
    """Every gradient is the same, so the result is start + step * sign exactly."""
    noise = attacked(linear, edge, wide("none", target="none"))
    still = Adversary(
        epsilon=EPSILON, step_size=1e-6, start_width=2.0, projection="none", target="none"
    )
    start = attacked(linear, edge, still)
    torch.testing.assert_close((noise - start).abs(), torch.full_like(noise, EPSILON - 1e-6))


def test_from_corners_of_half_the_budget_a_whole_step_ends_at_two_distances(linear, batch):
    """NuAT's start: a pixel that began on the step's side is cut at the ball, others end half way.

    In between, so that the range of an image cuts nothing.
    """
    images, labels = 0.25 + 0.5 * batch[0], batch[1]
    settings = Adversary(epsilon=EPSILON, step_size=EPSILON, start_width=0.5, start_corners=True)
    apart = (attacked(linear, (images, labels), settings) - images).abs() / EPSILON
    near, far = (apart - 0.5).abs() < 1e-4, (apart - 1.0).abs() < 1e-4
    assert bool((near | far).all()) and 0.4 < float(near.float().mean()) < 0.6


def test_an_evaluation_stays_in_the_ball():
    with pytest.raises(ValidationError, match="iterate = any needs projection = ball"):
        GradientAttack(projection="none")


def test_a_guided_step_follows_the_change_of_the_prediction(linear, batch):
    """With a large weight the step increases the squared change, not the cross-entropy."""
    images, labels = batch
    keys = image_keys(0, torch.arange(len(images)))
    reference = linear(images).detach()
    clean = reference.softmax(1)

    def moved(settings):
        found = gradient_attack(linear, images, labels, settings, keys, reference).images
        return (linear(found).softmax(1) - clean).pow(2).sum(1).mean()

    small = {"epsilon": EPSILON, "step_size": EPSILON}
    assert moved(Adversary(**small, guide=1e4)) > moved(Adversary(**small))


def test_a_guided_step_is_along_the_sum_of_both(linear, batch):
    """The sign of the gradient of cross-entropy plus the weighted squared change, written out."""
    images, labels = 0.2 + 0.6 * batch[0], batch[1]
    reference = linear(images.flip(0)).detach()
    settings = Adversary(epsilon=EPSILON, step_size=0.01, random_start=False, guide=5.0)
    keys = image_keys(0, torch.arange(len(images)))
    found = gradient_attack(linear, images, labels, settings, keys, reference).images
    inputs = images.clone().requires_grad_()
    shares = linear(inputs).softmax(1)
    loss = -shares.gather(1, labels[:, None]).log().sum()
    loss = loss + 5 * (shares - reference.softmax(1)).pow(2).sum()
    (slope,) = torch.autograd.grad(loss, inputs)
    torch.testing.assert_close(found, images + 0.01 * slope.sign())


def test_somebodys_attack_that_leaves_the_ball_is_told_of(linear, batch, tmp_path):
    """Its images do not count, and a figure untouched by it must not look like robustness."""
    (tmp_path / "far.py").write_text(
        "def far(model, images, labels, epsilon):\n    return images + 2 * epsilon\n"
        "def near(model, images, labels, epsilon):\n    return images.clone()\n"
    )
    images, labels = batch
    keys = image_keys(0, torch.arange(len(images)))
    far, near = (OwnAttack(target=f"{tmp_path}/far.py:{name}") for name in ("far", "near"))
    with pytest.warns(UserWarning, match=r"far: 16 of 16 images lie outside the ball of 8/255"):
        perform(linear, images, labels, far, keys)
    perform(linear, images, labels, near, keys)

"""The gradient loop against closed-form optima on a linear classifier, and foolbox's PGD."""

import pytest
import torch
from small_models import Counted, Recorded
from torch import nn

from bilateral.attacks.ball import inside
from bilateral.attacks.gradient import gradient_attack
from bilateral.attacks.losses import largest_wrong, true_logit
from bilateral.attacks.targets import choose_targets
from bilateral.config import GradientAttack
from bilateral.randomness import image_keys, uniform

EPSILON = 8 / 255


def keys_of(labels):
    return image_keys(5, torch.arange(len(labels)))


def attack(model, images, labels, **fields):
    settings = GradientAttack(**{"iterate": "last", "random_start": False, **fields})
    return gradient_attack(model, images, labels, settings, keys_of(labels))


def away_from_the_edges(images):
    return 0.2 + 0.6 * images


@pytest.mark.parametrize("target", ["most-confusing", "least-likely", "random", "nearest"])
def test_one_targeted_step_moves_the_logit_gap_by_epsilon_times_l1(linear, batch, target):
    """With the margin loss the gap of target and true class moves by exactly epsilon ||w||_1."""
    images, labels = away_from_the_edges(batch[0]), batch[1]
    before = linear(images)
    targets = choose_targets(target, before, labels, keys_of(labels), linear)
    after = linear(attack(linear, images, labels, target=target, loss="margin").images)
    gap = true_logit(after - before, targets) - true_logit(after - before, labels)
    weights = linear.head.weight[targets] - linear.head.weight[labels]
    torch.testing.assert_close(gap, EPSILON * weights.abs().sum(1), rtol=1e-4, atol=1e-5)


def test_untargeted_margin_reaches_the_worst_case_of_two_classes(two_classes, batch):
    model, images, labels = two_classes, away_from_the_edges(batch[0]), batch[1] % 2
    worst = EPSILON * (model.head.weight[0] - model.head.weight[1]).abs().sum()
    for fields in (
        {"loss": "margin"},
        {"loss": "cross-entropy"},
        {"steps": 20, "step_size": 2 / 255},
    ):
        after = model(attack(model, images, labels, **fields).images)
        before = model(images)
        moved = (largest_wrong(after, labels) - true_logit(after, labels)) - (
            largest_wrong(before, labels) - true_logit(before, labels)
        )
        torch.testing.assert_close(moved, worst.expand(16), rtol=1e-4, atol=1e-5)


def test_targets_are_what_they_are_called(linear, batch):
    images, labels = batch
    logits = linear(images).detach()
    wrong = logits.clone()
    wrong[torch.arange(16), labels] = -torch.inf
    chosen = {
        kind: choose_targets(kind, logits, labels, keys_of(labels), linear)
        for kind in ("most-confusing", "least-likely", "random", "nearest")
    }
    assert torch.equal(chosen["most-confusing"], wrong.argmax(1))
    wrong[torch.arange(16), labels] = torch.inf
    assert torch.equal(chosen["least-likely"], wrong.argmin(1))
    weights = linear.head.weight.detach()
    for image in range(16):
        true = int(labels[image])
        assert chosen["random"][image] != true
        distances = [
            float("inf")
            if k == true
            else float(
                (logits[image, true] - logits[image, k]) / (weights[true] - weights[k]).norm()
            )
            for k in range(5)
        ]
        assert int(chosen["nearest"][image]) == distances.index(min(distances))
    assert choose_targets("none", logits, labels, keys_of(labels), linear) is None


class ThreeLayers(nn.Module):
    """The layer that makes the logits is neither the first of its width nor the last of all."""

    def __init__(self):
        super().__init__()
        self.first, self.head, self.aside = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)
        self.first.weight.data = torch.eye(3)
        self.head.weight.data = torch.tensor([[0.0, 0, 0], [10.0, 0, 0], [0.1, 0, 0]])


def test_the_nearest_boundary_is_measured_in_the_last_layer():
    """Class 2 is the more confusing one, and a hundred times less far apart in weights."""
    logits, labels = torch.tensor([[6.0, 1.0, 5.0]]), torch.tensor([0])
    choose = {
        kind: int(choose_targets(kind, logits, labels, keys_of(labels), ThreeLayers()))
        for kind in ("most-confusing", "nearest")
    }
    assert choose == {"most-confusing": 2, "nearest": 1}, "distances of 5 / 10 and 1 / 0.1"


def test_random_targets_are_all_wrong_classes_alike_whatever_the_noise():
    """Each wrong class as often as the others, and the start of an image does not tell which."""
    labels = torch.arange(6000) % 4
    keys, logits = image_keys(0, torch.arange(6000)), torch.zeros(6000, 4)
    steps = (choose_targets("random", logits, labels, keys, nn.Identity()) - labels) % 4
    noise = uniform(keys, (1,)).squeeze(1)
    assert set(steps.tolist()) == {1, 2, 3}
    for step in (1, 2, 3):
        chosen = noise[steps == step]
        assert abs(len(chosen) - 2000) < 5 * (6000 * 2 / 9) ** 0.5
        assert abs(float(chosen.mean()) - 0.5) < 5 * (1 / 12 / len(chosen)) ** 0.5


def test_any_iterate_counts_and_the_images_leave_the_batch(linear, batch):
    images = batch[0]
    labels = linear(images).argmax(1)
    settings = GradientAttack(steps=20, step_size=2 / 255, clip_start=True, epsilon=0.3)
    found = gradient_attack(linear, images, labels, settings, keys_of(labels))
    assert found.fooled.any()
    assert torch.equal(linear(found.images).argmax(1) != labels, found.fooled)
    assert inside(found.images, images, 0.3).all()
    # All break within a few steps, so far fewer images pass the network than 21 for each.
    assert found.forwards < 16 * 12


def test_flags_do_not_depend_on_batch_or_order(convolutional, batch):
    images = batch[0]
    labels = convolutional(images).argmax(1)
    settings = GradientAttack(steps=5, step_size=0.05, clip_start=True, epsilon=0.2, restarts=2)
    keys = keys_of(labels)
    whole = gradient_attack(convolutional, images, labels, settings, keys)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    shuffled = gradient_attack(convolutional, images[order], labels[order], settings, keys[order])
    assert torch.equal(shuffled.fooled, whole.fooled[order])
    for place in range(16):
        one = slice(place, place + 1)
        alone = gradient_attack(convolutional, images[one], labels[one], settings, keys[one])
        assert bool(alone.fooled) == bool(whole.fooled[place])


def test_restarts_only_add(linear, batch):
    images = batch[0]
    labels = linear(images).argmax(1)
    counts = []
    for restarts in (1, 5):
        settings = GradientAttack(epsilon=0.02, step_size=0.001, restarts=restarts, clip_start=True)
        found = gradient_attack(linear, images, labels, settings, keys_of(labels))
        counts.append(int(found.fooled.sum()))
    assert counts[1] >= counts[0]


def test_every_restart_is_from_noise_of_its_own(linear, batch):
    images = batch[0]
    labels = linear(images).argmax(1)
    model = Recorded(linear)
    settings = GradientAttack(epsilon=1e-4, step_size=1e-5, restarts=3, clip_start=True)
    found = gradient_attack(model, images, labels, settings, keys_of(labels))
    assert not found.fooled.any()
    starts = model.images[::2]  # each followed by its one step's end
    assert len(starts) == 3 and all(inside(start, images, 1e-4).all() for start in starts)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (starts[one] - starts[other]).abs().mean() > 0.2 * 1e-4


@pytest.mark.parametrize("restarts", [1, 2])
def test_targets_are_the_references_at_every_start(linear, batch, restarts):
    """A step of the ball's width ends in the corner towards the class that the reference names."""
    images = away_from_the_edges(batch[0])
    labels = linear(images).argmax(1)
    named = (linear(images).argmin(1) + 1) % 5
    named = torch.where(named == labels, (named + 1) % 5, named)
    assert not torch.equal(named, linear(images).scatter(1, labels[:, None], -torch.inf).argmax(1))
    reference = nn.functional.one_hot(named, 5).float()
    settings = GradientAttack(
        epsilon=1e-3, step_size=2e-3, target="most-confusing", loss="margin", restarts=restarts
    )
    found = gradient_attack(linear, images, labels, settings, keys_of(labels), reference)
    weights = linear.head.weight[named] - linear.head.weight[labels]
    corner = images + 1e-3 * weights.sign().view_as(images)
    still = ~found.fooled
    assert still.sum() > 8, "one that breaks leaves before its step"
    torch.testing.assert_close(found.images[still], corner[still])


class OutsideTheRange(nn.Module):
    """Wrong about an image that has a pixel outside [0, 1], and about no other."""

    def forward(self, images):
        past = (images - images.clamp(0, 1)).flatten(1).abs().sum(1)
        return torch.stack([0 * past, past - 1e-6], 1)


@pytest.mark.parametrize("slack", [0.0, 1e6])
def test_a_start_outside_the_range_fools_nobody(batch, slack):
    """Unclipped noise around black and white leaves [0, 1]; what it does there does not count."""
    images, labels = batch[0].round(), torch.zeros(16, dtype=torch.int64)
    model, settings = OutsideTheRange(), GradientAttack(epsilon=0.1, step_size=0.1)
    start = gradient_attack(model, images, labels, settings, keys_of(labels)).reference
    assert (start.argmax(1) == 1).all(), "every start would fool"
    found = gradient_attack(model, images, labels, settings, keys_of(labels), slack=slack)
    assert not found.fooled.any()
    assert inside(found.images, images, 0.1).all()


def test_a_restart_asks_for_the_slack_as_well(linear, batch):
    images = batch[0]
    labels = linear(images).argmax(1)
    settings = GradientAttack(epsilon=0.3, steps=3, step_size=0.1, restarts=3, clip_start=True)
    assert gradient_attack(linear, images, labels, settings, keys_of(labels)).fooled.any()
    found = gradient_attack(linear, images, labels, settings, keys_of(labels), slack=1e6)
    assert not found.fooled.any()


def test_what_it_counts_is_what_passes_the_network(convolutional, batch):
    images = batch[0]
    labels = convolutional(images).argmax(1)
    for fields in ({"restarts": 3}, {"iterate": "last"}):
        model = Counted(convolutional)
        settings = GradientAttack(steps=4, step_size=0.01, epsilon=0.03, clip_start=True, **fields)
        found = gradient_attack(model, images, labels, settings, keys_of(labels))
        assert (found.forwards, found.backwards) == (model.forwards, model.backwards)


def test_momentum_stays_when_other_images_leave_the_batch(convolutional, batch):
    """An image goes the same way alone; in float64, so that rounding turns no sign."""
    model, images = convolutional.double(), batch[0].double()
    labels = model(images).argmax(1)
    settings = GradientAttack(steps=6, step_size=0.02, epsilon=0.05, momentum=1.0, clip_start=True)
    whole = gradient_attack(model, images, labels, settings, keys_of(labels))
    assert whole.fooled.any() and not whole.fooled.all()
    for place in (~whole.fooled).nonzero().flatten().tolist():
        one = slice(place, place + 1)
        alone = gradient_attack(model, images[one], labels[one], settings, keys_of(labels)[one])
        torch.testing.assert_close(alone.images, whole.images[one])


def test_momentum_is_mi_fgsm(linear, batch):
    """By hand: g <- decay g + gradient / mean |gradient|, then a signed step."""
    images, labels = batch
    found = attack(linear, images, labels, steps=3, step_size=2 / 255, momentum=0.5)
    current, velocity = images, torch.zeros_like(images)
    for _ in range(3):
        current = current.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(linear(current), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, current)
        velocity = 0.5 * velocity + gradient / gradient.abs().mean((1, 2, 3), keepdim=True)
        current = (current + 2 / 255 * velocity.sign()).detach()
        current = torch.clamp(current, images - EPSILON, images + EPSILON).clamp(0, 1)
    torch.testing.assert_close(found.images, current)


def test_margin_cap_stops_the_push(linear, batch):
    images = batch[0]
    wrong = (linear(images).argmax(1) + 1) % 5  # every image fools already by some margin
    gap = largest_wrong(linear(images), wrong) - true_logit(linear(images), wrong)
    capped = attack(linear, images, wrong, loss="margin", margin_cap=1e-3).images
    assert torch.equal(capped[gap > 1e-3], images[gap > 1e-3])
    free = attack(linear, images, wrong, loss="margin").images
    assert not torch.equal(free[gap > 1e-3], images[gap > 1e-3])


def test_divergence_moves_away_from_the_clean_prediction(convolutional, batch):
    images, labels = batch
    settings = GradientAttack(loss="divergence", steps=5, step_size=0.02, epsilon=0.1)
    with torch.no_grad():
        clean = convolutional(images)
    found = gradient_attack(
        convolutional, images, labels, settings, keys_of(labels), reference=clean
    )

    def apart(logits):
        return torch.nn.functional.kl_div(
            logits.log_softmax(1), clean.softmax(1), reduction="batchmean"
        )

    noise = images + 0.1 * torch.empty_like(images).uniform_(-1, 1)
    assert apart(convolutional(found.images)) > 3 * apart(convolutional(noise.clamp(0, 1)))


def test_pgd_agrees_with_foolbox(convolutional, batch):
    foolbox = pytest.importorskip("foolbox")
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(200, 3, 6, 6, generator=generator)
    labels = convolutional(images).argmax(1)
    epsilon = 0.02
    theirs_attack = foolbox.attacks.LinfPGD(abs_stepsize=epsilon / 4, steps=20, random_start=True)
    peer = foolbox.PyTorchModel(convolutional, bounds=(0, 1), device="cpu")
    torch.manual_seed(0)
    _, _, broken = theirs_attack(peer, images, labels, epsilons=epsilon)
    settings = GradientAttack(steps=20, step_size=epsilon / 4, epsilon=epsilon, clip_start=True)
    ours = gradient_attack(convolutional, images, labels, settings, keys_of(labels)).fooled
    assert 0.1 < float(broken.float().mean()) < 0.9
    assert abs(float(ours.float().mean()) - float(broken.float().mean())) <= 0.03

"""What a step computes, against the losses written out by hand."""

import pytest
import torch
from torch.nn import functional as F

from bilateral.config import Adversary, Labels, Run
from bilateral.method import perturb
from bilateral.randomness import image_keys
from bilateral.training.step import step_loss
from bilateral.training.twin import twin_of

KEYS = image_keys(0, torch.arange(16))


def test_undefended_is_plain_cross_entropy(linear, batch):
    run = Run(method="undefended", labels=Labels(rule="one-hot"))
    result = step_loss(linear, linear, *batch, run, KEYS)
    torch.testing.assert_close(result.loss, F.cross_entropy(linear(batch[0]), batch[1]))
    assert int(result.clean_correct) == int((linear(batch[0]).argmax(1) == batch[1]).sum())
    assert result.adversarial_correct is None


@pytest.mark.parametrize("rule", ["one-hot", "smoothing", "adversarial", "supplementary"])
def test_adversarial_step_fits_soft_labels_at_adversarial_images(linear, batch, rule):
    run = Run(adversary=Adversary(target="most-confusing"), labels=Labels(rule=rule))
    images, soft, _ = perturb(linear, *batch, run.adversary, run.labels, KEYS)
    result = step_loss(linear, linear, *batch, run, KEYS)
    torch.testing.assert_close(result.loss, F.cross_entropy(linear(images), soft))
    assert not torch.equal(images, batch[0])


def test_trades_is_clean_loss_plus_weighted_divergence(linear, batch):
    adversary = Adversary(loss="divergence", steps=3, step_size=0.01, start_width=0.03)
    run = Run(method="trades", adversary=adversary, labels=Labels(rule="one-hot"), trades_weight=6)
    images, _, _ = perturb(linear, *batch, adversary, run.labels, KEYS)
    clean, attacked = linear(batch[0]), linear(images)
    p, q = clean.softmax(1), attacked.log_softmax(1)
    divergence = (p * (p.log() - q)).sum(1).mean()
    expected = F.cross_entropy(clean, batch[1]) + 6 * divergence
    torch.testing.assert_close(step_loss(linear, linear, *batch, run, KEYS).loss, expected)


def test_weight_gradients_come_from_the_update_alone(convolutional, batch):
    """The attack must leave no gradient behind: the loss's own gradient is all there is."""
    convolutional.body[3].p = 0.0
    run = Run(adversary=Adversary(target="most-confusing"))
    images, soft, _ = perturb(convolutional, *batch, run.adversary, run.labels, KEYS)
    loss = F.cross_entropy(convolutional(images), soft)
    expected = torch.autograd.grad(loss, list(convolutional.parameters()))
    step_loss(convolutional, twin_of(convolutional), *batch, run, KEYS).loss.backward()
    for parameter, gradient in zip(convolutional.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)

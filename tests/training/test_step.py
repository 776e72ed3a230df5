"""What a step computes, against the losses written out by hand."""

import pytest
import torch
from torch.nn import functional as F

from bilateral.config import Adversary, Labels, Regulariser, Run
from bilateral.method import perturb
from bilateral.randomness import image_keys
from bilateral.training.step import forwards_per_image, perturbed_batch, step_loss, taught
from bilateral.training.twin import twin_of

KEYS = image_keys(0, torch.arange(16))
ONE_HOT = Labels(rule="one-hot")


def loss_of(model, batch, run, twin=None):
    """Both halves of a step."""
    perturbed = perturbed_batch(twin or model, *batch, run, KEYS)
    return step_loss(model, perturbed, *batch, run)


def test_undefended_is_plain_cross_entropy(linear, batch):
    run = Run(method="undefended", labels=Labels(rule="one-hot"))
    result = loss_of(linear, batch, run)
    torch.testing.assert_close(result.loss, F.cross_entropy(linear(batch[0]), batch[1]))
    assert int(result.clean_correct) == int((linear(batch[0]).argmax(1) == batch[1]).sum())
    assert result.adversarial_correct is None


@pytest.mark.parametrize("rule", ["one-hot", "smoothing", "adversarial", "supplementary"])
def test_adversarial_step_fits_soft_labels_at_adversarial_images(linear, batch, rule):
    run = Run(adversary=Adversary(target="most-confusing"), labels=Labels(rule=rule))
    images, soft, _ = perturb(linear, *batch, run.adversary, run.labels, KEYS)
    result = loss_of(linear, batch, run)
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
    result = loss_of(linear, batch, run)
    torch.testing.assert_close(result.loss, expected)
    # Both sides of the divergence learn.
    found, by_hand = (
        torch.autograd.grad(loss, list(linear.parameters())) for loss in (result.loss, expected)
    )
    torch.testing.assert_close(found, by_hand)
    counts = [int((logits.argmax(1) == batch[1]).sum()) for logits in (clean, attacked)]
    assert [int(result.clean_correct), int(result.adversarial_correct)] == counts
    assert counts[0] != counts[1]


@pytest.mark.parametrize("kind", ["squared", "nuclear"])
def test_on_clean_images_it_is_gat_and_nuat(linear, batch, kind):
    """The loss on clean images, and a distance through which both predictions learn."""
    regulariser = Regulariser(kind=kind, weight=3.0)
    run = Run(method="trades", adversary=Adversary(), labels=ONE_HOT, regulariser=regulariser)
    images, _, reference = perturb(linear, *batch, run.adversary, run.labels, KEYS)
    assert reference is None
    clean, attacked = linear(batch[0]), linear(images)
    apart = attacked.softmax(1) - clean.softmax(1)
    distance = apart.pow(2).sum(1).mean()
    if kind == "nuclear":
        distance = torch.linalg.matrix_norm(apart, "nuc") / len(apart)
    expected = F.cross_entropy(clean, batch[1]) + 3 * distance
    found = loss_of(linear, batch, run).loss
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    weights = list(linear.parameters())
    slopes = (torch.autograd.grad(loss, weights) for loss in (found, expected))
    for own, oracle in zip(*slopes, strict=True):
        assert F.cosine_similarity(own.flatten(), oracle.flatten(), 0) > 0.999
    assert forwards_per_image(run) == 8


def test_weight_gradients_come_from_the_update_alone(convolutional, batch):
    """The attack must leave no gradient behind: the loss's own gradient is all there is."""
    convolutional.body[3].p = 0.0
    run = Run(adversary=Adversary(target="most-confusing"))
    images, soft, _ = perturb(convolutional, *batch, run.adversary, run.labels, KEYS)
    loss = F.cross_entropy(convolutional(images), soft)
    expected = torch.autograd.grad(loss, list(convolutional.parameters()))
    loss_of(convolutional, batch, run, twin_of(convolutional)).loss.backward()
    for parameter, gradient in zip(convolutional.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("kind", ["squared", "nuclear"])
def test_a_regulariser_adds_its_distance_from_the_clean_prediction(linear, batch, kind):
    plain = Run(adversary=Adversary(target="most-confusing"))
    run = plain.with_fields(regulariser=Regulariser(kind=kind, weight=3.0))
    images, soft, reference = perturb(linear, *batch, run.adversary, run.labels, KEYS)
    apart = linear(images).softmax(1) - reference.softmax(1)
    distance = apart.pow(2).sum(1).mean()
    if kind == "nuclear":
        distance = torch.linalg.matrix_norm(apart, "nuc") / len(apart)
    expected = F.cross_entropy(linear(images), soft) + 3 * distance
    torch.testing.assert_close(loss_of(linear, batch, run).loss, expected, rtol=1e-3, atol=1e-4)


def test_a_regulariser_reads_the_clean_image_even_where_the_label_does_not(linear, batch):
    """One-hot labels and no target: the reference forward is there for the regulariser alone."""
    run = Run(labels=Labels(rule="one-hot"), regulariser=Regulariser(kind="squared"))
    perturbed = perturbed_batch(linear, *batch, run, KEYS)
    torch.testing.assert_close(perturbed.reference, linear(batch[0]))
    assert not perturbed.reference.requires_grad
    assert forwards_per_image(run) == forwards_per_image(Run(labels=Labels(rule="one-hot"))) + 1


def test_a_regulariser_at_the_start_pulls_to_the_prediction_there(linear, batch):
    """FGSM-PGI's: the forward pass is the attack's own, so nothing is added to the cost."""
    images, labels = batch
    prior = torch.full_like(images, 0.02)
    run = Run(adversary=Adversary(reference="start", prior_start=True), labels=ONE_HOT)
    pulled = run.with_fields(regulariser=Regulariser(kind="squared", weight=3.0))
    perturbed = perturbed_batch(linear, images, labels, pulled, KEYS, prior)
    torch.testing.assert_close(perturbed.reference, linear(images + prior))
    assert not perturbed.reference.requires_grad
    result = step_loss(linear, perturbed, images, labels, pulled)
    logits = linear(perturbed.images)
    apart = logits.softmax(1) - linear(images + prior).softmax(1)
    expected = F.cross_entropy(logits, labels) + 3 * apart.pow(2).sum(1).mean()
    torch.testing.assert_close(result.loss, expected)
    assert result.clean_correct is None, "the clean image was not looked at"
    assert forwards_per_image(pulled) == forwards_per_image(run) == 5


def test_a_share_of_the_label_is_what_the_average_believes(linear, batch):
    rule = Labels(rule="adversarial", averaged_share=0.25)
    run = Run(adversary=Adversary(target="most-confusing"), labels=rule, averaging=0.9)
    perturbed = perturbed_batch(linear, *batch, run, KEYS)
    teacher = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(batch[0][0].numel(), 5))
    found = taught(teacher, batch[0], perturbed, rule)
    expected = 0.75 * perturbed.soft_labels + 0.25 * teacher(batch[0]).softmax(1)
    torch.testing.assert_close(found.soft_labels, expected)
    assert not found.soft_labels.requires_grad
    assert found.images is perturbed.images
    plain = run.with_fields(labels=Labels(rule="adversarial"))
    assert forwards_per_image(run) == forwards_per_image(plain) + 1


def test_what_a_step_costs():
    assert forwards_per_image(Run()) == 6, "clean 1, attack 2, update 3"
    assert forwards_per_image(Run(labels=Labels(rule="one-hot"))) == 5
    assert forwards_per_image(Run(labels=Labels(rule="one-hot"), weight_perturbation=0.005)) == 8
    free = {"weight_perturbation": 0.005, "weight_perturbation_along": "momentum"}
    assert forwards_per_image(Run(labels=Labels(rule="one-hot"), **free)) == 5
    assert forwards_per_image(Run(method="undefended")) == 3

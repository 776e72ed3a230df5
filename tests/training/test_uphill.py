"""Adversarial weight perturbation: where the gradient is taken, and that nothing stays moved."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bilateral.config import Data, Machine
from bilateral.data.datasets import load
from bilateral.errors import UserError
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer, train
from bilateral.training.uphill import uphill

CPU = torch.device("cpu")
QUIET = TrainingProgress(quiet=True)
TINY = recipe_named("digits-r-mc-la").with_fields(
    data=Data(name="digits", augment="none", images_per_class=26),
    epochs=2,
    check_epochs=0,
    weight_perturbation=0.01,
)


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_weights_move_by_a_share_of_their_length_along_the_gradient(network):
    images, labels = torch.rand(10, 6), torch.arange(10) % 3
    F.cross_entropy(network(images), labels).backward()
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    slopes = {name: value.grad.clone() for name, value in network.named_parameters()}
    with uphill(network, 0.02):
        for name, value in network.named_parameters():
            shift = value.detach() - before[name]
            if value.dim() > 1:
                assert float(shift.norm()) == pytest.approx(0.02 * float(before[name].norm()))
                along = F.cosine_similarity(shift.flatten(), slopes[name].flatten(), 0)
                assert float(along) == pytest.approx(1, abs=1e-4)
            else:
                assert not shift.any(), "batch norm and biases stay"
            assert value.grad is None
        with torch.no_grad():
            worse = F.cross_entropy(network(images), labels)
    for name, value in network.named_parameters():
        torch.testing.assert_close(value.detach(), before[name], rtol=0, atol=1e-7)
    assert worse > F.cross_entropy(network(images), labels)


def test_a_frozen_weight_stays(network):
    network[0].weight.requires_grad_(False)
    before = network[0].weight.clone()
    F.cross_entropy(network(torch.rand(10, 6)), torch.arange(10) % 3).backward()
    with uphill(network, 0.02):
        assert torch.equal(network[0].weight, before)


def test_a_weight_without_slope_stays_finite(network):
    """A dead layer has a gradient of nothing, which has no direction."""
    before = network[0].weight.detach().clone()
    for value in network.parameters():
        value.grad = torch.zeros_like(value)
    with uphill(network, 0.02):
        assert torch.equal(network[0].weight, before)
    assert torch.equal(network[0].weight, before)


def test_weights_come_back_when_something_fails_uphill(network):
    """Out of memory, or Ctrl-C: a checkpoint written after it must hold the run's own weights."""
    before = [value.detach().clone() for value in network.parameters()]
    F.cross_entropy(network(torch.rand(10, 6)), torch.arange(10) % 3).backward()
    with pytest.raises(KeyboardInterrupt), uphill(network, 0.02):
        raise KeyboardInterrupt
    for value, own in zip(network.parameters(), before, strict=True):
        torch.testing.assert_close(value.detach(), own, rtol=0, atol=1e-7)


def test_a_step_descends_by_the_gradient_found_uphill(tmp_path):
    """One step of the trainer against the same written out by hand."""
    digits = load("digits", "train")
    trainer = Trainer(TINY, RunFolder(tmp_path), digits, CPU, QUIET)
    seen = []
    step_gradients = trainer.engine._add_gradients

    def kept(*arguments):
        result = step_gradients(*arguments)
        weights = [value.detach().clone() for value in trainer.model.parameters()]
        seen.append((weights, [value.grad.clone() for value in trainer.model.parameters()]))
        return result

    trainer.engine._add_gradients = kept
    trainer.take(next(iter(trainer.batches.epoch(0, 0))), 0)
    (start, first), (moved, second) = seen
    for weight, slope, there in zip(start, first, moved, strict=True):
        shift = 0.01 * weight.norm() / slope.norm() * slope if weight.dim() > 1 else 0
        torch.testing.assert_close(there, weight + shift)
    rate, decay = TINY.optimiser.learning_rate, TINY.optimiser.weight_decay
    for weight, slope, now in zip(start, second, trainer.model.parameters(), strict=True):
        expected = weight - rate * (slope + (decay * weight if weight.dim() > 1 else 0))
        torch.testing.assert_close(now.detach(), expected, rtol=1e-4, atol=1e-6)


def test_it_trains_and_goes_on_exactly(tmp_path):
    digits = load("digits", "train")
    folder = RunFolder(tmp_path / "whole")
    train(TINY, folder, digits, CPU, QUIET)
    half = RunFolder(tmp_path / "half")
    trainer = Trainer(TINY, half, digits, CPU, QUIET)
    half.prepare(TINY, {})
    trainer.take(next(iter(trainer.batches.epoch(0, 0))), 0)
    trainer._save()
    train(TINY, half, digits, CPU, QUIET)
    assert half.weights.read_bytes() == folder.weights.read_bytes()


@pytest.mark.parametrize("fields", [{}, {"regulariser": {"kind": "nuclear"}}])
def test_a_batch_is_not_divided(fields, tmp_path):
    """Neither where weights move, nor where a norm is of all its images."""
    digits = load("digits", "train")
    run = TINY.with_fields(**{"weight_perturbation": 0.0 if fields else 0.01, **fields})
    with pytest.raises(UserError, match="no accumulation"):
        Trainer(run, RunFolder(tmp_path), digits, CPU, QUIET, Machine(accumulate=2))

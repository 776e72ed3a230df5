"""Adversarial weight perturbation: where the gradient is taken, and that nothing stays moved."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bilateral.config import Data
from bilateral.data.datasets import load
from bilateral.errors import UserError
from bilateral.machine import Machine
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder
from bilateral.training.progress import TrainingProgress
from bilateral.training.trainer import Trainer, train
from bilateral.training.uphill import gradients, last_steps, uphill

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
    with uphill(gradients(network), 0.02):
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
    with uphill(gradients(network), 0.02):
        assert torch.equal(network[0].weight, before)


def test_the_last_steps_are_the_optimisers_and_there_are_none_at_first(network):
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    assert last_steps(network, optimiser) == {}
    sums = {parameter: torch.zeros_like(parameter) for parameter in network.parameters()}
    for seed in range(3):
        images = torch.rand(10, 6, generator=torch.Generator().manual_seed(seed))
        optimiser.zero_grad()
        F.cross_entropy(network(images), torch.arange(10) % 3).backward()
        for parameter in sums:
            sums[parameter] = 0.9 * sums[parameter] + parameter.grad
        optimiser.step()
    found = last_steps(network, optimiser)
    assert set(found) == set(network.parameters())
    for parameter, way in found.items():
        torch.testing.assert_close(way, -sums[parameter])
        assert parameter.grad is not None, "gradients are left alone"


def test_a_weight_without_slope_stays_finite(network):
    """A dead layer has a gradient of nothing, which has no direction."""
    before = network[0].weight.detach().clone()
    for value in network.parameters():
        value.grad = torch.zeros_like(value)
    with uphill(gradients(network), 0.02):
        assert torch.equal(network[0].weight, before)
    assert torch.equal(network[0].weight, before)


def test_weights_come_back_when_something_fails_uphill(network):
    """Out of memory, or Ctrl-C: a checkpoint written after it must hold the run's own weights."""
    before = [value.detach().clone() for value in network.parameters()]
    F.cross_entropy(network(torch.rand(10, 6)), torch.arange(10) % 3).backward()
    with pytest.raises(KeyboardInterrupt), uphill(gradients(network), 0.02):
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
        weights = [value.detach().clone() for value in trainer.learner.model.parameters()]
        seen.append((weights, [value.grad.clone() for value in trainer.learner.model.parameters()]))
        return result

    trainer.engine._add_gradients = kept
    trainer.take(next(iter(trainer.batches.epoch(0, 0))), 0)
    (start, first), (moved, second) = seen
    for weight, slope, there in zip(start, first, moved, strict=True):
        shift = 0.01 * weight.norm() / slope.norm() * slope if weight.dim() > 1 else 0
        torch.testing.assert_close(there, weight + shift)
    rate, decay = TINY.optimiser.learning_rate, TINY.optimiser.weight_decay
    for weight, slope, now in zip(start, second, trainer.learner.model.parameters(), strict=True):
        expected = weight - rate * (slope + (decay * weight if weight.dim() > 1 else 0))
        torch.testing.assert_close(now.detach(), expected, rtol=1e-4, atol=1e-6)


def test_along_the_momentum_one_gradient_is_taken_past_where_the_last_step_led(tmp_path):
    """The first step moves nothing; the second goes on in the direction of the first."""
    run = TINY.with_fields(weight_perturbation_along="momentum")
    trainer = Trainer(run, RunFolder(tmp_path), load("digits", "train"), CPU, QUIET)
    seen = []
    step_gradients = trainer.engine._add_gradients

    def kept(*arguments):
        seen.append([value.detach().clone() for value in trainer.learner.model.parameters()])
        return step_gradients(*arguments)

    trainer.engine._add_gradients = kept
    batches = iter(trainer.batches.epoch(0, 0))
    starts = []
    for _ in range(2):
        starts.append([value.detach().clone() for value in trainer.learner.model.parameters()])
        ways = last_steps(trainer.learner.model, trainer.learner.optimiser)
        slopes = [
            ways[value].clone() for value in trainer.learner.model.parameters() if value in ways
        ]
        trainer.take(next(batches), 0)
    assert len(seen) == 2, "one update a step"
    for weight, there in zip(starts[0], seen[0], strict=True):
        assert torch.equal(weight, there)
    for weight, slope, there in zip(starts[1], slopes, seen[1], strict=True):
        shift = 0.01 * weight.norm() / slope.norm() * slope if weight.dim() > 1 else 0
        torch.testing.assert_close(there, weight + shift)
    for before, after, there in zip(*starts, seen[1], strict=True):
        if before.dim() > 1:  # the decay of the weights turns the step a little
            on = F.cosine_similarity((there - after).flatten(), (after - before).flatten(), 0)
            assert on > 0.99


@pytest.mark.parametrize("along", ["gradient", "momentum"])
def test_it_trains_and_goes_on_exactly(along, tmp_path):
    digits = load("digits", "train")
    run = TINY.with_fields(weight_perturbation_along=along)
    folder = RunFolder(tmp_path / "whole")
    train(run, folder, digits, CPU, QUIET)
    half = RunFolder(tmp_path / "half")
    trainer = Trainer(run, half, digits, CPU, QUIET)
    half.prepare(run, {})
    trainer.take(next(iter(trainer.batches.epoch(0, 0))), 0)
    trainer._save()
    train(run, half, digits, CPU, QUIET)
    assert half.weights.read_bytes() == folder.weights.read_bytes()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "along = gradient needs the whole batch: set machine.accumulate to 1"),
        (
            {"weight_perturbation": 0.0, "regulariser": {"kind": "nuclear"}},
            "kind = nuclear needs the whole batch: set machine.accumulate to 1",
        ),
    ],
)
def test_a_batch_is_not_divided(fields, reason, tmp_path):
    """Neither where weights move, nor where a norm is of all its images."""
    digits = load("digits", "train")
    run = TINY.with_fields(**fields)
    with pytest.raises(UserError, match=reason):
        Trainer(run, RunFolder(tmp_path), digits, CPU, QUIET, Machine(accumulate=2))

"""Parameter groups, schedules and averaged weights."""

import pytest
import torch

from bilateral.config import Optimiser
from bilateral.models import build_model
from bilateral.training.averaging import AveragedWeights
from bilateral.training.optimiser import build_optimiser, learning_rate


def test_only_convolution_and_linear_weights_decay():
    model = build_model("small-cnn", 10, 1)
    optimiser = build_optimiser(model, Optimiser(), fused=False)
    decay = {
        id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (2e-4 if parameter.dim() > 1 else 0.0), name
    assert len(decay) == len(list(model.parameters()))


def test_milestones_are_fractions_of_the_run():
    settings = Optimiser(learning_rate=0.1, milestones=(0.6, 0.9))
    for epochs in (30, 100):
        steps = epochs * 390
        rates = [learning_rate(settings, step / steps) for step in range(steps)]
        drops = [step for step in range(1, steps) if rates[step] != rates[step - 1]]
        assert drops == [int(0.6 * epochs) * 390, int(0.9 * epochs) * 390]
        assert rates[0] == 0.1
        assert rates[-1] == pytest.approx(0.001)


def test_triangular_rises_and_falls_to_zero():
    settings = Optimiser(learning_rate=0.2, schedule="triangular")
    assert learning_rate(settings, 0.0) == 0
    assert learning_rate(settings, 0.2) == pytest.approx(0.2)
    assert learning_rate(settings, 0.6) == pytest.approx(0.1)
    assert learning_rate(settings, 1.0) == pytest.approx(0)


def test_averaged_weights_follow_by_the_decay():
    model = torch.nn.BatchNorm1d(2)
    averaged = AveragedWeights(model, decay=0.9)
    with torch.no_grad():
        model.weight.fill_(11.0)
        model.running_mean.fill_(10.0)
        model.num_batches_tracked += 7
    averaged.update(model, torch.tensor(averaged.pull(10_000)))
    torch.testing.assert_close(averaged.model.weight, torch.tensor([2.0, 2.0]))
    torch.testing.assert_close(averaged.model.running_mean, torch.tensor([1.0, 1.0]))
    assert averaged.model.num_batches_tracked == 7
    early = AveragedWeights(torch.nn.BatchNorm1d(2), decay=0.999)
    early.update(model, torch.tensor(early.pull(1)))
    assert early.model.weight[0] > 9  # soon forgets the start

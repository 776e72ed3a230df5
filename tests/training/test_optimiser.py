"""Parameter groups, schedules and averaged weights."""

import copy

import pytest
import torch

from bilateral.config import Optimiser, Run
from bilateral.errors import UserError
from bilateral.models import build_model
from bilateral.training.averaging import AveragedWeights
from bilateral.training.muon import orthogonal
from bilateral.training.optimiser import build_optimiser, go_on_with, learning_rate
from bilateral.training.preparation import weights_can_turn


def test_only_convolution_and_linear_weights_decay():
    model = build_model("small-cnn", 10, 1)
    optimiser = build_optimiser(model, Optimiser(), fused=False)
    decay = {
        id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]
    }
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (2e-4 if parameter.dim() > 1 else 0.0), name
    assert len(decay) == len(list(model.parameters()))


def test_a_step_is_that_of_sgd_with_momentum_written_out():
    layer = torch.nn.Linear(2, 1)
    settings = Optimiser(learning_rate=0.1, momentum=0.8, weight_decay=0.05)
    optimiser = build_optimiser(layer, settings, fused=False)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    moves = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for slope in (1.0, -2.0, 0.5):
        layer.weight.grad, layer.bias.grad = torch.full((1, 2), slope), torch.full((1,), slope)
        optimiser.step()
        moves = [0.8 * moves[0] + slope + 0.05 * weight, 0.8 * moves[1] + slope]
        weight, bias = weight - 0.1 * moves[0], bias - 0.1 * moves[1]
        torch.testing.assert_close(layer.weight.detach(), weight)
        torch.testing.assert_close(layer.bias.detach(), bias)


TURNING = Optimiser(learning_rate=0.1, momentum=0.8, weight_decay=0.05, turn=0.02)


def test_the_orthogonal_matrix_is_that_of_the_singular_vectors():
    """Jordan's rounds leave singular values between 0.65 and 1.25, of whatever size they were."""
    torch.manual_seed(0)
    for shape in ((12, 30), (30, 12), (9, 9)):
        left, values, right = torch.linalg.svd(torch.randn(shape), full_matrices=False)
        values = torch.logspace(-1, 0, len(values))
        found = orthogonal((1e-3 * left @ values.diag() @ right)[None])[0]
        inner = left.T @ found @ right.T
        assert 0.65 < inner.diagonal().min() < inner.diagonal().max() < 1.25
        torch.testing.assert_close(
            inner - inner.diagonal().diag(), torch.zeros_like(inner), atol=1e-4, rtol=0
        )
    assert not orthogonal(torch.zeros(1, 3, 4)).any()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_weights_of_convolutions_turn_by_their_share_and_keep_their_length(memory_format):
    """Along the orthogonalised momentum, looking ahead by one step; all else is SGD's."""
    torch.manual_seed(0)
    shapes = [(3, 4, 3), (4, 4, 3), (4, 4, 3), (4, 8, 1)]  # two alike, and one that is tall
    convolutions = [torch.nn.Conv2d(*shape) for shape in shapes]
    model = torch.nn.Sequential(*convolutions, torch.nn.Flatten(), torch.nn.Linear(8, 2))
    twin = copy.deepcopy(model)
    model.to(memory_format=memory_format)
    optimiser = build_optimiser(model, TURNING, fused=False)
    plain = build_optimiser(twin, TURNING.with_fields(turn=None), fused=False)
    weights = [layer.weight for layer in model[: len(shapes)]]
    expected = [weight.detach().clone() for weight in weights]
    lengths = [weight.norm().item() for weight in weights]
    momenta = [torch.zeros_like(weight.flatten(1)) for weight in weights]
    for rate in (0.1, 0.05, 0.0):
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            other.grad = torch.randn(other.shape)
            one.grad = other.grad.clone(memory_format=torch.preserve_format)
        for group in (*optimiser.param_groups, *plain.param_groups):
            group["lr"] = rate
        optimiser.step()
        plain.step()
        for number, weight in enumerate(weights):
            slope = twin[number].weight.grad.flatten(1)
            momenta[number] = 0.8 * momenta[number] + slope
            way = orthogonal((slope + 0.8 * momenta[number])[None]).reshape(weight.shape)
            moved = expected[number] - 0.02 * rate / 0.1 * lengths[number] * way / way.norm()
            expected[number] = moved * lengths[number] / moved.norm()
            torch.testing.assert_close(weight.detach(), expected[number], rtol=1e-4, atol=1e-6)
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            if one.dim() < 4:
                torch.testing.assert_close(one, other)
    now = [weight.norm().item() for weight in weights]
    assert now == pytest.approx(lengths, rel=1e-5)


def test_what_has_no_length_to_keep_is_refused():
    """Weights of zeros would stay so, and without convolutions nothing would turn."""
    run = Run(model="mine").with_paths({"optimiser.turn": 0.02})
    layer = torch.nn.Conv2d(3, 4, 3)
    weights_can_turn(layer, run)
    for model, words in (
        (torch.nn.Linear(3, 2), "mine has none"),
        (torch.nn.Sequential(layer, zeros(torch.nn.Conv2d(4, 4, 1))), "mine has one whose"),
    ):
        with pytest.raises(UserError, match=words):
            weights_can_turn(model, run)
        weights_can_turn(model, Run(model="mine"))


def zeros(layer):
    torch.nn.init.zeros_(layer.weight)
    return layer


def test_nothing_of_a_turn_is_read_by_the_host():
    """On the meta device there are no values to read; a CUDA graph could not be captured either."""
    model = torch.nn.Conv2d(3, 4, 3, device="meta")
    optimiser = build_optimiser(model, TURNING, fused=True, bfloat16=True)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    for group in optimiser.param_groups:
        group["lr"] = torch.zeros((), device="meta")
    optimiser.step()


def test_a_milestone_counts_as_reached_within_rounding():
    settings = Optimiser(learning_rate=0.1, milestones=(0.1 + 0.2,), drop=0.5)
    assert settings.milestones[0] > 0.3
    assert [learning_rate(settings, progress) for progress in (0.299, 0.3)] == [0.1, 0.05]


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
    averaged.update(torch.tensor(averaged.pull(10_000)))
    torch.testing.assert_close(averaged.model.weight, torch.tensor([2.0, 2.0]))
    torch.testing.assert_close(averaged.model.running_mean, torch.tensor([1.0, 1.0]))
    assert averaged.model.num_batches_tracked == 7
    fresh = torch.nn.BatchNorm1d(2)
    early = AveragedWeights(fresh, decay=0.999)
    with torch.no_grad():
        fresh.weight.fill_(11.0)
    early.update(torch.tensor(early.pull(1)))
    assert early.model.weight[0] > 9  # soon forgets the start


def test_the_pull_is_tensorflows():
    """1 - min(decay, (1 + n) / (10 + n)): nine of ten and n parts at first, never less than 1 %."""
    averaged = AveragedWeights(torch.nn.Linear(1, 1), decay=0.99)
    pulls = [averaged.pull(step) for step in (0, 1, 8, 90, 891, 10_000)]
    assert pulls == pytest.approx([9 / 10, 9 / 11, 9 / 18, 9 / 100, 0.01, 0.01])


def test_the_average_is_read_and_never_trained():
    """Eval mode, no gradients; the model that is trained keeps its own."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).train()
    averaged = AveragedWeights(model, decay=0.9).model
    assert not any(module.training for module in averaged.modules())
    assert not any(parameter.requires_grad for parameter in averaged.parameters())
    assert model[1].training and all(parameter.requires_grad for parameter in model.parameters())


def test_a_weight_that_two_layers_share_moves_once():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].weight = model[0].weight
    averaged = AveragedWeights(model, decay=0.5)
    with torch.no_grad():
        averaged.model[0].weight.zero_()
        model[0].weight.fill_(1.0)
    averaged.update(torch.tensor(0.8))
    torch.testing.assert_close(averaged.model[1].weight, torch.full((2, 2), 0.8))


def test_an_optimiser_goes_on_in_the_way_of_this_machine():
    """Saved fused and channels-last, loaded plain and contiguous: the same steps as unbroken."""
    torch.manual_seed(0)
    images = torch.rand(4, 3, 5, 5)

    def steps(model, optimiser, count):
        for _ in range(count):
            optimiser.zero_grad()
            model(images).square().mean().backward()
            optimiser.step()

    one = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    other = torch.nn.Conv2d(3, 4, 3)
    optimiser = build_optimiser(one, Optimiser(learning_rate=0.5), fused=True)
    steps(one, optimiser, 3)
    plain = build_optimiser(other, Optimiser(learning_rate=0.5), fused=False)
    other.load_state_dict(one.state_dict())
    go_on_with(plain, optimiser.state_dict())
    assert not any(group["fused"] for group in plain.param_groups)
    steps(one, optimiser, 3)
    steps(other, plain, 3)
    torch.testing.assert_close(other.weight, one.weight.contiguous(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("schedule", ["triangular", "one-cycle"])
def test_a_rate_that_does_not_fall_to_zero(schedule):
    """The rise is as ever; from the peak down the way to the last share is what zero's was."""
    plain = Optimiser(schedule=schedule, learning_rate=0.4)
    ending = plain.with_fields(last_share=0.25)
    assert learning_rate(ending, 1.0) == pytest.approx(0.1)
    for progress in (0.05, 0.15, 0.2 if schedule == "triangular" else 0.3):
        assert learning_rate(ending, progress) == pytest.approx(learning_rate(plain, progress))
    for progress in (0.4, 0.6, 0.9):
        expected = 0.1 + 0.75 * learning_rate(plain, progress)
        assert learning_rate(ending, progress) == pytest.approx(expected)


def test_one_cycle_follows_torchs_own():
    """Cosines up to the peak and down to zero, as `OneCycleLR` from a start of nothing."""
    settings = Optimiser(schedule="one-cycle", learning_rate=0.4)
    weight = torch.nn.Parameter(torch.zeros(1))
    torchs = torch.optim.lr_scheduler.OneCycleLR(
        torch.optim.SGD([weight], 0.1),
        0.4,
        total_steps=101,
        pct_start=0.3,
        div_factor=1e9,
        final_div_factor=1e9,
    )
    # torch ends its rise seven tenths of a step earlier.
    found = [learning_rate(settings, step / 100) for step in (0, 10, 30, 60, 100)]
    assert found[0] == pytest.approx(0) and found[2] == pytest.approx(0.4)
    assert found[4] == pytest.approx(0)
    for step in range(100):
        torchs.optimizer.step()
        torchs.step()
        expected = torchs.get_last_lr()[0]
        assert learning_rate(settings, (step + 1) / 100) == pytest.approx(expected, abs=0.016)

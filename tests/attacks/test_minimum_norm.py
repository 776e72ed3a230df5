"""CW-L2 and DeepFool-L2 against closed forms on linear classifiers, and against foolbox."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from small_models import Counted, trained_on_digits
from torch import Tensor, nn

import bilateral
from bilateral.attacks import minimum_norm
from bilateral.attacks.minimum_norm import CROSSING, MinimumNorm, cw_l2, deepfool_l2
from bilateral.attacks.settings import CW_FAST, CW_FINE, CarliniWagner, DeepFool

DIGITS = Path(bilateral.__path__[0]) / "data" / "digits.npz"
Attack = Callable[[nn.Module, Tensor, Tensor], MinimumNorm]


def carlini_wagner(model: nn.Module, images: Tensor, labels: Tensor) -> MinimumNorm:
    return cw_l2(model, images, labels, CW_FAST)


def patient(model: nn.Module, images: Tensor, labels: Tensor) -> MinimumNorm:
    """Steps short enough to settle on the boundary; the appendix's 0.1 and 0.01 jump over it."""
    settings = CarliniWagner(constant=1.0, learning_rate=0.002, steps=500)
    return cw_l2(model, images, labels, settings)


def deepfool(model: nn.Module, images: Tensor, labels: Tensor) -> MinimumNorm:
    return deepfool_l2(model, images, labels, DeepFool())


BOTH = pytest.mark.parametrize("attack", [carlini_wagner, deepfool])


class Shifted(nn.Module):
    """A model with all logits moved by the same number."""

    def __init__(self, model: nn.Module, shift: float) -> None:
        super().__init__()
        self.model, self.shift = model, shift

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images)
        return logits + self.shift


def linear_problem(classes: int, count: int = 40) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear model, images near mid-grey that it gets right, and their L2 distances."""
    generator = torch.Generator().manual_seed(classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, classes))
    model[1].weight.data = torch.randn(classes, 48, generator=generator)
    model[1].bias.data = torch.zeros(classes)
    images = 0.5 + 0.05 * torch.randn(count, 3, 4, 4, generator=generator).clamp(-3, 3)
    logits = model(images).detach()
    labels = logits.argmax(1)
    weight = model[1].weight.data
    margins = logits.gather(1, labels[:, None]) - logits
    norms = (weight[labels][:, None] - weight).norm(dim=2)
    distances = (margins / norms).scatter(1, labels[:, None], torch.inf).amin(1)
    return model, images, labels, distances


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """A network trained on digits, and the first 200 test images less those it gets wrong."""
    model, images, labels = trained_on_digits()
    right = model(images).argmax(1) == labels
    return model, images[right], labels[right]


@pytest.mark.parametrize("attack", [patient, deepfool])
@pytest.mark.parametrize("classes", [2, 3, 20])
def test_distance_on_a_linear_classifier_is_the_closed_form(attack: Attack, classes: int) -> None:
    model, images, labels, distances = linear_problem(classes)
    result = attack(model, images, labels)
    assert result.found.all()
    # Were a pixel at the edge of the box, the shortest way would be longer.
    assert 0 < result.images.min() < result.images.max() < 1
    assert (result.distances >= distances * (1 - 1e-4)).all()
    assert (result.distances <= distances * 1.04 + 1e-3).all()
    measured = (result.images - images).flatten(1).norm(dim=1)
    assert torch.allclose(measured, result.distances)
    assert (model(result.images).argmax(1) != labels).all()


@pytest.mark.parametrize("overshoot", [0.02, 0.5])
def test_deepfool_goes_past_the_boundary_by_its_overshoot(overshoot: float) -> None:
    """On a linear model one move lands, so what is found lies just so far behind the boundary."""
    model, images, labels, distances = linear_problem(2)
    result = deepfool_l2(model, images, labels, DeepFool(overshoot=overshoot))
    torch.testing.assert_close(
        result.distances, (1 + overshoot) * (distances + CROSSING), rtol=1e-4, atol=1e-5
    )


def test_cw_halves_the_interval_of_each_images_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenfold up to a first success, then the middle of the last failure and the last success."""
    needed, tried = torch.tensor([3.0, 0.3]), []

    def search(
        model: nn.Module, clean: Tensor, labels: Tensor, constants: Tensor, settings: CarliniWagner
    ) -> MinimumNorm:
        tried.append(constants)
        found = constants >= needed
        return MinimumNorm(clean, found, torch.where(found, constants, torch.inf), 2, 2)

    monkeypatch.setattr(minimum_norm, "_cw_at_constant", search)
    model, images, labels, _ = linear_problem(3, count=2)
    settings = CarliniWagner(constant=1.0, binary_search_steps=6)
    result = cw_l2(model, images, labels, settings)
    expected = [[1, 10, 5.5, 3.25, 2.125, 2.6875], [1, 0.5, 0.25, 0.375, 0.3125, 0.28125]]
    assert torch.stack(tried, 1).tolist() == expected
    assert result.distances.tolist() == [3.25, 0.3125]


@BOTH
def test_logits_below_zero_change_nothing(
    attack: Attack, digits: tuple[nn.Module, Tensor, Tensor]
) -> None:
    # In double precision: float32 logits lose three digits of their differences at -1000.
    model, images, labels = deepcopy(digits[0]).double(), digits[1][:40].double(), digits[2][:40]
    plain = attack(model, images, labels)
    shifted = attack(Shifted(model, -1000.0), images, labels)
    assert plain.found.all()
    assert torch.equal(plain.found, shifted.found)
    assert torch.allclose(plain.distances, shifted.distances, rtol=0.02)


@BOTH
def test_results_lie_in_the_box_and_fool(
    attack: Attack, digits: tuple[nn.Module, Tensor, Tensor]
) -> None:
    model, images, labels = digits
    with torch.no_grad():
        result = attack(model, images, labels)
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    assert torch.equal(model(result.images).argmax(1) != labels, result.found)
    assert result.found.all()
    assert all(weight.grad is None for weight in model.parameters())


@BOTH
def test_neither_batch_size_nor_order_matters(
    attack: Attack, digits: tuple[nn.Module, Tensor, Tensor]
) -> None:
    model, images, labels = digits[0], digits[1][:30], digits[2][:30]
    whole = attack(model, images, labels)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    parts = [attack(model, images[some], labels[some]) for some in torch.split(order, 11)]
    together = torch.cat([part.distances for part in parts])
    assert torch.allclose(together, whole.distances[order], rtol=1e-3)
    alone = attack(model, images[:1], labels[:1])
    assert torch.allclose(alone.distances, whole.distances[:1], rtol=1e-3)


@BOTH
def test_channels_last_and_low_precision_logits(attack: Attack) -> None:
    class Half(nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return logits.half()

    model, images, labels, _ = linear_problem(4)
    plain = attack(model, images, labels)
    wide = attack(model, images.to(memory_format=torch.channels_last), labels)
    assert torch.allclose(plain.distances, wide.distances, rtol=1e-3)
    half = attack(nn.Sequential(model, Half()), images, labels)
    assert half.distances.dtype == torch.float32
    assert half.found.float().mean() > 0.9


@BOTH
def test_images_that_are_wrong_already_come_back_as_they_are(attack: Attack) -> None:
    model, images, labels, _ = linear_problem(3)
    labels = labels.clone()
    labels[:5] = (labels[:5] + 1) % 3
    result = attack(model, images, labels)
    assert torch.equal(result.images[:5], images[:5])
    assert (result.distances[:5] == 0).all()
    assert (result.distances[5:] > 0).all()
    every = attack(model, images[:5], labels[:5])
    assert (every.forwards, every.backwards) == (5, 0)


@BOTH
def test_survivors_come_back_clean_at_an_infinite_distance(attack: Attack) -> None:
    class Certain(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            first = 1e3 + 0 * images.flatten(1).sum(1)
            return torch.stack([first, -first, -first], 1)

    images = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    result = attack(Certain(), images, torch.zeros(4, dtype=torch.int64))
    assert not result.found.any()
    assert result.distances.isinf().all()
    assert torch.equal(result.images, images)


@BOTH
def test_passes_are_counted(attack: Attack) -> None:
    model, images, labels, _ = linear_problem(5)
    counted = Counted(model)
    result = attack(counted, images, labels)
    assert (result.forwards, result.backwards) == (counted.forwards, counted.backwards)


def test_deepfool_costs_nine_backwards_a_step_at_a_thousand_classes_and_images_leave() -> None:
    model, images, labels, distances = linear_problem(1000, count=6)
    result = deepfool_l2(model, images, labels, DeepFool())
    assert result.found.all()
    # One step lands on a linear boundary, and the overshoot beyond it.
    assert result.backwards == 9 * len(images)
    assert (result.distances >= distances * (1 - 1e-4)).all()


def test_deepfool_stops_after_its_steps(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = digits
    once = deepfool_l2(model, images, labels, DeepFool(steps=1))
    twice = deepfool_l2(model, images, labels, DeepFool(steps=2))
    assert once.backwards == 9 * len(images)
    left = int((~once.found).sum())
    assert 0 < left < len(images)
    assert twice.backwards == 9 * (len(images) + left)
    assert torch.equal(once.images[once.found], twice.images[once.found])


def test_cw_moves_black_and_white_pixels() -> None:
    model, images, _, _ = linear_problem(3)
    images = (images > 0.5).float()
    labels = model(images).argmax(1)
    result = cw_l2(model, images, labels, CW_FAST)
    assert result.found.all()
    assert result.distances.isfinite().all()


def test_cw_reaches_its_confidence(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = digits[0], digits[1][:40], digits[2][:40]
    sure = cw_l2(model, images, labels, CarliniWagner(confidence=2.0))
    plain = cw_l2(model, images, labels, CarliniWagner())
    logits = model(sure.images).detach()
    true = logits.gather(1, labels[:, None]).squeeze(1)
    assert sure.found.all()
    assert (logits.amax(1) - true >= 2 - 1e-4).all()
    assert (sure.distances > plain.distances).float().mean() > 0.9


def test_cw_searches_a_smaller_constant(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = digits[0], digits[1][:40], digits[2][:40]
    fixed = cw_l2(model, images, labels, CarliniWagner())
    searched = cw_l2(model, images, labels, CarliniWagner(binary_search_steps=6))
    assert (searched.distances <= fixed.distances).all()
    assert searched.distances.mean() < 0.95 * fixed.distances.mean()
    assert searched.backwards == 6 * fixed.backwards


def test_cw_raises_a_constant_that_is_too_small(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    model, images, labels = digits[0], digits[1][:40], digits[2][:40]
    small = cw_l2(model, images, labels, CarliniWagner(constant=0.01))
    assert small.found.float().mean() < 0.5
    raised = cw_l2(model, images, labels, CarliniWagner(constant=0.01, binary_search_steps=4))
    assert raised.found.all()


def test_the_appendix_has_two_settings() -> None:
    shared = {"constant": 100.0, "confidence": 0.0, "binary_search_steps": 1}
    assert CW_FAST.model_dump() == {**shared, "learning_rate": 0.1, "steps": 100}
    assert CW_FINE.model_dump() == {**shared, "learning_rate": 0.01, "steps": 1000}


@pytest.mark.parametrize("search", [1, 2])
def test_cw_distance_is_that_of_foolbox(
    search: int, digits: tuple[nn.Module, Tensor, Tensor]
) -> None:
    foolbox = pytest.importorskip("foolbox")
    model, images, labels = digits
    ours = cw_l2(model, images, labels, CarliniWagner(binary_search_steps=search))
    peer = foolbox.attacks.L2CarliniWagnerAttack(
        binary_search_steps=search, steps=100, stepsize=0.1, initial_const=100, abort_early=False
    )
    _, theirs, fooled = peer(foolbox.PyTorchModel(model, (0, 1)), images, labels, epsilons=None)
    assert ours.found.sum() >= fooled.sum() > 150
    distances = (theirs - images).flatten(1).norm(dim=1)
    both = fooled & ours.found
    assert ours.distances[both].mean() <= 1.02 * distances[both].mean()


def test_deepfool_distance_is_that_of_foolbox(digits: tuple[nn.Module, Tensor, Tensor]) -> None:
    foolbox = pytest.importorskip("foolbox")
    model, images, labels = digits
    ours = deepfool_l2(model, images, labels, DeepFool())
    peer = foolbox.attacks.L2DeepFoolAttack(steps=50, candidates=10, overshoot=0.02)
    _, theirs, fooled = peer(foolbox.PyTorchModel(model, (0, 1)), images, labels, epsilons=None)
    assert ours.found.sum() >= fooled.sum() > 150
    distances = (theirs - images).flatten(1).norm(dim=1)
    both = fooled & ours.found
    assert ours.distances[both].mean() <= 1.02 * distances[both].mean()

"""FAB-T against closed forms on linear classifiers, a slow projection and the reference."""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import (
    Counted,
    Recorded,
    convolutional,
    predictions,
    random_images,
    trained_on_digits,
)
from torch import Tensor, nn

import bilateral
from bilateral.attacks import ball
from bilateral.attacks.fab import fab, shortest_moves
from bilateral.attacks.rows import ROWS
from bilateral.attacks.settings import FAB

DIGITS = Path(bilateral.__path__[0]) / "data" / "digits.npz"


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """A network trained with one-step adversaries of 40/255, and 200 test images."""
    return trained_on_digits(40)


def linear_problem(classes: int, count: int = 60) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A linear model, images near mid-grey that it gets right, and their L-inf distances."""
    generator = torch.Generator().manual_seed(classes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, classes))
    model[1].weight.data = torch.randn(classes, 48, generator=generator)
    model[1].bias.data = torch.zeros(classes)
    images = 0.5 + 0.1 * torch.randn(count, 3, 4, 4, generator=generator).clamp(-3, 3)
    logits = model(images).detach()
    labels = logits.argmax(1)
    weight = model[1].weight.data
    margins = logits.gather(1, labels[:, None]) - logits
    norms = (weight[labels][:, None] - weight).abs().sum(2)
    distances = (margins / norms).scatter(1, labels[:, None], torch.inf).amin(1)
    return model, images, labels, distances


def slow_length(point: Tensor, normal: Tensor, value: float) -> float:
    """The shortest length by bisection, in double precision."""
    direction = -normal.sign() * (1 if value > 0 else -1)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        moved = (point + middle * direction).clamp(0, 1)
        reached = value + float(((moved - point) * normal).sum())
        low, high = (low, middle) if reached * value <= 0 else (middle, high)
    return high


@settings(max_examples=60, deadline=None)
@given(
    pixels=st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_moves_are_the_shortest_on_to_the_hyperplane(
    pixels: list[float], seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.tensor([pixels], dtype=torch.float64)
    normals = torch.randn(points.shape, generator=generator, dtype=torch.float64)
    normals[0, 0] *= seed % 2
    values = scale * torch.randn(1, generator=generator, dtype=torch.float64)
    moved = points + shortest_moves(points, normals, values)
    assert moved.min() >= -1e-12
    assert moved.max() <= 1 + 1e-12
    direction = -(values.sign() * normals.sign())
    furthest = (points + direction).clamp(0, 1)
    best = values + ((furthest - points) * normals).sum()
    reached = values + ((moved - points) * normals).sum()
    if best * values > 0:
        assert torch.allclose(reached, best)
    else:
        assert abs(float(reached)) < 1e-9
        expected = slow_length(points[0], normals[0], float(values))
        assert float((moved - points).abs().max()) <= expected + 1e-9


def slow_fab(
    model: nn.Module, start: Tensor, clean: Tensor, label: int, target: int, settings: FAB
) -> tuple[list[Tensor], list[Tensor]]:
    """The paper's algorithm line by line on one image: where it evaluates, and what fooled."""
    evaluated, fooling, current = [], [], start
    for _ in range(settings.steps):
        current = current.clone().requires_grad_()
        logits = model(current)[0].float()
        value = logits[target] - logits[label]
        (normal,) = torch.autograd.grad(value, current)
        evaluated.append(current.detach())
        value, current = value.detach().double(), current.detach()
        at_clean = value + ((clean - current) * normal).sum()
        moves = [
            shortest_moves(point.view(1, -1), normal.view(1, -1), there.view(1)).view_as(point)
            for point, there in ((current, value), (clean, at_clean))
        ]
        here, origin = (float(move.abs().max()) for move in moves)
        bias = min(here / (here + origin), 0.1)
        current = (1 - bias) * (current + 1.05 * moves[0]) + bias * (clean + 1.05 * moves[1])
        current = current.clamp(0, 1)
        evaluated.append(current)
        if int(model(current).argmax()) != label:
            fooling.append(current)
            current = 0.1 * clean + 0.9 * current
    return evaluated, fooling


class Wave(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return (20 * images).sin()


# In waves a step often lands beside the boundary, nearer than any point that fools.
@pytest.mark.parametrize(
    ("layer", "seed"), [(nn.Tanh, 0), (nn.Tanh, 1), (nn.Tanh, 2), (Wave, 12), (Wave, 20)]
)
def test_every_iterate_is_that_of_the_paper(layer: type[nn.Module], seed: int) -> None:
    """Two targets and two passes over them, the second from half the budget away.

    The image handed back is the projection of the nearest of all points that fooled.
    """
    network = convolutional(4).double()
    network[1] = network[3] = layer()
    image = random_images(1, channels=3, seed=seed).double()
    label, recorded, epsilon = predictions(network, image), Recorded(network), 1e-3
    settings = FAB(epsilon=epsilon, steps=5, targets=2, restarts=2)
    attacked = fab(recorded, image, label, settings, torch.tensor([seed]))
    assert not attacked.fooled.any()
    with torch.no_grad():
        targets = network(image)[0].argsort(descending=True)[1:3].tolist()
    nearest: tuple[float, Tensor] = (torch.inf, image)
    starts, rest = [], recorded.images[1:]
    for target in targets * 2:
        ours, rest = rest[: 2 * settings.steps], rest[2 * settings.steps + 1 :]
        starts.append(ours[0])
        theirs, fooling = slow_fab(network, ours[0], image, int(label), target, settings)
        for mine, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6)
        lengths = [(float((point - image).abs().max()), point) for point in fooling]
        nearest = min([nearest, *lengths], key=lambda pair: pair[0])
    assert not rest and nearest[0] < torch.inf
    torch.testing.assert_close(
        attacked.images, ball.project(nearest[1], image, epsilon), rtol=0, atol=1e-6
    )
    assert torch.equal(starts[0], image) and torch.equal(starts[1], image)
    for start in starts[2:]:
        assert float((start - image).abs().max()) == pytest.approx(epsilon / 2, rel=1e-4)
    assert not torch.equal(starts[2], starts[3])


@pytest.mark.parametrize("classes", [2, 3, 12])
def test_distance_on_a_linear_classifier_is_the_closed_form(classes: int) -> None:
    model, images, labels, distances = linear_problem(classes)
    for epsilon in distances.quantile(torch.tensor([0.2, 0.5, 0.8])).tolist():
        attacked = fab(model, images, labels, FAB(epsilon=epsilon, steps=10))
        assert attacked.fooled[distances < 0.99 * epsilon].all()
        assert not attacked.fooled[distances > 1.0001 * epsilon].any()
        assert ball.inside(attacked.images, images, epsilon).all()
        predicted = model(attacked.images).argmax(1)
        assert torch.equal(predicted != labels, attacked.fooled)


def test_survivors_come_back_at_the_edge_of_the_ball_towards_what_was_found() -> None:
    model, images, labels, distances = linear_problem(4)
    epsilon = float(distances.min()) / 2
    attacked = fab(model, images, labels, FAB(epsilon=epsilon, steps=5))
    assert not attacked.fooled.any()
    moved = (attacked.images - images).abs().flatten(1).amax(1)
    assert torch.allclose(moved, torch.full_like(moved, epsilon), atol=1e-6)


def test_passes_are_counted_and_broken_images_leave() -> None:
    model, images, labels, distances = linear_problem(5)
    counted = Counted(model)
    easy = float(distances.max()) * 1.2
    attacked = fab(counted, images, labels, FAB(epsilon=easy))
    assert attacked.fooled.all()
    assert (attacked.forwards, attacked.backwards) == (counted.forwards, counted.backwards)
    # The linearisation is exact, so the first step to each target lands; the nearest of the
    # four targets is among them, but not always the first.
    assert attacked.backwards <= 4 * 3 * len(images)
    hard = fab(model, images, labels, FAB(epsilon=1e-4, steps=7, targets=2))
    assert hard.backwards == 2 * 7 * len(images)


def test_an_image_that_is_wrong_already_costs_one_forward() -> None:
    model, images, labels, _ = linear_problem(3)
    attacked = fab(model, images, (labels + 1) % 3, FAB())
    assert attacked.fooled.all()
    assert torch.equal(attacked.images, images)
    assert (attacked.forwards, attacked.backwards) == (len(images), 0)


def test_flags_depend_on_neither_batch_size_nor_order(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    model, images, labels = digits[0], digits[1][:40], digits[2][:40]
    attack = FAB(epsilon=40 / 255, steps=8, targets=3, restarts=2)
    keys = torch.arange(40) * 7919
    whole = fab(model, images, labels, attack, keys)
    assert 3 < whole.fooled.sum() < 37
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    parts = [
        fab(model, images[some], labels[some], attack, keys[some]) for some in torch.split(order, 7)
    ]
    assert torch.equal(torch.cat([part.fooled for part in parts]), whole.fooled[order])
    assert torch.allclose(
        torch.cat([part.images for part in parts]), whole.images[order], atol=1e-3
    )
    alone = fab(model, images[:1], labels[:1], attack, keys[:1])
    assert alone.fooled[0] == whole.fooled[0]


@pytest.mark.parametrize("pixels", [20, 40])
def test_flags_do_not_depend_on_how_many_targets_run_together(
    digits: tuple[nn.Module, Tensor, Tensor], pixels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = copy.deepcopy(digits[0]).double(), digits[1][:60].double()
    labels, keys = predictions(model, images), torch.arange(60) * 31
    epsilon = pixels / 255
    attack = FAB(epsilon=epsilon, steps=6, targets=3, restarts=2)
    alone = fab(model, images, labels, attack, keys)
    left = ~alone.fooled
    assert 3 < left.sum() < 57
    for attempts in (3, 6):
        monkeypatch.setitem(ROWS, "cpu", attempts * 60)
        counted = Counted(model)
        together = fab(counted, images, labels, attack, keys)
        assert torch.equal(together.fooled, alone.fooled)
        assert torch.allclose(together.images[left], alone.images[left], atol=1e-9)
        assert torch.equal(predictions(model, together.images) != labels, alone.fooled)
        assert ball.inside(together.images, images, epsilon).all()
        assert (together.forwards, together.backwards) == (counted.forwards, counted.backwards)
        assert together.forwards > alone.forwards


def test_targets_run_one_by_one_where_memory_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images, labels, distances = linear_problem(4)
    attack = FAB(epsilon=float(distances.median()), steps=5)
    expected = fab(model, images, labels, attack)

    class Cramped(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            if len(images) > 60:
                raise torch.OutOfMemoryError("no room")
            logits: Tensor = model(images)
            return logits

    monkeypatch.setitem(ROWS, "cpu", 1000)
    attacked = fab(Cramped(), images, labels, attack)
    assert torch.equal(attacked.images, expected.images)
    assert attacked.forwards == expected.forwards


def test_restarts_start_from_noise_that_the_keys_decide(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    model, images, labels = digits[0], digits[1][:20], digits[2][:20]
    attack = FAB(epsilon=10 / 255, steps=4, targets=1, restarts=3)
    one, same, other = (
        fab(model, images, labels, attack, torch.arange(20) + start) for start in (0, 0, 100)
    )
    assert torch.equal(one.images, same.images)
    assert not torch.equal(one.images, other.images)


def test_channels_last_images_give_the_same() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)).eval()
    images = torch.rand(30, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = model(images).argmax(1)
    attack = FAB(epsilon=0.005, steps=5)
    plain = fab(model, images, labels, attack)
    assert 3 < plain.fooled.sum() < 27
    wide = fab(model, images.to(memory_format=torch.channels_last), labels, attack)
    assert torch.equal(plain.fooled, wide.fooled)
    assert torch.allclose(plain.images, wide.images, atol=1e-3)


def test_low_precision_logits_and_no_weight_gradients(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    class Half(nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return logits.bfloat16()

    model, images, labels = digits[0], digits[1][:30], digits[2][:30]
    attack = FAB(epsilon=40 / 255, steps=10, targets=2)
    plain = fab(model, images, labels, attack)
    with torch.no_grad():
        half = fab(nn.Sequential(model, Half()), images, labels, attack)
    assert (half.fooled != plain.fooled).sum() <= 2
    assert ball.inside(half.images, images, 40 / 255).all()
    assert all(weight.grad is None for weight in model.parameters())


def test_robust_accuracy_is_that_of_the_reference(
    digits: tuple[nn.Module, Tensor, Tensor],
) -> None:
    peer = pytest.importorskip("pyautoattack.fab_pt")
    model, images, labels = digits
    right = model(images).argmax(1) == labels
    images, labels = images[right], labels[right]
    epsilon = 40 / 255
    ours = fab(model, images, labels, FAB(epsilon=epsilon, steps=50))
    reference = peer.FABAttack_PT(model, n_iter=50, eps=epsilon, targeted=True, device="cpu")
    theirs = reference.perturb(images, labels)
    fooled = (model(theirs).argmax(1) != labels) & ball.inside(theirs, images, epsilon)
    assert 20 < fooled.sum() < len(labels) - 20
    assert (~ours.fooled).sum() <= (~fooled).sum() + 1
    assert torch.equal(model(ours.images).argmax(1) != labels, ours.fooled)
    assert ball.inside(ours.images, images, epsilon).all()

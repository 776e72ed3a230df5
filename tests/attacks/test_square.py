"""The Square attack against closed forms on linear classifiers and the reference."""

import numpy as np
import pytest
import torch
from small_models import (
    Recorded,
    centred,
    convolutional,
    predictions,
    random_images,
    trained_on_digits,
)
from torch import Tensor, nn

from bilateral.attacks import ball, losses
from bilateral.attacks.settings import Square
from bilateral.attacks.square import DRAWN, LOOK, side_length, square


def linear(classes: int, pixels: int, seed: int = 0) -> nn.Sequential:
    layer = nn.Linear(pixels, classes)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def test_the_schedule_is_that_of_the_paper() -> None:
    settings = Square(queries=10_000, p_init=0.8)
    sides = [side_length(query, settings, 32, 32) for query in range(10_000)]
    assert [sides[query] for query in (1, 11, 51, 201, 501, 1001)] == [29, 20, 14, 10, 7, 5]
    assert [sides[query] for query in (10, 50, 200, 500, 1000)] == [29, 20, 14, 10, 7]
    assert sides == sorted(sides, reverse=True)
    assert sides[-1] == 1
    shorter = Square(queries=1000, p_init=0.8)
    assert [side_length(query, shorter, 32, 32) for query in (1, 2, 5, 6)] == [29, 20, 20, 14]
    assert side_length(1, Square(p_init=1.0), 40, 10) == 10


def test_the_schedule_is_that_of_the_reference() -> None:
    reference = pytest.importorskip("pyautoattack.square")
    for queries in (1000, 5000, 10_000):
        peer = reference.SquareAttack(None, n_queries=queries, p_init=0.8, eps=0.1, device="cpu")
        settings = Square(queries=queries)
        for query in range(0, queries, 7):
            expected = max(round(float(np.sqrt(peer.p_selection(query) * 32 * 32))), 1)
            assert side_length(query, settings, 32, 32) == expected


@pytest.mark.parametrize("seed", range(3))
def test_two_classes_break_exactly_where_the_closed_form_says(seed: int) -> None:
    """On a linear classifier every single pixel is right or wrong by itself."""
    model, images = centred(linear(2, 16, seed), side=4), random_images(60, side=4, seed=seed)
    labels = predictions(model, images)
    layer = model[1]
    assert isinstance(layer, nn.Linear)
    with torch.no_grad():
        slopes = (layer.weight[1 - labels] - layer.weight[labels]).reshape(images.shape)
        high, low = (images + 0.1).clamp_max(1), (images - 0.1).clamp_min(0)
        margin = (slopes * torch.where(slopes > 0, high, low)).flatten(1).sum(1)
        margin += layer.bias[1 - labels] - layer.bias[labels]
    settings = Square(epsilon=0.1, queries=400)
    attacked = square(model, images, labels, settings, torch.arange(60))
    assert 5 < int(attacked.fooled.sum()) < 55
    assert torch.equal(attacked.fooled, margin > 0)
    left = ~attacked.fooled
    with torch.no_grad():
        reached = losses.margin(model(attacked.images[left]), labels[left], None)
    assert torch.allclose(reached, margin[left], atol=1e-4)


def test_no_query_repeats_the_image_it_has() -> None:
    """Of one grey pixel there are two corners: two queries see both."""
    layer = nn.Linear(1, 2)
    layer.weight.data, layer.bias.data = torch.tensor([[0.0], [1.0]]), torch.tensor([0.55, 0.0])
    model = nn.Sequential(nn.Flatten(), layer)
    images, labels = torch.full((64, 1, 1, 1), 0.5), torch.zeros(64, dtype=torch.int64)
    first, second = (
        square(model, images, labels, Square(epsilon=0.1, queries=queries), torch.arange(64))
        for queries in (1, 2)
    )
    assert 10 < int(first.fooled.sum()) < 54
    assert second.fooled.all()


def test_a_tie_that_fools_is_the_image_returned() -> None:
    """With equal logits the first class wins, so an image can break while its margin stays 0."""

    class Tied(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            above = (images.flatten(1)[:, 0] > 0.55).float()
            return torch.stack([above, torch.ones_like(above), 1 - above], 1)

    model, images = Tied(), torch.full((16, 1, 1, 1), 0.5)
    labels = torch.ones(16, dtype=torch.int64)
    attacked = square(model, images, labels, Square(epsilon=0.1, queries=2), torch.arange(16))
    assert attacked.fooled.all()
    assert (predictions(model, attacked.images) == 0).all()


def test_queries_are_corners_that_differ_by_one_square() -> None:
    """Stripes at first; then every image changes inside a square, by one sign per channel."""
    images = 0.3 + 0.4 * random_images(5, channels=3, side=8)
    layer = nn.Linear(192, 2)
    layer.bias.data = torch.tensor([100.0, 0.0])
    model = Recorded(nn.Sequential(nn.Flatten(), layer))
    settings = Square(epsilon=0.1, queries=60, p_init=0.1)
    square(model, images, torch.zeros(5, dtype=torch.int64), settings, torch.arange(5))
    queries = [(query - images) / 0.1 for query in model.images[1:]]
    assert len(queries) == 60
    assert all(torch.allclose(query.abs(), torch.ones(())) for query in queries)
    signs = [query.sign() for query in queries]
    assert (signs[0] == signs[0][:, :, :1]).all()
    assert not torch.equal(signs[0][0], signs[0][1])
    assert not torch.equal(signs[0][:, 0], signs[0][:, 1]), "every channel has its own stripes"
    with torch.no_grad():
        margins = [losses.margin(model.model(q), torch.zeros(5).long(), None) for q in model.images]
    corners, best, mixed = set(), 1, []
    for query in range(2, 61):
        side = side_length(query - 1, settings, 8, 8)
        better = margins[best][0] < margins[query][0]
        changed = (signs[query - 1][0] != signs[best - 1][0]).any(0)
        rows, columns = changed.any(1).nonzero(), changed.any(0).nonzero()
        assert len(rows) >= 1 and int(rows.max() - rows.min()) < side
        assert int(columns.max() - columns.min()) < side
        if side == 1:
            corners.add((int(rows[0]), int(columns[0])))
            mixed.append(len(signs[query - 1][0, :, rows[0], columns[0]].unique()) == 2)
        best = query if better else best
    # Places are drawn from all of the image, its last row and column too.
    assert max(row for row, _ in corners) == 7 and max(column for _, column in corners) == 7
    # Three channels of independent signs agree in one square of four.
    assert len(mixed) > 30 and 0.5 < sum(mixed) / len(mixed) < 0.95


def test_a_square_that_gains_nothing_is_not_kept() -> None:
    """Where all margins are equal the first query stays, whatever comes after it."""

    class Flat(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.tensor([[1.0, 0.0]]).repeat(len(images), 1)

    model, images = Recorded(Flat()), random_images(4)
    labels = torch.zeros(4, dtype=torch.int64)
    attacked = square(model, images, labels, Square(epsilon=0.1, queries=20), torch.arange(4))
    assert torch.equal(attacked.images, model.images[1])
    assert not torch.equal(model.images[2], model.images[1])


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_contract(classes: int) -> None:
    model, images = convolutional(classes), random_images(40, channels=3)
    labels = predictions(model, images)
    labels[:5] = (labels[:5] + 1) % classes
    images[5, :, :3], images[6, :, :3] = 0, 1
    settings = Square(epsilon=0.02, queries=60, restarts=2)
    attacked = square(model, images, labels, settings, torch.arange(40))
    assert ball.inside(attacked.images, images, 0.02).all()
    assert torch.equal(attacked.fooled, predictions(model, attacked.images) != labels)
    assert attacked.fooled[:5].all()
    assert torch.equal(attacked.images[:5], images[:5])
    assert 0 < int(attacked.fooled[5:].sum()) < 35
    assert attacked.backwards == 0


def test_flags_depend_on_the_image_alone() -> None:
    model, images = convolutional().double(), random_images(32, channels=3).double()
    labels, keys = predictions(model, images), torch.arange(32) * 7
    settings = Square(epsilon=0.02, queries=60, restarts=2)
    together = square(model, images, labels, settings, keys)
    assert 3 < int(together.fooled.sum()) < 29
    order = torch.randperm(32, generator=torch.Generator().manual_seed(0))
    permuted = square(model, images[order], labels[order], settings, keys[order])
    assert torch.equal(permuted.fooled, together.fooled[order])
    assert torch.equal(permuted.images, together.images[order])
    forwards = 0
    for image in range(32):
        row = slice(image, image + 1)
        alone = square(model, images[row], labels[row], settings, keys[row])
        assert torch.equal(alone.fooled, together.fooled[row])
        assert torch.equal(alone.images, together.images[row])
        forwards += alone.forwards
    assert forwards == together.forwards


def test_nothing_depends_on_how_often_the_host_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between looks a broken image keeps the query that fooled, whatever comes after it."""
    model, images = Recorded(convolutional().double()), random_images(40, channels=3).double()
    labels, keys = predictions(model.model, images), torch.arange(40) * 7
    settings = Square(epsilon=0.02, queries=2 * DRAWN + 10, restarts=2)
    at_once = square(model.model, images, labels, settings, keys)
    assert 3 < int(at_once.fooled.sum()) < 37
    for look in (7, 10, 1000):
        monkeypatch.setitem(LOOK, "cpu", look)
        model.images.clear()
        late = square(model, images, labels, settings, keys)
        assert torch.equal(late.fooled, at_once.fooled)
        assert torch.equal(late.images, at_once.images)
        sizes = [len(query) for query in model.images[1:]]
        assert late.forwards == 40 + sum(sizes) > at_once.forwards
        assert len(sizes) == 2 * settings.queries
        searches = (sizes[: settings.queries], sizes[settings.queries :])
        for first in range(0, settings.queries, look):
            assert all(len(set(search[first : first + look])) == 1 for search in searches)


def test_keys_decide_the_search() -> None:
    model, images = convolutional(), random_images(16, channels=3)
    labels, settings = predictions(model, images), Square(epsilon=0.005, queries=20)
    one, same, other = (
        square(model, images, labels, settings, torch.arange(16) + first) for first in (0, 0, 99)
    )
    assert torch.equal(one.images, same.images)
    assert not torch.equal(one.images, other.images)


def test_images_leave_the_batch_the_moment_they_break() -> None:
    layer = nn.Linear(36, 4)
    nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(3))
    layer.bias.data = torch.tensor([2.0, 0.0, 0.0, 0.0])
    model = Recorded(nn.Sequential(nn.Flatten(), layer))
    images, labels = random_images(64), torch.zeros(64, dtype=torch.int64)
    settings = Square(epsilon=0.06, queries=40, restarts=2)
    attacked = square(model, images, labels, settings, torch.arange(64))
    left = 64
    for forward in model.predictions:
        assert len(forward) == left
        left = int((forward == 0).sum())
    assert 0 < left == int((~attacked.fooled).sum())
    assert len(model.predictions) == 1 + 2 * 40
    assert attacked.forwards == sum(len(forward) for forward in model.predictions)


def test_nothing_runs_once_all_are_broken() -> None:
    model, images = Recorded(centred(linear(2, 36))), random_images(8)
    labels = 1 - predictions(model.model, images)
    attacked = square(model, images, labels, Square(epsilon=0.1))
    assert attacked.fooled.all()
    assert (attacked.forwards, len(model.predictions)) == (8, 1)
    attacked = square(model, images, 1 - labels, Square(epsilon=1.0, queries=1000))
    assert attacked.fooled.all()
    assert len(model.predictions) < 500
    assert all(len(forward) for forward in model.predictions)


def test_more_searches_break_more_and_keep_the_largest_margin() -> None:
    model, images = convolutional(), random_images(60, channels=3)
    labels = predictions(model, images)
    once, often = (
        square(model, images, labels, Square(epsilon=0.02, queries=15, restarts=n), labels)
        for n in (1, 5)
    )
    assert (often.fooled | ~once.fooled).all()
    assert often.fooled.sum() > once.fooled.sum()
    left = ~often.fooled
    with torch.no_grad():
        before, after = (
            losses.margin(model(attacked.images[left]), labels[left], None)
            for attacked in (once, often)
        )
    assert (after >= before - 1e-6).all()
    assert (after > before + 1e-3).any()


def test_channels_last_and_low_precision_logits() -> None:
    model, images = convolutional(), random_images(24, channels=3)
    labels, settings = predictions(model, images), Square(epsilon=0.02, queries=40)
    plain = square(model, images, labels, settings, torch.arange(24))
    last = images.to(memory_format=torch.channels_last)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    strided = square(model, last, labels, settings, torch.arange(24))
    assert torch.equal(plain.fooled, strided.fooled)
    assert strided.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(last, images)
    with torch.autocast("cpu", torch.bfloat16):
        rough = square(model, images, labels, settings, torch.arange(24))
        assert torch.equal(rough.fooled, predictions(model, rough.images) != labels)
    assert ball.inside(rough.images, images, 0.02).all()


def test_no_more_survive_than_under_the_reference() -> None:
    reference = pytest.importorskip("pyautoattack.square")
    model, images, labels = trained_on_digits()
    epsilon = 20 / 255
    peer = reference.SquareAttack(model, eps=epsilon, n_queries=300, device="cpu", seed=0)
    peer_robust = int((predictions(model, peer.perturb(images, labels)) == labels).sum())
    settings = Square(epsilon=epsilon, queries=300)
    ours = square(model, images, labels, settings, torch.arange(200))
    assert 60 < peer_robust < 180
    deviation = (peer_robust * (1 - peer_robust / 200)) ** 0.5
    assert int((~ours.fooled).sum()) <= peer_robust + 2 * deviation

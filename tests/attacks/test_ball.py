"""The feasible set itself: noise that fills it, projections on to it, and who lies inside."""

import pytest
import torch

from bilateral.attacks.ball import inside, per_image, project, random_start
from bilateral.attacks.inputs import check_images
from bilateral.errors import UserError
from bilateral.randomness import image_keys


def test_a_random_start_is_uniform_over_the_whole_ball():
    """Ten bins of equal width from -epsilon to epsilon are equally full, within five sigma."""
    clean = torch.full((40, 3, 10, 10), 0.5)
    start = random_start(clean, 0.1, image_keys(0, torch.arange(40)), clip=False)
    counts = torch.histc((start - clean) / 0.1, bins=10, min=-1.0, max=1.0)
    assert int(counts.sum()) == clean.numel(), "nothing lies outside"
    expected = clean.numel() / 10
    assert (counts - expected).abs().max() < 5 * (0.9 * expected) ** 0.5


@pytest.mark.parametrize("clip", [True, False])
def test_a_random_start_leaves_the_range_unless_it_is_clipped(clip):
    clean = torch.tensor([0.0, 1.0]).repeat(50).view(1, 1, 10, 10)
    start = random_start(clean, 0.1, image_keys(0, torch.arange(1)), clip=clip)
    assert bool(((start < 0) | (start > 1)).any()) is not clip


def test_a_start_at_the_corners_is_as_far_as_it_can_be_and_as_often_up_as_down():
    clean = torch.full((40, 3, 10, 10), 0.5)
    keys = image_keys(0, torch.arange(40))
    moved = random_start(clean, 0.1, keys, clip=False, corners=True) - clean
    torch.testing.assert_close(moved.abs(), torch.full_like(clean, 0.1))
    up = int((moved > 0).sum())
    assert abs(up - clean.numel() / 2) < 5 * (clean.numel() / 4) ** 0.5
    inner = random_start(clean, 0.1, keys, clip=False) - clean
    assert torch.equal(moved > 0, inner > 0), "the corner on the side of the point inside"


def test_projection_pixel_by_pixel():
    clean = torch.tensor([0.05, 0.5, 0.5, 0.5, 0.95]).view(1, 1, 1, 5)
    images = torch.tensor([-3.0, 0.3, 0.55, 0.7, 3.0]).view(1, 1, 1, 5)
    found = project(images, clean, 0.1).flatten()
    torch.testing.assert_close(found, torch.tensor([0.0, 0.4, 0.55, 0.6, 1.0]))


@pytest.mark.parametrize(
    ("clean", "image", "expected"),
    [
        (0.5, 0.6 + 5e-7, True),  # what float32 rounding may do
        (0.5, 0.6 + 5e-6, False),
        (0.5, 0.4 - 5e-6, False),
        (0.02, 0.0, True),
        (0.02, -0.01, False),  # in the ball, not in [0, 1]
        (0.98, 1.0, True),
        (0.98, 1.01, False),
        (0.5, float("nan"), False),
        (0.5, float("inf"), False),
    ],
)
def test_one_pixel_decides_whether_an_image_is_inside(clean, image, expected):
    around = torch.full((3, 2, 2, 2), clean)
    images = around.clone()
    images[1, 1, 0, 1] = image
    assert inside(images, around, 0.1).tolist() == [True, expected, True]


def test_per_image_broadcasts_over_pixels():
    images = torch.ones(2, 3, 4, 5)
    scaled = per_image(torch.tensor([2.0, 3.0]), images) * images
    assert (scaled[0] == 2).all() and (scaled[1] == 3).all()


@pytest.mark.parametrize(
    "images",
    [torch.ones(1, 1, 1, 1, dtype=torch.uint8), torch.tensor([[-0.1]]), torch.tensor([[1.1]])],
    ids=["bytes", "below", "above"],
)
def test_other_units_are_refused(images):
    with pytest.raises(UserError, match=r"floats in \[0, 1\]"):
        check_images(images)

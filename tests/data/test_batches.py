"""Batches: every image once an epoch, augmentation equal to pad-and-crop, no state."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bilateral.config import Data
from bilateral.data.batches import Batches, as_floats, shift_and_mirror
from bilateral.data.datasets import Split
from bilateral.data.subsets import balanced_subset, per_class_subset
from bilateral.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture
def split():
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (103, 8, 8, 3), dtype=np.uint8)
    labels = np.arange(103) % 5
    return Split(pixels, labels.astype(np.int64), tuple("abcde"))


def batches(split, **fields):
    return Batches(split, Data(**{"augment": "crop-flip", **fields}), 10, 3, CPU)


def test_an_epoch_shows_each_image_at_most_once(split):
    made = batches(split)
    numbers = torch.cat([batch.numbers for batch in made.epoch(0)])
    assert len(numbers) == made.steps * 10 == 100
    assert len(numbers.unique()) == 100
    assert not torch.equal(made.order(0), made.order(1))


def test_going_on_within_an_epoch_changes_nothing(split):
    whole = list(batches(split).epoch(2))
    rest = list(batches(split).epoch(2, first_step=6))
    assert len(rest) == 4
    for one, other in zip(whole[6:], rest, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_images_without_augmentation_are_the_pixels(split):
    batch = next(batches(split, augment="none").epoch(0))
    expected = torch.from_numpy(split.pixels[batch.numbers.numpy()]).permute(0, 3, 1, 2) / 255
    assert torch.equal(batch.images, expected)
    assert torch.equal(batch.labels, torch.from_numpy(split.labels)[batch.numbers])


def test_shift_is_pad_with_mid_grey_and_crop():
    pixels = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    shifts = torch.tensor([[0, 0], [4, 4], [-4, -4], [3, -2], [-1, 4], [2, 2]])
    mirror = torch.tensor([False, False, True, True, False, True])
    moved = as_floats(shift_and_mirror(pixels, shifts, mirror))
    padded = F.pad(pixels / 255, (4, 4, 4, 4), value=0.5)
    for image in range(6):
        row, column = (shifts[image] + 4).tolist()
        crop = padded[image, :, row : row + 8, column : column + 8]
        crop = crop.flip(-1) if mirror[image] else crop
        torch.testing.assert_close(moved[image], crop)


def test_mirroring_is_decided_as_asked(split):
    flat = np.tile(np.arange(16, dtype=np.uint8), (103, 16, 1))[..., None]
    ramp = Split(flat, split.labels, split.classes)

    def mirrored(**fields):
        """For each batch, which images run downwards."""
        made = batches(ramp, **fields).epoch(0)
        return [batch.images[:, 0, 8, 7] > batch.images[:, 0, 8, 8] for batch in made]

    by_image = mirrored()
    assert any(0 < int(flags.sum()) < 10 for flags in by_image)
    by_batch = mirrored(fidelity="authors")
    assert all(int(flags.sum()) in (0, 10) for flags in by_batch)
    assert len({int(flags.sum()) for flags in by_batch}) == 2
    assert not any(flags.any() for flags in mirrored(augment="crop"))


def test_crops_reach_every_shift():
    pixels = np.zeros((2000, 8, 8, 1), dtype=np.uint8)
    pixels[:, 4, 4] = 255
    one = Split(pixels, np.zeros(2000, dtype=np.int64), ("a",))
    found = set()
    for batch in Batches(one, Data(augment="crop"), 500, 0, CPU).epoch(0):
        found |= {tuple(place.tolist()[2:]) for place in (batch.images == 1).nonzero()}
    assert found == {(row, column) for row in range(8) for column in range(8)}


def test_balanced_subsets(split):
    numbers = balanced_subset(split.labels, 52, seed=1)
    assert len(set(numbers)) == 52
    assert max(np.bincount(split.labels[numbers])) - min(np.bincount(split.labels[numbers])) <= 1
    assert set(balanced_subset(split.labels, 20, seed=1)) <= set(numbers)
    assert set(balanced_subset(split.labels, 52, seed=2)) != set(numbers)
    small = per_class_subset(split, 4, seed=0)
    assert np.bincount(small.labels).tolist() == [4] * 5
    with pytest.raises(UserError, match="a class has 20"):
        per_class_subset(split, 21, seed=0)

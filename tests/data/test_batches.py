"""Batches: every image once an epoch, augmentation equal to pad-and-crop, no state."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bilateral.config import Data
from bilateral.data.batches import (
    Batches,
    as_floats,
    augment,
    augmentation_keys,
    epoch_order,
    shift_and_mirror,
)
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


def batches(split, **share):
    return Batches(split, 10, 3, CPU, **share)


def augmented(made, epoch=0, first_step=0, **fields):
    """The images of an epoch's batches as a step sees them."""
    settings = Data(**{"augment": "crop-flip", **fields})
    for step, batch in enumerate(made.epoch(epoch, first_step), start=first_step):
        keys = torch.tensor(augmentation_keys(made.seed, epoch, step))
        yield augment(batch, settings, batch.pixels.shape[-1], keys)


def test_an_epoch_shows_each_image_at_most_once(split):
    made = batches(split)
    numbers = torch.cat([batch.numbers for batch in made.epoch(0)])
    assert len(numbers) == made.steps * 10 == 100
    assert len(numbers.unique()) == 100
    assert not torch.equal(epoch_order(103, 3, 0), epoch_order(103, 3, 1))


def test_going_on_within_an_epoch_changes_nothing(split):
    whole = list(augmented(batches(split), 2))
    rest = list(augmented(batches(split), 2, first_step=6))
    assert len(rest) == 4
    for one, other in zip(whole[6:], rest, strict=True):
        assert torch.equal(one, other)


def test_shares_of_processes_make_up_the_batch(split):
    """No image twice, none left out, and each augmented as it would be by one process."""
    whole, parts = batches(split), [batches(split, rank=rank, world=2) for rank in (0, 1)]
    for batch, *shares in zip(whole.epoch(1), *(part.epoch(1) for part in parts), strict=True):
        assert [len(share.numbers) for share in shares] == [5, 5]
        assert torch.equal(torch.stack([s.numbers for s in shares], 1).flatten(), batch.numbers)
    together = torch.stack([torch.stack(list(augmented(part, 1))) for part in parts], 2)
    assert torch.equal(together.flatten(1, 2), torch.stack(list(augmented(whole, 1))))


def test_images_without_augmentation_are_the_pixels(split):
    batch = next(batches(split).epoch(0))
    images = next(augmented(batches(split), augment="none"))
    expected = torch.from_numpy(split.pixels[batch.numbers.numpy()]).permute(0, 3, 1, 2) / 255
    assert torch.equal(images, expected)
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
        made = augmented(batches(ramp), **fields)
        return [images[:, 0, 8, 7] > images[:, 0, 8, 8] for images in made]

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
    for images in augmented(Batches(one, 500, 0, CPU), augment="crop"):
        found |= {tuple(place.tolist()[2:]) for place in (images == 1).nonzero()}
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

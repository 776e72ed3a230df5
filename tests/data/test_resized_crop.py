"""The random resized crop against plain resizing, known places on a ramp, and its distribution."""

import pytest
import torch
from torch.nn import functional as F

from bilateral.data.resized_crop import crop_boxes, resized_crop_flip, sample_boxes
from bilateral.randomness import image_keys, purpose_key


def keys(count: int, seed: int = 0) -> torch.Tensor:
    return image_keys(purpose_key(seed), torch.arange(count))


def ramps(side: int) -> torch.Tensor:
    """One picture whose first channel is the column and whose second is the row."""
    columns = torch.arange(side, dtype=torch.uint8).expand(side, side)
    return torch.stack([columns, columns.T])[None]


@pytest.mark.parametrize("size", [16, 28, 40])
def test_the_whole_picture_is_a_plain_resize(size):
    pixels = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).expand(3, -1)
    mirror = torch.tensor([False, True, False])
    found = sample_boxes(pixels, whole, mirror, size)
    expected = F.interpolate(pixels / 255, (size, size), mode="bilinear", align_corners=False)
    expected[1] = expected[1].flip(-1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_box_shows_its_own_part_of_the_picture():
    """A box of 8 by 4 pixels at (column 12, row 20) of 32, sampled at its pixels' places."""
    box = torch.tensor([[12 / 32, 20 / 32, 8 / 32, 4 / 32]])
    plain = 255 * sample_boxes(ramps(32), box, torch.tensor([False]), 4)[0]
    columns = torch.tensor([12.5, 14.5, 16.5, 18.5])
    rows = torch.tensor([20.0, 21.0, 22.0, 23.0])
    torch.testing.assert_close(plain[0], columns.expand(4, 4), atol=1e-3, rtol=0)
    torch.testing.assert_close(plain[1], rows[:, None].expand(4, 4), atol=1e-3, rtol=0)
    mirrored = 255 * sample_boxes(ramps(32), box, torch.tensor([True]), 4)[0]
    torch.testing.assert_close(mirrored, plain.flip(-1), atol=1e-3, rtol=0)


@pytest.mark.parametrize("aspect", [1.0, 1.5, 0.5, 3.0])
def test_boxes_lie_inside_with_the_usual_areas_and_ratios(aspect):
    boxes = crop_boxes(torch.full((4000,), aspect), keys(4000))
    left, top, width, height = boxes.unbind(1)
    assert (boxes >= 0).all()
    assert (left + width <= 1 + 1e-6).all() and (top + height <= 1 + 1e-6).all()
    ratio = width / height * aspect  # as it was in the picture before it was squashed
    assert ratio.min() >= 3 / 4 - 1e-4 and ratio.max() <= 4 / 3 + 1e-4
    area = width * height
    assert 0.08 <= area.min() < 0.1
    largest = min(1.0, 4 / 3 / aspect, 4 / 3 * aspect)  # for the widest or tallest box that fits
    assert 0.95 * largest < area.max() <= largest + 1e-6
    if aspect == 1:  # here most attempts fit, so both are nearly uniform
        assert float(ratio.log().mean()) == pytest.approx(0, abs=0.02)
        assert 0.45 < float(area.mean()) < 0.54
        places = (left / (1 - width))[width < 0.9]
        assert float(places.mean()) == pytest.approx(0.5, abs=0.02)


def test_a_picture_that_no_box_fits_gets_the_largest_of_its_ratio():
    """At 1 : 100 the smallest area would stick out."""
    left, top, width, height = crop_boxes(torch.full((50,), 100.0), keys(50)).unbind(1)
    torch.testing.assert_close(height, torch.ones(50))
    ratio = width * 100
    assert ratio.min() >= 3 / 4 - 1e-3 and ratio.max() <= 4 / 3 + 1e-3
    assert len(left.unique()) > 40 and (top == 0).all()


def test_a_draw_belongs_to_the_key_not_to_the_place_in_the_batch():
    pixels = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    aspects = torch.tensor([1.0, 0.7, 1.3, 1.5, 2.0, 0.9])
    found = resized_crop_flip(pixels, aspects, keys(6), keys(6, 1), 28)
    assert found.shape == (6, 3, 28, 28) and found.dtype == torch.float32
    assert found.min() >= 0 and found.max() <= 1
    some = torch.tensor([4, 1])
    again = resized_crop_flip(pixels[some], aspects[some], keys(6)[some], keys(6, 1)[some], 28)
    assert torch.equal(found[some], again)
    other = resized_crop_flip(pixels, aspects, keys(6, 2), keys(6, 1), 28)
    assert not torch.equal(found, other)


def test_half_of_the_pictures_are_mirrored_by_their_flip_keys():
    pixels = ramps(32).expand(400, -1, -1, -1)
    aspects = torch.ones(400)

    def mirrored(crop_seed):
        found = resized_crop_flip(pixels, aspects, keys(400, crop_seed), keys(400, 1), 8)
        return found[:, 0, 4, 0] > found[:, 0, 4, -1]

    assert 160 < int(mirrored(0).sum()) < 240
    assert torch.equal(mirrored(0), mirrored(5))

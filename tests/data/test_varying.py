"""Changes of light and view: each against what Pillow or plain arithmetic makes of the image."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from pydantic import ValidationError

from bilateral.config import Data, Run
from bilateral.data.batches import Batch, augment, augmentation_keys
from bilateral.data.varying import (
    GREYER,
    LIGHT,
    LIGHTER,
    SHEAR,
    SHEARED_ACROSS,
    SHEARED_DOWN,
    STEEPER,
    TURN,
    TURNED,
    lit,
    varied,
    viewed,
)
from bilateral.randomness import image_keys

KEYS = image_keys(3, torch.arange(2000))


@pytest.fixture
def picture():
    return torch.from_numpy(np.random.default_rng(0).random((3, 12, 16), np.float32))


def changed(change, picture, kind, strength):
    return change(picture[None], torch.tensor([kind]), torch.tensor([strength]))[0]


def as_pillow(picture):
    return Image.fromarray((picture.permute(1, 2, 0) * 255).round().byte().numpy())


@pytest.mark.parametrize("strength", [-1.0, -0.4, 0.5, 1.0])
@pytest.mark.parametrize(
    ("kind", "enhance"),
    [
        (LIGHTER, ImageEnhance.Brightness),
        (STEEPER, ImageEnhance.Contrast),
        (GREYER, ImageEnhance.Color),
    ],
)
def test_light_changes_as_pillow_changes_it(picture, kind, enhance, strength):
    expected = enhance(as_pillow(picture)).enhance(1 + LIGHT * strength)
    found = changed(lit, picture, kind, strength).permute(1, 2, 0) * 255
    # Pillow rounds to whole levels on the way: the image, its grey, and the blend.
    assert np.abs(found.numpy() - np.asarray(expected, np.float32)).max() < 3
    assert (found.numpy() - (picture.permute(1, 2, 0) * 255).numpy()).std() > 3


@pytest.mark.parametrize("strength", [-1.0, 0.3, 1.0])
@pytest.mark.parametrize("kind", [TURNED, SHEARED_ACROSS, SHEARED_DOWN])
def test_views_change_as_pillow_changes_them(picture, kind, strength):
    """Pillow's affine maps each place of the result to one of the image, from its corner."""
    cosine, sine, across, down = 1.0, 0.0, 0.0, 0.0
    if kind == TURNED:
        cosine, sine = math.cos(TURN * strength), math.sin(TURN * strength)
    elif kind == SHEARED_ACROSS:
        across = SHEAR * strength
    else:
        down = SHEAR * strength
    matrix = np.array([[cosine, across - sine], [down + sine, cosine]])
    middle = np.array([8.0, 6.0])
    shift = middle - matrix @ middle
    rows = [(*matrix[k], shift[k]) for k in range(2)]
    found = changed(viewed, picture, kind, strength)
    for channel in range(3):
        source = Image.fromarray(picture[channel].numpy())
        expected = source.transform(
            source.size,
            Image.Transform.AFFINE,
            (*rows[0], *rows[1]),
            Image.Resampling.BILINEAR,
            fillcolor=-1,
        )
        expected = torch.from_numpy(np.array(expected))
        # Pillow has no image outside of it, ours is mid-grey there: away from the border.
        inside = torch.zeros(12, 16, dtype=torch.bool)
        inside[3:-3, 3:-3] = True
        inside &= expected >= 0
        torch.testing.assert_close(found[channel][inside], expected[inside], atol=1e-4, rtol=0)
    assert inside.sum() > 40
    assert (found - picture).abs().mean() > 0.02


def test_what_is_turned_in_shows_mid_grey():
    white = torch.ones(3, 16, 16)
    turned = changed(viewed, white, TURNED, 1.0)
    assert float(turned[:, 0, 0].max()) == 0.5 and float(turned[:, 8, 8].min()) == 1.0


def test_each_image_has_one_change_and_about_so_many_have_one():
    images = torch.rand(1, 3, 8, 8).expand(2000, -1, -1, -1)
    found = varied(images, KEYS, 0.25)
    touched = (found != images).flatten(1).any(1)
    assert touched.float().mean() == pytest.approx(0.25, abs=0.04)
    assert found.min() >= 0 and found.max() <= 1 and found.isfinite().all()
    all_touched = varied(images, KEYS, 1.0)
    # Light leaves every pixel a function of its own value, so an image of one colour stays one.
    plain = torch.full((2000, 3, 8, 8), 0.8)
    flat = varied(plain, KEYS, 1.0).flatten(1).std(1) < 1e-6
    assert flat.float().mean() == pytest.approx(0.5, abs=0.04), "three of six kinds are of light"
    assert (all_touched != images).flatten(1).any(1).float().mean() > 0.99


def test_a_change_is_the_images_own_whatever_else_is_in_the_batch():
    images = torch.rand(6, 3, 8, 8)
    whole = varied(images, KEYS[:6], 1.0)
    torch.testing.assert_close(whole[4:], varied(images[4:], KEYS[4:6], 1.0), atol=1e-6, rtol=0)
    assert not torch.equal(whole, varied(images, KEYS[6:12], 1.0))


def test_grey_pictures_have_no_colour_to_lose():
    images = torch.rand(50, 1, 8, 8)
    kinds, strengths = torch.full((50,), GREYER), torch.ones(50)
    torch.testing.assert_close(lit(images, kinds, strengths), images)
    assert varied(images, KEYS[:50], 1.0).shape == images.shape


def test_an_epoch_varies_its_images_and_another_one_varies_them_otherwise():
    pixels = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8)
    batch = Batch(pixels, torch.zeros(20, dtype=torch.int64), torch.arange(20))

    def seen(vary, epoch=0, augmentation="none"):
        keys = torch.tensor(augmentation_keys(0, epoch, 0))
        return augment(batch, Data(augment=augmentation, vary=vary), 16, keys)

    assert torch.equal(seen(0.0), pixels / 255)
    assert torch.equal(seen(1.0), seen(1.0))
    assert not torch.equal(seen(1.0), seen(1.0, epoch=1))
    cropped = seen(1.0, augmentation="crop-flip")
    assert not torch.equal(cropped, seen(0.0, augmentation="crop-flip"))


def test_a_start_that_follows_crops_alone_is_refused_beside_other_views():
    with pytest.raises(ValidationError, match=r"data\.vary must be 0"):
        Run().with_paths({"data.vary": 0.5, "adversary.prior_start": True})

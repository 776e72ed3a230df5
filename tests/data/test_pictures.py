"""One picture file: upright, on white, and refused where it is damaged."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile, ImageOps

from bilateral.data import pictures
from bilateral.data.pictures import PictureError, picture_size, read_picture, read_squashed

ORIENTATION = 0x0112


def noise(width: int, height: int, channels: int = 3) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)


def lying(path: Path, orientation: int, pixels: np.ndarray) -> Path:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return path


@pytest.mark.parametrize("orientation", range(9))
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_pictures_stand_upright(tmp_path: Path, orientation: int, suffix: str) -> None:
    """As Pillow's own turning leaves them; 0 is no orientation."""
    file = lying(tmp_path / f"a{suffix}", orientation, noise(24, 16))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(file)).convert("RGB"))
    np.testing.assert_array_equal(read_picture(file, None), expected)
    height, width, _ = expected.shape
    assert read_squashed(file, 8)[1] == width / height
    assert picture_size(file) == (width, height)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_what_is_transparent_stands_on_white(tmp_path: Path, mode: str) -> None:
    """Its colour in the file, black here, is not seen."""
    picture = Image.new("LA", (4, 2), (0, 0))
    picture.putpixel((0, 0), (0, 255))
    rgba = picture.convert("RGBA")
    (rgba.quantize() if mode == "P" else rgba.convert(mode)).save(tmp_path / "a.png")
    found = read_picture(tmp_path / "a.png", None)
    assert found[0, 0].tolist() == [0, 0, 0] and (found.reshape(-1, 3)[1:] == 255).all()


def test_a_damaged_png_is_refused(tmp_path: Path) -> None:
    """Pillow gives what it could decode when it is asked a second time."""
    pixels = noise(60, 40)
    Image.fromarray(pixels).save(tmp_path / "whole.png")
    whole, file = (tmp_path / "whole.png").read_bytes(), tmp_path / "damaged.png"
    refused = 0
    for place in np.random.default_rng(1).integers(100, len(whole) - 20, 30).tolist():
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            np.testing.assert_array_equal(read_picture(file, None), pixels)
        except PictureError:
            refused += 1
    assert refused > 20


def test_headers_are_enough_for_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / f"a.{kind}" for kind in ("png", "jpg", "webp", "gif", "bmp")]
    for file in files:
        Image.fromarray(noise(24, 16)).save(file)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("decoded"))
    assert [picture_size(file) for file in files] == [(24, 16)] * 5


def test_large_pictures_are_decoded_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "LARGE", 100)
    held: list[bool] = []
    load = ImageFile.ImageFile.load

    def noted(image: ImageFile.ImageFile) -> object:
        held.append(pictures._one_by_one.locked())
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", noted)
    for kind in ("png", "jpg"):
        Image.fromarray(noise(24, 16)).save(tmp_path / f"a.{kind}")
        read_picture(tmp_path / f"a.{kind}", None)
    assert held and all(held)

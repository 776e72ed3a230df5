"""Photographs behave like the array of all of them, and decode no more than is asked for."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bilateral.data import load_folder, photographs, pictures
from bilateral.data.photographs import Photographs
from bilateral.data.pictures import read_picture, read_squashed
from bilateral.data.subsets import data_digest, per_class_subset
from bilateral.errors import UserError


def smooth(width: int, height: int, shift: int = 0) -> Image.Image:
    """A picture without edges, which JPEG and resizing hardly change."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = [columns * 200 // width, rows * 200 // height, np.full_like(rows, 40 + shift % 200)]
    return Image.fromarray(np.stack(channels, -1).astype(np.uint8))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes of six JPEGs, wide and tall."""
    for number in range(12):
        file = tmp_path / "val" / "ab"[number // 6] / f"{number:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        size = (48, 32) if number % 2 else (30, 40)
        smooth(*size, 15 * number).save(file, quality=95)
    return tmp_path


@pytest.fixture
def photos(folder: Path) -> Photographs:
    pixels = load_folder(folder, "test", 16, streamed=True).pixels
    assert isinstance(pixels, Photographs)
    return pixels


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are decoded."""
    names: list[str] = []

    def noted(file: Path, image_size: int | None) -> np.ndarray:
        names.append(file.name)
        return read_picture(file, image_size)

    monkeypatch.setattr(photographs, "read_picture", noted)
    return names


def test_indexing_is_an_arrays(folder: Path, photos: Photographs) -> None:
    array = load_folder(folder, "test", 16, streamed=False).pixels
    assert isinstance(array, np.ndarray)
    assert photos.shape == array.shape and photos.nbytes == array.nbytes
    assert len(photos) == len(array) == 12
    for key in (0, -1, 5, slice(None), slice(2, 9, 3), np.array([7, 0, 7]), np.array([], int)):
        found = photos[key]
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, array[key])
    with pytest.raises(IndexError):
        photos[12]
    with pytest.raises(IndexError):
        photos[np.array([3, 12])]


def test_only_what_is_asked_for_is_decoded(folder: Path, decoded: list[str]) -> None:
    split = load_folder(folder, "test", 16, streamed=True)
    small = per_class_subset(split, 2, seed=0)
    assert data_digest(split) != data_digest(small)
    assert split.image_values == 16 * 16 * 3 and decoded == []
    assert isinstance(small.pixels, Photographs) and small.labels.tolist() == [0, 0, 1, 1]
    names = [small.pixels.file(number).name for number in range(4)]
    small.pixels[1:3]
    assert sorted(decoded) == names[1:3]


def test_the_digest_is_of_files_size_labels_and_decoding(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def digest(size: int) -> str:
        return data_digest(load_folder(folder, "test", size, streamed=True))

    before = digest(16)
    assert before == digest(16) != digest(15)
    file = folder / "val" / "a" / "03.jpg"
    content = file.read_bytes()
    file.write_bytes(content + b"\0")  # still the same picture, but no longer the same file
    assert digest(16) != before
    file.write_bytes(content)
    assert digest(16) == before
    with monkeypatch.context() as patch:
        patch.setattr(photographs, "DECODED", "as the sensor lay")
        assert digest(16) != before
    (folder / "val" / "a" / "05.jpg").rename(folder / "val" / "b" / "05.jpg")
    assert digest(16) != before  # the same files in the same order, one with another label


def test_a_file_that_goes_or_breaks_is_named(folder: Path, photos: Photographs) -> None:
    (folder / "val" / "a" / "02.jpg").write_bytes(b"")
    (folder / "val" / "b" / "08.jpg").unlink()
    assert photos[np.array([0, 1, 3])].shape == (3, 16, 16, 3)
    with pytest.raises(UserError, match=r"02\.jpg is not a readable image"):
        photos[:4]
    with pytest.raises(UserError, match=r"08\.jpg is not a readable image"):
        photos[8]
    with pytest.raises(UserError, match=r"08\.jpg cannot be read"):
        _ = photos.digest


def test_another_size_is_refused_when_it_is_decoded(folder: Path) -> None:
    found = load_folder(folder, "test", None, streamed=True).pixels
    assert found.shape == (12, 40, 30, 3)
    assert found[np.array([0, 2])].shape == (2, 40, 30, 3)
    with pytest.raises(UserError, match=r"00\.jpg and .*01\.jpg differ in size \(30x40 and 48x"):
        found[:2]


def test_names_beyond_ascii(tmp_path: Path) -> None:
    file = tmp_path / "val" / "café" / "größe 1.png"
    file.parent.mkdir(parents=True)
    smooth(8, 8).save(file)
    found = load_folder(tmp_path, "test", 8, streamed=True).pixels
    assert isinstance(found, Photographs) and found.file(0) == file
    np.testing.assert_array_equal(found[0], np.asarray(smooth(8, 8)))


def test_a_large_jpeg_is_decoded_at_a_fraction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pixels are those of a full decode to a few grey levels, at both ways of reading."""
    file = tmp_path / "large.jpg"
    smooth(600, 400).save(file, quality=95)
    sizes = []
    real = Image.Image.convert

    def noted(image: Image.Image, mode: str) -> Image.Image:
        sizes.append(image.size)
        return real(image, mode)

    monkeypatch.setattr(Image.Image, "convert", noted)
    cropped = read_picture(file, 40)
    squashed, aspect = read_squashed(file, 40)
    read_picture(file, 150)
    assert sizes == [(150, 100), (75, 50), (600, 400)]
    assert aspect == 1.5
    monkeypatch.setattr(pictures, "DRAFT", 1000)
    assert np.abs(cropped.astype(int) - read_picture(file, 40)).max() <= 3
    plain = np.asarray(smooth(600, 400).resize((40, 40), Image.Resampling.BILINEAR))
    assert np.abs(squashed.astype(int) - plain).max() <= 3

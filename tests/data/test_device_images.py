"""Images by number on the device: the same floats from memory and from files, decoded once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bilateral.data import load_folder
from bilateral.data.device_images import DeviceImages
from bilateral.data.photographs import Photographs
from bilateral.errors import UserError

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(10):
        file = tmp_path / "val" / "ab"[number // 5] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (20, 14, 3), dtype=np.uint8)).save(file)
    return tmp_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers that are decoded."""
    numbers: list[int] = []
    real = Photographs.picture

    def noted(self: Photographs, number: int) -> np.ndarray:
        numbers.append(number)
        return real(self, number)

    monkeypatch.setattr(Photographs, "picture", noted)
    return numbers


def test_streamed_and_in_memory_are_the_same_floats(folder: Path) -> None:
    kept, streamed = (
        DeviceImages(load_folder(folder, "test", 8, streamed=choice), CPU)
        for choice in (False, True)
    )
    assert len(kept) == len(streamed) == 10
    assert kept.image_shape == streamed.image_shape == (3, 8, 8)
    assert torch.equal(kept.labels, streamed.labels)
    pixels = load_folder(folder, "test", 8).pixels
    for numbers in (torch.tensor([3]), torch.arange(10), torch.tensor([9, 2, 2])):
        found = kept.floats(numbers)
        assert found.dtype == torch.float32
        assert torch.equal(found, streamed.floats(numbers))
        expected = pixels[numbers.numpy()].transpose(0, 3, 1, 2).astype(np.float32) / 255
        np.testing.assert_array_equal(found.numpy(), expected)


def test_a_batch_is_decoded_once_and_the_next_ahead(folder: Path, decoded: list[int]) -> None:
    images = DeviceImages(load_folder(folder, "test", 8, streamed=True), CPU)
    one, two, three = torch.arange(0, 3), torch.arange(3, 6), torch.arange(6, 9)
    images.expect(one)
    images.expect(two)
    images.floats(one)
    images.floats(one)
    images.expect(three)
    images.floats(two)
    images.floats(three)
    assert sorted(decoded) == list(range(9))
    images.floats(one)  # only two batches are held
    assert sorted(decoded) == sorted([*range(9), 0, 1, 2])
    images.floats(torch.tensor([4]))  # not expected: it must not push out what is
    images.floats(two)
    images.floats(three)
    assert sorted(decoded) == sorted([*range(9), 0, 1, 2, 4])


def test_a_broken_file_is_named_when_its_batch_is_asked_for(folder: Path) -> None:
    (folder / "val" / "b" / "7.jpg").write_bytes(b"no picture")
    images = DeviceImages(load_folder(folder, "test", 8, streamed=True), CPU)
    images.expect(torch.arange(5, 10))
    assert images.floats(torch.arange(5)).shape == (5, 3, 8, 8)
    with pytest.raises(UserError, match=r"7\.jpg is not a readable image"):
        images.floats(torch.arange(5, 10))

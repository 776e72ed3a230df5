import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bilateral.data import DATASETS, entry_named, fetch, load
from bilateral.data import digits as digits_module
from bilateral.data.datasets_entry import PARTS, SPLITS
from bilateral.errors import UserError


@pytest.mark.parametrize("name", DATASETS)
def test_entries_are_consistent(name: str) -> None:
    entry = DATASETS[name]
    assert entry.name == name
    assert entry.summary
    assert "\n" not in entry.summary
    assert len(set(entry.classes)) == len(entry.classes) <= 256
    assert set(entry.counts) == set(SPLITS)
    assert (entry.url is None) == (entry.md5 is None and not entry.files)
    digests = [*entry.files.values()]
    if not entry.files:
        digests = [getattr(entry.digests[split], part) for split in SPLITS for part in PARTS]
    assert len(set(digests)) == (2 if entry.files else 4)
    assert all(len(digest) == 64 and int(digest, 16) for digest in digests)
    for reader in entry.readers:
        assert len(set(reader.names(entry))) == len(reader.names(entry))
        assert set(entry.files) <= set(reader.names(entry))
    assert entry.official is None or DATASETS[entry.official].url is not None


def test_classes() -> None:
    assert DATASETS["cifar10"].classes[3] == "cat"
    assert len(DATASETS["cifar100"].classes) == 100
    assert list(DATASETS["cifar100"].classes) == sorted(DATASETS["cifar100"].classes)


def test_unknown_name() -> None:
    with pytest.raises(UserError, match="unknown data set 'cifar-10'; nearest: cifar10"):
        load("cifar-10", "train")
    with pytest.raises(UserError, match="unknown data set"):
        entry_named("imagenet")


def test_digits() -> None:
    splits = {split: load("digits", split) for split in SPLITS}
    for found, count in zip(splits.values(), (1437, 360), strict=True):
        assert found.pixels.shape == (count, 8, 8, 1)
        assert found.pixels.dtype == np.uint8
        assert found.labels.dtype == np.int64
        assert found.classes == tuple("0123456789")
        shares = np.bincount(found.labels) / count
        assert shares.min() > 0.09
        assert shares.max() < 0.11
    images = np.concatenate([split.pixels.reshape(-1, 64) for split in splits.values()])
    assert len(np.unique(images, axis=0)) == 1797, "no image is in both splits"
    assert set(np.unique(images)) == {round(value * 255 / 16) for value in range(17)}


def test_digits_look_like_digits() -> None:
    """Class means of the training images recognise nine tenths of the test images."""
    train, test = load("digits", "train"), load("digits", "test")
    means = np.stack([train.pixels[train.labels == digit].mean(axis=0) for digit in range(10)])
    distances = ((test.pixels[:, None] - means[None]) ** 2).sum(axis=(2, 3, 4))
    assert (distances.argmin(axis=1) == test.labels).mean() > 0.85


@pytest.mark.parametrize("damage", ["missing", "truncated", "altered", "pickled"])
def test_damaged_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    file = tmp_path / "digits.npz"
    with np.load(digits_module.DIGITS_FILE) as arrays:
        contents = dict(arrays)
    if damage == "truncated":
        raw = digits_module.DIGITS_FILE.read_bytes()
        file.write_bytes(raw[: len(raw) // 2])
    elif damage == "altered":
        contents["train-pixels"][0, 0, 0, 0] ^= 1
        np.savez(file, **contents)
    elif damage == "pickled":
        np.savez(file, **{**contents, "train-pixels": np.array([{}], dtype=object)})
    monkeypatch.setattr(digits_module, "DIGITS_FILE", file)
    monkeypatch.setattr("bilateral.data.datasets.DIGITS_FILE", file)
    with pytest.raises(UserError, match=r"digits\.npz"):
        load("digits", "train")


def test_not_on_disk(tiny: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load("tiny", "train")
    assert str(caught.value) == (
        "tiny is not on disk: run `bilateral data fetch tiny` "
        f"(looked for {tmp_path}/cache/tiny/train-pixels.npy)"
    )


def test_load_from_the_cache_or_a_given_folder(tiny: Any, tmp_path: Path) -> None:
    fetch("tiny", tiny.archive(tmp_path / "a.tgz"))
    (tmp_path / "cache").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="not on disk"):
        load("tiny", "test")
    found = load("tiny", "test", tmp_path / "moved")
    np.testing.assert_array_equal(found.pixels, tiny.pixels["test"])
    np.testing.assert_array_equal(found.labels, tiny.labels["test"])
    assert found.labels.dtype == np.int64
    assert found.classes == tiny.entry.classes


@pytest.mark.parametrize("part", PARTS)
def test_altered_cache(tiny: Any, tmp_path: Path, part: str) -> None:
    file = fetch("tiny", tiny.archive(tmp_path / "a.tgz")) / f"test-{part}.npy"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    expected = getattr(tiny.entry.digests["test"], part)[:16]
    with pytest.raises(UserError) as caught:
        load("tiny", "test")
    message = str(caught.value)
    assert message.startswith(f"{file} is damaged: SHA-256 {expected}... expected, ")
    assert message.endswith("found; run `bilateral data fetch tiny` to replace it")
    load("tiny", "train")


@pytest.mark.parametrize("length", [0, 5, 100, 140, 200])
def test_truncated_cache(tiny: Any, tmp_path: Path, length: int) -> None:
    file = fetch("tiny", tiny.archive(tmp_path / "a.tgz")) / "test-pixels.npy"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(UserError) as caught:
        load("tiny", "test")
    message = str(caught.value)
    assert f"{file} is damaged: uint8 (3, 4, 5, 3) expected, {length} bytes found" in message
    assert "\n" not in message


def test_cache_of_another_type_or_shape(tiny: Any, tmp_path: Path) -> None:
    file = fetch("tiny", tiny.archive(tmp_path / "a.tgz")) / "test-pixels.npy"
    np.save(file, tiny.pixels["test"].astype(np.float32))
    with pytest.raises(UserError, match=r"uint8 \(3, 4, 5, 3\) expected, float32 \(3, 4, 5, 3\)"):
        load("tiny", "test")
    np.save(file, tiny.pixels["test"][:2])
    with pytest.raises(UserError, match=r"expected, uint8 \(2, 4, 5, 3\) found"):
        load("tiny", "test")
    with file.open("wb") as raw:
        np.savez(raw, tiny.pixels["test"])
    with pytest.raises(UserError, match="is damaged"):
        load("tiny", "test")


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_cache_is_never_unpickled(tiny: Any, tmp_path: Path) -> None:
    file = fetch("tiny", tiny.archive(tmp_path / "a.tgz")) / "test-pixels.npy"
    target = tmp_path / "made-by-payload"
    np.save(file, np.array([Payload(target)], dtype=object), allow_pickle=True)
    with pytest.raises(UserError, match="is damaged"):
        load("tiny", "test")
    assert not target.exists()


def test_image_size_is_for_folders() -> None:
    assert load("digits", "test", image_size=8).pixels.shape[1] == 8
    with pytest.raises(UserError, match="digits has images of 8x8"):
        load("digits", "test", image_size=16)


def test_data_sets_need_no_torch() -> None:
    program = "import sys, bilateral.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

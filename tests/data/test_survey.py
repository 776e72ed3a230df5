"""A folder of pictures looked at, not decoded."""

import numpy as np
import pytest
from PIL import Image

from bilateral.data import survey
from bilateral.data.pictures import picture_size
from bilateral.data.readers_folder import load_folder
from bilateral.data.survey import Survey, survey_folder
from bilateral.errors import UserError


def pictures(folder, sizes, kind="png"):
    """One picture of each (width, height)."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (number % 256, 0, 0)).save(folder / f"{number:04d}.{kind}")


def test_pictures_of_one_size(tmp_path):
    for name in "abc":
        pictures(tmp_path / name, [(20, 30)] * 10)
    found = survey_folder(tmp_path)
    assert found == Survey(classes=3, images=26, side=20, size=(20, 30), test_images=4)
    for split, images in (("train", 26), ("test", 4)):
        loaded = load_folder(tmp_path, split, None)
        assert (len(loaded.classes), len(loaded.labels)) == (3, images), "as it will be read"


def test_the_side_is_the_middle_of_the_shorter_ones(tmp_path):
    pictures(tmp_path / "train" / "a", [(100, 50), (60, 300), (70, 70)])
    pictures(tmp_path / "train" / "b", [(500, 10), (80, 90)])
    pictures(tmp_path / "val" / "a", [(7, 7)])
    pictures(tmp_path / "val" / "b", [(7, 7)])
    assert survey_folder(tmp_path) == Survey(2, 5, side=60, size=None, test_images=2)


def test_of_many_some_are_looked_at_from_every_class(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(survey, "SAMPLE", 6)
    monkeypatch.setattr(survey, "picture_size", lambda file: seen.append(file) or (9, 9))
    for name in "abc":
        for split in ("train", "val"):
            pictures(tmp_path / split / name, [(9, 9)] * 7)
    assert survey_folder(tmp_path).images == 21
    assert len(seen) == 6 and {file.parent.name for file in seen} == set("abc")
    assert {file.parent.parent.name for file in seen} == {"train"}


def test_headers_that_cannot_be_read_are_left_to_training(tmp_path):
    for name in "ab":
        pictures(tmp_path / name, [(40, 50)] * 6, "jpg")
    for bad in ("a/0000.jpg", "b/0003.jpg"):
        (tmp_path / bad).write_bytes(b"not a picture")
    assert survey_folder(tmp_path).size == (40, 50)
    for file in tmp_path.rglob("*.jpg"):
        file.write_bytes(b"")
    with pytest.raises(UserError, match=r"no picture in .* can be read"):
        survey_folder(tmp_path)


def test_what_is_no_folder_of_classes_is_told_as_ever(tmp_path):
    with pytest.raises(UserError, match="is not a folder"):
        survey_folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match="holds no class folders"):
        survey_folder(tmp_path)


def test_one_class_is_refused_by_its_name(tmp_path):
    """Before the run is described: "5 pictures in 1 classes" would be no description."""
    pictures(tmp_path / "birds", [(20, 30)] * 6)
    with pytest.raises(UserError, match=r"one class, birds: .* a level too high"):
        survey_folder(tmp_path)


def test_a_header_is_enough(tmp_path):
    file = tmp_path / "one.jpg"
    pixels = np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)
    file.write_bytes(file.read_bytes()[:700])
    assert picture_size(file) == (70, 90)
    assert picture_size(tmp_path) is None

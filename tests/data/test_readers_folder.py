import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bilateral.data import load, load_folder, photographs, pictures, readers_folder
from bilateral.data.datasets_entry import SPLITS
from bilateral.errors import UserError
from bilateral.paper.recipes import recipe_named
from bilateral.runs import RunFolder


def picture(path: Path, value: int = 0, size: tuple[int, int] = (6, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = (value,) * 3 if mode == "RGB" else value
    Image.new(mode, size, colour).save(path)


def one_set(path: Path, count: int = 20) -> Path:
    """Two classes of pictures, each of a grey of its own."""
    for number in range(count):
        picture(path / "cat" / f"{number:03d}.png", number)
        picture(path / "dog" / f"{number:03d}.png", 100 + number)
    return path


def values(path: Path, split: str) -> list[int]:
    found = load_folder(path, split, None)  # type: ignore[arg-type]
    greys: list[int] = found.pixels[:, 0, 0, 0].tolist()
    assert [grey >= 100 for grey in greys] == found.labels.astype(bool).tolist()
    return greys


def test_one_set_is_split_by_names(tmp_path: Path) -> None:
    one_set(tmp_path, 100)
    train, test = values(tmp_path, "train"), values(tmp_path, "test")
    assert sorted(train + test) == list(range(200))
    assert 5 <= len(test) / 2 <= 15
    assert values(tmp_path, "test") == test
    half = len(test) // 2
    assert test[:half] not in ([*range(half)], [*range(100 - half, 100)]), "order says nothing"


def test_classes_with_the_same_numbering_have_draws_of_their_own(tmp_path: Path) -> None:
    """By bare names six classes of twenty had all the same one for test."""
    for name in "abcdef":
        for number in range(20):
            picture(tmp_path / name / f"{number:03d}.png")
    found = readers_folder.files_of_split(tmp_path, "test")
    assert len({tuple(Path(file).name for file in files) for files in found.values()}) > 1
    (tmp_path / "train").mkdir()
    for name in "abcdef":
        (tmp_path / name).rename(tmp_path / "train" / name)
    below = readers_folder.files_of_split(tmp_path, "test")
    assert below == {name: [f"train/{file}" for file in files] for name, files in found.items()}


@pytest.mark.parametrize(
    ("schema", "chose"), [(1, "a seed"), (2, "names without their classes"), ([], "a seed")]
)
def test_runs_of_a_former_split_are_refused(tmp_path: Path, schema: object, chose: str) -> None:
    """What is for test now is among what they were trained on."""
    name = f"folder:{one_set(tmp_path / 'own', 3)}"
    folder = RunFolder(tmp_path / "run")
    folder.prepare(recipe_named("digits-r-mc-la"), {})
    readers_folder.same_test_pictures(folder, name)
    stored = json.loads(folder.config.read_text())
    folder.config.write_text(json.dumps({**stored, "schema": schema}))
    with pytest.raises(UserError, match=f"chose the test pictures of .* by {chose}"):
        readers_folder.same_test_pictures(folder, name)
    readers_folder.same_test_pictures(folder, "digits")
    one_set(tmp_path / "own" / "val", 3)
    readers_folder.same_test_pictures(folder, name)


def test_added_pictures_leave_the_others_where_they_were(tmp_path: Path) -> None:
    """What a model was trained on must not judge it when there are more pictures."""
    one_set(tmp_path, 60)
    before = readers_folder.files_of_split(tmp_path, "test")
    one_set(tmp_path, 200)
    for name, files in readers_folder.files_of_split(tmp_path, "test").items():
        assert [file for file in files if int(Path(file).stem) < 60] == before[name]
        assert 12 <= len(files) <= 28


def test_of_a_small_class_the_nearest_to_a_tenth_is_for_test(tmp_path: Path) -> None:
    """Where no name falls into the tenth one is taken all the same, and may be another later."""
    above = {}
    for label in ("cat", "dog"):
        names = [f"{label}/{one}.png" for one in range(99)]
        beyond = [name for name in names if readers_folder._place(name) >= 0.1]
        above[label] = sorted(beyond, key=readers_folder._place)
        for name in above[label][1:6]:
            picture(tmp_path / name)
    found = readers_folder.files_of_split(tmp_path, "test")
    assert found == {"cat": [above["cat"][1]], "dog": [above["dog"][1]]}
    picture(tmp_path / above["cat"][0])
    moved = readers_folder.files_of_split(tmp_path, "test")
    assert moved == {"cat": [above["cat"][0]], "dog": [above["dog"][1]]}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_of_few_pictures_each_side_has_one(tmp_path: Path, count: int) -> None:
    for name in "abcdefghij":
        for number in range(count):
            picture(tmp_path / name / f"{name}{number}.png")
    for split in SPLITS:
        assert all(readers_folder.files_of_split(tmp_path, split).values())


def test_a_name_that_is_no_text_is_a_name(tmp_path: Path) -> None:
    one_set(tmp_path, 2)
    file = Path(os.fsdecode(os.fsencode(tmp_path / "cat") + b"/\xff.png"))
    picture(file, 7)
    assert 7 in values(tmp_path, "train") + values(tmp_path, "test")


def test_fields_of_a_split(tmp_path: Path) -> None:
    found = load(f"folder:{one_set(tmp_path)}", "train")
    assert found.pixels.shape == (len(values(tmp_path, "train")), 6, 6, 3)
    assert found.pixels.dtype == np.uint8
    assert found.labels.dtype == np.int64
    assert found.classes == ("cat", "dog")
    resized = load(f"folder:{tmp_path}", "test", image_size=3)
    assert resized.pixels.shape == (len(values(tmp_path, "test")), 3, 3, 3)
    assert resized.pixels[:, 0, 0, 0].tolist() == values(tmp_path, "test")


@pytest.mark.parametrize("name", ["val", "test"])
def test_given_splits_are_kept(tmp_path: Path, name: str) -> None:
    one_set(tmp_path / "train", 3)
    one_set(tmp_path / name, 2)
    assert values(tmp_path, "train") == [0, 1, 2, 100, 101, 102]
    assert values(tmp_path, "test") == [0, 1, 100, 101]


def test_val_is_used_before_test(tmp_path: Path) -> None:
    for name, count in (("train", 3), ("val", 2), ("test", 1)):
        one_set(tmp_path / name, count)
    assert len(values(tmp_path, "test")) == 4


def test_train_alone_is_split(tmp_path: Path) -> None:
    one_set(tmp_path / "train", 10)
    assert len(values(tmp_path, "train")) == 18
    assert len(values(tmp_path, "test")) == 2


@pytest.mark.parametrize("name", ["valid", "validation", "Test"])
def test_a_test_set_of_another_name_is_not_left_out(tmp_path: Path, name: str) -> None:
    """A tenth of train/ was judged in its place."""
    one_set(tmp_path / "train", 10)
    picture(tmp_path / "unlabelled" / "all" / "0.png")
    assert len(values(tmp_path, "train")) == 18
    one_set(tmp_path / name, 3)
    for split in SPLITS:
        with pytest.raises(UserError, match=f"/{name} has classes of .*/train and would be left"):
            load_folder(tmp_path, split, None)
    one_set(tmp_path / "val", 2)
    assert len(values(tmp_path, "test")) == 4


def test_val_alone_can_be_evaluated(tmp_path: Path) -> None:
    one_set(tmp_path / "val", 2)
    assert len(values(tmp_path, "test")) == 4
    with pytest.raises(UserError, match="has val/ but no train/"):
        load_folder(tmp_path, "train", None)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        for number in range(3):
            picture(tmp_path / name / f"{number}.png")
    assert load_folder(tmp_path, "train", None).classes == ("bus", "train")


@pytest.mark.parametrize("size", [(40, 20), (20, 40), (20, 20)])
def test_resize_and_crop(tmp_path: Path, size: tuple[int, int]) -> None:
    """The shorter side becomes the image size, then the centre is cut out."""
    noise = np.random.default_rng(0).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    (tmp_path / "val" / "a").mkdir(parents=True)
    image.save(tmp_path / "val" / "a" / "0.png")
    width, height = size[0] // 2, size[1] // 2
    left, top = (width - 10) // 2, (height - 10) // 2
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    expected = np.asarray(resized.crop((left, top, left + 10, top + 10)))
    found = load_folder(tmp_path, "test", 10).pixels[0]
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_image_of_the_right_size_is_untouched(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    (tmp_path / "val" / "a").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "val" / "a" / "0.png")
    np.testing.assert_array_equal(load_folder(tmp_path, "test", 8).pixels[0], pixels)
    np.testing.assert_array_equal(load_folder(tmp_path, "test", None).pixels[0], pixels)


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA"])
def test_other_modes_become_rgb(tmp_path: Path, mode: str) -> None:
    (tmp_path / "val" / "a").mkdir(parents=True)
    Image.new("L", (4, 4), 255).convert(mode).save(tmp_path / "val" / "a" / "0.png")
    assert (load_folder(tmp_path, "test", None).pixels == 255).all()


def test_sixteen_bits_are_refused(tmp_path: Path) -> None:
    """Pillow would clip them to white."""
    picture(tmp_path / "val" / "a" / "0.png", 30_000, mode="I;16")
    with pytest.raises(UserError, match=r"0\.png has mode I(;16)?: 8 bits a channel expected"):
        load_folder(tmp_path, "test", None)


def test_other_files_are_passed_over(tmp_path: Path) -> None:
    one_set(tmp_path, 10)
    (tmp_path / "readme.txt").write_text("")
    (tmp_path / ".git").mkdir()
    (tmp_path / "cat" / ".hidden.png").write_bytes(b"")
    (tmp_path / "cat" / "notes.txt").write_text("")
    assert len(values(tmp_path, "train")) == 18


@pytest.mark.parametrize("name", ["999.tif", "999.HEIC", "more/999.png", "more/2/999.JPG"])
def test_pictures_that_would_be_left_out_are_refused(tmp_path: Path, name: str) -> None:
    """A class was read in part, and figures were of that part."""
    one_set(tmp_path / "train", 10)
    one_set(tmp_path / "val", 2)
    (tmp_path / "train" / "cat" / "more" / ".cache").mkdir(parents=True)
    (tmp_path / "train" / "cat" / "more" / ".cache" / "0.png").touch()
    assert values(tmp_path, "train") == [*range(10), *range(100, 110)]
    file = tmp_path / "train" / "cat" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    for split in SPLITS:
        with pytest.raises(UserError, match=f"cat/{name} would be left out"):
            load_folder(tmp_path, split, None)


def test_pictures_behind_a_link_are_refused(tmp_path: Path) -> None:
    """In a class; a class that is a link itself is read, and a link back is not followed."""
    one_set(tmp_path / "set", 10)
    (tmp_path / "set" / "cat" / "back").symlink_to(tmp_path / "set")
    (tmp_path / "set" / "dog").rename(tmp_path / "elsewhere")
    (tmp_path / "set" / "dog").symlink_to(tmp_path / "elsewhere")
    assert len(values(tmp_path / "set", "train")) == 18
    (tmp_path / "set" / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"cat/more/000\.png would be left out"):
        load_folder(tmp_path / "set", "train", None)


def test_classes_that_differ(tmp_path: Path) -> None:
    one_set(tmp_path / "train", 2)
    one_set(tmp_path / "val", 2)
    picture(tmp_path / "val" / "fish" / "0.png")
    for split in SPLITS:
        with pytest.raises(UserError, match=r"have different classes: fish$"):
            load_folder(tmp_path, split, None)


def test_empty_sets(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no class folders"):
        load_folder(tmp_path, "train", None)
    with pytest.raises(UserError, match="nowhere is not a folder"):
        load(f"folder:{tmp_path}/nowhere", "train")
    one_set(tmp_path, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no images"):
        load_folder(tmp_path, "train", None)


def test_class_of_one_image_cannot_be_split(tmp_path: Path) -> None:
    one_set(tmp_path, 3)
    picture(tmp_path / "fish" / "0.png")
    with pytest.raises(UserError, match="class fish has one image"):
        load_folder(tmp_path, "test", None)


@pytest.mark.parametrize("content", [b"", b"text", None])
def test_unreadable_image(tmp_path: Path, content: bytes | None) -> None:
    one_set(tmp_path / "val", 3)
    file = tmp_path / "val" / "cat" / "001.png"
    noise = np.random.default_rng(0).integers(0, 256, (50, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UserError, match=r"001\.png is not a readable image") as caught:
        load_folder(tmp_path, "test", 6)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [None, 6])
def test_unreadable_images_are_named_together(tmp_path: Path, size: int | None) -> None:
    """One a run would make of a small folder's five broken pictures five runs."""
    one_set(tmp_path / "val", 20)
    for number in range(3):
        (tmp_path / "val" / "cat" / f"{number:03d}.png").write_text("text")
    with pytest.raises(UserError) as caught:
        load_folder(tmp_path, "test", size)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path}/val/cat/000.png is not a readable image: none of ")
    either = "; these cannot be used either: val/cat/001.png, val/cat/002.png"
    assert said.endswith(f"{either}; remove or convert them")
    for number in range(12):
        picture(tmp_path / "val" / "dog" / f"{number:03d}.png", 30_000, mode="I;16")
    with pytest.raises(UserError) as caught:
        load_folder(tmp_path, "test", size)
    named = ", ".join(f"val/dog/{number:03d}.png" for number in range(7))
    assert str(caught.value).endswith(
        f"val/cat/002.png, {named} and 5 more; remove or convert them"
    )


def test_a_folder_of_nothing_readable(tmp_path: Path) -> None:
    one_set(tmp_path / "val", 2)
    for file in (tmp_path / "val").rglob("*.png"):
        file.write_text("text")
    with pytest.raises(UserError, match=r"000\.png is not a readable image"):
        load_folder(tmp_path, "test", None)


def test_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_set(tmp_path, 3)
    load_folder(tmp_path, "test", 6)
    monkeypatch.setattr(pictures, "LIMIT", 30)
    with pytest.raises(UserError, match="is not a readable image: 6 x 6 pixels are more than 30"):
        load_folder(tmp_path, "test", 6)


def test_images_too_large_for_a_batch_need_an_image_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_set(tmp_path, 3)
    load_folder(tmp_path, "test", None)
    monkeypatch.setattr(photographs, "LARGEST", 30)
    with pytest.raises(UserError, match="6x6 pixels, too many for a network: give --image-size"):
        load_folder(tmp_path, "test", None)
    load_folder(tmp_path, "test", 6)


def test_different_sizes_need_an_image_size(tmp_path: Path) -> None:
    one_set(tmp_path / "val", 2)
    picture(tmp_path / "val" / "dog" / "odd.png", 150, size=(7, 9))
    with pytest.raises(UserError, match=r"odd\.png differ in size \(6x6 and 7x9\)"):
        load_folder(tmp_path, "test", None)
    assert load_folder(tmp_path, "test", 6).pixels.shape == (5, 6, 6, 3)
    with pytest.raises(UserError, match="--image-size 0: must be 1 to 4096 pixels"):
        load_folder(tmp_path, "test", 0)


def test_what_is_too_much_for_memory_is_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_set(tmp_path, 6)
    kept = load_folder(tmp_path, "train", None)
    assert not kept.streamed
    monkeypatch.setattr(readers_folder, "MEMORY_LIMIT", kept.pixels.nbytes - 1)
    found = load(f"folder:{tmp_path}", "train")
    assert found.streamed and found.pixels.shape == kept.pixels.shape == (10, 6, 6, 3)
    assert found.image_values == kept.image_values == 108
    np.testing.assert_array_equal(found.pixels[:], kept.pixels)
    np.testing.assert_array_equal(found.labels, kept.labels)
    assert not load(f"folder:{tmp_path}", "train", streamed=False).streamed
    monkeypatch.setattr(readers_folder, "MEMORY_LIMIT", kept.pixels.nbytes)
    assert not load_folder(tmp_path, "train", None).streamed
    assert load_folder(tmp_path, "train", None, streamed=True).streamed
